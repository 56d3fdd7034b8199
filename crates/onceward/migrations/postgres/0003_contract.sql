-- The SQL contract: a service in any language takes part in its own transaction, with the operation,
-- the attempt and the fence that it was handed with its request. Whoever has lost the record gets an
-- error (SQLSTATE OW001), so that its transaction is rolled back. What makes no sense is refused
-- (OW002).

-- The address of a record, of the operation that a service was handed: `v1.SCOPE.KEY`, both parts in
-- base64 for URLs.
CREATE FUNCTION onceward.address(operation text, OUT scope text, OUT key text)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    parts text[] := regexp_match(operation, '^v1\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)$');
    part text;
    decoded text[] := '{}';
BEGIN
    IF parts IS NULL THEN
        RAISE EXCEPTION 'onceward: "%" is not an operation', operation
            USING ERRCODE = 'OW002', HINT = 'Hand on the header Onceward-Operation as it came.';
    END IF;
    FOREACH part IN ARRAY parts LOOP
        part := translate(part, '-_', '+/') || repeat('=', (4 - length(part) % 4) % 4);
        decoded := decoded || convert_from(decode(part, 'base64'), 'UTF8');
    END LOOP;
    scope := decoded[1];
    key := decoded[2];
EXCEPTION WHEN data_exception THEN
    RAISE EXCEPTION 'onceward: "%" is not an operation', operation
        USING ERRCODE = 'OW002', HINT = 'Hand on the header Onceward-Operation as it came.';
END
$$;

-- The record that this attempt holds, locked until the transaction ends. What is acknowledged after a
-- COMMIT must not be lost, so that one which does not wait for the disk is refused.
CREATE FUNCTION onceward.held(operation text, attempt uuid, fence bigint)
RETURNS onceward.records
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    a record := onceward.address(held.operation);
    r onceward.records;
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        RAISE EXCEPTION 'onceward: this transaction does not wait for the disk when it commits'
            USING ERRCODE = 'OW002', HINT = 'Leave synchronous_commit on.';
    END IF;
    SELECT * INTO r FROM onceward.records
    WHERE scope = a.scope AND key = a.key FOR NO KEY UPDATE;
    IF r.record_id IS NULL OR r.attempt IS DISTINCT FROM held.attempt
       OR r.fence IS DISTINCT FROM held.fence THEN
        RAISE EXCEPTION 'onceward: this attempt has lost its record'
            USING ERRCODE = 'OW001',
                  HINT = 'Roll back. Another attempt has the record, or it was decided about.';
    END IF;
    RETURN r;
END
$$;

-- Headers as the store keeps them. `{"name": "value"}`, or `[["name", "value"], ...]` for repeated
-- ones. Those that must not be sent again are left out.
CREATE FUNCTION onceward.headers(headers jsonb) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    encoded bytea := '\x01';
    header record;
    pairs jsonb := coalesce(nullif(headers.headers, 'null'), '[]');
BEGIN
    IF jsonb_typeof(pairs) = 'object' THEN
        SELECT coalesce(jsonb_agg(jsonb_build_array(name, value)), '[]') INTO pairs
        FROM jsonb_each(pairs) AS pair (name, value);
    ELSIF jsonb_typeof(pairs) <> 'array' THEN
        RAISE EXCEPTION 'onceward: headers are an object, or an array of pairs'
            USING ERRCODE = 'OW002';
    END IF;
    FOR header IN
        SELECT lower((pair ->> 0) COLLATE "C") AS name, btrim(pair ->> 1, E' \t') AS value,
               CASE WHEN jsonb_typeof(pair) = 'array' THEN
                   jsonb_array_length(pair) = 2 AND jsonb_typeof(pair -> 0) = 'string'
                   AND jsonb_typeof(pair -> 1) IN ('string', 'number')
               ELSE false END AS is_pair
        FROM jsonb_array_elements(pairs) WITH ORDINALITY AS pairs (pair, position)
        ORDER BY position
    LOOP
        -- Its value is not told: errors are logged.
        IF NOT header.is_pair OR octet_length(header.name) > 255
           OR header.name COLLATE "C" !~ '^[!#$%&''*+.^_`|~0-9a-z-]+$'
           OR header.value COLLATE "C" ~ '[\x01-\x08\x0a-\x1f\x7f]' THEN
            RAISE EXCEPTION 'onceward: "%" cannot be a header', left(header.name, 255)
                USING ERRCODE = 'OW002';
        END IF;
        CONTINUE WHEN header.name LIKE 'access-control-%' OR header.name IN (
            'date', 'age', 'content-length', 'server-timing', 'traceparent', 'tracestate',
            'connection', 'keep-alive', 'proxy-connection', 'te', 'trailer', 'transfer-encoding',
            'upgrade', 'alt-svc', 'set-cookie', 'set-cookie2', 'www-authenticate',
            'proxy-authenticate', 'authentication-info', 'proxy-authentication-info',
            'clear-site-data', 'idempotent-replayed', 'idempotency-expires',
            'idempotency-generation', 'onceward-outcome', 'onceward-schema-version',
            'onceward-executed', 'onceward-provider-id', 'onceward-sealed');
        encoded := encoded
            || int4send(octet_length(header.name)) || convert_to(header.name, 'UTF8')
            || int4send(octet_length(header.value)) || convert_to(header.value, 'UTF8');
    END LOOP;
    RETURN encoded;
END
$$;

-- Stores the reply: it is there if and only if the transaction commits. Repeated with the same
-- attempt it changes nothing. Of an attempt that was said not to have acted, and whose record nobody
-- has taken since, it counts where something outside the transaction may have acted, which no rollback
-- takes back; where the transaction is all there is, it is refused, and what was said is true.
CREATE FUNCTION onceward.complete(
    operation text, attempt uuid, fence bigint, status integer, headers jsonb, body bytea
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    r onceward.records := onceward.held(complete.operation, complete.attempt, complete.fence);
    encoded bytea := onceward.headers(complete.headers);
    content bytea := coalesce(complete.body, '');
    is_small boolean := onceward.is_small(encoded, content);
    t bigint := onceward.micros(NULL);
    denied boolean := r.state IN ('failed_retryable', 'pending')
                      AND r.last_error = 'resolved_not_executed'
                      AND r.effects IN ('external', 'undeclared');
BEGIN
    IF complete.status IS NULL OR complete.status NOT BETWEEN 200 AND 599 THEN
        RAISE EXCEPTION 'onceward: % cannot be the status of a reply', complete.status
            USING ERRCODE = 'OW002';
    ELSIF r.state = 'completed' THEN
        RETURN;
    ELSIF r.state NOT IN ('in_progress', 'unknown') AND denied IS NOT TRUE THEN
        RAISE EXCEPTION 'onceward: this attempt has lost its record' USING ERRCODE = 'OW001';
    ELSIF r.open_effect IS NOT NULL THEN
        RAISE EXCEPTION 'onceward: the result of effect "%" is not known', r.open_effect
            USING ERRCODE = 'OW002', HINT = 'Save its result first.';
    END IF;
    UPDATE onceward.records SET
        state = 'completed', finished_at = t, expires_at = onceward.plus(t, r.retention),
        reap_at = least(r.reap_at, onceward.plus(t, r.retention)),
        last_error = CASE WHEN denied THEN 'executed_after_all' END,
        reconcile_after = NULL, probes = 0, asked_at = NULL, absent_at = NULL,
        reply_status = complete.status, due_at = NULL, give_up_at = NULL,
        reply_headers = CASE WHEN is_small THEN encoded END,
        reply_body = CASE WHEN is_small THEN content END
    WHERE record_id = r.record_id;
    IF NOT is_small THEN
        INSERT INTO onceward.replies (record_id, headers, body)
        VALUES (r.record_id, encoded, content);
    END IF;
    DELETE FROM onceward.steps WHERE record_id = r.record_id;
    DELETE FROM onceward.requests WHERE record_id = r.record_id;
    IF r.state = 'unknown' OR denied THEN
        INSERT INTO onceward.audit_records (
            at, scope, key, generation, event, attempt, fence, reason, reply_status, reply_headers,
            reply_body)
        VALUES (t, r.scope, r.key, r.generation,
                CASE WHEN denied THEN 'incident' ELSE 'late_completion' END, r.attempt, r.fence, '',
                complete.status, encoded, content)
        ON CONFLICT DO NOTHING;
    END IF;
END
$$;

-- Saves the result of a step and moves the recovery point there. False if the step was saved before,
-- by an earlier attempt or an earlier call: its work must then not be done again.
CREATE FUNCTION onceward.advance(
    operation text, attempt uuid, fence bigint, name text, result jsonb
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    r onceward.records := onceward.held(advance.operation, advance.attempt, advance.fence);
    verdict text;
BEGIN
    IF coalesce(length(advance.name), 0) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'onceward: a step''s name must have 1 to 255 characters'
            USING ERRCODE = 'OW002';
    END IF;
    verdict := onceward.step(r.scope, r.key, r.attempt, r.fence, 'save', advance.name, NULL,
                             convert_to(coalesce(advance.result, 'null')::text, 'UTF8'));
    IF verdict = 'superseded' THEN
        RAISE EXCEPTION 'onceward: this attempt has lost its record' USING ERRCODE = 'OW001';
    ELSIF verdict NOT IN ('applied', 'mine') THEN
        RAISE EXCEPTION 'onceward: the step cannot be saved: %', verdict USING ERRCODE = 'OW002';
    END IF;
    RETURN verdict = 'applied';
END
$$;

-- The result of a step that was saved, in this use of the key; null if it was not.
CREATE FUNCTION onceward.saved(operation text, attempt uuid, fence bigint, name text) RETURNS jsonb
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    r onceward.records := onceward.held(saved.operation, saved.attempt, saved.fence);
BEGIN
    -- The steps of what is over are gone: they must not look as if they had not been made.
    IF r.state <> 'in_progress' THEN
        RAISE EXCEPTION 'onceward: this attempt has lost its record' USING ERRCODE = 'OW001';
    END IF;
    RETURN (SELECT convert_from(s.result, 'UTF8')::jsonb FROM onceward.steps s
            WHERE s.record_id = r.record_id AND s.generation = r.generation
              AND s.name = saved.name);
END
$$;

-- Says that this attempt did not act: the same request may run again. With steps made, it goes on
-- there. What was accepted for later is begun again by itself.
CREATE FUNCTION onceward.fail(operation text, attempt uuid, fence bigint, reason text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    r onceward.records := onceward.held(fail.operation, fail.attempt, fail.fence);
    t bigint := onceward.micros(NULL);
    why text := left(coalesce(nullif(fail.reason, ''), 'failed'), 255);
BEGIN
    IF r.state IN ('failed_retryable', 'pending') THEN
        RETURN;
    ELSIF r.state <> 'in_progress' THEN
        RAISE EXCEPTION 'onceward: this attempt has lost its record' USING ERRCODE = 'OW001';
    END IF;
    IF r.open_effect IS NOT NULL AND NOT r.open_effect_idempotent THEN
        UPDATE onceward.records
        SET state = 'unknown', reconcile_after = t, last_error = 'effect_without_result'
        WHERE record_id = r.record_id;
    ELSIF r.recovery_point IS NOT NULL OR r.open_effect IS NOT NULL THEN
        UPDATE onceward.records SET lease_until = t, last_error = why
        WHERE record_id = r.record_id;
        INSERT INTO onceward.leases (check_at, created_at, phased)
        VALUES (t, r.created_at, r.effects = 'phased');
    ELSIF r.queued_until IS NOT NULL THEN
        UPDATE onceward.records SET
            state = 'pending', last_error = why,
            lease_until = onceward.plus(t, onceward.backoff(r.attempts)),
            due_at = onceward.plus(t, onceward.backoff(r.attempts)), give_up_at = r.queued_until
        WHERE record_id = r.record_id;
    ELSE
        UPDATE onceward.records SET
            state = 'failed_retryable', finished_at = t, last_error = why,
            expires_at = onceward.plus(t, r.retention),
            reap_at = least(r.reap_at, onceward.plus(t, r.retention))
        WHERE record_id = r.record_id;
        DELETE FROM onceward.requests WHERE record_id = r.record_id;
    END IF;
END
$$;

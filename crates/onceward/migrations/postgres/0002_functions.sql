-- What the store asks. Each function is one statement to its caller and commits by itself, so that
-- no connection is ever left inside a transaction.
--
-- A batch must be one index lookup for each element, whatever the planner believes: a plan that was
-- made when the table was empty or never analysed would read all of it for each batch. So lookups are
-- LATERAL with OFFSET 0, which cannot be turned around; what is updated or deleted is named by its
-- place (ctid); the condition `coalesce(a.key, '') = a.key`, which always holds, makes the planner
-- expect few elements. The settings of a function hold while it runs and for nobody else; each costs a few
-- microseconds, so that what answers requests has only those that it needs.
--
-- Rows are locked FOR NO KEY UPDATE: a user's table may refer to a record, and a transaction that has
-- just written such a row must not hold up renewals.

-- The time: the server's own, or what a test says.
CREATE FUNCTION onceward.micros(at bigint) RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT coalesce(at, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
$$;

-- A time plus a duration; stays at the far end instead of overflowing.
CREATE FUNCTION onceward.plus(at bigint, duration bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN at > 9223372036854775807 - duration THEN 9223372036854775807 ELSE at + duration END
$$;

-- Whether a reply is in the row of its record. With more, not all rows of a page could be completed on it.
CREATE FUNCTION onceward.is_small(headers bytea, body bytea) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    -- Not of one without headers, which no row may hold: it is refused.
    SELECT coalesce(octet_length(headers) + coalesce(octet_length(body), 0) <= 256, false)
$$;

-- How long queued work waits after so many attempts: a second, doubling, at most a minute.
CREATE FUNCTION onceward.backoff(attempts integer) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT least(60, 1 << greatest(least(attempts - 1, 6), 0)) * 1000000::bigint
$$;

-- Takes what is absent, and returns what is in the way. All go the same way: what is the same for all
-- is given once. Only what is accepted for later has a time in `queued_for`, and no lease. What is
-- taken has `t` for its fence and a lease from then on; one row without an attempt stands for all. What
-- would have to be changed to be taken is returned with the verdict 'look', for `change`. What is
-- neither returned nor absent was made by somebody else just now: the caller asks again, as it does
-- after 'later', the answer to those behind the first few whose reply is large. With `new_ones` most are
-- expected to be absent and are taken before anything is looked up; without, most are expected to be
-- completed, and are looked for with no more columns than a replay needs ('replay'). Where one is not,
-- all are looked up again, and what was said first of each counts. No two may be for one record,
-- unless it is there. A batch hardly waits for transactions that are on their way; one that is alone may
-- have more patience.
--
-- A session prepares the expressions of a function anew in each transaction, and those of a plan with
-- each call: that costs as much as some elements, so that what many calls go through is kept short.
CREATE FUNCTION onceward.reserve(
    at bigint, scopes text[], keys text[], fingerprints bytea[], attempts uuid[], routes text[],
    methods text[], paths text[], takes boolean, recipe integer, lease bigint, max_execution bigint,
    retention bigint, tombstone bigint, effects onceward.effects, queued_for bigint,
    requests bytea[], patience text, new_ones boolean
) RETURNS SETOF onceward.found
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    t bigint := onceward.micros(reserve.at);
    taken bigint;
    known_ones bigint;
    one onceward.found;
    known bigint[];
BEGIN
    IF patience IS NOT NULL THEN
        PERFORM set_config('lock_timeout', patience, true);
    END IF;
    IF requests IS NOT NULL THEN
        -- Only what is taken now leaves its request.
        SELECT coalesce(array_agg(r.record_id), '{}') INTO known
        FROM unnest(scopes, keys) AS a (scope, key)
        CROSS JOIN LATERAL (SELECT * FROM onceward.records r
                            WHERE r.scope = a.scope AND r.key = a.key OFFSET 0) r;
    END IF;
    IF NOT new_ones THEN
        RETURN QUERY
        SELECT a.n::integer,
               CASE WHEN a.n > 8 AND coalesce(r.reply_headers, (r.elsewhere).headers) IS NULL
                    THEN 'later' ELSE 'replay' END,
               t, NULL::bigint, NULL, NULL, r.recipe, r.fingerprint::bytea, r.generation::integer,
               NULL, r.attempt, r.fence::bigint, NULL::integer, NULL, NULL, NULL, NULL, NULL::bigint,
               NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, r.expires_at, NULL::bigint,
               NULL::bigint, NULL, NULL::bigint, NULL::boolean, NULL, NULL, NULL::boolean,
               r.reply_status, coalesce(r.reply_headers, (r.elsewhere).headers),
               coalesce(r.reply_schema, (r.elsewhere).schema_version),
               coalesce(r.reply_body, (r.elsewhere).body),
               NULL::bigint, NULL::integer, NULL::bigint, NULL::bigint
        FROM unnest(keys) WITH ORDINALITY AS a (key, n)
        CROSS JOIN LATERAL (SELECT r.recipe, r.fingerprint, r.generation, r.attempt, r.fence,
                                   r.expires_at, r.reply_status, r.reply_headers, r.reply_schema,
                                   r.reply_body,
                                   CASE WHEN r.reply_headers IS NULL
                                   THEN (SELECT p FROM onceward.replies p
                                         WHERE p.record_id = r.record_id
                                           AND (a.n <= 8 OR coalesce(octet_length(p.body), 0) <= 32768))
                                   END AS elsewhere
                            FROM onceward.records r
                            WHERE r.scope = scopes[a.n] AND r.key = a.key AND r.state = 'completed'
                              AND r.expires_at > t AND r.attempt <> reserve.attempts[a.n]
                            OFFSET 0) r;
        GET DIAGNOSTICS known_ones = ROW_COUNT;
        IF known_ones = cardinality(scopes) THEN
            RETURN;
        END IF;
        known_ones := NULL;
    END IF;
    LOOP
        IF new_ones AND takes THEN
            BEGIN
                INSERT INTO onceward.records (
                    scope, key, recipe, fingerprint, generation, state, attempt, fence, attempts,
                    effects, route, method, path, created_at, started_at, lease_until,
                    max_execution, expires_at, retention, tombstone, void, queued_until, due_at,
                    give_up_at, reap_at)
                SELECT scopes[a.n], a.key, reserve.recipe, fingerprints[a.n], 1,
                       CASE WHEN queued_for IS NULL THEN 'in_progress' ELSE 'pending' END,
                       reserve.attempts[a.n], greatest(t, 1), (queued_for IS NULL)::integer,
                       reserve.effects, routes[a.n], methods[a.n], paths[a.n], t, t,
                       onceward.plus(t, lease),
                       reserve.max_execution, onceward.plus(t, reserve.retention),
                       reserve.retention, reserve.tombstone, false, onceward.plus(t, queued_for),
                       CASE WHEN queued_for IS NOT NULL THEN t END,
                       onceward.plus(t, queued_for), onceward.plus(t, reserve.retention)
                FROM unnest(keys) WITH ORDINALITY AS a (key, n)
                -- Without this, one row that a transaction is changing would hold up all.
                LEFT JOIN LATERAL (SELECT true AS there FROM onceward.records r
                                   WHERE r.scope = scopes[a.n] AND r.key = a.key OFFSET 0) r ON true
                WHERE r.there IS NULL;
                GET DIAGNOSTICS taken = ROW_COUNT;
                IF taken > 0 AND queued_for IS NULL THEN
                    INSERT INTO onceward.leases (check_at, created_at, phased)
                    VALUES (onceward.plus(t, lease), t, reserve.effects = 'phased');
                END IF;
            EXCEPTION WHEN unique_violation THEN
                -- Somebody has just made one of them. ON CONFLICT would say which, and would cost each
                -- of the others a third of its work.
                taken := 0;
            END;
            IF taken = cardinality(scopes) THEN
                one.verdict := 'taken';
                one.at := t;
                RETURN NEXT one;
                EXIT;
            END IF;
        END IF;
        RETURN QUERY
        SELECT a.n::integer,
               CASE WHEN taken > 0 AND r.attempt = reserve.attempts[a.n] AND r.fence = greatest(t, 1)
                     AND r.created_at = t AND r.state IN ('in_progress', 'pending') THEN 'taken'
                    WHEN r.state = 'completed' AND a.n > 8
                     AND coalesce(r.reply_headers, (r.elsewhere).headers) IS NULL THEN 'later'
                    WHEN r.attempt <> reserve.attempts[a.n] AND r.state <> 'expired'
                     AND (r.expires_at > t OR r.state NOT IN ('completed', 'failed_retryable'))
                     AND (r.fingerprint <> fingerprints[a.n] OR r.recipe <> reserve.recipe
                          OR r.state IN ('completed', 'unknown', 'pending')
                          OR (r.state = 'in_progress' AND r.lease_until > t))
                    THEN 'occupied' ELSE 'look' END,
               t, r.record_id, r.scope::text, r.key::text, r.recipe, r.fingerprint::bytea,
               r.generation::integer, r.state::text, r.attempt, r.fence::bigint, r.attempts,
               r.effects::text, r.route, r.method, r.path, r.created_at, r.started_at,
               r.lease_until, r.max_execution, r.finished_at, r.expires_at, r.retention,
               r.tombstone, r.last_error, r.reconcile_after, r.void, r.recovery_point,
               r.open_effect, r.open_effect_idempotent, r.reply_status,
               coalesce(r.reply_headers, (r.elsewhere).headers),
               coalesce(r.reply_schema, (r.elsewhere).schema_version),
               coalesce(r.reply_body, (r.elsewhere).body),
               r.queued_until, r.probes, r.asked_at, r.absent_at
        FROM unnest(keys) WITH ORDINALITY AS a (key, n)
        CROSS JOIN LATERAL (SELECT r.*, CASE WHEN r.state = 'completed' AND r.reply_headers IS NULL
                                THEN (SELECT p FROM onceward.replies p
                                      WHERE p.record_id = r.record_id
                                        AND (a.n <= 8 OR coalesce(octet_length(p.body), 0) <= 32768))
                                END AS elsewhere
                            FROM onceward.records r
                            WHERE r.scope = scopes[a.n] AND r.key = a.key OFFSET 0) r
        -- What was found before is not told twice.
        WHERE known_ones IS NULL OR r.attempt = reserve.attempts[a.n];
        EXIT WHEN new_ones;
        GET DIAGNOSTICS known_ones = ROW_COUNT;
        EXIT WHEN known_ones = cardinality(scopes);
        new_ones := true;
    END LOOP;
    IF requests IS NOT NULL THEN
        INSERT INTO onceward.requests (record_id, request)
        SELECT r.record_id, a.request
        FROM unnest(scopes, keys, reserve.attempts, requests) AS a (scope, key, attempt, request)
        CROSS JOIN LATERAL (SELECT * FROM onceward.records r
                            WHERE r.scope = a.scope AND r.key = a.key OFFSET 0) r
        WHERE a.request IS NOT NULL AND r.attempt = a.attempt AND r.record_id <> ALL (known)
        ON CONFLICT (record_id) DO NOTHING;
    END IF;
END
$$;

-- The same for one that is alone and begins its work at once, probably for a new key: it does not pay
-- for what serves many.
CREATE FUNCTION onceward.reserve_one(
    at bigint, scope text, key text, fingerprint bytea, attempt uuid, path text, recipe integer,
    lease bigint, max_execution bigint, retention bigint, tombstone bigint,
    effects onceward.effects, route text, method text, patience text
) RETURNS SETOF onceward.found
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    t bigint := onceward.micros(reserve_one.at);
    lease_until bigint := onceward.plus(t, reserve_one.lease);
    expires_at bigint := onceward.plus(t, reserve_one.retention);
    fresh bigint;
    one onceward.found;
BEGIN
    IF patience IS NOT NULL THEN
        PERFORM set_config('lock_timeout', patience, true);
    END IF;
    INSERT INTO onceward.records AS r (
        scope, key, recipe, fingerprint, generation, state, attempt, fence, attempts, effects, route,
        method, path, created_at, started_at, lease_until, max_execution, expires_at, retention,
        tombstone, void, reap_at)
    SELECT reserve_one.scope, reserve_one.key, reserve_one.recipe, reserve_one.fingerprint, 1,
           'in_progress', reserve_one.attempt, greatest(t, 1), 1, reserve_one.effects,
           reserve_one.route, reserve_one.method, reserve_one.path, t, t, lease_until,
           reserve_one.max_execution, expires_at, reserve_one.retention, reserve_one.tombstone,
           false, expires_at
    -- A row that a transaction is changing would hold it up.
    WHERE NOT EXISTS (SELECT FROM onceward.records r
                      WHERE r.scope = reserve_one.scope AND r.key = reserve_one.key)
    ON CONFLICT (scope, key) DO NOTHING
    RETURNING r.record_id INTO fresh;
    IF fresh IS NULL THEN
        RETURN QUERY SELECT * FROM onceward.reserve(
            reserve_one.at, ARRAY[reserve_one.scope], ARRAY[reserve_one.key],
            ARRAY[reserve_one.fingerprint], ARRAY[reserve_one.attempt], ARRAY[reserve_one.route],
            ARRAY[reserve_one.method], ARRAY[reserve_one.path], true, reserve_one.recipe,
            reserve_one.lease, reserve_one.max_execution, reserve_one.retention,
            reserve_one.tombstone, reserve_one.effects, NULL, NULL, patience, false);
        RETURN;
    END IF;
    INSERT INTO onceward.leases (check_at, created_at, phased)
    VALUES (lease_until, t, reserve_one.effects = 'phased');
    one.verdict := 'taken';
    one.at := t;
    RETURN NEXT one;
END
$$;

-- Moves lease ends on, of records that are held by these attempts. A row that is locked is skipped:
-- its own transaction may be open for long. Returns the attempts whose lease was renewed.
CREATE FUNCTION onceward.renew(
    at bigint, scopes text[], keys text[], attempts uuid[], fences bigint[], leases bigint[]
) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    t bigint := onceward.micros(renew.at);
BEGIN
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT r.place, a.lease
        FROM unnest(scopes, keys, renew.attempts, fences, leases)
             AS a (scope, key, attempt, fence, lease)
        CROSS JOIN LATERAL (SELECT r.ctid AS place FROM onceward.records r
                            WHERE r.scope = a.scope AND r.key = a.key AND r.attempt = a.attempt
                              AND r.fence = a.fence AND r.state = 'in_progress'
                            FOR NO KEY UPDATE SKIP LOCKED) r
        WHERE coalesce(a.key, '') = a.key
    )
    UPDATE onceward.records r SET lease_until = greatest(r.lease_until, onceward.plus(t, h.lease))
    FROM held h WHERE r.ctid = h.place
    RETURNING r.attempt;
END
$$;

-- Stores the replies of attempts that hold their records. Returns the attempts whose reply was stored,
-- one after the other; the others are looked at one by one. A batch has little patience with whoever
-- has a record locked, and may come again with `skip_locked` and leave out what is locked.
CREATE FUNCTION onceward.complete_all(
    at bigint, scopes text[], keys text[], attempts uuid[], fences bigint[], statuses smallint[],
    headers bytea[], schema_versions text[], bodies bytea[], skip_locked boolean
) RETURNS bytea
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    t bigint := onceward.micros(complete_all.at);
    applied bytea;
    stepped bigint[];
    large bigint[];
    places integer[];
BEGIN
    IF skip_locked THEN
        keys := onceward.unlocked(scopes, keys);
    END IF;
    WITH written AS (
        UPDATE onceward.records AS r SET
            state = 'completed', finished_at = t, expires_at = onceward.plus(t, r.retention),
            -- Earlier than it is filed only if the clock was set back.
            reap_at = least(r.reap_at, onceward.plus(t, r.retention)),
            last_error = NULL, reconcile_after = NULL, reply_status = statuses[a.n],
            reply_headers = CASE WHEN a.is_small THEN complete_all.headers[a.n] END,
            reply_schema = CASE WHEN a.is_small THEN schema_versions[a.n] END,
            reply_body = CASE WHEN a.is_small THEN bodies[a.n] END
        FROM (SELECT a.n, o.place,
                     onceward.is_small(complete_all.headers[a.n], bodies[a.n]) AS is_small
              FROM unnest(keys) WITH ORDINALITY AS a (key, n)
              CROSS JOIN LATERAL (SELECT o.ctid AS place FROM onceward.records o
                                  WHERE o.scope = scopes[a.n] AND o.key = a.key OFFSET 0) o
              WHERE coalesce(a.key, '') = a.key
              OFFSET 0) a
        WHERE r.ctid = a.place AND r.attempt = complete_all.attempts[a.n]
          AND r.fence = fences[a.n] AND r.state = 'in_progress'
        RETURNING r.record_id, r.attempt, a.n, a.is_small,
                  r.effects = 'phased' OR r.recovery_point IS NOT NULL
                      OR r.queued_until IS NOT NULL AS has_steps
    )
    SELECT string_agg(uuid_send(w.attempt), ''),
           array_agg(w.record_id) FILTER (WHERE w.has_steps),
           array_agg(w.record_id) FILTER (WHERE NOT w.is_small),
           array_agg(w.n) FILTER (WHERE NOT w.is_small)
    INTO applied, stepped, large, places FROM written w;
    IF large IS NOT NULL THEN
        INSERT INTO onceward.replies (record_id, headers, schema_version, body)
        SELECT l.record_id, complete_all.headers[l.place], schema_versions[l.place], bodies[l.place]
        FROM unnest(large, places) AS l (record_id, place);
    END IF;
    IF stepped IS NOT NULL THEN
        DELETE FROM onceward.requests q WHERE q.record_id = ANY (stepped);
        DELETE FROM onceward.steps s WHERE s.record_id = ANY (stepped);
    END IF;
    RETURN applied;
END
$$;

-- The other ends of attempts that hold their records: 'release' or 'unknown'. Returns the same.
CREATE FUNCTION onceward.give_up(
    at bigint, scopes text[], keys text[], attempts uuid[], fences bigint[], kinds text[],
    reasons text[], skip_locked boolean
) RETURNS bytea
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    t bigint := onceward.micros(give_up.at);
    applied bytea;
    phased bigint[];
BEGIN
    IF skip_locked THEN
        keys := onceward.unlocked(scopes, keys);
    END IF;
    WITH written AS (
        UPDATE onceward.records AS r SET
            state = CASE a.kind WHEN 'release' THEN 'failed_retryable' ELSE 'unknown' END,
            finished_at = CASE a.kind WHEN 'release' THEN t ELSE r.finished_at END,
            expires_at = CASE a.kind WHEN 'release' THEN onceward.plus(t, r.retention)
                                     ELSE r.expires_at END,
            -- Earlier than it is filed only if the clock was set back.
            reap_at = CASE a.kind WHEN 'release' THEN least(r.reap_at, onceward.plus(t, r.retention))
                                  ELSE r.reap_at END,
            last_error = a.reason,
            reconcile_after = CASE a.kind WHEN 'unknown' THEN t END,
            reply_status = NULL
        FROM (SELECT a.*, o.place
              FROM unnest(scopes, keys, give_up.attempts, fences, kinds, reasons)
                   AS a (scope, key, attempt, fence, kind, reason)
              CROSS JOIN LATERAL (SELECT o.ctid AS place FROM onceward.records o
                                  WHERE o.scope = a.scope AND o.key = a.key OFFSET 0) o
              WHERE coalesce(a.key, '') = a.key
              OFFSET 0) a
        WHERE r.ctid = a.place AND r.attempt = a.attempt AND r.fence = a.fence
          AND r.state = 'in_progress'
          -- What waits to be gone on with, or to be begun again, is looked at by itself.
          AND (a.kind <> 'release' OR (r.recovery_point IS NULL AND r.open_effect IS NULL
                                       AND r.queued_until IS NULL))
        RETURNING r.record_id, r.attempt, a.kind = 'release' AND r.effects = 'phased' AS is_phased
    )
    SELECT string_agg(uuid_send(w.attempt), ''),
           array_agg(w.record_id) FILTER (WHERE w.is_phased)
    INTO applied, phased FROM written w;
    IF phased IS NOT NULL THEN
        DELETE FROM onceward.requests q WHERE q.record_id = ANY (phased);
        DELETE FROM onceward.steps s WHERE s.record_id = ANY (phased);
    END IF;
    RETURN applied;
END
$$;

-- Locks what can be locked at once. Returns the keys, and null for those that others have locked.
CREATE FUNCTION onceward.unlocked(scopes text[], keys text[]) RETURNS text[]
LANGUAGE sql VOLATILE AS $$
    SELECT array_agg(r.key::text ORDER BY a.position)
    FROM unnest(scopes, keys) WITH ORDINALITY AS a (scope, key, position)
    LEFT JOIN LATERAL (SELECT r.key FROM onceward.records r
                       WHERE r.scope = a.scope AND r.key = a.key
                       FOR NO KEY UPDATE SKIP LOCKED) r ON true
$$;

-- The same for one reply that is alone: it does not pay for what serves many. Returns the attempt, or
-- null.
CREATE FUNCTION onceward.complete_one(
    at bigint, scope text, key text, attempt uuid, fence bigint, status smallint, headers bytea,
    schema_version text, body bytea, patience text
) RETURNS uuid
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    t bigint := onceward.micros(complete_one.at);
    is_small boolean := onceward.is_small(complete_one.headers, complete_one.body);
    held bigint;
    has_steps boolean;
BEGIN
    IF patience IS NOT NULL THEN
        PERFORM set_config('lock_timeout', patience, true);
    END IF;
    UPDATE onceward.records AS r SET
        state = 'completed', finished_at = t, expires_at = onceward.plus(t, r.retention),
        -- Earlier than it is filed only if the clock was set back.
        reap_at = least(r.reap_at, onceward.plus(t, r.retention)),
        last_error = NULL, reconcile_after = NULL, reply_status = complete_one.status,
        reply_headers = CASE WHEN is_small THEN complete_one.headers END,
        reply_schema = CASE WHEN is_small THEN complete_one.schema_version END,
        reply_body = CASE WHEN is_small THEN complete_one.body END
    WHERE r.scope = complete_one.scope AND r.key = complete_one.key
      AND r.attempt = complete_one.attempt AND r.fence = complete_one.fence
      AND r.state = 'in_progress'
    RETURNING r.record_id,
              r.effects = 'phased' OR r.recovery_point IS NOT NULL OR r.queued_until IS NOT NULL
    INTO held, has_steps;
    IF held IS NULL THEN
        RETURN NULL;
    END IF;
    IF NOT is_small THEN
        INSERT INTO onceward.replies (record_id, headers, schema_version, body)
        VALUES (held, complete_one.headers, complete_one.schema_version, complete_one.body);
    END IF;
    IF has_steps THEN
        DELETE FROM onceward.requests q WHERE q.record_id = held;
        DELETE FROM onceward.steps s WHERE s.record_id = held;
    END IF;
    RETURN complete_one.attempt;
END
$$;

-- Records as they are, with the time.
CREATE FUNCTION onceward.load(at bigint, scopes text[], keys text[]) RETURNS SETOF onceward.found
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    t bigint := onceward.micros(load.at);
BEGIN
    RETURN QUERY
    SELECT a.position::integer, 'look', t, r.record_id, r.scope::text, r.key::text, r.recipe,
           r.fingerprint::bytea, r.generation::integer, r.state::text, r.attempt, r.fence::bigint,
           r.attempts, r.effects::text, r.route, r.method, r.path, r.created_at, r.started_at,
           r.lease_until, r.max_execution, r.finished_at, r.expires_at, r.retention, r.tombstone,
           r.last_error, r.reconcile_after, r.void, r.recovery_point, r.open_effect,
           r.open_effect_idempotent, r.reply_status, coalesce(r.reply_headers, p.headers),
           coalesce(r.reply_schema, p.schema_version), coalesce(r.reply_body, p.body),
           r.queued_until, r.probes, r.asked_at, r.absent_at
    FROM unnest(scopes, keys) WITH ORDINALITY AS a (scope, key, position)
    LEFT JOIN LATERAL (SELECT * FROM onceward.records r
                       WHERE r.scope = a.scope AND r.key = a.key OFFSET 0) r ON true
    LEFT JOIN LATERAL (SELECT * FROM onceward.replies p
                       WHERE p.record_id = r.record_id AND r.state = 'completed'
                         AND r.reply_headers IS NULL
                       OFFSET 0) p ON true;
END
$$;

-- The places of those records that nobody is at work on any more, or whose lease is over.
CREATE FUNCTION onceward.settled(at bigint, scopes text[], keys text[]) RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    t bigint := onceward.micros(settled.at);
BEGIN
    RETURN QUERY
    SELECT a.position FROM unnest(scopes, keys) WITH ORDINALITY AS a (scope, key, position)
    LEFT JOIN LATERAL (SELECT r.state, r.lease_until FROM onceward.records r
                       WHERE r.scope = a.scope AND r.key = a.key OFFSET 0) r ON true
    WHERE coalesce(r.state <> 'pending' AND (r.state <> 'in_progress' OR r.lease_until <= t), true);
END
$$;

-- Changes a record if it is still what the caller looked at (`expected`, null for absent): to what
-- `record` says, or to nothing when that is null; and remembers `audit`. Waits for whoever is
-- changing it now, so that the answer to a repeated call is the truth. False: look again.
CREATE FUNCTION onceward.change(
    record_scope text, record_key text, expected jsonb, record jsonb, reply_headers bytea,
    reply_body bytea, request bytea, audit jsonb, audit_headers bytea, audit_body bytea
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET jit = off
SET lock_timeout = '1s'
AS $$
#variable_conflict use_column
DECLARE
    old onceward.records;
    e onceward.records := jsonb_populate_record(NULL::onceward.records, change.expected);
    new onceward.records := jsonb_populate_record(NULL::onceward.records, change.record);
    a onceward.audit_records := jsonb_populate_record(NULL::onceward.audit_records, change.audit);
    is_large boolean;
BEGIN
    SELECT * INTO old FROM onceward.records r
    WHERE r.scope = record_scope AND r.key = record_key FOR NO KEY UPDATE;
    IF (old.record_id IS NULL) <> (change.expected IS NULL) THEN
        RETURN false;
    END IF;
    IF old.record_id IS NOT NULL
       AND (old.generation, old.state, old.attempt, old.fence, old.lease_until, old.expires_at,
            old.void, old.recovery_point, old.open_effect, old.open_effect_idempotent,
            old.reconcile_after, old.probes)
           IS DISTINCT FROM
           (e.generation, e.state, e.attempt, e.fence, e.lease_until, e.expires_at, e.void,
            e.recovery_point, e.open_effect, e.open_effect_idempotent, e.reconcile_after,
            e.probes) THEN
        RETURN false;
    END IF;
    IF new.state = 'pending' THEN
        new.due_at := new.lease_until;
        new.give_up_at := new.queued_until;
    END IF;
    is_large := new.state = 'completed'
                AND NOT onceward.is_small(change.reply_headers, change.reply_body);
    IF new.state = 'completed' AND NOT is_large THEN
        new.reply_headers := change.reply_headers;
        new.reply_body := change.reply_body;
    ELSE
        new.reply_schema := NULL;
    END IF;
    IF change.record IS NULL THEN
        DELETE FROM onceward.records WHERE record_id = old.record_id;
    ELSIF old.record_id IS NULL THEN
        INSERT INTO onceward.records (
            scope, key, recipe, fingerprint, generation, state, attempt, fence, attempts, effects,
            route, method, path, created_at, started_at, lease_until, max_execution, finished_at,
            expires_at, retention, tombstone, last_error, reconcile_after, void, recovery_point,
            open_effect, open_effect_idempotent, reply_status, queued_until, probes, asked_at,
            absent_at, due_at, give_up_at, reap_at, reply_headers, reply_schema, reply_body)
        VALUES (
            record_scope, record_key, new.recipe, new.fingerprint, new.generation, new.state,
            new.attempt, new.fence, new.attempts, new.effects, new.route, new.method, new.path,
            new.created_at, new.started_at, new.lease_until, new.max_execution, new.finished_at,
            new.expires_at, new.retention, new.tombstone, new.last_error, new.reconcile_after,
            new.void, new.recovery_point, new.open_effect, new.open_effect_idempotent,
            new.reply_status, new.queued_until, new.probes, new.asked_at, new.absent_at,
            new.due_at, new.give_up_at, new.expires_at, new.reply_headers, new.reply_schema,
            new.reply_body)
        ON CONFLICT (scope, key) DO NOTHING
        RETURNING record_id INTO new.record_id;
        IF new.record_id IS NULL THEN
            RETURN false;
        END IF;
    ELSE
        new.record_id := old.record_id;
        UPDATE onceward.records SET
            recipe = new.recipe, fingerprint = new.fingerprint, generation = new.generation,
            state = new.state, attempt = new.attempt, fence = new.fence, attempts = new.attempts,
            effects = new.effects, route = new.route, method = new.method, path = new.path,
            created_at = new.created_at, started_at = new.started_at,
            lease_until = new.lease_until, max_execution = new.max_execution,
            finished_at = new.finished_at, expires_at = new.expires_at,
            retention = new.retention, tombstone = new.tombstone, last_error = new.last_error,
            reconcile_after = new.reconcile_after, void = new.void,
            recovery_point = new.recovery_point, open_effect = new.open_effect,
            open_effect_idempotent = new.open_effect_idempotent, reply_status = new.reply_status,
            queued_until = new.queued_until, probes = new.probes, asked_at = new.asked_at,
            absent_at = new.absent_at, due_at = new.due_at, give_up_at = new.give_up_at,
            reap_at = CASE new.state WHEN 'expired' THEN onceward.plus(new.expires_at, new.tombstone)
                                     ELSE new.expires_at END,
            reply_headers = new.reply_headers, reply_schema = new.reply_schema,
            reply_body = new.reply_body
        WHERE record_id = old.record_id;
    END IF;
    IF old.record_id IS NOT NULL THEN
        DELETE FROM onceward.replies WHERE record_id = old.record_id;
        -- A record at rest was done with whatever is left of its steps.
        IF new.state IS NULL OR new.state IN ('completed', 'failed_retryable', 'expired')
           OR old.state IN ('completed', 'failed_retryable', 'expired')
           OR new.generation <> old.generation THEN
            DELETE FROM onceward.steps WHERE record_id = old.record_id;
            DELETE FROM onceward.requests WHERE record_id = old.record_id;
        END IF;
    END IF;
    IF new.state = 'in_progress' THEN
        INSERT INTO onceward.leases (check_at, created_at, phased)
        VALUES (new.lease_until, new.created_at, new.effects = 'phased');
    ELSIF is_large THEN
        INSERT INTO onceward.replies (record_id, headers, schema_version, body)
        VALUES (new.record_id, change.reply_headers, change.record ->> 'reply_schema', change.reply_body);
    END IF;
    IF change.request IS NOT NULL THEN
        INSERT INTO onceward.requests (record_id, request) VALUES (new.record_id, change.request)
        ON CONFLICT (record_id) DO NOTHING;
    END IF;
    PERFORM onceward.remember(a, change.audit ->> 'reply_schema', audit_headers, audit_body);
    RETURN true;
END
$$;

-- The same thing told twice is one audit record.
CREATE FUNCTION onceward.remember(
    a onceward.audit_records, reply_schema text, reply_headers bytea, reply_body bytea
) RETURNS void
LANGUAGE sql VOLATILE AS $$
    INSERT INTO onceward.audit_records (
        at, scope, key, generation, event, attempt, fence, reason, reply_status, reply_headers,
        reply_schema, reply_body, told)
    SELECT a.at, a.scope, a.key, a.generation, a.event, a.attempt, a.fence, a.reason,
           a.reply_status, reply_headers, reply_schema, reply_body, a.told
    WHERE a.event IS NOT NULL
    ON CONFLICT DO NOTHING
$$;

-- One step of a phased operation, by the attempt that holds it: 'save' (a phase, or the result of an
-- effect), 'intend' or 'withdraw' (an effect). Says 'applied', 'mine' when it stands already,
-- 'superseded', or what is wrong. Waits for whoever is changing the record now.
CREATE FUNCTION onceward.step(
    record_scope text, record_key text, record_attempt uuid, record_fence bigint, kind text,
    step_name text, idempotent boolean, result bytea
) RETURNS text
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET jit = off
SET lock_timeout = '1s'
AS $$
#variable_conflict use_column
DECLARE
    r onceward.records;
    saved boolean;
BEGIN
    SELECT * INTO r FROM onceward.records
    WHERE scope = record_scope AND key = record_key FOR NO KEY UPDATE;
    IF r.attempt IS DISTINCT FROM record_attempt OR r.fence IS DISTINCT FROM record_fence
       OR r.state <> 'in_progress' THEN
        RETURN 'superseded';
    END IF;
    saved := EXISTS (SELECT FROM onceward.steps s
                     WHERE s.record_id = r.record_id AND s.generation = r.generation
                       AND s.name = step_name);
    IF step.kind = 'save' THEN
        IF saved OR r.recovery_point = step_name THEN
            RETURN 'mine';
        ELSIF r.open_effect <> step_name THEN
            RETURN 'another_effect_is_open';
        END IF;
        INSERT INTO onceward.steps (record_id, generation, name, result)
        VALUES (r.record_id, r.generation, step_name, step.result);
        UPDATE onceward.records
        SET recovery_point = step_name, open_effect = NULL, open_effect_idempotent = NULL
        WHERE record_id = r.record_id;
        RETURN 'applied';
    ELSIF saved THEN
        RETURN 'step_has_a_result';
    ELSIF step.kind = 'intend' THEN
        IF r.open_effect = step_name THEN
            RETURN 'mine';
        ELSIF r.open_effect IS NOT NULL THEN
            RETURN 'another_effect_is_open';
        END IF;
        UPDATE onceward.records
        SET open_effect = step_name, open_effect_idempotent = step.idempotent
        WHERE record_id = r.record_id;
        RETURN 'applied';
    ELSIF r.open_effect IS DISTINCT FROM step_name THEN
        RETURN 'mine';
    END IF;
    UPDATE onceward.records SET open_effect = NULL, open_effect_idempotent = NULL
    WHERE record_id = r.record_id;
    RETURN 'applied';
END
$$;

-- Moves records on whose lease ran out, by their declared effects. The condition is in the write,
-- and a locked row is alive: it is skipped. A record with steps stays for whoever goes on with it,
-- unless an effect that must not be called again is open. Queued work that cannot have acted waits to be
-- claimed again.
--
-- Looks at some rows of the list of leases, behind a place in it, and moves so many records at most. With
-- a last row that is empty but for a place there may be others behind that. Many rows may stay: without a
-- place to go on from, they would be looked at again and again before those behind them.
CREATE FUNCTION onceward.sweep(
    at bigint, most integer, after_check bigint DEFAULT -9223372036854775808,
    after_lease bigint DEFAULT 0
) RETURNS TABLE (scope text, key text, state text, attempt uuid, next_check bigint, next_lease bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    t bigint := onceward.micros(sweep.at);
    at_once CONSTANT integer := 1000;
    looked integer := 0;
    last_check bigint;
    last_lease bigint;
    more boolean;
    due record;
BEGIN
    SELECT l.check_at, l.lease_id INTO last_check, last_lease FROM onceward.leases l
    WHERE l.check_at <= t AND (l.check_at, l.lease_id) > (after_check, after_lease)
    ORDER BY l.check_at, l.lease_id OFFSET at_once - 1 LIMIT 1;
    more := FOUND;
    IF NOT more THEN
        last_check := t;
        last_lease := 9223372036854775807;
    END IF;
    FOR due IN
        SELECT r.record_id, r.fence, r.generation, r.attempt, r.scope, r.key,
               r.effects IN ('local', 'none') AND r.open_effect IS NULL AS harmless,
               r.queued_until IS NOT NULL AS queued
        FROM onceward.leases l
        CROSS JOIN LATERAL (
            SELECT * FROM onceward.records r
            WHERE r.created_at = l.created_at AND r.state = 'in_progress' AND r.lease_until <= t
              AND (NOT r.open_effect_idempotent
                   OR r.effects IN ('undeclared', 'external')
                   OR (r.effects <> 'phased' AND r.recovery_point IS NULL
                       AND r.open_effect IS NULL))
            FOR UPDATE SKIP LOCKED) r
        WHERE (l.check_at, l.lease_id) > (after_check, after_lease)
          AND (l.check_at, l.lease_id) <= (last_check, last_lease)
        ORDER BY l.check_at, l.lease_id
        LIMIT most
    LOOP
        looked := looked + 1;
        UPDATE onceward.records r SET
            state = CASE WHEN NOT due.harmless THEN 'unknown'
                         WHEN due.queued THEN 'pending' ELSE 'failed_retryable' END,
            reconcile_after = CASE WHEN due.harmless THEN NULL ELSE t END,
            lease_until = CASE WHEN due.harmless AND due.queued
                               THEN onceward.plus(t, onceward.backoff(r.attempts))
                               ELSE r.lease_until END,
            due_at = CASE WHEN due.harmless AND due.queued
                          THEN onceward.plus(t, onceward.backoff(r.attempts)) END,
            give_up_at = CASE WHEN due.harmless AND due.queued THEN r.queued_until END,
            finished_at = CASE WHEN due.harmless AND NOT due.queued THEN t
                               ELSE r.finished_at END,
            expires_at = CASE WHEN due.harmless AND NOT due.queued
                              THEN onceward.plus(t, r.retention) ELSE r.expires_at END,
            reap_at = CASE WHEN due.harmless AND NOT due.queued
                           THEN least(r.reap_at, onceward.plus(t, r.retention))
                           ELSE r.reap_at END,
            last_error = 'in_progress_lock_expired'
        WHERE r.record_id = due.record_id AND r.state = 'in_progress' AND r.fence = due.fence
          AND r.lease_until <= t
        RETURNING r.scope, r.key, r.state, r.attempt INTO scope, key, state, attempt;
        -- It may stand in the list more than once.
        CONTINUE WHEN NOT FOUND;
        INSERT INTO onceward.audit_records (
            at, scope, key, generation, event, attempt, fence, reason)
        VALUES (t, due.scope, due.key, due.generation, 'lease_expired', due.attempt, due.fence,
                state)
        ON CONFLICT DO NOTHING;
        RETURN NEXT;
    END LOOP;
    -- Most have completed long ago.
    DELETE FROM onceward.leases l WHERE l.ctid = ANY (ARRAY(
        SELECT l.ctid FROM onceward.leases l
        WHERE (l.check_at, l.lease_id) > (after_check, after_lease)
          AND (l.check_at, l.lease_id) <= (last_check, last_lease)
          AND NOT EXISTS (SELECT FROM onceward.records r
                          WHERE r.created_at = l.created_at AND r.state = 'in_progress' OFFSET 0)
        FOR UPDATE SKIP LOCKED));
    -- What was renewed is looked at again when that lease ends.
    WITH renewed AS (
        SELECT l.ctid AS place, l.created_at FROM onceward.leases l
        WHERE (l.check_at, l.lease_id) > (after_check, after_lease)
          AND (l.check_at, l.lease_id) <= (last_check, last_lease)
          AND t < (SELECT min(r.lease_until) FROM onceward.records r
                   WHERE r.created_at = l.created_at AND r.state = 'in_progress' OFFSET 0)
        FOR UPDATE SKIP LOCKED)
    UPDATE onceward.leases l SET check_at = (
        SELECT min(r.lease_until) FROM onceward.records r
        WHERE r.created_at = n.created_at AND r.state = 'in_progress' OFFSET 0)
    FROM renewed n WHERE l.ctid = n.place;
    IF looked >= most THEN
        -- There may be others among those that were looked at.
        last_check := after_check;
        last_lease := after_lease;
    END IF;
    IF more OR looked >= most THEN
        scope := NULL;
        key := NULL;
        state := NULL;
        attempt := NULL;
        next_check := last_check;
        next_lease := last_lease;
        RETURN NEXT;
    END IF;
END
$$;

-- What waits for a worker: pending work that is due, then phased work whose lease is over and that may go
-- on, in each the longest waiting first, without the first few. Each by its own index, whatever the
-- planner believes. With `accepted` only what was accepted for later.
CREATE FUNCTION onceward.resumable(t bigint, accepted boolean, most bigint, skipped bigint)
RETURNS TABLE (record_id bigint, "position" bigint)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT d.record_id, row_number() OVER (ORDER BY d.line, d.lease_until)
    FROM ((SELECT r.record_id, r.lease_until, 1 AS line
           FROM (SELECT DISTINCT l.created_at FROM onceward.leases l
                 WHERE l.phased AND l.check_at <= resumable.t) l
           CROSS JOIN LATERAL (SELECT * FROM onceward.records r
                               WHERE r.created_at = l.created_at AND r.state = 'in_progress'
                               OFFSET 0) r
           WHERE r.effects = 'phased' AND r.lease_until <= resumable.t
             AND coalesce(r.open_effect_idempotent, true)
             AND (NOT accepted OR r.queued_until IS NOT NULL)
           ORDER BY r.lease_until LIMIT most + skipped)
          UNION ALL
          (SELECT r.record_id, r.lease_until, 0 FROM onceward.records r
           WHERE r.due_at IS NOT NULL AND r.due_at <= resumable.t AND r.state = 'pending'
           ORDER BY r.due_at LIMIT most + skipped)) d
    ORDER BY 2 LIMIT most OFFSET skipped;
END
$$;

-- Unknown outcomes that are due to be asked about, but for those of some routes, the longest waiting
-- first, by their index.
CREATE FUNCTION onceward.due_unknown(t bigint, most bigint, skip bigint, but text[])
RETURNS TABLE (record_id bigint, "position" bigint)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT d.record_id, row_number() OVER (ORDER BY d.reconcile_after)
    FROM (SELECT r.record_id, r.reconcile_after FROM onceward.records r
          WHERE r.reconcile_after IS NOT NULL AND r.reconcile_after <= due_unknown.t
            AND r.route <> ALL (but)
          ORDER BY r.reconcile_after LIMIT most OFFSET skip) d;
END
$$;

-- Drops the replies of records past retention, and purges tombstones past theirs. Never touches a
-- record that is not terminal. Looks at so many at most; with `more` there may be others.
CREATE FUNCTION onceward.reap(
    at bigint, most integer, OUT expired integer, OUT purged integer, OUT more boolean
)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    t bigint := onceward.micros(reap.at);
    looked integer := 0;
    due bigint[];
    gone bigint[];
    buried bigint[];
BEGIN
    expired := 0;
    purged := 0;
    LOOP
        SELECT array_agg(d.record_id) INTO due FROM (
            SELECT r.record_id FROM onceward.records r WHERE r.reap_at <= t
            ORDER BY r.reap_at LIMIT most - looked FOR UPDATE SKIP LOCKED
        ) d;
        EXIT WHEN due IS NULL;
        looked := looked + cardinality(due);
        WITH deleted AS (
            DELETE FROM onceward.records r
            WHERE r.record_id = ANY (due) AND r.state IN ('completed', 'failed_retryable', 'expired')
              AND r.expires_at <= t AND onceward.plus(r.expires_at, r.tombstone) <= t
            RETURNING r.record_id)
        SELECT coalesce(array_agg(d.record_id), '{}') INTO gone FROM deleted d;
        WITH tombstoned AS (
            UPDATE onceward.records r SET
                state = 'expired',
                void = r.void OR r.state = 'failed_retryable',
                reply_headers = NULL, reply_schema = NULL, reply_body = NULL,
                reap_at = onceward.plus(r.expires_at, r.tombstone)
            WHERE r.record_id = ANY (due) AND r.state IN ('completed', 'failed_retryable')
              AND r.expires_at <= t
            RETURNING r.record_id)
        SELECT coalesce(array_agg(d.record_id), '{}') INTO buried FROM tombstoned d;
        DELETE FROM onceward.replies p WHERE p.record_id = ANY (gone || buried);
        DELETE FROM onceward.steps s WHERE s.record_id = ANY (gone || buried);
        DELETE FROM onceward.requests q WHERE q.record_id = ANY (gone || buried);
        -- What is not due yet, or not terminal, is filed again.
        UPDATE onceward.records r SET
            reap_at = CASE WHEN r.state IN ('completed', 'failed_retryable') THEN r.expires_at
                           WHEN r.state = 'expired' THEN onceward.plus(r.expires_at, r.tombstone)
                           ELSE t + 3600000000 END
        WHERE r.record_id = ANY (due) AND r.record_id <> ALL (gone || buried);
        purged := purged + cardinality(gone);
        expired := expired + cardinality(buried);
        EXIT WHEN looked >= most;
    END LOOP;
    more := looked >= most;
END
$$;


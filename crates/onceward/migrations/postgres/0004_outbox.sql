-- Messages that were committed with business rows, and that a relay delivers.
CREATE TABLE onceward.outbox (
    message_id        bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope             text    COLLATE "C" NOT NULL,
    key               text    COLLATE "C" NOT NULL,
    generation        integer NOT NULL CHECK (generation > 0),
    -- Tells this use of the key from one after the record was purged and made again.
    record_created_at bigint  NOT NULL,
    name              text    COLLATE "C" NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 255),
    derived_key       text    COLLATE "C" NOT NULL UNIQUE,
    sink              text    COLLATE "C" NOT NULL CHECK (octet_length(sink) BETWEEN 1 AND 255),
    aggregate         text    COLLATE "C" CHECK (octet_length(aggregate) BETWEEN 1 AND 255),
    content_type      text    NOT NULL,
    payload           bytea   NOT NULL,
    state             text    NOT NULL CHECK (state IN ('ready', 'delivering', 'done', 'dead')),
    -- Something of the same aggregate comes before and is not done. Claims look at others only.
    held              boolean NOT NULL,
    -- How often a delivery was begun.
    attempts          integer NOT NULL CHECK (attempts >= 0),
    -- An earlier delivery was begun, and its end is not known.
    ambiguous         boolean NOT NULL,
    next_at           bigint  NOT NULL,
    lease_until       bigint,
    attempt           uuid,
    fence             bigint  NOT NULL CHECK (fence >= 0),
    provider_id       text,
    last_error        text,
    created_at        bigint  NOT NULL,
    done_at           bigint,
    CHECK (state <> 'delivering' OR (lease_until IS NOT NULL AND attempt IS NOT NULL)),
    CHECK ((state = 'done') = (done_at IS NOT NULL))
);

-- For the relay: what is due, what was begun and not ended, and what one claim holds.
CREATE INDEX outbox_ready ON onceward.outbox (sink, next_at, message_id)
    WHERE state = 'ready' AND NOT held;
CREATE INDEX outbox_delivering ON onceward.outbox (sink, lease_until, message_id)
    WHERE state = 'delivering';
CREATE INDEX outbox_claim ON onceward.outbox (attempt) WHERE state = 'delivering';
-- The order of each aggregate.
CREATE INDEX outbox_aggregate ON onceward.outbox (aggregate, message_id) WHERE state <> 'done';
-- For people: dead letters, and all else that is not done. For the purge: what is done.
CREATE INDEX outbox_open ON onceward.outbox (state, message_id) WHERE state <> 'done';
CREATE INDEX outbox_done ON onceward.outbox (done_at, message_id) WHERE state = 'done';

-- Who is held.
--
-- A claim must pass over a hundred thousand messages behind one dead letter without looking at each.
-- So those that are held are not in the index that it reads. Whoever stages cannot say that its
-- message is held: its transaction may commit long after the one before was done, and then nobody
-- would let it go. So a message is staged as if it were not held, and the first claim that meets it
-- marks it, in these steps:
--
-- 1. It locks the message, and then some earlier one of the aggregate that is not done.
-- 2. Whoever ends a message (done, discarded) locks it too, first; and lets the next one go by a
--    statement of its own, which sees all that was committed before the lock was had.
--
-- So whoever ends the last one before a message sees the mark and takes it away. Nobody ends a
-- message but at the head of its aggregate, so that those ends come one after the other. A claim
-- waits for nobody's row: what it cannot lock it leaves as it is. A mark that is missing costs a
-- second look and no order: the head is found anew at each claim.

-- Stages a message in the transaction of the attempt that holds the record: 'applied', 'mine' if it
-- was staged in this use of the key before, 'superseded', or 'former_use' if one of a former use is
-- in the way. Messages of one aggregate get their ids in the order of their commits: whoever stages
-- for it waits for those who did before.
CREATE FUNCTION onceward.stage_message(
    at bigint, record_scope text, record_key text, record_attempt uuid, record_fence bigint,
    message_key text, message_name text, message_sink text, message_aggregate text,
    message_type text, message_payload bytea
) RETURNS text
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    t bigint := onceward.micros(stage_message.at);
    r onceward.records;
    before onceward.outbox;
BEGIN
    SELECT * INTO r FROM onceward.records
    WHERE scope = record_scope AND key = record_key FOR NO KEY UPDATE;
    IF r.attempt IS DISTINCT FROM record_attempt OR r.fence IS DISTINCT FROM record_fence
       OR r.state IS DISTINCT FROM 'in_progress' THEN
        RETURN 'superseded';
    END IF;
    IF message_aggregate IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('onceward aggregate ' || message_aggregate, 0));
    END IF;
    -- Without a lock: a relay that settles it must not wait for the user's transaction. Nobody
    -- deletes it as long as this record is in progress.
    SELECT * INTO before FROM onceward.outbox WHERE derived_key = message_key;
    IF before.record_created_at = r.created_at THEN
        RETURN 'mine';
    END IF;
    DELETE FROM onceward.outbox WHERE message_id = before.message_id AND state = 'done';
    IF before.message_id IS NOT NULL AND NOT FOUND
       AND EXISTS (SELECT FROM onceward.outbox WHERE derived_key = message_key) THEN
        RETURN 'former_use';
    END IF;
    INSERT INTO onceward.outbox (
        scope, key, generation, record_created_at, name, derived_key, sink, aggregate, content_type,
        payload, state, held, attempts, ambiguous, next_at, fence, created_at)
    VALUES (
        r.scope, r.key, r.generation, r.created_at, message_name, message_key, message_sink,
        message_aggregate, message_type, message_payload, 'ready', false, 0, false, t, 0, t);
    RETURN 'applied';
END
$$;

-- Takes messages for delivery: those whose lease ran out, then those that are due, oldest first, and
-- of an aggregate only the head. A row that others have locked is theirs. A row of nulls says that
-- nothing was taken so far and that there is more to look at: ask again.
CREATE FUNCTION onceward.claim_messages(
    at bigint, most integer, sinks text[], lease bigint, claim uuid
) RETURNS SETOF onceward.outbox
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    looks_max constant integer := 5000;
    t bigint := onceward.micros(claim_messages.at);
    wanted text;
    taken bigint[] := '{}';
    batch bigint[];
    times bigint[];
    behind bigint[];
    last_at bigint;
    last_id bigint;
    looks integer := 0;
    nothing onceward.outbox;
BEGIN
    -- A repeated call waits for the one whose answer was lost, and finds what that one took.
    PERFORM pg_advisory_xact_lock(hashtextextended('onceward claim ' || claim, 0));
    RETURN QUERY SELECT o.* FROM onceward.outbox o
    WHERE o.state = 'delivering' AND o.attempt = claim AND o.lease_until > t;
    IF FOUND THEN
        RETURN;
    END IF;
    FOREACH wanted IN ARRAY sinks LOOP
        -- What was begun comes first: it has waited for its lease already. It is the head.
        taken := taken || ARRAY(
            SELECT o.message_id FROM onceward.outbox o
            WHERE o.state = 'delivering' AND o.sink = wanted AND o.lease_until <= t
            ORDER BY o.lease_until, o.message_id LIMIT most - cardinality(taken)
            FOR UPDATE SKIP LOCKED);
        last_at := -9223372036854775808;
        last_id := 0;
        WHILE cardinality(taken) < most AND looks < looks_max LOOP
            -- No more than there is room for, so that others find the rest; many, if most are held.
            SELECT array_agg(c.message_id), array_agg(c.next_at) INTO batch, times
            FROM (SELECT o.message_id, o.next_at FROM onceward.outbox o
                  WHERE o.state = 'ready' AND NOT o.held AND o.sink = wanted AND o.next_at <= t
                    AND (o.next_at, o.message_id) > (last_at, last_id)
                  ORDER BY o.next_at, o.message_id
                  LIMIT greatest(most - cardinality(taken), least(looks, 500))
                  FOR UPDATE SKIP LOCKED) c;
            EXIT WHEN batch IS NULL;
            looks := looks + cardinality(batch);
            last_at := times[cardinality(times)];
            last_id := batch[cardinality(batch)];
            -- A new statement, which sees what was done until the locks were had. Once nothing is
            -- before a message, nothing ever is: ids of an aggregate grow in the order of commits.
            taken := taken || ARRAY(
                SELECT o.message_id FROM onceward.outbox o
                WHERE o.message_id = ANY (batch)
                  AND (o.aggregate IS NULL OR NOT EXISTS (
                       SELECT FROM onceward.outbox e
                       WHERE e.state <> 'done' AND e.aggregate = o.aggregate
                         AND e.message_id < o.message_id))
                ORDER BY o.next_at, o.message_id LIMIT most - cardinality(taken));
            behind := ARRAY(
                SELECT o.message_id FROM onceward.outbox o
                CROSS JOIN LATERAL (
                    SELECT e.message_id FROM onceward.outbox e
                    WHERE e.state <> 'done' AND e.aggregate = o.aggregate
                      AND e.message_id < o.message_id
                    ORDER BY e.message_id LIMIT 1 FOR UPDATE SKIP LOCKED) e
                WHERE o.message_id = ANY (batch));
            UPDATE onceward.outbox o SET held = true WHERE o.message_id = ANY (behind);
        END LOOP;
    END LOOP;
    RETURN QUERY
    UPDATE onceward.outbox o SET
        state = 'delivering', attempts = o.attempts + 1,
        ambiguous = o.ambiguous OR o.state = 'delivering',
        attempt = claim, fence = greatest(o.fence + 1, t), lease_until = onceward.plus(t, lease)
    WHERE o.message_id = ANY (taken)
    RETURNING o.*;
    IF NOT FOUND AND looks >= looks_max THEN
        RETURN NEXT nothing;
    END IF;
END
$$;

-- The next of an aggregate is held no more. To be called by whoever has locked and ended the one
-- before.
CREATE FUNCTION onceward.let_go(ended text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    UPDATE onceward.outbox o SET held = false
    WHERE o.held AND o.message_id = (
        SELECT n.message_id FROM onceward.outbox n WHERE n.state <> 'done' AND n.aggregate = ended
        ORDER BY n.message_id LIMIT 1);
END
$$;

-- Writes how a delivery ended, if this claim still has the message: 'done', 'ready' (to be delivered
-- again) or 'dead'. True also if that stands already.
CREATE FUNCTION onceward.settle_message(
    at bigint, id bigint, claim uuid, claim_fence bigint, ending text, provider text, wait bigint,
    may_have_acted boolean, why text
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    t bigint := onceward.micros(settle_message.at);
    ended text;
BEGIN
    UPDATE onceward.outbox o SET
        state = ending,
        done_at = CASE ending WHEN 'done' THEN t END,
        provider_id = provider,
        last_error = why,
        ambiguous = ending <> 'done' AND (o.ambiguous OR may_have_acted),
        next_at = CASE ending WHEN 'ready' THEN onceward.plus(t, wait) ELSE o.next_at END
    WHERE o.message_id = id AND o.attempt = claim AND o.fence = claim_fence
      AND o.state = 'delivering'
    RETURNING o.aggregate INTO ended;
    IF NOT FOUND THEN
        RETURN EXISTS (
            SELECT FROM onceward.outbox o
            WHERE o.message_id = id AND o.attempt = claim AND o.fence = claim_fence
              AND o.state = ending);
    END IF;
    IF ending = 'done' AND ended IS NOT NULL THEN
        PERFORM onceward.let_go(ended);
    END IF;
    RETURN true;
END
$$;

-- Those of these messages that are dead letters, locked in the order of their ids.
CREATE FUNCTION onceward.locked_dead(ids bigint[], fences bigint[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN ARRAY(
        SELECT d.message_id
        FROM (SELECT DISTINCT a.id, a.fence FROM unnest(ids, fences) AS a (id, fence)
              ORDER BY 1, 2) i
        CROSS JOIN LATERAL (SELECT o.message_id FROM onceward.outbox o
                            WHERE o.message_id = i.id AND o.fence = i.fence
                              AND o.state = 'dead' FOR UPDATE) d);
END
$$;

-- Remembers that a person decided about this message, and why.
CREATE FUNCTION onceward.remember_message(
    t bigint, m onceward.outbox, event text, because text
) RETURNS void
LANGUAGE sql VOLATILE AS $$
    INSERT INTO onceward.audit_records (at, scope, key, generation, event, attempt, fence, reason)
    VALUES (t, m.scope, m.key, m.generation, remember_message.event,
            coalesce(m.attempt, '00000000-0000-0000-0000-000000000000'), m.fence,
            format('%s (message %s, %s)', because, m.message_id, m.name))
$$;

-- Makes these dead letters ready again, if they are still what was looked at. Forgets their claims: whoever made one can settle nothing
-- any more. Returns which it were.
CREATE FUNCTION onceward.redrive(
    at bigint, ids bigint[], fences bigint[], because text
) RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    t bigint := onceward.micros(redrive.at);
    dead bigint[] := onceward.locked_dead(ids, fences);
    letter onceward.outbox;
BEGIN
    FOR letter IN
        SELECT * FROM onceward.outbox WHERE message_id = ANY (dead) ORDER BY message_id
    LOOP
        PERFORM onceward.remember_message(t, letter, 'message_redriven', because);
    END LOOP;
    RETURN QUERY
    UPDATE onceward.outbox o SET
        state = 'ready', attempts = 0, ambiguous = false, next_at = t, attempt = NULL,
        lease_until = NULL
    WHERE o.message_id = ANY (dead)
    RETURNING o.message_id;
END
$$;

-- Whether the operation that staged a message is over: it will not stage it again.
CREATE FUNCTION onceward.is_over(m onceward.outbox) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (
        SELECT FROM onceward.records r
        WHERE r.scope = m.scope AND r.key = m.key AND r.generation = m.generation
          AND r.created_at = m.record_created_at AND r.state NOT IN ('completed', 'expired'))
$$;

-- Deletes these dead letters, if they are still what was looked at, and lets go what they held. Returns which it were.
CREATE FUNCTION onceward.discard(
    at bigint, ids bigint[], fences bigint[], because text
) RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    t bigint := onceward.micros(discard.at);
    dead bigint[] := onceward.locked_dead(ids, fences);
    letter onceward.outbox;
    aggregates text[] := '{}';
    ended text;
BEGIN
    FOR letter IN
        DELETE FROM onceward.outbox d WHERE d.message_id = ANY (dead) AND onceward.is_over(d)
        RETURNING d.*
    LOOP
        PERFORM onceward.remember_message(t, letter, 'message_discarded', because);
        IF letter.aggregate IS NOT NULL THEN
            aggregates := aggregates || letter.aggregate;
        END IF;
        RETURN NEXT letter.message_id;
    END LOOP;
    FOREACH ended IN ARRAY aggregates LOOP
        PERFORM onceward.let_go(ended);
    END LOOP;
END
$$;

-- Deletes at most so many messages that were done before that time, oldest first. Returns which.
CREATE FUNCTION onceward.purge_done(at bigint, age bigint, most integer) RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    t bigint := onceward.micros(purge_done.at);
    old bigint[] := ARRAY(
        SELECT d.message_id FROM onceward.outbox d
        WHERE d.state = 'done' AND d.done_at <= t - age AND onceward.is_over(d)
        ORDER BY d.done_at, d.message_id LIMIT most FOR UPDATE SKIP LOCKED);
BEGIN
    RETURN QUERY
    DELETE FROM onceward.outbox d WHERE d.message_id = ANY (old) RETURNING d.message_id;
END
$$;

-- What a message of this name is delivered under: the same for every attempt of a generation.
CREATE FUNCTION onceward.derived_key(scope text, key text, generation integer, name text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT translate(encode(substr(sha256(
        convert_to('onceward-derived-key/1', 'UTF8')
        || int8send(octet_length(convert_to(scope, 'UTF8'))) || convert_to(scope, 'UTF8')
        || int8send(octet_length(convert_to(key, 'UTF8'))) || convert_to(key, 'UTF8')
        || int8send(octet_length(convert_to(name, 'UTF8'))) || convert_to(name, 'UTF8')
        || int4send(generation)), 1, 24), 'base64'), '+/', '-_')
$$;

-- Part of the SQL contract: stages a message in the caller's transaction. False if it was staged
-- before in this use of the key: it stays as it was.
CREATE FUNCTION onceward.stage(
    operation text, attempt uuid, fence bigint, name text, sink text, aggregate text,
    content_type text, payload bytea
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    r onceward.records := onceward.held(stage.operation, stage.attempt, stage.fence);
    wrong text := CASE
        WHEN coalesce(octet_length(stage.name), 0) NOT BETWEEN 1 AND 255
            THEN 'a message''s name must have 1 to 255 bytes'
        WHEN coalesce(octet_length(stage.sink), 0) NOT BETWEEN 1 AND 255
            THEN 'a sink''s name must have 1 to 255 bytes'
        WHEN octet_length(stage.aggregate) NOT BETWEEN 1 AND 255
            THEN 'an aggregate must have 1 to 255 bytes, or be null'
        WHEN coalesce(octet_length(stage.content_type), 0) NOT BETWEEN 1 AND 255
             OR stage.content_type COLLATE "C" !~ '^[\x20-\x7e\t]+$'
            THEN 'a media type must be a header value of 1 to 255 bytes'
        WHEN stage.payload IS NULL THEN 'a payload may be empty and not null'
    END;
    verdict text;
BEGIN
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'onceward: %', wrong USING ERRCODE = 'OW002';
    END IF;
    verdict := onceward.stage_message(
        NULL, r.scope, r.key, r.attempt, r.fence,
        onceward.derived_key(r.scope, r.key, r.generation, stage.name), stage.name, stage.sink,
        stage.aggregate, stage.content_type, stage.payload);
    IF verdict = 'superseded' THEN
        RAISE EXCEPTION 'onceward: this attempt has lost its record' USING ERRCODE = 'OW001';
    ELSIF verdict = 'former_use' THEN
        RAISE EXCEPTION 'onceward: a message of a former use of the key is not delivered yet'
            USING ERRCODE = 'OW002';
    END IF;
    RETURN verdict = 'applied';
END
$$;

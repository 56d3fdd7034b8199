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
    IF r.attempt IS DISTINCT FROM record_attempt OR r.fence <> record_fence
       OR r.state <> 'in_progress' THEN
        RETURN 'superseded';
    END IF;
    IF message_aggregate IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('onceward aggregate ' || message_aggregate, 0));
    END IF;
    SELECT * INTO before FROM onceward.outbox WHERE derived_key = message_key FOR UPDATE;
    IF before.record_created_at = r.created_at THEN
        RETURN 'mine';
    ELSIF before.state <> 'done' THEN
        RETURN 'former_use';
    END IF;
    DELETE FROM onceward.outbox WHERE message_id = before.message_id;
    INSERT INTO onceward.outbox (
        scope, key, generation, record_created_at, name, derived_key, sink, aggregate, content_type,
        payload, state, attempts, ambiguous, next_at, fence, created_at)
    VALUES (
        r.scope, r.key, r.generation, r.created_at, message_name, message_key, message_sink,
        message_aggregate, message_type, message_payload, 'ready', 0, false, t, 0, t);
    RETURN 'applied';
END
$$;

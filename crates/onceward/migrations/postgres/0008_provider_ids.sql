-- What providers call operations: each id is of one operation.
CREATE TABLE onceward.provider_ids (
    provider    text    COLLATE "C" NOT NULL CHECK (length(provider) BETWEEN 1 AND 64),
    provider_id text    COLLATE "C" NOT NULL CHECK (length(provider_id) BETWEEN 1 AND 255),
    record_id   bigint  NOT NULL,
    generation  integer NOT NULL,
    attempt     uuid    NOT NULL,
    fence       bigint  NOT NULL,
    at          bigint  NOT NULL,
    -- The order in which they were noted.
    note_id     bigint  GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (provider, provider_id)
);
CREATE INDEX provider_ids_record ON onceward.provider_ids (record_id);

-- They go with their record. Once for each statement that deletes records, not for each record.
CREATE FUNCTION onceward.forget_provider_ids() RETURNS trigger
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
BEGIN
    DELETE FROM onceward.provider_ids p USING gone g WHERE p.record_id = g.record_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER records_gone AFTER DELETE ON onceward.records
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION onceward.forget_provider_ids();

-- Also where a record is purged and made again in one statement. Those that complete records do not
-- name this column, and do not come here.
CREATE FUNCTION onceward.forget_provider_ids_of_one() RETURNS trigger
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
BEGIN
    DELETE FROM onceward.provider_ids p WHERE p.record_id = NEW.record_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER records_made_anew AFTER UPDATE OF created_at ON onceward.records
    FOR EACH ROW WHEN (NEW.generation = 1 AND NEW.created_at <> OLD.created_at)
    EXECUTE FUNCTION onceward.forget_provider_ids_of_one();

-- Notes a provider id, as `machine::note` does: 'applied', 'mine', 'taken' or 'absent'. The lock keeps
-- the record from being purged meanwhile, and waits for nobody who changes it.
CREATE FUNCTION onceward.note_provider_id(
    at bigint, record_scope text, record_key text, of_generation integer, of_attempt uuid,
    of_fence bigint, of_provider text, of_id text
) RETURNS text
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET jit = off
SET lock_timeout = '1s'
AS $$
#variable_conflict use_column
DECLARE
    t bigint := onceward.micros(note_provider_id.at);
    r record;
    held onceward.provider_ids;
BEGIN
    SELECT record_id, generation, created_at INTO r FROM onceward.records
    WHERE scope = record_scope AND key = record_key FOR KEY SHARE;
    IF r.record_id IS NULL OR r.generation <> of_generation OR r.created_at > of_fence THEN
        RETURN 'absent';
    END IF;
    LOOP
        INSERT INTO onceward.provider_ids (
            provider, provider_id, record_id, generation, attempt, fence, at)
        VALUES (of_provider, of_id, r.record_id, of_generation, of_attempt, of_fence, t)
        ON CONFLICT (provider, provider_id) DO NOTHING;
        IF FOUND THEN
            RETURN 'applied';
        END IF;
        SELECT * INTO held FROM onceward.provider_ids
        WHERE provider = of_provider AND provider_id = of_id FOR NO KEY UPDATE;
        -- It may have gone with its record just now.
        EXIT WHEN held.record_id IS NOT NULL;
    END LOOP;
    IF held.record_id <> r.record_id OR held.generation <> of_generation THEN
        INSERT INTO onceward.audit_records (
            at, scope, key, generation, event, attempt, fence, reason)
        VALUES (t, record_scope, record_key, of_generation, 'incident', of_attempt, of_fence,
                'the provider id '
                || CASE of_provider WHEN 'default' THEN '' ELSE of_provider || ' ' END || of_id
                || ' is that of another operation')
        ON CONFLICT DO NOTHING;
        RETURN 'taken';
    ELSIF held.fence < of_fence THEN
        UPDATE onceward.provider_ids SET attempt = of_attempt, fence = of_fence
        WHERE provider = of_provider AND provider_id = of_id;
        RETURN 'applied';
    END IF;
    RETURN 'mine';
END
$$;

-- Which operation has this provider id.
CREATE FUNCTION onceward.by_provider_id(of_provider text, of_id text)
RETURNS TABLE (provider text, provider_id text, scope text, key text, generation integer,
               attempt uuid, fence bigint, at bigint)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT p.provider, p.provider_id, r.scope::text, r.key::text, p.generation, p.attempt, p.fence,
           p.at
    FROM onceward.provider_ids p JOIN onceward.records r ON r.record_id = p.record_id
    WHERE p.provider = of_provider AND p.provider_id = of_id;
END
$$;

-- The provider ids of these records.
CREATE FUNCTION onceward.provider_ids_of(scopes text[], keys text[])
RETURNS TABLE (provider text, provider_id text, scope text, key text, generation integer,
               attempt uuid, fence bigint, at bigint)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT p.provider, p.provider_id, a.scope, a.key, p.generation, p.attempt, p.fence, p.at
    FROM unnest(scopes, keys) WITH ORDINALITY AS a (scope, key, position)
    CROSS JOIN LATERAL (SELECT r.record_id FROM onceward.records r
                        WHERE r.scope = a.scope AND r.key = a.key OFFSET 0) r
    CROSS JOIN LATERAL (SELECT * FROM onceward.provider_ids p
                        WHERE p.record_id = r.record_id OFFSET 0) p
    ORDER BY a.position, p.note_id;
END
$$;

-- Part of the SQL contract: notes what a provider calls the operation of this attempt. False if another
-- operation has that id: it stays there, and the incident is in the audit records.
CREATE FUNCTION onceward.provider_id(
    operation text, attempt uuid, fence bigint, provider_id text, provider text DEFAULT 'default'
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    r onceward.records := onceward.held(provider_id.operation, provider_id.attempt,
                                        provider_id.fence);
BEGIN
    IF coalesce(provider_id.provider, '') COLLATE "C" !~ '^[A-Za-z0-9_.-]{1,64}$' THEN
        RAISE EXCEPTION 'onceward: the name of a provider is 1 to 64 letters, digits, "-", "_" and "."'
            USING ERRCODE = 'OW002';
    ELSIF coalesce(provider_id.provider_id, '') COLLATE "C" !~ '^[!-~]{1,255}$' THEN
        RAISE EXCEPTION 'onceward: a provider id is 1 to 255 visible characters of ASCII'
            USING ERRCODE = 'OW002';
    END IF;
    RETURN onceward.note_provider_id(NULL, r.scope, r.key, r.generation, r.attempt, r.fence,
                                     provider_id.provider, provider_id.provider_id) <> 'taken';
END
$$;

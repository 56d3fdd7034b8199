-- The data keys of scopes, wrapped by keys that are not here. Of one that was dropped its id is left.
CREATE TABLE onceward.scope_keys (
    scope_key_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope        text   COLLATE "C" NOT NULL,
    key_id       bytea  NOT NULL CHECK (length(key_id) = 16),
    wrapped_by   text   COLLATE "C" NOT NULL,
    wrapped      bytea,
    UNIQUE (scope, key_id)
);

-- A scope has one for each key that wraps.
CREATE UNIQUE INDEX scope_keys_standing ON onceward.scope_keys (scope, wrapped_by)
    WHERE wrapped IS NOT NULL;

-- The keys of a scope; first the proposed one is added, unless there is one. Whoever meets another
-- one that proposes waits for it, and then sees what it did.
CREATE FUNCTION onceward.keys_of(
    of_scope text, new_id bytea, new_wrapped_by text, new_wrapped bytea
) RETURNS SETOF onceward.scope_keys
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF new_id IS NOT NULL AND NOT EXISTS (
        SELECT FROM onceward.scope_keys k
        WHERE k.scope = of_scope AND k.wrapped_by = new_wrapped_by AND k.wrapped IS NOT NULL)
    THEN
        INSERT INTO onceward.scope_keys (scope, key_id, wrapped_by, wrapped)
        VALUES (of_scope, new_id, new_wrapped_by, new_wrapped)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN QUERY SELECT * FROM onceward.scope_keys k
        WHERE k.scope = of_scope ORDER BY k.scope_key_id;
END
$$;

-- Forgets the keys of a scope, and remembers that it did.
CREATE FUNCTION onceward.drop_keys_of(of_scope text, because text, at bigint) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    WITH dropped AS (
        UPDATE onceward.scope_keys k SET wrapped = NULL
        WHERE k.scope = of_scope AND k.wrapped IS NOT NULL RETURNING k.key_id
    ), remembered AS (
        INSERT INTO onceward.audit_records (
            at, scope, key, generation, event, attempt, fence, reason)
        SELECT onceward.micros(at), of_scope, '*', 1, 'erased', encode(key_id, 'hex')::uuid, 0,
               because
        FROM dropped ON CONFLICT DO NOTHING
    )
    SELECT count(*) FROM dropped
$$;

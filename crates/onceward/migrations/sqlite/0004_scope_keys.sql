-- The data keys of scopes, wrapped by keys that are not here. Of one that was dropped its id is left.
CREATE TABLE onceward_scope_keys (
    scope_key_id INTEGER PRIMARY KEY,
    scope        TEXT    NOT NULL CHECK (length(scope) BETWEEN 1 AND 255),
    key_id       BLOB    NOT NULL CHECK (length(key_id) = 16),
    wrapped_by   TEXT    NOT NULL,
    wrapped      BLOB,
    UNIQUE (scope, key_id)
) STRICT;

-- A scope has one for each key that wraps.
CREATE UNIQUE INDEX onceward_scope_keys_standing ON onceward_scope_keys (scope, wrapped_by) WHERE wrapped IS NOT NULL;

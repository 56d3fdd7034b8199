-- What providers call operations: each id is of one operation.
CREATE TABLE onceward_provider_ids (
    note_id     INTEGER PRIMARY KEY,
    provider    TEXT    NOT NULL CHECK (length(provider) BETWEEN 1 AND 64),
    provider_id TEXT    NOT NULL CHECK (length(provider_id) BETWEEN 1 AND 255),
    scope       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    generation  INTEGER NOT NULL CHECK (generation > 0),
    attempt     BLOB    NOT NULL CHECK (length(attempt) = 16),
    fence       INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    UNIQUE (provider, provider_id)
) STRICT;
CREATE INDEX onceward_provider_ids_record ON onceward_provider_ids (scope, key);

-- They go with their record, also where it is purged and made again in one statement.
CREATE TRIGGER onceward_records_removed_provider_ids AFTER DELETE ON onceward_records
BEGIN
    DELETE FROM onceward_provider_ids WHERE scope = OLD.scope AND key = OLD.key;
END;
CREATE TRIGGER onceward_records_made_anew AFTER UPDATE OF created_at ON onceward_records
WHEN NEW.generation = 1 AND NEW.created_at <> OLD.created_at
BEGIN
    DELETE FROM onceward_provider_ids WHERE scope = NEW.scope AND key = NEW.key;
END;

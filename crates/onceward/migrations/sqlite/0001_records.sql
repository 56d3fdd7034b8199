-- What the store remembers about itself: its identity settings, and a name of its own.
CREATE TABLE onceward_meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- One row for each scope and key. Times are microseconds since 1970, durations microseconds.
--
-- What is checked with each row is compared one by one: for a list of more than two, SQLite makes a table
-- for every row that is written, and throws it away.
CREATE TABLE onceward_records (
    record_id       INTEGER PRIMARY KEY,
    scope           TEXT    NOT NULL CHECK (length(scope) BETWEEN 1 AND 255),
    key             TEXT    NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    recipe          INTEGER NOT NULL,
    fingerprint     BLOB    NOT NULL CHECK (length(fingerprint) = 32),
    generation      INTEGER NOT NULL CHECK (generation > 0),
    state           TEXT    NOT NULL CHECK (state = 'in_progress' OR state = 'completed' OR state = 'expired'
                                           OR state = 'failed_retryable' OR state = 'unknown'
                                           OR state = 'pending'),
    attempt         BLOB    NOT NULL CHECK (length(attempt) = 16),
    fence           INTEGER NOT NULL CHECK (fence > 0),
    attempts        INTEGER NOT NULL,
    effects         TEXT    NOT NULL,
    route           TEXT    NOT NULL,
    method          TEXT    NOT NULL,
    path            TEXT    NOT NULL,
    created_at      INTEGER NOT NULL,
    started_at      INTEGER NOT NULL,
    lease_until     INTEGER NOT NULL,
    max_execution   INTEGER NOT NULL,
    finished_at     INTEGER,
    expires_at      INTEGER NOT NULL,
    retention       INTEGER NOT NULL,
    purge_at        INTEGER NOT NULL,
    last_error      TEXT,
    reconcile_after INTEGER,
    void            INTEGER NOT NULL CHECK (void IN (0, 1)),
    recovery_point  TEXT,
    open_effect     TEXT,
    effect_idempotent INTEGER CHECK (effect_idempotent IN (0, 1)),
    reply_status    INTEGER,
    reply_headers   BLOB,
    reply_schema    TEXT,
    reply_encoding  TEXT CHECK (reply_encoding = 'identity' OR reply_encoding = 'zstd'
                                OR reply_encoding = 'not_stored'),
    reply_length    INTEGER,
    reply_body      BLOB,
    reply_digest    BLOB CHECK (length(reply_digest) = 8),
    UNIQUE (scope, key),
    -- A tombstone keeps the status of its reply and nothing else of it.
    CHECK (state = 'expired' OR (state = 'completed') = (reply_status IS NOT NULL)),
    CHECK ((reply_status IS NULL) = (reply_encoding IS NULL)),
    CHECK ((open_effect IS NULL) = (effect_idempotent IS NULL)),
    -- A step that was made has acted.
    CHECK (state <> 'failed_retryable' OR (recovery_point IS NULL AND open_effect IS NULL)),
    CHECK (purge_at >= expires_at)
) STRICT;

-- For the sweeper: leases that ran out.
CREATE INDEX onceward_records_lease ON onceward_records (lease_until) WHERE state = 'in_progress';
-- For the reaper: retention that is over, then tombstones whose time is over.
CREATE INDEX onceward_records_expiry ON onceward_records (expires_at) WHERE state IN ('completed', 'failed_retryable');
CREATE INDEX onceward_records_purge ON onceward_records (purge_at) WHERE state = 'expired';
-- For the reconciler: unknown outcomes that are due.
CREATE INDEX onceward_records_reconcile ON onceward_records (reconcile_after) WHERE state = 'unknown';

-- The steps of a phased operation, as they were committed.
CREATE TABLE onceward_steps (
    step_id    INTEGER PRIMARY KEY,
    scope      TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    generation INTEGER NOT NULL,
    ordinal    INTEGER NOT NULL,
    name       TEXT    NOT NULL,
    result     BLOB    NOT NULL,
    UNIQUE (scope, key, generation, name)
) STRICT;

-- The request of a phased operation, for a worker that has to go on with it.
CREATE TABLE onceward_requests (
    request_id INTEGER PRIMARY KEY,
    scope      TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    method     TEXT    NOT NULL,
    uri        TEXT    NOT NULL,
    headers    BLOB    NOT NULL,
    body       BLOB    NOT NULL,
    UNIQUE (scope, key)
) STRICT;

-- Both go in the very statement in which their record comes to rest, whoever makes it: a generation
-- never sees what an earlier one left. The first attempt of anything else than phased or accepted work
-- has neither, and is not asked for them.
CREATE TRIGGER onceward_records_at_rest AFTER UPDATE OF state ON onceward_records
WHEN (OLD.attempts > 1 OR OLD.effects = 'phased' OR OLD.queued_until IS NOT NULL
      OR OLD.recovery_point IS NOT NULL OR OLD.open_effect IS NOT NULL)
    AND (OLD.state = 'in_progress' OR OLD.state = 'pending' OR OLD.state = 'unknown')
    AND (NEW.state = 'completed' OR NEW.state = 'failed_retryable' OR NEW.state = 'expired')
BEGIN
    DELETE FROM onceward_steps WHERE scope = NEW.scope AND key = NEW.key;
    DELETE FROM onceward_requests WHERE scope = NEW.scope AND key = NEW.key;
END;
CREATE TRIGGER onceward_records_removed AFTER DELETE ON onceward_records
BEGIN
    DELETE FROM onceward_steps WHERE scope = OLD.scope AND key = OLD.key;
    DELETE FROM onceward_requests WHERE scope = OLD.scope AND key = OLD.key;
END;

-- What a person may have to understand later. Lives longer than the record it is about.
CREATE TABLE onceward_audit_records (
    audit_id       INTEGER PRIMARY KEY,
    at             INTEGER NOT NULL,
    scope          TEXT    NOT NULL,
    key            TEXT    NOT NULL,
    generation     INTEGER NOT NULL,
    event          TEXT    NOT NULL,
    attempt        BLOB    NOT NULL,
    fence          INTEGER NOT NULL,
    reason         TEXT    NOT NULL,
    reply_status   INTEGER,
    reply_headers  BLOB,
    reply_schema   TEXT,
    reply_encoding TEXT,
    reply_length   INTEGER,
    reply_body     BLOB,
    reply_digest   BLOB,
    UNIQUE (scope, key, generation, event, attempt, fence)
) STRICT;

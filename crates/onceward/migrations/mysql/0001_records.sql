-- Each statement ends with a line of its own that is `;`. DDL commits by itself here, so that each can
-- be made again after a crash.

-- One row for each scope and key. Times are microseconds since 1970, durations microseconds. What
-- clients and services send is bytes: no collation may take two keys for one, nor cut off a space.
CREATE TABLE IF NOT EXISTS onceward_records (
    record_id       BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    scope           VARBINARY(255) NOT NULL,
    `key`           VARBINARY(255) NOT NULL,
    recipe          BIGINT NOT NULL,
    fingerprint     BINARY(32) NOT NULL,
    generation      BIGINT NOT NULL,
    state           VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    attempt         BINARY(16) NOT NULL,
    fence           BIGINT NOT NULL,
    attempts        BIGINT NOT NULL,
    effects         VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    route           MEDIUMBLOB NOT NULL,
    method          MEDIUMBLOB NOT NULL,
    path            MEDIUMBLOB NOT NULL,
    created_at      BIGINT NOT NULL,
    started_at      BIGINT NOT NULL,
    lease_until     BIGINT NOT NULL,
    max_execution   BIGINT NOT NULL,
    finished_at     BIGINT,
    expires_at      BIGINT NOT NULL,
    retention       BIGINT NOT NULL,
    purge_at        BIGINT NOT NULL,
    last_error      MEDIUMBLOB,
    reconcile_after BIGINT,
    void            BIGINT NOT NULL,
    recovery_point  MEDIUMBLOB,
    open_effect     MEDIUMBLOB,
    effect_idempotent BIGINT,
    queued_until    BIGINT,
    probes          BIGINT NOT NULL,
    asked_at        BIGINT,
    absent_at       BIGINT,
    reply_status    BIGINT,
    reply_headers   LONGBLOB,
    reply_schema    MEDIUMBLOB,
    reply_encoding  VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin,
    reply_length    BIGINT,
    reply_body      LONGBLOB,
    reply_digest    BINARY(8),
    -- When a worker has something to do with it: one index for the sweeper, the reaper, the reconciler
    -- and whoever goes on with accepted work.
    due_at          BIGINT AS (CASE state
                        WHEN 'in_progress' THEN lease_until WHEN 'pending' THEN lease_until
                        WHEN 'unknown' THEN reconcile_after WHEN 'expired' THEN purge_at
                        ELSE expires_at END) STORED,
    -- When accepted work is given up.
    overdue_at      BIGINT AS (CASE state WHEN 'pending' THEN queued_until END) STORED,
    UNIQUE KEY record_key (scope, `key`),
    KEY record_due (state, due_at),
    KEY record_created (created_at),
    KEY record_overdue (overdue_at),
    CHECK (OCTET_LENGTH(scope) >= 1 AND OCTET_LENGTH(`key`) >= 1),
    CHECK (generation > 0 AND fence > 0),
    CHECK (state IN ('pending', 'in_progress', 'completed', 'failed_retryable', 'unknown',
                     'expired')),
    CHECK (void IN (0, 1)),
    CHECK (reply_encoding IN ('identity', 'zstd', 'not_stored')),
    -- A tombstone keeps the status of its reply and nothing else of it.
    CHECK (state = 'expired' OR (state = 'completed') = (reply_status IS NOT NULL)),
    CHECK ((reply_status IS NULL) = (reply_encoding IS NULL)),
    CHECK ((open_effect IS NULL) = (effect_idempotent IS NULL)),
    -- A step that was made has acted.
    CHECK (state <> 'failed_retryable' OR (recovery_point IS NULL AND open_effect IS NULL)),
    CHECK (purge_at >= expires_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
;
-- The steps of a phased operation, as they were committed.
CREATE TABLE IF NOT EXISTS onceward_steps (
    step_id    BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    scope      VARBINARY(255) NOT NULL,
    `key`      VARBINARY(255) NOT NULL,
    generation BIGINT NOT NULL,
    name       VARBINARY(1024) NOT NULL,
    result     LONGBLOB NOT NULL,
    UNIQUE KEY step_name (scope, `key`, generation, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
;
-- The request of a phased or an accepted operation, for a worker that has to go on with it.
CREATE TABLE IF NOT EXISTS onceward_requests (
    request_id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    scope      VARBINARY(255) NOT NULL,
    `key`      VARBINARY(255) NOT NULL,
    request    LONGBLOB NOT NULL,
    UNIQUE KEY request_key (scope, `key`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
;
-- What a person may have to understand later. Lives longer than the record it is about.
CREATE TABLE IF NOT EXISTS onceward_audit_records (
    audit_id       BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    `at`           BIGINT NOT NULL,
    scope          VARBINARY(255) NOT NULL,
    `key`          VARBINARY(255) NOT NULL,
    generation     BIGINT NOT NULL,
    event          VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    attempt        BINARY(16) NOT NULL,
    fence          BIGINT NOT NULL,
    reason         MEDIUMBLOB NOT NULL,
    reply_status   BIGINT,
    reply_headers  LONGBLOB,
    reply_schema   MEDIUMBLOB,
    reply_encoding VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin,
    reply_length   BIGINT,
    reply_body     LONGBLOB,
    reply_digest   BINARY(8),
    -- An incident is told by what was said and by whom.
    told           VARBINARY(32) NOT NULL,
    -- Some things can happen again to one attempt, or to many messages of one claim.
    apart          BIGINT NOT NULL,
    UNIQUE KEY audit_once (scope, `key`, generation, event, attempt, fence, apart, told),
    KEY audit_at (`at`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
;
-- The data keys of scopes, wrapped by keys that are not here. Of one that was dropped its id is left.
CREATE TABLE IF NOT EXISTS onceward_scope_keys (
    scope_key_id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    scope        VARBINARY(255) NOT NULL,
    key_id       BINARY(16) NOT NULL,
    wrapped_by   VARBINARY(255) NOT NULL,
    wrapped      MEDIUMBLOB,
    standing     VARBINARY(255) AS (CASE WHEN wrapped IS NOT NULL THEN wrapped_by END) STORED,
    UNIQUE KEY scope_key (scope, key_id),
    -- A scope has one for each key that wraps.
    UNIQUE KEY scope_key_standing (scope, standing)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
;
-- The last beat of each process: a count under one that was acknowledged to it says that commits are
-- gone, as after a failover to a replica that was behind.
CREATE TABLE IF NOT EXISTS onceward_beats (
    node    BINARY(16) NOT NULL PRIMARY KEY,
    `count` BIGINT NOT NULL,
    `at`    BIGINT NOT NULL,
    -- Of the server on which it was made.
    server  BIGINT NOT NULL,
    -- When it made its first one there.
    since   BIGINT NOT NULL,
    -- When it made its last one on the server before.
    left_at BIGINT
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
;
-- What was found to be lost, until somebody acknowledges it: at most one row.
CREATE TABLE IF NOT EXISTS onceward_regressions (
    only_one BIGINT NOT NULL PRIMARY KEY,
    since    BIGINT,
    found    BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
;
-- What providers call operations: each id is of one operation.
CREATE TABLE IF NOT EXISTS onceward_provider_ids (
    note_id     BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    provider    VARBINARY(64) NOT NULL,
    provider_id VARBINARY(255) NOT NULL,
    scope       VARBINARY(255) NOT NULL,
    `key`       VARBINARY(255) NOT NULL,
    generation  BIGINT NOT NULL,
    attempt     BINARY(16) NOT NULL,
    fence       BIGINT NOT NULL,
    `at`        BIGINT NOT NULL,
    UNIQUE KEY provider_id (provider, provider_id),
    KEY provider_record (scope, `key`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
;

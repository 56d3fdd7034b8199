-- One row for each scope and key. Times are microseconds since 1970, durations microseconds.
--
-- No column that `complete` changes is in an index, so that completing is a HOT update: it writes one
-- tuple into the page it is on and touches no index. The list of leases and the replies are
-- therefore tables of their own.
CREATE TABLE onceward.records (
    record_id              bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope                  text     COLLATE "C" NOT NULL CHECK (length(scope) BETWEEN 1 AND 255),
    key                    text     COLLATE "C" NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    recipe                 integer  NOT NULL,
    fingerprint            bytea    NOT NULL CHECK (length(fingerprint) = 32),
    generation             integer  NOT NULL CHECK (generation > 0),
    state                  text     NOT NULL CHECK (state IN ('pending', 'in_progress', 'completed',
                                                              'failed_retryable', 'unknown', 'expired')),
    attempt                uuid     NOT NULL,
    fence                  bigint   NOT NULL CHECK (fence > 0),
    attempts               integer  NOT NULL,
    effects                text     NOT NULL CHECK (effects IN ('undeclared', 'external', 'phased',
                                                                'local', 'none')),
    route                  text     NOT NULL,
    method                 text     NOT NULL,
    path                   text     NOT NULL,
    created_at             bigint   NOT NULL,
    started_at             bigint   NOT NULL,
    lease_until            bigint   NOT NULL,
    max_execution          bigint   NOT NULL,
    finished_at            bigint,
    expires_at             bigint   NOT NULL,
    retention              bigint   NOT NULL,
    tombstone              bigint   NOT NULL,
    last_error             text,
    reconcile_after        bigint,
    void                   boolean  NOT NULL,
    recovery_point         text,
    open_effect            text,
    open_effect_idempotent boolean,
    reply_status           smallint,
    -- Where the record stands, or stood last, in the list of leases.
    check_at               bigint   NOT NULL,
    -- When the reaper looks at it. Set when the record is reserved and not changed by `complete`:
    -- what it finds not to be due is filed again.
    reap_at                bigint   NOT NULL,
    UNIQUE (scope, key),
    -- A tombstone keeps the status of its reply and nothing else of it.
    CHECK (state = 'expired' OR (state = 'completed') = (reply_status IS NOT NULL)),
    CHECK ((state = 'unknown') = (reconcile_after IS NOT NULL)),
    CHECK ((open_effect IS NULL) = (open_effect_idempotent IS NULL))
) WITH (fillfactor = 50);

-- For the reaper: retention that is over, then tombstones whose time is over.
CREATE INDEX records_reap ON onceward.records (reap_at);
-- For the reconciler: unknown outcomes that are due.
CREATE INDEX records_reconcile ON onceward.records (reconcile_after) WHERE reconcile_after IS NOT NULL;

-- For the sweeper and the resumer: one row for each record in progress.
CREATE TABLE onceward.leases (
    check_at  bigint NOT NULL,
    record_id bigint NOT NULL,
    PRIMARY KEY (check_at, record_id)
);

-- What completed records are answered with. A body that was over the cap is null.
CREATE TABLE onceward.replies (
    record_id      bigint PRIMARY KEY,
    headers        bytea  NOT NULL,
    schema_version text,
    body           bytea
);

-- What phased operations have done, and the requests by which a worker goes on with them.
CREATE TABLE onceward.steps (
    record_id  bigint  NOT NULL,
    generation integer NOT NULL,
    name       text    COLLATE "C" NOT NULL CHECK (length(name) BETWEEN 1 AND 255),
    step_id    bigint  GENERATED ALWAYS AS IDENTITY,
    result     bytea   NOT NULL,
    PRIMARY KEY (record_id, generation, name)
);
CREATE TABLE onceward.requests (
    record_id bigint PRIMARY KEY,
    request   bytea  NOT NULL
);

-- What a person may have to understand later. Lives longer than the record it is about.
CREATE TABLE onceward.audit_records (
    audit_id       bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             bigint  NOT NULL,
    scope          text    COLLATE "C" NOT NULL,
    key            text    COLLATE "C" NOT NULL,
    generation     integer NOT NULL,
    event          text    NOT NULL,
    attempt        uuid    NOT NULL,
    fence          bigint  NOT NULL,
    reason         text    NOT NULL,
    reply_status   smallint,
    reply_headers  bytea,
    reply_schema   text,
    reply_body     bytea,
    UNIQUE (scope, key, generation, event, attempt, fence)
);

-- A record as the functions give it to the store.
CREATE TYPE onceward.found AS (
    position               integer,
    verdict                text,
    at                     bigint,
    record_id              bigint,
    scope                  text,
    key                    text,
    recipe                 integer,
    fingerprint            bytea,
    generation             integer,
    state                  text,
    attempt                uuid,
    fence                  bigint,
    attempts               integer,
    effects                text,
    route                  text,
    method                 text,
    path                   text,
    created_at             bigint,
    started_at             bigint,
    lease_until            bigint,
    max_execution          bigint,
    finished_at            bigint,
    expires_at             bigint,
    retention              bigint,
    tombstone              bigint,
    last_error             text,
    reconcile_after        bigint,
    void                   boolean,
    recovery_point         text,
    open_effect            text,
    open_effect_idempotent boolean,
    reply_status           smallint,
    reply_headers          bytea,
    reply_schema           text,
    reply_body             bytea
);

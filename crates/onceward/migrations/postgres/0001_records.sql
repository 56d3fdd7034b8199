-- What single columns may hold. A session reads the checks of a domain once, and those of a table with
-- every statement that writes to it.
CREATE DOMAIN onceward.name AS text COLLATE "C" CHECK (octet_length(VALUE) BETWEEN 1 AND 255);
CREATE DOMAIN onceward.digest AS bytea CHECK (length(VALUE) = 32);
CREATE DOMAIN onceward.generation AS integer CHECK (VALUE > 0);
CREATE DOMAIN onceward.fence AS bigint CHECK (VALUE > 0);
CREATE DOMAIN onceward.state AS text
    CHECK (VALUE IN ('pending', 'in_progress', 'completed', 'failed_retryable', 'unknown', 'expired'));
CREATE DOMAIN onceward.effects AS text
    CHECK (VALUE IN ('undeclared', 'external', 'phased', 'local', 'none'));

-- One row for each scope and key. Times are microseconds since 1970, durations microseconds.
--
-- No column that `complete` changes is in an index, so that completing is a HOT update: it writes one
-- tuple into the page it is on and touches no index. The list of leases is therefore a table of its own,
-- and so much of each page is left free that all of its rows can be completed with a small reply in them,
-- by one statement. Larger replies are in a table of their own.
CREATE TABLE onceward.records (
    record_id              bigint   GENERATED ALWAYS AS IDENTITY (CACHE 32) PRIMARY KEY,
    created_at             bigint   NOT NULL,
    -- When the reaper looks at it. Set when the record is reserved and not changed by `complete`:
    -- what it finds not to be due is filed again.
    reap_at                bigint   NOT NULL,
    fence                  onceward.fence NOT NULL,
    started_at             bigint   NOT NULL,
    lease_until            bigint   NOT NULL,
    max_execution          bigint   NOT NULL,
    retention              bigint   NOT NULL,
    tombstone              bigint   NOT NULL,
    attempt                uuid     NOT NULL,
    generation             onceward.generation NOT NULL,
    attempts               integer  NOT NULL,
    recipe                 integer  NOT NULL,
    -- What was done to learn an unknown outcome: probes begun, the last one, the first that found
    -- nothing.
    probes                 integer  NOT NULL DEFAULT 0,
    asked_at               bigint,
    absent_at              bigint,
    void                   boolean  NOT NULL,
    scope                  onceward.name NOT NULL,
    key                    onceward.name NOT NULL,
    fingerprint            onceward.digest NOT NULL,
    effects                onceward.effects NOT NULL,
    route                  text     NOT NULL,
    method                 text     NOT NULL,
    path                   text     NOT NULL,
    recovery_point         text,
    open_effect            text,
    open_effect_idempotent boolean,
    -- Until when accepted work may wait to be begun.
    queued_until           bigint,
    -- When pending work may be begun (`lease_until`), and when it is given up (`queued_until`). Null in
    -- all other states, so that completing does not change them. Written by whoever writes the state:
    -- a session reads the expression of a generated column anew with every statement.
    due_at                 bigint,
    give_up_at             bigint,
    -- What `complete` changes.
    state                  onceward.state NOT NULL,
    reply_status           smallint,
    finished_at            bigint,
    expires_at             bigint   NOT NULL,
    last_error             text,
    reconcile_after        bigint,
    -- What a completed record is answered with, if it is small. Without headers here, it is in `replies`.
    -- A body that was over the cap is null.
    reply_headers          bytea,
    reply_schema           text,
    reply_body             bytea,
    UNIQUE (scope, key)
) WITH (fillfactor = 34);

-- For the reaper: retention that is over, then tombstones whose time is over.
CREATE INDEX records_reap ON onceward.records (reap_at);
-- For lists, the latest first; and where the list of leases leads.
CREATE INDEX records_created ON onceward.records (created_at);
-- For the reconciler: unknown outcomes that are due.
CREATE INDEX records_reconcile ON onceward.records (reconcile_after) WHERE reconcile_after IS NOT NULL;
-- For the dispatcher: pending work that is due.
CREATE INDEX records_due ON onceward.records (due_at) WHERE due_at IS NOT NULL;
-- For the sweeper: pending work whose time is over.
CREATE INDEX records_give_up ON onceward.records (give_up_at) WHERE give_up_at IS NOT NULL;

-- For the sweeper and the resumer: when to look at the records that were made at one moment, one row
-- for a whole batch. Nobody takes a row out when its records complete: the sweeper does, when its time
-- comes. Whatever puts a record in progress adds a row, so that taking out another never loses it.
CREATE TABLE onceward.leases (
    check_at   bigint  NOT NULL,
    lease_id   bigint  GENERATED ALWAYS AS IDENTITY (CACHE 32),
    created_at bigint  NOT NULL,
    -- Whether the records may have to be gone on with. What else began at that moment has a row of its
    -- own.
    phased     boolean NOT NULL,
    PRIMARY KEY (check_at, lease_id)
);
-- For the resumer, which comes often: it does not look at what has completed and was not cleared yet.
CREATE INDEX leases_phased ON onceward.leases (check_at) WHERE phased;

-- What completed records are answered with whose replies are not small.
CREATE TABLE onceward.replies (
    record_id      bigint PRIMARY KEY,
    headers        bytea  NOT NULL,
    schema_version text,
    body           bytea
);

-- What phased operations have done, and the requests by which a worker goes on with them and with what
-- was accepted for later.
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
    -- Of an incident: a digest of what was told, and by whom.
    told           bytea
);
-- The same thing told twice is one audit record, unless it can happen again to one attempt, or to many
-- messages of one claim. Incidents of one attempt differ by what was told.
CREATE UNIQUE INDEX audit_records_once ON onceward.audit_records (
    scope, key, generation, event, attempt, fence,
    (CASE WHEN event IN ('dead_lettered', 'redriven') THEN at
          WHEN event IN ('message_redriven', 'message_discarded') THEN audit_id
          ELSE 0 END),
    coalesce(told, ''));

-- A record as the functions give it to the store, which reads the columns by their places: new ones go
-- to the end.
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
    reply_body             bytea,
    queued_until           bigint,
    probes                 integer,
    asked_at               bigint,
    absent_at              bigint
);

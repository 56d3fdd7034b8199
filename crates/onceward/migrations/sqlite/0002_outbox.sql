-- Messages that were committed with business rows, and that a relay delivers.
CREATE TABLE onceward_outbox (
    -- AUTOINCREMENT: an id is never used again, so that a delete by id deletes what was looked at.
    message_id        INTEGER PRIMARY KEY AUTOINCREMENT,
    scope             TEXT    NOT NULL,
    key               TEXT    NOT NULL,
    generation        INTEGER NOT NULL CHECK (generation > 0),
    -- Tells this use of the key from one after the record was purged and made again.
    record_created_at INTEGER NOT NULL,
    name              TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 255),
    derived_key       TEXT    NOT NULL UNIQUE,
    sink              TEXT    NOT NULL CHECK (length(sink) BETWEEN 1 AND 255),
    aggregate         TEXT    CHECK (length(aggregate) BETWEEN 1 AND 255),
    content_type      TEXT    NOT NULL,
    payload           BLOB    NOT NULL,
    state             TEXT    NOT NULL CHECK (state = 'ready' OR state = 'delivering' OR state = 'done'
                                             OR state = 'dead'),
    -- Something of the same aggregate comes before and is not done. Claims look at others only.
    held              INTEGER NOT NULL CHECK (held IN (0, 1)),
    -- How often a delivery was begun.
    attempts          INTEGER NOT NULL CHECK (attempts >= 0),
    -- An earlier delivery was begun, and its end is not known.
    ambiguous         INTEGER NOT NULL CHECK (ambiguous IN (0, 1)),
    next_at           INTEGER NOT NULL,
    lease_until       INTEGER,
    attempt           BLOB    CHECK (length(attempt) = 16),
    fence             INTEGER NOT NULL CHECK (fence >= 0),
    provider_id       TEXT,
    last_error        TEXT,
    created_at        INTEGER NOT NULL,
    done_at           INTEGER,
    CHECK (state <> 'delivering' OR (lease_until IS NOT NULL AND attempt IS NOT NULL)),
    CHECK ((state = 'done') = (done_at IS NOT NULL))
) STRICT;

-- For the relay: what is due, what was begun and not ended, and what one claim holds.
CREATE INDEX onceward_outbox_ready ON onceward_outbox (sink, next_at) WHERE state = 'ready' AND held = 0;
CREATE INDEX onceward_outbox_delivering ON onceward_outbox (sink, lease_until) WHERE state = 'delivering';
CREATE INDEX onceward_outbox_claim ON onceward_outbox (attempt) WHERE state = 'delivering';
-- The order of each aggregate.
CREATE INDEX onceward_outbox_aggregate ON onceward_outbox (aggregate, message_id) WHERE state <> 'done';
-- For people: dead letters, and all else that is not done. For the purge: what is done.
CREATE INDEX onceward_outbox_open ON onceward_outbox (state, message_id) WHERE state <> 'done';
CREATE INDEX onceward_outbox_done ON onceward_outbox (done_at) WHERE state = 'done';

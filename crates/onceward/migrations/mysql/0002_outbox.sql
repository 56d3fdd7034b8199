-- Messages that were committed with business rows, and that a relay delivers.
CREATE TABLE IF NOT EXISTS onceward_outbox (
    message_id        BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    scope             VARBINARY(255) NOT NULL,
    `key`             VARBINARY(255) NOT NULL,
    generation        BIGINT NOT NULL,
    -- Tells this use of the key from one after the record was purged and made again.
    record_created_at BIGINT NOT NULL,
    name              VARBINARY(255) NOT NULL,
    derived_key       VARBINARY(255) NOT NULL,
    sink              VARBINARY(255) NOT NULL,
    aggregate         VARBINARY(255),
    content_type      MEDIUMBLOB NOT NULL,
    payload           LONGBLOB NOT NULL,
    state             VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- A claim found something of the same aggregate before it. Claims look at others only.
    held              BIGINT NOT NULL,
    -- How often a delivery was begun.
    attempts          BIGINT NOT NULL,
    -- An earlier delivery was begun, and its end is not known.
    ambiguous         BIGINT NOT NULL,
    next_at           BIGINT NOT NULL,
    lease_until       BIGINT,
    attempt           BINARY(16),
    fence             BIGINT NOT NULL,
    provider_id       MEDIUMBLOB,
    last_error        MEDIUMBLOB,
    created_at        BIGINT NOT NULL,
    done_at           BIGINT,
    -- Of an aggregate only what is not done.
    open_aggregate    VARBINARY(255) AS (CASE WHEN state <> 'done' THEN aggregate END) STORED,
    UNIQUE KEY message_key (derived_key),
    KEY message_ready (state, held, sink, next_at, message_id),
    KEY message_delivering (state, sink, lease_until),
    KEY message_claim (attempt),
    KEY message_order (open_aggregate, message_id),
    KEY message_state (state, message_id),
    KEY message_done (state, done_at),
    CHECK (state IN ('ready', 'delivering', 'done', 'dead')),
    CHECK (held IN (0, 1) AND ambiguous IN (0, 1)),
    CHECK (state <> 'delivering' OR (lease_until IS NOT NULL AND attempt IS NOT NULL)),
    CHECK ((state = 'done') = (done_at IS NOT NULL))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
;
-- Locked by whoever stages a message of an aggregate, so that its ids grow in the order of commits.
CREATE TABLE IF NOT EXISTS onceward_aggregates (
    aggregate VARBINARY(255) NOT NULL PRIMARY KEY
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4
;

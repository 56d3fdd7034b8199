-- What was done to learn an unknown outcome: probes begun, the last one, the first that found nothing.
ALTER TABLE onceward_records ADD COLUMN probes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE onceward_records ADD COLUMN asked_at INTEGER;
ALTER TABLE onceward_records ADD COLUMN absent_at INTEGER;

-- Some things can happen again to one attempt, or to many messages of one claim: the constraint of
-- before made one audit record of them.
DROP INDEX onceward_audit_records_at;
ALTER TABLE onceward_audit_records RENAME TO onceward_audit_records_before;
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
    reply_digest   BLOB
) STRICT;
INSERT INTO onceward_audit_records (
    audit_id, at, scope, key, generation, event, attempt, fence, reason, reply_status, reply_headers,
    reply_schema, reply_encoding, reply_length, reply_body, reply_digest)
SELECT
    audit_id, at, scope, key, generation, event, attempt, fence, reason, reply_status, reply_headers,
    reply_schema, reply_encoding, reply_length, reply_body, reply_digest
FROM onceward_audit_records_before;
DROP TABLE onceward_audit_records_before;
CREATE INDEX onceward_audit_records_at ON onceward_audit_records (at);
CREATE UNIQUE INDEX onceward_audit_records_once ON onceward_audit_records (
    scope, key, generation, event, attempt, fence,
    (CASE WHEN event IN ('dead_lettered', 'redriven', 'incident') THEN at
          WHEN event IN ('message_redriven', 'message_discarded') THEN audit_id
          ELSE 0 END));

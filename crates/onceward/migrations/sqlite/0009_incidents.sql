-- An incident is told by what was said and by whom, not by its time: the same one told twice is one.
-- Those of before stay apart.
ALTER TABLE onceward_audit_records ADD COLUMN told BLOB;
UPDATE onceward_audit_records SET told = CAST(audit_id AS BLOB) WHERE event = 'incident';
DROP INDEX onceward_audit_records_once;
CREATE UNIQUE INDEX onceward_audit_records_once ON onceward_audit_records (
    scope, key, generation, event, attempt, fence,
    (CASE WHEN event IN ('dead_lettered', 'redriven') THEN at
          WHEN event IN ('message_redriven', 'message_discarded') THEN audit_id
          ELSE 0 END),
    coalesce(told, x''));

-- For operators: the latest first, in pages.
CREATE INDEX onceward_records_created ON onceward_records (created_at);
CREATE INDEX onceward_audit_records_at ON onceward_audit_records (at);

-- For operators: the latest first, in pages.
CREATE INDEX records_created ON records (created_at);
CREATE INDEX audit_records_at ON audit_records (at);

-- Work that was accepted for later may wait this long to be begun.
ALTER TABLE onceward_records ADD COLUMN queued_until INTEGER;
-- For the dispatcher: pending work, by the time from which on it may be begun.
CREATE INDEX onceward_records_pending ON onceward_records (lease_until) WHERE state = 'pending';

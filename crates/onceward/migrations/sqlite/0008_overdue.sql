-- For the sweeper: pending work, by the time at which it is given up.
CREATE INDEX onceward_records_overdue ON onceward_records (queued_until) WHERE state = 'pending';

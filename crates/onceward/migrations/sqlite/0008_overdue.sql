-- For the sweeper: pending work, by the time at which it is given up.
CREATE INDEX records_overdue ON records (queued_until) WHERE state = 'pending';

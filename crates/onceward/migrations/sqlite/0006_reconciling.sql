-- What was done to learn an unknown outcome: probes begun, the last one, the first that found nothing.
ALTER TABLE records ADD COLUMN probes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE records ADD COLUMN asked_at INTEGER;
ALTER TABLE records ADD COLUMN absent_at INTEGER;

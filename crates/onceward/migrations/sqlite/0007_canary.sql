-- The last beat of each process: a count under one that was acknowledged to it says that commits are
-- gone, as after a restore from a backup.
CREATE TABLE onceward_beats (
    node  BLOB    PRIMARY KEY CHECK (length(node) = 16),
    count INTEGER NOT NULL,
    at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What was found to be lost, until somebody acknowledges it: at most one row.
CREATE TABLE onceward_regressions (
    since INTEGER,
    found INTEGER NOT NULL
) STRICT;

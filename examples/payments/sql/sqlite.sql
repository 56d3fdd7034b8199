CREATE TABLE IF NOT EXISTS payments (
    id             TEXT PRIMARY KEY,
    reference      TEXT NOT NULL, -- the caller's own name for what is paid; not unique, on purpose
    amount         BIGINT NOT NULL CHECK (amount > 0),
    state          TEXT NOT NULL,
    bank_reference TEXT
);
CREATE TABLE IF NOT EXISTS notes (
    payment_id TEXT NOT NULL REFERENCES payments (id),
    text       TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS customers (
    id    TEXT PRIMARY KEY,
    email TEXT NOT NULL UNIQUE
);

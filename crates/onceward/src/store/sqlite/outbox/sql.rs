//! The statements of the outbox.

use super::row::{listed_columns, message_columns};

/// The record of a message, under the attempt that stages.
macro_rules! owned {
    () => {
        "r.scope = ?1 AND r.key = ?2 AND r.generation = ?3 \
         AND r.state = 'in_progress' AND r.attempt = ?4 AND r.fence = ?5"
    };
}

/// Only under the record that its attempt holds, and only once.
pub(super) const STAGE: &str = concat!(
    "INSERT INTO onceward_outbox (scope, key, generation, record_created_at, name, derived_key, sink, \
     aggregate, content_type, payload, state, held, attempts, ambiguous, next_at, fence, \
     created_at) \
     SELECT scope, key, generation, created_at, ?7, ?6, ?8, ?9, ?10, ?11, 'ready', \
     EXISTS (SELECT 1 FROM onceward_outbox WHERE state <> 'done' AND aggregate = ?9), 0, 0, ?12, 0, ?12 \
     FROM onceward_records AS r WHERE ",
    owned!(),
    " ON CONFLICT (derived_key) DO NOTHING"
);

pub(super) const STAGED_BEFORE: &str = concat!(
    "SELECT onceward_outbox.message_id, \
     onceward_outbox.record_created_at = r.created_at AS same_use \
     FROM onceward_records AS r JOIN onceward_outbox ON onceward_outbox.derived_key = ?6 WHERE ",
    owned!()
);

pub(super) const FORGET: &str =
    "DELETE FROM onceward_outbox WHERE message_id = ? AND state = 'done'";

/// Of an aggregate only the earliest message that is not done. Looked at anew at each claim: that a
/// message is not held finds it, and this lets it go.
macro_rules! is_head {
    () => {
        "(onceward_outbox.aggregate IS NULL OR NOT EXISTS (\
         SELECT 1 FROM onceward_outbox AS earlier WHERE earlier.state <> 'done' \
         AND earlier.aggregate = onceward_outbox.aggregate AND earlier.message_id < onceward_outbox.message_id))"
    };
}

pub(super) const RUN_OUT: &str = concat!(
    "SELECT message_id FROM onceward_outbox WHERE state = 'delivering' AND sink = ? AND lease_until <= ? \
     AND ",
    is_head!(),
    " ORDER BY lease_until, message_id LIMIT ?"
);

pub(super) const DUE: &str = concat!(
    "SELECT message_id FROM onceward_outbox WHERE state = 'ready' AND held = 0 AND sink = ? \
     AND next_at <= ? AND ",
    is_head!(),
    " ORDER BY next_at, message_id LIMIT ?"
);

pub(super) const MINE: &str = concat!(
    "SELECT ",
    message_columns!(),
    " FROM onceward_outbox WHERE state = 'delivering' AND attempt = ? AND lease_until > ?"
);

pub(super) const CLAIM: &str = concat!(
    "UPDATE onceward_outbox SET state = 'delivering', attempts = attempts + 1, \
     ambiguous = ambiguous OR state = 'delivering', attempt = ?1, fence = max(fence + 1, ?2), \
     lease_until = ?3 WHERE message_id IN (SELECT value FROM json_each(?4)) RETURNING ",
    message_columns!()
);

pub(super) const UNREADABLE: &str = "UPDATE onceward_outbox SET state = 'dead', last_error = 'it cannot be read' WHERE message_id = ?";

macro_rules! claimed {
    () => {
        " WHERE message_id = ? AND attempt = ? AND fence = ? AND state = "
    };
}

pub(super) const DONE: &str = concat!(
    "UPDATE onceward_outbox SET state = 'done', done_at = ?, provider_id = ?, last_error = NULL, \
     ambiguous = 0",
    claimed!(),
    "'delivering' RETURNING aggregate"
);

/// The next of an aggregate is held no more.
pub(super) const LET_GO: &str = "UPDATE onceward_outbox SET held = 0 WHERE message_id = (\
    SELECT min(message_id) FROM onceward_outbox WHERE state <> 'done' AND aggregate = ?)";

pub(super) const RETRY: &str = concat!(
    "UPDATE onceward_outbox SET state = 'ready', next_at = ?, ambiguous = ambiguous OR ?, last_error = ?",
    claimed!(),
    "'delivering'"
);

pub(super) const DEAD: &str = concat!(
    "UPDATE onceward_outbox SET state = 'dead', last_error = ?",
    claimed!(),
    "'delivering'"
);

pub(super) const ALREADY_SETTLED: &str = concat!("SELECT 1 FROM onceward_outbox", claimed!(), "?");

/// For all states but done: the condition is that of an index.
pub(super) const LIST_OPEN: &str = concat!(
    "SELECT ",
    message_columns!(),
    " FROM onceward_outbox WHERE state = ? AND state <> 'done' AND message_id > ? \
     ORDER BY message_id LIMIT ?"
);

pub(super) const LIST: &str = concat!(
    "SELECT ",
    message_columns!(),
    " FROM onceward_outbox WHERE state = ? AND message_id > ? ORDER BY message_id LIMIT ?"
);

macro_rules! shown {
    () => {
        " message_id > ?1 AND (?2 IS NULL OR sink = ?2) AND created_at <= ?3 \
         ORDER BY message_id LIMIT ?4"
    };
}

/// For operators: in one state other than done, by its index.
pub(super) const SHOW_OPEN: &str = concat!(
    "SELECT ",
    listed_columns!(),
    " FROM onceward_outbox WHERE state = ?5 AND state <> 'done' AND",
    shown!()
);

/// The same of those that are done, or of all.
pub(super) const SHOW: &str = concat!(
    "SELECT ",
    listed_columns!(),
    " FROM onceward_outbox WHERE (?5 IS NULL OR state = ?5) AND",
    shown!()
);

pub(super) const SHOW_ONE: &str =
    concat!("SELECT ", listed_columns!(), " FROM onceward_outbox WHERE message_id = ?");

/// Those of a list of ids with fences that are still what was looked at.
macro_rules! looked_at {
    () => {
        "(message_id, fence) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))"
    };
}

/// An audit record for each of the messages that the next statement is applied to: who decided and
/// why, and about which message. A generation that nobody could read would make the audit record
/// unreadable too.
macro_rules! remember {
    ($event:literal) => {
        concat!(
            "INSERT INTO onceward_audit_records (at, scope, key, generation, event, attempt, fence, reason) \
             SELECT ?2, scope, key, min(generation, 4294967295), '",
            $event,
            "', coalesce(attempt, zeroblob(16)), fence, \
             ?3 || ' (message ' || message_id || ', ' || name || ')' \
             FROM onceward_outbox WHERE ",
            looked_at!(),
            " AND state = 'dead'"
        )
    };
}

pub(super) const REMEMBER_REDRIVEN: &str =
    concat!(remember!("message_redriven"), " ORDER BY message_id");

/// The claim is forgotten: whoever made it can settle nothing any more.
pub(super) const REDRIVE: &str = concat!(
    "UPDATE onceward_outbox SET state = 'ready', attempts = 0, ambiguous = 0, next_at = ?2, attempt = NULL, \
     lease_until = NULL WHERE ",
    looked_at!(),
    " AND state = 'dead' RETURNING message_id"
);

/// The operation that staged a message is over and will not stage it again.
macro_rules! operation_is_over {
    () => {
        "NOT EXISTS (SELECT 1 FROM onceward_records AS r WHERE r.scope = onceward_outbox.scope \
         AND r.key = onceward_outbox.key AND r.generation = onceward_outbox.generation \
         AND r.created_at = onceward_outbox.record_created_at \
         AND r.state NOT IN ('completed', 'expired'))"
    };
}

pub(super) const REMEMBER_DISCARDED: &str =
    concat!(remember!("message_discarded"), " AND ", operation_is_over!(), " ORDER BY message_id");

pub(super) const DISCARD: &str = concat!(
    "DELETE FROM onceward_outbox WHERE ",
    looked_at!(),
    " AND state = 'dead' AND ",
    operation_is_over!(),
    " RETURNING message_id, aggregate"
);

pub(super) const PURGEABLE: &str = concat!(
    "SELECT message_id FROM onceward_outbox WHERE state = 'done' AND done_at <= ? AND ",
    operation_is_over!(),
    " ORDER BY done_at LIMIT ?"
);

pub(super) const PURGE: &str = "DELETE FROM onceward_outbox \
    WHERE message_id IN (SELECT value FROM json_each(?)) AND state = 'done' RETURNING message_id";

/// Each by an index, and of those that are ready one row for each sink: a row may be large.
pub(super) const BACKLOG: &str = "WITH RECURSIVE sinks (next_sink) AS (\
    SELECT min(sink) FROM onceward_outbox WHERE state = 'ready' AND held = 0 UNION ALL \
    SELECT (SELECT min(sink) FROM onceward_outbox WHERE state = 'ready' AND held = 0 AND sink > next_sink) \
    FROM sinks WHERE next_sink IS NOT NULL) \
    SELECT (SELECT count(*) FROM (\
    SELECT 1 FROM onceward_outbox WHERE state = 'dead' AND state <> 'done' LIMIT ?)), \
    (SELECT min((SELECT next_at FROM onceward_outbox \
    WHERE sink = next_sink AND state = 'ready' AND held = 0 ORDER BY next_at LIMIT 1)) FROM sinks)";

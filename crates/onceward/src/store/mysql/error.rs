//! What the server's errors mean to a caller, and to us.

use std::time::Duration;

use sqlx::mysql::MySqlDatabaseError;

use crate::store::{StoreError, StoreErrorKind};

pub(super) const STORE: &str = "mysql";

/// How often a call is made, when its connection broke or others were in the way.
pub(super) const TRIES_MAX: u32 = 5;

/// The numbers of errors that we tell apart.
mod number {
    pub(super) const CHECK_READ: u16 = 1020;
    pub(super) const WSREP_NOT_READY: u16 = 1047;
    pub(super) const SHUTDOWN: u16 = 1053;
    pub(super) const DUPLICATE: u16 = 1062;
    pub(super) const NO_SUCH_TABLE: u16 = 1146;
    pub(super) const NET_FIRST: u16 = 1158;
    pub(super) const NET_LAST: u16 = 1161;
    pub(super) const DURING_COMMIT: u16 = 1180;
    pub(super) const LOCK_WAIT: u16 = 1205;
    pub(super) const DEADLOCK: u16 = 1213;
    pub(super) const UNKNOWN_STATEMENT: u16 = 1243;
    pub(super) const READ_ONLY_OPTION: u16 = 1290;
    pub(super) const NO_SUCH_SAVEPOINT: u16 = 1305;
    pub(super) const INTERRUPTED: u16 = 1317;
    pub(super) const TABLE_CHANGED: u16 = 1412;
    pub(super) const PREPARE_AGAIN: u16 = 1615;
    pub(super) const READ_ONLY_TRANSACTION: u16 = 1792;
    pub(super) const READ_ONLY_MODE: u16 = 1836;
    pub(super) const KILLED: u16 = 1927;
    pub(super) const HOOK_FAILED: u16 = 3100;
    pub(super) const ROLLED_BACK_AT_COMMIT: u16 = 3101;
    pub(super) const NOT_AVAILABLE: u16 = 3168;
    pub(super) const SESSION_KILLED: u16 = 3169;
    pub(super) const NO_WAIT: u16 = 3572;
    pub(super) const IDLE_TOO_LONG: u16 = 4031;
}

/// When in a transaction an error came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Before COMMIT was sent: nothing happened.
    Before,
    /// In answer to COMMIT.
    Commit,
}

/// What to do about a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// The connection is gone, or leads to a server that does not take writes: the same on another
    /// one.
    Reconnect,
    /// The server undid it, because others were in the way, or somebody made the row that was not
    /// there: the same again.
    Again,
    /// A row is locked by somebody else.
    Locked,
    /// The server refused it: it may be about one element.
    Refused,
}

fn number_of(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(error.number())
}

pub(super) fn remedy(error: &sqlx::Error) -> Remedy {
    let Some(number) = number_of(error) else {
        return match error {
            sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } => Remedy::Refused,
            _ => Remedy::Reconnect,
        };
    };
    remedy_of(number)
}

fn remedy_of(number: u16) -> Remedy {
    match number {
        number::LOCK_WAIT | number::NO_WAIT => Remedy::Locked,
        number::DEADLOCK
        | number::DUPLICATE
        | number::CHECK_READ
        | number::ROLLED_BACK_AT_COMMIT
        | number::TABLE_CHANGED
        | number::PREPARE_AGAIN => Remedy::Again,
        number::SHUTDOWN
        | number::WSREP_NOT_READY
        | number::DURING_COMMIT
        | number::INTERRUPTED
        | number::KILLED
        | number::UNKNOWN_STATEMENT
        | number::READ_ONLY_OPTION
        | number::READ_ONLY_TRANSACTION
        | number::READ_ONLY_MODE
        | number::HOOK_FAILED
        | number::NOT_AVAILABLE
        | number::SESSION_KILLED
        | number::IDLE_TOO_LONG
        | number::NET_FIRST..=number::NET_LAST => Remedy::Reconnect,
        _ => Remedy::Refused,
    }
}

/// Whether somebody else's transaction is in the way.
pub(super) fn is_locked(error: &sqlx::Error) -> bool {
    let others = [number::LOCK_WAIT, number::NO_WAIT, number::DEADLOCK, number::CHECK_READ];
    number_of(error).is_some_and(|number| others.contains(&number))
}

/// Whether the server does not know our tables.
pub(super) fn is_elsewhere(error: &sqlx::Error) -> bool {
    number_of(error) == Some(number::NO_SUCH_TABLE)
}

/// Whether a row with this key is there already.
pub(super) fn is_duplicate(error: &sqlx::Error) -> bool {
    number_of(error) == Some(number::DUPLICATE)
}

/// Whether there is no such savepoint: it was not made, since there is no transaction.
pub(super) fn is_no_savepoint(error: &sqlx::Error) -> bool {
    number_of(error) == Some(number::NO_SUCH_SAVEPOINT)
}

/// The error for a caller, when there is nothing left to try.
pub(super) fn store_error(error: &sqlx::Error, moment: Moment) -> StoreError {
    let (kind, context) = match (error, number_of(error)) {
        (sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. }, _) => {
            (StoreErrorKind::Corrupt, "a record cannot be read")
        }
        (_, Some(number)) => meaning(number, moment),
        (_, None) if moment == Moment::Commit => {
            (StoreErrorKind::Ambiguous, "the connection was lost")
        }
        (_, None) => (StoreErrorKind::Unavailable, "the connection was lost"),
    };
    StoreError::new(kind, STORE, context).with_source(error.to_string())
}

/// Before COMMIT, an answer of the server says that nothing happened. One to COMMIT says so only if it
/// is known to come from a transaction that was taken back: the server may have failed after that was
/// in its log.
fn meaning(number: u16, moment: Moment) -> (StoreErrorKind, &'static str) {
    let context = match number {
        number::LOCK_WAIT | number::NO_WAIT => "the record is locked",
        number::DEADLOCK
        | number::DUPLICATE
        | number::CHECK_READ
        | number::ROLLED_BACK_AT_COMMIT => "too many calls were in the way",
        number::READ_ONLY_OPTION | number::READ_ONLY_TRANSACTION | number::READ_ONLY_MODE => {
            "the server is read-only"
        }
        number::HOOK_FAILED => "the group of servers does not take writes",
        _ if moment == Moment::Commit => {
            return (StoreErrorKind::Ambiguous, "a commit was not acknowledged");
        }
        _ => "the server refused a call",
    };
    (StoreErrorKind::Unavailable, context)
}

/// The error for a call that was sent more than once, and of which an earlier one may have been
/// carried out.
pub(super) fn answer_lost(last: StoreError) -> StoreError {
    match last.kind() {
        StoreErrorKind::Unavailable => {
            StoreError::new(StoreErrorKind::Ambiguous, STORE, "the answer was lost")
                .with_source(last)
        }
        StoreErrorKind::Ambiguous | StoreErrorKind::Corrupt => last,
    }
}

/// Before a call is made again that others were in the way of.
pub(super) async fn pause() {
    tokio::time::sleep(Duration::from_millis(rand::random_range(1..10))).await;
}

pub(super) fn damaged() -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, STORE, "a record is damaged")
}

/// A row that is not what we wrote.
pub(super) fn unreadable(bad: impl std::error::Error + Send + Sync + 'static) -> sqlx::Error {
    sqlx::Error::Decode(Box::new(bad))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(number: u16, moment: Moment) -> StoreErrorKind {
        meaning(number, moment).0
    }

    #[test]
    fn an_error_at_commit_is_ambiguous_unless_it_is_known_that_all_was_taken_back() {
        for taken_back in [1020, 1205, 1213, 1290, 1792, 1836, 3100, 3101, 3572] {
            let kind = kind(taken_back, Moment::Commit);
            assert_eq!(kind, StoreErrorKind::Unavailable, "{taken_back}");
        }
        // Disk full, a log that cannot be written, a server that stops, and what nobody has heard of.
        for unsure in [1021, 1026, 1053, 1158, 1161, 1180, 1317, 1598, 1927, 3168, 4031, 65_000] {
            assert_eq!(kind(unsure, Moment::Commit), StoreErrorKind::Ambiguous, "{unsure}");
            assert_eq!(kind(unsure, Moment::Before), StoreErrorKind::Unavailable, "{unsure}");
        }
    }

    #[test]
    fn a_connection_that_the_server_has_given_up_is_replaced() {
        for gone in [1053, 1927, 3168, 3169, 4031] {
            assert_eq!(remedy_of(gone), Remedy::Reconnect, "{gone}");
        }
        assert_eq!(remedy_of(3101), Remedy::Again);
        assert_eq!(remedy_of(1406), Remedy::Refused);
    }
}

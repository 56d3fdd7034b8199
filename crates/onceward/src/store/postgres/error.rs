//! What PostgreSQL's errors mean to a caller, and to us.

use std::time::Duration;

use sqlx::{
    error::DatabaseError,
    postgres::{PgDatabaseError, PgSeverity},
};

use crate::store::{StoreError, StoreErrorKind};

pub(super) const STORE: &str = "postgres";

/// How often a call is made, when its connection broke or others were in the way.
pub(super) const TRIES_MAX: u32 = 4;

/// What to do about a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// The connection is gone, and with it the answer: the same call on another one.
    Reconnect,
    /// The server undid it, because others were in the way: the same call again.
    Again,
    /// A row is locked for longer than a batch waits: each element by itself.
    Locked,
    /// The server refused it: it may be about one element.
    Refused,
}

pub(super) fn remedy(error: &sqlx::Error) -> Remedy {
    let Some(database) = error.as_database_error() else {
        return match error {
            sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } => Remedy::Refused,
            _ => Remedy::Reconnect,
        };
    };
    let code = database.code().unwrap_or_default();
    if ended_the_connection(database) {
        return Remedy::Reconnect;
    }
    match &*code {
        // Serialization failure, deadlock.
        "40001" | "40P01" => Remedy::Again,
        // Lock timeout; a statement that an operator or a setting cancelled.
        "55P03" | "57014" => Remedy::Locked,
        // Read-only: this server is not the primary any more.
        "25006" => Remedy::Reconnect,
        // The server shuts down, crashed, or starts; the connection is broken; the plan or the
        // statement is not known to this session (behind a pooler that lost it).
        "57P01" | "57P02" | "57P03" | "57P05" | "26000" | "0A000" => Remedy::Reconnect,
        _ if code == "40003" || code.starts_with("08") || code.starts_with("25") => {
            Remedy::Reconnect
        }
        _ => Remedy::Refused,
    }
}

/// Whether the server ended the session, or itself: what it was doing may be done all the same.
fn ended_the_connection(error: &dyn DatabaseError) -> bool {
    let severity = error.try_downcast_ref::<PgDatabaseError>().map(PgDatabaseError::severity);
    matches!(severity, Some(PgSeverity::Fatal | PgSeverity::Panic))
}

/// The error for a caller, when there is nothing left to try. An answer that the server gave says
/// that nothing happened; one that did not come says nothing.
pub(super) fn store_error(error: &sqlx::Error) -> StoreError {
    let (kind, context) = match (error, error.as_database_error()) {
        (sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. }, _) => {
            (StoreErrorKind::Corrupt, "a record cannot be read")
        }
        (_, Some(database)) => match &*database.code().unwrap_or_default() {
            "57P01" | "57P02" => (StoreErrorKind::Ambiguous, "the server stopped"),
            "57P03" | "57P05" => (StoreErrorKind::Unavailable, "the server does not serve"),
            // Whoever stands between lost the server; the server does not know itself.
            code if code.starts_with("08") || code == "40003" => {
                (StoreErrorKind::Ambiguous, "the answer was lost on its way")
            }
            _ if ended_the_connection(database) => {
                (StoreErrorKind::Ambiguous, "the server gave up")
            }
            "40001" | "40P01" => (StoreErrorKind::Unavailable, "too many calls were in the way"),
            "55P03" => (StoreErrorKind::Unavailable, "the record is locked"),
            "25006" => (StoreErrorKind::Unavailable, "the server is read-only"),
            _ => (StoreErrorKind::Unavailable, "the server refused a call"),
        },
        (_, None) => (StoreErrorKind::Ambiguous, "the connection was lost"),
    };
    StoreError::new(kind, STORE, context).with_source(error.to_string())
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

pub(super) fn no_answer() -> StoreError {
    StoreError::new(StoreErrorKind::Ambiguous, STORE, "no answer in time")
}

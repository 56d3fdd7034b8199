//! What the errors of a Redis server mean to a caller, and to us.

use std::time::Duration;

use redis::{ErrorKind, RedisError};

use crate::store::{StoreError, StoreErrorKind};

pub(super) const STORE: &str = "redis";

/// How often a call is made, when its connection broke or its server does not serve.
pub(super) const TRIES_MAX: u32 = 4;

const FULL: &str = "the server has no memory left (maxmemory)";

/// Whether nothing new can be kept.
pub(super) fn is_full(error: &StoreError) -> bool {
    error.to_string().ends_with(FULL)
}

/// What to do about a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// The connection is gone, and with it the answer: the same call on another one.
    Reconnect,
    /// Nothing happened: this server is not the one that serves. Look for that.
    Elsewhere,
    /// Nothing happened: the server has forgotten the script.
    Load,
    /// Nothing happened: the same call again after a pause.
    Again,
    /// Nothing happened, and nothing will.
    Refused,
}

pub(super) fn remedy(error: &RedisError) -> Remedy {
    match error.code() {
        Some("MOVED" | "READONLY") => Remedy::Elsewhere,
        // The bucket is on its way to another server, and partly there. It is asked for again.
        Some("ASK") => Remedy::Again,
        Some("ERR") if is_on_its_way(error) => Remedy::Again,
        Some("NOSCRIPT") => Remedy::Load,
        Some("LOADING" | "CLUSTERDOWN" | "TRYAGAIN" | "MASTERDOWN" | "BUSY" | "NOREPLICAS") => {
            Remedy::Again
        }
        Some(_) => Remedy::Refused,
        None if matches!(error.kind(), ErrorKind::UnexpectedReturnType) => Remedy::Refused,
        // Whatever else there is, no answer was read.
        None => Remedy::Reconnect,
    }
}

/// Whether a script was stopped before it began, since keys of its bucket are elsewhere.
fn is_on_its_way(error: &RedisError) -> bool {
    error.to_string().contains("non local key")
}

/// The error for a caller, when there is nothing left to try.
pub(super) fn store_error(error: &RedisError) -> StoreError {
    let (kind, context) = match error.code() {
        Some("OOM") => (StoreErrorKind::Unavailable, FULL),
        Some("READONLY") => (StoreErrorKind::Unavailable, "the server is a replica"),
        Some("LOADING") => (StoreErrorKind::Unavailable, "the server loads its data"),
        Some("CLUSTERDOWN") => (StoreErrorKind::Unavailable, "the Cluster does not serve"),
        Some("MISCONF") => (StoreErrorKind::Unavailable, "the server cannot write to its disk"),
        Some("NOREPLICAS") => (StoreErrorKind::Unavailable, "the server has too few replicas"),
        Some("NOAUTH" | "NOPERM" | "WRONGPASS") => {
            (StoreErrorKind::Unavailable, "the server does not let us in")
        }
        Some("ASK" | "TRYAGAIN") => (StoreErrorKind::Unavailable, "a slot is being moved"),
        Some("ERR") if is_on_its_way(error) => {
            (StoreErrorKind::Unavailable, "a slot is being moved")
        }
        Some(_) => (StoreErrorKind::Unavailable, "the server refused a call"),
        None => (StoreErrorKind::Ambiguous, "the connection was lost"),
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

pub(super) fn unavailable(context: impl Into<Box<str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, STORE, context)
}

/// A record is not what we wrote.
pub(super) fn damaged(what: &'static str) -> StoreError {
    let context = format!("a record cannot be read: {what}");
    StoreError::new(StoreErrorKind::Corrupt, STORE, context)
}

/// An answer that no script of ours gives.
pub(super) fn unreadable() -> StoreError {
    unavailable("the server's answer makes no sense")
}

/// Before a call is made again.
pub(super) async fn pause(tries: u32) {
    let most = 10_u64 << tries.min(5);
    tokio::time::sleep(Duration::from_millis(rand::random_range(1..most))).await;
}

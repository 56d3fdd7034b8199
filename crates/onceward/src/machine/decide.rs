//! What a request is answered, given what the store found.

use std::time::Duration;

use crate::{
    clock::Timestamp,
    record::{Lease, State},
    reply::{Reply, ReplyBody},
    store::{Ask, Reservation},
};

/// What to do with a request. Made by [`decide`] and nowhere else.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// Run the handler.
    Execute(Lease),
    /// Accepted for later.
    Accepted,
    /// Send the stored reply again.
    Replay {
        /// The stored reply.
        reply: Reply,
        /// When it will be gone.
        expires_at: Timestamp,
        /// Which use of the key it belongs to.
        generation: u32,
    },
    /// Answer without executing.
    Refuse(Refusal),
}

/// Why a request is answered without executing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key was used for another request.
    Mismatch,
    /// An attempt is at work, or will be.
    InProgress {
        /// At work, or waiting to be begun.
        state: State,
        /// When asking again makes sense.
        retry_after: Duration,
    },
    /// May have acted; nobody knows yet.
    OutcomeUnknown,
    /// Retention is over, and a tombstone remembers.
    Expired {
        /// The status of the reply that is gone.
        status: Option<http::StatusCode>,
    },
    /// It completed with this status, and its body was not kept.
    ReplyNotStored {
        /// The status of the reply.
        status: http::StatusCode,
    },
    /// The key is new, and this caller may only look.
    NotTaken,
}

/// Turns what the store found into what happens. The mismatch check comes first, in every state.
pub fn decide(reservation: Reservation, ask: &Ask, now: Timestamp) -> Decision {
    let record = match reservation {
        Reservation::Granted { lease, .. } => return Decision::Execute(lease),
        Reservation::Accepted { .. } => return Decision::Accepted,
        Reservation::Free => return Decision::Refuse(Refusal::NotTaken),
        Reservation::Completed(found) if found.fingerprint != ask.fingerprint => {
            return Decision::Refuse(Refusal::Mismatch);
        }
        Reservation::Completed(found) => {
            return replay(found.reply, found.expires_at, found.generation);
        }
        Reservation::Occupied { record, .. } => record,
    };
    if record.fingerprint != ask.fingerprint {
        return Decision::Refuse(Refusal::Mismatch);
    }
    match (record.state, record.reply) {
        (State::Completed, Some(reply)) => replay(reply, record.expires_at, record.generation),
        (State::Expired, gone) => {
            let status = gone.map(|reply| reply.status);
            Decision::Refuse(Refusal::Expired { status })
        }
        (State::Unknown, _) => Decision::Refuse(Refusal::OutcomeUnknown),
        // A completed record without a reply would be damaged; stores refuse to load one.
        (State::Completed | State::Pending | State::InProgress | State::FailedRetryable, _) => {
            let retry_after = record.lease_until.since(now).clamp(SOONEST, LATEST);
            Decision::Refuse(Refusal::InProgress { state: record.state, retry_after })
        }
    }
}

fn replay(reply: Reply, expires_at: Timestamp, generation: u32) -> Decision {
    match reply.body {
        ReplyBody::Stored(_) => Decision::Replay { reply, expires_at, generation },
        ReplyBody::NotStored => Decision::Refuse(Refusal::ReplyNotStored { status: reply.status }),
    }
}

/// Bounds of the advice to come back: a lease says how long an attempt may be silent, not how long
/// it takes, so that most are done long before it ends.
const SOONEST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(5);

//! Data in, data out: every arrow of the diagram, and the arrows that are not there.

use super::*;
use crate::{
    fingerprint::Fingerprint,
    key::Key,
    record::{AttemptId, RecordId},
    reply::ReplyBody,
    scope::Scope,
    store::{Claim, Proof, Resolution, Resolve, Resolved},
};

mod arrows;
mod clocks;
mod decisions;
mod guards;
mod leases;
mod provider;
mod queue;
mod reconcile;
mod resolutions;
mod steps;
mod table;

const A: AttemptId = AttemptId::from_bytes([0xa; 16]);
const B: AttemptId = AttemptId::from_bytes([0xb; 16]);

const LEASE: u64 = 60;
const MAX_EXECUTION: u64 = 300;
const RETENTION: u64 = 86_400;
const TOMBSTONE: u64 = 30 * 86_400;

/// When the sample records of [`record_in`] came to rest.
const RESTED: u64 = 10;

/// A time in seconds after the sample records were made.
fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(1_000_000_000_000_000).plus(Duration::from_secs(seconds))
}

fn fingerprint(of: u8) -> Fingerprint {
    Fingerprint::from_stored(1, [of; 32])
}

/// A request by attempt A; tests change what they are about.
fn ask() -> Ask {
    Ask {
        id: RecordId {
            scope: Scope::new("tenant").expect("a scope"),
            key: Key::new("a key of sixteen").expect("a key"),
        },
        fingerprint: fingerprint(1),
        attempt: A,
        mode: Mode::Execute,
        lease: Duration::from_secs(LEASE),
        max_execution: Duration::from_secs(MAX_EXECUTION),
        retention: Duration::from_secs(RETENTION),
        tombstone: Duration::from_secs(TOMBSTONE),
        expired_runs_again: false,
        effects: Effects::External,
        route: "pay".into(),
        method: "POST".into(),
        path: "/payments".into(),
        request: None,
        queued_for: Duration::from_secs(86_400),
    }
}

/// The same request again: what a retry is to the machine.
fn retry() -> Ask {
    Ask { attempt: B, ..ask() }
}

/// A claim of that by attempt B.
fn wanted() -> Claim {
    let Ask { id, lease, max_execution, effects, .. } = ask();
    Claim { id, attempt: B, lease, max_execution, effects, fence: None }
}

fn another_request() -> Ask {
    Ask { fingerprint: fingerprint(2), ..retry() }
}

fn reply(body: &'static str) -> Reply {
    Reply {
        status: http::StatusCode::CREATED,
        headers: vec![],
        body: ReplyBody::Stored(body.into()),
        schema_version: None,
    }
}

fn lease(record: &Record) -> Lease {
    lease_of(record)
}

/// The record a step writes.
fn put<A: std::fmt::Debug>(step: Step<A>) -> Record {
    match step.change {
        Change::Put(record) => *record,
        other => panic!("expected a changed record, found {other:?} and {:?}", step.answer),
    }
}

/// What a reserve granted: the record it wrote, the lease and why it was free.
fn granted(step: Step<Reservation>) -> (Record, Lease, Found) {
    let Change::Put(record) = step.change else { panic!("expected a grant, found {step:?}") };
    let Reservation::Granted { lease, found } = step.answer else {
        panic!("expected a grant, found {:?}", step.answer)
    };
    (*record, lease, found)
}

/// What was in the way of a reserve that changed nothing.
fn occupied(step: Step<Reservation>) -> Record {
    assert_eq!(step.change, Change::Keep, "a refused reserve must change nothing");
    assert_eq!(step.audit, None, "a refused reserve leaves no trace");
    match step.answer {
        Reservation::Occupied { record, lease_ran_out: false } => *record,
        other => panic!("expected a record in the way, found {other:?}"),
    }
}

/// A record in the state, made by attempt A with the given request at second 0, at rest since
/// second 10.
fn record_of(ask: &Ask, state: State) -> Record {
    let in_progress = put(reserve(None, &Ask { mode: Mode::Execute, ..ask.clone() }, at(0)));
    let after =
        |what: Write| put(super::write(Some(&in_progress), &lease(&in_progress), what, at(RESTED)));
    match state {
        State::Pending => put(reserve(None, &Ask { mode: Mode::Accept, ..ask.clone() }, at(0))),
        State::InProgress => in_progress,
        State::Completed => after(Write::Complete(reply("done"))),
        State::FailedRetryable => after(Write::Release("not_sent".into())),
        State::Unknown => after(Write::MarkUnknown("timeout".into())),
        State::Expired => {
            match reap(&after(Write::Complete(reply("done"))), at(RESTED + RETENTION)) {
                Change::Put(record) => *record,
                other => panic!("expected a tombstone, found {other:?}"),
            }
        }
    }
}

pub(crate) fn record_in(state: State) -> Record {
    let record = record_of(&ask(), state);
    assert_eq!(record.state, state);
    record
}

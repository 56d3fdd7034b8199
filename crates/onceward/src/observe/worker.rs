//! What workers did.

use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

use super::{RECONCILE_SCHEDULED, TTL_PRUNED, ZOMBIE_KEY, count};
use crate::{clock::Timestamp, record::State, store::Reaped};

/// What is told of workers, beside the counters that every process has.
pub const WORKER_METRICS: [(&str, &str); 6] = [
    (LAST_RUN, "when a worker last came to the end of a run, or was started"),
    (RUN_DURATION, "how long the last run of a worker took"),
    (ERRORS, "runs of a worker that failed"),
    (SWEPT, "records whose lease ran out, by the state they were moved to"),
    (REAPED, "records past retention that became tombstones"),
    (PURGED, "what is gone for good: records, audit records, delivered messages"),
];

const LAST_RUN: &str = "onceward_worker_last_run_timestamp_seconds";
const RUN_DURATION: &str = "onceward_worker_run_duration_seconds";
const ERRORS: &str = "onceward_worker_error_total";
const SWEPT: &str = "onceward_swept_total";
const REAPED: &str = "onceward_reaped_total";
const PURGED: &str = "onceward_purged_total";

/// Makes what a worker tells appear at 0. Its last run is for now the time it was started: a worker
/// that never gets to the end of a run looks like one that has stopped.
pub(crate) fn worker_started(worker: &'static str, now: Timestamp) {
    for (name, description) in WORKER_METRICS {
        match name {
            LAST_RUN | RUN_DURATION => describe_gauge!(name, Unit::Seconds, description),
            _ => describe_counter!(name, Unit::Count, description),
        }
    }
    gauge!(LAST_RUN, "worker" => worker).set(seconds(now));
    gauge!(RUN_DURATION, "worker" => worker).set(0.0);
    counter!(ERRORS, "worker" => worker).increment(0);
    for state in [State::Unknown, State::FailedRetryable, State::Pending] {
        counter!(SWEPT, "state" => state.name()).increment(0);
    }
    counter!(REAPED).increment(0);
    for what in ["record", "audit", "message"] {
        purged(what, 0);
    }
}

pub(crate) fn worker_ran(worker: &'static str, now: Timestamp, took: Duration) {
    gauge!(LAST_RUN, "worker" => worker).set(seconds(now));
    gauge!(RUN_DURATION, "worker" => worker).set(took.as_secs_f64());
}

pub(crate) fn worker_failed(worker: &'static str) {
    counter!(ERRORS, "worker" => worker).increment(1);
}

pub(crate) fn swept(state: State, route: &str) {
    counter!(SWEPT, "state" => state.name()).increment(1);
    count(ZOMBIE_KEY, route);
    if state == State::Unknown {
        count(RECONCILE_SCHEDULED, route);
    }
}

pub(crate) fn reaped(reaped: Reaped) {
    counter!(REAPED).increment(u64::from(reaped.expired));
    purged("record", reaped.purged);
    // Which routes they came by is not known any more.
    counter!(TTL_PRUNED, "route" => "").increment(u64::from(reaped.expired + reaped.purged));
}

pub(crate) fn purged(what: &'static str, number: u32) {
    counter!(PURGED, "what" => what).increment(u64::from(number));
}

fn seconds(at: Timestamp) -> f64 {
    at.as_micros() as f64 / 1e6
}

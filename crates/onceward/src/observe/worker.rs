//! What workers did.

use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

use super::{
    RECONCILE_SCHEDULED, TTL_PRUNED, WORKER_ERRORS as ERRORS,
    WORKER_FAILED_IN_A_ROW as FAILED_IN_A_ROW, WORKER_LAST_RUN as LAST_RUN,
    WORKER_PERIOD as PERIOD, ZOMBIE_KEY, count, worker_begins, worker_was_there,
};
use crate::{
    clock::Timestamp,
    engine::Took,
    record::State,
    store::{Reaped, list::Stats},
};

/// What is told of workers, beside the counters that every process has. Of a dispatcher and a reconciler
/// only when they looked for work, how often they are to, and what failed; so of a relay.
pub const WORKER_METRICS: [(&str, &str); 17] = [
    (LAST_RUN, "when a worker last came to the end of a run, or was started"),
    (RUN_DURATION, "how long the last run of a worker took"),
    (ERRORS, "runs of a worker that failed"),
    (FAILED_IN_A_ROW, "runs of a worker that failed since the last one that did not"),
    (PERIOD, "how often a worker is to run"),
    (SWEPT, "records whose lease ran out, by the state they were moved to"),
    (REAPED, "records past retention that became tombstones"),
    (PURGED, "what is gone for good: records, audit records, delivered messages"),
    (RECORDS, "records in each state, estimated when there are many"),
    (UNKNOWN_OLDEST, "how long ago the oldest attempt was begun whose outcome is unknown"),
    (IN_PROGRESS_OLDEST, "how long ago the oldest attempt was begun that is in progress"),
    (PENDING_OLDEST, "how long ago the oldest record was created that waits to be begun"),
    (UNKNOWN_DEAD_LETTERS, "unknown outcomes that nobody asks about any more, up to 1000"),
    (OUTBOX_LAG, "for how long the message has been due that has been so for longest"),
    (OUTBOX_DEAD_LETTERS, "messages that automation gave up on, counted up to 1000"),
    (OPERATION_QUANTILE, "what half, and all but one in a hundred, of the handlers took at most"),
    (LEASE_TOO_SHORT, "1 where a lease is under three times what the slowest handlers take"),
];

const RUN_DURATION: &str = "onceward_worker_run_duration_seconds";
const SWEPT: &str = "onceward_swept_total";
const REAPED: &str = "onceward_reaped_total";
const PURGED: &str = "onceward_purged_total";
const RECORDS: &str = "onceward_records";
const UNKNOWN_OLDEST: &str = "onceward_unknown_oldest_seconds";
const IN_PROGRESS_OLDEST: &str = "onceward_in_progress_oldest_seconds";
const PENDING_OLDEST: &str = "onceward_pending_oldest_seconds";
const UNKNOWN_DEAD_LETTERS: &str = "onceward_unknown_dead_letters";
const OUTBOX_LAG: &str = "onceward_outbox_lag_seconds";
const OUTBOX_DEAD_LETTERS: &str = "onceward_outbox_dead_letters";
const OPERATION_QUANTILE: &str = "onceward_operation_quantile_seconds";
const LEASE_TOO_SHORT: &str = "onceward_lease_too_short";

/// Makes what a worker tells appear at 0. Its last run is for now the time at which it was `first`
/// started: a worker that never gets to the end of a run looks like one that has stopped, also if it is
/// started again and again.
pub(crate) fn worker_started(worker: &'static str, every: Duration, first: Option<Timestamp>) {
    for (name, description) in WORKER_METRICS {
        match name {
            ERRORS | SWEPT | REAPED | PURGED => {
                describe_counter!(name, Unit::Count, description);
            }
            RECORDS | UNKNOWN_DEAD_LETTERS | OUTBOX_DEAD_LETTERS | LEASE_TOO_SHORT
            | FAILED_IN_A_ROW => {
                describe_gauge!(name, Unit::Count, description);
            }
            _ => describe_gauge!(name, Unit::Seconds, description),
        }
    }
    worker_begins(worker, every);
    if let Some(now) = first {
        worker_was_there(worker, now);
        gauge!(RUN_DURATION, "worker" => worker).set(0.0);
    }
    for state in [State::Unknown, State::FailedRetryable, State::Pending] {
        counter!(SWEPT, "state" => state.name()).increment(0);
    }
    counter!(REAPED).increment(0);
    for what in ["record", "audit", "message"] {
        purged(what, 0);
    }
}

pub(crate) fn worker_ran(worker: &'static str, now: Timestamp, took: Duration) {
    worker_was_there(worker, now);
    gauge!(RUN_DURATION, "worker" => worker).set(took.as_secs_f64());
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

/// What a look at the store found. An age is 0 where there is nothing of that age.
pub(crate) fn surveyed(stats: &Stats, dead_letters: usize, now: Timestamp) {
    gauge!(UNKNOWN_DEAD_LETTERS).set(dead_letters as f64);
    for state in State::ALL {
        let records = stats.of(state).records;
        gauge!(RECORDS, "state" => state.name()).set(records as f64);
    }
    for (name, oldest) in [
        (UNKNOWN_OLDEST, stats.oldest_unknown),
        (IN_PROGRESS_OLDEST, stats.oldest_in_progress),
        (PENDING_OLDEST, stats.oldest_pending),
    ] {
        let age = oldest.map_or(Duration::ZERO, |oldest| now.since(oldest));
        gauge!(name).set(age.as_secs_f64());
    }
}

pub(crate) fn outbox_surveyed(lag: Duration, dead_letters: u32) {
    gauge!(OUTBOX_LAG).set(lag.as_secs_f64());
    gauge!(OUTBOX_DEAD_LETTERS).set(f64::from(dead_letters));
}

pub(crate) fn took(took: &Took) {
    for (quantile, value) in [("0.5", took.p50), ("0.99", took.p99)] {
        let route = took.route.to_string();
        gauge!(OPERATION_QUANTILE, "route" => route, "quantile" => quantile)
            .set(value.as_secs_f64());
    }
    let short = if took.lease_is_short() { 1.0 } else { 0.0 };
    gauge!(LEASE_TOO_SHORT, "route" => took.route.to_string()).set(short);
}

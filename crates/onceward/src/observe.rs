//! What can be seen from outside: metric names and where they are counted. No keys, bodies or
//! credentials, and no label that a client can choose.

use std::{cell::RefCell, sync::Arc, time::Duration};

use http::StatusCode;
use metrics::{
    Label, Level, Metadata, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, with_recorder,
};
use tracing::info;

use crate::{
    key::Key,
    machine,
    store::{Resolution, Resolve, Resolved},
};

/// The twelve counters that every Onceward process has from its start.
pub const COUNTERS: [(&str, &str); 12] = [
    (RESERVE_CREATED, "keys reserved for the first time"),
    (RESERVE_REPLAY, "stored replies sent again"),
    (RESERVE_IN_PROGRESS, "requests that met an attempt at work"),
    (RESERVE_KEY_MISUSE, "keys reused for another request"),
    (RESERVE_FAILED_RETRY, "keys reserved again after an attempt that did not act"),
    (RESERVE_UNKNOWN, "requests that met an unknown outcome"),
    (STORE_ERROR, "store calls that failed"),
    (ZOMBIE_KEY, "leases that ran out"),
    (TTL_PRUNED, "records past retention that were dropped"),
    (RECONCILE_SCHEDULED, "outcomes that became unknown and wait for reconciliation"),
    (RECONCILE_RESOLVED, "unknown outcomes that were resolved"),
    (RECONCILE_FAILED, "unknown outcomes that were given up on"),
];

pub(crate) const RESERVE_CREATED: &str = "api_idempotency_reserve_created_total";
pub(crate) const RESERVE_REPLAY: &str = "api_idempotency_reserve_replay_total";
pub(crate) const RESERVE_IN_PROGRESS: &str = "api_idempotency_reserve_in_progress_total";
pub(crate) const RESERVE_KEY_MISUSE: &str = "api_idempotency_reserve_key_misuse_total";
pub(crate) const RESERVE_FAILED_RETRY: &str = "api_idempotency_reserve_failed_retry_total";
pub(crate) const RESERVE_UNKNOWN: &str = "api_idempotency_reserve_unknown_total";
pub(crate) const STORE_ERROR: &str = "api_idempotency_store_error_total";
pub(crate) const ZOMBIE_KEY: &str = "api_idempotency_zombie_key_total";
pub(crate) const TTL_PRUNED: &str = "api_idempotency_ttl_pruned_total";
pub(crate) const RECONCILE_SCHEDULED: &str = "api_idempotency_reconcile_scheduled_total";
pub(crate) const RECONCILE_RESOLVED: &str = "api_idempotency_reconcile_resolved_total";
pub(crate) const RECONCILE_FAILED: &str = "api_idempotency_reconcile_failed_total";

/// How long handlers take, per route: what a lease should be sized by.
pub const OPERATION_DURATION: &str = "api_idempotency_operation_duration_seconds";

const EMAIL_AS_KEY: &str = "onceward_key_email_total";
const FENCED_WRITE: &str = "onceward_fenced_write_total";
const EXPIRED_RUN_AGAIN: &str = "onceward_expired_run_again_total";
const RATE_LIMITED: &str = "onceward_rate_limited_total";
const INCIDENT: &str = "onceward_incident_total";
const GIVEN_UP: &str = "onceward_queued_given_up_total";
const BREAKER_OPEN: &str = "onceward_breaker_open";
const BREAKER_OPENED: &str = "onceward_breaker_opened_total";
const STORE_REGRESSED: &str = "onceward_store_regressed";
const STORE_REGRESSIONS: &str = "onceward_store_regressions_total";
const STORE_EPOCH: &str = "onceward_store_epoch";
const WORKER_ERRORS: &str = "onceward_worker_error_total";
const WORKER_FAILED_IN_A_ROW: &str = "onceward_worker_failed_in_a_row";
const WORKER_LAST_RUN: &str = "onceward_worker_last_run_timestamp_seconds";
const WORKER_PERIOD: &str = "onceward_worker_period_seconds";

/// Describes all metrics and makes the counters appear at 0, for each of these routes. An engine does
/// it when it is built; do it again if the recorder is installed later.
pub fn register<'a>(routes: impl IntoIterator<Item = &'a str>) {
    for (name, description) in COUNTERS {
        describe_counter!(name, Unit::Count, description);
    }
    describe_histogram!(OPERATION_DURATION, Unit::Seconds, "time a handler took");
    describe_counter!(EMAIL_AS_KEY, Unit::Count, "keys that were e-mail addresses");
    describe_counter!(FENCED_WRITE, Unit::Count, "writes of attempts that had lost their right");
    describe_counter!(EXPIRED_RUN_AGAIN, Unit::Count, "expired keys that ran as a new generation");
    describe_counter!(RATE_LIMITED, Unit::Count, "requests over a limit of their scope");
    describe_counter!(INCIDENT, Unit::Count, "results that contradict the one that is stored");
    describe_counter!(GIVEN_UP, Unit::Count, "accepted requests that were not executed in time");
    describe_gauge!(BREAKER_OPEN, Unit::Count, "1 while requests are refused: the store is down");
    describe_counter!(BREAKER_OPENED, Unit::Count, "times the store was found to be down");
    describe_gauge!(STORE_REGRESSED, Unit::Count, "1 while keys are refused: the store lost data");
    describe_counter!(
        STORE_REGRESSIONS,
        Unit::Count,
        "times the store was found to have lost data"
    );
    describe_gauge!(STORE_EPOCH, Unit::Count, "changes when the store may be another one");
    counter!(EMAIL_AS_KEY).increment(0);
    counter!(STORE_REGRESSIONS).increment(0);
    gauge!(STORE_REGRESSED).increment(0.0);
    gauge!(STORE_EPOCH).increment(0.0);
    counter!(BREAKER_OPENED).increment(0);
    gauge!(BREAKER_OPEN).increment(0.0);
    for route in routes {
        for name in COUNTERS.map(|(name, _)| name).into_iter().chain([
            FENCED_WRITE,
            EXPIRED_RUN_AGAIN,
            GIVEN_UP,
            INCIDENT,
        ]) {
            counter!(name, "route" => route.to_owned()).increment(0);
        }
        for limit in ["creations", "active", "lookups"] {
            counter!(RATE_LIMITED, "route" => route.to_owned(), "limit" => limit).increment(0);
        }
    }
}

pub(crate) fn rate_limited(route: &str, limit: &'static str) {
    counter!(RATE_LIMITED, "route" => route.to_owned(), "limit" => limit).increment(1);
}

pub(crate) fn breaker_is_open(is_open: bool) {
    gauge!(BREAKER_OPEN).set(if is_open { 1.0 } else { 0.0 });
    if is_open {
        counter!(BREAKER_OPENED).increment(1);
    }
}

pub(crate) fn store_is_regressed(is_regressed: bool) {
    gauge!(STORE_REGRESSED).set(if is_regressed { 1.0 } else { 0.0 });
}

/// A beat was answered by the store of this epoch.
pub(crate) fn store_epoch(epoch: u64) {
    gauge!(STORE_EPOCH).set(epoch as f64);
}

pub(crate) fn store_regressed() {
    counter!(STORE_REGRESSIONS).increment(1);
}

pub(crate) fn count(name: &'static str, route: &str) {
    counter!(name, "route" => route.to_owned()).increment(1);
}

/// The same for what is counted with nearly every request.
pub(crate) fn count_often(name: &'static str, route: &Arc<str>) {
    with_key(name, route, |key| {
        with_recorder(|recorder| recorder.register_counter(key, &METADATA)).increment(1);
    });
}

static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// A thread remembers no more keys of metrics than this.
const KEYS_MAX: usize = 64;

/// Calls a function with the key of a route's metric. Each thread makes it once: every request counts
/// something. What is counted is asked for anew, since the recorder may be another one by now.
fn with_key(name: &'static str, route: &Arc<str>, then: impl FnOnce(&metrics::Key)) {
    type Known = (&'static str, Arc<str>, metrics::Key);
    thread_local! {
        static KEYS: RefCell<Vec<Known>> = const { RefCell::new(Vec::new()) };
    }
    let is_meant = |(of, about, _): &&Known| std::ptr::eq(*of, name) && Arc::ptr_eq(about, route);
    KEYS.with(|keys| {
        if !keys.borrow().iter().any(|known| is_meant(&known)) {
            let key = metrics::Key::from_parts(name, vec![Label::new("route", route.to_string())]);
            let mut keys = keys.borrow_mut();
            if keys.len() >= KEYS_MAX {
                keys.clear();
            }
            keys.push((name, Arc::clone(route), key));
        }
        if let Some((_, _, key)) = keys.borrow().iter().find(is_meant) {
            then(key);
        }
    });
}

pub(crate) fn email_as_key() {
    counter!(EMAIL_AS_KEY).increment(1);
}

pub(crate) fn fenced_write(route: &str) {
    counter!(FENCED_WRITE, "route" => route.to_owned()).increment(1);
}

pub(crate) fn expired_run_again(route: &str) {
    counter!(EXPIRED_RUN_AGAIN, "route" => route.to_owned()).increment(1);
}

/// Counts what came of a resolve, whoever asked for it: an outcome that is known now, or an incident.
/// Returns whether it is one.
pub fn resolved(asked: &Resolve, answer: &Resolved) -> bool {
    let (Resolved::Applied(record) | Resolved::Refused(record)) = answer else { return false };
    let is_incident = machine::is_contradiction(asked, answer);
    let is_applied = matches!(answer, Resolved::Applied(_));
    match &asked.resolution {
        _ if is_incident => incident(&record.route),
        Resolution::Complete(_)
        | Resolution::Executed { .. }
        | Resolution::Release(_)
        | Resolution::Absent { .. }
            if is_applied =>
        {
            count(RECONCILE_RESOLVED, &record.route);
        }
        _ => {}
    }
    is_incident
}

/// Two results for one generation do not agree.
pub(crate) fn incident(route: &str) {
    counter!(INCIDENT, "route" => route.to_owned()).increment(1);
}

pub(crate) fn given_up(route: &str) {
    counter!(GIVEN_UP, "route" => route.to_owned()).increment(1);
}

/// A worker is to look for work this often. It has not done so yet, or not since an earlier start.
pub(crate) fn worker_begins(worker: &'static str, every: Duration) {
    counter!(WORKER_ERRORS, "worker" => worker).increment(0);
    gauge!(WORKER_FAILED_IN_A_ROW, "worker" => worker).set(0.0);
    gauge!(WORKER_PERIOD, "worker" => worker).set(every.as_secs_f64());
    gauge!(WORKER_LAST_RUN, "worker" => worker).increment(0.0);
}

/// It has come to the end of a run, or was started for the first time.
pub(crate) fn worker_was_there(worker: &'static str, now: crate::clock::Timestamp) {
    gauge!(WORKER_LAST_RUN, "worker" => worker).set(now.as_micros() as f64 / 1e6);
    gauge!(WORKER_FAILED_IN_A_ROW, "worker" => worker).set(0.0);
}

/// One more run failed, the so manyth since the last one that did not.
pub(crate) fn worker_failed(worker: &'static str, in_a_row: u32) {
    counter!(WORKER_ERRORS, "worker" => worker).increment(1);
    gauge!(WORKER_FAILED_IN_A_ROW, "worker" => worker).set(f64::from(in_a_row));
}

pub(crate) fn operation_took(route: &Arc<str>, duration: Duration) {
    with_key(OPERATION_DURATION, route, |key| {
        let took = with_recorder(|recorder| recorder.register_histogram(key, &METADATA));
        took.record(duration.as_secs_f64());
    });
}

/// One decision about a request, as it is logged: no key, no scope, nothing of the request or reply.
pub(crate) struct Decided<'a> {
    pub(crate) what: &'static str,
    pub(crate) route: &'a str,
    pub(crate) key: &'a Key,
    pub(crate) status: StatusCode,
    pub(crate) outcome: &'a str,
    pub(crate) duration: Duration,
    pub(crate) attempt: Option<u32>,
    pub(crate) generation: Option<u32>,
}

/// Logs the one line of a request that was run, under the target `onceward::decision`.
pub(crate) fn decided(decided: &Decided<'_>) {
    info!(
        target: DECISION,
        parent: None,
        route = decided.route,
        outcome = decided.outcome,
        status = decided.status.as_u16(),
        duration_ms = decided.duration.as_micros() as f64 / 1000.0,
        attempt = decided.attempt,
        generation = decided.generation,
        key.digest = decided.key.digest(),
        "{}",
        decided.what
    );
}

/// Logs the one line of a request that was refused before it could be run.
pub fn refused(route: &str, status: StatusCode, outcome: &str) {
    let status = status.as_u16();
    info!(target: DECISION, parent: None, route, outcome, status, "decision");
}

#[cfg(any(feature = "worker", feature = "testing"))]
pub use worker::WORKER_METRICS;
#[cfg(any(feature = "worker", feature = "testing"))]
pub(crate) use worker::{
    outbox_surveyed, purged, reaped, surveyed, swept, took, worker_ran, worker_started,
};

#[cfg(any(feature = "worker", feature = "testing"))]
mod worker;

/// Where decisions are logged.
pub const DECISION: &str = "onceward::decision";

/// The counters of the outbox, for each sink.
pub const OUTBOX_COUNTERS: [(&str, &str); 6] = [
    (OUTBOX_DELIVERED, "messages that were delivered"),
    (OUTBOX_RETRIED, "deliveries that are to be repeated"),
    (OUTBOX_DEAD, "messages that became dead letters"),
    (OUTBOX_AMBIGUOUS, "deliveries that may have acted"),
    (OUTBOX_SUPERSEDED, "deliveries that ended after their message was claimed anew"),
    (OUTBOX_STORE_ERROR, "store calls of the relay that failed"),
];

const OUTBOX_DELIVERED: &str = "onceward_outbox_delivered_total";
const OUTBOX_RETRIED: &str = "onceward_outbox_retried_total";
const OUTBOX_DEAD: &str = "onceward_outbox_dead_total";
const OUTBOX_AMBIGUOUS: &str = "onceward_outbox_ambiguous_total";
const OUTBOX_SUPERSEDED: &str = "onceward_outbox_superseded_total";
const OUTBOX_STORE_ERROR: &str = "onceward_outbox_store_error_total";

/// Describes the counters of the outbox and makes them appear at 0, for each of these sinks. A relay
/// does it when it begins.
pub(crate) fn register_sinks<'a>(sinks: impl IntoIterator<Item = &'a str>) {
    for (name, description) in OUTBOX_COUNTERS {
        describe_counter!(name, Unit::Count, description);
    }
    for sink in sinks {
        for (name, _) in OUTBOX_COUNTERS {
            counter!(name, "sink" => sink.to_owned()).increment(0);
        }
    }
}

pub(crate) fn outbox_delivered(sink: &str) {
    counter!(OUTBOX_DELIVERED, "sink" => sink.to_owned()).increment(1);
}

pub(crate) fn outbox_retried(sink: &str) {
    counter!(OUTBOX_RETRIED, "sink" => sink.to_owned()).increment(1);
}

pub(crate) fn outbox_dead(sink: &str) {
    counter!(OUTBOX_DEAD, "sink" => sink.to_owned()).increment(1);
}

pub(crate) fn outbox_ambiguous(sink: &str) {
    counter!(OUTBOX_AMBIGUOUS, "sink" => sink.to_owned()).increment(1);
}

pub(crate) fn outbox_superseded(sink: &str) {
    counter!(OUTBOX_SUPERSEDED, "sink" => sink.to_owned()).increment(1);
}

pub(crate) fn outbox_store_error(sink: &str) {
    counter!(OUTBOX_STORE_ERROR, "sink" => sink.to_owned()).increment(1);
}

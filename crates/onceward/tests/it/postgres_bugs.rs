//! Deliberate bugs in the SQL of the PostgreSQL store are found by the store suite.

use std::sync::Arc;

use onceward::{
    PgOptions, PgStore,
    clock::ManualClock,
    testing::{self, suite},
};
use onceward_testbed::Postgres;
use sqlx::{Connection as _, PgConnection};

use crate::{
    bugs::{found_by, found_in_a_race_by},
    postgres_batch_trouble::strangers_are_renewed_beside_a_locked_record,
    postgres_home::{Home, new_schema, one, run},
};

/// A change to the text of one function, or a statement.
#[derive(Clone, Copy)]
pub(crate) enum Bug {
    /// In this function, these texts by those.
    In(&'static str, &'static [(&'static str, &'static str)]),
    /// There may be two rows for one key, and whoever saw none inserts one.
    CheckThenInsert,
}

const NO_FENCE: Bug = Bug::In("give_up", &[(" AND r.fence = a.fence", "")]);
const NO_ATTEMPT: Bug = Bug::In("give_up", &[(" AND r.attempt = a.attempt", "")]);
const ALL_WITHOUT_FENCE: Bug = Bug::In("complete_all", &[(" AND r.fence = fences[a.n]", "")]);
const ALL_WITHOUT_ATTEMPT: Bug =
    Bug::In("complete_all", &[(" AND r.attempt = complete_all.attempts[a.n]", "")]);
const NO_STATE: Bug = Bug::In("give_up", &[("AND r.state = 'in_progress'", "")]);
const COMPLETES_WITHOUT_FENCE: Bug =
    Bug::In("complete_one", &[(" AND r.fence = complete_one.fence", "")]);
const COMPLETES_WITHOUT_ATTEMPT: Bug =
    Bug::In("complete_one", &[("AND r.attempt = complete_one.attempt ", "")]);
const COMPLETES_ANY_STATE: Bug = Bug::In("complete_one", &[("AND r.state = 'in_progress'", "")]);
const RENEWS_WITHOUT_FENCE: Bug = Bug::In("renew", &[("AND r.fence = a.fence", "")]);
const RENEWS_WHAT_IS_LOCKED: Bug = Bug::In("renew", &[(" SKIP LOCKED", "")]);
const OVERWRITES: Bug = Bug::In(
    "change",
    &[
        ("FOR NO KEY UPDATE", ""),
        ("IF old.record_id IS NOT NULL\n       AND (old", "IF false AND (old"),
    ],
);
const FORGETS_THE_FINGERPRINT: Bug = Bug::In(
    "reserve",
    &[("r.fingerprint <> fingerprints[a.n] OR r.recipe <> reserve.recipe", "false")],
);
const TAKES_WORK_AT_REST: Bug = Bug::In("step", &[("OR r.state <> 'in_progress'", "")]);
const SWEEPS_LIVE_LEASES: Bug = Bug::In(
    "sweep",
    &[
        ("l.check_at <= t", "true"),
        ("AND r.lease_until <= t\n              AND (NOT", "AND (NOT"),
        ("\n          AND r.lease_until <= t", ""),
    ],
);
const SWEEPS_EVERYTHING_TO_RETRYABLE: Bug = Bug::In(
    "sweep",
    &[("r.effects IN ('local', 'none') AND r.open_effect IS NULL AS harmless", "true AS harmless")],
);
const REAPS_WHAT_IS_NOT_TERMINAL: Bug = Bug::In(
    "reap",
    &[
        ("r.state IN ('completed', 'failed_retryable', 'expired')", "true"),
        ("r.state IN ('completed', 'failed_retryable')\n", "true\n"),
    ],
);
const REAPS_TOO_EARLY: Bug =
    Bug::In("reap", &[("r.reap_at <= t", "true"), ("AND r.expires_at <= t", "")]);

/// Those who wait are told of nothing, of everything, or of what waits for a worker.
const TELLS: [Bug; 3] = [
    Bug::In("settled", &[("WHERE coalesce(", "WHERE false AND coalesce(")]),
    Bug::In("settled", &[("WHERE coalesce(", "WHERE true OR coalesce(")]),
    Bug::In("settled", &[("r.state <> 'pending' AND ", "")]),
];

/// A store with a bug.
pub(crate) async fn broken(clock: ManualClock, bug: Option<Bug>) -> PgStore {
    let (url, schema) = (Postgres::shared().url("postgres"), new_schema());
    let options = PgOptions::new(&*url).schema(&*schema).clock(Arc::new(clock));
    let store = PgStore::connect(options).await.expect("a store");
    if let Some(bug) = bug {
        let mut connection = PgConnection::connect(&url).await.expect("a connection");
        put_in(&mut connection, &schema, bug).await;
    }
    store
}

/// Puts a bug into the functions of a schema.
async fn put_in(connection: &mut PgConnection, schema: &str, bug: Bug) {
    match bug {
        Bug::In(function, changes) => change(connection, schema, function, changes).await,
        Bug::CheckThenInsert => {
            run(
                connection,
                &format!(
                    "ALTER TABLE {schema}.records DROP CONSTRAINT records_scope_key_key; \
                     CREATE INDEX records_scope_key_key ON {schema}.records (scope, key)"
                ),
            )
            .await;
            let on_conflict = &[("ON CONFLICT (scope, key) DO NOTHING", "")];
            change(connection, schema, "reserve_one", on_conflict).await;
            change(connection, schema, "change", on_conflict).await;
        }
    }
}

pub(crate) async fn change(
    connection: &mut PgConnection,
    schema: &str,
    function: &str,
    changes: &[(&str, &str)],
) {
    let definition = format!(
        "SELECT pg_get_functiondef(p.oid) FROM pg_proc p \
         WHERE p.pronamespace = '{schema}'::regnamespace AND p.proname = '{function}'"
    );
    let mut definition: String = one(connection, &definition).await;
    for (from, to) in changes {
        assert!(definition.contains(from), "{function} has no {from:?}: {definition}");
        definition = definition.replace(from, to);
    }
    run(connection, &definition).await;
}

#[test]
fn a_write_that_does_not_look_at_the_fence_is_found() {
    found_by(broken, NO_FENCE, suite::writing::a_write_needs_its_attempt_and_its_fence);
}

#[test]
fn a_write_that_does_not_look_at_the_attempt_is_found() {
    found_by(broken, NO_ATTEMPT, suite::writing::a_write_needs_its_attempt_and_its_fence);
}

#[test]
fn a_write_that_does_not_look_at_the_state_is_found() {
    found_by(broken, NO_STATE, suite::writing::a_late_release_by_the_unknown_attempt_is_refused);
}

#[test]
fn replies_of_a_batch_that_do_not_look_at_fence_or_attempt_are_found() {
    for bug in [ALL_WITHOUT_FENCE, ALL_WITHOUT_ATTEMPT] {
        found_by(
            broken,
            bug,
            suite::writing::writes_that_come_together_need_their_attempts_and_fences,
        );
    }
}

#[test]
fn a_single_reply_that_does_not_look_at_fence_attempt_or_state_is_found() {
    for bug in [COMPLETES_WITHOUT_FENCE, COMPLETES_WITHOUT_ATTEMPT] {
        found_by(broken, bug, suite::writing::a_write_needs_its_attempt_and_its_fence);
    }
    found_by(
        broken,
        COMPLETES_ANY_STATE,
        suite::writing::a_late_complete_by_the_unknown_attempt_is_accepted_and_audited,
    );
}

#[test]
fn a_renewal_that_does_not_look_at_the_fence_is_found() {
    found_by(broken, RENEWS_WITHOUT_FENCE, suite::writing::a_write_needs_its_attempt_and_its_fence);
}

/// Its twin is beside the other batches that meet locks.
#[tokio::test]
async fn a_renewal_that_waits_for_whoever_has_a_record_locked_is_found() {
    let home = Home::new().await;
    put_in(&mut home.connection().await, &home.schema, RENEWS_WHAT_IS_LOCKED).await;
    let renewed = strangers_are_renewed_beside_a_locked_record(&home).await;
    assert!(!renewed, "the case does not see the bug");
}

#[test]
fn a_change_that_does_not_look_at_what_is_there_is_found() {
    found_in_a_race_by(
        broken,
        OVERWRITES,
        suite::racing::of_100_concurrent_reserves_of_a_free_record_exactly_one_is_granted,
    );
}

#[test]
fn a_check_before_an_insert_without_a_unique_key_is_found() {
    found_in_a_race_by(
        broken,
        Bug::CheckThenInsert,
        suite::racing::of_100_concurrent_reserves_exactly_one_is_granted,
    );
}

#[test]
fn a_reserve_that_does_not_look_at_the_fingerprint_is_answered_by_the_machine() {
    // What the batch lets through, the machine looks at: two nets, and both hold.
    testing::run(
        |clock| broken(clock, Some(FORGETS_THE_FINGERPRINT)),
        suite::reserving::another_request_never_gets_the_key_in_any_state,
    );
}

#[test]
fn a_step_on_work_at_rest_is_found() {
    found_by(broken, TAKES_WORK_AT_REST, suite::stepping::only_work_in_progress_advances);
}

#[test]
fn a_sweep_of_live_leases_is_found() {
    found_by(
        broken,
        SWEEPS_LIVE_LEASES,
        suite::leases::sweep_skips_live_leases_and_records_at_rest,
    );
}

#[test]
fn a_sweep_that_lets_everything_run_again_is_found() {
    found_by(
        broken,
        SWEEPS_EVERYTHING_TO_RETRYABLE,
        suite::leases::sweep_moves_records_on_by_their_effects,
    );
}

#[test]
fn a_reap_of_what_is_not_terminal_is_found() {
    found_by(
        broken,
        REAPS_WHAT_IS_NOT_TERMINAL,
        suite::expiring::reap_never_touches_a_record_that_is_not_terminal,
    );
}

#[test]
fn a_reap_before_retention_is_over_is_found() {
    found_by(broken, REAPS_TOO_EARLY, suite::expiring::retention_that_ends_exactly_now_is_over);
}

#[test]
fn a_store_that_does_not_tell_those_who_wait_of_what_is_done_is_found() {
    for bug in TELLS {
        found_by(broken, bug, suite::waiting::those_who_wait_are_told_of_what_nobody_is_at_work_on);
    }
}

//! Deliberate bugs in the SQL of the MySQL store are found by the store suite. The rules are the
//! machine's; the SQL has to see to it that it decides about what is there, alone.

use std::sync::Arc;

use onceward::{
    MySqlOptions, MySqlStore,
    clock::ManualClock,
    testing::{self, Fresh, suite},
};
use onceward_testbed::{CutProxy, MariaDb};

use crate::bugs::{found_by, found_in_a_race_by};

#[derive(Clone, Copy)]
enum Bug {
    /// This text arrives as that, in every statement.
    Text(&'static str, &'static str),
    /// There may be two rows for one key, and whoever saw none inserts one.
    CheckThenInsert,
}

/// What is decided about may have changed since: no better than a bare read.
const READS_WITHOUT_LOCKS: Bug = Bug::Text(" FOR UPDATE NOWAIT", "                  ");
/// Whoever saw no record overwrites the one that was made meanwhile.
const OVERWRITES: Bug =
    Bug::Text("INSERT INTO onceward_records (", "REPLACE INTO onceward_records(");
/// The sweeper decides about a record that its owner may be writing to.
const SWEEPS_WITHOUT_LOCKS: Bug = Bug::Text(" FOR UPDATE SKIP LOCKED", "                       ");
const WRITES_TO_NO_ROW: Bug = Bug::Text("WHERE record_id = ?", "WHERE record_id <>?");
const SWEEPS_LIVE_LEASES: Bug = Bug::Text("AND due_at <= ? AND", "AND ? <= due_at AND");
const SWEEPS_TOO_LATE: Bug = Bug::Text("AND due_at <= ? AND", "AND due_at < ?  AND");
const FORGETS_THE_KEY: Bug = Bug::Text("(scope = ? AND `key` = ?)", "(scope = ? AND `key`<>?) ");

/// A store with a bug.
async fn broken(clock: ManualClock, bug: Option<Bug>) -> Fresh {
    let server = MariaDb::shared();
    let database = server.create_database();
    let proxy = CutProxy::start(server.address());
    let url = server.url_through(proxy.address(), &database);
    let options = MySqlOptions::new(url).clock(Arc::new(clock));
    let store = MySqlStore::connect(options).await.expect("a store");
    match bug {
        None => {}
        Some(Bug::Text(from, to)) => proxy.replace(from.as_bytes(), to.as_bytes()),
        Some(Bug::CheckThenInsert) => {
            let index = "ALTER TABLE onceward_records DROP INDEX record_key, \
                         ADD INDEX record_key (scope, `key`)";
            server.sql(&database, index);
        }
    }
    Fresh::from(store).keeping(proxy)
}

#[test]
fn a_decision_about_rows_that_are_not_locked_is_found() {
    found_in_a_race_by(
        broken,
        READS_WITHOUT_LOCKS,
        suite::racing::of_100_concurrent_reserves_of_a_free_record_exactly_one_is_granted,
    );
}

#[test]
fn a_check_before_an_insert_without_a_unique_key_is_found_on_mariadb() {
    found_in_a_race_by(
        broken,
        Bug::CheckThenInsert,
        suite::racing::of_100_concurrent_reserves_exactly_one_is_granted,
    );
}

#[test]
fn an_insert_that_overwrites_is_found() {
    found_in_a_race_by(
        broken,
        OVERWRITES,
        suite::racing::of_100_concurrent_reserves_exactly_one_is_granted,
    );
}

#[test]
fn a_sweep_that_does_not_lock_is_found() {
    found_in_a_race_by(
        broken,
        SWEEPS_WITHOUT_LOCKS,
        suite::racing::concurrent_sweeps_move_each_record_once,
    );
}

#[test]
fn a_write_to_another_row_is_found() {
    found_by(broken, WRITES_TO_NO_ROW, suite::writing::completing_starts_retention);
}

#[test]
fn a_look_at_another_key_is_found() {
    found_by(broken, FORGETS_THE_KEY, suite::reserving::a_running_record_is_occupied);
}

#[test]
fn a_sweep_that_is_given_live_leases_is_told_by_the_machine_to_leave_them() {
    // Two nets, and both hold: nothing is moved that is alive.
    testing::run(
        |clock| broken(clock, Some(SWEEPS_LIVE_LEASES)),
        suite::leases::sweep_skips_live_leases_and_records_at_rest,
    );
}

#[test]
fn a_sweep_that_comes_too_late_is_found() {
    found_by(broken, SWEEPS_TOO_LATE, suite::leases::a_lease_that_ends_exactly_now_is_over);
}

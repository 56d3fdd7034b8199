//! Deliberate bugs in the SQL of the outbox on PostgreSQL are found by the outbox suite.

use std::panic::{AssertUnwindSafe, catch_unwind};

use onceward::testing::outbox::{self, OutboxHarness, claiming, settling, staging, tending};

use crate::postgres_bugs::{Bug, broken};

/// In this function, this text by that.
const fn bug(function: &'static str, change: &'static [(&'static str, &'static str)]) -> Bug {
    Bug::In(function, change)
}

/// The case fails on an outbox with the bug, in one of so many tries, and on no other.
fn found_in<Ran>(tries: u32, bug: Bug, case: impl Fn(OutboxHarness) -> Ran)
where
    Ran: Future<Output = ()>,
{
    outbox::run(|clock| broken(clock, None), &case);
    // A bug that cannot be put in is not one that was found.
    outbox::run(|clock| broken(clock, Some(bug)), |_| async {});
    let on_a_broken_one = || outbox::run(|clock| broken(clock, Some(bug)), &case);
    let fails = |_| catch_unwind(AssertUnwindSafe(on_a_broken_one)).is_err();
    assert!((0..tries).any(fails), "the case does not see the bug");
}

fn found_by<Ran>(bug: Bug, case: impl Fn(OutboxHarness) -> Ran)
where
    Ran: Future<Output = ()>,
{
    found_in(1, bug, case);
}

#[test]
fn a_message_of_an_attempt_that_lost_its_record_is_found() {
    let no_fence = bug("stage_message", &[(" OR r.fence IS DISTINCT FROM record_fence", "")]);
    let no_attempt = bug("stage_message", &[("r.attempt IS DISTINCT FROM record_attempt OR ", "")]);
    for bug in [no_fence, no_attempt] {
        found_by(bug, staging::an_attempt_that_lost_its_right_stages_nothing);
    }
    let no_state = bug("stage_message", &[("OR r.state IS DISTINCT FROM 'in_progress'", "")]);
    found_by(no_state, staging::an_operation_that_is_over_stages_nothing);
}

#[test]
fn a_claim_of_what_another_relay_is_at_is_found() {
    let live = bug(
        "claim_messages",
        &[("AND o.sink = wanted AND o.lease_until <= t", "AND o.sink = wanted")],
    );
    found_by(live, claiming::a_live_lease_is_not_claimed_again);
    // Two claims that meet have both read the same messages.
    let no_lock = bug("claim_messages", &[("FOR UPDATE SKIP LOCKED", "")]);
    found_in(20, no_lock, claiming::of_many_concurrent_claims_each_message_is_in_one);
}

#[test]
fn a_claim_of_what_is_not_due_or_for_somebody_else_is_found() {
    let early = bug("claim_messages", &[("AND o.next_at <= t", "")]);
    found_by(early, settling::a_retry_is_due_after_its_wait_and_not_before);
    let any_sink = bug("claim_messages", &[("AND o.sink = wanted AND o.next_at", "AND o.next_at")]);
    found_by(any_sink, claiming::messages_are_claimed_for_the_sinks_that_are_asked_for);
}

#[test]
fn a_claim_that_keeps_no_order_is_found() {
    let passes = bug(
        "claim_messages",
        &[
            ("(o.aggregate IS NULL OR NOT EXISTS (", "(true OR NOT EXISTS ("),
            ("SET held = true WHERE", "SET held = false WHERE"),
        ],
    );
    found_by(passes, claiming::messages_of_one_aggregate_are_claimed_one_after_the_other);
    found_by(passes, claiming::an_aggregate_is_held_behind_its_dead_letter);
    found_by(passes, claiming::an_aggregate_has_one_order_over_all_sinks);
}

#[test]
fn a_claim_that_forgets_the_one_before_it_is_found() {
    let no_doubt =
        bug("claim_messages", &[("o.ambiguous OR o.state = 'delivering'", "o.ambiguous")]);
    found_by(no_doubt, claiming::a_lease_that_ran_out_is_claimed_again_and_flagged_ambiguous);
    let fence = bug("claim_messages", &[("fence = greatest(o.fence + 1, t)", "fence = t")]);
    found_by(fence, claiming::every_claim_has_a_larger_fence_even_when_the_clock_steps_back);
    let count = bug("claim_messages", &[("attempts = o.attempts + 1", "attempts = 1")]);
    found_by(count, settling::attempts_are_counted_by_claims);
    let lost_answer = bug(
        "claim_messages",
        &[("IF FOUND THEN\n        RETURN;", "IF false THEN\n        RETURN;")],
    );
    found_by(lost_answer, claiming::a_repeated_claim_of_one_attempt_returns_the_same_messages);
}

#[test]
fn a_settlement_that_does_not_look_at_fence_attempt_or_state_is_found() {
    let no_fence = bug("settle_message", &[(" AND o.fence = claim_fence", "")]);
    let no_attempt = bug("settle_message", &[(" AND o.attempt = claim ", " ")]);
    for bug in [no_fence, no_attempt] {
        found_by(bug, settling::a_settlement_needs_its_attempt_and_its_fence);
    }
    let no_state = bug("settle_message", &[("\n      AND o.state = 'delivering'", "")]);
    found_by(no_state, settling::what_is_settled_is_not_settled_otherwise);
}

#[test]
fn a_settlement_that_writes_something_else_is_found() {
    let no_wait =
        bug("settle_message", &[("CASE ending WHEN 'ready'", "CASE ending WHEN 'never'")]);
    found_by(no_wait, settling::a_retry_is_due_after_its_wait_and_not_before);
    let no_doubt = bug("settle_message", &[("(o.ambiguous OR may_have_acted)", "may_have_acted")]);
    found_by(no_doubt, settling::a_message_whose_delivery_may_have_acted_stays_ambiguous);
    let unheard = bug("settle_message", &[("AND o.state = ending)", "AND false)")]);
    found_by(unheard, settling::a_repeated_settlement_is_applied_once);
    let holds = bug("settle_message", &[("IF ending = 'done' AND ended IS NOT NULL", "IF false")]);
    found_by(holds, claiming::messages_of_one_aggregate_are_claimed_one_after_the_other);
}

#[test]
fn a_decision_about_what_is_no_dead_letter_or_another_one_is_found() {
    let no_fence = bug("locked_dead", &[(" AND o.fence = i.fence", "")]);
    found_by(no_fence, tending::who_looked_at_an_earlier_dead_letter_decides_nothing);
    let no_state = bug("locked_dead", &[("AND o.state = 'dead'", "")]);
    found_by(no_state, tending::redrive_takes_exactly_the_dead_letters_that_it_is_given);
    found_by(no_state, tending::discard_deletes_exactly_the_dead_letters_that_it_is_given);
}

#[test]
fn a_message_that_is_deleted_too_early_is_found() {
    let age = bug("purge_done", &[("AND d.done_at <= t - age", "")]);
    found_by(age, tending::purge_deletes_exactly_the_done_ones_that_are_old_enough);
    let open = bug("is_over", &[("NOT IN ('completed', 'expired')", "IN ('never')")]);
    found_by(open, tending::what_an_open_operation_would_stage_again_is_kept);
}

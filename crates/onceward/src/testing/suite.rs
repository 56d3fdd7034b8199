//! The cases of the store suite. Each is a sentence about stores; its function shows that it holds.
//!
//! # Cancel safety
//! A case that is dropped before its end has shown nothing.

pub mod reserving;
pub mod writing;
pub mod leases;
pub mod expiring;
pub mod resolving;
pub mod reconciling;
pub mod pending;
pub mod queueing;
pub mod stepping;
pub mod resuming;
pub mod waiting;
pub mod keeping;
pub mod racing;
pub mod interleaving;
pub mod cancelling;
pub mod listing;
pub mod sealing;
pub mod beating;
pub mod noting;
pub mod agreeing;

/// Makes one test per case of the store suite, in a module of the given name.
///
/// The second argument makes a fresh, empty store that reads the given
/// [`ManualClock`](crate::clock::ManualClock): an async function or a closure that returns a future.
/// What it makes is a store, an `Arc<dyn Store>`, or a [`Fresh`](crate::testing::Fresh) one that
/// keeps something alive, such as a temporary directory. It is called at least once per case, and
/// many times for the random runs.
///
/// ```
/// use std::sync::Arc;
/// use onceward::{MemoryStore, clock::ManualClock, store_suite};
///
/// async fn my_store(clock: ManualClock) -> MemoryStore {
///     MemoryStore::with_clock(Arc::new(clock))
/// }
///
/// store_suite!(mine, my_store);
/// # // The macro makes tests, which a doc test does not have. This is what each of them does:
/// # use onceward::testing::{run, suite};
/// # run(my_store, suite::reserving::a_free_key_is_granted);
/// ```
///
/// Then `cargo test mine::` runs the suite, and `cargo test mine::scopes_do_not_meet` one case.
/// Random runs take their seed from `ONCEWARD_SEED` and the number of sequences from
/// `ONCEWARD_RUNS`.
#[macro_export]
macro_rules! store_suite {
    ($name:ident, $factory:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $crate::__store_suite_cases!($factory);
        }
    };
}

/// The list of cases. A case that is added here is a test of every store.
#[doc(hidden)]
#[macro_export]
macro_rules! __store_suite_cases {
    ($factory:expr) => {
        $crate::__store_suite_cases! {
            $factory;
            reserving {
                a_free_key_is_granted
                a_running_record_is_occupied
                a_completed_record_returns_its_reply
                a_released_record_is_granted_to_the_same_request
                an_unknown_record_is_not_granted_however_long_one_waits
                another_request_never_gets_the_key_in_any_state
                another_request_does_not_take_over_a_vanished_attempt
                the_same_digest_by_another_recipe_is_another_request
                a_repeated_reserve_of_one_attempt_is_granted_again
                a_repeated_reserve_past_its_lease_is_granted_if_nobody_came
                a_repeated_reserve_of_a_replaced_attempt_is_refused
                a_repeated_reserve_of_an_attempt_that_was_released_is_refused
                scopes_do_not_meet
                the_border_between_scope_and_key_cannot_be_moved
                keys_and_scopes_are_case_sensitive_and_never_trimmed
                a_look_finds_a_reply_and_takes_nothing
                a_look_changes_nothing_even_where_a_reserve_would
                a_second_attempt_runs_under_the_rules_of_its_own_request
                a_store_that_is_well_answers_a_ping
                very_long_durations_are_kept
            }
            writing {
                completing_starts_retention
                releasing_says_why_and_keeps_no_reply
                marking_unknown_asks_for_a_reconciler
                renewing_moves_only_the_lease_end
                renewing_never_shortens_a_lease
                completing_twice_is_applied_once
                releasing_twice_is_applied_once
                marking_unknown_twice_is_applied_once
                renewing_what_one_has_completed_changes_nothing
                a_completed_record_cannot_be_released_or_marked_by_its_attempt
                a_late_owner_that_nobody_replaced_completes
                a_late_owner_that_nobody_replaced_renews
                a_superseded_lease_cannot_complete
                a_superseded_lease_cannot_release
                a_superseded_lease_cannot_renew
                a_superseded_lease_cannot_mark_unknown
                a_superseded_result_is_kept_as_evidence_once
                a_write_needs_its_attempt_and_its_fence
                writes_that_come_together_need_their_attempts_and_fences
                a_write_to_nothing_makes_nothing
                an_old_lease_cannot_write_to_a_record_that_was_purged_and_made_again
                an_old_lease_cannot_write_to_the_next_generation
                a_late_complete_by_the_unknown_attempt_is_accepted_and_audited
                a_late_release_by_the_unknown_attempt_is_refused
            }
            leases {
                a_lease_that_ends_exactly_now_is_over
                a_reserve_finds_a_lease_that_ends_exactly_now_over
                a_vanished_attempt_that_may_have_acted_is_unknown_to_the_next
                a_vanished_attempt_that_cannot_have_acted_is_replaced
                a_vanished_phased_attempt_is_resumed_by_the_next
                the_effects_of_the_vanished_attempt_decide
                sweep_moves_records_on_by_their_effects
                sweep_stops_at_its_limit_and_goes_on_next_time
                sweep_skips_live_leases_and_records_at_rest
                a_clock_that_steps_back_ends_no_lease_and_shrinks_no_fence
            }
            expiring {
                retention_that_ends_exactly_now_is_over
                a_reply_past_retention_is_not_shown_before_it_is_reaped
                an_expired_key_is_refused_while_its_tombstone_lives
                a_repeated_reserve_of_an_attempt_that_completed_takes_no_expired_key
                a_key_is_expired_then_purged_then_new
                an_expired_key_runs_again_as_the_next_generation_where_allowed
                a_completed_key_does_not_run_again_before_its_retention_is_over
                what_never_acted_and_expired_is_free_for_any_request
                without_a_tombstone_the_key_is_new_at_once
                reap_never_touches_a_record_that_is_not_terminal
                reap_stops_at_its_limit_and_goes_on_next_time
                a_long_execution_is_not_ended_by_retention
                audit_records_are_purged_after_a_retention_of_their_own
                audit_records_of_what_is_still_there_are_not_purged
                purging_audit_records_stops_at_its_limit_and_goes_on_next_time
            }
            reconciling {
                an_unknown_record_is_due_at_once_and_whoever_waits_longest_comes_first
                only_one_of_two_that_ask_at_once_may
                who_asks_and_dies_is_followed_by_another_after_the_pause
                the_pause_doubles_up_to_an_hour
                one_probe_that_finds_nothing_never_releases
                two_probes_that_are_apart_by_the_stores_clock_alone_release_nothing
                two_probes_that_find_nothing_release_when_late_and_apart_enough
                a_probe_that_was_overtaken_decides_nothing
                what_was_given_up_is_a_dead_letter_and_not_due
                a_redriven_dead_letter_is_due_as_if_new_and_every_time_is_remembered
                what_was_asked_is_forgotten_when_the_outcome_is_known
                a_late_owner_completes_what_is_being_asked_about
                two_different_results_are_an_incident_and_both_are_kept
                what_was_asked_before_a_redrive_counts_for_nothing_after_it
                what_is_due_can_be_listed_without_some_routes
                what_executed_after_it_was_released_is_completed_and_an_incident
                what_one_attempt_did_does_not_complete_another
                what_is_said_not_to_have_executed_is_an_incident_if_a_success_is_stored
                only_unknown_records_are_asked_about_given_up_or_redriven
            }
            resolving {
                an_unknown_record_is_resolved_as_completed
                an_unknown_record_is_released_on_authority
                two_probes_release_an_unknown_record_only_when_late_and_apart_enough
                a_result_after_the_outcome_was_resolved_is_kept_and_not_applied
                a_void_reply_frees_the_key_as_the_next_generation
                a_resolution_needs_the_generation_and_fence_it_looked_at
                a_live_lease_cannot_be_resolved
                only_unknown_is_completed_or_released_and_only_completed_is_void
                a_resolution_of_nothing_finds_nothing
                a_vanished_attempt_can_be_resolved_before_it_is_swept
                a_result_after_the_release_completes_what_nobody_has_taken_since
                a_result_after_the_release_is_evidence_once_another_has_the_record
                what_else_is_written_after_the_release_changes_nothing
                a_result_after_ones_own_release_is_evidence
            }
            pending {
                accepted_work_is_pending_until_it_is_claimed
                a_repeated_accept_of_one_attempt_is_accepted_again
                pending_work_is_claimed_by_one_worker
                only_pending_work_can_be_claimed
                pending_work_waits_as_long_as_it_takes
                pending_work_cannot_be_written_to
                a_released_record_can_be_accepted_for_later
            }
            queueing {
                accepted_work_knows_how_long_it_may_wait
                pending_work_waits_for_a_worker_with_its_request
                pending_work_stands_in_line_before_phased_work
                a_worker_for_accepted_work_is_told_of_nothing_else
                overdue_work_is_listed_by_the_end_of_its_time
                the_age_of_an_attempt_is_without_the_time_in_the_queue
                queued_work_that_is_released_is_begun_again_after_a_pause
                a_vanished_attempt_at_queued_work_is_moved_on_by_its_effects
                a_retry_finds_queued_work_whose_attempt_vanished_pending_again
                a_claim_declares_the_effects_of_its_attempt
                unknown_queued_work_is_begun_again_only_when_it_is_released
                a_result_after_the_release_completes_queued_work
                pending_work_that_is_given_up_is_completed_and_never_begun
                queued_work_with_steps_made_goes_on_at_its_recovery_point
                the_request_of_queued_work_goes_when_it_is_done
                released_work_that_was_not_accepted_is_not_begun_by_a_worker
            }
            stepping {
                saving_a_step_moves_the_recovery_point_and_keeps_its_result
                steps_come_back_in_the_order_in_which_they_were_saved
                results_and_names_of_any_kind_survive
                saving_a_step_twice_is_applied_once
                an_effect_is_open_from_its_intent_to_its_result
                intending_twice_is_applied_once
                a_withdrawn_effect_is_not_open_any_more
                a_second_effect_is_not_opened_beside_an_open_one
                no_step_is_saved_while_the_effect_of_another_is_open
                an_effect_that_has_a_result_is_not_opened_again
                a_superseded_attempt_cannot_advance
                an_advance_needs_its_attempt_and_its_fence
                an_advance_of_nothing_makes_nothing
                only_work_in_progress_advances
                a_late_owner_that_nobody_replaced_advances
                steps_of_different_records_do_not_meet
                the_next_attempt_finds_the_steps_of_those_before_it
                the_next_generation_begins_without_steps
                a_key_that_is_new_again_has_no_steps
                whoever_completed_a_record_is_told_its_reply
                concurrent_saves_of_one_step_are_applied_once
                a_burst_of_steps_is_told_apart
                of_two_attempts_only_one_makes_steps_at_a_time
                steps_outlive_a_change_of_the_declared_effects
            }
            resuming {
                releasing_with_steps_made_suspends
                suspending_twice_is_applied_once
                releasing_with_an_idempotent_effect_open_suspends
                releasing_with_an_effect_open_that_is_not_idempotent_is_unknown
                releasing_without_steps_made_is_retryable
                a_vanished_attempt_with_an_effect_open_that_is_not_idempotent_is_unknown
                a_vanished_attempt_with_no_such_effect_open_is_resumed
                sweep_moves_only_phased_work_that_cannot_go_on
                releasing_an_unknown_operation_lets_it_go_on
                the_request_of_one_that_was_refused_is_not_kept
                releasing_an_operation_whose_policy_changed_lets_it_go_on
                completing_an_unknown_operation_ends_it
                resumable_tells_of_what_waits_and_of_nothing_else
                resumable_tells_of_the_oldest_first_and_stops_at_its_limit
                the_request_is_kept_byte_for_byte
                the_first_request_of_a_generation_is_kept
                accepted_work_keeps_its_request
                dropping_an_advance_at_any_await_leaves_a_legal_record
                dropping_a_save_at_any_await_keeps_step_and_result_together
                dropping_a_reserve_keeps_record_and_request_together
            }
            waiting {
                those_who_wait_are_told_of_what_nobody_is_at_work_on
                those_who_wait_are_told_of_what_was_decided_or_has_expired
                many_are_asked_about_in_one_call
            }
            keeping {
                keys_with_every_allowed_byte_round_trip
                the_longest_key_and_scope_round_trip
                scopes_of_any_language_round_trip
                an_empty_reply_round_trips
                a_reply_of_a_mebibyte_round_trips
                highly_compressible_replies_round_trip
                binary_replies_round_trip
                header_order_and_repeated_headers_survive
                header_values_that_are_not_ascii_survive
                many_and_long_headers_survive
                every_kind_of_status_survives
                a_reply_whose_body_was_not_stored_survives
                the_schema_version_survives
                every_field_of_a_record_survives
                audit_records_survive_in_order_and_with_their_reply
                loading_changes_nothing
                the_first_identity_is_remembered_and_another_is_noticed
                an_accepted_identity_replaces_the_first
                an_identity_can_be_accepted_first
            }
            racing {
                of_100_concurrent_reserves_exactly_one_is_granted
                of_100_different_concurrent_requests_exactly_one_is_granted
                of_100_concurrent_reserves_of_a_free_record_exactly_one_is_granted
                concurrent_repeats_of_one_reserve_share_one_grant
                a_burst_of_1000_different_keys_is_granted_without_mixing_up_answers
                duplicates_within_one_burst_are_decided_one_by_one
                good_and_superseded_writes_within_one_burst_are_told_apart
                concurrent_completes_of_one_attempt_are_applied_once
                concurrent_renewals_do_not_undo_a_complete
                of_contradicting_concurrent_writes_one_is_applied
                of_50_concurrent_claims_exactly_one_is_granted
                concurrent_sweeps_move_each_record_once
                in_a_crowd_every_acknowledged_reply_is_the_stored_one
            }
            interleaving {
                two_reserves_in_every_order
                two_different_requests_in_every_order
                a_reserve_and_its_repetition_in_every_order
                a_reserve_and_a_complete_in_every_order
                a_takeover_and_a_late_complete_in_every_order
                a_takeover_and_a_late_step_in_every_order
                an_intent_and_a_sweep_in_every_order
                a_complete_and_a_sweep_in_every_order
                a_renew_and_a_sweep_in_every_order
                two_sweeps_in_every_order
                a_reap_and_a_reserve_in_every_order
                a_resolve_and_a_late_complete_in_every_order
                two_claims_in_every_order
            }
            cancelling {
                dropping_a_reserve_at_any_await_leaves_a_legal_record
                dropping_a_second_reserve_at_any_await_leaves_a_legal_record
                dropping_a_claim_at_any_await_leaves_a_legal_record
                dropping_a_renew_at_any_await_leaves_a_legal_record
                dropping_a_complete_at_any_await_leaves_a_legal_record
                dropping_a_release_at_any_await_leaves_a_legal_record
                dropping_a_mark_unknown_at_any_await_leaves_a_legal_record
                dropping_a_resolve_at_any_await_leaves_a_legal_record
                dropping_a_sweep_at_any_await_leaves_a_legal_record
                dropping_a_reap_at_any_await_leaves_a_legal_record
                callers_that_go_away_do_not_harm_those_that_stay
            }
            listing {
                a_list_has_every_record_and_no_reply_but_its_status
                each_condition_of_a_list_leaves_what_it_is_about
                a_list_tells_states_as_they_would_be_loaded
                pages_of_a_list_hold_each_record_once
                a_list_that_changes_between_pages_shows_what_stays_once
                the_size_of_a_page_is_bounded
                a_list_tells_all_of_a_record
                counts_agree_with_the_records
                the_audit_log_tells_of_all_records_in_pages
            }
            beating {
                the_beats_of_a_node_count_up
                a_count_under_what_was_acknowledged_is_a_loss
                a_node_that_is_not_known_any_more_has_lost_everything
                a_loss_is_told_to_every_node_and_found_once
                the_earliest_of_two_losses_counts
                a_loss_that_was_acknowledged_is_told_no_more
                a_lost_answer_to_a_beat_is_no_loss
            }
            noting {
                an_operation_is_found_by_its_provider_id
                a_provider_id_that_is_noted_again_stays
                an_operation_may_have_many_provider_ids
                a_provider_id_of_another_operation_is_refused_and_an_incident
                of_many_that_note_one_provider_id_exactly_one_has_it
                a_later_attempt_takes_the_provider_id_over
                an_attempt_that_lost_its_record_still_notes_its_provider_id
                provider_ids_are_kept_as_long_as_the_record
                a_record_that_is_purged_and_made_again_has_no_provider_ids
                the_next_generation_does_not_inherit_provider_ids
                a_provider_id_of_no_record_is_not_noted
            }
            sealing {
                the_first_data_key_of_a_scope_stands
                a_key_that_wraps_anew_adds_a_data_key
                of_a_dropped_data_key_only_its_id_is_left
                dropping_data_keys_is_remembered
                scopes_do_not_share_data_keys
                of_50_concurrent_proposals_exactly_one_stands
            }
            agreeing {
                random_operations_agree_with_the_model
            }
        }
    };
    ($factory:expr; $($module:ident { $($case:ident)* })*) => {
        $($(
            #[test]
            fn $case() {
                $crate::testing::run($factory, $crate::testing::suite::$module::$case);
            }
        )*)*
    };
}

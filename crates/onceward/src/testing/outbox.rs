//! The outbox suite, and an outbox in memory.
//!
//! Each case is a sentence about outboxes; its function shows that it holds.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use super::samples::{self, LEASE, reply};
use crate::{
    clock::ManualClock,
    outbox::{
        Claimed, DeadLetter, Message, MessageId, MessageState, OutboxStore, Settlement, Staged,
    },
    record::{AttemptId, Fence, Lease},
    store::{Ask, Reservation, Store, Write, Written},
};

mod memory;
pub mod staging;
pub mod claiming;
pub mod settling;
pub mod tending;
pub mod relaying;

pub use memory::MemoryOutbox;

/// An empty store with its outbox, as a factory makes them for each case.
pub struct FreshOutbox {
    store: Arc<dyn Store>,
    outbox: Arc<dyn OutboxStore>,
    keep: Box<dyn Any>,
}

impl FreshOutbox {
    /// Records and messages of one store.
    pub fn new(store: Arc<dyn Store>, outbox: Arc<dyn OutboxStore>) -> Self {
        FreshOutbox { store, outbox, keep: Box::new(()) }
    }

    /// Keeps something until the case is over: a temporary directory, a database to drop.
    #[must_use]
    pub fn keeping(self, keep: impl Any) -> Self {
        FreshOutbox { keep: Box::new((self.keep, keep)), ..self }
    }
}

impl fmt::Debug for FreshOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FreshOutbox({:?})", self.outbox)
    }
}

impl<S: Store + OutboxStore> From<S> for FreshOutbox {
    fn from(store: S) -> Self {
        let store = Arc::new(store);
        FreshOutbox::new(Arc::clone(&store) as Arc<dyn Store>, store)
    }
}

/// No case waits for time to pass, so that one which takes this long hangs.
const CASE_TIME_MAX: Duration = Duration::from_secs(120);

/// Runs one case on a fresh outbox, in a runtime of its own.
///
/// # Panics
/// When the case does, or when it hangs.
pub fn run<Made, Ran>(
    factory: impl Fn(ManualClock) -> Made,
    case: impl FnOnce(OutboxHarness) -> Ran,
) where
    Made: Future<Output: Into<FreshOutbox>>,
    Ran: Future<Output = ()>,
{
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(4).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let case = async {
            let clock = ManualClock::default();
            let FreshOutbox { store, outbox, keep } = factory(clock.clone()).await.into();
            case(OutboxHarness { store, outbox, clock }).await;
            drop(keep);
        };
        tokio::time::timeout(CASE_TIME_MAX, case).await.expect("the case hangs");
    });
}

/// A fresh store with its outbox and their clock. The methods panic when the store fails.
///
/// # Cancel safety
/// A case that is dropped before its end has shown nothing.
#[expect(missing_debug_implementations, reason = "nobody prints a harness")]
pub struct OutboxHarness {
    /// The records.
    pub store: Arc<dyn Store>,
    /// The messages.
    pub outbox: Arc<dyn OutboxStore>,
    /// The clock that both read.
    pub clock: ManualClock,
}

/// A sink's name.
pub(crate) const SINK: &str = "ledger";

/// A message for [`SINK`].
pub(crate) fn message(name: &str) -> Message {
    Message::new(name, SINK, name.to_owned())
}

impl OutboxHarness {
    /// An operation that has begun.
    pub async fn begun(&self, key: &str) -> Lease {
        self.granted(samples::ask(key)).await
    }

    /// Reserves what must be free.
    pub async fn granted(&self, ask: Ask) -> Lease {
        match self.store.reserve(ask).await.expect("reserve answers") {
            Reservation::Granted { lease, .. } => lease,
            other => panic!("expected a grant, found {other:?}"),
        }
    }

    /// Ends an operation.
    pub async fn complete(&self, lease: &Lease) {
        let written = self.store.write(lease, Write::Complete(reply("done"))).await;
        assert_eq!(written.expect("write answers"), Written::Applied);
    }

    /// These messages as they are now.
    async fn looked_at(&self, ids: &[MessageId]) -> Vec<DeadLetter> {
        let mut letters = Vec::new();
        for id in ids {
            let found = self.outbox.load_message(*id).await.expect("load answers");
            let fence = found.map_or(Fence::from_stored(0), |found| found.stored.fence);
            letters.push(DeadLetter { message_id: *id, fence });
        }
        letters
    }

    /// Makes these ready again that are dead letters, as they are now.
    pub async fn redrive(&self, ids: &[MessageId], reason: &str) -> Vec<MessageId> {
        let letters = self.looked_at(ids).await;
        self.outbox.redrive(&letters, reason).await.expect("redrive answers")
    }

    /// Deletes those of these that are dead letters, as they are now.
    pub async fn discard(&self, ids: &[MessageId], reason: &str) -> Vec<MessageId> {
        let letters = self.looked_at(ids).await;
        self.outbox.discard(&letters, reason).await.expect("discard answers")
    }

    /// Stages.
    pub async fn stage(&self, lease: &Lease, message: Message) -> Staged {
        self.outbox.stage(lease, message).await.expect("stage answers")
    }

    /// Stages these messages by an operation that is then over, and returns their ids in order.
    pub async fn staged(&self, messages: impl IntoIterator<Item = Message>) -> Vec<MessageId> {
        let before = self.ids(MessageState::Ready).await;
        let key = format!("order-{:016x}", rand::random::<u64>());
        let lease = self.begun(&key).await;
        for message in messages {
            assert_eq!(self.stage(&lease, message).await, Staged::Applied);
        }
        self.complete(&lease).await;
        let after = self.ids(MessageState::Ready).await;
        after.into_iter().filter(|id| !before.contains(id)).collect()
    }

    /// Claims for the sink of the suite by a new attempt.
    pub async fn claim(&self, limit: u32) -> (AttemptId, Vec<Claimed>) {
        let attempt = AttemptId::random();
        (attempt, self.claim_as(attempt, limit).await)
    }

    /// Claims for the sink of the suite.
    pub async fn claim_as(&self, attempt: AttemptId, limit: u32) -> Vec<Claimed> {
        self.outbox.claim(limit, &[SINK], LEASE, attempt).await.expect("claim answers")
    }

    /// The ids of what can be claimed now, which is then claimed.
    pub async fn claimed_ids(&self, limit: u32) -> Vec<MessageId> {
        self.claim(limit).await.1.iter().map(|claimed| claimed.message_id).collect()
    }

    /// Claims exactly one message.
    pub async fn claim_one(&self) -> (AttemptId, Claimed) {
        let (attempt, mut claimed) = self.claim(1).await;
        (attempt, claimed.pop().expect("a message"))
    }

    /// Settles.
    pub async fn settle(&self, attempt: AttemptId, claimed: &Claimed, how: Settlement) -> bool {
        let settled = self.outbox.settle(claimed.message_id, attempt, claimed.fence, how);
        settled.await.expect("settle answers")
    }

    /// The ids of all messages in this state.
    pub async fn ids(&self, state: MessageState) -> Vec<MessageId> {
        let listed = self.outbox.list(state, None, 10_000).await.expect("list answers");
        listed.iter().map(|message| message.message_id).collect()
    }

    /// How many messages are ready, delivering, done and dead.
    pub async fn counts(&self) -> [usize; 4] {
        let [ready, delivering, done, dead] = MessageState::ALL;
        [
            self.ids(ready).await.len(),
            self.ids(delivering).await.len(),
            self.ids(done).await.len(),
            self.ids(dead).await.len(),
        ]
    }
}

/// Delivered, with this id.
pub(crate) fn done(provider_id: &str) -> Settlement {
    Settlement::Done { provider_id: Some(provider_id.into()) }
}

/// To be delivered again after this many seconds.
pub(crate) fn retry(seconds: u64) -> Settlement {
    let after = Duration::from_secs(seconds);
    Settlement::Retry { after, ambiguous: false, why: "not today".into() }
}

/// Given up.
pub(crate) fn dead() -> Settlement {
    Settlement::Dead { why: "never".into() }
}

/// Makes one test per case of the outbox suite, in a module of the given name.
///
/// The second argument makes a fresh, empty store with its outbox on the given
/// [`ManualClock`](crate::clock::ManualClock), as for [`store_suite!`](crate::store_suite). What it
/// makes is a store that implements both traits, or a
/// [`FreshOutbox`](crate::testing::outbox::FreshOutbox).
///
/// ```
/// use std::sync::Arc;
/// use onceward::{MemoryStore, clock::ManualClock, outbox_suite};
/// use onceward::testing::outbox::{FreshOutbox, MemoryOutbox};
///
/// async fn my_outbox(clock: ManualClock) -> FreshOutbox {
///     let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
///     FreshOutbox::new(store.clone(), Arc::new(MemoryOutbox::new(store, Arc::new(clock))))
/// }
///
/// outbox_suite!(mine, my_outbox);
/// # // The macro makes tests, which a doc test does not have. This is what each of them does:
/// # use onceward::testing::outbox::{run, staging};
/// # run(my_outbox, staging::the_same_message_staged_twice_is_one);
/// ```
#[macro_export]
macro_rules! outbox_suite {
    ($name:ident, $factory:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $crate::__outbox_suite_cases!($factory);
        }
    };
}

/// The list of cases. A case that is added here is a test of every outbox.
#[doc(hidden)]
#[macro_export]
macro_rules! __outbox_suite_cases {
    ($factory:expr) => {
        $crate::__outbox_suite_cases! {
            $factory;
            staging {
                a_staged_message_is_ready_with_all_that_it_was_given
                a_message_of_any_bytes_survives
                the_same_message_staged_twice_is_one
                a_message_staged_again_by_the_next_attempt_is_one
                other_names_keys_scopes_and_generations_are_other_messages
                an_attempt_that_lost_its_right_stages_nothing
                an_operation_that_is_over_stages_nothing
                a_message_that_no_sink_could_take_is_refused
                a_key_that_was_purged_and_made_again_stages_its_message_anew
                an_undelivered_message_of_a_former_use_is_in_the_way_of_the_next
            }
            claiming {
                messages_are_claimed_for_the_sinks_that_are_asked_for
                a_claim_stops_at_its_limit_and_goes_on_next_time
                messages_of_one_aggregate_are_claimed_one_after_the_other
                messages_without_an_aggregate_are_not_held
                an_aggregate_is_held_behind_its_dead_letter
                an_aggregate_is_held_behind_a_retry_that_is_not_due
                an_aggregate_has_one_order_over_all_sinks
                a_live_lease_is_not_claimed_again
                a_lease_that_ran_out_is_claimed_again_and_flagged_ambiguous
                every_claim_has_a_larger_fence_even_when_the_clock_steps_back
                a_repeated_claim_of_one_attempt_returns_the_same_messages
                of_many_concurrent_claims_each_message_is_in_one
            }
            settling {
                the_provider_id_is_there_when_done_is
                a_retry_is_due_after_its_wait_and_not_before
                attempts_are_counted_by_claims
                a_dead_letter_keeps_its_reason_and_is_not_claimed
                a_stale_relay_cannot_settle
                a_settlement_needs_its_attempt_and_its_fence
                a_late_relay_that_nobody_replaced_settles
                a_repeated_settlement_is_applied_once
                what_is_settled_is_not_settled_otherwise
                a_message_whose_delivery_may_have_acted_stays_ambiguous
            }
            tending {
                lists_are_in_order_and_go_on_where_they_ended
                operators_list_messages_by_state_sink_and_age_without_their_payloads
                redrive_takes_exactly_the_dead_letters_that_it_is_given
                a_redriven_message_is_as_if_never_delivered
                who_looked_at_an_earlier_dead_letter_decides_nothing
                an_old_claim_cannot_settle_what_was_redriven
                every_redriven_and_every_discarded_message_is_audited_once
                what_is_not_a_dead_letter_or_is_kept_leaves_no_audit_record
                discard_deletes_exactly_the_dead_letters_that_it_is_given
                a_discarded_dead_letter_lets_its_aggregate_go_on
                purge_deletes_exactly_the_done_ones_that_are_old_enough
                the_backlog_is_what_is_dead_and_the_first_that_is_due
                purge_stops_at_its_limit_and_goes_on_next_time
                an_id_is_never_used_again
                what_an_open_operation_would_stage_again_is_kept
            }
            relaying {
                a_relay_delivers_an_aggregate_in_order_in_one_run
                two_relays_at_once_deliver_each_message_once
                retries_back_off_and_end_as_a_dead_letter
                a_vanished_delivery_is_repeated_with_the_same_key_where_the_sink_knows_keys
                a_vanished_delivery_is_a_dead_letter_where_the_sink_knows_no_keys
            }
        }
    };
    ($factory:expr; $($module:ident { $($case:ident)* })*) => {
        $($(
            #[test]
            fn $case() {
                $crate::testing::outbox::run($factory, $crate::testing::outbox::$module::$case);
            }
        )*)*
    };
}

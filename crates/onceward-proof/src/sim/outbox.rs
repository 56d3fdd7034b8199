//! Messages that are committed with replies, the way of a node to them, and who receives them.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::FutureExt as _;
use onceward::{
    MemoryStore, Message, OutboxStore, Sink, Store as _,
    clock::Clock,
    outbox::{
        Backlog, Claimed, DeadLetter, Delivered, Delivery, ListedMessage, MessageId, MessageQuery,
        MessageState, Settlement, SinkFuture, Staged, StoredMessage,
    },
    record::{AttemptId, Fence, Lease, RecordId},
    store::{Reservation, StoreErrorKind, StoreFuture, Write},
    testing::{outbox::MemoryOutbox, samples},
};
use tokio::time::sleep;

use super::{
    bugs,
    bugs::Bug,
    faults::{ON_ITS_WAY, SinkFault},
    network::NodeStore,
    node::Gate,
    options::SECOND,
    store::error,
    world::{World, lock},
};
use crate::history::{MessageNo, Settled, What};

/// How often a delivery is begun before somebody must look at it.
pub(super) const TRIES_MAX: u32 = 4;

/// The sinks, and whether their receivers know keys.
pub(super) const SINKS: [(&str, bool); 2] = [("ledger", true), ("mail", false)];

/// The messages of a world: the rules of the library's own outbox for tests.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) rows: MemoryOutbox,
    /// Each message needs an operation that staged it.
    operations: Arc<MemoryStore>,
    known: Mutex<Received>,
}

/// What receivers know.
#[derive(Debug, Default)]
struct Received {
    staged: MessageNo,
    keys: BTreeSet<Box<str>>,
    messages: BTreeSet<MessageNo>,
    /// Those that no receiver will ever take.
    poison: BTreeSet<MessageNo>,
}

/// Nothing in it waits for anything.
pub(super) fn now<T>(future: StoreFuture<'_, T>) -> T {
    match future.now_or_never() {
        Some(Ok(answer)) => answer,
        Some(Err(error)) => unreachable!("{error}"),
        None => unreachable!("an outbox in memory waited"),
    }
}

impl Outbox {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let operations = Arc::new(MemoryStore::with_clock(Arc::clone(&clock)));
        let rows = MemoryOutbox::new(Arc::clone(&operations) as _, clock);
        Outbox { rows, operations, known: Mutex::default() }
    }

    fn stage(&self, sink: &str, aggregate: Option<&str>) -> MessageNo {
        let number = {
            let mut known = lock(&self.known);
            known.staged += 1;
            known.staged
        };
        let ask = samples::ask(&format!("operation-{number:016}"));
        let Reservation::Granted { lease, .. } = now(self.operations.reserve(ask)) else {
            unreachable!("a new key");
        };
        let message = Message::new("receipt", sink, "paid");
        let message = match aggregate {
            Some(aggregate) => message.aggregate(aggregate),
            None => message,
        };
        let staged = now(self.rows.stage(&lease, message));
        assert_eq!(staged, Staged::Applied, "a new message");
        let _ = now(self.operations.write(&lease, Write::Complete(samples::reply("paid"))));
        number
    }

    fn list(&self, state: MessageState) -> Vec<StoredMessage> {
        now(self.rows.list(state, None, u32::MAX))
    }

    /// Whether all that is not delivered is a dead letter, or held behind one of its aggregate.
    fn is_at_rest(&self) -> bool {
        let dead = self.list(MessageState::Dead);
        let held = |message: &StoredMessage| {
            dead.iter().any(|dead| {
                dead.message.aggregate == message.message.aggregate
                    && dead.message_id < message.message_id
            })
        };
        let open = [MessageState::Ready, MessageState::Delivering];
        open.into_iter().flat_map(|state| self.list(state)).all(|message| held(&message))
    }
}

pub(super) fn number(id: MessageId) -> MessageNo {
    MessageNo::try_from(id.number()).unwrap_or_default()
}

impl World {
    /// Messages that are committed together with a reply.
    pub(super) fn stage(&self, id: &RecordId) {
        let Some(outbox) = &self.outbox else { return };
        let subject = self.subject(id);
        let of_key = format!("{}/{}", subject.tenant, subject.key);
        for ((sink, _), aggregate) in SINKS.into_iter().zip([&subject.tenant, &of_key]) {
            // A message of one sink is in nobody's way at another.
            let aggregate = format!("{sink} {aggregate}");
            let kept = (self.bug != Some(Bug::OrderNotKept)).then_some(&*aggregate);
            let message = outbox.stage(sink, kept);
            let (subject, tries_max) = (subject.clone(), TRIES_MAX);
            self.record(What::Staged { message, subject, aggregate, tries_max });
        }
    }

    pub(super) fn settle(
        &self,
        id: MessageId,
        attempt: AttemptId,
        fence: Fence,
        settlement: Settlement,
    ) -> bool {
        let Some(outbox) = &self.outbox else { return false };
        let end = match &settlement {
            Settlement::Done { .. } => Settled::Done,
            Settlement::Retry { .. } => Settled::Retry,
            Settlement::Dead { .. } => Settled::Dead,
        };
        if matches!(settlement, Settlement::Retry { ambiguous: true, .. }) {
            self.met("ambiguous_delivery_repeated");
        }
        let applied = now(outbox.rows.settle(id, attempt, fence, settlement));
        match applied {
            true => self.record(What::Settled { message: number(id), end }),
            false => self.met("two_relays"),
        }
        applied
    }

    /// A receiver gets a message. One that knows keys acts on each of them once.
    fn receive(&self, message: MessageNo, key: &str, knows_keys: bool) {
        let Some(outbox) = &self.outbox else { return };
        let acts = {
            let mut known = lock(&outbox.known);
            known.messages.insert(message);
            known.keys.insert(key.into()) || !knows_keys
        };
        if acts {
            self.record(What::Received { message });
        }
    }

    /// Waits until every message has come to its end, as far as automation brings it there; then
    /// somebody looks at the dead letters, and what they held goes on.
    pub(super) async fn end_of_messages(&self) {
        let Some(outbox) = &self.outbox else { return };
        for _ in 0..6 {
            let mut waited = Duration::ZERO;
            while !outbox.is_at_rest() && waited < SECOND * 300 {
                sleep(SECOND).await;
                waited += SECOND;
            }
            self.record(What::Relayed);
            let dead = outbox.list(MessageState::Dead);
            if dead.is_empty() {
                return;
            }
            for letter in dead {
                self.look_at(outbox, &letter);
            }
        }
    }

    /// What was received, or never will be, is deleted; anything else is delivered after all.
    fn look_at(&self, outbox: &Outbox, letter: &StoredMessage) {
        let message = number(letter.message_id);
        let is_over = {
            let known = lock(&outbox.known);
            known.messages.contains(&message) || known.poison.contains(&message)
        };
        let letters = [DeadLetter::from(letter)];
        let (done, end) = match is_over {
            true => (now(outbox.rows.discard(&letters, "looked at")), Settled::Discarded),
            false => (now(outbox.rows.redrive(&letters, "looked at")), Settled::Redriven),
        };
        if !done.is_empty() {
            self.met(if is_over { "dead_letter_discarded" } else { "dead_letter_redriven" });
            self.record(What::Settled { message, end });
        }
    }
}

/// The way of one node to the messages.
#[derive(Debug)]
pub(super) struct NodeOutbox(pub(super) Arc<NodeStore>);

impl OutboxStore for NodeOutbox {
    // Replies and messages are committed in one step of the store, not by a call.
    fn stage<'a>(&'a self, _: &'a Lease, _: Message) -> StoreFuture<'a, Staged> {
        Box::pin(async { Err(error(StoreErrorKind::Unavailable)) })
    }

    fn claim<'a>(
        &'a self,
        limit: u32,
        sinks: &'a [&'a str],
        lease: Duration,
        attempt: AttemptId,
    ) -> StoreFuture<'a, Vec<Claimed>> {
        let sinks: Vec<String> = sinks.iter().map(|sink| (*sink).to_owned()).collect();
        Box::pin(self.0.call("outbox_claim", move |world| {
            let sinks: Vec<&str> = sinks.iter().map(String::as_str).collect();
            bugs::claim_messages(world, limit, &sinks, lease, attempt)
        }))
    }

    fn settle<'a>(
        &'a self,
        id: MessageId,
        attempt: AttemptId,
        fence: Fence,
        settlement: Settlement,
    ) -> StoreFuture<'a, bool> {
        Box::pin(self.0.call("outbox_settle", move |world| {
            world.settle(id, attempt, fence, settlement.clone())
        }))
    }

    fn list(
        &self,
        _: MessageState,
        _: Option<MessageId>,
        _: u32,
    ) -> StoreFuture<'_, Vec<StoredMessage>> {
        Box::pin(async { Err(error(StoreErrorKind::Unavailable)) })
    }

    fn list_messages(&self, _: MessageQuery) -> StoreFuture<'_, Vec<ListedMessage>> {
        Box::pin(async { Err(error(StoreErrorKind::Unavailable)) })
    }

    fn load_message(&self, _: MessageId) -> StoreFuture<'_, Option<ListedMessage>> {
        Box::pin(async { Err(error(StoreErrorKind::Unavailable)) })
    }

    fn redrive<'a>(&'a self, _: &'a [DeadLetter], _: &'a str) -> StoreFuture<'a, Vec<MessageId>> {
        Box::pin(async { Err(error(StoreErrorKind::Unavailable)) })
    }

    fn discard<'a>(&'a self, _: &'a [DeadLetter], _: &'a str) -> StoreFuture<'a, Vec<MessageId>> {
        Box::pin(async { Err(error(StoreErrorKind::Unavailable)) })
    }

    fn backlog(&self) -> StoreFuture<'_, Backlog> {
        Box::pin(async { Err(error(StoreErrorKind::Unavailable)) })
    }

    fn purge_done(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, Vec<MessageId>> {
        Box::pin(self.0.call("outbox_purge", move |world| match &world.outbox {
            Some(outbox) => now(outbox.rows.purge_done(older_than, limit)),
            None => Vec::new(),
        }))
    }
}

/// The way of one node to a receiver.
#[derive(Debug)]
pub(super) struct NodeSink {
    pub(super) world: Arc<World>,
    pub(super) node: u32,
    pub(super) gate: Arc<Gate>,
    pub(super) knows_keys: bool,
}

impl Sink for NodeSink {
    fn is_idempotent(&self) -> bool {
        self.knows_keys || self.world.bug == Some(Bug::AmbiguousDeliveryRepeated)
    }

    fn deliver(&self, delivery: Delivery) -> SinkFuture<'_> {
        Box::pin(self.one_try(delivery))
    }
}

impl NodeSink {
    async fn one_try(&self, delivery: Delivery) -> Delivered {
        let world = &self.world;
        self.gate.alive().await;
        let message = number(delivery.message_id);
        let (fault, kind) = world.pick(&SinkFault::ALL, 6);
        if fault != SinkFault::None {
            world.fault(kind, format!("node {} for message {message}", self.node));
        }
        match fault {
            SinkFault::CrashBefore => world.crash(self.node, &self.gate),
            SinkFault::PauseBefore => world.pause(&self.gate, world.delay()),
            _ => {}
        }
        self.gate.alive().await;
        world.record(What::Delivers { message, key: delivery.key.clone().into() });
        let receive = || world.receive(message, &delivery.key, self.knows_keys);
        match fault {
            SinkFault::NotDelivered => return Delivered::NotDelivered("refused".into()),
            SinkFault::Later => {
                return Delivered::Later { after: SECOND * 3, why: "busy".into() };
            }
            SinkFault::LostBefore => return Delivered::Ambiguous("cut".into()),
            SinkFault::ActsLate => {
                let (world, key) = (Arc::clone(world), delivery.key.clone());
                let (later, knows_keys) = (world.delay(), self.knows_keys);
                tokio::spawn(async move {
                    sleep(later).await;
                    world.receive(message, &key, knows_keys);
                });
                return Delivered::Ambiguous("timeout".into());
            }
            _ => {}
        }
        if fault == SinkFault::Refuses {
            self.poison(message);
        }
        if self.is_poison(message) {
            return Delivered::Refused("poison".into());
        }
        receive();
        sleep(ON_ITS_WAY).await;
        match fault {
            SinkFault::LostAfter => Delivered::Ambiguous("cut".into()),
            SinkFault::SilentAfter => std::future::pending().await,
            SinkFault::Panics => std::panic::resume_unwind(Box::new("a panic of the simulation")),
            SinkFault::CrashAfter => {
                world.crash(self.node, &self.gate);
                std::future::pending().await
            }
            _ => Delivered::Done { provider_id: Some(format!("receipt of {message}")) },
        }
    }

    fn poison(&self, message: MessageNo) {
        if let Some(outbox) = &self.world.outbox {
            lock(&outbox.known).poison.insert(message);
        }
    }

    fn is_poison(&self, message: MessageNo) -> bool {
        let outbox = self.world.outbox.as_ref();
        outbox.is_some_and(|outbox| lock(&outbox.known).poison.contains(&message))
    }
}

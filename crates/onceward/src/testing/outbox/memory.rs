//! An outbox in memory: for tests of sinks and relays, and the simplest telling of the rules.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    clock::{Clock, Timestamp},
    outbox::{
        Backlog, Claimed, DEAD_LETTERS_MAX, DeadLetter, ListedMessage, Message, MessageId,
        MessageQuery, MessageState, OutboxStore, Owner, Settlement, Staged, StoredMessage,
    },
    record::{AttemptId, AuditEvent, AuditRecord, Fence, Lease, State},
    store::{MemoryStore, Store as _, StoreFuture},
};

/// Messages in memory, beside the records of a store in memory. Nothing commits with anything: for
/// tests only.
#[derive(Debug)]
pub struct MemoryOutbox {
    store: Arc<MemoryStore>,
    clock: Arc<dyn Clock>,
    rows: Mutex<Rows>,
}

#[derive(Debug, Default)]
struct Rows {
    rows: Vec<Row>,
    last_id: i64,
}

#[derive(Debug)]
struct Row {
    stored: StoredMessage,
    record_created_at: Timestamp,
}

impl MemoryOutbox {
    /// An empty outbox for operations of this store.
    pub fn new(store: Arc<MemoryStore>, clock: Arc<dyn Clock>) -> Self {
        MemoryOutbox { store, clock, rows: Mutex::default() }
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, event: AuditEvent, stored: &StoredMessage, reason: &str) {
        let StoredMessage { message_id, message, .. } = stored;
        self.store.remember(AuditRecord {
            at: self.clock.now(),
            id: stored.operation.clone(),
            generation: stored.generation,
            event,
            attempt: stored.attempt.unwrap_or(AttemptId::from_bytes([0; 16])),
            fence: stored.fence,
            reason: format!("{reason} (message {message_id}, {})", message.name).into(),
            reply: None,
        });
    }

    /// Removes those that are picked, except where the operation may still run.
    async fn remove(
        &self,
        limit: u32,
        pick: impl Fn(&StoredMessage) -> bool,
    ) -> Result<Vec<StoredMessage>, crate::store::StoreError> {
        let picked: Vec<_> = {
            let rows = self.rows();
            let picked = rows.rows.iter().filter(|row| pick(&row.stored));
            picked.map(|row| (row.stored.clone(), row.record_created_at)).collect()
        };
        let mut removed = Vec::new();
        for (stored, created_at) in picked {
            let open = self.store.load(&stored.operation).await?.is_some_and(|record| {
                (record.generation, record.created_at) == (stored.generation, created_at)
                    && !matches!(record.state, State::Completed | State::Expired)
            });
            if !open && removed.len() < limit as usize {
                self.rows().rows.retain(|row| row.stored.message_id != stored.message_id);
                removed.push(stored);
            }
        }
        Ok(removed)
    }
}

impl Rows {
    fn is_head(&self, of: &StoredMessage) -> bool {
        let before = |row: &&Row| row.stored.message_id < of.message_id;
        let mut before = self.rows.iter().filter(before);
        of.message.aggregate.is_none()
            || before.all(|row| {
                row.stored.message.aggregate != of.message.aggregate
                    || row.stored.state == MessageState::Done
            })
    }

    fn add(&mut self, owner: Owner, created_at: Timestamp, message: Message, now: Timestamp) {
        self.last_id += 1;
        let stored = StoredMessage {
            message_id: MessageId::from_stored(self.last_id),
            derived_key: owner.derived_key(&message.name).into(),
            message,
            operation: owner.id,
            generation: owner.generation,
            state: MessageState::Ready,
            attempts: 0,
            ambiguous: false,
            next_at: now,
            lease_until: None,
            attempt: None,
            fence: Fence::from_stored(0),
            provider_id: None,
            last_error: None,
            created_at: now,
            done_at: None,
        };
        self.rows.push(Row { stored, record_created_at: created_at });
    }

    fn claim(
        &mut self,
        limit: u32,
        sinks: &[&str],
        lease: Duration,
        attempt: AttemptId,
        now: Timestamp,
    ) -> Vec<Claimed> {
        let is_live = |stored: &StoredMessage| {
            stored.state == MessageState::Delivering && stored.lease_until > Some(now)
        };
        let mine = |row: &&Row| is_live(&row.stored) && row.stored.attempt == Some(attempt);
        let mine: Vec<_> = self.rows.iter().filter(mine).map(|r| r.stored.clone().into()).collect();
        if !mine.is_empty() {
            return mine;
        }
        let is_due = |stored: &StoredMessage| {
            sinks.contains(&&*stored.message.sink)
                && match stored.state {
                    MessageState::Ready => stored.next_at <= now,
                    MessageState::Delivering => !is_live(stored),
                    MessageState::Done | MessageState::Dead => false,
                }
        };
        let due = (0..self.rows.len()).filter(|index| {
            let stored = &self.rows[*index].stored;
            is_due(stored) && self.is_head(stored)
        });
        let due: Vec<usize> = due.take(limit as usize).collect();
        let claim = due.into_iter().map(|index| {
            let stored = &mut self.rows[index].stored;
            stored.ambiguous |= stored.state == MessageState::Delivering;
            stored.state = MessageState::Delivering;
            stored.attempts += 1;
            stored.attempt = Some(attempt);
            stored.fence = Fence::next(Some(stored.fence), now);
            stored.lease_until = Some(now.plus(lease));
            stored.clone().into()
        });
        claim.collect()
    }
}

fn listed(stored: &StoredMessage) -> ListedMessage {
    let mut stored = stored.clone();
    let payload = std::mem::take(&mut stored.message.payload);
    ListedMessage { stored, payload_bytes: payload.len() as u64 }
}

fn settle(stored: &mut StoredMessage, settlement: Settlement, now: Timestamp) -> bool {
    if stored.state != MessageState::Delivering {
        return stored.state == settlement.state();
    }
    stored.state = settlement.state();
    match settlement {
        Settlement::Done { provider_id } => {
            stored.provider_id = provider_id;
            stored.done_at = Some(now);
            stored.last_error = None;
            stored.ambiguous = false;
        }
        Settlement::Retry { after, ambiguous, why } => {
            stored.next_at = now.plus(after);
            stored.ambiguous |= ambiguous;
            stored.last_error = Some(why);
        }
        Settlement::Dead { why } => stored.last_error = Some(why),
    }
    true
}

impl OutboxStore for MemoryOutbox {
    fn stage<'a>(&'a self, lease: &'a Lease, message: Message) -> StoreFuture<'a, Staged> {
        Box::pin(async move {
            if let Some(refusal) = message.refusal() {
                return Ok(Staged::Refused(refusal));
            }
            let owner = Owner::from(lease);
            let found = self.store.load(&owner.id).await?.filter(|record| {
                record.state == State::InProgress
                    && (record.attempt, record.fence) == (owner.attempt, owner.fence)
            });
            let Some(record) = found else { return Ok(Staged::Superseded) };
            let key = owner.derived_key(&message.name);
            let mut rows = self.rows();
            let before = rows.rows.iter().position(|row| *row.stored.derived_key == key);
            if let Some(before) = before {
                if rows.rows[before].record_created_at == record.created_at {
                    return Ok(Staged::AlreadyMine);
                }
                if rows.rows[before].stored.state != MessageState::Done {
                    let why = "a message of a former use of the key is not delivered yet";
                    return Ok(Staged::Refused(why));
                }
                rows.rows.remove(before);
            }
            rows.add(owner, record.created_at, message, self.clock.now());
            Ok(Staged::Applied)
        })
    }

    fn claim<'a>(
        &'a self,
        limit: u32,
        sinks: &'a [&'a str],
        lease: Duration,
        attempt: AttemptId,
    ) -> StoreFuture<'a, Vec<Claimed>> {
        let now = self.clock.now();
        Box::pin(async move { Ok(self.rows().claim(limit, sinks, lease, attempt, now)) })
    }

    fn settle<'a>(
        &'a self,
        id: MessageId,
        attempt: AttemptId,
        fence: Fence,
        settlement: Settlement,
    ) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let mut rows = self.rows();
            let found = rows.rows.iter_mut().map(|row| &mut row.stored).find(|stored| {
                stored.message_id == id && (stored.attempt, stored.fence) == (Some(attempt), fence)
            });
            Ok(found.is_some_and(|stored| settle(stored, settlement, self.clock.now())))
        })
    }

    fn list(
        &self,
        state: MessageState,
        after: Option<MessageId>,
        limit: u32,
    ) -> StoreFuture<'_, Vec<StoredMessage>> {
        Box::pin(async move {
            let rows = self.rows();
            let stored = rows.rows.iter().map(|row| &row.stored);
            let listed = stored.filter(|one| one.state == state && Some(one.message_id) > after);
            Ok(listed.take(limit as usize).cloned().collect())
        })
    }

    fn list_messages(&self, query: MessageQuery) -> StoreFuture<'_, Vec<ListedMessage>> {
        Box::pin(async move {
            let now = self.clock.now();
            let rows = self.rows();
            let stored = rows.rows.iter().map(|row| &row.stored).filter(|one| {
                query.state.is_none_or(|state| one.state == state)
                    && query.sink.as_ref().is_none_or(|sink| one.message.sink == *sink)
                    && query.older_than.is_none_or(|age| one.created_at.plus(age) <= now)
                    && Some(one.message_id) > query.after
            });
            Ok(stored.take(query.limit as usize).map(listed).collect())
        })
    }

    fn load_message(&self, id: MessageId) -> StoreFuture<'_, Option<ListedMessage>> {
        Box::pin(async move {
            let rows = self.rows();
            let stored = rows.rows.iter().map(|row| &row.stored);
            Ok(stored.filter(|one| one.message_id == id).map(listed).next())
        })
    }

    fn redrive<'a>(
        &'a self,
        letters: &'a [DeadLetter],
        reason: &'a str,
    ) -> StoreFuture<'a, Vec<MessageId>> {
        Box::pin(async move {
            let mut rows = self.rows();
            let stored = rows.rows.iter_mut().map(|row| &mut row.stored);
            let dead = stored.filter(|stored| {
                stored.state == MessageState::Dead && letters.contains(&DeadLetter::from(&**stored))
            });
            let redriven = dead.map(|stored| {
                self.remember(AuditEvent::MessageRedriven, stored, reason);
                stored.state = MessageState::Ready;
                (stored.attempts, stored.ambiguous) = (0, false);
                (stored.attempt, stored.lease_until) = (None, None);
                stored.next_at = self.clock.now();
                stored.message_id
            });
            Ok(redriven.collect())
        })
    }

    fn discard<'a>(
        &'a self,
        letters: &'a [DeadLetter],
        reason: &'a str,
    ) -> StoreFuture<'a, Vec<MessageId>> {
        Box::pin(async move {
            let dead = |stored: &StoredMessage| {
                stored.state == MessageState::Dead && letters.contains(&stored.into())
            };
            let gone = self.remove(u32::MAX, dead).await?;
            let gone = gone.iter().map(|stored| {
                self.remember(AuditEvent::MessageDiscarded, stored, reason);
                stored.message_id
            });
            Ok(gone.collect())
        })
    }

    fn purge_done(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, Vec<MessageId>> {
        let now = self.clock.now();
        Box::pin(async move {
            let old = |stored: &StoredMessage| {
                stored.done_at.is_some_and(|done_at| done_at.plus(older_than) <= now)
            };
            let gone = self.remove(limit, old).await?;
            Ok(gone.iter().map(|stored| stored.message_id).collect())
        })
    }

    fn backlog(&self) -> StoreFuture<'_, Backlog> {
        Box::pin(async move {
            let rows = self.rows();
            let in_state = |state| {
                rows.rows.iter().map(|row| &row.stored).filter(move |one| one.state == state)
            };
            let dead = in_state(MessageState::Dead).take(DEAD_LETTERS_MAX as usize).count();
            let ready = in_state(MessageState::Ready).filter(|one| rows.is_head(one));
            Ok(Backlog {
                dead_letters: u32::try_from(dead).unwrap_or(DEAD_LETTERS_MAX),
                due_at: ready.map(|one| one.next_at).min(),
            })
        })
    }
}

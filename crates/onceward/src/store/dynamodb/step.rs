//! One atomic step on one record: look, decide by the machine, and write if the record is still what
//! was looked at. A write that comes too late is told what is there instead, so that nobody reads
//! twice.

use aws_sdk_dynamodb::{
    operation::{
        delete_item::DeleteItemError, put_item::PutItemError,
        transact_write_items::TransactWriteItemsError,
    },
    types::{
        AttributeValue, CancellationReason, Delete, Put, ReturnValuesOnConditionCheckFailure,
        TransactWriteItem, Update,
    },
};

use super::{
    Inner, STORE,
    call::{Failed, Kind, damaged, pause},
    item::{Item, bytes},
    row::{Held, audit_key, partition, read_record, record_key, write_audit, write_record},
};
use crate::{
    clock::Timestamp,
    machine::{Change, Step},
    record::{AuditRecord, RecordId},
    store::{StoreError, StoreErrorKind},
};

/// How often a record is looked at again that others keep changing.
pub(super) const LOOKS_MAX: u32 = 200;

/// How often a transaction is made again that met another one.
const MEETINGS_MAX: u32 = 40;

/// What is known of a record before a step.
pub(super) enum Seen {
    /// Nothing.
    Nothing,
    /// It is probably not there. If the step then writes, its condition says whether that was right.
    ProbablyAbsent,
    /// This was there a moment ago.
    Found(Box<Held>),
}

/// What came of a write that has a condition.
pub(super) enum Committed {
    Done,
    /// The condition did not hold. With what is there, if that was told.
    Changed(Option<Item>),
}

/// All that a step writes.
pub(super) struct Commit<'a> {
    pub(super) id: &'a RecordId,
    pub(super) before: Option<&'a Held>,
    pub(super) after: Option<&'a Held>,
    pub(super) audit: Option<&'a AuditRecord>,
    pub(super) beside: Vec<Item>,
}

impl Inner {
    pub(super) async fn load(&self, id: &RecordId) -> Result<Option<Box<Held>>, StoreError> {
        let item = self.get(record_key(id)).await?;
        item.map(|item| read_record(&item).map(Box::new).map_err(damaged)).transpose()
    }

    /// One atomic step. `beside` says what is kept beside the record from then on, by the answer.
    ///
    /// # Cancel safety
    /// May be dropped: the step happened as a whole or not at all.
    pub(super) async fn step<A>(
        &self,
        id: &RecordId,
        seen: Seen,
        decide: impl Fn(Option<&Held>, Timestamp) -> Result<Step<A>, StoreError>,
        beside: impl Fn(&A, &mut Held) -> Vec<Item>,
    ) -> Result<A, StoreError> {
        let mut seen = seen;
        for tries in 0..LOOKS_MAX {
            let guessed = matches!(seen, Seen::ProbablyAbsent);
            let found = match std::mem::replace(&mut seen, Seen::Nothing) {
                Seen::Nothing => self.load(id).await?,
                Seen::ProbablyAbsent => None,
                Seen::Found(held) => Some(held),
            };
            let step = decide(found.as_deref(), self.clock.now())?;
            let keeps = step.change == Change::Keep;
            if keeps && guessed {
                continue;
            }
            let mut items = Vec::new();
            let after = match step.change {
                Change::Put(record) => {
                    let mut held = Held::follow(found.as_deref(), *record);
                    items = beside(&step.answer, &mut held);
                    Some(held)
                }
                Change::Keep | Change::Remove => None,
            };
            // A repeated call of an attempt that has the record already.
            let is_same = |before: &Held| {
                let after = after.as_ref();
                items.is_empty() && after.is_some_and(|after| after.record == before.record)
            };
            if keeps || found.as_deref().is_some_and(is_same) {
                if let Some(audit) = &step.audit {
                    self.remember(audit).await?;
                }
                return Ok(step.answer);
            }
            let commit = Commit {
                id,
                before: found.as_deref(),
                after: after.as_ref(),
                audit: step.audit.as_ref(),
                beside: items,
            };
            match self.commit(commit).await? {
                Committed::Done => {
                    self.clean_after(id, found.as_deref(), after.as_ref()).await;
                    return Ok(step.answer);
                }
                Committed::Changed(Some(item)) => {
                    seen = Seen::Found(Box::new(read_record(&item).map_err(damaged)?));
                }
                Committed::Changed(None) => {}
            }
            pause(tries / 4).await;
        }
        Err(keeps_changing())
    }

    /// Writes all of it or nothing.
    pub(super) async fn commit(&self, commit: Commit<'_>) -> Result<Committed, StoreError> {
        let Commit { id, before, after, audit, beside } = commit;
        if audit.is_none() && beside.is_empty() {
            return match after {
                Some(held) => self.put_over(before, write_record(held, self.shards)).await,
                None => self.delete_if(id, before).await,
            };
        }
        let mut items = vec![self.record_write(id, before, after)];
        items.extend(audit.map(|audit| self.audit_write(audit)));
        items.extend(beside.into_iter().map(|item| self.plain_put(item)));
        self.transact(items).await
    }

    fn record_write(
        &self,
        id: &RecordId,
        before: Option<&Held>,
        after: Option<&Held>,
    ) -> TransactWriteItem {
        let (condition, values) = condition(before);
        let all_old = ReturnValuesOnConditionCheckFailure::AllOld;
        let write = TransactWriteItem::builder();
        match after {
            Some(held) => {
                let put = Put::builder()
                    .table_name(&self.table)
                    .set_item(Some(write_record(held, self.shards)))
                    .condition_expression(condition)
                    .set_expression_attribute_values(values)
                    .return_values_on_condition_check_failure(all_old);
                write.put(put.build().unwrap_or_else(|_| unreachable!("a table and an item")))
            }
            None => {
                let delete = Delete::builder()
                    .table_name(&self.table)
                    .set_key(Some(record_key(id)))
                    .condition_expression(condition)
                    .set_expression_attribute_values(values)
                    .return_values_on_condition_check_failure(all_old);
                write.delete(delete.build().unwrap_or_else(|_| unreachable!("a table and a key")))
            }
        }
        .build()
    }

    /// The first audit record of a kind stays: the same thing told again changes nothing.
    pub(super) fn audit_write(&self, audit: &AuditRecord) -> TransactWriteItem {
        let item = write_audit(audit, self.order(), self.shards);
        let mut sets = Vec::with_capacity(item.len());
        let update = Update::builder().table_name(&self.table).set_key(Some(audit_key(audit)));
        let update = item.into_iter().fold(update, |update, (name, value)| {
            sets.push(format!("#{name} = if_not_exists(#{name}, :{name})"));
            update
                .expression_attribute_names(format!("#{name}"), &name)
                .expression_attribute_values(format!(":{name}"), value)
        });
        let update = update.update_expression(format!("SET {}", sets.join(", "))).build();
        let update = update.unwrap_or_else(|_| unreachable!("a table, a key and an expression"));
        TransactWriteItem::builder().update(update).build()
    }

    pub(super) fn plain_put(&self, item: Item) -> TransactWriteItem {
        let put = Put::builder().table_name(&self.table).set_item(Some(item)).build();
        let put = put.unwrap_or_else(|_| unreachable!("a table and an item"));
        TransactWriteItem::builder().put(put).build()
    }

    /// Remembers what changed nothing.
    async fn remember(&self, audit: &AuditRecord) -> Result<(), StoreError> {
        let mut item = audit_key(audit);
        item.extend(write_audit(audit, self.order(), self.shards));
        self.put_new(item).await.map(drop)
    }

    /// Writes an item where there is none; what is there otherwise.
    pub(super) async fn put_new(&self, item: Item) -> Result<Option<Item>, StoreError> {
        match self.put_over(None, item).await? {
            Committed::Done => Ok(None),
            // An item that has nothing but its address is there all the same.
            Committed::Changed(found) => Ok(Some(found.unwrap_or_default())),
        }
    }

    async fn put_over(&self, before: Option<&Held>, item: Item) -> Result<Committed, StoreError> {
        let (condition, values) = condition(before);
        let put = || {
            self.client
                .put_item()
                .table_name(&self.table)
                .set_item(Some(item.clone()))
                .condition_expression(condition)
                .set_expression_attribute_values(values.clone())
                .return_values_on_condition_check_failure(
                    ReturnValuesOnConditionCheckFailure::AllOld,
                )
                .send()
        };
        match self.calls.make(Kind::Write, put).await {
            Ok(_) => Ok(Committed::Done),
            Err(Failed::Said(said)) => match *said {
                PutItemError::ConditionalCheckFailedException(failed) => {
                    Ok(Committed::Changed(failed.item))
                }
                other => Err(Failed::Said(Box::new(other)).into_error()),
            },
            Err(failed) => Err(failed.into_error()),
        }
    }

    async fn delete_if(
        &self,
        id: &RecordId,
        before: Option<&Held>,
    ) -> Result<Committed, StoreError> {
        let (condition, values) = condition(before);
        let delete = || {
            self.client
                .delete_item()
                .table_name(&self.table)
                .set_key(Some(record_key(id)))
                .condition_expression(condition)
                .set_expression_attribute_values(values.clone())
                .return_values_on_condition_check_failure(
                    ReturnValuesOnConditionCheckFailure::AllOld,
                )
                .send()
        };
        match self.calls.make(Kind::Write, delete).await {
            Ok(_) => Ok(Committed::Done),
            Err(Failed::Said(said)) => match *said {
                DeleteItemError::ConditionalCheckFailedException(failed) => {
                    Ok(Committed::Changed(failed.item))
                }
                other => Err(Failed::Said(Box::new(other)).into_error()),
            },
            Err(failed) => Err(failed.into_error()),
        }
    }

    /// Makes several writes at once. The condition that counts is that of the first of them that has
    /// one.
    pub(super) async fn transact(
        &self,
        items: Vec<TransactWriteItem>,
    ) -> Result<Committed, StoreError> {
        for tries in 0..MEETINGS_MAX {
            let write = || {
                let call = self.client.transact_write_items();
                call.set_transact_items(Some(items.clone())).send()
            };
            let said = match self.calls.make(Kind::Write, write).await {
                Ok(_) => return Ok(Committed::Done),
                Err(Failed::Said(said)) => *said,
                Err(failed) => return Err(failed.into_error()),
            };
            let TransactWriteItemsError::TransactionCanceledException(cancelled) = &said else {
                return Err(Failed::Said(Box::new(said)).into_error());
            };
            let reasons = cancelled.cancellation_reasons();
            if let Some(failed) = reasons.iter().find(|it| is(it, "ConditionalCheckFailed")) {
                return Ok(Committed::Changed(failed.item.clone()));
            }
            if !reasons.iter().any(|reason| PASSES.iter().any(|code| is(reason, code))) {
                return Err(Failed::Said(Box::new(said)).into_error());
            }
            pause(tries).await;
        }
        Err(StoreError::new(StoreErrorKind::Unavailable, STORE, "transactions keep meeting"))
    }

    /// What audit records and notes are sorted by: the time, and never the same one twice.
    pub(super) fn order(&self) -> i64 {
        use std::sync::atomic::{AtomicI64, Ordering};
        static LAST: AtomicI64 = AtomicI64::new(0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX));
        let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
            Some(now.max(last.saturating_add(1)))
        });
        now.max(last.unwrap_or_default().saturating_add(1))
    }

    async fn clean_after(&self, id: &RecordId, before: Option<&Held>, after: Option<&Held>) {
        let ended = after.is_none_or(|after| after.record.state.is_terminal());
        if let Some(held) = before.filter(|held| ended && held.has_beside()) {
            self.clean_beside(&partition(id), held.beside).await;
        }
    }
}

/// Others were faster, again and again.
pub(super) fn keeps_changing() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, STORE, "an item keeps changing")
}

/// Reasons for which a transaction is made again.
const PASSES: [&str; 4] = [
    "TransactionConflict",
    "ThrottlingError",
    "ProvisionedThroughputExceeded",
    "RequestLimitExceeded",
];

fn is(reason: &CancellationReason, code: &str) -> bool {
    reason.code() == Some(code)
}

type Values = Option<std::collections::HashMap<String, AttributeValue>>;

/// That the record is still what was looked at.
fn condition(before: Option<&Held>) -> (&'static str, Values) {
    match before {
        None => ("attribute_not_exists(pk)", None),
        Some(held) => {
            let seen = (":seen".to_owned(), bytes(held.stamp));
            ("stamp = :seen", Some(std::collections::HashMap::from([seen])))
        }
    }
}

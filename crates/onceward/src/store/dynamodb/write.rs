//! What an attempt writes most: its renewals and its completion, each in one round trip that needs to
//! know nothing of the record but the lease.

use std::collections::HashMap;

use aws_sdk_dynamodb::{
    operation::update_item::UpdateItemError,
    types::{
        AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure, TransactWriteItem,
        Update as ItemUpdate,
    },
};

use super::{
    Inner,
    call::{Failed, Kind, damaged},
    item::{Item, Reader, bytes, number, text, time},
    row::{REPLY, partition, read_record, record_key, shard_of, write_reply},
    step::{Committed, Seen},
};
use crate::{
    clock::Timestamp,
    machine,
    record::{Lease, State},
    reply::Reply,
    store::{StoreError, Write, Written},
};

/// Times that are this long are added by the machine, which does not overflow. In microseconds.
const LONG: i64 = 100 * 366 * 24 * 60 * 60 * 1_000_000;

/// A change of some attributes of an item under conditions.
#[derive(Default)]
struct Update {
    sets: Vec<String>,
    removes: Vec<String>,
    conditions: Vec<String>,
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
}

impl Update {
    /// By the lease's own attempt, and nobody else's.
    fn by(lease: &Lease) -> Self {
        Update::default()
            .only_if("state", "=", text(State::InProgress.name()))
            .only_if("attempt", "=", bytes(lease.attempt.as_bytes().to_vec()))
            .only_if("fence", "=", number(lease.fence.number()))
            .set("stamp", bytes(rand::random::<[u8; 16]>()))
    }

    fn name(&mut self, name: &str) -> String {
        let placeholder = format!("#{name}");
        self.names.insert(placeholder.clone(), name.to_owned());
        placeholder
    }

    fn value(&mut self, value: AttributeValue) -> String {
        let placeholder = format!(":v{}", self.values.len());
        self.values.insert(placeholder.clone(), value);
        placeholder
    }

    fn only_if(mut self, name: &str, is: &str, value: AttributeValue) -> Self {
        let condition = format!("{} {is} {}", self.name(name), self.value(value));
        self.conditions.push(condition);
        self
    }

    fn set(mut self, name: &str, value: AttributeValue) -> Self {
        let set = format!("{} = {}", self.name(name), self.value(value));
        self.sets.push(set);
        self
    }

    /// To a number plus another attribute.
    fn set_sum(mut self, name: &str, value: AttributeValue, plus: &str) -> Self {
        let set = format!("{} = {} + {}", self.name(name), self.value(value), self.name(plus));
        self.sets.push(set);
        self
    }

    fn remove(mut self, name: &str) -> Self {
        let removed = self.name(name);
        self.removes.push(removed);
        self
    }

    fn expression(&self) -> String {
        let sets = format!("SET {}", self.sets.join(", "));
        match self.removes.is_empty() {
            true => sets,
            false => format!("{sets} REMOVE {}", self.removes.join(", ")),
        }
    }

    fn condition(&self) -> String {
        self.conditions.join(" AND ")
    }
}

fn renewal(lease: &Lease, until: Timestamp) -> Update {
    Update::by(lease)
        .only_if("lease_until", "<=", time(until))
        .set("lease_until", time(until))
        .set("due_at", time(until))
}

/// What [`machine::write`] makes of work in progress that is completed.
fn completion(lease: &Lease, reply: &Reply, now: Timestamp, shards: u32) -> Update {
    let due = shard_of(State::Completed.name(), &partition(&lease.id), shards);
    let mut update = Update::by(lease)
        .only_if("retention", "<", number(LONG))
        .set("state", text(State::Completed.name()))
        .set("finished_at", time(now))
        .set_sum("expires_at", time(now), "retention")
        .set("due", text(due))
        .set_sum("due_at", time(now), "retention");
    let mut parts = write_reply(Item::new(), Some(reply));
    for name in REPLY {
        update = match parts.remove(name) {
            Some(value) => update.set(name, value),
            None => update.remove(name),
        };
    }
    let gone = [
        "last_error",
        "reconcile_after",
        "probes",
        "asked_at",
        "absent_at",
        "steps",
        "request_parts",
    ];
    gone.into_iter().fold(update, Update::remove)
}

impl Inner {
    /// Renews, completes, releases or marks unknown.
    pub(super) async fn write(&self, lease: &Lease, write: Write) -> Result<Written, StoreError> {
        let now = self.clock.now();
        let update = match &write {
            Write::Renew(by) => Some(renewal(lease, now.plus(*by))),
            Write::Complete(reply) => Some(completion(lease, reply, now, self.shards)),
            Write::Release(_) | Write::MarkUnknown(_) => None,
        };
        let seen = match update {
            None => Seen::Nothing,
            Some(update) => match self.update(lease, &update).await? {
                Committed::Done => return Ok(Written::Applied),
                Committed::Changed(None) => Seen::Nothing,
                Committed::Changed(Some(item)) => {
                    Seen::Found(Box::new(read_record(&item).map_err(damaged)?))
                }
            },
        };
        self.step(
            &lease.id,
            seen,
            |held, now| Ok(machine::write(held.map(|it| &it.record), lease, write.clone(), now)),
            |_, _| Vec::new(),
        )
        .await
    }

    async fn update(&self, lease: &Lease, update: &Update) -> Result<Committed, StoreError> {
        let call = || {
            self.client
                .update_item()
                .table_name(&self.table)
                .set_key(Some(record_key(&lease.id)))
                .update_expression(update.expression())
                .condition_expression(update.condition())
                .set_expression_attribute_names(Some(update.names.clone()))
                .set_expression_attribute_values(Some(update.values.clone()))
                .return_values(ReturnValue::UpdatedOld)
                .return_values_on_condition_check_failure(
                    ReturnValuesOnConditionCheckFailure::AllOld,
                )
                .send()
        };
        match self.calls.make(Kind::Write, call).await {
            Ok(done) => {
                let old = done.attributes.unwrap_or_default();
                let had_beside = old.contains_key("request_parts") || old.contains_key("steps");
                if had_beside {
                    // Not seen any more. What is left here is found by the reaper.
                    self.clean_beside(&partition(&lease.id), lease.fence.number()).await;
                }
                Ok(Committed::Done)
            }
            Err(Failed::Said(said)) => match *said {
                UpdateItemError::ConditionalCheckFailedException(failed) => {
                    Ok(Committed::Changed(failed.item))
                }
                other => Err(Failed::Said(Box::new(other)).into_error()),
            },
            Err(failed) => Err(failed.into_error()),
        }
    }

    /// The completion as a part of somebody's transaction.
    pub(super) fn completing(&self, lease: &Lease, reply: &Reply) -> TransactWriteItem {
        let update = completion(lease, reply, self.clock.now(), self.shards);
        let item = ItemUpdate::builder()
            .table_name(&self.table)
            .set_key(Some(record_key(&lease.id)))
            .update_expression(update.expression())
            .condition_expression(update.condition())
            .set_expression_attribute_names(Some(update.names))
            .set_expression_attribute_values(Some(update.values))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .build();
        let item = item.unwrap_or_else(|_| unreachable!("a table, a key and an expression"));
        TransactWriteItem::builder().update(item).build()
    }
}

/// Whether an item is a record that this attempt has completed.
pub(super) fn is_completed_by(item: &Item, lease: &Lease) -> bool {
    let read = Reader(item);
    read.text("state").is_ok_and(|state| state == State::Completed.name())
        && read.bytes("attempt").is_ok_and(|attempt| attempt == lease.attempt.as_bytes())
        && read.integer("fence").is_ok_and(|fence| fence == lease.fence.number())
}

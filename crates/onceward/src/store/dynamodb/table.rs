//! The plain calls: one item, a range of a partition, a part of an index, many items by their keys.

use std::collections::{HashMap, HashSet};

use aws_sdk_dynamodb::types::{
    AttributeValue, ConditionCheck, KeysAndAttributes, Put, ReturnValuesOnConditionCheckFailure,
    TransactWriteItem,
};

use super::{
    Inner,
    call::{Kind, pause},
    item::{Item, Reader, bytes, number, text},
    row::{Held, record_key},
};
use crate::store::StoreError;

/// How many items one call reads by their keys.
const KEYS_MAX: usize = 100;

/// Which part of an index to read, and where to go on.
pub(super) struct Slice<'a> {
    pub(super) index: &'a str,
    /// The attribute of its partitions, and that of its order.
    pub(super) names: (&'a str, &'a str),
    pub(super) part: String,
    pub(super) from: i64,
    pub(super) to: i64,
    pub(super) ascending: bool,
    pub(super) limit: Option<i32>,
    pub(super) after: Option<Item>,
}

impl Inner {
    pub(super) async fn get(&self, key: Item) -> Result<Option<Item>, StoreError> {
        let get = || {
            let call = self.client.get_item().table_name(&self.table).consistent_read(true);
            call.set_key(Some(key.clone())).send()
        };
        let got = self.calls.make(Kind::Read, get).await;
        got.map(|got| got.item).map_err(|failed| failed.into_error())
    }

    pub(super) async fn delete(&self, key: Item) -> Result<(), StoreError> {
        let delete = || {
            let call = self.client.delete_item().table_name(&self.table);
            call.set_key(Some(key.clone())).send()
        };
        let deleted = self.calls.make(Kind::Write, delete).await;
        deleted.map(drop).map_err(|failed| failed.into_error())
    }

    /// Deletes what belongs to this life of a record, and leaves what belongs to another one.
    pub(super) async fn delete_if_of(&self, key: Item, life: i64) -> Result<(), StoreError> {
        let delete = || {
            self.client
                .delete_item()
                .table_name(&self.table)
                .set_key(Some(key.clone()))
                .condition_expression("attribute_not_exists(pk) OR life = :life")
                .expression_attribute_values(":life", number(life))
                .send()
        };
        match self.calls.make(Kind::Write, delete).await {
            Ok(_) | Err(super::call::Failed::Said(_)) => Ok(()),
            Err(failed) => Err(failed.into_error()),
        }
    }

    /// The items of a partition between two sort keys, in order.
    pub(super) async fn range(
        &self,
        partition: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<Item>, StoreError> {
        let mut items = Vec::new();
        let mut after = None;
        loop {
            let query = || {
                self.client
                    .query()
                    .table_name(&self.table)
                    .consistent_read(true)
                    .key_condition_expression("pk = :pk AND sk BETWEEN :from AND :to")
                    .expression_attribute_values(":pk", text(partition))
                    .expression_attribute_values(":from", text(from))
                    .expression_attribute_values(":to", text(to))
                    .set_exclusive_start_key(after.clone())
                    .send()
            };
            let page = self.calls.make(Kind::Read, query).await;
            let page = page.map_err(|failed| failed.into_error())?;
            items.extend(page.items.unwrap_or_default());
            after = page.last_evaluated_key.filter(|key| !key.is_empty());
            if after.is_none() {
                return Ok(items);
            }
        }
    }

    /// A page of an index, and where to go on. It may be behind the table.
    pub(super) async fn slice(
        &self,
        slice: &Slice<'_>,
    ) -> Result<(Vec<Item>, Option<Item>), StoreError> {
        let query = || {
            self.client
                .query()
                .table_name(&self.table)
                .index_name(slice.index)
                .key_condition_expression("#part = :part AND #at BETWEEN :from AND :to")
                .expression_attribute_names("#part", slice.names.0)
                .expression_attribute_names("#at", slice.names.1)
                .expression_attribute_values(":part", text(&slice.part))
                .expression_attribute_values(":from", number(slice.from))
                .expression_attribute_values(":to", number(slice.to))
                .scan_index_forward(slice.ascending)
                .set_limit(slice.limit)
                .set_exclusive_start_key(slice.after.clone())
                .send()
        };
        let page = self.calls.make(Kind::Read, query).await;
        let page = page.map_err(|failed| failed.into_error())?;
        let next = page.last_evaluated_key.filter(|key| !key.is_empty());
        Ok((page.items.unwrap_or_default(), next))
    }

    /// The items of these keys, as they are now, in any order; only these attributes, if any are named.
    /// A key that is given twice is asked for once: the service refuses the other.
    pub(super) async fn get_many(
        &self,
        keys: Vec<Item>,
        only: &[&str],
    ) -> Result<Vec<Item>, StoreError> {
        let mut asked = HashSet::with_capacity(keys.len());
        let address = |key: &Item| {
            let read = Reader(key);
            read.text("pk").ok().zip(read.text("sk").ok()).map(|(pk, sk)| format!("{pk}\0{sk}"))
        };
        let keys: Vec<Item> = keys.into_iter().filter(|key| asked.insert(address(key))).collect();
        let mut items = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(KEYS_MAX) {
            let mut left = chunk.to_vec();
            let mut tries = 0;
            while !left.is_empty() {
                let (found, unread) = self.get_some(left, only).await?;
                items.extend(found);
                left = unread;
                if !left.is_empty() {
                    pause(tries).await;
                    tries += 1;
                }
            }
        }
        Ok(items)
    }

    async fn get_some(
        &self,
        keys: Vec<Item>,
        only: &[&str],
    ) -> Result<(Vec<Item>, Vec<Item>), StoreError> {
        let mut asked = KeysAndAttributes::builder().set_keys(Some(keys)).consistent_read(true);
        if !only.is_empty() {
            let names: HashMap<String, String> =
                only.iter().map(|name| (format!("#{name}"), (*name).to_owned())).collect();
            let places: Vec<String> = only.iter().map(|name| format!("#{name}")).collect();
            asked = asked
                .projection_expression(places.join(", "))
                .set_expression_attribute_names(Some(names));
        }
        let asked = asked.build().unwrap_or_else(|_| unreachable!("it has keys"));
        let get = || {
            let call = self.client.batch_get_item();
            call.request_items(&self.table, asked.clone()).send()
        };
        let got = self.calls.make(Kind::Read, get).await;
        let got = got.map_err(|failed| failed.into_error())?;
        let mut found = got.responses.unwrap_or_default();
        let mut unread = got.unprocessed_keys.unwrap_or_default();
        let unread = unread.remove(&self.table).map(|left| left.keys).unwrap_or_default();
        Ok((found.remove(&self.table).unwrap_or_default(), unread))
    }

    /// A write over an item that is still the one that was looked at, or where there was none.
    pub(super) fn guarded_put(&self, item: Item, seen: Option<[u8; 16]>) -> TransactWriteItem {
        let put = Put::builder()
            .table_name(&self.table)
            .set_item(Some(item))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let put = match seen {
            None => put.condition_expression("attribute_not_exists(pk)"),
            Some(stamp) => put
                .condition_expression("stamp = :seen")
                .expression_attribute_values(":seen", bytes(stamp)),
        };
        let put = put.build().unwrap_or_else(|_| unreachable!("a table and an item"));
        TransactWriteItem::builder().put(put).build()
    }

    /// That a record is there, and of the same use of its key.
    pub(super) fn same_use(&self, held: &Held) -> TransactWriteItem {
        let check = ConditionCheck::builder()
            .table_name(&self.table)
            .set_key(Some(record_key(&held.record.id)))
            .condition_expression("#life = :life AND #generation = :generation")
            .expression_attribute_names("#life", "life")
            .expression_attribute_names("#generation", "generation")
            .expression_attribute_values(":life", number(held.life))
            .expression_attribute_values(":generation", number(held.record.generation))
            .build();
        let check = check.unwrap_or_else(|_| unreachable!("a table, a key and a condition"));
        TransactWriteItem::builder().condition_check(check).build()
    }
}

/// The value of an attribute in a list of keys.
pub(super) fn at(item: &Item, name: &str) -> Option<i64> {
    item.get(name).and_then(|value| AttributeValue::as_n(value).ok()?.parse().ok())
}

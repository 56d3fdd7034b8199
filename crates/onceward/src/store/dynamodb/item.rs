//! Attributes of items, written and read by name.

use std::collections::HashMap;

use aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue};

use crate::clock::Timestamp;

pub(super) type Item = HashMap<String, AttributeValue>;

/// An item that is not what we wrote.
#[derive(Debug, thiserror::Error)]
#[error("attribute {0} cannot be read")]
pub(super) struct BadItem(pub(super) &'static str);

pub(super) fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

pub(super) fn number(value: impl Into<i64>) -> AttributeValue {
    AttributeValue::N(value.into().to_string())
}

pub(super) fn time(value: Timestamp) -> AttributeValue {
    number(value.as_micros())
}

pub(super) fn bytes(value: impl Into<Vec<u8>>) -> AttributeValue {
    AttributeValue::B(Blob::new(value))
}

/// The address of an item in the table.
pub(super) fn key(pk: impl Into<String>, sk: impl Into<String>) -> Item {
    HashMap::from([("pk".to_owned(), text(pk)), ("sk".to_owned(), text(sk))])
}

/// Its address alone.
pub(super) fn key_of(item: &Item) -> Result<Item, BadItem> {
    let read = Reader(item);
    Ok(key(read.text("pk")?, read.text("sk")?))
}

/// Puts attributes into an item. What is not there is not written.
pub(super) trait Put {
    fn with(self, name: &str, value: AttributeValue) -> Self;
    fn with_some(self, name: &str, value: Option<AttributeValue>) -> Self;
}

impl Put for Item {
    fn with(mut self, name: &str, value: AttributeValue) -> Self {
        self.insert(name.to_owned(), value);
        self
    }

    fn with_some(self, name: &str, value: Option<AttributeValue>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }
}

/// Reads the attributes of an item. One of another type than we write is an error, never a default.
pub(super) struct Reader<'i>(pub(super) &'i Item);

impl<'i> Reader<'i> {
    pub(super) fn optional_text(&self, name: &'static str) -> Result<Option<&'i str>, BadItem> {
        self.0
            .get(name)
            .map(|value| value.as_s().map_err(|_| BadItem(name)))
            .transpose()
            .map(|found| found.map(String::as_str))
    }

    pub(super) fn text(&self, name: &'static str) -> Result<&'i str, BadItem> {
        self.optional_text(name)?.ok_or(BadItem(name))
    }

    pub(super) fn optional_integer(&self, name: &'static str) -> Result<Option<i64>, BadItem> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let digits = value.as_n().map_err(|_| BadItem(name))?;
        digits.parse().map(Some).map_err(|_| BadItem(name))
    }

    pub(super) fn integer(&self, name: &'static str) -> Result<i64, BadItem> {
        self.optional_integer(name)?.ok_or(BadItem(name))
    }

    pub(super) fn number<N: TryFrom<i64>>(&self, name: &'static str) -> Result<N, BadItem> {
        self.integer(name)?.try_into().map_err(|_| BadItem(name))
    }

    pub(super) fn optional_number<N: TryFrom<i64>>(
        &self,
        name: &'static str,
    ) -> Result<Option<N>, BadItem> {
        let number = self.optional_integer(name)?;
        number.map(|number| number.try_into().map_err(|_| BadItem(name))).transpose()
    }

    pub(super) fn time(&self, name: &'static str) -> Result<Timestamp, BadItem> {
        self.integer(name).map(Timestamp::from_micros)
    }

    pub(super) fn optional_time(&self, name: &'static str) -> Result<Option<Timestamp>, BadItem> {
        Ok(self.optional_integer(name)?.map(Timestamp::from_micros))
    }

    pub(super) fn optional_bytes(&self, name: &'static str) -> Result<Option<&'i [u8]>, BadItem> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        value.as_b().map(|blob| Some(blob.as_ref())).map_err(|_| BadItem(name))
    }

    pub(super) fn bytes(&self, name: &'static str) -> Result<&'i [u8], BadItem> {
        self.optional_bytes(name)?.ok_or(BadItem(name))
    }

    pub(super) fn array<const N: usize>(&self, name: &'static str) -> Result<[u8; N], BadItem> {
        self.bytes(name)?.try_into().map_err(|_| BadItem(name))
    }

    pub(super) fn list(&self, name: &'static str) -> Result<&'i [AttributeValue], BadItem> {
        let Some(value) = self.0.get(name) else { return Ok(&[]) };
        value.as_l().map(Vec::as_slice).map_err(|_| BadItem(name))
    }
}

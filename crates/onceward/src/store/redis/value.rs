//! What the server answers, taken apart.

use bytes::Bytes;
use redis::Value;

use super::error::unreadable;
use crate::{clock::Timestamp, store::StoreError};

/// An answer with several parts, taken one after the other.
pub(super) struct Parts(std::vec::IntoIter<Value>);

impl Parts {
    pub(super) fn of(value: Value) -> Result<Self, StoreError> {
        match value {
            Value::Array(parts) => Ok(Parts(parts.into_iter())),
            _ => Err(unreadable()),
        }
    }

    /// Whether it begins with this word.
    pub(super) fn is_word(&self, word: &[u8]) -> bool {
        matches!(self.0.as_slice().first(), Some(Value::BulkString(first)) if first == word)
    }

    fn one(&mut self) -> Result<Value, StoreError> {
        self.0.next().ok_or_else(unreadable)
    }

    pub(super) fn bytes(&mut self) -> Result<Bytes, StoreError> {
        bytes(self.one()?)
    }

    pub(super) fn text(&mut self) -> Result<String, StoreError> {
        String::from_utf8(self.bytes()?.into()).map_err(|_| unreadable())
    }

    pub(super) fn integer(&mut self) -> Result<i64, StoreError> {
        match self.one()? {
            Value::Int(number) => Ok(number),
            other => {
                let bytes = bytes(other)?;
                let text = std::str::from_utf8(&bytes).map_err(|_| unreadable())?;
                text.parse().map_err(|_| unreadable())
            }
        }
    }

    pub(super) fn natural(&mut self) -> Result<u64, StoreError> {
        u64::try_from(self.integer()?).map_err(|_| unreadable())
    }

    pub(super) fn time(&mut self) -> Result<Timestamp, StoreError> {
        self.integer().map(Timestamp::from_micros)
    }

    /// A place in an index, which the server keeps as a number of another kind.
    pub(super) fn score(&mut self) -> Result<i64, StoreError> {
        self.optional_score()?.ok_or_else(unreadable)
    }

    pub(super) fn optional_score(&mut self) -> Result<Option<i64>, StoreError> {
        let score = self.text()?;
        if score.is_empty() {
            return Ok(None);
        }
        let score: f64 = score.parse().map_err(|_| unreadable())?;
        Ok(Some(score as i64))
    }

    pub(super) fn parts(&mut self) -> Result<Parts, StoreError> {
        Parts::of(self.one()?)
    }

    /// Names and values, in turn.
    pub(super) fn pairs(&mut self) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.parts()?.into_pairs()
    }

    pub(super) fn into_pairs(mut self) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        let mut pairs = Vec::with_capacity(self.0.len() / 2);
        while self.0.len() > 0 {
            pairs.push((self.bytes()?, self.bytes()?));
        }
        Ok(pairs)
    }
}

impl Iterator for Parts {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.0.next()
    }
}

pub(super) fn bytes(value: Value) -> Result<Bytes, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes.into()),
        Value::SimpleString(text) => Ok(text.into()),
        _ => Err(unreadable()),
    }
}

//! The data keys of a scope, in one value, in the bucket of what is about the whole scope.

use bytes::Bytes;
use redis::Value;

use super::{
    RedisStore,
    address::member,
    error::{damaged, unavailable},
    row::{Decoder, Encoder},
    value::bytes,
};
use crate::{
    key::Key,
    record::{AuditRecord, RecordId},
    scope::Scope,
    store::{SCOPE_WIDE, ScopeKey, StoreError},
};

/// How often the keys are looked at again that others keep changing.
const LOOKS_MAX: u32 = 20;

impl RedisStore {
    pub(super) async fn keys_of(
        &self,
        scope: &Scope,
        proposed: Option<ScopeKey>,
    ) -> Result<Vec<ScopeKey>, StoreError> {
        for _ in 0..LOOKS_MAX {
            let place = self.place_of(scope);
            let (kept, mut keys) = self.kept_keys(&place).await?;
            let Some(proposed) = &proposed else { return Ok(keys) };
            let has_one = |key: &ScopeKey| key.stands() && key.wrapped_by == proposed.wrapped_by;
            if keys.iter().any(has_one) {
                return Ok(keys);
            }
            keys.push(proposed.clone());
            if self.replace_keys(&place, &kept, &keys, &[]).await? {
                return Ok(keys);
            }
        }
        Err(unavailable("the keys of a scope keep changing"))
    }

    pub(super) async fn drop_keys(&self, scope: &Scope, reason: &str) -> Result<u32, StoreError> {
        for _ in 0..LOOKS_MAX {
            let place = self.place_of(scope);
            let (kept, mut keys) = self.kept_keys(&place).await?;
            let now = self.server_time(place.bucket).await?;
            let mut audits = Vec::new();
            for key in keys.iter_mut().filter(|key| key.stands()) {
                key.wrapped = None;
                audits.push(AuditRecord::erased(scope.clone(), key.id, reason, now));
            }
            let dropped = u32::try_from(audits.len()).unwrap_or(u32::MAX);
            if dropped == 0 || self.replace_keys(&place, &kept, &keys, &audits).await? {
                return Ok(dropped);
            }
        }
        Err(unavailable("the keys of a scope keep changing"))
    }

    fn place_of(&self, scope: &Scope) -> Place {
        let all = Key::new(SCOPE_WIDE).unwrap_or_else(|_| unreachable!("one visible character"));
        let member = member(&RecordId { scope: scope.clone(), key: all });
        let bucket = self.bucket(&member);
        Place { bucket, key: self.client.layout.key(bucket, "k:", &member), member }
    }

    async fn kept_keys(&self, place: &Place) -> Result<(Bytes, Vec<ScopeKey>), StoreError> {
        let mut get = redis::cmd("GET");
        get.arg(&place.key);
        let kept = match self.client.command(place.bucket, &get).await? {
            Value::Nil => return Ok((Bytes::new(), Vec::new())),
            kept => bytes(kept)?,
        };
        let keys = read_keys(&kept).ok_or_else(|| damaged("the keys of a scope"))?;
        Ok((kept, keys))
    }

    async fn replace_keys(
        &self,
        place: &Place,
        expected: &[u8],
        keys: &[ScopeKey],
        audits: &[AuditRecord],
    ) -> Result<bool, StoreError> {
        let Place { bucket, key, member } = place;
        let value = encode_keys(keys);
        self.replace_value(*bucket, key.clone(), expected, &value, member, audits).await
    }
}

struct Place {
    bucket: u16,
    key: Vec<u8>,
    member: Vec<u8>,
}

fn encode_keys(keys: &[ScopeKey]) -> Vec<u8> {
    let mut encoded = Encoder::new();
    encoded.integer(i64::try_from(keys.len()).unwrap_or(i64::MAX));
    for key in keys {
        encoded.bytes(&key.id);
        encoded.bytes(key.wrapped_by.as_bytes());
        encoded.optional(key.wrapped.as_deref());
    }
    encoded.0
}

fn read_keys(kept: &Bytes) -> Option<Vec<ScopeKey>> {
    let mut encoded = Decoder::of(kept)?;
    let count = encoded.integer()?;
    let mut keys = Vec::new();
    for _ in 0..count {
        keys.push(ScopeKey {
            id: encoded.array()?,
            wrapped_by: encoded.text()?,
            wrapped: encoded.optional()?,
        });
    }
    encoded.end()?;
    Some(keys)
}

//! What is about the whole table or a whole scope: identity settings, beats, data keys.

use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem};
use bytes::Bytes;

use super::{
    Inner,
    call::{damaged, pause},
    item::{BadItem, Item, Put as _, Reader, bytes, key, key_of, number, text, time},
    step::{Committed, LOOKS_MAX, keeps_changing},
};
use crate::{
    clock::Timestamp,
    machine,
    record::AuditRecord,
    scope::Scope,
    store::{Beat, Beaten, Identity, IdentityCheck, Pulse, Regression, ScopeKey, StoreError},
};

const BEATS: &str = "beats";

fn identity_key() -> Item {
    key("meta", "identity")
}

fn regression_key() -> Item {
    key("meta", "regression")
}

fn stamp_of(item: Option<&Item>) -> Result<Option<[u8; 16]>, StoreError> {
    item.map(|item| Reader(item).array("stamp")).transpose().map_err(damaged)
}

fn stamped(item: Item) -> Item {
    item.with("stamp", bytes(rand::random::<[u8; 16]>()))
}

impl Inner {
    pub(super) async fn check_identity(
        &self,
        identity: &Identity,
    ) -> Result<IdentityCheck, StoreError> {
        let item = stamped(identity_key()).with("digest", text(identity.as_str()));
        let Some(found) = self.put_new(item).await? else { return Ok(IdentityCheck::Same) };
        let known = Reader(&found).text("digest").map_err(damaged)?;
        Ok(match known == identity.as_str() {
            true => IdentityCheck::Same,
            false => IdentityCheck::Different,
        })
    }

    pub(super) async fn accept_identity(&self, identity: &Identity) -> Result<(), StoreError> {
        let item = stamped(identity_key()).with("digest", text(identity.as_str()));
        let _: Committed = self.transact(vec![self.plain_put(item)]).await?;
        Ok(())
    }

    /// Counts a beat. What is known to be lost is read after it, so that it is told at once.
    pub(super) async fn beat(&self, beat: Beat) -> Result<Pulse, StoreError> {
        for tries in 0..LOOKS_MAX {
            let place = key(BEATS, beat.node.to_string());
            let found = self.get(place.clone()).await?;
            let known = self.get(regression_key()).await?;
            let beaten = found.as_ref().map(read_beaten).transpose().map_err(damaged)?;
            let regression = known.as_ref().map(read_regression).transpose().map_err(damaged)?;
            let step = machine::beat(beaten, regression.flatten(), &beat, self.clock.now());
            let counted = i64::try_from(step.beaten.count).unwrap_or(i64::MAX);
            let item =
                stamped(place).with("count", number(counted)).with("at", time(step.beaten.at));
            let mut writes = vec![self.guarded_put(item, stamp_of(found.as_ref())?)];
            if let Some(audit) = &step.audit {
                let lost = write_regression(step.pulse.regression);
                writes.push(self.guarded_put(lost, stamp_of(known.as_ref())?));
                writes.push(self.audit_write(audit));
            }
            if let Committed::Changed(_) = self.transact(writes).await? {
                pause(tries).await;
                continue;
            }
            if found.is_none() {
                self.forget_nodes(self.clock.now()).await?;
            }
            if step.audit.is_some() {
                return Ok(step.pulse);
            }
            let known = self.get(regression_key()).await?;
            let known = known.as_ref().map(read_regression).transpose().map_err(damaged)?;
            return Ok(Pulse { regression: known.flatten(), ..step.pulse });
        }
        Err(keeps_changing())
    }

    /// Forgets the nodes that have not been there for long.
    async fn forget_nodes(&self, now: Timestamp) -> Result<(), StoreError> {
        for item in self.range(BEATS, "0", "~").await? {
            let beaten = read_beaten(&item).map_err(damaged)?;
            if now.since(beaten.at) >= machine::BEATS_KEPT {
                self.delete(key_of(&item).map_err(damaged)?).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn acknowledge_regression(
        &self,
        reason: &str,
    ) -> Result<Option<Regression>, StoreError> {
        for tries in 0..LOOKS_MAX {
            let item = self.get(regression_key()).await?;
            let known = item.as_ref().map(read_regression).transpose().map_err(damaged)?;
            let Some(known) = known.flatten() else { return Ok(None) };
            let audit = AuditRecord::acknowledged(known, reason, self.clock.now());
            let forgotten = self.guarded_put(write_regression(None), stamp_of(item.as_ref())?);
            let writes = vec![forgotten, self.audit_write(&audit)];
            if let Committed::Done = self.transact(writes).await? {
                return Ok(Some(known));
            }
            pause(tries).await;
        }
        Err(keeps_changing())
    }

    pub(super) async fn scope_keys(
        &self,
        scope: &Scope,
        proposed: Option<ScopeKey>,
    ) -> Result<Vec<ScopeKey>, StoreError> {
        for tries in 0..LOOKS_MAX {
            let item = self.get(scope_key(scope)).await?;
            let mut keys = read_keys(item.as_ref()).map_err(damaged)?;
            let Some(proposed) = &proposed else { return Ok(keys) };
            let has_one = |key: &ScopeKey| key.stands() && key.wrapped_by == proposed.wrapped_by;
            if keys.iter().any(has_one) {
                return Ok(keys);
            }
            keys.push(proposed.clone());
            let write = self.guarded_put(write_keys(scope, &keys), stamp_of(item.as_ref())?);
            if let Committed::Done = self.transact(vec![write]).await? {
                return Ok(keys);
            }
            pause(tries).await;
        }
        Err(keeps_changing())
    }

    pub(super) async fn drop_scope_keys(
        &self,
        scope: &Scope,
        reason: &str,
    ) -> Result<u32, StoreError> {
        for tries in 0..LOOKS_MAX {
            let item = self.get(scope_key(scope)).await?;
            let mut keys = read_keys(item.as_ref()).map_err(damaged)?;
            let now = self.clock.now();
            let mut audits: Vec<TransactWriteItem> = Vec::new();
            for key in keys.iter_mut().filter(|key| key.stands()) {
                key.wrapped = None;
                let audit = AuditRecord::erased(scope.clone(), key.id, reason, now);
                audits.push(self.audit_write(&audit));
            }
            let dropped = u32::try_from(audits.len()).unwrap_or(u32::MAX);
            if dropped == 0 {
                return Ok(0);
            }
            let mut writes =
                vec![self.guarded_put(write_keys(scope, &keys), stamp_of(item.as_ref())?)];
            writes.extend(audits);
            if let Committed::Done = self.transact(writes).await? {
                return Ok(dropped);
            }
            pause(tries).await;
        }
        Err(keeps_changing())
    }
}

fn read_beaten(item: &Item) -> Result<Beaten, BadItem> {
    let read = Reader(item);
    Ok(Beaten { count: read.number("count")?, at: read.time("at")? })
}

fn read_regression(item: &Item) -> Result<Option<Regression>, BadItem> {
    let read = Reader(item);
    let Some(found) = read.optional_time("found")? else { return Ok(None) };
    Ok(Some(Regression { since: read.optional_time("since")?, found }))
}

/// The item stays when nothing is lost any more, so that its stamp goes on.
fn write_regression(regression: Option<Regression>) -> Item {
    let since = regression.and_then(|regression| regression.since);
    stamped(regression_key())
        .with_some("found", regression.map(|regression| time(regression.found)))
        .with_some("since", since.map(time))
}

fn scope_key(scope: &Scope) -> Item {
    key(format!("s#{}", scope.as_str()), "keys")
}

fn write_keys(scope: &Scope, keys: &[ScopeKey]) -> Item {
    let written = keys.iter().map(|key| {
        let item = Item::new()
            .with("id", bytes(key.id))
            .with("wrapped_by", text(&*key.wrapped_by))
            .with_some("wrapped", key.wrapped.as_ref().map(|wrapped| bytes(wrapped.to_vec())));
        AttributeValue::M(item)
    });
    stamped(scope_key(scope)).with("keys", AttributeValue::L(written.collect()))
}

fn read_keys(item: Option<&Item>) -> Result<Vec<ScopeKey>, BadItem> {
    let Some(item) = item else { return Ok(Vec::new()) };
    let keys = Reader(item).list("keys")?.iter().map(|value| {
        let read = Reader(value.as_m().map_err(|_| BadItem("keys"))?);
        Ok(ScopeKey {
            id: read.array("id")?,
            wrapped_by: read.text("wrapped_by")?.into(),
            wrapped: read.optional_bytes("wrapped")?.map(Bytes::copy_from_slice),
        })
    });
    keys.collect()
}

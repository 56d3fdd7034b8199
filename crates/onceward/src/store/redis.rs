//! Records in Redis 7 or Valkey, one server or a Cluster, for many processes: fast, and as durable as
//! that server is. Must be declared best-effort.
//!
//! Every operation is a script on the keys of one bucket, which are in one slot. Those that every
//! request needs decide in the server; everything else is decided by the machine here and written if
//! the record is unchanged. No key has a lifetime in the server: nothing goes before the reaper takes
//! it. `docs/adr/0027` says why.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use redis::Value;

use super::list::{AuditPage, AuditQuery, Page, Query, Stats};
use super::{
    Advance, Advanced, Ask, Beat, Claim, Identity, IdentityCheck, Noted, Pulse, Reaped, Regression,
    Reservation, Resolve, Resolved, Resumable, ScopeKey, Store, StoreError, StoreFuture, Swept,
    Which, Write, Written,
};
use crate::{
    clock::Timestamp,
    machine,
    record::{AuditRecord, Lease, ProviderId, ProviderNote, Record, RecordId, SavedStep},
    scope::Scope,
};

mod address;
mod beside;
mod cached;
mod canary;
mod client;
mod error;
mod evictions;
mod examine;
mod link;
mod list;
mod look;
mod migrate;
mod open;
mod promise;
mod provider_ids;
mod row;
mod scope_keys;
mod script;
mod tally;
mod value;
mod workers;

pub use cached::CachedStore;
use client::Client;
use error::unreadable;
use look::{Beside, Look, Seen};
pub use open::{RedisConnectError, RedisOptions};
use script::Script;
use value::{Parts, bytes};

/// A store on a Redis or Valkey server, or on a Cluster of them. See [`RedisOptions::best_effort`] for
/// what it promises.
pub struct RedisStore {
    client: Client,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.client.layout.prefix)
            .field("buckets", &self.client.layout.buckets)
            .field("cluster", &self.client.cluster)
            .finish_non_exhaustive()
    }
}

impl RedisStore {
    fn bucket(&self, name: &[u8]) -> u16 {
        self.client.layout.bucket(name)
    }

    fn buckets(&self) -> impl Iterator<Item = u16> + use<> {
        0..self.client.layout.buckets
    }

    /// One for each server.
    fn bucket_of_each_server(&self) -> impl Iterator<Item = u16> {
        let mut named = BTreeSet::new();
        self.buckets()
            .filter(move |bucket| named.insert(self.client.server(*bucket).address.clone()))
    }

    /// Those in which nodes beat.
    fn buckets_with_beats(&self) -> Vec<u16> {
        match self.client.cluster {
            true => self.buckets().collect(),
            false => vec![self.client.home()],
        }
    }

    /// So that many workers do not stand at the same one.
    fn buckets_from_anywhere(&self) -> impl Iterator<Item = u16> + use<> {
        let first = rand::random_range(0..self.client.layout.buckets);
        (first..self.client.layout.buckets).chain(0..first)
    }

    fn record_key(&self, bucket: u16, member: &[u8]) -> Vec<u8> {
        self.client.layout.key(bucket, "r:", member)
    }

    /// A script that is about a whole bucket.
    async fn call_bucket(
        &self,
        bucket: u16,
        script: Script,
        args: Vec<Vec<u8>>,
    ) -> Result<Parts, StoreError> {
        let keys = vec![self.client.layout.key(bucket, "c", b""), self.client.writers(bucket)];
        self.client.call(bucket, script, keys, args).await
    }

    async fn server_time(&self, bucket: u16) -> Result<Timestamp, StoreError> {
        // The key of a record that there cannot be.
        let keys = vec![self.record_key(bucket, b"")];
        let args = vec![self.client.now(), Vec::new(), "record".into()];
        self.client.call(bucket, Script::Look, keys, args).await?.time()
    }

    fn identity_key(&self) -> Vec<u8> {
        self.client.layout.key(self.client.home(), "identity", b"")
    }
}

impl Store for RedisStore {
    fn reserve(&self, ask: Ask) -> StoreFuture<'_, Reservation> {
        Box::pin(self.reserve_one(ask))
    }

    fn claim(&self, claim: Claim) -> StoreFuture<'_, Reservation> {
        Box::pin(async move {
            let decide = |seen: &Seen| machine::claim(seen.record.as_deref(), &claim, seen.now);
            self.step(&claim.id, None, Look::Record, |_| Beside::default(), decide).await
        })
    }

    fn write<'a>(&'a self, lease: &'a Lease, write: Write) -> StoreFuture<'a, Written> {
        Box::pin(self.write_one(lease, write))
    }

    fn advance<'a>(&'a self, lease: &'a Lease, advance: Advance) -> StoreFuture<'a, Advanced> {
        Box::pin(self.advance_one(lease, advance))
    }

    fn steps<'a>(&'a self, id: &'a RecordId, generation: u32) -> StoreFuture<'a, Vec<SavedStep>> {
        Box::pin(self.saved_steps(id, generation))
    }

    fn resumable(&self, which: Which, limit: u32) -> StoreFuture<'_, Vec<Resumable>> {
        Box::pin(self.resumable_some(which, limit))
    }

    fn due_unknown(&self, limit: u32, except: Vec<Arc<str>>) -> StoreFuture<'_, Vec<Record>> {
        Box::pin(async move { self.due_unknown_some(limit, &except).await })
    }

    fn note_provider_id<'a>(&'a self, lease: &'a Lease, id: ProviderId) -> StoreFuture<'a, Noted> {
        Box::pin(self.note(lease, id))
    }

    fn by_provider_id<'a>(&'a self, id: &'a ProviderId) -> StoreFuture<'a, Option<ProviderNote>> {
        Box::pin(self.note_of(id))
    }

    fn provider_ids(&self, of: Vec<RecordId>) -> StoreFuture<'_, Vec<ProviderNote>> {
        Box::pin(async move {
            let mut notes = Vec::new();
            for record in &of {
                notes.extend(self.notes_of(record).await?);
            }
            Ok(notes)
        })
    }

    fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved> {
        Box::pin(async move {
            let id = resolve.id.clone();
            let decide =
                |seen: &Seen| machine::resolve(seen.record.as_deref(), resolve.clone(), seen.now);
            self.step(&id, None, Look::Record, |_| Beside::default(), decide).await
        })
    }

    fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>> {
        Box::pin(async move {
            let seen = self.look(id, Look::Record).await?;
            Ok(machine::load(seen.record.as_deref(), seen.now))
        })
    }

    fn settled(&self, ids: Vec<RecordId>) -> StoreFuture<'_, Vec<RecordId>> {
        Box::pin(self.settled_of(ids))
    }

    fn audit<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>> {
        Box::pin(self.audit_of(id))
    }

    fn list_records(&self, query: Query) -> StoreFuture<'_, Page> {
        Box::pin(self.page(query))
    }

    fn audit_log(&self, query: AuditQuery) -> StoreFuture<'_, AuditPage> {
        Box::pin(self.audit_page(query))
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        Box::pin(self.count())
    }

    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
        Box::pin(self.sweep_some(limit))
    }

    fn reap(&self, limit: u32) -> StoreFuture<'_, Reaped> {
        Box::pin(self.reap_some(limit))
    }

    fn purge_audit(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, u32> {
        Box::pin(self.purge_some_audit(older_than, limit))
    }

    /// By a script that a replica, or a server that is not ready, refuses.
    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            for bucket in self.bucket_of_each_server() {
                self.server_time(bucket).await?;
            }
            Ok(())
        })
    }

    fn check_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, IdentityCheck> {
        Box::pin(async move {
            let (home, key) = (self.client.home(), self.identity_key());
            // Looked at first: a server that is full refuses to set it even where it is set.
            let mut known = self.client.command(home, redis::cmd("GET").arg(&key)).await?;
            if known == Value::Nil {
                let mut remember = redis::cmd("SET");
                remember.arg(&key).arg(identity.as_str()).arg("NX").arg("GET");
                known = self.client.command(home, &remember).await?;
            }
            let known = match known {
                Value::Nil => return Ok(IdentityCheck::Same),
                known => bytes(known)?,
            };
            Ok(match known == identity.as_str() {
                true => IdentityCheck::Same,
                false => IdentityCheck::Different,
            })
        })
    }

    fn accept_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let mut accept = redis::cmd("SET");
            accept.arg(self.identity_key()).arg(identity.as_str());
            match self.client.command(self.client.home(), &accept).await? {
                Value::Okay => Ok(()),
                _ => Err(unreadable()),
            }
        })
    }

    fn scope_keys<'a>(
        &'a self,
        scope: &'a Scope,
        proposed: Option<ScopeKey>,
    ) -> StoreFuture<'a, Vec<ScopeKey>> {
        Box::pin(self.keys_of(scope, proposed))
    }

    fn drop_scope_keys<'a>(&'a self, scope: &'a Scope, reason: &'a str) -> StoreFuture<'a, u32> {
        Box::pin(self.drop_keys(scope, reason))
    }

    fn beat(&self, beat: Beat) -> StoreFuture<'_, Pulse> {
        Box::pin(self.beat_once(beat))
    }

    fn acknowledge_regression<'a>(
        &'a self,
        reason: &'a str,
    ) -> StoreFuture<'a, Option<Regression>> {
        Box::pin(self.acknowledge_loss(reason))
    }

    fn epoch(&self) -> u64 {
        self.client.epoch()
    }
}

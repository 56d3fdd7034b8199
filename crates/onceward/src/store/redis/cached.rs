//! A store around a durable one that keeps replies in Redis too, so that a replay need not go to the
//! durable one.
//!
//! The cache has completed records only, and is never asked whether a key is free: what it does not have,
//! does not answer in time, or has in a way that does not fit, is asked of the durable store. An entry is
//! bound to its record, to its time and to the durable store by a key that only that store has; nothing
//! else can be put into its place. It lives for a minute at most, and never as long as its record.
//!
//! A reply that is withdrawn (void) must not be replayed. So before and after the durable store is told, a
//! *barrier* takes the place of the entry, and outlives every entry that could have been made before it.
//! If the cache cannot be told, nothing is withdrawn. `docs/adr/0027` has the argument.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::{
    address::{Layout, member},
    client::Client,
    error::unavailable,
    open::{RedisConnectError, reach, read_url},
    row::{Decoder, Encoder, encode_completed, read_completed},
    script::Script,
};
use crate::{
    clock::{Clock, SystemClock, Timestamp},
    record::{AuditRecord, Lease, ProviderId, ProviderNote, Record, RecordId, SavedStep},
    scope::Scope,
    store::{
        Advance, Advanced, Ask, Beat, Claim, Completed, Database, Identity, IdentityCheck, Noted,
        Pulse, Reaped, Regression, Reservation, Resolution, Resolve, Resolved, Resumable, ScopeKey,
        Store, StoreError, StoreFuture, Swept, Which, Write, Written,
        list::{AuditPage, AuditQuery, Page, Query, Stats},
    },
};

/// How long an entry lives, by the clock of the cache, from before its record was read.
const ENTRY_LIFE: Duration = Duration::from_secs(60);

/// How long a barrier lives: longer than every entry whose record was read before it was there.
const BARRIER_LIFE: Duration = Duration::from_secs(2 * 60);

/// How far clocks may be apart. An entry is not used in the last of its record's retention.
const SKEW_MAX: Duration = Duration::from_secs(60);

/// How long a request waits for the cache, unless told otherwise.
const PATIENCE: Duration = Duration::from_millis(25);

/// How long an operator does.
const BARRIER_PATIENCE: Duration = Duration::from_secs(2);

/// How long nobody asks a cache that did not answer.
const REST: Duration = Duration::from_secs(1);

/// What stands in the place of an entry that must not be there.
const BARRIER: &[u8] = b"-";

/// Under which the durable store keeps the key of the cache, and by which it is told from others.
const KEY_SCOPE: &str = "onceward-cache";

/// A store around a durable one with a cache in Redis in front. See the guide `docs/guide/cache.md`.
pub struct CachedStore {
    inner: Arc<dyn Store>,
    client: Arc<Client>,
    key: Key,
    clock: Arc<dyn Clock>,
    patience: Duration,
    /// Until when nobody asks, after the cache did not answer.
    rests_until: Mutex<Option<Instant>>,
    /// Whether somebody connects to a cache that did not answer.
    reaching: Arc<AtomicBool>,
    hits: AtomicU64,
}

/// What binds entries to the durable store.
struct Key {
    name: String,
    secret: Vec<u8>,
}

impl fmt::Debug for CachedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedStore").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl CachedStore {
    /// A store around `inner` with a cache at this URL (as for
    /// [`RedisOptions::best_effort`](super::RedisOptions::best_effort)). The cache need not be there.
    ///
    /// # Errors
    /// When the URL is none, or the durable store does not answer.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn new(inner: Arc<dyn Store>, url: &str) -> Result<Self, RedisConnectError> {
        let key = Key::of(&*inner).await?;
        let (infos, cluster) = read_url(url)?;
        let layout = Layout { prefix: format!("onceward-cache-{}", key.name).into(), buckets: 128 };
        let client = match reach(&infos, cluster, layout.clone(), None).await {
            Ok((client, _)) => client,
            Err(RedisConnectError::Unreachable(error)) => {
                warn!(%error, "the cache is not there: everything is asked of the store");
                let first = infos.into_iter().next();
                let none = || RedisConnectError::Settings("the URL names no host".to_owned());
                let info = first.ok_or_else(none)?;
                let bad = |error: redis::RedisError| {
                    RedisConnectError::Settings(error.category().to_owned())
                };
                Client::new(info, cluster, layout, None).map_err(bad)?
            }
            Err(error) => return Err(error),
        };
        Ok(CachedStore {
            inner,
            client: Arc::new(client),
            key,
            clock: Arc::new(SystemClock),
            patience: PATIENCE,
            rests_until: Mutex::default(),
            reaching: Arc::default(),
            hits: AtomicU64::new(0),
        })
    }

    /// How long a request waits for the cache before it asks the store: 25 ms unless told otherwise.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        CachedStore { patience, ..self }
    }

    /// The same on another clock: for tests.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        CachedStore { clock, ..self }
    }

    /// How many replays did not go to the durable store.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    async fn reserve_cached(&self, ask: Ask) -> Result<Reservation, StoreError> {
        let recalled = self.recall(&ask.id).await;
        let now = match recalled {
            Some(Recalled { completed: Some(completed), .. }) => {
                self.hits.fetch_add(1, Ordering::Relaxed);
                return Ok(Reservation::Completed(Box::new(completed)));
            }
            Some(Recalled { now, completed: None }) => Some(now),
            None => None,
        };
        let id = ask.id.clone();
        let reservation = self.inner.reserve(ask).await?;
        let Some(now) = now else { return Ok(reservation) };
        if let Some(completed) = reservation.completed() {
            self.remember(&id, &completed, now).await;
        }
        Ok(reservation)
    }

    /// What the cache has. `None` when it cannot be asked.
    async fn recall(&self, id: &RecordId) -> Option<Recalled> {
        let (bucket, key) = self.place(id);
        let mut answer = self
            .ask(bucket, self.client.call(bucket, Script::Recall, vec![key], Vec::new()))
            .await?;
        let (entry, now) = (answer.bytes().ok()?, answer.time().ok()?);
        let completed = self.key.open(id, &entry, now);
        if completed.is_none() && !entry.is_empty() && entry != BARRIER {
            debug!("an entry of the cache does not fit its record");
        }
        // In the end of its retention the durable store decides.
        let latest = now.max(self.clock.now()).plus(SKEW_MAX);
        Some(Recalled { now, completed: completed.filter(|found| latest < found.expires_at) })
    }

    /// Dies at a time that was set before the record was read, whenever it arrives, and never takes the
    /// place of a barrier.
    async fn remember(&self, id: &RecordId, completed: &Completed, now: Timestamp) {
        let (bucket, key) = self.place(id);
        let mut put = redis::cmd("SET");
        put.arg(key).arg(self.key.seal(id, completed, now)).arg("NX");
        put.arg("PXAT").arg(now.plus(ENTRY_LIFE).as_micros() / 1000);
        self.ask(bucket, self.client.command(bucket, &put)).await;
    }

    /// From now on the cache has nothing of this record, nor gets anything that was read before.
    async fn raise_barrier(&self, id: &RecordId) -> Result<(), StoreError> {
        let (bucket, key) = self.place(id);
        let mut put = redis::cmd("SET");
        put.arg(key).arg(BARRIER).arg("PX").arg(BARRIER_LIFE.as_millis() as u64);
        let told = timeout(BARRIER_PATIENCE, self.client.command(bucket, &put)).await;
        let untold = "the cache cannot be told, so that it might go on replaying; nothing was done";
        match told {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(unavailable(untold).with_source(error)),
            Err(_) => Err(unavailable(untold)),
        }
    }

    async fn resolve_cached(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        let id = resolve.id.clone();
        match &resolve.resolution {
            // Only these end what can be replayed, and they must not be overheard.
            Resolution::Void => self.raise_barrier(&id).await?,
            // What is not completed has no entry.
            _ => return self.inner.resolve(resolve).await,
        }
        let resolved = self.inner.resolve(resolve).await;
        // Its life counts from after the withdrawal. If this is not heard, the first one outlives
        // whatever was read before.
        if let Err(error) = self.raise_barrier(&id).await {
            warn!(%error, "the second word to the cache about a void was not heard");
        }
        resolved
    }

    fn place(&self, id: &RecordId) -> (u16, Vec<u8>) {
        use sha2::Digest as _;
        let member = member(id);
        let bucket = self.client.layout.bucket(&member);
        // Nobody who reads the cache learns scopes and keys from it.
        let name: String =
            Sha256::digest(&member).iter().map(|byte| format!("{byte:02x}")).collect();
        (bucket, self.client.layout.key(bucket, "e:", name.as_bytes()))
    }

    /// Waits for the cache, a little; and after it has not answered, for a while not at all.
    async fn ask<T>(
        &self,
        bucket: u16,
        asked: impl Future<Output = Result<T, StoreError>>,
    ) -> Option<T> {
        let now = Instant::now();
        if self.lock().is_some_and(|until| now < until) {
            return None;
        }
        let error = match timeout(self.patience, asked).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => error,
            Err(_) => unavailable("no answer in time"),
        };
        debug!(%error, "the cache does not answer");
        *self.lock() = Some(Instant::now() + REST);
        self.reach_again(bucket);
        None
    }

    /// Connects, if need be, for whoever asks next: that may take longer than any request waits.
    fn reach_again(&self, bucket: u16) {
        if self.reaching.swap(true, Ordering::SeqCst) {
            return;
        }
        let (client, reaching) = (Arc::clone(&self.client), Arc::clone(&self.reaching));
        tokio::spawn(async move {
            if let Err(error) = client.command(bucket, &redis::cmd("PING")).await {
                debug!(%error, "the cache cannot be reached");
            }
            reaching.store(false, Ordering::SeqCst);
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.rests_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the cache answered, and when by its own clock.
struct Recalled {
    now: Timestamp,
    completed: Option<Completed>,
}

impl Key {
    /// The one that the durable store has, or gets now. All processes that use it have the same.
    async fn of(store: &dyn Store) -> Result<Self, StoreError> {
        let scope = Scope::new(KEY_SCOPE).unwrap_or_else(|_| unreachable!("visible characters"));
        let proposed = ScopeKey {
            id: rand::random(),
            wrapped_by: KEY_SCOPE.into(),
            wrapped: Some(rand::random::<[u8; 32]>().to_vec().into()),
        };
        let keys = store.scope_keys(&scope, Some(proposed)).await?;
        let ours = keys.iter().rev().find(|key| key.stands() && *key.wrapped_by == *KEY_SCOPE);
        let missing = || unavailable("the store keeps no key for its cache");
        let ours = ours.ok_or_else(missing)?;
        let secret = ours.wrapped.as_ref().ok_or_else(missing)?.to_vec();
        let name = ours.id.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Ok(Key { name, secret })
    }

    fn mac(&self, id: &RecordId, content: &[u8]) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.secret);
        let mut mac = mac.unwrap_or_else(|_| unreachable!("a key of any length"));
        let member = member(id);
        mac.update(&(member.len() as u64).to_be_bytes());
        mac.update(&member);
        mac.update(content);
        mac
    }

    /// What a retry needs of a record, as an entry, with when it was read.
    fn seal(&self, id: &RecordId, completed: &Completed, now: Timestamp) -> Vec<u8> {
        let mut content = Encoder::new();
        content.integer(now.as_micros());
        encode_completed(completed, &mut content);
        let mut entry = self.mac(id, &content.0).finalize().into_bytes().to_vec();
        entry.extend(content.0);
        entry
    }

    /// That of an entry, if it is this record's, whole, and not older than an entry may be.
    fn open(&self, id: &RecordId, entry: &bytes::Bytes, now: Timestamp) -> Option<Completed> {
        let (mac, content) = entry.split_at_checked(32)?;
        self.mac(id, content).verify_slice(mac).ok()?;
        let mut content = Decoder::of(&entry.slice(32..))?;
        let read_at = Timestamp::from_micros(content.integer()?);
        if now >= read_at.plus(ENTRY_LIFE) {
            return None;
        }
        let completed = read_completed(&mut content)?;
        content.end()?;
        Some(completed)
    }
}

impl Store for CachedStore {
    fn reserve(&self, ask: Ask) -> StoreFuture<'_, Reservation> {
        Box::pin(self.reserve_cached(ask))
    }

    fn claim(&self, claim: Claim) -> StoreFuture<'_, Reservation> {
        self.inner.claim(claim)
    }

    fn write<'a>(&'a self, lease: &'a Lease, write: Write) -> StoreFuture<'a, Written> {
        self.inner.write(lease, write)
    }

    fn advance<'a>(&'a self, lease: &'a Lease, advance: Advance) -> StoreFuture<'a, Advanced> {
        self.inner.advance(lease, advance)
    }

    fn steps<'a>(&'a self, id: &'a RecordId, generation: u32) -> StoreFuture<'a, Vec<SavedStep>> {
        self.inner.steps(id, generation)
    }

    fn resumable(&self, which: Which, limit: u32) -> StoreFuture<'_, Vec<Resumable>> {
        self.inner.resumable(which, limit)
    }

    fn due_unknown(&self, limit: u32, except: Vec<Arc<str>>) -> StoreFuture<'_, Vec<Record>> {
        self.inner.due_unknown(limit, except)
    }

    fn note_provider_id<'a>(&'a self, lease: &'a Lease, id: ProviderId) -> StoreFuture<'a, Noted> {
        self.inner.note_provider_id(lease, id)
    }

    fn by_provider_id<'a>(&'a self, id: &'a ProviderId) -> StoreFuture<'a, Option<ProviderNote>> {
        self.inner.by_provider_id(id)
    }

    fn provider_ids(&self, of: Vec<RecordId>) -> StoreFuture<'_, Vec<ProviderNote>> {
        self.inner.provider_ids(of)
    }

    fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved> {
        Box::pin(self.resolve_cached(resolve))
    }

    fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>> {
        self.inner.load(id)
    }

    fn settled(&self, ids: Vec<RecordId>) -> StoreFuture<'_, Vec<RecordId>> {
        self.inner.settled(ids)
    }

    fn audit<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>> {
        self.inner.audit(id)
    }

    fn list_records(&self, query: Query) -> StoreFuture<'_, Page> {
        self.inner.list_records(query)
    }

    fn audit_log(&self, query: AuditQuery) -> StoreFuture<'_, AuditPage> {
        self.inner.audit_log(query)
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        self.inner.stats()
    }

    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
        self.inner.sweep(limit)
    }

    fn reap(&self, limit: u32) -> StoreFuture<'_, Reaped> {
        self.inner.reap(limit)
    }

    fn purge_audit(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, u32> {
        self.inner.purge_audit(older_than, limit)
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        self.inner.ping()
    }

    fn check_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, IdentityCheck> {
        self.inner.check_identity(identity)
    }

    fn accept_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, ()> {
        self.inner.accept_identity(identity)
    }

    fn scope_keys<'a>(
        &'a self,
        scope: &'a Scope,
        proposed: Option<ScopeKey>,
    ) -> StoreFuture<'a, Vec<ScopeKey>> {
        self.inner.scope_keys(scope, proposed)
    }

    fn drop_scope_keys<'a>(&'a self, scope: &'a Scope, reason: &'a str) -> StoreFuture<'a, u32> {
        if scope.as_str() == KEY_SCOPE {
            // Nodes that start later would have another key, and would not hear of each other's voids.
            let ours = unavailable("this is no scope of clients: it has the key of the cache");
            return Box::pin(std::future::ready(Err(ours)));
        }
        self.inner.drop_scope_keys(scope, reason)
    }

    fn beat(&self, beat: Beat) -> StoreFuture<'_, Pulse> {
        self.inner.beat(beat)
    }

    fn acknowledge_regression<'a>(
        &'a self,
        reason: &'a str,
    ) -> StoreFuture<'a, Option<Regression>> {
        self.inner.acknowledge_regression(reason)
    }

    fn has_more_to_sweep(&self) -> bool {
        self.inner.has_more_to_sweep()
    }

    fn epoch(&self) -> u64 {
        self.inner.epoch()
    }

    fn reply_cap(&self) -> usize {
        self.inner.reply_cap()
    }

    fn database(&self) -> Option<Database> {
        self.inner.database()
    }
}

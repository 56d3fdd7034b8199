//! Sealing and opening, for whoever writes and reads records: the store around another one, and
//! transactions of the user's own.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Uri};
use tracing::error;

use super::{
    KeyRing,
    contents::{decode_reply, encode_reply},
    data_keys::{DataKey, DataKeys, KeyState, unopened},
    envelope::{Cipher, Envelope, Of, Place},
};
use crate::{
    fingerprint::Fingerprint,
    record::{AuditRecord, Fence, Lease, Record, RecordId, StoredRequest},
    reply::{Reply, ReplyBody},
    scope::Scope,
    store::{
        Advance, Advanced, Ask, Completed, Reservation, Store, StoreError, StoreErrorKind, Written,
        mark::{SEALED, is_sealed},
        request::{decode_request, encode_request},
    },
};

/// A reply by the attempt itself: its fence is that of the record.
const REPLY: &str = "reply";
/// A reply by whoever resolved the record: the fence is the one that was looked at, which the
/// resolution replaced.
const RESOLVED: &str = "resolved";
const REQUEST: &str = "request";

/// What sealing needs, shared by all who seal.
#[derive(Clone)]
pub(crate) struct Seals(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    keys: DataKeys,
}

impl fmt::Debug for Seals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Seals").field(&self.0.keys.ring()).finish()
    }
}

/// What came of opening.
enum Opened {
    Contents(Vec<u8>),
    /// The scope was erased since.
    Erased,
}

impl Seals {
    pub(super) fn new(store: Arc<dyn Store>, ring: KeyRing) -> Self {
        Seals(Arc::new(Inner { store, keys: DataKeys::new(ring) }))
    }

    pub(super) fn keys(&self) -> &DataKeys {
        &self.0.keys
    }

    /// Sees to it that the scope has a data key, before anything hangs on it.
    pub(super) async fn prepare(&self, scope: &Scope) -> Result<(), StoreError> {
        self.with_sealing_key(scope, |_, _| Some(())).await
    }

    async fn with_sealing_key<T>(
        &self,
        scope: &Scope,
        seal: impl FnOnce(&[u8; 16], &Cipher) -> Option<T>,
    ) -> Result<T, StoreError> {
        let Inner { store, keys } = &*self.0;
        let ring = keys.ring();
        let by = ring.sealing().id();
        let is_ours =
            |key: &&DataKey| *key.wrapped_by == *by && !matches!(key.state, KeyState::Dropped);
        let mut known = keys.remembered(scope);
        if !known.as_ref().is_some_and(|known| known.iter().any(|key| is_ours(&key))) {
            let proposed = keys.propose(scope).ok_or_else(not_sealed)?;
            known = Some(keys.read(&**store, scope, Some(proposed)).await?);
        }
        let known = known.unwrap_or_default();
        let Some(key) = known.iter().find(is_ours) else { return Err(not_sealed()) };
        match &key.state {
            KeyState::Usable(cipher) => seal(&key.id, cipher).ok_or_else(not_sealed),
            _ => Err(key.unusable()),
        }
    }

    async fn seal(
        &self,
        scope: &Scope,
        contents: &[u8],
        place: &Place,
    ) -> Result<Vec<u8>, StoreError> {
        let seal = |id: &[u8; 16], cipher: &Cipher| {
            Some(Envelope::write(id, &cipher.seal(contents, place)?))
        };
        self.with_sealing_key(scope, seal).await
    }

    async fn open(
        &self,
        scope: &Scope,
        sealed: &[u8],
        place: &Place,
    ) -> Result<Opened, StoreError> {
        let damaged = || unopened("what is sealed was damaged");
        let envelope = Envelope::read(sealed).ok_or_else(damaged)?;
        let Inner { store, keys } = &*self.0;
        let is_its = |key: &&DataKey| key.id == envelope.key_id;
        let mut known = keys.remembered(scope);
        // Another process may have made it a moment ago.
        if !known.as_ref().is_some_and(|known| known.iter().any(|key| is_its(&key))) {
            known = Some(keys.read(&**store, scope, None).await?);
        }
        let known = known.unwrap_or_default();
        let Some(key) = known.iter().find(is_its) else {
            return Err(unopened("it was sealed for another scope, and moved here"));
        };
        match &key.state {
            KeyState::Dropped => Ok(Opened::Erased),
            KeyState::Usable(cipher) => {
                let opened = cipher.open(envelope.sealed, place).ok_or_else(|| key.unusable())?;
                Ok(Opened::Contents(opened))
            }
            KeyState::NotInRing | KeyState::DoesNotOpen => Err(key.unusable()),
        }
    }

    /// The reply of an attempt.
    pub(crate) async fn seal_reply(&self, of: Of<'_>, reply: &Reply) -> Result<Reply, StoreError> {
        self.seal_reply_as(REPLY, of, reply).await
    }

    /// The reply of whoever resolves a record, of which this was looked at.
    pub(super) async fn seal_resolved(
        &self,
        of: Of<'_>,
        reply: &Reply,
    ) -> Result<Reply, StoreError> {
        self.seal_reply_as(RESOLVED, of, reply).await
    }

    async fn seal_reply_as(
        &self,
        purpose: &str,
        of: Of<'_>,
        reply: &Reply,
    ) -> Result<Reply, StoreError> {
        let place = Place::reply(purpose, &of, of.fence, reply.status.as_u16());
        let sealed = self.seal(&of.id.scope, &encode_reply(reply), &place).await?;
        let mark = match purpose {
            RESOLVED => format!("{RESOLVED} {}", of.fence.number()),
            _ => purpose.to_owned(),
        };
        let mark = HeaderValue::try_from(mark).map_err(|_| not_sealed())?;
        Ok(Reply {
            status: reply.status,
            headers: vec![(SEALED.clone(), mark)],
            body: ReplyBody::Stored(sealed.into()),
            schema_version: None,
        })
    }

    /// The reply as it was before it was sealed. One that was never sealed stays as it is; of one whose
    /// scope was erased the status is left.
    pub(crate) async fn open_reply(&self, of: Of<'_>, reply: Reply) -> Result<Reply, StoreError> {
        if !reply.is_sealed() {
            return Ok(reply);
        }
        let damaged = || unopened("the mark of a sealed reply was damaged");
        let [(_, mark)] = &reply.headers[..] else { return Err(damaged()) };
        let mark = mark.to_str().map_err(|_| damaged())?;
        let place = match mark.split_once(' ') {
            None if mark == REPLY => Place::reply(REPLY, &of, of.fence, reply.status.as_u16()),
            Some((RESOLVED, looked_at)) => {
                let looked_at = Fence::from_stored(looked_at.parse().map_err(|_| damaged())?);
                if looked_at > of.fence {
                    return Err(unopened("a reply is of a later fence than its record"));
                }
                Place::reply(RESOLVED, &of, looked_at, reply.status.as_u16())
            }
            _ => return Err(damaged()),
        };
        match self.open(&of.id.scope, &reply.body_bytes(), &place).await? {
            Opened::Contents(contents) => {
                decode_reply(contents, reply.status).ok_or_else(|| unopened("an unknown encoding"))
            }
            Opened::Erased => Ok(reply.status_only()),
        }
    }

    pub(super) async fn open_record(&self, record: &mut Record) -> Result<(), StoreError> {
        if let Some(reply) = record.reply.take() {
            record.reply = Some(self.open_reply((&*record).into(), reply).await?);
        }
        Ok(())
    }

    /// Evidence that does not open must not hide what happened: its status is left.
    pub(super) async fn open_audit(&self, audit: &mut AuditRecord) {
        let Some(reply) = audit.reply.take() else { return };
        let AuditRecord { id, generation, attempt, fence, .. } = &*audit;
        let of = Of { id, generation: *generation, attempt: *attempt, fence: *fence };
        audit.reply = Some(match self.open_reply(of, reply.clone()).await {
            Ok(reply) => reply,
            Err(error) => {
                error!(%error, "the reply in an audit record cannot be opened");
                reply.status_only()
            }
        });
    }

    pub(crate) async fn seal_ask(&self, mut ask: Ask) -> Result<Ask, StoreError> {
        if let Some(request) = &ask.request {
            let place = Place::request(&ask.id, &ask.fingerprint);
            let sealed = self.seal(&ask.id.scope, &encode_request(request), &place).await?;
            ask.request = Some(Arc::new(StoredRequest {
                method: request.method.clone(),
                uri: Uri::from_static("/"),
                headers: vec![(SEALED.clone(), HeaderValue::from_static(REQUEST))],
                body: sealed.into(),
            }));
        }
        Ok(ask)
    }

    pub(super) async fn open_request(
        &self,
        id: &RecordId,
        fingerprint: &Fingerprint,
        request: StoredRequest,
    ) -> Result<StoredRequest, StoreError> {
        if !request.is_sealed() {
            return Ok(request);
        }
        let place = Place::request(id, fingerprint);
        match self.open(&id.scope, &request.body, &place).await? {
            Opened::Contents(contents) => {
                decode_request(&contents).ok_or_else(|| unopened("an unknown encoding"))
            }
            Opened::Erased => Err(unopened("the request was erased")),
        }
    }

    pub(crate) async fn seal_advance(
        &self,
        lease: &Lease,
        advance: Advance,
    ) -> Result<Advance, StoreError> {
        match advance {
            Advance::Save { name, result } => {
                let place = Place::step(&lease.id, lease.generation, &name);
                let result = self.seal(&lease.id.scope, &result, &place).await?.into();
                Ok(Advance::Save { name, result })
            }
            other => Ok(other),
        }
    }

    pub(super) async fn open_step(
        &self,
        id: &RecordId,
        generation: u32,
        name: &str,
        result: Bytes,
    ) -> Result<Bytes, StoreError> {
        if !is_sealed(&result) {
            return Ok(result);
        }
        let place = Place::step(id, generation, name);
        match self.open(&id.scope, &result, &place).await? {
            Opened::Contents(contents) => Ok(contents.into()),
            Opened::Erased => Err(unopened("the result of a step was erased")),
        }
    }

    pub(crate) async fn open_reservation(
        &self,
        id: &RecordId,
        mut reservation: Reservation,
    ) -> Result<Reservation, StoreError> {
        match &mut reservation {
            Reservation::Occupied { record, .. } => self.open_record(record).await?,
            Reservation::Completed(found) if found.reply.is_sealed() => {
                let Completed { generation, attempt, fence, .. } = **found;
                let of = Of { id, generation, attempt, fence };
                found.reply = self.open_reply(of, found.reply.clone()).await?;
            }
            _ => {}
        }
        Ok(reservation)
    }

    pub(crate) async fn open_written(
        &self,
        lease: &Lease,
        written: Written,
    ) -> Result<Written, StoreError> {
        match written {
            Written::AlreadyMine(Some(reply)) => {
                Ok(Written::AlreadyMine(Some(self.open_reply(lease.into(), reply).await?)))
            }
            Written::Superseded(Some(mut record)) => {
                self.open_record(&mut record).await?;
                Ok(Written::Superseded(Some(record)))
            }
            other => Ok(other),
        }
    }

    pub(crate) async fn open_advanced(&self, advanced: Advanced) -> Result<Advanced, StoreError> {
        match advanced {
            Advanced::Superseded(Some(mut record)) => {
                self.open_record(&mut record).await?;
                Ok(Advanced::Superseded(Some(record)))
            }
            other => Ok(other),
        }
    }
}

/// Another try may find what was just changed: the ring, or the keys of a scope that was erased.
fn not_sealed() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "sealed", "it could not be sealed")
}

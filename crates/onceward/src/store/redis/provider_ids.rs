//! Whose a provider id is. The id stands in a bucket of its own, and in a list of its record: one that
//! is not in both places is none. So a record that goes takes its ids with it in one step, and what is
//! left of them elsewhere is nobody's.

use bytes::Bytes;
use tracing::debug;

use super::{
    RedisStore,
    address::member,
    error::{damaged, unavailable, unreadable},
    look::{Beside, Changed, Look},
    row::{encode_note, read_note},
    script::Script,
    value::bytes,
};
use crate::{
    machine::{self, Change},
    record::{Lease, ProviderId, ProviderNote, RecordId},
    store::{Noted, StoreError},
};

/// How often it is looked again who has an id that many want.
const LOOKS_MAX: u32 = 20;

impl RedisStore {
    pub(super) async fn note(&self, lease: &Lease, id: ProviderId) -> Result<Noted, StoreError> {
        let name = name_of(&id);
        for _ in 0..LOOKS_MAX {
            let kept = self.kept_note(&name).await?;
            let holder = self.holder(&id, &kept).await?;
            let seen = self.look(&lease.id, Look::Record).await?;
            let found = seen.record.as_deref();
            let step = machine::note(found, holder.as_ref(), lease, id.clone(), seen.now);
            let audits = step.audit.as_slice();
            let listed = step.put.as_ref().map(|_| &name[..]);
            if step.put.is_none() && audits.is_empty() {
                return Ok(step.answer);
            }
            let beside = Beside { provider_id: listed, ..Beside::default() };
            let changed = self.change(&lease.id, &seen, &Change::Keep, audits, beside).await?;
            if let Changed::Conflict(_) = changed {
                continue;
            }
            match &step.put {
                Some(note) if !self.replace_note(&name, &kept, &encode_note(note)).await? => {}
                _ => return Ok(step.answer),
            }
        }
        Err(unavailable("a provider id keeps changing hands"))
    }

    pub(super) async fn note_of(
        &self,
        id: &ProviderId,
    ) -> Result<Option<ProviderNote>, StoreError> {
        let kept = self.kept_note(&name_of(id)).await?;
        self.holder(id, &kept).await
    }

    /// Those that its list has, as far as they are still its own.
    pub(super) async fn notes_of(&self, of: &RecordId) -> Result<Vec<ProviderNote>, StoreError> {
        let member = member(of);
        let bucket = self.bucket(&member);
        let mut list = redis::cmd("HGETALL");
        list.arg(self.client.layout.key(bucket, "i:", &member));
        let list = super::value::Parts::of(self.client.command(bucket, &list).await?)?;
        let mut notes = Vec::new();
        for (name, place) in list.into_pairs()? {
            let place =
                std::str::from_utf8(&place).ok().and_then(|place| place.parse::<u64>().ok());
            let place = place.ok_or_else(|| damaged("a place"))?;
            let id = id_of(&name).ok_or_else(|| damaged("a provider id"))?;
            let kept = self.kept_note(&name).await?;
            if let Some(note) = read_kept(&id, &kept)?
                && note.record == *of
            {
                notes.push((place, note));
            }
        }
        notes.sort_by_key(|(place, _)| *place);
        Ok(notes.into_iter().map(|(_, note)| note).collect())
    }

    /// Nobody asks for them any more, so that it does not matter if some stay.
    pub(super) async fn drop_notes(&self, of: &RecordId, forgotten: &[Bytes]) {
        for name in forgotten {
            let dropped = async {
                let Some(id) = id_of(name) else { return Ok(()) };
                let kept = self.kept_note(name).await?;
                let is_mine = read_kept(&id, &kept)?.is_some_and(|note| note.record == *of);
                // One that was noted again since has a place in the list of the record again.
                if is_mine && self.holder(&id, &kept).await?.is_none() {
                    self.replace_note(name, &kept, b"").await?;
                }
                Ok::<_, StoreError>(())
            };
            if let Err(error) = dropped.await {
                debug!(%error, "a provider id of a record that is gone was left");
            }
        }
    }

    /// What is kept of an id, if its record has it in its list.
    async fn holder(
        &self,
        id: &ProviderId,
        kept: &Bytes,
    ) -> Result<Option<ProviderNote>, StoreError> {
        let Some(note) = read_kept(id, kept)? else { return Ok(None) };
        let member = member(&note.record);
        let bucket = self.bucket(&member);
        let mut listed = redis::cmd("HEXISTS");
        listed.arg(self.client.layout.key(bucket, "i:", &member)).arg(name_of(id));
        match self.client.command(bucket, &listed).await? {
            redis::Value::Int(listed) => Ok((listed == 1).then_some(note)),
            _ => Err(unreadable()),
        }
    }

    async fn kept_note(&self, name: &[u8]) -> Result<Bytes, StoreError> {
        let bucket = self.bucket(name);
        let mut get = redis::cmd("GET");
        get.arg(self.client.layout.key(bucket, "x:", name));
        match self.client.command(bucket, &get).await? {
            redis::Value::Nil => Ok(Bytes::new()),
            kept => bytes(kept),
        }
    }

    /// Whether it was what was expected, and is now the other.
    async fn replace_note(
        &self,
        name: &[u8],
        expected: &[u8],
        note: &[u8],
    ) -> Result<bool, StoreError> {
        let bucket = self.bucket(name);
        let key = self.client.layout.key(bucket, "x:", name);
        self.replace_value(bucket, key, expected, note, b"", &[]).await
    }

    /// Replaces a value if it is what was looked at; whether it is.
    pub(super) async fn replace_value(
        &self,
        bucket: u16,
        key: Vec<u8>,
        expected: &[u8],
        value: &[u8],
        member: &[u8],
        audits: &[crate::record::AuditRecord],
    ) -> Result<bool, StoreError> {
        let mut args = vec![expected.to_vec(), value.to_vec(), member.to_vec()];
        args.extend(audits.iter().flat_map(super::row::audit_args));
        let keys = vec![key, self.client.writers(bucket)];
        let (name, mut answer) = self.call_counted(bucket, Script::Value, keys, args).await?;
        match &*answer.bytes()? {
            b"applied" => {
                self.client.tally(bucket).acknowledge(name, answer.natural()?);
                Ok(true)
            }
            // The answer to the first call was lost.
            b"conflict" => Ok(answer.bytes()? == value),
            _ => Err(unreadable()),
        }
    }
}

/// Neither has a space in it.
fn name_of(id: &ProviderId) -> Vec<u8> {
    format!("{} {}", id.provider(), id.id()).into_bytes()
}

fn id_of(name: &[u8]) -> Option<ProviderId> {
    let (provider, id) = std::str::from_utf8(name).ok()?.split_once(' ')?;
    ProviderId::new(provider, id).ok()
}

fn read_kept(id: &ProviderId, kept: &Bytes) -> Result<Option<ProviderNote>, StoreError> {
    if kept.is_empty() {
        return Ok(None);
    }
    read_note(id.clone(), kept).map(Some).ok_or_else(|| damaged("what was noted"))
}

//! What is kept beside a record, in items of their own: its request, its steps, and what providers call
//! it.
//!
//! Each carries the fence under which it was begun, and the record says which one counts. So the write
//! that makes a record terminal hides them all at once, however many they are. They are deleted right
//! after, or else by the reaper.

use futures_util::future::join_all;

use super::{
    Inner, STORE,
    call::{damaged, pause},
    item::{BadItem, Item, Put as _, Reader, bytes, key, key_of, number, text, time},
    row::{Held, partition, read_id},
    step::{Committed, LOOKS_MAX, Seen, keeps_changing},
};
use crate::{
    machine,
    record::{
        AttemptId, Fence, Lease, ProviderId, ProviderNote, RecordId, SavedStep, StoredRequest,
    },
    store::{
        Advance, Advanced, Noted, StoreError, StoreErrorKind,
        request::{decode_request, encode_request},
    },
};

/// What goes into one item: an item has 400 kB.
const PART: usize = 350_000;

/// How many parts a transaction takes beside the record: it has 4 MB.
const PARTS_MAX: usize = 10;

const REQUEST: &str = "request#";
const STEP: &str = "step#";
const NOTE: &str = "note#";

/// The parts of some bytes, as items; at least one.
fn parts(id: &RecordId, sort: &str, name: Option<&str>, contents: &[u8]) -> Vec<Item> {
    let mut chunks: Vec<&[u8]> = contents.chunks(PART).collect();
    if chunks.is_empty() {
        chunks.push(&[]);
    }
    let items = chunks.into_iter().enumerate().map(|(number, chunk)| {
        key(partition(id), format!("{sort}#{number:04}"))
            .with("contents", bytes(chunk))
            .with_some("name", name.map(text))
    });
    items.collect()
}

fn too_large() -> StoreError {
    let context = "what is to be kept beside the record is too large for a transaction";
    StoreError::new(StoreErrorKind::Unavailable, STORE, context)
}

fn check_size(length: usize) -> Result<(), StoreError> {
    if length > PART * PARTS_MAX { Err(too_large()) } else { Ok(()) }
}

impl Inner {
    /// A request as bytes, if it can be kept.
    pub(super) fn encoded(request: Option<&StoredRequest>) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(encoded) = request.map(encode_request) else { return Ok(None) };
        check_size(encoded.len())?;
        Ok(Some(encoded))
    }

    /// The items of a request, if the record has none yet.
    pub(super) fn keep_request(request: Option<&[u8]>, held: &mut Held) -> Vec<Item> {
        let Some(request) = request.filter(|_| held.request_parts == 0) else { return Vec::new() };
        let items = parts(&held.record.id, &format!("{REQUEST}{:020}", held.beside), None, request);
        held.request_parts = u32::try_from(items.len()).unwrap_or(u32::MAX);
        items
    }

    pub(super) async fn advance(
        &self,
        lease: &Lease,
        advance: Advance,
    ) -> Result<Advanced, StoreError> {
        if let Advance::Save { result, .. } = &advance {
            check_size(result.len())?;
        }
        self.step(
            &lease.id,
            Seen::Nothing,
            |held, _| {
                let saved =
                    held.is_some_and(|it| it.steps.iter().any(|name| **name == *advance.name()));
                Ok(machine::advance(held.map(|it| &it.record), lease, &advance, saved))
            },
            |answer, held| match (answer, &advance) {
                (Advanced::Applied, Advance::Save { name, result }) => {
                    let sort = format!("{STEP}{:020}#{:06}", held.beside, held.steps.len());
                    held.steps.push(name.clone());
                    parts(&lease.id, &sort, Some(name), result)
                }
                _ => Vec::new(),
            },
        )
        .await
    }

    pub(super) async fn steps(
        &self,
        id: &RecordId,
        generation: u32,
    ) -> Result<Vec<SavedStep>, StoreError> {
        let mut before = None;
        loop {
            let Some(held) = self.load(id).await? else { return Ok(Vec::new()) };
            if held.record.generation != generation || held.steps.is_empty() {
                return Ok(Vec::new());
            }
            let begin = format!("{STEP}{:020}#", held.beside);
            let items = self.range(&partition(id), &begin, &format!("{begin}~")).await?;
            let mut steps = held.steps.iter().enumerate().map(|(number, name)| {
                let result = join(&items, &format!("{begin}{number:06}#"))?;
                Some(SavedStep { name: name.clone(), result: result.into() })
            });
            if let Some(steps) = steps.by_ref().collect::<Option<Vec<_>>>() {
                return Ok(steps);
            }
            // They went between the two looks, with the record's end.
            if before == Some(held.stamp) {
                return Err(damaged(BadItem("steps")));
            }
            before = Some(held.stamp);
        }
    }

    pub(super) async fn request(&self, held: &Held) -> Result<Option<StoredRequest>, StoreError> {
        if held.request_parts == 0 {
            return Ok(None);
        }
        let begin = format!("{REQUEST}{:020}#", held.beside);
        let items = self.range(&partition(&held.record.id), &begin, &format!("{begin}~")).await?;
        if items.len() != held.request_parts as usize {
            // It went meanwhile: whoever claims it finds out.
            return Ok(None);
        }
        let encoded = join(&items, &begin).ok_or_else(|| damaged(BadItem("contents")))?;
        decode_request(&encoded).map(Some).ok_or_else(|| damaged(BadItem("contents")))
    }

    /// Deletes requests and steps that were begun under this fence or an earlier one. What is left is
    /// not seen by anybody, so that a failure does no harm.
    pub(super) async fn clean_beside(&self, partition: &str, fence: i64) {
        let Ok(items) = self.range(partition, REQUEST, &format!("{STEP}~")).await else { return };
        let latest = format!("{fence:020}");
        let is_old = |item: &&Item| {
            let sort = Reader(item).text("sk").unwrap_or_default();
            sort.split('#').nth(1).is_some_and(|begun| begun <= &*latest)
        };
        let keys = items.iter().filter(is_old).filter_map(|item| key_of(item).ok());
        join_all(keys.map(|key| self.delete(key))).await;
    }

    /// Deletes all that is noted about a record that is gone. It counts for nothing by then, so that a
    /// failure does no harm.
    pub(super) async fn clean_notes(&self, held: &Held) -> Result<(), StoreError> {
        let items = self.range(&partition(&held.record.id), NOTE, &format!("{NOTE}~")).await?;
        for item in items {
            let read = Reader(&item);
            if read.integer("life").map_err(damaged)? > held.life {
                continue;
            }
            let note = read_note(&item).map_err(damaged)?;
            self.delete_if_of(holder_key(&note.id), read.integer("life").map_err(damaged)?).await?;
            self.delete(key_of(&item).map_err(damaged)?).await?;
        }
        Ok(())
    }

    pub(super) async fn note_provider_id(
        &self,
        lease: &Lease,
        id: ProviderId,
    ) -> Result<Noted, StoreError> {
        for tries in 0..LOOKS_MAX {
            let found = self.load(&lease.id).await?;
            let holder = self.holder(&id).await?;
            let record = found.as_deref().map(|held| &held.record);
            let known = holder.as_ref().filter(|(_, counts)| *counts).map(|(item, _)| item);
            let known = known.map(read_note).transpose().map_err(damaged)?;
            let now = self.clock.now();
            let step = machine::note(record, known.as_ref(), lease, id.clone(), now);
            if let Some(audit) = &step.audit {
                let write = vec![self.audit_write(audit)];
                let _: Committed = self.transact(write).await?;
            }
            let (Some(note), Some(held)) = (&step.put, found) else { return Ok(step.answer) };
            // Whoever notes it again keeps its place.
            let order = known.as_ref().and(holder.as_ref()).map(|(item, _)| Reader(item));
            let order = order.and_then(|read| read.integer("order").ok());
            let contents = write_note(note, held.life, order.unwrap_or_else(|| self.order()));
            let seen = holder.as_ref().map(|(item, _)| item);
            if self.put_note(note, contents, seen, &held).await? {
                return Ok(step.answer);
            }
            pause(tries).await;
        }
        Err(keeps_changing())
    }

    /// Whether the note was written: nobody else has noted the id, and the record is still there.
    async fn put_note(
        &self,
        note: &ProviderNote,
        contents: Item,
        seen: Option<&Item>,
        held: &Held,
    ) -> Result<bool, StoreError> {
        let stamp = seen.map(|item| Reader(item).array::<16>("stamp")).transpose();
        let holder = self.guarded_put(
            holder_key(&note.id).into_iter().chain(contents.clone()).collect(),
            stamp.map_err(damaged)?,
        );
        let child =
            key(partition(&note.record), format!("{NOTE}{} {}", note.id.provider(), note.id.id()));
        let child = self.plain_put(child.into_iter().chain(contents).collect());
        let check = self.same_use(held);
        Ok(matches!(self.transact(vec![holder, child, check]).await?, Committed::Done))
    }

    /// What is known of a provider id, and whether it still counts: its record may be gone.
    async fn holder(&self, id: &ProviderId) -> Result<Option<(Item, bool)>, StoreError> {
        let Some(item) = self.get(holder_key(id)).await? else { return Ok(None) };
        let read = Reader(&item);
        let (record, life) = (read_id(&read).map_err(damaged)?, read.integer("life"));
        let life = life.map_err(damaged)?;
        let counts = self.load(&record).await?.is_some_and(|held| held.life == life);
        Ok(Some((item, counts)))
    }

    pub(super) async fn by_provider_id(
        &self,
        id: &ProviderId,
    ) -> Result<Option<ProviderNote>, StoreError> {
        let holder = self.holder(id).await?.filter(|(_, counts)| *counts);
        holder.map(|(item, _)| read_note(&item).map_err(damaged)).transpose()
    }

    pub(super) async fn provider_ids(
        &self,
        of: Vec<RecordId>,
    ) -> Result<Vec<ProviderNote>, StoreError> {
        let mut notes = Vec::new();
        for chunk in of.chunks(16) {
            let found = join_all(chunk.iter().map(|id| self.notes_of(id))).await;
            for of_one in found {
                notes.extend(of_one?);
            }
        }
        Ok(notes)
    }

    async fn notes_of(&self, id: &RecordId) -> Result<Vec<ProviderNote>, StoreError> {
        let items = self.range(&partition(id), NOTE, &format!("{NOTE}~")).await?;
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let Some(held) = self.load(id).await? else { return Ok(Vec::new()) };
        let mut notes = Vec::new();
        for item in &items {
            let read = Reader(item);
            if read.integer("life").map_err(damaged)? == held.life {
                let order = read.integer("order").map_err(damaged)?;
                notes.push((order, read_note(item).map_err(damaged)?));
            }
        }
        notes.sort_by_key(|(order, _)| *order);
        Ok(notes.into_iter().map(|(_, note)| note).collect())
    }
}

/// The bytes whose parts begin so; `None` if there is none.
fn join(items: &[Item], begin: &str) -> Option<Vec<u8>> {
    let mut joined = None;
    for item in items {
        let read = Reader(item);
        if read.text("sk").ok()?.starts_with(begin) {
            joined.get_or_insert_with(Vec::new).extend(read.bytes("contents").ok()?);
        }
    }
    joined
}

fn holder_key(id: &ProviderId) -> Item {
    key(format!("p#{}#{}", id.provider(), id.id()), "note")
}

fn write_note(note: &ProviderNote, life: i64, order: i64) -> Item {
    Item::new()
        .with("provider", text(note.id.provider()))
        .with("provider_id", text(note.id.id()))
        .with("scope", text(note.record.scope.as_str()))
        .with("key", text(note.record.key.as_str()))
        .with("generation", number(note.generation))
        .with("attempt", bytes(note.attempt.as_bytes().to_vec()))
        .with("fence", number(note.fence.number()))
        .with("at", time(note.at))
        .with("life", number(life))
        .with("order", number(order))
        .with("stamp", bytes(rand::random::<[u8; 16]>()))
}

fn read_note(item: &Item) -> Result<ProviderNote, BadItem> {
    let read = Reader(item);
    let id = ProviderId::new(read.text("provider")?, read.text("provider_id")?);
    Ok(ProviderNote {
        id: id.map_err(|_| BadItem("provider_id"))?,
        record: read_id(&read)?,
        generation: read.number("generation")?,
        attempt: AttemptId::from_bytes(read.array("attempt")?),
        fence: Fence::from_stored(read.integer("fence")?),
        at: read.time("at")?,
    })
}

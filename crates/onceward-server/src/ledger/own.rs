//! Our side: what the store knows, page by page, or lines of JSON that were written before.

use std::{collections::HashMap, io::BufRead};

use anyhow::{Context as _, Result, ensure};
use futures_util::{StreamExt as _, stream};
use onceward::{
    Reply, Store,
    clock::Timestamp,
    operation::derived_key,
    outbox::{MessageState, OutboxStore, StoredMessage},
    record::{Record, RecordId, State},
    store::list::{Order, PAGE_MAX, Query},
};
use serde_json::value::RawValue;

use super::{
    Amount, Entry,
    entry::{Source, Standing},
    export::{at_line, bad_json, moment, object},
    pointer::Pointer,
};
use crate::admin::time::rfc3339;

/// So many replies are read at once.
const AT_ONCE: usize = 16;

/// Where in a document what stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pointers {
    pub(crate) id: Option<Pointer>,
    pub(crate) amount: Option<Pointer>,
    pub(crate) currency: Option<Pointer>,
}

/// What of a store is read, and how.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// Which records.
    pub(crate) query: Query,
    /// In stored replies. Without an id here, and without a provider, operations are not read.
    pub(crate) replies: Pointers,
    /// The provider whose ids count that were noted of operations, where a reply tells none.
    pub(crate) provider: Option<String>,
    /// The effect under whose derived key the provider is called; without one it sees the client's
    /// key.
    pub(crate) effect: Option<String>,
    /// The sinks whose messages count.
    pub(crate) sinks: Vec<String>,
    /// In the payloads of messages.
    pub(crate) payloads: Pointers,
    /// Amounts are whole numbers of units that are this many digits smaller.
    pub(crate) minor_units: u8,
}

impl Reading {
    /// Hands on all that is asked for. Memory is bounded by a page.
    pub(crate) async fn read(
        &self,
        store: &dyn Store,
        outbox: Option<&dyn OutboxStore>,
        mut each: impl FnMut(Entry, Timestamp) -> Result<()>,
    ) -> Result<()> {
        if self.reads_operations() {
            self.operations(store, &mut each).await?;
        }
        if !self.sinks.is_empty() {
            let outbox = outbox.context("this store has no outbox; leave --sink out")?;
            self.messages(outbox, &mut each).await?;
        }
        Ok(())
    }

    /// Whether operations are compared, and not messages alone.
    pub(crate) fn reads_operations(&self) -> bool {
        self.replies.id.is_some() || self.provider.is_some()
    }

    async fn operations(
        &self,
        store: &dyn Store,
        each: &mut impl FnMut(Entry, Timestamp) -> Result<()>,
    ) -> Result<()> {
        let mut query = Query { order: Order::Ascending, limit: PAGE_MAX, ..self.query.clone() };
        loop {
            let page = store.list_records(query.clone()).await?;
            let mut noted = self.noted(store, &page.records).await?;
            let mut records =
                stream::iter(page.records).map(|listed| whole(store, listed)).buffered(AT_ONCE);
            while let Some(record) = records.next().await {
                let record = record?;
                let entry = self.operation(&record)?;
                let ids = noted.remove(&(record.id.clone(), record.generation));
                for entry in with_noted(entry, ids.unwrap_or_default()) {
                    each(entry, record.started_at)?;
                }
            }
            match page.next {
                Some(next) => query.after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// The ids of the provider that were noted of these records, in which generation.
    async fn noted(&self, store: &dyn Store, of: &[Record]) -> Result<Noted> {
        let mut noted = Noted::new();
        let Some(provider) = &self.provider else { return Ok(noted) };
        let of = of.iter().map(|record| record.id.clone()).collect();
        for note in store.provider_ids(of).await? {
            if note.id.provider() == provider {
                let ids = noted.entry((note.record, note.generation)).or_default();
                ids.push(note.id.id().to_owned());
            }
        }
        Ok(noted)
    }

    fn operation(&self, record: &Record) -> Result<Entry> {
        let sealed = record.reply.as_ref().is_some_and(Reply::is_sealed);
        ensure!(!sealed, "stored replies are sealed: give --config with their privacy.keys");
        let body = record.reply.as_ref().filter(|_| is_charge(record)).map(Reply::body_bytes);
        let document = body.as_deref().and_then(|body| serde_json::from_slice(body).ok());
        let part = |pointer: &Option<Pointer>| pointer.as_ref()?.text(document?);
        let id = &record.id;
        let sent_key = match &self.effect {
            Some(effect) => derived_key(id, record.generation, effect),
            None => id.key.as_str().to_owned(),
        };
        Ok(Entry {
            record: id.handle(),
            scope: id.scope.as_str().to_owned(),
            key: id.key.as_str().to_owned(),
            generation: record.generation,
            source: Source::Operation,
            state: record.state.into(),
            status: record.reply.as_ref().map(|reply| reply.status.as_u16()),
            provider_id: part(&self.replies.id),
            noted: false,
            sent_key: Some(sent_key),
            amount: self.amount(part(&self.replies.amount), id.key.as_str())?,
            currency: part(&self.replies.currency),
            at: Some(rfc3339(record.started_at)),
        })
    }

    async fn messages(
        &self,
        outbox: &dyn OutboxStore,
        each: &mut impl FnMut(Entry, Timestamp) -> Result<()>,
    ) -> Result<()> {
        for state in MessageState::ALL {
            let mut after = None;
            loop {
                let page = outbox.list(state, after, PAGE_MAX).await?;
                let Some(last) = page.last() else { break };
                after = Some(last.message_id);
                let ours = |it: &&StoredMessage| self.sinks.contains(&it.message.sink.to_string());
                for message in page.iter().filter(ours) {
                    let at = message.done_at.unwrap_or(message.created_at);
                    each(self.message(message, at)?, at)?;
                }
            }
        }
        Ok(())
    }

    fn message(&self, stored: &StoredMessage, at: Timestamp) -> Result<Entry> {
        let document: Option<&RawValue> = serde_json::from_slice(&stored.message.payload).ok();
        let part = |pointer: &Option<Pointer>| pointer.as_ref()?.text(document?);
        let id = &stored.operation;
        Ok(Entry {
            record: id.handle(),
            scope: id.scope.as_str().to_owned(),
            key: id.key.as_str().to_owned(),
            generation: stored.generation,
            source: Source::Message,
            state: stored.state.into(),
            status: None,
            provider_id: stored.provider_id.as_deref().map(str::to_owned),
            noted: false,
            sent_key: Some(stored.derived_key.to_string()),
            amount: self.amount(part(&self.payloads.amount), id.key.as_str())?,
            currency: part(&self.payloads.currency),
            at: Some(rfc3339(at)),
        })
    }

    fn amount(&self, text: Option<String>, key: &str) -> Result<Option<Amount>> {
        let Some(text) = text else { return Ok(None) };
        let amount = text.parse().and_then(|it: Amount| it.of_minor_units(self.minor_units));
        amount.map(Some).with_context(|| format!("the amount `{text}` of key {key}"))
    }
}

/// Provider ids of a generation.
type Noted = HashMap<(RecordId, u32), Vec<String>>;

/// An entry for each id that was noted, unless the reply tells one.
fn with_noted(entry: Entry, ids: Vec<String>) -> Vec<Entry> {
    if entry.provider_id.is_some() || ids.is_empty() {
        return vec![entry];
    }
    let named = |id| Entry { provider_id: Some(id), noted: true, ..entry.clone() };
    ids.into_iter().map(named).collect()
}

/// A reply that tells of something that was done.
fn is_charge(record: &Record) -> bool {
    let done = record.reply.as_ref().is_some_and(|reply| reply.status.is_success());
    done && record.state == State::Completed
}

/// The record with its reply, where that may tell of a charge.
async fn whole(store: &dyn Store, listed: Record) -> Result<Record> {
    if !is_charge(&listed) {
        return Ok(listed);
    }
    // It may have been purged since it was listed.
    let gone = Record { state: State::Expired, ..listed.clone() };
    Ok(store.load(&listed.id).await?.unwrap_or(gone))
}

impl From<State> for Standing {
    fn from(state: State) -> Standing {
        match state {
            State::Pending => Standing::Pending,
            State::InProgress => Standing::InProgress,
            State::Completed => Standing::Completed,
            State::FailedRetryable => Standing::FailedRetryable,
            State::Unknown => Standing::Unknown,
            State::Expired => Standing::Expired,
        }
    }
}

impl From<MessageState> for Standing {
    fn from(state: MessageState) -> Standing {
        match state {
            MessageState::Ready => Standing::Ready,
            MessageState::Delivering => Standing::Delivering,
            MessageState::Done => Standing::Done,
            MessageState::Dead => Standing::Dead,
        }
    }
}

/// Entries that were written before, one in each line.
pub(crate) struct OwnFile<R>(pub(crate) R);

impl<R: BufRead> OwnFile<R> {
    pub(crate) fn read(
        mut self,
        mut each: impl FnMut(Entry, Option<Timestamp>) -> Result<()>,
    ) -> Result<()> {
        let (mut number, mut line) = (0, Vec::new());
        loop {
            line.clear();
            number += 1;
            if self.0.read_until(b'\n', &mut line).with_context(|| at_line(number))? == 0 {
                return Ok(());
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let (entry, at) = entry(&line).with_context(|| at_line(number))?;
            each(entry, at)?;
        }
    }
}

fn entry(line: &[u8]) -> Result<(Entry, Option<Timestamp>)> {
    let mut entry: Entry = serde_json::from_str(object(line)?.get()).map_err(bad_json)?;
    entry.provider_id = entry.provider_id.filter(|id| !id.is_empty());
    entry.sent_key = entry.sent_key.filter(|key| !key.is_empty());
    let at = entry.at.as_deref().map(moment).transpose()?;
    Ok((entry, at))
}

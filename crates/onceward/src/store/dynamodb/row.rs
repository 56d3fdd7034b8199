//! One encoding of records and audit records, used by every write and every read.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use bytes::Bytes;
use http::StatusCode;
use sha2::{Digest as _, Sha256};

use super::{
    super::headers::{decode_headers, encode_headers},
    REPLY_CAP,
    item::{BadItem, Item, Put as _, Reader, bytes, key, number, text, time},
};
use crate::{
    clock::Timestamp,
    fingerprint::Fingerprint,
    key::Key,
    machine,
    record::{
        AttemptId, AuditEvent, AuditRecord, Effects, Fence, Inquiry, OpenEffect, Progress, Record,
        RecordId, State,
    },
    reply::{Reply, ReplyBody},
    scope::Scope,
};

/// The sort key of a record.
pub(super) const RECORD: &str = "record";

/// What audit records sort under.
pub(super) const AUDIT: &str = "audit#";

/// A reply with its headers takes at most this: an item has 400 kB, and there is more in it.
const REPLY_ROOM: usize = 350_000;

/// A record with what only this store knows of it.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) record: Record,
    /// Another one after each write: who writes names the one that was read. Random, so that no
    /// record that is made again has one that a delayed write still waits for.
    pub(super) stamp: [u8; 16],
    /// The fence under which the record was first made, whatever generations came since. What is
    /// noted about it belongs to it by this.
    pub(super) life: i64,
    /// The fence under which what is kept beside it was begun. Items with another one are not seen.
    pub(super) beside: i64,
    /// The names of the saved steps, in order.
    pub(super) steps: Vec<Box<str>>,
    /// In how many items the request is kept.
    pub(super) request_parts: u32,
}

impl Held {
    /// What is kept of a record that is written over this one, or where there was none.
    pub(super) fn follow(before: Option<&Held>, record: Record) -> Held {
        let fence = record.fence.number();
        let stamp = rand::random();
        let life = match before {
            Some(held) if !machine::is_made_anew(&held.record, &record) => held.life,
            _ => fence,
        };
        // What is beside a record goes with the write that makes it terminal.
        match before.filter(|held| !held.record.state.is_terminal()) {
            Some(held) if !record.state.is_terminal() => Held {
                record,
                stamp,
                life,
                beside: held.beside,
                steps: held.steps.clone(),
                request_parts: held.request_parts,
            },
            _ => Held { record, stamp, life, beside: fence, steps: Vec::new(), request_parts: 0 },
        }
    }

    /// Whether there may be items beside it.
    pub(super) fn has_beside(&self) -> bool {
        self.request_parts > 0 || !self.steps.is_empty()
    }
}

/// The partition of all that is about one record. No two records share one, wherever the border
/// between scope and key is.
pub(super) fn partition(id: &RecordId) -> String {
    let (scope, key) = (id.scope.as_str(), id.key.as_str());
    format!("r#{}#{scope}#{key}", scope.len())
}

pub(super) fn record_key(id: &RecordId) -> Item {
    key(partition(id), RECORD)
}

/// The part of an index in which a record or an audit record stands.
pub(super) fn shard_of(kind: &str, partition: &str, shards: u32) -> String {
    let digest = Sha256::digest(partition.as_bytes());
    let number = digest.first_chunk::<4>().map_or(0, |first| u32::from_be_bytes(*first));
    shard(kind, number % shards.max(1))
}

pub(super) fn shard(kind: &str, number: u32) -> String {
    format!("{kind}#{number:03}")
}

/// Work in progress that the sweeper does not move: it waits for somebody to go on with it.
pub(super) const WAITING: &str = "waiting";

/// Under what, and when, a worker has to look at a record.
pub(super) fn due(record: &Record) -> (&'static str, Timestamp) {
    match record.state {
        State::InProgress => {
            let is_swept = machine::sweep(record, record.lease_until).answer.is_some();
            (if is_swept { State::InProgress.name() } else { WAITING }, record.lease_until)
        }
        State::Pending => (State::Pending.name(), record.lease_until),
        State::Unknown => {
            (State::Unknown.name(), record.reconcile_after.unwrap_or(Timestamp::NEVER))
        }
        State::Completed | State::FailedRetryable => (record.state.name(), record.expires_at),
        State::Expired => (State::Expired.name(), record.purge_at()),
    }
}

pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn write_record(held: &Held, shards: u32) -> Item {
    let record = &held.record;
    let partition = partition(&record.id);
    let (due, due_at) = due(record);
    let open = record.progress.open_effect.as_ref();
    let optional_time = |at: Option<Timestamp>| at.map(time);
    let optional_text = |it: Option<&str>| it.map(text);
    let names: Vec<AttributeValue> = held.steps.iter().map(|name| text(&**name)).collect();
    let item = key(&partition, RECORD)
        .with("scope", text(record.id.scope.as_str()))
        .with("key", text(record.id.key.as_str()))
        .with("recipe", number(record.fingerprint.recipe()))
        .with("fingerprint", bytes(record.fingerprint.digest().to_vec()))
        .with("generation", number(record.generation))
        .with("state", text(record.state.name()))
        .with("attempt", bytes(record.attempt.as_bytes().to_vec()))
        .with("fence", number(record.fence.number()))
        .with("attempts", number(record.attempts))
        .with("effects", text(record.effects.name()))
        .with("route", text(&*record.route))
        .with("method", text(&*record.method))
        .with("path", text(&*record.path))
        .with("created_at", time(record.created_at))
        .with("started_at", time(record.started_at))
        .with("lease_until", time(record.lease_until))
        .with("max_execution", number(micros(record.max_execution)))
        .with_some("finished_at", optional_time(record.finished_at))
        .with("expires_at", time(record.expires_at))
        .with("retention", number(micros(record.retention)))
        .with("tombstone", number(micros(record.tombstone)))
        .with_some("last_error", optional_text(record.last_error.as_deref()))
        .with_some("reconcile_after", optional_time(record.reconcile_after))
        .with_some("void", record.void.then(|| number(1)))
        .with_some("recovery_point", optional_text(record.progress.recovery_point.as_deref()))
        .with_some("open_effect", open.map(|effect| text(&*effect.name)))
        .with_some("effect_idempotent", open.map(|effect| number(effect.idempotent)))
        .with_some("queued_until", optional_time(record.queued_until))
        .with_some("probes", (record.inquiry.probes > 0).then(|| number(record.inquiry.probes)))
        .with_some("asked_at", optional_time(record.inquiry.asked_at))
        .with_some("absent_at", optional_time(record.inquiry.absent_at))
        .with("stamp", bytes(held.stamp))
        .with("life", number(held.life))
        .with("beside", number(held.beside))
        .with_some("steps", (!names.is_empty()).then_some(AttributeValue::L(names)))
        .with_some("request_parts", (held.request_parts > 0).then(|| number(held.request_parts)))
        .with("due", text(shard_of(due, &partition, shards)))
        .with("due_at", time(due_at))
        .with("listed", text(shard_of("record", &partition, shards)))
        .with("listed_at", time(record.created_at));
    write_reply(item, record.reply.as_ref())
}

/// The attributes of a record without what was replied, for lists: they read no bodies.
pub(super) const LISTED: [&str; 39] = [
    "pk",
    "sk",
    "scope",
    "key",
    "recipe",
    "fingerprint",
    "generation",
    "state",
    "attempt",
    "fence",
    "attempts",
    "effects",
    "route",
    "method",
    "path",
    "created_at",
    "started_at",
    "lease_until",
    "max_execution",
    "finished_at",
    "expires_at",
    "retention",
    "tombstone",
    "last_error",
    "reconcile_after",
    "void",
    "recovery_point",
    "open_effect",
    "effect_idempotent",
    "queued_until",
    "probes",
    "asked_at",
    "absent_at",
    "stamp",
    "life",
    "beside",
    "steps",
    "request_parts",
    "reply_status",
];

pub(super) fn write_reply(item: Item, reply: Option<&Reply>) -> Item {
    let Some(reply) = reply else { return item };
    let body = match &reply.body {
        ReplyBody::Stored(body) => Some(bytes(body.to_vec())),
        ReplyBody::NotStored => None,
    };
    let headers = (!reply.headers.is_empty()).then(|| bytes(encode_headers(&reply.headers)));
    item.with("reply_status", number(reply.status.as_u16()))
        .with_some("reply_headers", headers)
        .with_some("reply_schema", reply.schema_version.as_deref().map(text))
        .with_some("reply_body", body)
}

/// The attributes of a reply.
pub(super) const REPLY: [&str; 4] = ["reply_status", "reply_headers", "reply_schema", "reply_body"];

/// What of a reply goes into an item.
pub(super) fn fitting(mut reply: Reply) -> Reply {
    let head = encode_headers(&reply.headers).len()
        + reply.schema_version.as_ref().map_or(0, |version| version.len());
    if head > REPLY_ROOM {
        return reply.status_only();
    }
    let length = reply.body_bytes().len();
    let is_sealed = reply.is_sealed();
    if is_sealed && head + length > REPLY_ROOM {
        // Its headers are in the body: nothing of it could be opened.
        return reply.status_only();
    }
    // What is sealed was measured before, by whoever sealed it.
    if !is_sealed && length > REPLY_CAP || head + length > REPLY_ROOM {
        reply.body = ReplyBody::NotStored;
    }
    reply
}

pub(super) fn read_record(item: &Item) -> Result<Held, BadItem> {
    let read = Reader(item);
    let id = read_id(&read)?;
    let duration = |name| Ok(Duration::from_micros(read.number::<u64>(name)?));
    let record = Record {
        id,
        fingerprint: Fingerprint::from_stored(read.number("recipe")?, read.array("fingerprint")?),
        generation: read.number("generation")?,
        state: State::from_name(read.text("state")?).ok_or(BadItem("state"))?,
        attempt: AttemptId::from_bytes(read.array("attempt")?),
        fence: Fence::from_stored(read.integer("fence")?),
        attempts: read.number("attempts")?,
        effects: Effects::from_name(read.text("effects")?).ok_or(BadItem("effects"))?,
        route: read.text("route")?.into(),
        method: read.text("method")?.into(),
        path: read.text("path")?.into(),
        created_at: read.time("created_at")?,
        started_at: read.time("started_at")?,
        lease_until: read.time("lease_until")?,
        max_execution: duration("max_execution")?,
        finished_at: read.optional_time("finished_at")?,
        expires_at: read.time("expires_at")?,
        retention: duration("retention")?,
        tombstone: duration("tombstone")?,
        reply: read_reply(&read)?,
        last_error: read.optional_text("last_error")?.map(Into::into),
        reconcile_after: read.optional_time("reconcile_after")?,
        inquiry: Inquiry {
            probes: read.optional_number("probes")?.unwrap_or(0),
            asked_at: read.optional_time("asked_at")?,
            absent_at: read.optional_time("absent_at")?,
        },
        void: read.optional_integer("void")?.is_some(),
        progress: Progress {
            recovery_point: read.optional_text("recovery_point")?.map(Into::into),
            open_effect: read_effect(&read)?,
        },
        queued_until: read.optional_time("queued_until")?,
    };
    let must_have_reply = record.state == State::Completed;
    if record.state != State::Expired && must_have_reply != record.reply.is_some() {
        return Err(BadItem("reply_status"));
    }
    let name = |value: &AttributeValue| value.as_s().ok().map(|it| Box::from(it.as_str()));
    let steps = read.list("steps")?.iter().map(name).collect::<Option<Vec<Box<str>>>>();
    Ok(Held {
        record,
        stamp: read.array("stamp")?,
        life: read.integer("life")?,
        beside: read.integer("beside")?,
        steps: steps.ok_or(BadItem("steps"))?,
        request_parts: read.optional_number("request_parts")?.unwrap_or(0),
    })
}

pub(super) fn read_id(read: &Reader<'_>) -> Result<RecordId, BadItem> {
    let scope = Scope::new(read.text("scope")?).map_err(|_| BadItem("scope"))?;
    let key = Key::new(read.text("key")?).map_err(|_| BadItem("key"))?;
    Ok(RecordId { scope, key })
}

fn read_effect(read: &Reader<'_>) -> Result<Option<OpenEffect>, BadItem> {
    let Some(name) = read.optional_text("open_effect")? else { return Ok(None) };
    let idempotent = read.integer("effect_idempotent")? != 0;
    Ok(Some(OpenEffect { name: name.into(), idempotent }))
}

fn read_reply(read: &Reader<'_>) -> Result<Option<Reply>, BadItem> {
    let Some(status) = read.optional_number::<u16>("reply_status")? else { return Ok(None) };
    let headers = match read.optional_bytes("reply_headers")? {
        Some(encoded) => decode_headers(encoded).ok_or(BadItem("reply_headers"))?,
        None => Vec::new(),
    };
    let body = match read.optional_bytes("reply_body")? {
        Some(body) => ReplyBody::Stored(Bytes::copy_from_slice(body)),
        None => ReplyBody::NotStored,
    };
    Ok(Some(Reply {
        status: StatusCode::from_u16(status).map_err(|_| BadItem("reply_status"))?,
        headers,
        body,
        schema_version: read.optional_text("reply_schema")?.map(Into::into),
    }))
}

/// The address of an audit record. The same thing told again has the same one.
pub(super) fn audit_key(audit: &AuditRecord) -> Item {
    let mut digest = Sha256::new();
    digest.update(audit.generation.to_be_bytes());
    digest.update(audit.event.name());
    digest.update(audit.attempt.as_bytes());
    digest.update(audit.fence.number().to_be_bytes());
    if audit.event.may_recur() && audit.event != AuditEvent::Incident {
        digest.update(audit.at.as_micros().to_be_bytes());
    }
    digest.update(audit.told().unwrap_or_default());
    let digits = digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let digits: String = digits;
    key(partition(&audit.id), format!("{AUDIT}{digits}"))
}

/// All of an audit record but its address. `order` is what they are sorted by: at one time many may
/// be made.
pub(super) fn write_audit(audit: &AuditRecord, order: i64, shards: u32) -> Item {
    let item = Item::new()
        .with("scope", text(audit.id.scope.as_str()))
        .with("key", text(audit.id.key.as_str()))
        .with("at", time(audit.at))
        .with("generation", number(audit.generation))
        .with("event", text(audit.event.name()))
        .with("attempt", bytes(audit.attempt.as_bytes().to_vec()))
        .with("fence", number(audit.fence.number()))
        .with("reason", text(&*audit.reason))
        .with("order", number(order))
        .with("listed", text(shard_of("audit", &partition(&audit.id), shards)))
        .with("listed_at", time(audit.at));
    write_reply(item, audit.reply.as_ref())
}

/// An audit record, and what those of one record are sorted by.
pub(super) fn read_audit(item: &Item) -> Result<(i64, AuditRecord), BadItem> {
    let read = Reader(item);
    let audit = AuditRecord {
        at: read.time("at")?,
        id: read_id(&read)?,
        generation: read.number("generation")?,
        event: AuditEvent::from_name(read.text("event")?).ok_or(BadItem("event"))?,
        attempt: AttemptId::from_bytes(read.array("attempt")?),
        fence: Fence::from_stored(read.integer("fence")?),
        reason: read.text("reason")?.into(),
        reply: read_reply(&read)?,
    };
    Ok((read.integer("order")?, audit))
}

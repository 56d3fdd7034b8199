//! The one encoding of records, replies and audit records.
//!
//! A record is a hash with one letter for each field that a script reads, and `r` for the rest. Scripts
//! know: `v` stamp, `s` state, `a` attempt, `f` fence, `g` generation, `c` created, `b` begun, `l` lease
//! until, `n` finished, `e` expires, `t` retention, `z` tombstone, `x` last error, `k` reconcile after,
//! `q` queued until, `m` route, `y` status, `p` reply, `w` the index in which its lease is due, and `o`
//! which writes need a look.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use sha2::{Digest as _, Sha256};

use super::{
    super::headers::{decode_headers, encode_headers},
    address::read_member,
};
use crate::{
    clock::Timestamp,
    fingerprint::Fingerprint,
    machine,
    record::{
        AttemptId, AuditEvent, AuditRecord, Effects, Fence, Inquiry, OpenEffect, Progress,
        ProviderId, ProviderNote, Record, RecordId, State,
    },
    reply::{Reply, ReplyBody},
    store::Completed,
};

/// The version of the encodings, first byte of each.
const VERSION: u8 = 1;

/// The name of a field and its value.
pub(super) type Field = (&'static str, Vec<u8>);

/// All fields of a record but its stamp.
pub(super) fn fields(record: &Record) -> Vec<Field> {
    let mut fields = plain_fields(record);
    fields.extend(times(record).map(|(name, time)| (name, number(time.as_micros()))));
    fields.push(("f", number(record.fence.number())));
    fields
}

/// The fields that do not hang on when the record was made.
pub(super) fn plain_fields(record: &Record) -> Vec<Field> {
    let mut fields: Vec<Field> = vec![
        ("s", record.state.name().into()),
        ("a", record.attempt.as_bytes().to_vec()),
        ("g", number(record.generation.into())),
        ("t", number(micros(record.retention))),
        ("z", number(micros(record.tombstone))),
        ("m", record.route.as_bytes().to_vec()),
        ("o", needs_a_look(record).into()),
        ("w", lease_index(record).into()),
        ("r", rest(record)),
    ];
    if let Some(error) = &record.last_error {
        fields.push(("x", error.as_bytes().to_vec()));
    }
    if let Some(reply) = &record.reply {
        fields.push(("y", reply.status.as_str().into()));
        fields.push(("p", encode_reply(reply)));
    }
    fields
}

/// The fields that are times.
pub(super) fn times(record: &Record) -> impl Iterator<Item = (&'static str, Timestamp)> {
    let always = [
        ("c", record.created_at),
        ("b", record.started_at),
        ("l", record.lease_until),
        ("e", record.expires_at),
    ];
    let sometimes =
        [("n", record.finished_at), ("k", record.reconcile_after), ("q", record.queued_until)];
    let sometimes = sometimes.into_iter().filter_map(|(name, time)| time.map(|time| (name, time)));
    always.into_iter().chain(sometimes)
}

/// The indexes in which a record stands, and where.
pub(super) fn places(record: &Record) -> Vec<(&'static str, Timestamp)> {
    let mut places = vec![("c", record.created_at), state_place(record)];
    let due = match record.state {
        State::Pending => Some(("d", record.lease_until)),
        State::InProgress => {
            Some((lease_index(record), record.lease_until)).filter(|(index, _)| !index.is_empty())
        }
        State::Unknown => record.reconcile_after.map(|after| ("u", after)),
        State::Completed | State::FailedRetryable | State::Expired => None,
    };
    // Who is never due is not looked for.
    places.extend(due.filter(|(_, at)| *at != Timestamp::NEVER));
    places
}

/// The index of its state.
pub(super) fn state_place(record: &Record) -> (&'static str, Timestamp) {
    match record.state {
        State::Pending => ("P", record.created_at),
        State::InProgress => ("I", record.started_at),
        State::Unknown => ("U", record.started_at),
        State::Completed => ("C", record.expires_at),
        State::FailedRetryable => ("F", record.expires_at),
        State::Expired => ("E", record.purge_at()),
    }
}

/// The index in which whoever has to do something at the end of its lease finds a record that is in
/// progress; none if it waits for its own client.
pub(super) fn lease_index(record: &Record) -> &'static str {
    let at_its_end = record.lease_until;
    if record.state == State::Pending {
        "d"
    } else if machine::sweep(record, at_its_end).answer.is_some() {
        "w"
    } else if !machine::is_resumable(record, at_its_end) {
        ""
    } else if record.is_queued() {
        "H"
    } else {
        "h"
    }
}

/// Which writes of its attempt a script leaves to the machine: a release, or all.
fn needs_a_look(record: &Record) -> &'static str {
    if record.inquiry != Inquiry::default() {
        "a"
    } else if !record.progress.is_none() || record.is_queued() {
        "r"
    } else {
        ""
    }
}

pub(super) fn number(number: i64) -> Vec<u8> {
    number.to_string().into_bytes()
}

pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn rest(record: &Record) -> Vec<u8> {
    let mut rest = Encoder::new();
    rest.bytes(&record.fingerprint.recipe().to_be_bytes());
    rest.bytes(record.fingerprint.digest());
    rest.integer(record.attempts.into());
    for text in [record.effects.name(), &record.method, &record.path] {
        rest.bytes(text.as_bytes());
    }
    rest.integer(micros(record.max_execution));
    rest.integer(record.void.into());
    rest.optional(record.progress.recovery_point.as_deref().map(str::as_bytes));
    let open = record.progress.open_effect.as_ref();
    rest.optional(open.map(|effect| effect.name.as_bytes()));
    rest.integer(open.is_some_and(|effect| effect.idempotent).into());
    rest.integer(record.inquiry.probes.into());
    for time in [record.inquiry.asked_at, record.inquiry.absent_at] {
        rest.optional(
            time.map(|time| time.as_micros().to_be_bytes()).as_ref().map(|time| &time[..]),
        );
    }
    rest.0
}

/// The record of these fields. Without what was replied, the status is left of it.
pub(super) fn read_record(id: RecordId, found: &[(Bytes, Bytes)]) -> Option<Record> {
    let fields = Found(found);
    let mut rest = Decoder::of(fields.get("r")?)?;
    let recipe = u16::from_be_bytes(rest.array()?);
    let fingerprint = Fingerprint::from_stored(recipe, rest.array()?);
    let attempts = rest.integer()?.try_into().ok()?;
    let effects = Effects::from_name(&rest.text()?)?;
    let (method, path) = (rest.text()?.into(), rest.text()?.into());
    let max_execution = duration(rest.integer()?)?;
    let void = rest.integer()? != 0;
    let recovery_point = rest.optional_text()?;
    let open = rest.optional_text()?;
    let idempotent = rest.integer()? != 0;
    let inquiry = Inquiry {
        probes: rest.integer()?.try_into().ok()?,
        asked_at: rest.optional_time()?,
        absent_at: rest.optional_time()?,
    };
    rest.end()?;
    let record = Record {
        id,
        fingerprint,
        generation: fields.integer("g")?.try_into().ok()?,
        state: State::from_name(fields.text("s")?)?,
        attempt: AttemptId::from_bytes(fields.get("a")?.as_ref().try_into().ok()?),
        fence: Fence::from_stored(fields.integer("f")?),
        attempts,
        effects,
        route: fields.text("m")?.into(),
        method,
        path,
        created_at: fields.time("c")?,
        started_at: fields.time("b")?,
        lease_until: fields.time("l")?,
        max_execution,
        finished_at: fields.optional_time("n")?,
        expires_at: fields.time("e")?,
        retention: duration(fields.integer("t")?)?,
        tombstone: duration(fields.integer("z")?)?,
        reply: fields.reply()?,
        last_error: fields.optional_text("x")?,
        reconcile_after: fields.optional_time("k")?,
        inquiry,
        void,
        progress: Progress {
            recovery_point,
            open_effect: open.map(|name| OpenEffect { name, idempotent }),
        },
        queued_until: fields.optional_time("q")?,
    };
    let must_have_reply = record.state == State::Completed;
    let is_whole = record.state == State::Expired || must_have_reply == record.reply.is_some();
    is_whole.then_some(record)
}

/// The stamp of the record of these fields.
pub(super) fn stamp(found: &[(Bytes, Bytes)]) -> Vec<u8> {
    Found(found).get("v").map_or_else(Vec::new, |stamp| stamp.to_vec())
}

struct Found<'f>(&'f [(Bytes, Bytes)]);

impl<'f> Found<'f> {
    fn get(&self, name: &str) -> Option<&'f Bytes> {
        self.0.iter().find(|(field, _)| field == name.as_bytes()).map(|(_, value)| value)
    }

    fn text(&self, name: &str) -> Option<&'f str> {
        std::str::from_utf8(self.get(name)?).ok()
    }

    fn integer(&self, name: &str) -> Option<i64> {
        self.text(name)?.parse().ok()
    }

    fn time(&self, name: &str) -> Option<Timestamp> {
        self.integer(name).map(Timestamp::from_micros)
    }

    fn optional_time(&self, name: &str) -> Option<Option<Timestamp>> {
        match self.get(name) {
            None => Some(None),
            Some(_) => self.time(name).map(Some),
        }
    }

    fn optional_text(&self, name: &str) -> Option<Option<Box<str>>> {
        match self.get(name) {
            None => Some(None),
            Some(_) => self.text(name).map(|text| Some(text.into())),
        }
    }

    /// With its status alone if the rest was not asked for.
    fn reply(&self) -> Option<Option<Reply>> {
        let Some(status) = self.get("y") else { return Some(None) };
        let status = StatusCode::from_bytes(status).ok()?;
        let Some(encoded) = self.get("p") else {
            let bare = Reply {
                status,
                headers: Vec::new(),
                body: ReplyBody::NotStored,
                schema_version: None,
            };
            return Some(Some(bare));
        };
        let reply = decode_reply(encoded)?;
        (reply.status == status).then_some(Some(reply))
    }
}

fn duration(micros: i64) -> Option<Duration> {
    u64::try_from(micros).ok().map(Duration::from_micros)
}

/// With a digest in front: what was damaged is never replayed.
pub(super) fn encode_reply(reply: &Reply) -> Vec<u8> {
    let mut encoded = Encoder::new();
    encoded.integer(reply.status.as_u16().into());
    encoded.optional(reply.schema_version.as_deref().map(str::as_bytes));
    encoded.bytes(&encode_headers(&reply.headers));
    encoded.optional(match &reply.body {
        ReplyBody::Stored(body) => Some(&body[..]),
        ReplyBody::NotStored => None,
    });
    let mut whole = Sha256::digest(&encoded.0).to_vec();
    whole.extend(encoded.0);
    whole
}

pub(super) fn decode_reply(whole: &Bytes) -> Option<Reply> {
    let (digest, encoded) = whole.split_at_checked(32)?;
    if Sha256::digest(encoded).as_slice() != digest {
        return None;
    }
    let mut encoded = Decoder::of(&whole.slice(32..))?;
    let reply = Reply {
        status: StatusCode::from_u16(encoded.integer()?.try_into().ok()?).ok()?,
        schema_version: encoded.optional_text()?,
        headers: decode_headers(&encoded.bytes()?)?,
        body: encoded.optional()?.map_or(ReplyBody::NotStored, ReplyBody::Stored),
    };
    encoded.end()?;
    Some(reply)
}

/// What a retry needs of a completed record.
pub(super) fn encode_completed(completed: &Completed, encoded: &mut Encoder) {
    encoded.bytes(&completed.fingerprint.recipe().to_be_bytes());
    encoded.bytes(completed.fingerprint.digest());
    encoded.integer(completed.generation.into());
    encoded.bytes(completed.attempt.as_bytes());
    encoded.integer(completed.fence.number());
    encoded.integer(completed.expires_at.as_micros());
    encoded.bytes(&encode_reply(&completed.reply));
}

pub(super) fn read_completed(encoded: &mut Decoder) -> Option<Completed> {
    let recipe = u16::from_be_bytes(encoded.bytes()?.as_ref().try_into().ok()?);
    let digest = encoded.bytes()?.as_ref().try_into().ok()?;
    Some(Completed {
        fingerprint: Fingerprint::from_stored(recipe, digest),
        generation: encoded.integer()?.try_into().ok()?,
        attempt: AttemptId::from_bytes(encoded.bytes()?.as_ref().try_into().ok()?),
        fence: Fence::from_stored(encoded.integer()?),
        expires_at: Timestamp::from_micros(encoded.integer()?),
        reply: decode_reply(&encoded.bytes()?)?,
    })
}

/// What a script takes of an audit record: how it is told from others, when, of which generation.
pub(super) fn audit_args(audit: &AuditRecord) -> [Vec<u8>; 4] {
    [
        audit_digest(audit),
        number(audit.at.as_micros()),
        number(audit.generation.into()),
        encode_audit(audit),
    ]
}

/// The same of all that tell of the same thing: see [`AuditRecord::repeats`].
fn audit_digest(audit: &AuditRecord) -> Vec<u8> {
    let mut identity = Encoder::new();
    identity.integer(audit.generation.into());
    identity.bytes(audit.event.name().as_bytes());
    identity.bytes(audit.attempt.as_bytes());
    identity.integer(audit.fence.number());
    match audit.event {
        AuditEvent::DeadLettered | AuditEvent::Redriven => identity.integer(audit.at.as_micros()),
        _ => identity.optional(audit.told().as_ref().map(|told| &told[..])),
    }
    let digest = Sha256::digest(&identity.0);
    digest.get(..16).unwrap_or_default().to_vec()
}

fn encode_audit(audit: &AuditRecord) -> Vec<u8> {
    let mut encoded = Encoder::new();
    encoded.integer(audit.at.as_micros());
    encoded.integer(audit.generation.into());
    encoded.bytes(audit.event.name().as_bytes());
    encoded.bytes(audit.attempt.as_bytes());
    encoded.integer(audit.fence.number());
    encoded.bytes(audit.reason.as_bytes());
    encoded.optional(audit.reply.as_ref().map(encode_reply).as_deref());
    encoded.0
}

/// An audit record of this record, as a script keeps it, and its place among all.
pub(super) fn read_audit(id: RecordId, kept: &Bytes) -> Option<(u64, AuditRecord)> {
    let mut parts = kept.splitn(3, |byte| *byte == b' ');
    let (_, place) = (parts.next()?, parts.next()?);
    let place = std::str::from_utf8(place).ok()?.parse().ok()?;
    let mut encoded = Decoder::of(&kept.slice_ref(parts.next()?))?;
    let audit = AuditRecord {
        at: Timestamp::from_micros(encoded.integer()?),
        id,
        generation: encoded.integer()?.try_into().ok()?,
        event: AuditEvent::from_name(&encoded.text()?)?,
        attempt: AttemptId::from_bytes(encoded.array()?),
        fence: Fence::from_stored(encoded.integer()?),
        reason: encoded.text()?,
        reply: match encoded.optional()? {
            None => None,
            Some(reply) => Some(decode_reply(&reply)?),
        },
    };
    encoded.end()?;
    Some((place, audit))
}

pub(super) fn encode_note(note: &ProviderNote) -> Vec<u8> {
    let mut encoded = Encoder::new();
    encoded.bytes(&super::address::member(&note.record));
    encoded.integer(note.generation.into());
    encoded.bytes(note.attempt.as_bytes());
    encoded.integer(note.fence.number());
    encoded.integer(note.at.as_micros());
    encoded.0
}

pub(super) fn read_note(id: ProviderId, encoded: &Bytes) -> Option<ProviderNote> {
    let mut encoded = Decoder::of(encoded)?;
    let note = ProviderNote {
        id,
        record: read_member(&encoded.bytes()?)?,
        generation: encoded.integer()?.try_into().ok()?,
        attempt: AttemptId::from_bytes(encoded.array()?),
        fence: Fence::from_stored(encoded.integer()?),
        at: Timestamp::from_micros(encoded.integer()?),
    };
    encoded.end()?;
    Some(note)
}

/// Numbers and bytes with their lengths, one after the other.
pub(super) struct Encoder(pub(super) Vec<u8>);

impl Encoder {
    pub(super) fn new() -> Self {
        Encoder(vec![VERSION])
    }

    pub(super) fn integer(&mut self, number: i64) {
        self.0.extend(number.to_be_bytes());
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
        self.0.extend(bytes);
    }

    pub(super) fn optional(&mut self, bytes: Option<&[u8]>) {
        self.0.push(bytes.is_some().into());
        self.bytes(bytes.unwrap_or_default());
    }
}

/// Reads what [`Encoder`] wrote. Nothing is taken for less than it was.
pub(super) struct Decoder(Bytes);

impl Decoder {
    pub(super) fn of(encoded: &Bytes) -> Option<Self> {
        (*encoded.first()? == VERSION).then(|| Decoder(encoded.slice(1..)))
    }

    pub(super) fn integer(&mut self) -> Option<i64> {
        let number = i64::from_be_bytes(*self.0.first_chunk()?);
        self.0 = self.0.slice(8..);
        Some(number)
    }

    pub(super) fn bytes(&mut self) -> Option<Bytes> {
        let length = u32::from_be_bytes(*self.0.first_chunk()?) as usize;
        if self.0.len() < 4 + length {
            return None;
        }
        let bytes = self.0.slice(4..4 + length);
        self.0 = self.0.slice(4 + length..);
        Some(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes()?.as_ref().try_into().ok()
    }

    pub(super) fn text(&mut self) -> Option<Box<str>> {
        std::str::from_utf8(&self.bytes()?).ok().map(Into::into)
    }

    pub(super) fn optional(&mut self) -> Option<Option<Bytes>> {
        let is_there = *self.0.first()?;
        self.0 = self.0.slice(1..);
        let bytes = self.bytes()?;
        match is_there {
            0 if bytes.is_empty() => Some(None),
            1 => Some(Some(bytes)),
            _ => None,
        }
    }

    pub(super) fn optional_text(&mut self) -> Option<Option<Box<str>>> {
        match self.optional()? {
            None => Some(None),
            Some(bytes) => Some(Some(std::str::from_utf8(&bytes).ok()?.into())),
        }
    }

    fn optional_time(&mut self) -> Option<Option<Timestamp>> {
        match self.optional()? {
            None => Some(None),
            Some(bytes) => {
                let micros = i64::from_be_bytes(bytes.as_ref().try_into().ok()?);
                Some(Some(Timestamp::from_micros(micros)))
            }
        }
    }

    pub(super) fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

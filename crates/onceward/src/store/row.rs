//! One encoding of a record in columns, used by every write and every read of the stores that keep
//! records in tables and run the machine themselves.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use sha2::{Digest as _, Sha256};

use super::headers::{decode_headers, encode_headers};
use crate::{
    clock::Timestamp,
    fingerprint::Fingerprint,
    key::Key,
    record::{
        AttemptId, AuditEvent, AuditRecord, Effects, Fence, Inquiry, OpenEffect, Progress, Record,
        RecordId, State,
    },
    reply::{Reply, ReplyBody},
    scope::Scope,
};

/// Where columns are written: a query of one database or another.
pub(super) trait Values: Sized {
    fn integer(self, value: impl Into<Option<i64>>) -> Self;
    fn text(self, value: Option<String>) -> Self;
    fn blob(self, value: Option<Vec<u8>>) -> Self;

    fn word(self, value: &str) -> Self {
        self.text(Some(value.to_owned()))
    }

    fn bytes(self, value: &[u8]) -> Self {
        self.blob(Some(value.to_vec()))
    }
}

/// Where columns are read. `None` is what cannot be read.
pub(super) trait Fields {
    fn integer(&self, column: usize) -> Option<Option<i64>>;
    fn text(&self, column: usize) -> Option<Option<&str>>;
    fn blob(&self, column: usize) -> Option<Option<&[u8]>>;
}

/// A row that is not what we wrote.
#[derive(Debug, thiserror::Error)]
#[error("column {0} cannot be read")]
pub(super) struct BadRow(pub(super) &'static str);

/// All columns but the address and what was replied.
macro_rules! plain_columns {
    () => {
        "recipe, fingerprint, generation, state, attempt, fence, attempts, effects, \
         route, method, path, created_at, started_at, lease_until, max_execution, finished_at, \
         expires_at, retention, purge_at, last_error, reconcile_after, void, recovery_point, \
         open_effect, effect_idempotent, queued_until, probes, asked_at, absent_at, reply_status"
    };
}
pub(super) use plain_columns;

pub(super) const RECORD_COLUMN_COUNT: usize = 38;

pub(super) fn bind_record<V: Values>(values: V, record: &Record) -> V {
    bind_rest(bind_id(values, &record.id), record)
}

pub(super) fn bind_id<V: Values>(values: V, id: &RecordId) -> V {
    values.word(id.scope.as_str()).word(id.key.as_str())
}

/// All columns but the address.
pub(super) fn bind_rest<V: Values>(values: V, record: &Record) -> V {
    let values = values
        .integer(i64::from(record.fingerprint.recipe()))
        .blob(Some(record.fingerprint.digest().to_vec()))
        .integer(i64::from(record.generation))
        .word(record.state.name())
        .bytes(record.attempt.as_bytes())
        .integer(record.fence.number())
        .integer(i64::from(record.attempts))
        .word(record.effects.name())
        .text(Some(record.route.to_string()))
        .text(Some(record.method.to_string()))
        .text(Some(record.path.to_string()))
        .integer(record.created_at.as_micros())
        .integer(record.started_at.as_micros())
        .integer(record.lease_until.as_micros())
        .integer(micros(record.max_execution))
        .integer(record.finished_at.map(Timestamp::as_micros))
        .integer(record.expires_at.as_micros())
        .integer(micros(record.retention))
        .integer(record.purge_at().as_micros())
        .text(record.last_error.as_deref().map(str::to_owned))
        .integer(record.reconcile_after.map(Timestamp::as_micros))
        .integer(i64::from(record.void));
    let values = bind_progress(values, &record.progress);
    let values = values
        .integer(record.queued_until.map(Timestamp::as_micros))
        .integer(i64::from(record.inquiry.probes))
        .integer(record.inquiry.asked_at.map(Timestamp::as_micros))
        .integer(record.inquiry.absent_at.map(Timestamp::as_micros));
    bind_reply(values, record.reply.as_ref())
}

pub(super) fn bind_progress<V: Values>(values: V, progress: &Progress) -> V {
    let open = progress.open_effect.as_ref();
    values
        .text(progress.recovery_point.as_deref().map(str::to_owned))
        .text(open.map(|effect| effect.name.to_string()))
        .integer(open.map(|effect| i64::from(effect.idempotent)))
}

pub(super) fn bind_audit<V: Values>(values: V, audit: &AuditRecord) -> V {
    let values = values
        .integer(audit.at.as_micros())
        .word(audit.id.scope.as_str())
        .word(audit.id.key.as_str())
        .integer(i64::from(audit.generation))
        .word(audit.event.name())
        .bytes(audit.attempt.as_bytes())
        .integer(audit.fence.number())
        .text(Some(audit.reason.to_string()));
    bind_reply(values, audit.reply.as_ref()).blob(audit.told().map(Vec::from))
}

pub(super) fn bind_reply<V: Values>(values: V, reply: Option<&Reply>) -> V {
    let (encoding, length, body) = match reply.map(|reply| &reply.body) {
        None => (None, None, None),
        Some(ReplyBody::NotStored) => (Some("not_stored"), None, None),
        Some(ReplyBody::Stored(body)) => {
            let (encoding, stored) = compressed(body);
            (Some(encoding), i64::try_from(body.len()).ok(), Some(stored))
        }
    };
    values
        .integer(reply.map(|reply| i64::from(reply.status.as_u16())))
        .blob(reply.map(|reply| encode_headers(&reply.headers)))
        .text(reply.and_then(|reply| reply.schema_version.as_deref()).map(str::to_owned))
        .text(encoding.map(str::to_owned))
        .integer(length)
        .blob(body)
        .blob(reply.map(|reply| digest(reply).to_vec()))
}

/// Bodies below this are not worth the time.
const COMPRESSED_FROM: usize = 1024;

fn compressed(body: &Bytes) -> (&'static str, Vec<u8>) {
    if body.len() >= COMPRESSED_FROM {
        // It pays when at least an eighth is saved.
        let smaller = zstd::bulk::compress(body, 1).ok();
        if let Some(smaller) = smaller.filter(|smaller| smaller.len() <= body.len() / 8 * 7) {
            return ("zstd", smaller);
        }
    }
    ("identity", body.to_vec())
}

/// No frame holds more for each of its bytes: a block makes 128 KiB of four bytes at best.
const RATIO_MAX: usize = 32 * 1024;

fn decompressed(body: &[u8], length: usize) -> Option<Bytes> {
    // Room is made for as many bytes as are asked for. If that number is damaged, asking for them
    // would end the process, so that it has to be what the compressed bytes say themselves, and no
    // more than they can hold.
    let said = zstd::zstd_safe::get_frame_content_size(body).ok()??;
    if usize::try_from(said) != Ok(length) || length / RATIO_MAX > body.len() {
        return None;
    }
    let plain = zstd::bulk::decompress(body, length).ok()?;
    (plain.len() == length).then(|| plain.into())
}

pub(super) fn read_record<R: Fields>(row: &R) -> Result<Record, BadRow> {
    read_with(row, Columns::reply)
}

/// A record without what was replied: the status is the last column.
pub(super) fn read_listed<R: Fields>(row: &R) -> Result<Record, BadRow> {
    read_with(row, Columns::reply_status)
}

type ReadReply<'r, R> = fn(&mut Columns<'r, R>) -> Result<Option<Reply>, BadRow>;

fn read_with<'r, R: Fields>(row: &'r R, reply: ReadReply<'r, R>) -> Result<Record, BadRow> {
    let mut columns = Columns { row, next: 0 };
    let id = columns.id()?;
    let recipe = columns.number("recipe")?;
    let digest = columns.bytes("fingerprint")?;
    let mut record = Record {
        id,
        fingerprint: Fingerprint::from_stored(recipe, digest),
        generation: columns.number("generation")?,
        state: State::from_name(columns.text("state")?).ok_or(BadRow("state"))?,
        attempt: AttemptId::from_bytes(columns.bytes("attempt")?),
        fence: Fence::from_stored(columns.integer("fence")?),
        attempts: columns.number("attempts")?,
        effects: Effects::from_name(columns.text("effects")?).ok_or(BadRow("effects"))?,
        route: columns.text("route")?.into(),
        method: columns.text("method")?.into(),
        path: columns.text("path")?.into(),
        created_at: columns.time("created_at")?,
        started_at: columns.time("started_at")?,
        lease_until: columns.time("lease_until")?,
        max_execution: columns.duration("max_execution")?,
        finished_at: columns.optional_time("finished_at")?,
        expires_at: columns.time("expires_at")?,
        retention: columns.duration("retention")?,
        tombstone: Duration::ZERO,
        last_error: None,
        reconcile_after: None,
        inquiry: Inquiry::default(),
        void: false,
        progress: Progress::default(),
        queued_until: None,
        reply: None,
    };
    let purge_at = columns.time("purge_at")?;
    record.tombstone = purge_at.since(record.expires_at);
    if record.purge_at() != purge_at {
        return Err(BadRow("purge_at"));
    }
    record.last_error = columns.optional_text("last_error")?;
    record.reconcile_after = columns.optional_time("reconcile_after")?;
    record.void = columns.flag("void")?;
    record.progress = columns.progress()?;
    record.queued_until = columns.optional_time("queued_until")?;
    record.inquiry = Inquiry {
        probes: columns.number("probes")?,
        asked_at: columns.optional_time("asked_at")?,
        absent_at: columns.optional_time("absent_at")?,
    };
    record.reply = reply(&mut columns)?;
    let must_have_reply = record.state == State::Completed;
    if record.state != State::Expired && must_have_reply != record.reply.is_some() {
        return Err(BadRow("reply_status"));
    }
    Ok(record)
}

pub(super) fn read_audit<R: Fields>(row: &R) -> Result<AuditRecord, BadRow> {
    read_audit_with(row, Columns::reply)
}

/// An audit record without its evidence: the status is the last column.
pub(super) fn read_listed_audit<R: Fields>(row: &R) -> Result<AuditRecord, BadRow> {
    read_audit_with(row, Columns::reply_status)
}

fn read_audit_with<'r, R: Fields>(
    row: &'r R,
    reply: ReadReply<'r, R>,
) -> Result<AuditRecord, BadRow> {
    let mut columns = Columns { row, next: 0 };
    Ok(AuditRecord {
        at: columns.time("at")?,
        id: columns.id()?,
        generation: columns.number("generation")?,
        event: AuditEvent::from_name(columns.text("event")?).ok_or(BadRow("event"))?,
        attempt: AttemptId::from_bytes(columns.bytes("attempt")?),
        fence: Fence::from_stored(columns.integer("fence")?),
        reason: columns.text("reason")?.into(),
        reply: reply(&mut columns)?,
    })
}

/// Reads a row column by column, in order.
pub(super) struct Columns<'r, R> {
    pub(super) row: &'r R,
    pub(super) next: usize,
}

impl<'r, R: Fields> Columns<'r, R> {
    fn next(&mut self) -> usize {
        let column = self.next;
        self.next += 1;
        column
    }

    pub(super) fn id(&mut self) -> Result<RecordId, BadRow> {
        let scope = Scope::new(self.text("scope")?).map_err(|_| BadRow("scope"))?;
        let key = Key::new(self.text("key")?).map_err(|_| BadRow("key"))?;
        Ok(RecordId { scope, key })
    }

    /// What is never NULL is not taken for 0 or for nothing when it is.
    pub(super) fn text(&mut self, name: &'static str) -> Result<&'r str, BadRow> {
        self.text_or_null(name)?.ok_or(BadRow(name))
    }

    pub(super) fn text_or_null(&mut self, name: &'static str) -> Result<Option<&'r str>, BadRow> {
        let column = self.next();
        self.row.text(column).ok_or(BadRow(name))
    }

    pub(super) fn integer(&mut self, name: &'static str) -> Result<i64, BadRow> {
        self.integer_or_null(name)?.ok_or(BadRow(name))
    }

    fn integer_or_null(&mut self, name: &'static str) -> Result<Option<i64>, BadRow> {
        let column = self.next();
        self.row.integer(column).ok_or(BadRow(name))
    }

    pub(super) fn number<N: TryFrom<i64>>(&mut self, name: &'static str) -> Result<N, BadRow> {
        self.integer(name)?.try_into().map_err(|_| BadRow(name))
    }

    pub(super) fn optional_text(&mut self, name: &'static str) -> Result<Option<Box<str>>, BadRow> {
        Ok(self.text_or_null(name)?.map(Into::into))
    }

    pub(super) fn blob(&mut self, name: &'static str) -> Result<&'r [u8], BadRow> {
        self.blob_or_null(name)?.ok_or(BadRow(name))
    }

    pub(super) fn blob_or_null(&mut self, name: &'static str) -> Result<Option<&'r [u8]>, BadRow> {
        let column = self.next();
        self.row.blob(column).ok_or(BadRow(name))
    }

    pub(super) fn optional_bytes<const N: usize>(
        &mut self,
        name: &'static str,
    ) -> Result<Option<[u8; N]>, BadRow> {
        let bytes = self.blob_or_null(name)?;
        bytes.map(|bytes| bytes.try_into().map_err(|_| BadRow(name))).transpose()
    }

    pub(super) fn bytes<const N: usize>(&mut self, name: &'static str) -> Result<[u8; N], BadRow> {
        self.blob(name)?.try_into().map_err(|_| BadRow(name))
    }

    pub(super) fn time(&mut self, name: &'static str) -> Result<Timestamp, BadRow> {
        self.integer(name).map(Timestamp::from_micros)
    }

    pub(super) fn optional_time(
        &mut self,
        name: &'static str,
    ) -> Result<Option<Timestamp>, BadRow> {
        Ok(self.integer_or_null(name)?.map(Timestamp::from_micros))
    }

    fn duration(&mut self, name: &'static str) -> Result<Duration, BadRow> {
        self.number(name).map(Duration::from_micros)
    }

    fn flag(&mut self, name: &'static str) -> Result<bool, BadRow> {
        flag(self.integer(name)?, name)
    }

    fn progress(&mut self) -> Result<Progress, BadRow> {
        let recovery_point = self.text_or_null("recovery_point")?;
        let open = self.text_or_null("open_effect")?;
        let idempotent = self.integer_or_null("effect_idempotent")?;
        let open_effect = match (open, idempotent) {
            (None, None) => None,
            (Some(name), Some(idempotent)) => {
                let idempotent = flag(idempotent, "effect_idempotent")?;
                Some(OpenEffect { name: name.into(), idempotent })
            }
            // Half an open effect is not "none open".
            _ => return Err(BadRow("open_effect")),
        };
        Ok(Progress { recovery_point: recovery_point.map(Into::into), open_effect })
    }

    fn reply_status(&mut self) -> Result<Option<Reply>, BadRow> {
        let Some(status) = self.integer_or_null("reply_status")? else { return Ok(None) };
        let status = u16::try_from(status).ok().and_then(|code| StatusCode::from_u16(code).ok());
        let status = status.ok_or(BadRow("reply_status"))?;
        Ok(Some(Reply::new(status, "").status_only()))
    }

    fn reply(&mut self) -> Result<Option<Reply>, BadRow> {
        let status = self.integer_or_null("reply_status")?;
        let headers = self.blob_or_null("reply_headers")?;
        let schema_version = self.text_or_null("reply_schema")?;
        let encoding = self.text_or_null("reply_encoding")?;
        let length = self.integer_or_null("reply_length")?;
        let body = self.blob_or_null("reply_body")?;
        let stored_digest = self.blob_or_null("reply_digest")?;
        let Some(status) = status else {
            // What is left of a reply that lost its status is not "no reply".
            let nothing = headers.is_none() && encoding.is_none() && stored_digest.is_none();
            return if nothing { Ok(None) } else { Err(BadRow("reply_status")) };
        };
        let status = u16::try_from(status).ok().and_then(|code| StatusCode::from_u16(code).ok());
        let length = length.and_then(|length| usize::try_from(length).ok());
        let body = match (encoding, body, length) {
            (Some("not_stored"), None, None) => ReplyBody::NotStored,
            (Some("identity"), Some(body), Some(length)) if body.len() == length => {
                ReplyBody::Stored(Bytes::copy_from_slice(body))
            }
            (Some("zstd"), Some(body), Some(length)) => {
                ReplyBody::Stored(decompressed(body, length).ok_or(BadRow("reply_body"))?)
            }
            _ => return Err(BadRow("reply_encoding")),
        };
        let reply = Reply {
            status: status.ok_or(BadRow("reply_status"))?,
            headers: decode_headers(headers.unwrap_or_default()).ok_or(BadRow("reply_headers"))?,
            body,
            schema_version: schema_version.map(Into::into),
        };
        if stored_digest != Some(&digest(&reply)) {
            return Err(BadRow("reply_digest"));
        }
        Ok(Some(reply))
    }
}

/// Is stored beside a reply, so that one that was damaged on the disk is an error and never sent: a
/// database does not always notice when a bit of a row changes.
pub(super) fn digest(reply: &Reply) -> [u8; 8] {
    let mut hash = Sha256::new();
    hash.update(b"onceward-reply/1");
    hash.update(reply.status.as_u16().to_be_bytes());
    let headers = encode_headers(&reply.headers);
    let schema_version = reply.schema_version.as_deref();
    let (kept, body) = match &reply.body {
        ReplyBody::Stored(body) => (true, &body[..]),
        ReplyBody::NotStored => (false, &[][..]),
    };
    hash.update([u8::from(schema_version.is_some()), u8::from(kept)]);
    for part in [&headers, schema_version.unwrap_or_default().as_bytes(), body] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let hash = hash.finalize();
    hash.first_chunk().copied().unwrap_or_default()
}

fn flag(number: i64, name: &'static str) -> Result<bool, BadRow> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(BadRow(name)),
    }
}

pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_compressed_only_when_it_pays() {
        let small = Bytes::from(vec![b'a'; COMPRESSED_FROM - 1]);
        let even = Bytes::from(vec![b'a'; COMPRESSED_FROM]);
        let noise: Vec<u8> = (0..4096).map(|_| rand::random()).collect();
        assert_eq!(compressed(&small), ("identity", small.to_vec()));
        assert_eq!(compressed(&even).0, "zstd");
        assert!(compressed(&even).1.len() < 100);
        assert_eq!(compressed(&noise.clone().into()), ("identity", noise));
    }
}

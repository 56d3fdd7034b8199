//! Rows to records, and records to what the function `change` takes.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use sqlx::{Postgres, Row as _, postgres::PgRow, types::Uuid};

use super::{
    super::headers::{decode_headers, encode_headers},
    error::STORE,
};
use crate::{
    clock::Timestamp,
    fingerprint::Fingerprint,
    record::{
        AttemptId, AuditEvent, AuditRecord, Effects, Fence, Inquiry, OpenEffect, Progress, Record,
        RecordId, State,
    },
    reply::{Reply, ReplyBody},
    store::{StoreError, StoreErrorKind},
};

/// A row that is not what we wrote.
#[derive(Debug, thiserror::Error)]
#[error("column {0} cannot be read")]
pub(super) struct BadRow(pub(super) &'static str);

pub(super) fn damaged(bad: BadRow) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, STORE, "a record is damaged").with_source(bad)
}

/// A row of the type `found`.
pub(super) struct FoundRow<'r>(pub(super) &'r PgRow);

impl<'r> FoundRow<'r> {
    pub(super) fn get<T>(&self, name: &'static str) -> Result<T, BadRow>
    where
        T: sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
    {
        self.0.try_get(name).map_err(|_| BadRow(name))
    }

    /// Which element of the batch it answers.
    pub(super) fn position(&self) -> Option<usize> {
        let position: Option<i32> = self.0.try_get(0).ok()?;
        usize::try_from(position?).ok()?.checked_sub(1)
    }

    pub(super) fn verdict(&self) -> &'r str {
        self.0.try_get(1).unwrap_or_default()
    }

    pub(super) fn now(&self) -> Result<Timestamp, BadRow> {
        self.0.try_get(2).map(Timestamp::from_micros).map_err(|_| BadRow("at"))
    }

    pub(super) fn scope(&self) -> Option<&'r str> {
        self.text("scope").ok()
    }

    pub(super) fn key(&self) -> Option<&'r str> {
        self.text("key").ok()
    }

    pub(super) fn attempt(&self) -> Result<AttemptId, BadRow> {
        self.get::<Uuid>("attempt").map(|attempt| AttemptId::from_bytes(attempt.into_bytes()))
    }

    pub(super) fn fence(&self) -> Result<Fence, BadRow> {
        self.get("fence").map(Fence::from_stored)
    }

    pub(super) fn lease_until(&self) -> Result<Timestamp, BadRow> {
        self.time("lease_until")
    }

    /// Whether there is a record at all: `load` has a row for each name.
    pub(super) fn is_there(&self) -> bool {
        !matches!(self.0.try_get::<Option<i64>, _>("record_id"), Ok(None))
    }

    pub(super) fn time(&self, name: &'static str) -> Result<Timestamp, BadRow> {
        self.get(name).map(Timestamp::from_micros)
    }

    pub(super) fn optional_time(&self, name: &'static str) -> Result<Option<Timestamp>, BadRow> {
        Ok(self.get::<Option<i64>>(name)?.map(Timestamp::from_micros))
    }

    pub(super) fn number<N: TryFrom<i32>>(&self, name: &'static str) -> Result<N, BadRow> {
        self.get::<i32>(name)?.try_into().map_err(|_| BadRow(name))
    }

    fn duration(&self, name: &'static str) -> Result<Duration, BadRow> {
        let micros: i64 = self.get(name)?;
        micros.try_into().map(Duration::from_micros).map_err(|_| BadRow(name))
    }

    pub(super) fn text(&self, name: &'static str) -> Result<&'r str, BadRow> {
        self.get(name)
    }

    pub(super) fn optional_text(&self, name: &'static str) -> Result<Option<Box<str>>, BadRow> {
        Ok(self.get::<Option<&str>>(name)?.map(Into::into))
    }

    fn progress(&self) -> Result<Progress, BadRow> {
        let idempotent: Option<bool> = self.get("open_effect_idempotent")?;
        let open_effect = match (self.optional_text("open_effect")?, idempotent) {
            (None, None) => None,
            (Some(name), Some(idempotent)) => Some(OpenEffect { name, idempotent }),
            _ => return Err(BadRow("open_effect")),
        };
        Ok(Progress { recovery_point: self.optional_text("recovery_point")?, open_effect })
    }

    /// The record, whose address is known: it was asked for.
    pub(super) fn record(&self, id: &RecordId) -> Result<Record, BadRow> {
        if self.text("scope")? != id.scope.as_str() || self.text("key")? != id.key.as_str() {
            return Err(BadRow("key"));
        }
        let digest: &[u8] = self.get("fingerprint")?;
        let digest = digest.try_into().map_err(|_| BadRow("fingerprint"))?;
        let state = State::from_name(self.text("state")?).ok_or(BadRow("state"))?;
        Ok(Record {
            id: id.clone(),
            fingerprint: Fingerprint::from_stored(self.number("recipe")?, digest),
            generation: self.number("generation")?,
            state,
            attempt: self.attempt()?,
            fence: self.fence()?,
            attempts: self.number("attempts")?,
            effects: Effects::from_name(self.text("effects")?).ok_or(BadRow("effects"))?,
            route: self.text("route")?.into(),
            method: self.text("method")?.into(),
            path: self.text("path")?.into(),
            created_at: self.time("created_at")?,
            started_at: self.time("started_at")?,
            lease_until: self.lease_until()?,
            max_execution: self.duration("max_execution")?,
            finished_at: self.optional_time("finished_at")?,
            expires_at: self.time("expires_at")?,
            retention: self.duration("retention")?,
            tombstone: self.duration("tombstone")?,
            last_error: self.optional_text("last_error")?,
            reconcile_after: self.optional_time("reconcile_after")?,
            inquiry: Inquiry {
                probes: self.number("probes")?,
                asked_at: self.optional_time("asked_at")?,
                absent_at: self.optional_time("absent_at")?,
            },
            void: self.get("void")?,
            progress: self.progress()?,
            queued_until: self.optional_time("queued_until")?,
            reply: self.reply(state)?,
        })
    }

    fn reply(&self, state: State) -> Result<Option<Reply>, BadRow> {
        let status: Option<i16> = self.get("reply_status")?;
        let Some(status) = status else {
            return if state == State::Completed { Err(BadRow("reply_status")) } else { Ok(None) };
        };
        let headers: Option<&[u8]> = self.get("reply_headers")?;
        if state == State::Completed && headers.is_none() {
            return Err(BadRow("reply_headers"));
        }
        let schema_version = self.optional_text("reply_schema")?;
        read_reply(status, headers, schema_version, self.get("reply_body")?).map(Some)
    }
}

fn read_reply(
    status: i16,
    headers: Option<&[u8]>,
    schema_version: Option<Box<str>>,
    body: Option<&[u8]>,
) -> Result<Reply, BadRow> {
    let status = u16::try_from(status).ok().and_then(|code| StatusCode::from_u16(code).ok());
    let headers = match headers {
        Some(headers) => decode_headers(headers).ok_or(BadRow("reply_headers"))?,
        // A tombstone keeps the status alone.
        None => Vec::new(),
    };
    let body = match body {
        Some(body) => ReplyBody::Stored(Bytes::copy_from_slice(body)),
        None => ReplyBody::NotStored,
    };
    Ok(Reply { status: status.ok_or(BadRow("reply_status"))?, headers, body, schema_version })
}

pub(super) fn read_audit(row: &PgRow, id: &RecordId) -> Result<AuditRecord, BadRow> {
    let row = FoundRow(row);
    let status: Option<i16> = row.get("reply_status")?;
    let reply = match status {
        None => None,
        Some(status) => {
            let schema_version = row.optional_text("reply_schema")?;
            let (headers, body) = (row.get("reply_headers")?, row.get("reply_body")?);
            Some(read_reply(status, headers, schema_version, body)?)
        }
    };
    Ok(AuditRecord {
        at: row.time("at")?,
        id: id.clone(),
        generation: row.number("generation")?,
        event: AuditEvent::from_name(row.text("event")?).ok_or(BadRow("event"))?,
        attempt: row.attempt()?,
        fence: row.fence()?,
        reason: row.text("reason")?.into(),
        reply,
    })
}

pub(super) fn uuid(attempt: AttemptId) -> Uuid {
    Uuid::from_bytes(*attempt.as_bytes())
}

pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// The parts of a reply that have columns: status, headers, schema version, body.
pub(super) type ReplyParts<'a> = (i16, Vec<u8>, Option<&'a str>, Option<&'a [u8]>);

pub(super) fn reply_parts(reply: &Reply) -> ReplyParts<'_> {
    let body = match &reply.body {
        ReplyBody::Stored(body) => Some(&body[..]),
        ReplyBody::NotStored => None,
    };
    let status = i16::try_from(reply.status.as_u16()).unwrap_or(i16::MAX);
    (status, encode_headers(&reply.headers), reply.schema_version.as_deref(), body)
}

/// A record by the names of its columns. Bytes of its reply go apart.
pub(super) fn record_json(record: &Record) -> Value {
    let open_effect = record.progress.open_effect.as_ref();
    json!({
        "recipe": record.fingerprint.recipe(),
        "fingerprint": hex(record.fingerprint.digest()),
        "generation": record.generation,
        "state": record.state.name(),
        "attempt": uuid(record.attempt).to_string(),
        "fence": record.fence.number(),
        "attempts": record.attempts,
        "effects": record.effects.name(),
        "route": &*record.route,
        "method": &*record.method,
        "path": &*record.path,
        "created_at": record.created_at.as_micros(),
        "started_at": record.started_at.as_micros(),
        "lease_until": record.lease_until.as_micros(),
        "max_execution": micros(record.max_execution),
        "finished_at": record.finished_at.map(Timestamp::as_micros),
        "expires_at": record.expires_at.as_micros(),
        "retention": micros(record.retention),
        "tombstone": micros(record.tombstone),
        "last_error": record.last_error,
        "reconcile_after": record.reconcile_after.map(Timestamp::as_micros),
        "void": record.void,
        "recovery_point": record.progress.recovery_point,
        "open_effect": open_effect.map(|effect| &effect.name),
        "open_effect_idempotent": open_effect.map(|effect| effect.idempotent),
        "queued_until": record.queued_until.map(Timestamp::as_micros),
        "probes": record.inquiry.probes,
        "asked_at": record.inquiry.asked_at.map(Timestamp::as_micros),
        "absent_at": record.inquiry.absent_at.map(Timestamp::as_micros),
        "reply_status": record.reply.as_ref().map(|reply| reply.status.as_u16()),
        "reply_schema": record.reply.as_ref().and_then(|reply| reply.schema_version.as_deref()),
    })
}

pub(super) fn audit_json(audit: &AuditRecord) -> Value {
    json!({
        "at": audit.at.as_micros(),
        "scope": audit.id.scope.as_str(),
        "key": audit.id.key.as_str(),
        "generation": audit.generation,
        "event": audit.event.name(),
        "attempt": uuid(audit.attempt).to_string(),
        "fence": audit.fence.number(),
        "reason": audit.reason,
        "reply_status": audit.reply.as_ref().map(|reply| reply.status.as_u16()),
        "reply_schema": audit.reply.as_ref().and_then(|reply| reply.schema_version.as_deref()),
        "told": audit.told().map(|told| hex(&told)),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::from("\\x"), |hex, byte| format!("{hex}{byte:02x}"))
}

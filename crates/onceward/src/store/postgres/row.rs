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
    store::{Completed, StoreError, StoreErrorKind},
};

/// A row that is not what we wrote.
#[derive(Debug, thiserror::Error)]
#[error("column {0} cannot be read")]
pub(super) struct BadRow(pub(super) &'static str);

pub(super) fn damaged(bad: BadRow) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, STORE, "a record is damaged").with_source(bad)
}

/// A column, by its name and by its place in the type `found`.
#[derive(Clone, Copy)]
pub(super) struct Column {
    name: &'static str,
    place: Option<usize>,
}

impl Column {
    const fn at(place: usize, name: &'static str) -> Self {
        Column { name, place: Some(place) }
    }
}

impl From<&'static str> for Column {
    fn from(name: &'static str) -> Self {
        Column { name, place: None }
    }
}

/// The columns of the type `found`.
mod column {
    use super::Column;

    pub(super) const POSITION: Column = Column::at(0, "position");
    pub(super) const VERDICT: Column = Column::at(1, "verdict");
    pub(super) const AT: Column = Column::at(2, "at");
    pub(super) const RECORD_ID: Column = Column::at(3, "record_id");
    pub(super) const SCOPE: Column = Column::at(4, "scope");
    pub(super) const KEY: Column = Column::at(5, "key");
    pub(super) const RECIPE: Column = Column::at(6, "recipe");
    pub(super) const FINGERPRINT: Column = Column::at(7, "fingerprint");
    pub(super) const GENERATION: Column = Column::at(8, "generation");
    pub(super) const STATE: Column = Column::at(9, "state");
    pub(super) const ATTEMPT: Column = Column::at(10, "attempt");
    pub(super) const FENCE: Column = Column::at(11, "fence");
    pub(super) const ATTEMPTS: Column = Column::at(12, "attempts");
    pub(super) const EFFECTS: Column = Column::at(13, "effects");
    pub(super) const ROUTE: Column = Column::at(14, "route");
    pub(super) const METHOD: Column = Column::at(15, "method");
    pub(super) const PATH: Column = Column::at(16, "path");
    pub(super) const CREATED_AT: Column = Column::at(17, "created_at");
    pub(super) const STARTED_AT: Column = Column::at(18, "started_at");
    pub(super) const LEASE_UNTIL: Column = Column::at(19, "lease_until");
    pub(super) const MAX_EXECUTION: Column = Column::at(20, "max_execution");
    pub(super) const FINISHED_AT: Column = Column::at(21, "finished_at");
    pub(super) const EXPIRES_AT: Column = Column::at(22, "expires_at");
    pub(super) const RETENTION: Column = Column::at(23, "retention");
    pub(super) const TOMBSTONE: Column = Column::at(24, "tombstone");
    pub(super) const LAST_ERROR: Column = Column::at(25, "last_error");
    pub(super) const RECONCILE_AFTER: Column = Column::at(26, "reconcile_after");
    pub(super) const VOID: Column = Column::at(27, "void");
    pub(super) const RECOVERY_POINT: Column = Column::at(28, "recovery_point");
    pub(super) const OPEN_EFFECT: Column = Column::at(29, "open_effect");
    pub(super) const OPEN_EFFECT_IDEMPOTENT: Column = Column::at(30, "open_effect_idempotent");
    pub(super) const REPLY_STATUS: Column = Column::at(31, "reply_status");
    pub(super) const REPLY_HEADERS: Column = Column::at(32, "reply_headers");
    pub(super) const REPLY_SCHEMA: Column = Column::at(33, "reply_schema");
    pub(super) const REPLY_BODY: Column = Column::at(34, "reply_body");
    pub(super) const QUEUED_UNTIL: Column = Column::at(35, "queued_until");
    pub(super) const PROBES: Column = Column::at(36, "probes");
    pub(super) const ASKED_AT: Column = Column::at(37, "asked_at");
    pub(super) const ABSENT_AT: Column = Column::at(38, "absent_at");
}

/// A row with the columns of a record.
pub(super) struct FoundRow<'r> {
    row: &'r PgRow,
    /// Whether it begins with the columns of the type `found`. To look for forty names and to compare
    /// forty types takes longer than all else that is done with a row.
    is_found: bool,
}

impl<'r> FoundRow<'r> {
    /// A row of the type `found`, perhaps with more columns behind it.
    pub(super) fn new(row: &'r PgRow) -> Self {
        FoundRow { row, is_found: true }
    }

    /// A row that has such columns in another order, and only some of them.
    pub(super) fn by_name(row: &'r PgRow) -> Self {
        FoundRow { row, is_found: false }
    }

    pub(super) fn get<T>(&self, column: impl Into<Column>) -> Result<T, BadRow>
    where
        T: sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
    {
        let Column { name, place } = column.into();
        let value = match place.filter(|_| self.is_found) {
            // The types are those of `found`, on which the statements were prepared.
            Some(place) => self.row.try_get_unchecked(place),
            None => self.row.try_get(name),
        };
        value.map_err(|_| BadRow(name))
    }

    /// Which element of the batch it answers.
    pub(super) fn position(&self) -> Option<usize> {
        let position: Option<i32> = self.get(column::POSITION).ok()?;
        usize::try_from(position?).ok()?.checked_sub(1)
    }

    pub(super) fn verdict(&self) -> &'r str {
        self.get(column::VERDICT).unwrap_or_default()
    }

    pub(super) fn now(&self) -> Result<Timestamp, BadRow> {
        self.time(column::AT)
    }

    pub(super) fn scope(&self) -> Option<&'r str> {
        self.text(column::SCOPE).ok()
    }

    pub(super) fn key(&self) -> Option<&'r str> {
        self.text(column::KEY).ok()
    }

    pub(super) fn attempt(&self) -> Result<AttemptId, BadRow> {
        self.get::<Uuid>(column::ATTEMPT).map(|attempt| AttemptId::from_bytes(attempt.into_bytes()))
    }

    pub(super) fn fence(&self) -> Result<Fence, BadRow> {
        self.get(column::FENCE).map(Fence::from_stored)
    }

    pub(super) fn lease_until(&self) -> Result<Timestamp, BadRow> {
        self.time(column::LEASE_UNTIL)
    }

    /// Whether there is a record at all: `load` has a row for each name.
    pub(super) fn is_there(&self) -> bool {
        !matches!(self.get::<Option<i64>>(column::RECORD_ID), Ok(None))
    }

    pub(super) fn time(&self, column: impl Into<Column>) -> Result<Timestamp, BadRow> {
        self.get(column).map(Timestamp::from_micros)
    }

    pub(super) fn optional_time(
        &self,
        column: impl Into<Column>,
    ) -> Result<Option<Timestamp>, BadRow> {
        Ok(self.get::<Option<i64>>(column)?.map(Timestamp::from_micros))
    }

    pub(super) fn number<N: TryFrom<i32>>(&self, column: impl Into<Column>) -> Result<N, BadRow> {
        let column = column.into();
        self.get::<i32>(column)?.try_into().map_err(|_| BadRow(column.name))
    }

    fn duration(&self, column: impl Into<Column>) -> Result<Duration, BadRow> {
        let column = column.into();
        let micros: i64 = self.get(column)?;
        micros.try_into().map(Duration::from_micros).map_err(|_| BadRow(column.name))
    }

    pub(super) fn text(&self, column: impl Into<Column>) -> Result<&'r str, BadRow> {
        self.get(column)
    }

    pub(super) fn optional_text(
        &self,
        column: impl Into<Column>,
    ) -> Result<Option<Box<str>>, BadRow> {
        Ok(self.get::<Option<&str>>(column)?.map(Into::into))
    }

    fn progress(&self) -> Result<Progress, BadRow> {
        let idempotent: Option<bool> = self.get(column::OPEN_EFFECT_IDEMPOTENT)?;
        let open_effect = match (self.optional_text(column::OPEN_EFFECT)?, idempotent) {
            (None, None) => None,
            (Some(name), Some(idempotent)) => Some(OpenEffect { name, idempotent }),
            _ => return Err(BadRow("open_effect")),
        };
        Ok(Progress { recovery_point: self.optional_text(column::RECOVERY_POINT)?, open_effect })
    }

    /// The record, whose address is known: it was asked for.
    pub(super) fn record(&self, id: &RecordId) -> Result<Record, BadRow> {
        if self.text(column::SCOPE)? != id.scope.as_str()
            || self.text(column::KEY)? != id.key.as_str()
        {
            return Err(BadRow("key"));
        }
        let state = State::from_name(self.text(column::STATE)?).ok_or(BadRow("state"))?;
        Ok(Record {
            id: id.clone(),
            fingerprint: self.fingerprint()?,
            generation: self.number(column::GENERATION)?,
            state,
            attempt: self.attempt()?,
            fence: self.fence()?,
            attempts: self.number(column::ATTEMPTS)?,
            effects: Effects::from_name(self.text(column::EFFECTS)?).ok_or(BadRow("effects"))?,
            route: self.text(column::ROUTE)?.into(),
            method: self.text(column::METHOD)?.into(),
            path: self.text(column::PATH)?.into(),
            created_at: self.time(column::CREATED_AT)?,
            started_at: self.time(column::STARTED_AT)?,
            lease_until: self.lease_until()?,
            max_execution: self.duration(column::MAX_EXECUTION)?,
            finished_at: self.optional_time(column::FINISHED_AT)?,
            expires_at: self.time(column::EXPIRES_AT)?,
            retention: self.duration(column::RETENTION)?,
            tombstone: self.duration(column::TOMBSTONE)?,
            last_error: self.optional_text(column::LAST_ERROR)?,
            reconcile_after: self.optional_time(column::RECONCILE_AFTER)?,
            inquiry: Inquiry {
                probes: self.number(column::PROBES)?,
                asked_at: self.optional_time(column::ASKED_AT)?,
                absent_at: self.optional_time(column::ABSENT_AT)?,
            },
            void: self.get(column::VOID)?,
            progress: self.progress()?,
            queued_until: self.optional_time(column::QUEUED_UNTIL)?,
            reply: self.reply(state)?,
        })
    }

    /// As much of a completed record as a replay needs.
    pub(super) fn completed(&self) -> Result<Completed, BadRow> {
        let reply = self.reply(State::Completed)?.ok_or(BadRow("reply_status"))?;
        Ok(Completed {
            fingerprint: self.fingerprint()?,
            generation: self.number(column::GENERATION)?,
            attempt: self.attempt()?,
            fence: self.fence()?,
            expires_at: self.time(column::EXPIRES_AT)?,
            reply,
        })
    }

    fn fingerprint(&self) -> Result<Fingerprint, BadRow> {
        let digest: &[u8] = self.get(column::FINGERPRINT)?;
        let digest = digest.try_into().map_err(|_| BadRow("fingerprint"))?;
        Ok(Fingerprint::from_stored(self.number(column::RECIPE)?, digest))
    }

    fn reply(&self, state: State) -> Result<Option<Reply>, BadRow> {
        let status: Option<i16> = self.get(column::REPLY_STATUS)?;
        let Some(status) = status else {
            return if state == State::Completed { Err(BadRow("reply_status")) } else { Ok(None) };
        };
        let headers: Option<&[u8]> = self.get(column::REPLY_HEADERS)?;
        if state == State::Completed && headers.is_none() {
            return Err(BadRow("reply_headers"));
        }
        let schema_version = self.optional_text(column::REPLY_SCHEMA)?;
        read_reply(status, headers, schema_version, self.get(column::REPLY_BODY)?).map(Some)
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
    let row = FoundRow::by_name(row);
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

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Column; 39] = [
        column::POSITION,
        column::VERDICT,
        column::AT,
        column::RECORD_ID,
        column::SCOPE,
        column::KEY,
        column::RECIPE,
        column::FINGERPRINT,
        column::GENERATION,
        column::STATE,
        column::ATTEMPT,
        column::FENCE,
        column::ATTEMPTS,
        column::EFFECTS,
        column::ROUTE,
        column::METHOD,
        column::PATH,
        column::CREATED_AT,
        column::STARTED_AT,
        column::LEASE_UNTIL,
        column::MAX_EXECUTION,
        column::FINISHED_AT,
        column::EXPIRES_AT,
        column::RETENTION,
        column::TOMBSTONE,
        column::LAST_ERROR,
        column::RECONCILE_AFTER,
        column::VOID,
        column::RECOVERY_POINT,
        column::OPEN_EFFECT,
        column::OPEN_EFFECT_IDEMPOTENT,
        column::REPLY_STATUS,
        column::REPLY_HEADERS,
        column::REPLY_SCHEMA,
        column::REPLY_BODY,
        column::QUEUED_UNTIL,
        column::PROBES,
        column::ASKED_AT,
        column::ABSENT_AT,
    ];

    #[test]
    fn columns_are_read_where_the_type_has_them() {
        let sql = include_str!("../../../migrations/postgres/0001_records.sql");
        let columns = sql.split_once("CREATE TYPE onceward.found AS (").expect("the type").1;
        let columns = columns.split_once(");").expect("its end").0;
        let names = columns.lines().filter_map(|line| line.split_whitespace().next());
        let places: Vec<_> = names.enumerate().map(|(place, name)| (name, Some(place))).collect();
        assert_eq!(ALL.map(|column| (column.name, column.place)), *places);
    }
}

//! Reading and writing records on a connection that is in a transaction: one of ours, or one of the
//! user's own.

use std::collections::HashMap;

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use super::{
    error::unreadable,
    row::{
        BadRow, Columns, Fields as _, RECORD_COLUMN_COUNT, Values as _, bind_audit, bind_id,
        bind_record, bind_reply, bind_rest, read_record,
    },
    sql::{SIZES, Statements, query, with_room_for},
};
use crate::{
    clock::{Clock, Timestamp},
    record::{AuditEvent, AuditRecord, Effects, Record, RecordId},
    store::{
        beside::{Beside, Gathered},
        request::encode_request,
    },
};

/// Something to be done on one connection, in a transaction if it writes. Runs again when its answer
/// was lost.
pub(super) trait Statement: Send + Sync + 'static {
    type Answer: Send;

    /// Whether it only reads, and in one statement.
    const READS: bool = false;

    fn run(
        &self,
        session: &mut Session<'_>,
    ) -> impl Future<Output = sqlx::Result<Self::Answer>> + Send;
}

/// A connection and what is asked on it.
pub(super) struct Session<'c> {
    pub(super) connection: &'c mut MySqlConnection,
    pub(super) statements: &'c Statements,
    /// Another clock than the server's.
    pub(super) clock: Option<&'c dyn Clock>,
}

/// A record as it was found, with the number of its row.
pub(super) struct Found {
    pub(super) row: i64,
    /// One that cannot be read is not taken for none.
    pub(super) record: Result<Record, ()>,
}

/// What is done about rows that are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    /// They are read as they were committed last.
    No,
    /// They are locked until the end of the transaction; it is an error if somebody else has one.
    Rows,
}

/// What a transaction writes.
#[derive(Default)]
pub(super) struct Changes<'a> {
    /// Records that were not there.
    pub(super) inserts: Vec<&'a Record>,
    /// Records that are there, and locked.
    pub(super) updates: Vec<(i64, &'a Record)>,
    pub(super) removed: Vec<(i64, &'a RecordId)>,
    /// What providers called the operations of these goes: they are gone, or were made anew.
    pub(super) forgotten: Vec<&'a RecordId>,
    pub(super) audits: &'a [AuditRecord],
    pub(super) beside: Gathered,
    /// Those of which something may be kept beside, before this.
    pub(super) accompanied: Vec<&'a RecordId>,
}

/// Whether there may be steps or a request beside a record: such as are phased or were accepted, and
/// such as may have been once.
pub(super) fn is_accompanied(record: &Record) -> bool {
    !record.state.is_terminal()
        && (record.effects == Effects::Phased
            || record.is_queued()
            || !record.progress.is_none()
            || record.attempts > 1)
}

impl Session<'_> {
    pub(super) async fn now(&mut self) -> sqlx::Result<Timestamp> {
        if let Some(clock) = self.clock {
            return Ok(clock.now());
        }
        let row = query(&self.statements.now).fetch_one(&mut *self.connection).await?;
        row.try_get(0).map(Timestamp::from_micros)
    }

    /// Those of these records that are there, and what time it is.
    pub(super) async fn load(
        &mut self,
        ids: &[RecordId],
        lock: Lock,
    ) -> sqlx::Result<(HashMap<RecordId, Found>, Timestamp)> {
        let mut found = HashMap::with_capacity(ids.len());
        let mut now = None;
        let statements = match lock {
            Lock::No => &self.statements.load,
            Lock::Rows => &self.statements.lock,
        };
        for chunk in ids.chunks(SIZES[0]) {
            let size = with_room_for(chunk.len());
            let padded = padded(chunk, SIZES[size]);
            let load = padded.fold(query(&statements[size]), bind_id);
            for row in load.fetch_all(&mut *self.connection).await? {
                now = now.max(Some(row.try_get(RECORD_COLUMN_COUNT + 1)?));
                if let Some((id, one)) = read_found(&row)? {
                    found.insert(id, one);
                }
            }
        }
        let now = match (self.clock, now) {
            (Some(clock), _) => clock.now(),
            (None, Some(now)) => Timestamp::from_micros(now),
            (None, None) => self.now().await?,
        };
        Ok((found, now))
    }

    /// The record with its row locked, found by the number of the row if the transaction sees that: the
    /// server locks the gap before a row that is found by its key, in which others insert theirs.
    pub(super) async fn lock_one(
        &mut self,
        id: &RecordId,
    ) -> sqlx::Result<(Option<Found>, Timestamp)> {
        if let Some(row) = self.sees(id).await? {
            let lock = query(&self.statements.lock_row).integer(row);
            let row = lock.fetch_one(&mut *self.connection).await?;
            if let Some((found_id, found)) = read_found(&row)?
                && found_id == *id
            {
                let now = Timestamp::from_micros(row.try_get(RECORD_COLUMN_COUNT + 1)?);
                return Ok((Some(found), self.clock.map_or(now, |clock| clock.now())));
            }
        }
        let (mut found, now) = self.load(std::slice::from_ref(id), Lock::Rows).await?;
        Ok((found.remove(id), now))
    }

    /// The row of a record, as far as the transaction sees. Locks nothing.
    pub(super) async fn sees(&mut self, id: &RecordId) -> sqlx::Result<Option<i64>> {
        let there = bind_id(query(&self.statements.there), id);
        let there = there.fetch_optional(&mut *self.connection).await?;
        there.map(|row| row.try_get(0)).transpose()
    }

    /// Which of these steps are saved already.
    pub(super) async fn load_saved(
        &mut self,
        asked: &[(RecordId, u32, Box<str>)],
    ) -> sqlx::Result<Gathered> {
        let mut gathered = Gathered::default();
        for (id, generation, name) in asked {
            let saved = bind_id(query(&self.statements.saved), id);
            let saved = saved.integer(i64::from(*generation)).word(name);
            if saved.fetch_optional(&mut *self.connection).await?.is_some() {
                gathered.saved.insert((id.clone(), *generation, name.clone()));
            }
        }
        Ok(gathered)
    }

    pub(super) async fn write(&mut self, changes: Changes<'_>) -> sqlx::Result<()> {
        self.insert(&changes.inserts).await?;
        self.update(&changes.updates).await?;
        let rows: Vec<i64> = changes.removed.iter().map(|(row, _)| *row).collect();
        self.remove(&rows).await?;
        for chunk in changes.forgotten.chunks(SIZES[0]) {
            let size = with_room_for(chunk.len());
            let forget = query(&self.statements.forget_provider_ids[size]);
            let forget = padded(chunk, SIZES[size]).fold(forget, |query, id| bind_id(query, id));
            forget.execute(&mut *self.connection).await?;
        }
        self.write_beside(changes.beside, &changes.accompanied).await?;
        for audit in changes.audits {
            self.remember(audit, 0).await?;
        }
        Ok(())
    }

    pub(super) async fn insert(&mut self, records: &[&Record]) -> sqlx::Result<()> {
        let mut rest = records;
        for (size, insert) in SIZES.iter().zip(&self.statements.insert) {
            while let Some((chunk, after)) = rest.split_at_checked(*size) {
                let insert = chunk.iter().fold(query(insert), |values, record| {
                    bind_record(values.integer(None::<i64>), record)
                });
                insert.execute(&mut *self.connection).await?;
                rest = after;
            }
        }
        Ok(())
    }

    async fn update(&mut self, records: &[(i64, &Record)]) -> sqlx::Result<()> {
        let mut rest = records;
        for (size, update) in SIZES.iter().zip(&self.statements.update) {
            while let Some((chunk, after)) = rest.split_at_checked(*size) {
                let update = match chunk {
                    [(row, record)] => bind_rest(query(update), record).integer(*row),
                    _ => chunk.iter().fold(query(update), |values, (row, record)| {
                        bind_record(values.integer(*row), record)
                    }),
                };
                update.execute(&mut *self.connection).await?;
                rest = after;
            }
        }
        Ok(())
    }

    pub(super) async fn remove(&mut self, rows: &[i64]) -> sqlx::Result<()> {
        for chunk in rows.chunks(SIZES[0]) {
            let size = with_room_for(chunk.len());
            let remove = query(&self.statements.remove[size]);
            let remove = padded(chunk, SIZES[size]).fold(remove, |query, row| query.integer(*row));
            remove.execute(&mut *self.connection).await?;
        }
        Ok(())
    }

    /// Makes tombstones of these, which are all left with the same.
    pub(super) async fn bury(&mut self, rows: &[i64], like: &Record) -> sqlx::Result<()> {
        for chunk in rows.chunks(SIZES[0]) {
            let size = with_room_for(chunk.len());
            let bury = query(&self.statements.bury[size]).word(like.state.name());
            let bury = bind_reply(bury.integer(i64::from(like.void)), like.reply.as_ref());
            let bury = padded(chunk, SIZES[size]).fold(bury, |query, row| query.integer(*row));
            bury.execute(&mut *self.connection).await?;
        }
        Ok(())
    }

    /// After the records. What was kept beside those that came to rest goes; what is to be kept beside
    /// those that are at work is written.
    async fn write_beside(
        &mut self,
        gathered: Gathered,
        accompanied: &[&RecordId],
    ) -> sqlx::Result<()> {
        for id in accompanied.iter().filter(|id| gathered.came_to_rest.contains(**id)) {
            for forget in [&self.statements.forget_steps, &self.statements.forget_request] {
                bind_id(query(forget), id).execute(&mut *self.connection).await?;
            }
        }
        for (id, kept) in &gathered.kept {
            for (generation, beside) in kept {
                let keep = match beside {
                    Beside::Step(step) => bind_id(query(&self.statements.save_step), id)
                        .integer(i64::from(*generation))
                        .word(&step.name)
                        .bytes(&step.result),
                    Beside::Request(request) => {
                        let keep = bind_id(query(&self.statements.keep_request), id);
                        keep.blob(Some(encode_request(request)))
                    }
                };
                keep.execute(&mut *self.connection).await?;
            }
        }
        Ok(())
    }

    /// `message` tells audit records of one claim apart.
    pub(super) async fn remember(&mut self, audit: &AuditRecord, message: i64) -> sqlx::Result<()> {
        let apart = match audit.event {
            AuditEvent::DeadLettered | AuditEvent::Redriven => audit.at.as_micros(),
            _ => message,
        };
        let remember = bind_audit(query(&self.statements.remember), audit).integer(apart);
        remember.execute(&mut *self.connection).await.map(drop)
    }
}

/// These, and the last of them again until there are as many as `size`.
pub(super) fn padded<T>(some: &[T], size: usize) -> impl Iterator<Item = &T> {
    let more = size.saturating_sub(some.len());
    some.iter().chain(some.last().into_iter().cycle().take(more))
}

/// `None` is a row that only tells the time.
fn read_found(row: &MySqlRow) -> sqlx::Result<Option<(RecordId, Found)>> {
    let bad = || unreadable(BadRow("record_id"));
    let Some(number) = row.integer(RECORD_COLUMN_COUNT).ok_or_else(bad)? else { return Ok(None) };
    let id = Columns { row, next: 0 }.id().map_err(unreadable)?;
    let record = read_record(row).map_err(drop);
    Ok(Some((id, Found { row: number, record })))
}

//! What workers and operators ask for, one call at a time.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use sqlx::{Row as _, mysql::MySqlRow};
use tracing::warn;

use super::{
    error::unreadable,
    row::{
        BadRow, Columns, Fields as _, RECORD_COLUMN_COUNT, Values as _, bind_id, read_audit,
        read_listed, read_record,
    },
    session::{Changes, Found, Lock, Session, Statement, padded},
    sql::{SIZES, query, with_room_for},
};
use crate::{
    clock::Timestamp,
    machine::{self, Change},
    record::{AuditRecord, Record, RecordId, SavedStep, State},
    store::{Identity, IdentityCheck, Reaped, Resumable, Swept, Which, request::decode_request},
};

/// How many records are moved on in one call.
const PAGE_MAX: u32 = 256;

/// Where the number of the row is, behind the columns of a record without its reply.
const LISTED_COLUMN_COUNT: usize = RECORD_COLUMN_COUNT - 6;

/// Records as they were committed last.
pub(super) struct Load(pub(super) Vec<RecordId>);

impl Statement for Load {
    type Answer = (HashMap<RecordId, Found>, Timestamp);
    const READS: bool = true;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Self::Answer> {
        session.load(&self.0, Lock::No).await
    }
}

/// Those that nobody is at work on any more, or whose lease is over.
pub(super) struct Settled(pub(super) Vec<RecordId>);

impl Statement for Settled {
    type Answer = Vec<RecordId>;
    const READS: bool = true;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Vec<RecordId>> {
        let now = session.now().await?;
        let mut at_work = HashSet::new();
        for chunk in self.0.chunks(SIZES[0]) {
            let size = with_room_for(chunk.len());
            let ask = query(&session.statements.at_work[size]).integer(now.as_micros());
            let ask = padded(chunk, SIZES[size]).fold(ask, bind_id);
            for row in ask.fetch_all(&mut *session.connection).await? {
                at_work.insert(Columns { row: &row, next: 0 }.id().map_err(unreadable)?);
            }
        }
        Ok(self.0.iter().filter(|id| !at_work.contains(*id)).cloned().collect())
    }
}

pub(super) struct Audit(pub(super) RecordId);

impl Statement for Audit {
    type Answer = Vec<AuditRecord>;
    const READS: bool = true;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Vec<AuditRecord>> {
        let audit = bind_id(query(&session.statements.audit), &self.0);
        let rows = audit.fetch_all(&mut *session.connection).await?;
        rows.iter().map(|row| read_audit(row).map_err(unreadable)).collect()
    }
}

pub(super) struct Steps(pub(super) RecordId, pub(super) u32);

impl Statement for Steps {
    type Answer = Vec<SavedStep>;
    const READS: bool = true;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Vec<SavedStep>> {
        let steps = bind_id(query(&session.statements.steps), &self.0);
        let steps = steps.integer(i64::from(self.1));
        let rows = steps.fetch_all(&mut *session.connection).await?;
        let read = |row: &MySqlRow| {
            let mut columns = Columns { row, next: 0 };
            let name = columns.text("name")?.into();
            Ok(SavedStep { name, result: columns.blob("result")?.to_vec().into() })
        };
        rows.iter().map(|row| read(row).map_err(|bad: BadRow| unreadable(bad))).collect()
    }
}

/// What waits for a worker: pending work before phased work.
pub(super) struct Waiting(pub(super) Which, pub(super) u32);

impl Statement for Waiting {
    type Answer = Vec<Resumable>;
    const READS: bool = true;

    /// What cannot be read is left out: it must not stand in the way of the others.
    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Vec<Resumable>> {
        let Waiting(which, limit) = *self;
        let now = session.now().await?;
        let mut waiting = Vec::new();
        for is_pending in [true, false] {
            let mut seen: i64 = 0;
            loop {
                let page = (limit as usize).saturating_sub(waiting.len()).min(PAGE_MAX as usize);
                let ask = match is_pending {
                    true => query(&session.statements.pending).integer(now.as_micros()),
                    false => query(&session.statements.phased)
                        .integer(now.as_micros())
                        .integer(i64::from(which == Which::All)),
                };
                let ask = ask.integer(page as i64).integer(seen);
                let rows = ask.fetch_all(&mut *session.connection).await?;
                seen += rows.len() as i64;
                for row in &rows {
                    match read_resumable(row) {
                        Ok(resumable) => waiting.push(resumable),
                        Err(error) => {
                            warn!(%error, "an operation that waits for a worker cannot be read");
                        }
                    }
                }
                if rows.len() < page || waiting.len() >= limit as usize {
                    break;
                }
            }
        }
        Ok(waiting)
    }
}

fn read_resumable(row: &MySqlRow) -> Result<Resumable, BadRow> {
    let record = Box::new(read_record(row)?);
    let request = row.blob(RECORD_COLUMN_COUNT).ok_or(BadRow("request"))?;
    // Without it nobody can go on, but what has waited for too long is still given up.
    Ok(Resumable { record, request: request.and_then(decode_request) })
}

/// Unknown outcomes that are due to be asked about, but for those of some routes.
pub(super) struct DueUnknown(pub(super) u32, pub(super) Vec<Arc<str>>);

impl Statement for DueUnknown {
    type Answer = Vec<Record>;
    const READS: bool = true;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Vec<Record>> {
        let now = session.now().await?;
        let limit = self.0.min(PAGE_MAX) as usize;
        let mut due = Vec::new();
        let mut seen: i64 = 0;
        loop {
            let page = limit - due.len();
            let mut sql = super::list::due_unknown(&session.statements.prefix, now, &self.1);
            sql.push(" LIMIT ").push_bind(page as i64).push(" OFFSET ").push_bind(seen);
            let ask = sql.build().persistent(false);
            let rows = ask.fetch_all(&mut *session.connection).await?;
            seen += rows.len() as i64;
            for row in &rows {
                match read_record(row) {
                    Ok(record) => due.push(record),
                    Err(error) => warn!(%error, "an unknown outcome that is due cannot be read"),
                }
            }
            if rows.len() < page || due.len() >= limit {
                return Ok(due);
            }
        }
    }
}

/// Leases that ran out. A record that cannot be read is left alone, and must not stand in the way of
/// those behind it: requests for it are told that it is damaged.
pub(super) struct Sweep(pub(super) u32);

impl Statement for Sweep {
    type Answer = Vec<Swept>;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Vec<Swept>> {
        let limit = self.0.min(PAGE_MAX) as usize;
        let mut swept = Vec::new();
        let mut left_alone = 0;
        loop {
            let page = limit - swept.len();
            let now = session.now().await?;
            let due = query(&session.statements.due_leases)
                .integer(now.as_micros())
                .integer(page as i64)
                .integer(left_alone);
            let rows = due.fetch_all(&mut *session.connection).await?;
            let mut moved = Vec::new();
            for row in &rows {
                let number = row.integer(RECORD_COLUMN_COUNT).flatten();
                let record = read_record(row).inspect_err(|error| {
                    warn!(%error, "a record whose lease is over cannot be read");
                });
                if let (Some(number), Ok(record)) = (number, record) {
                    let step = machine::sweep(&record, now);
                    if let (Change::Put(after), Some(_)) = (&step.change, &step.answer) {
                        moved.push((
                            Found { row: number, record: Ok(record) },
                            after.clone(),
                            step,
                        ));
                    }
                }
            }
            let audits: Vec<_> = moved.iter().filter_map(|(.., step)| step.audit.clone()).collect();
            let mut changes = Changes { audits: &audits, ..Changes::default() };
            for (found, after, _) in &moved {
                changes.add(&after.id, Some(found), Some(&**after));
                changes.beside.follow(after);
            }
            session.write(changes).await?;
            left_alone += (rows.len() - moved.len()) as i64;
            let full = rows.len() >= page;
            swept.extend(moved.into_iter().filter_map(|(.., step)| step.answer));
            if !full || swept.len() >= limit {
                return Ok(swept);
            }
        }
    }
}

/// Retention that is over, and tombstones whose time is over.
pub(super) struct Reap(pub(super) u32);

impl Statement for Reap {
    type Answer = Reaped;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Reaped> {
        let limit = self.0.min(PAGE_MAX);
        let mut reaped = Reaped::default();
        for state in [State::Expired, State::Completed, State::FailedRetryable] {
            let mut left_alone: i64 = 0;
            loop {
                let page = limit - (reaped.expired + reaped.purged);
                let now = session.now().await?;
                let due = query(&session.statements.due_retention)
                    .word(state.name())
                    .integer(now.as_micros())
                    .integer(i64::from(page))
                    .integer(left_alone);
                let rows = due.fetch_all(&mut *session.connection).await?;
                let done = reap(session, &rows, now).await?;
                left_alone += rows.len() as i64 - i64::from(done.expired + done.purged);
                reaped.expired += done.expired;
                reaped.purged += done.purged;
                if (rows.len() as u32) < page || reaped.expired + reaped.purged >= limit {
                    break;
                }
            }
        }
        Ok(reaped)
    }
}

async fn reap(
    session: &mut Session<'_>,
    rows: &[MySqlRow],
    now: Timestamp,
) -> sqlx::Result<Reaped> {
    let mut reaped = Reaped::default();
    // Tombstones that are left with the same are made by one statement.
    let mut buried: BTreeMap<(bool, Option<u16>), (Record, Vec<i64>)> = BTreeMap::new();
    let mut removed = Vec::new();
    for row in rows {
        let number = row.integer(LISTED_COLUMN_COUNT).flatten();
        let (Some(number), Ok(record)) = (number, read_listed(row)) else { continue };
        match machine::reap(&record, now) {
            Change::Keep => {}
            Change::Put(left) => {
                reaped.expired += 1;
                let status = left.reply.as_ref().map(|reply| reply.status.as_u16());
                let like = buried.entry((left.void, status)).or_insert((*left, Vec::new()));
                like.1.push(number);
            }
            Change::Remove => {
                reaped.purged += 1;
                removed.push((number, record));
            }
        }
    }
    for (like, rows) in buried.values() {
        session.bury(rows, like).await?;
    }
    let mut changes = Changes::default();
    for (row, record) in &removed {
        changes.removed.push((*row, &record.id));
        changes.forgotten.push(&record.id);
    }
    session.write(changes).await?;
    Ok(reaped)
}

pub(super) struct PurgeAudit {
    pub(super) older_than: Duration,
    pub(super) limit: u32,
}

impl Statement for PurgeAudit {
    type Answer = u32;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<u32> {
        let age = i64::try_from(self.older_than.as_micros()).unwrap_or(i64::MAX);
        let before = session.now().await?.as_micros().saturating_sub(age);
        let due = query(&session.statements.purgeable_audit)
            .integer(before)
            .integer(i64::from(self.limit.min(PAGE_MAX)));
        let rows = due.fetch_all(&mut *session.connection).await?;
        let ids: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let mut purged = 0;
        for chunk in ids.chunks(SIZES[0]) {
            let size = with_room_for(chunk.len());
            let purge = query(&session.statements.purge_audit[size]);
            let purge = padded(chunk, SIZES[size]).fold(purge, |query, id| query.integer(*id));
            purged += purge.execute(&mut *session.connection).await?.rows_affected();
        }
        Ok(u32::try_from(purged).unwrap_or(u32::MAX))
    }
}

/// A write to no row: to answer reads only is not to be well.
pub(super) struct Ping;

impl Statement for Ping {
    type Answer = ();

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<()> {
        let ping = session.statements.named("DELETE FROM onceward_meta WHERE name = 'ping'");
        ping.execute(&mut *session.connection).await.map(drop)
    }
}

pub(super) struct CheckIdentity(pub(super) Identity);

impl Statement for CheckIdentity {
    type Answer = IdentityCheck;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<IdentityCheck> {
        // Writes also when it finds one: a mere look would not see one that is on its way.
        let remember = session.statements.named(
            "INSERT INTO onceward_meta (name, value) VALUES ('identity', ?) \
             ON DUPLICATE KEY UPDATE value = value",
        );
        remember.word(self.0.as_str()).execute(&mut *session.connection).await?;
        let known =
            session.statements.named("SELECT value FROM onceward_meta WHERE name = 'identity'");
        let known = known.fetch_one(&mut *session.connection).await?;
        let known = Columns { row: &known, next: 0 }.text("identity").map_err(unreadable)?
            == self.0.as_str();
        Ok(if known { IdentityCheck::Same } else { IdentityCheck::Different })
    }
}

pub(super) struct AcceptIdentity(pub(super) Identity);

impl Statement for AcceptIdentity {
    type Answer = ();

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<()> {
        let accept = session.statements.named(
            "INSERT INTO onceward_meta (name, value) VALUES ('identity', ?) \
             ON DUPLICATE KEY UPDATE value = VALUES(value)",
        );
        accept.word(self.0.as_str()).execute(&mut *session.connection).await.map(drop)
    }
}

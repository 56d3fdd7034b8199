//! What workers ask for: leases that ran out, retention that is over. One page for each call, so that
//! requests do not wait behind a worker.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use super::{
    changes::Changes,
    error::store_error,
    row::{BadRow, read_listed, read_record, readable},
    sql::{DUE_LEASES, DUE_RETENTION, DUE_UNKNOWN, PURGE_AUDIT},
    statement::Statement,
    writer::{Outcome, Sender, Writer, before},
};
use crate::{
    clock::Timestamp,
    machine::{self, Change},
    record::Record,
    store::{Reaped, StoreError, Swept},
};

/// How many records are moved on in one call.
const PAGE_MAX: u32 = 256;

/// How many records are reaped at a time, at least: whoever comes meanwhile waits for that.
const PIECE_MIN: u32 = 10;

/// A reap that is being done, a piece at a time: requests go between.
pub(super) struct Reaping {
    left: u32,
    /// Records that were looked at and left alone: they are still due, and still the first.
    left_alone: u32,
    reaped: Reaped,
    sender: Sender<Reaped>,
}

impl Reaping {
    pub(super) fn new(limit: u32, sender: Sender<Reaped>) -> Self {
        let left = limit.min(PAGE_MAX);
        Reaping { left, left_alone: 0, reaped: Reaped::default(), sender }
    }

    fn answer(self, done: Result<(), StoreError>) {
        // The caller may be gone. What was reaped is reaped.
        let _ = self.sender.send(done.map(|()| self.reaped));
    }
}

enum Progress {
    Done,
    More,
}

/// When a commit is on the disk, as SQLite numbers it.
#[derive(Clone, Copy)]
enum Synced {
    WithTheNext = 1,
    Each = 2,
}

impl Synced {
    /// Sets it, and asks for it.
    fn pragma(self) -> &'static str {
        match self {
            Synced::WithTheNext => "PRAGMA synchronous = NORMAL; PRAGMA synchronous",
            Synced::Each => "PRAGMA synchronous = FULL; PRAGMA synchronous",
        }
    }
}

/// Some of the rows that a worker has to look at.
struct Page<'a> {
    sql: &'static str,
    times: &'a [Timestamp],
    size: u32,
    /// Rows that were looked at and left alone: they are still due, and still the first.
    skip: u32,
}

impl Writer {
    pub(super) async fn sweep(&mut self, limit: u32) -> Outcome<Vec<Swept>> {
        let limit = limit.min(PAGE_MAX);
        let mut swept = Vec::new();
        let mut left_alone = 0;
        loop {
            let page = limit.saturating_sub(swept.len() as u32);
            let now = self.options.clock.now();
            let due = Page { sql: DUE_LEASES, times: &[now], size: page, skip: left_alone };
            let (rows, due) = self.begin_and_list(due, read_record).await?;
            let steps: Vec<_> = due.iter().map(|record| machine::sweep(record, now)).collect();
            let mut puts = Vec::new();
            let mut audits = Vec::new();
            for step in &steps {
                if let (Change::Put(record), Some(_)) = (&step.change, &step.answer) {
                    puts.push(&**record);
                    audits.extend(step.audit.clone());
                }
            }
            self.write_and_commit(Changes { puts: &puts, audits: &audits, ..Changes::default() })
                .await?;
            left_alone += rows - puts.len() as u32;
            swept.extend(steps.into_iter().filter_map(|step| step.answer));
            if rows < page || swept.len() as u32 >= limit {
                return Ok(swept);
            }
        }
    }

    /// Removes a few of what the reap that came first is about. What is reaped may come back after a
    /// crash, and is reaped again: its commit does not wait for the disk, and neither does who stands
    /// behind it. The next commit of a request syncs it too.
    ///
    /// As many as steps `came` before it, at least: a record comes in two (reserved, completed) and goes
    /// in two (buried, removed), so that a file does not grow however many requests come.
    pub(super) async fn reap_a_piece(&mut self, came: usize) {
        let Some(mut reaping) = self.reaping.pop_front() else { return };
        let piece = async {
            self.sync_commits(Synced::WithTheNext).await?;
            let reaped = self.piece_of(&mut reaping, came).await;
            self.sync_commits(Synced::Each).await?;
            reaped
        };
        match piece.await {
            Ok(Progress::More) => self.reaping.push_front(reaping),
            Ok(Progress::Done) => reaping.answer(Ok(())),
            Err(failure) => reaping.answer(Err(store_error(failure.error, failure.moment))),
        }
    }

    /// A connection that does not do so is given up.
    async fn sync_commits(&mut self, synced: Synced) -> Outcome<()> {
        // Not prepared once for all: the pragma works while it is prepared.
        let set = async {
            let connection = self.connection().await.map_err(|failure| failure.error)?;
            let level = sqlx::raw_sql(synced.pragma()).fetch_one(connection).await?;
            level.try_get::<i64, _>(0)
        };
        let error = match set.await {
            Ok(level) if level == synced as i64 => return Ok(()),
            Ok(level) => sqlx::Error::Protocol(format!("PRAGMA synchronous stayed at {level}")),
            Err(error) => error,
        };
        self.give_up();
        Err(before(error))
    }

    async fn piece_of(&mut self, reaping: &mut Reaping, came: usize) -> Outcome<Progress> {
        let size = reaping.left.min(PIECE_MIN.max(came as u32));
        let now = self.options.clock.now();
        let due = Page { sql: DUE_RETENTION, times: &[now; 2], size, skip: reaping.left_alone };
        let (rows, due) = self.begin_and_list(due, read_listed).await?;
        let changes: Vec<_> = due.iter().map(|r| (&r.id, machine::reap(r, now))).collect();
        let mut buried = Vec::new();
        let mut removed = Vec::new();
        for (id, change) in &changes {
            match change {
                Change::Keep => {}
                Change::Put(record) => buried.push(&**record),
                Change::Remove => removed.push(*id),
            }
        }
        let (buried, removed) = (&*buried, &*removed);
        self.write_and_commit(Changes { buried, removed, ..Changes::default() }).await?;
        let done = (buried.len() + removed.len()) as u32;
        reaping.left_alone += rows - done;
        reaping.left -= done;
        reaping.reaped.expired += buried.len() as u32;
        reaping.reaped.purged += removed.len() as u32;
        Ok(if rows < size || reaping.left == 0 { Progress::Done } else { Progress::More })
    }

    /// At most a page, and without what cannot be read: it must not stand in the way of the others.
    pub(super) async fn due_unknown(
        &mut self,
        limit: u32,
        except: &[Arc<str>],
    ) -> Outcome<Vec<Record>> {
        let now = self.options.clock.now();
        let except = serde_json::json!(except.iter().map(|it| &**it).collect::<Vec<_>>());
        let except = except.to_string();
        let limit = limit.min(PAGE_MAX) as usize;
        let mut due = Vec::new();
        let mut seen: u32 = 0;
        loop {
            let page = (limit - due.len()) as u32;
            let query = sqlx::query(DUE_UNKNOWN).bind(now.as_micros()).bind(&except);
            let query = query.bind(page).bind(seen);
            let rows = query.fetch_all(self.connection().await?).await.map_err(before)?;
            seen += rows.len() as u32;
            due.extend(readable(&rows, read_record));
            if rows.len() < page as usize || due.len() >= limit {
                return Ok(due);
            }
        }
    }

    /// Begins a transaction and reads the records that a worker has to look at; with the number of
    /// rows that are due. A record that cannot be read is left alone, and must not stand in the way
    /// of those behind it: requests for it are told that it is damaged.
    async fn begin_and_list(
        &mut self,
        page: Page<'_>,
        read: fn(&SqliteRow) -> Result<Record, BadRow>,
    ) -> Outcome<(u32, Vec<Record>)> {
        let query = sqlx::query(page.sql);
        let query = page.times.iter().fold(query, |query, time| query.bind(time.as_micros()));
        let rows = self.begin_and_fetch(query.bind(page.size).bind(page.skip)).await?;
        Ok((rows.len() as u32, readable(&rows, read)))
    }
}

/// Deletes audit records past their own retention.
pub(super) struct PurgeAudit {
    pub(super) older_than: Duration,
    pub(super) limit: u32,
}

impl Statement for PurgeAudit {
    type Answer = u32;

    fn run<'c>(
        &'c self,
        connection: &'c mut SqliteConnection,
        now: Timestamp,
    ) -> BoxFuture<'c, Result<u32, sqlx::Error>> {
        Box::pin(async move {
            let age = i64::try_from(self.older_than.as_micros()).unwrap_or(i64::MAX);
            let purge = sqlx::query(PURGE_AUDIT)
                .bind(now.as_micros().saturating_sub(age))
                .bind(self.limit.min(PAGE_MAX));
            let purged = purge.execute(connection).await?.rows_affected();
            Ok(u32::try_from(purged).unwrap_or(u32::MAX))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        SqliteOptions,
        store::sqlite::{Stats, open},
    };

    async fn level(writer: &mut Writer) -> i64 {
        let connection = writer.connection().await.map_err(|failure| failure.error);
        let level = sqlx::query_scalar("PRAGMA synchronous");
        level.fetch_one(connection.expect("a connection")).await.expect("a level")
    }

    #[tokio::test]
    async fn a_connection_whose_commits_cannot_be_set_to_wait_for_the_disk_again_is_given_up() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("store.db");
        let mut options = SqliteOptions::new(&path);
        let connection = open::open(&mut options).await.expect("a file");
        let mut writer = Writer::new(connection, options, Arc::new(Stats::default()));
        let relaxed = writer.sync_commits(Synced::WithTheNext).await;
        assert!(relaxed.is_ok() && level(&mut writer).await == 1);
        let strict = writer.sync_commits(Synced::Each).await;
        assert!(strict.is_ok() && writer.open_connection().is_some(), "the same connection");
        assert_eq!(level(&mut writer).await, 2);
        // Within a transaction SQLite refuses to set it.
        assert!(writer.sync_commits(Synced::WithTheNext).await.is_ok());
        let connection = writer.open_connection().expect("open");
        sqlx::raw_sql("BEGIN").execute(connection).await.expect("begun");
        assert!(writer.sync_commits(Synced::Each).await.is_err());
        assert!(writer.open_connection().is_none(), "given up");
        assert_eq!(level(&mut writer).await, 2, "of the next one");
    }
}

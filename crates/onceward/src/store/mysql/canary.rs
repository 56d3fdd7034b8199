//! Beats of this process, with what it saw acknowledged since the last one.

use sqlx::{Row as _, mysql::MySqlRow};

use super::{
    link::Link,
    row::{Values as _, micros},
    session::{Lock, Session, Statement},
};
use crate::{
    clock::Timestamp,
    machine::{self, BEATS_KEPT},
    record::AuditRecord,
    store::{Beat, Beaten, Pulse, Regression, StoreError, witness::Witness},
};

/// For how long before and after a server took over others are waited for.
const HANDOVER: i64 = 60_000_000;

/// Sent on a connection that is not older than any other: one that is may lead to a server that is
/// not asked any more.
pub(super) async fn beat(link: &mut Link, beat: Beat) -> Result<Pulse, StoreError> {
    link.be_as_new_as_any().await?;
    let shared = link.witnesses.clone();
    let _asking = shared.asking.lock().await;
    let acked = shared.acked(beat);
    let statement = Count { beat: Beat { acked, ..beat }, witnesses: shared.all() };
    let pulse = link.state(&statement).await?;
    shared.forget(&statement.witnesses, beat.node, pulse.count);
    Ok(pulse)
}

struct Count {
    beat: Beat,
    witnesses: Vec<Witness>,
}

impl Statement for Count {
    type Answer = Pulse;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Pulse> {
        let node = self.beat.node.as_bytes();
        let last = session.statements.named(
            "SELECT `count`, `at`, server, since, left_at FROM onceward_beats \
             WHERE node = ? FOR UPDATE",
        );
        let last = last.bytes(node).fetch_optional(&mut *session.connection).await?;
        let last = last.as_ref().map(Last::read).transpose()?;
        let server = session.statements.named("SELECT CAST(@@server_id AS SIGNED)");
        let server: i64 = server.fetch_one(&mut *session.connection).await?.try_get(0)?;
        let known = known(session).await?;
        let now = session.now().await?;
        let mut beat = self.beat;
        if self.lacks_any(session).await? {
            // As if a beat were gone that came after what is.
            let counted = last.as_ref().map_or(0, |last| last.beaten.count);
            beat.acked = beat.acked.max(counted.saturating_add(1));
        }
        let step = machine::beat(last.as_ref().map(|last| last.beaten), known, &beat, now);
        if last.is_none() {
            let prune = session.statements.named("DELETE FROM onceward_beats WHERE `at` <= ?");
            let prune = prune.integer(now.as_micros().saturating_sub(micros(BEATS_KEPT)));
            prune.execute(&mut *session.connection).await?;
        }
        let (since, left_at) = match &last {
            Some(last) if last.server == server => (last.since, last.left_at),
            Some(last) => (now.as_micros(), Some(last.beaten.at.as_micros())),
            None => (now.as_micros(), None),
        };
        let put = session.statements.named(
            "INSERT INTO onceward_beats (node, `count`, `at`, server, since, left_at) \
             VALUES (?, ?, ?, ?, ?, ?) ON DUPLICATE KEY UPDATE `count` = VALUES(`count`), \
             `at` = VALUES(`at`), server = VALUES(server), since = VALUES(since), \
             left_at = VALUES(left_at)",
        );
        let put = put
            .bytes(node)
            .integer(i64::try_from(step.beaten.count).unwrap_or(i64::MAX))
            .integer(step.beaten.at.as_micros())
            .integer(server)
            .integer(since)
            .integer(left_at);
        put.execute(&mut *session.connection).await?;
        if let (Some(audit), Some(regression)) = (&step.audit, step.pulse.regression) {
            regressed(session, regression).await?;
            session.remember(audit, 0).await?;
        }
        let absent = absent(session, server, now).await?;
        Ok(Pulse { absent, ..step.pulse })
    }
}

impl Count {
    /// Whether anything is not there that was acknowledged since the last beat.
    async fn lacks_any(&self, session: &mut Session<'_>) -> sqlx::Result<bool> {
        let mut ids: Vec<_> = self.witnesses.iter().map(|it| it.lease.id.clone()).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return Ok(false);
        }
        let (found, _) = session.load(&ids, Lock::No).await?;
        for witness in &self.witnesses {
            let record = match found.get(&witness.lease.id).map(|found| &found.record) {
                // Damaged is not lost.
                Some(Err(())) => continue,
                Some(Ok(record)) => Some(record),
                None => None,
            };
            let saved = match (record, &witness.step) {
                (Some(record), Some(name)) => {
                    let asked = [(record.id.clone(), record.generation, name.clone())];
                    session.load_saved(&asked).await?.is_saved(Some(record), Some(name))
                }
                _ => false,
            };
            if witness.is_lost(record, saved) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The last beat of a node, and where it was made.
struct Last {
    beaten: Beaten,
    server: i64,
    since: i64,
    left_at: Option<i64>,
}

impl Last {
    fn read(row: &MySqlRow) -> sqlx::Result<Self> {
        let count = u64::try_from(row.try_get::<i64, _>(0)?);
        let count = count.map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
        Ok(Last {
            beaten: Beaten { count, at: Timestamp::from_micros(row.try_get(1)?) },
            server: row.try_get(2)?,
            since: row.try_get(3)?,
            left_at: row.try_get(4)?,
        })
    }
}

/// How many were there in the last minute of the server before, however long ago that was, and have
/// not been here. Who does not come in the first minute here is not waited for. Those that are here say
/// when they left: without them, who had gone long before would be the last that was there.
async fn absent(session: &mut Session<'_>, server: i64, now: Timestamp) -> sqlx::Result<u32> {
    let absent = session.statements.named(
        "SELECT COUNT(*) FROM onceward_beats b WHERE b.server <> ? \
         AND b.`at` > (SELECT MAX(CASE WHEN o.server = ? THEN o.left_at ELSE o.`at` END) \
         FROM onceward_beats o) - ? \
         AND (SELECT MIN(o.since) FROM onceward_beats o WHERE o.server = ?) > ?",
    );
    let absent = absent
        .integer(server)
        .integer(server)
        .integer(HANDOVER)
        .integer(server)
        .integer(now.as_micros().saturating_sub(HANDOVER));
    let absent: i64 = absent.fetch_one(&mut *session.connection).await?.try_get(0)?;
    Ok(u32::try_from(absent).unwrap_or(u32::MAX))
}

async fn regressed(session: &mut Session<'_>, regression: Regression) -> sqlx::Result<()> {
    let put = session.statements.named(
        "INSERT INTO onceward_regressions (only_one, since, found) VALUES (1, ?, ?) \
         ON DUPLICATE KEY UPDATE since = VALUES(since), found = VALUES(found)",
    );
    let put = put.integer(regression.since.map(Timestamp::as_micros));
    let put = put.integer(regression.found.as_micros());
    put.execute(&mut *session.connection).await.map(drop)
}

async fn known(session: &mut Session<'_>) -> sqlx::Result<Option<Regression>> {
    let known = "SELECT since, found FROM onceward_regressions FOR UPDATE";
    let known = session.statements.named(known).fetch_optional(&mut *session.connection).await?;
    let read = |row: &MySqlRow| {
        Ok(Regression {
            since: row.try_get::<Option<i64>, _>(0)?.map(Timestamp::from_micros),
            found: Timestamp::from_micros(row.try_get(1)?),
        })
    };
    known.as_ref().map(read).transpose()
}

/// Forgets what was found to be lost.
pub(super) struct Acknowledge(pub(super) Box<str>);

impl Statement for Acknowledge {
    type Answer = Option<Regression>;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Option<Regression>> {
        let known = known(session).await?;
        if let Some(known) = known {
            let forget = session.statements.named("DELETE FROM onceward_regressions");
            forget.execute(&mut *session.connection).await?;
            let now = session.now().await?;
            let audit = AuditRecord::acknowledged(known, &self.0, now);
            session.remember(&audit, 0).await?;
        }
        Ok(known)
    }
}

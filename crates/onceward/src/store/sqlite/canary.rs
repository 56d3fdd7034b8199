//! Beats of nodes, and what was found to be lost.

use futures_util::future::BoxFuture;
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use super::{changes::Changes, statement::Statement};
use crate::{
    clock::Timestamp,
    machine,
    record::AuditRecord,
    store::{Beat, Beaten, Pulse, Regression},
};

const LAST: &str = "SELECT count, at FROM onceward_beats WHERE node = ?";
const PUT: &str = "INSERT INTO onceward_beats (node, count, at) VALUES (?, ?, ?) \
    ON CONFLICT (node) DO UPDATE SET count = excluded.count, at = excluded.at";
const PRUNE: &str = "DELETE FROM onceward_beats WHERE at <= ?";
const KNOWN: &str = "SELECT since, found FROM onceward_regressions";
const FORGET: &str = "DELETE FROM onceward_regressions";
const REGRESSED: &str = "INSERT INTO onceward_regressions (since, found) VALUES (?, ?)";

impl Statement for Beat {
    type Answer = Pulse;

    fn run<'c>(
        &'c self,
        connection: &'c mut SqliteConnection,
        now: Timestamp,
    ) -> BoxFuture<'c, Result<Pulse, sqlx::Error>> {
        Box::pin(async move {
            let node = self.node.as_bytes().to_vec();
            let last =
                sqlx::query(LAST).bind(node.clone()).fetch_optional(&mut *connection).await?;
            let last = last.as_ref().map(read_beaten).transpose()?;
            let known = known(&mut *connection).await?;
            let step = machine::beat(last, known, self, now);
            if last.is_none() {
                let kept = i64::try_from(machine::BEATS_KEPT.as_micros()).unwrap_or(i64::MAX);
                let oldest = now.as_micros().saturating_sub(kept);
                sqlx::query(PRUNE).bind(oldest).execute(&mut *connection).await?;
            }
            let put = sqlx::query(PUT)
                .bind(node)
                .bind(i64::try_from(step.beaten.count).unwrap_or(i64::MAX))
                .bind(step.beaten.at.as_micros());
            put.execute(&mut *connection).await?;
            if let (Some(audit), Some(regression)) = (step.audit, step.pulse.regression) {
                sqlx::query(FORGET).execute(&mut *connection).await?;
                let regressed = sqlx::query(REGRESSED)
                    .bind(regression.since.map(Timestamp::as_micros))
                    .bind(regression.found.as_micros());
                regressed.execute(&mut *connection).await?;
                Changes { audits: &[audit], ..Changes::default() }.write(connection).await?;
            }
            Ok(step.pulse)
        })
    }
}

/// Forgets what was found to be lost.
pub(super) struct Acknowledge(pub(super) Box<str>);

impl Statement for Acknowledge {
    type Answer = Option<Regression>;

    fn run<'c>(
        &'c self,
        connection: &'c mut SqliteConnection,
        now: Timestamp,
    ) -> BoxFuture<'c, Result<Option<Regression>, sqlx::Error>> {
        Box::pin(async move {
            let known = known(&mut *connection).await?;
            if let Some(known) = known {
                sqlx::query(FORGET).execute(&mut *connection).await?;
                let audits = [AuditRecord::acknowledged(known, &self.0, now)];
                Changes { audits: &audits, ..Changes::default() }.write(connection).await?;
            }
            Ok(known)
        })
    }
}

async fn known(connection: &mut SqliteConnection) -> Result<Option<Regression>, sqlx::Error> {
    let known = sqlx::query(KNOWN).fetch_optional(connection).await?;
    let read = |row: &SqliteRow| {
        Ok(Regression {
            since: row.try_get::<Option<i64>, _>(0)?.map(Timestamp::from_micros),
            found: Timestamp::from_micros(row.try_get(1)?),
        })
    };
    known.as_ref().map(read).transpose()
}

fn read_beaten(row: &SqliteRow) -> Result<Beaten, sqlx::Error> {
    let count = u64::try_from(row.try_get::<i64, _>(0)?);
    Ok(Beaten {
        count: count.map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
        at: Timestamp::from_micros(row.try_get(1)?),
    })
}

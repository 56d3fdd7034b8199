//! What providers call operations.

use futures_util::future::BoxFuture;
use sqlx::{SqliteConnection, sqlite::SqliteRow};

use super::{
    changes::{Changes, damaged_record, load, loaded},
    row::{BadRow, Columns},
    statement::Statement,
    writer::{Outcome, Writer, before},
};
use crate::{
    clock::Timestamp,
    machine,
    record::{AttemptId, Fence, Lease, ProviderId, ProviderNote, RecordId},
    store::Noted,
};

macro_rules! columns {
    () => {
        "n.provider, n.provider_id, n.scope, n.key, n.generation, n.attempt, n.fence, n.at"
    };
}

const BY_ID: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM onceward_provider_ids n WHERE n.provider = ? AND n.provider_id = ?"
);

/// Of the records in a JSON array of pairs.
const OF: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM (SELECT key AS position, value ->> 0 AS scope, value ->> 1 AS key FROM json_each(?)) \
     AS asked CROSS JOIN onceward_provider_ids n \
     ON n.scope = asked.scope AND n.key = asked.key ORDER BY asked.position, n.note_id"
);

const PUT: &str = "INSERT INTO onceward_provider_ids \
    (provider, provider_id, scope, key, generation, attempt, fence, at) \
    VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (provider, provider_id) \
    DO UPDATE SET attempt = excluded.attempt, fence = excluded.fence";

/// A provider id that is told by the attempt of a lease.
pub(super) struct Note {
    pub(super) lease: Lease,
    pub(super) id: ProviderId,
}

impl Statement for Note {
    type Answer = Noted;

    fn run<'c>(
        &'c self,
        connection: &'c mut SqliteConnection,
        now: Timestamp,
    ) -> BoxFuture<'c, Result<Noted, sqlx::Error>> {
        Box::pin(async move {
            let ids = [self.lease.id.clone()];
            let rows = load(&ids).fetch_all(&mut *connection).await?;
            let found = loaded(&ids, &rows).remove(&self.lease.id).transpose();
            let found = found.map_err(|()| sqlx::Error::Decode(damaged_record().into()))?;
            let holder = by_id(&mut *connection, &self.id).await?;
            let (lease, id) = (&self.lease, self.id.clone());
            let step = machine::note(found.as_ref(), holder.as_ref(), lease, id, now);
            if let Some(note) = &step.put {
                let put = sqlx::query(PUT)
                    .bind(note.id.provider().to_owned())
                    .bind(note.id.id().to_owned())
                    .bind(note.record.scope.as_str().to_owned())
                    .bind(note.record.key.as_str().to_owned())
                    .bind(i64::from(note.generation))
                    .bind(note.attempt.as_bytes().to_vec())
                    .bind(note.fence.number())
                    .bind(note.at.as_micros());
                put.execute(&mut *connection).await?;
            }
            let audits: Vec<_> = step.audit.into_iter().collect();
            Changes { audits: &audits, ..Changes::default() }.write(connection).await?;
            Ok(step.answer)
        })
    }
}

impl Writer {
    pub(super) async fn by_provider_id(
        &mut self,
        id: &ProviderId,
    ) -> Outcome<Option<ProviderNote>> {
        by_id(self.connection().await?, id).await.map_err(before)
    }

    pub(super) async fn provider_ids(&mut self, of: &[RecordId]) -> Outcome<Vec<ProviderNote>> {
        let names: Vec<[&str; 2]> =
            of.iter().map(|id| [id.scope.as_str(), id.key.as_str()]).collect();
        let query = sqlx::query(OF).bind(serde_json::to_string(&names).unwrap_or_default());
        let rows = query.fetch_all(self.connection().await?).await.map_err(before)?;
        rows.iter().map(|row| read(row).map_err(before)).collect()
    }
}

async fn by_id(
    connection: &mut SqliteConnection,
    id: &ProviderId,
) -> Result<Option<ProviderNote>, sqlx::Error> {
    let query = sqlx::query(BY_ID).bind(id.provider().to_owned()).bind(id.id().to_owned());
    query.fetch_optional(connection).await?.as_ref().map(read).transpose()
}

fn read(row: &SqliteRow) -> Result<ProviderNote, sqlx::Error> {
    let read = || {
        let mut columns = Columns { row, next: 0 };
        let (provider, id) = (columns.text("provider")?, columns.text("provider_id")?);
        Ok(ProviderNote {
            id: ProviderId::new(provider, id).map_err(|_| BadRow("provider_id"))?,
            record: columns.id()?,
            generation: columns.number("generation")?,
            attempt: AttemptId::from_bytes(columns.bytes("attempt")?),
            fence: Fence::from_stored(columns.integer("fence")?),
            at: columns.time("at")?,
        })
    };
    read().map_err(|bad: BadRow| sqlx::Error::Decode(Box::new(bad)))
}

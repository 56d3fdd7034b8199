//! What providers call operations.

use sqlx::mysql::MySqlRow;

use super::{
    error::{damaged, unreadable},
    row::{BadRow, Columns, Values as _, bind_id},
    session::{Lock, Session, Statement},
};
use crate::{
    machine,
    record::{AttemptId, Fence, Lease, ProviderId, ProviderNote, RecordId},
    store::Noted,
};

const NOTES: &str = "SELECT provider, provider_id, scope, `key`, generation, attempt, fence, `at` \
    FROM onceward_provider_ids WHERE ";

/// A provider id that is told by the attempt of a lease.
pub(super) struct Note {
    pub(super) lease: Lease,
    pub(super) id: ProviderId,
}

impl Statement for Note {
    type Answer = Noted;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Noted> {
        let ids = [self.lease.id.clone()];
        let (mut found, now) = session.load(&ids, Lock::Rows).await?;
        let found = found.remove(&self.lease.id).map(|found| found.record).transpose();
        let found = found.map_err(|()| sqlx::Error::Decode(damaged().into()))?;
        let holder = by_id(session, &self.id).await?;
        let (lease, id) = (&self.lease, self.id.clone());
        let step = machine::note(found.as_ref(), holder.as_ref(), lease, id, now);
        if let Some(note) = &step.put {
            // One that somebody notes at the same time is an error, and this is done again.
            let put = match holder {
                None => session.statements.named(
                    "INSERT INTO onceward_provider_ids (generation, attempt, fence, `at`, \
                     provider, provider_id, scope, `key`) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                ),
                Some(_) => session.statements.named(
                    "UPDATE onceward_provider_ids SET generation = ?, attempt = ?, fence = ?, \
                     `at` = ? WHERE provider = ? AND provider_id = ? AND scope = ? AND `key` = ?",
                ),
            };
            let put = put
                .integer(i64::from(note.generation))
                .bytes(note.attempt.as_bytes())
                .integer(note.fence.number())
                .integer(note.at.as_micros())
                .word(note.id.provider())
                .word(note.id.id());
            bind_id(put, &note.record).execute(&mut *session.connection).await?;
        }
        if let Some(audit) = &step.audit {
            session.remember(audit, 0).await?;
        }
        Ok(step.answer)
    }
}

pub(super) struct ById(pub(super) ProviderId);

impl Statement for ById {
    type Answer = Option<ProviderNote>;
    const READS: bool = true;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Option<ProviderNote>> {
        by_id(session, &self.0).await
    }
}

async fn by_id(session: &mut Session<'_>, id: &ProviderId) -> sqlx::Result<Option<ProviderNote>> {
    let note = session.statements.named(&format!("{NOTES}provider = ? AND provider_id = ?"));
    let note = note.word(id.provider()).word(id.id());
    let note = note.fetch_optional(&mut *session.connection).await?;
    note.as_ref().map(|row| read(row).map_err(unreadable)).transpose()
}

/// The provider ids of these records, in their order.
pub(super) struct Of(pub(super) Vec<RecordId>);

impl Statement for Of {
    type Answer = Vec<ProviderNote>;
    const READS: bool = true;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Vec<ProviderNote>> {
        let mut notes = Vec::new();
        for id in &self.0 {
            let of = format!("{NOTES}scope = ? AND `key` = ? ORDER BY note_id");
            let of = bind_id(session.statements.named(&of), id);
            for row in of.fetch_all(&mut *session.connection).await? {
                notes.push(read(&row).map_err(unreadable)?);
            }
        }
        Ok(notes)
    }
}

fn read(row: &MySqlRow) -> Result<ProviderNote, BadRow> {
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
}

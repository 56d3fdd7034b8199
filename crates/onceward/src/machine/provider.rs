//! Whose a provider id is. The first that notes it has it; two that would have it are an incident.

use super::audit;
use crate::{
    clock::Timestamp,
    record::{AuditEvent, AuditRecord, Lease, ProviderId, ProviderNote, Record},
    store::Noted,
};

/// What becomes of a provider id.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct NoteStep {
    /// What is kept of it from now on, if that changes.
    pub put: Option<ProviderNote>,
    /// What is worth an audit record.
    pub audit: Option<AuditRecord>,
    /// The answer to the caller.
    pub answer: Noted,
}

/// Notes a provider id for the operation of a lease. `holder` is what is known of the id.
///
/// Not guarded by the fence: who has lost the record, and acted all the same, is told of by this very
/// id. A later attempt of the same operation that is given the same id has the same charge before it.
pub fn note(
    found: Option<&Record>,
    holder: Option<&ProviderNote>,
    lease: &Lease,
    id: ProviderId,
    now: Timestamp,
) -> NoteStep {
    let answer = |answer| NoteStep { put: None, audit: None, answer };
    let Some(record) = found.filter(|record| is_of(record, lease)) else {
        return answer(Noted::Absent);
    };
    let noted = ProviderNote {
        id,
        record: record.id.clone(),
        generation: lease.generation,
        attempt: lease.attempt,
        fence: lease.fence,
        at: now,
    };
    match holder {
        None => NoteStep { put: Some(noted), ..answer(Noted::Applied) },
        Some(held) if held.record != noted.record || held.generation != noted.generation => {
            let reason = format!("the provider id {} is that of another operation", noted.id);
            let incident = AuditRecord {
                attempt: lease.attempt,
                fence: lease.fence,
                ..audit(record, AuditEvent::Incident, &reason, None, now)
            };
            NoteStep { audit: Some(incident), ..answer(Noted::Taken) }
        }
        Some(held) if held.fence < noted.fence => {
            let moved = ProviderNote { at: held.at, ..noted };
            NoteStep { put: Some(moved), ..answer(Noted::Applied) }
        }
        Some(_) => answer(Noted::AlreadyMine),
    }
}

/// Whether the record is still of the use of the key that the lease was granted in. One that was made
/// after the grant is another one: the first was purged.
fn is_of(record: &Record, lease: &Lease) -> bool {
    record.generation == lease.generation && record.created_at.as_micros() <= lease.fence.number()
}

/// Whether a record was purged and made again in one step, so that what was noted of the one before
/// has to go.
pub fn is_made_anew(before: &Record, after: &Record) -> bool {
    after.generation == 1 && after.created_at != before.created_at
}

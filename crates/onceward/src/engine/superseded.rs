//! Telling the client of an attempt that lost its record what became of it.

use tracing::{error, warn};

use super::Call;
use crate::{
    machine::{self, Decision, Refusal},
    observe,
    record::{Lease, Record},
    store::{Write, Written},
};

impl<R: Send + 'static> Call<'_, R> {
    /// Our attempt lost its right while it worked. Its result was kept as evidence; the record says
    /// what the client is to be told.
    pub(super) async fn superseded(&mut self, lease: &Lease, record: Option<Box<Record>>) {
        let (route, key) = (&*self.admitted.policy.name, &lease.id.key);
        warn!(
            route,
            key.digest = key.digest(),
            "an attempt was superseded; its result is kept as evidence"
        );
        observe::fenced_write(route);
        let same_use = record.filter(|record| self.is_same_use(lease, record));
        let decision = same_use.map(|record| self.engine.decide_on(record));
        match decision {
            Some(Decision::Replay { reply, expires_at, generation }) => {
                self.replay(reply, expires_at, generation);
            }
            Some(Decision::Refuse(refusal)) => self.refuse(&refusal),
            _ => self.refuse(&Refusal::OutcomeUnknown),
        }
    }

    /// What is audited as an incident is counted.
    pub(super) fn count_incident(&self, lease: &Lease, write: &Write, written: Option<&Written>) {
        let what = match (write, written) {
            (Write::Complete(reply), Some(Written::Superseded(Some(record))))
                if machine::is_incident(record, lease.generation, lease.attempt, reply) =>
            {
                "two results for one operation; both are kept"
            }
            (_, Some(Written::AppliedAfterRelease)) => {
                "an attempt that was said not to have acted has completed; its reply stands"
            }
            _ => return,
        };
        let (route, key) = (&*self.admitted.policy.name, &lease.id.key);
        observe::incident(route);
        error!(route, key.digest = key.digest(), "{what}");
    }

    /// Whether a record still belongs to the use of the key in which we were granted it. What a later
    /// use says is not for this client, and may be about another request. Generations are counted
    /// anew once a tombstone was purged; a fence is never below the time of its grant.
    fn is_same_use(&self, lease: &Lease, record: &Record) -> bool {
        record.generation == lease.generation
            && record.fingerprint == self.ask.fingerprint
            && record.created_at.as_micros() <= lease.fence.number()
            // Nothing stands behind such a tombstone, so that it says nothing about this attempt.
            && !record.void
    }
}

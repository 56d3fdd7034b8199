//! Holding the lease while the handler works.

use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::warn;

use super::{
    Engine,
    begin::{PAUSE_LONGEST, timed_out},
};
use crate::{
    machine, observe,
    operation::Operation,
    policy::Policy,
    record::Lease,
    store::{Write, Written},
};

/// Why an attempt is no longer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// It took longer than its policy allows.
    MaxExecution,
    /// The process is about to stop.
    Drained,
}

impl Stopped {
    pub(super) fn code(self) -> &'static str {
        match self {
            Stopped::MaxExecution => machine::MAX_EXECUTION_EXCEEDED,
            Stopped::Drained => "process_stopped",
        }
    }
}

impl Engine {
    /// Renews the lease every third of it, until the policy's `max_execution` or until the process
    /// has to stop.
    pub(super) async fn hold(
        &self,
        lease: &Lease,
        policy: &Policy,
        operation: &Operation,
    ) -> Stopped {
        let end = Instant::now() + policy.max_execution;
        tokio::select! {
            biased;
            () = self.renew_until(end, lease, policy, operation) => Stopped::MaxExecution,
            () = self.drain.over() => Stopped::Drained,
        }
    }

    /// One timer for the next renewal and for the end: most handlers need neither.
    async fn renew_until(
        &self,
        end: Instant,
        lease: &Lease,
        policy: &Policy,
        operation: &Operation,
    ) {
        let third = policy.lease / 3;
        // A reserve that was slow has used up some of its lease.
        let mut next = Instant::now() + operation.lease_left().saturating_sub(third * 2);
        loop {
            sleep_until(next.min(end)).await;
            if Instant::now() >= end {
                return;
            }
            next += third;
            let sent = self.clock.monotonic();
            let give_up = end.min(Instant::now() + third);
            let renewal = self.store.write(lease, Write::Renew(policy.lease));
            let written = timeout_at(give_up, renewal).await.unwrap_or_else(|_| Err(timed_out()));
            match written {
                Ok(Written::Applied | Written::AppliedAfterRelease | Written::AlreadyMine(_)) => {
                    self.breaker.answered();
                    operation.extend_deadline(sent + policy.lease);
                }
                Ok(Written::Superseded(_)) => {
                    // Somebody decided that we are gone. The work cannot be undone by stopping it;
                    // its result will complete the record, if nobody has taken that, or is
                    // evidence.
                    let (route, key) = (&*policy.name, &lease.id.key);
                    warn!(
                        route,
                        key.digest = key.digest(),
                        "a lease was lost while its handler works"
                    );
                    operation.lose_lease();
                    observe::fenced_write(route);
                    return sleep_until(end).await;
                }
                Err(_) if Instant::now() >= end => return,
                Err(error) => {
                    // There is some time left to try again.
                    self.store_failed("renew", &error, &policy.name);
                    next = Instant::now() + PAUSE_LONGEST.min(third / 2);
                }
            }
            next = next.max(Instant::now());
        }
    }
}

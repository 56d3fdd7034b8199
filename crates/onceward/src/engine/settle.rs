//! Writing the outcome: repeated under the same attempt until the store has said what is true.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{
    Admitted, Engine,
    begin::{PAUSE_LONGEST, timed_out},
};
use crate::{
    clock,
    record::{Fence, Lease, RecordId},
    store::{Proof, Resolution, Resolve, StoreError, Write, Written},
};

impl Engine {
    /// Writes until the store acknowledged or the deadline passed. `None` means that nobody knows
    /// whether it was written.
    pub(super) async fn persist(
        &self,
        lease: &Lease,
        write: &Write,
        admitted: &Admitted,
    ) -> Option<Written> {
        let give_up = Instant::now() + self.store_deadline;
        let mut pause = Duration::from_millis(20);
        loop {
            match self.write_once(lease, write, admitted, give_up).await {
                Ok(written) => return Some(written),
                Err(error) if !error.may_be_repeated() => return None,
                Err(_) if Instant::now() + pause >= give_up => return None,
                Err(_) => sleep(pause).await,
            }
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }

    /// Resolves the outcome of an attempt of ours that was taken for lost before it did anything:
    /// about that, the attempt itself cannot be wrong. `false` when the store did not answer.
    pub(super) async fn give_back(
        &self,
        id: &RecordId,
        generation: u32,
        fence: Fence,
        route: &str,
    ) -> bool {
        let resolve = Resolve {
            id: id.clone(),
            generation,
            fence,
            resolution: Resolution::Release(Proof::Authoritative),
            reason: "the attempt says that it was never dispatched".into(),
        };
        let resolved = timeout(self.store_deadline, self.store.resolve(resolve)).await;
        match resolved.unwrap_or_else(|_| Err(timed_out())) {
            Ok(_) => {
                self.waiters.wake(id);
                true
            }
            Err(error) => {
                self.store_failed("resolve", &error, route);
                false
            }
        }
    }

    /// Goes on writing after the client was answered, until the store acknowledged or this process
    /// has to stop. `None` means that nobody knows whether it was written.
    pub(super) async fn persist_until_drain(
        &self,
        lease: &Lease,
        write: &Write,
        admitted: &Admitted,
    ) -> Option<Written> {
        while !self.drain.is_over() {
            let give_up = Instant::now() + self.store_deadline;
            match self.write_once(lease, write, admitted, give_up).await {
                Ok(written) => return Some(written),
                Err(error) if !error.may_be_repeated() => return None,
                Err(_) => self.drain.pause(PAUSE_LONGEST).await,
            }
        }
        None
    }

    async fn write_once(
        &self,
        lease: &Lease,
        write: &Write,
        admitted: &Admitted,
        give_up: Instant,
    ) -> Result<Written, StoreError> {
        let answer = clock::until(give_up, self.store.write(lease, write.clone())).await;
        let written = answer.unwrap_or_else(|| Err(timed_out()));
        match &written {
            Ok(_) => {
                self.breaker.answered();
                self.waiters.wake(&lease.id);
            }
            Err(error) => self.store_failed("write", error, &admitted.policy.name),
        }
        written
    }
}

//! Bugs of gateways, clients' connections and workers.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use onceward::{
    engine::{Captured, Execution},
    record::{Lease, RecordId, State},
    store::Write,
};

use super::{
    super::world::{World, lock},
    Bug,
};
use crate::history::{Answer, CallNo};

/// Whether a handler sends its call again.
pub(in super::super) fn sends_again(world: &World, ended: &Execution<Bytes>) -> bool {
    let cut = matches!(ended, Execution::NoFullAnswer { .. });
    cut && world.bug == Some(Bug::CallSentAgain)
}

/// What a handler makes of the end of its call; with the number of a call that upstream got.
pub(in super::super) fn execution(
    world: &World,
    ended: Execution<Bytes>,
    call: Option<CallNo>,
) -> Execution<Bytes> {
    match (world.bug, ended, call) {
        (Some(Bug::CutIsNeverSent), Execution::NoFullAnswer { .. }, _) => {
            Execution::NeverSent { why: "connection_reset" }
        }
        (Some(Bug::HalfAnswerStored), Execution::NoFullAnswer { .. }, Some(call)) => {
            let half = Bytes::from(format!("call {call} for ten"));
            let parts = http::Response::new(()).into_parts().0;
            Execution::Answered(parts, Captured::Whole(half))
        }
        (_, ended, _) => ended,
    }
}

/// What a client receives.
pub(in super::super) fn answer(world: &World, mut answer: Answer) -> Answer {
    let lost = match world.bug {
        Some(Bug::NoRetryAfter) if answer.status == 409 => "retry-after",
        Some(Bug::ReplayNotMarked) => "idempotent-replayed",
        _ => return answer,
    };
    answer.headers.retain(|(name, _)| name != lost);
    answer
}

/// Whether the reconciler believes a single probe.
pub(in super::super) fn believes_one_probe(world: &World) -> bool {
    world.bug == Some(Bug::OneProbeBelieved)
}

/// The task of a request, which lives on when its client hangs up.
pub(in super::super) fn detached(
    world: &Arc<World>,
    id: RecordId,
    hung_up: impl Future<Output = ()> + Send + 'static,
    run: impl Future<Output = ()> + Send + 'static,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    if world.bug != Some(Bug::HangUpReleases) {
        return Box::pin(run);
    }
    let world = Arc::clone(world);
    Box::pin(async move {
        tokio::select! {
            biased;
            () = run => {}
            () = hung_up => world.give_back(&id),
        }
    })
}

impl World {
    fn give_back(&self, id: &RecordId) {
        let found = lock(&self.records).records.get(id).cloned();
        let Some(record) = found.filter(|record| record.state == State::InProgress) else { return };
        let lease = Lease {
            id: record.id,
            attempt: record.attempt,
            fence: record.fence,
            generation: record.generation,
            attempt_number: record.attempts,
            until: record.lease_until,
        };
        let _ = self.write(&lease, Write::Release("client_hung_up".into()));
    }
}

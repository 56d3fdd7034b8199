//! Work in steps: two calls of upstream, each of which is done once, whoever does it.

use bytes::Bytes;
use onceward::{Effect, EffectError, Operation, engine::Execution};

use super::{
    bugs,
    faults::UpstreamFault,
    upstream::{Call, Conduct, Keyed, answered, in_between},
};
use crate::history::{CallNo, What};

/// The first step may always be made again.
const FIRST: &str = "debit";

/// The last step, whose answer is the reply.
pub(super) const LAST: &str = "credit";

impl Call {
    /// Makes both steps, or what is left of them.
    pub(super) async fn in_steps(&self, operation: &Operation) -> Execution<Bytes> {
        let repeats = self.route_options().is_some_and(|route| route.last_step_repeats);
        let mut stands = None;
        for step in [Effect::idempotent(FIRST), last(repeats)] {
            let (name, repeats) = if stands.is_none() { (FIRST, true) } else { (LAST, repeats) };
            let made =
                operation.effect(step, async |key| self.step(operation, name, key, repeats).await);
            let Ok(call) = made.await else {
                // Not a reply: it is gone on with, or somebody finds out.
                return answered(&in_between(503), None, false);
            };
            stands = Some(call);
            let answer = self.world.answer_of(call);
            if answer.is_some_and(|answer| answer.status >= 400) {
                break;
            }
        }
        match stands.and_then(|call| self.world.answer_of(call)) {
            Some(answer) => answered(&answer, None, false),
            None => answered(&in_between(503), None, false),
        }
    }

    /// One step. With the number of the call that acted, which may be an earlier one under this key.
    async fn step(
        &self,
        operation: &Operation,
        name: &'static str,
        key: String,
        repeats: bool,
    ) -> Result<CallNo, EffectError<&'static str>> {
        // What upstream did under a key it knows for good, whatever it said at the time.
        let fault = match self.upstream_fault() {
            UpstreamFault::FailsAfterActing | UpstreamFault::SaysMaybe => UpstreamFault::LostAfter,
            other => other,
        };
        if fault == UpstreamFault::NeverSent {
            return Err(EffectError::NotExecuted("refused"));
        }
        let conduct = Conduct::of(fault, &self.world, self.route);
        let key = bugs::key_of_step(&self.world, key, operation);
        let keyed = Keyed { step: name, key: repeats.then(|| key.clone()) };
        let executed = conduct.executed;
        let (call, answer) = self.call(operation, conduct, fault, Some(keyed));
        self.world.record(What::Step { call, name: name.to_owned(), key });
        let stands = self.world.call_that_stands(call);
        match self.wait(fault, answer, executed).await {
            Execution::Answered(parts, _) => match (parts.status.as_u16(), executed) {
                (_, Some("no")) | (429 | 503, _) => Err(EffectError::NotExecuted("declined")),
                (_, Some(_)) | (500..=599, _) => Err(EffectError::Ambiguous("failed")),
                _ => Ok(stands()),
            },
            Execution::NeverSent { why } => Err(EffectError::NotExecuted(why)),
            Execution::NoFullAnswer { why, .. } => Err(EffectError::Ambiguous(why)),
        }
    }
}

fn last(repeats: bool) -> Effect<'static> {
    if repeats { Effect::idempotent(LAST) } else { Effect::not_idempotent(LAST) }
}

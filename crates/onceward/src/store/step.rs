//! A step on one record, as it stands in line before a store that runs the machine itself.

use tokio::sync::oneshot;

use super::{StoreError, StoreErrorKind, beside::Beside};
use crate::{
    clock::Timestamp,
    machine::{Change, Step},
    record::{AuditRecord, Record, RecordId},
};

/// What a step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    /// Changes nothing, whatever it finds.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "a batch locks all its rows"))]
    Look,
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "a batch locks all its rows"))]
    Reserve,
    /// Anything else.
    Write,
}

/// A step on one record, whatever it answers. Runs again when its batch has to be split up. `N` is
/// what the store takes note of when it is committed.
pub(super) trait PendingStep<N = ()>: Send {
    fn id(&self) -> &RecordId;
    /// The step of a phased operation that it is about.
    fn step_name(&self) -> Option<&str>;
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "a batch locks all its rows"))]
    fn intent(&self) -> Intent;
    fn run(&mut self, found: Option<&Record>, saved: bool, now: Timestamp) -> Ran;
    /// What is to be noted, once what it ran to is committed.
    #[cfg_attr(not(feature = "mysql"), allow(dead_code, reason = "a file has no connections"))]
    fn noted(&self) -> Option<N>;
    /// Whether nobody waits for its answer any more.
    #[cfg_attr(not(feature = "mysql"), allow(dead_code, reason = "a file has no connections"))]
    fn is_abandoned(&self) -> bool;
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

/// What a step has to write.
pub(super) struct Ran {
    pub(super) change: Change,
    pub(super) audit: Option<AuditRecord>,
    pub(super) beside: Option<Beside>,
}

pub(super) struct RecordStep<A, F, W> {
    /// The name of the store, for errors.
    pub(super) store: &'static str,
    pub(super) id: RecordId,
    pub(super) step_name: Option<Box<str>>,
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "a batch locks all its rows"))]
    pub(super) intent: Intent,
    pub(super) decide: F,
    /// What an answer has to be noted by.
    #[cfg_attr(not(feature = "mysql"), allow(dead_code, reason = "a file has no connections"))]
    pub(super) notes: W,
    pub(super) answer: Option<A>,
    pub(super) sender: oneshot::Sender<Result<A, StoreError>>,
}

impl<A: Send, F, W, N> PendingStep<N> for RecordStep<A, F, W>
where
    F: Fn(Option<&Record>, bool, Timestamp) -> (Step<A>, Option<Beside>) + Send,
    W: Fn(&A) -> Option<N> + Send,
{
    fn id(&self) -> &RecordId {
        &self.id
    }

    fn step_name(&self) -> Option<&str> {
        self.step_name.as_deref()
    }

    fn intent(&self) -> Intent {
        self.intent
    }

    fn run(&mut self, found: Option<&Record>, saved: bool, now: Timestamp) -> Ran {
        let (step, beside) = (self.decide)(found, saved, now);
        self.answer = Some(step.answer);
        Ran { change: step.change, audit: step.audit, beside }
    }

    fn noted(&self) -> Option<N> {
        self.answer.as_ref().and_then(&self.notes)
    }

    fn is_abandoned(&self) -> bool {
        self.sender.is_closed()
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let RecordStep { answer, sender, store, .. } = *self;
        let no_answer = || StoreError::new(StoreErrorKind::Ambiguous, store, "not run");
        // The caller may be gone. The step is done all the same.
        let _ = sender.send(committed.and_then(|()| answer.ok_or_else(no_answer)));
    }
}

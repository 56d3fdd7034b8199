//! What a handler did with its operation: what the engine has to know when the handler has ended.

use std::collections::BTreeSet;

use super::{Operation, Recalled};
use crate::{phase::Misuse, record::OpenEffect, store::Reservation};

/// Kept by the operation, read by the engine.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// A reply was written in a transaction of the handler's. Only the store knows whether that was
    /// committed.
    pub(crate) completed: bool,
    /// An effect that may have acted, and whose result is not saved.
    pub(crate) open_effect: Option<OpenEffect>,
    /// An attempt of a `single` route found that it is not the one to run.
    pub(crate) taken: Option<Taken>,
    /// A step was not made, because the attempt had lost its right. Whatever the handler makes of
    /// that, the operation has not come to its end.
    pub(crate) cut_short: bool,
    /// Something was committed in this generation.
    pub(crate) has_progress: bool,
    /// The handler said that it has sent nothing to anybody so far.
    pub(crate) unsent: bool,
    /// The steps that have a result, in this attempt.
    finished: BTreeSet<Box<str>>,
    at_work: Option<Step>,
}

/// What an attempt of a `single` route found in its way.
#[derive(Debug)]
pub(crate) enum Taken {
    /// A record.
    By(Reservation),
    /// Somebody's transaction, for longer than one waits.
    #[cfg_attr(
        not(any(feature = "sqlite", feature = "postgres", feature = "mysql")),
        expect(dead_code, reason = "only transactions use it")
    )]
    Locked,
}

/// The kinds of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    #[cfg_attr(
        not(any(feature = "sqlite", feature = "postgres", feature = "mysql")),
        expect(dead_code, reason = "only transactions use it")
    )]
    Phase,
    Effect,
}

impl Account {
    pub(super) fn after(recalled: &Recalled) -> Self {
        Account {
            has_progress: !recalled.saved.is_empty() || recalled.open_effect.is_some(),
            open_effect: recalled.open_effect.clone(),
            ..Account::default()
        }
    }

    fn begin(&mut self, step: Step, name: &str, is_saved: bool) -> Result<(), Misuse> {
        if self.finished.contains(name) {
            return Err(Misuse::NameUsedTwice);
        }
        match self.at_work {
            Some(Step::Phase) => return Err(Misuse::PhaseIsOpen),
            Some(Step::Effect) => return Err(Misuse::EffectIsOpen),
            None => {}
        }
        // What has its result does nothing. The very effect may be called again, if its downstream
        // can tell.
        let may_go_on = |open: &OpenEffect| {
            is_saved || step == Step::Effect && *open.name == *name && open.idempotent
        };
        if self.open_effect.as_ref().is_some_and(|open| !may_go_on(open)) {
            return Err(Misuse::EffectIsOpen);
        }
        self.at_work = Some(step);
        Ok(())
    }
}

/// A step at work, until it is dropped.
#[derive(Debug)]
pub(crate) struct AtWork<'a>(&'a Operation);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.account().at_work = None;
    }
}

impl Operation {
    /// Begins a step. Steps come one after the other, and each name has one result.
    pub(crate) fn begin_step(&self, step: Step, name: &str) -> Result<AtWork<'_>, Misuse> {
        self.account().begin(step, name, self.saved(name).is_some())?;
        Ok(AtWork(self))
    }

    /// Notes that the step of this name has its result.
    pub(crate) fn finish_step(&self, name: &str) {
        let mut account = self.account();
        account.has_progress = true;
        account.finished.insert(name.into());
        if account.open_effect.as_ref().is_some_and(|open| *open.name == *name) {
            account.open_effect = None;
        }
    }
}

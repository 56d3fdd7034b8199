//! A record moves: along the arrows of the state drawing, and only for who holds it.

use super::{
    Verdict, Violation,
    known::{Known, Story, Use, is_new_use},
};
use crate::history::{Cause, Stand, Subject};

/// What else must hold for an arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    /// The attempt that reserves has the record already.
    Mine,
    /// The lease is over, by the clock of the store.
    LeaseOver,
    /// The lease is over, and what ran under it cannot have acted.
    LeaseOverInVain,
    /// The retention is over, by the clock of the store.
    RetentionOver,
    /// The time of the tombstone is over too.
    TombstoneOver,
    /// Somebody has proof.
    Proof,
    /// Somebody has proof, and the lease is over.
    ProofAndLeaseOver,
}

/// Every way in which a record may change: from, to, by what, when.
const ARROWS: [(&str, &str, &str, When); 32] = [
    ("absent", "in_progress", "reserve", When::Always),
    ("absent", "pending", "reserve", When::Always),
    ("pending", "in_progress", "reserve", When::Always),
    ("failed_retryable", "in_progress", "reserve", When::Always),
    ("failed_retryable", "pending", "reserve", When::Always),
    ("in_progress", "in_progress", "reserve", When::Mine),
    ("in_progress", "in_progress", "reserve", When::LeaseOverInVain),
    ("in_progress", "pending", "reserve", When::LeaseOverInVain),
    ("in_progress", "failed_retryable", "reserve", When::LeaseOverInVain),
    ("in_progress", "unknown", "reserve", When::LeaseOver),
    // Past its retention a record may be taken before the reaper came.
    ("completed", "in_progress", "reserve", When::RetentionOver),
    ("completed", "pending", "reserve", When::RetentionOver),
    ("expired", "in_progress", "reserve", When::Always),
    ("expired", "pending", "reserve", When::Always),
    ("in_progress", "in_progress", "renew", When::Always),
    ("in_progress", "completed", "complete", When::Always),
    ("unknown", "completed", "complete", When::Always),
    ("in_progress", "failed_retryable", "release", When::Always),
    ("in_progress", "unknown", "mark_unknown", When::Always),
    ("in_progress", "unknown", "sweep", When::LeaseOver),
    ("in_progress", "failed_retryable", "sweep", When::LeaseOverInVain),
    ("completed", "expired", "reap", When::RetentionOver),
    ("failed_retryable", "expired", "reap", When::RetentionOver),
    ("completed", "absent", "reap", When::TombstoneOver),
    ("failed_retryable", "absent", "reap", When::TombstoneOver),
    ("expired", "absent", "reap", When::TombstoneOver),
    ("unknown", "completed", "resolve complete", When::Always),
    // It was said not to have acted, and did.
    ("failed_retryable", "completed", "resolve complete", When::Always),
    ("unknown", "failed_retryable", "resolve release", When::Proof),
    // Whoever resolves a record whose lease is over need not wait for the sweeper.
    ("in_progress", "completed", "resolve complete", When::LeaseOver),
    ("in_progress", "failed_retryable", "resolve release", When::ProofAndLeaseOver),
    ("completed", "expired", "resolve void", When::Always),
];

pub(super) fn check(
    known: &Known,
    subject: &Subject,
    from: Option<&Stand>,
    to: Option<&Stand>,
    cause: &Cause,
) -> Verdict {
    let moved = Moved { subject, from, to, cause };
    let story = known.story_of(subject);
    if let Some(left) = story.and_then(|story| story.stand.as_ref()) {
        moved.check_start(left.as_ref())?;
    }
    if matches!(cause, Cause::Lost) {
        return match known.durable() {
            true => moved.wrong("I6", "was lost by a durable store"),
            false => Ok(()),
        };
    }
    moved.check_holder()?;
    moved.check_fence(story.map_or(i64::MIN, |story| story.fence))?;
    moved.check_arrow()?;
    moved.check_again(known, story)?;
    moved.check_tombstone()?;
    moved.check_identity()
}

struct Moved<'a> {
    subject: &'a Subject,
    from: Option<&'a Stand>,
    to: Option<&'a Stand>,
    cause: &'a Cause,
}

impl Moved<'_> {
    fn wrong(&self, invariant: &'static str, why: &str) -> Verdict {
        let stand = |stand: Option<&Stand>| match stand {
            None => "absent".to_owned(),
            Some(Stand { state, generation, attempt, fence, .. }) => {
                format!("{state} (generation {generation}, {attempt}, fence {fence})")
            }
        };
        let (from, to) = (stand(self.from), stand(self.to));
        let what = format!("the record {why}: {from} -> {to}, by {}", self.by());
        Err(Violation::of(invariant, self.subject, what))
    }

    fn by(&self) -> String {
        match self.cause {
            Cause::Reserve { attempt, .. } => format!("reserve of {attempt}"),
            Cause::Write { write, attempt, fence } => {
                format!("{write} of {attempt} with fence {fence}")
            }
            Cause::Sweep { .. } => "sweep".to_owned(),
            Cause::Reap { .. } => "reap".to_owned(),
            Cause::Resolve { resolution, .. } => format!("resolve {resolution}"),
            Cause::Lost => "loss".to_owned(),
        }
    }

    /// Every change is told, so that the next begins where the last one ended.
    fn check_start(&self, left: Option<&Stand>) -> Verdict {
        let same = match (left, self.from) {
            (None, None) => true,
            (Some(left), Some(from)) => {
                left.state == from.state
                    && left.generation == from.generation
                    && left.fence == from.fence
                    && left.attempt == from.attempt
            }
            _ => false,
        };
        match same {
            true => Ok(()),
            false => self.wrong("FORM", &format!("was left {} and moves", state(left))),
        }
    }

    /// I3: a write counts only under the attempt and fence of the record, and never after the end.
    fn check_holder(&self) -> Verdict {
        match (self.cause, self.from) {
            (Cause::Write { attempt, fence, .. }, Some(from)) => {
                if from.attempt != *attempt || from.fence != *fence {
                    return self.wrong("I3", "was changed by an attempt that does not hold it");
                }
                if from.state == "completed" {
                    return self.wrong("I3", "was changed after it was completed");
                }
                let keeps = |to: &Stand| {
                    to.attempt == from.attempt
                        && to.fence == from.fence
                        && to.generation == from.generation
                };
                match self.to {
                    Some(to) if !keeps(to) => self.wrong("I3", "changed hands in a write"),
                    _ => Ok(()),
                }
            }
            (Cause::Write { .. }, None) => self.wrong("I3", "was made by a write"),
            (Cause::Resolve { fence, .. }, Some(from)) if from.fence != *fence => {
                self.wrong("I3", "was resolved by somebody who had looked at another attempt")
            }
            (Cause::Reserve { attempt, .. }, _) => match self.to {
                Some(to) if self.is_grant() && to.attempt != *attempt => {
                    self.wrong("I3", "was granted to another attempt than the one that asked")
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// I3: fences only grow, and each grant has its own.
    fn check_fence(&self, highest: i64) -> Verdict {
        let Some(to) = self.to else { return Ok(()) };
        if to.fence < highest {
            return self.wrong("I3", &format!("went below fence {highest}"));
        }
        if self.is_grant() && to.fence == highest {
            return self.wrong("I3", "was granted with a fence that was used before");
        }
        Ok(())
    }

    /// Whether an attempt gets the record that did not have it.
    fn is_grant(&self) -> bool {
        let Some(to) = self.to else { return false };
        let again = self.from.is_some_and(|from| {
            from.state == to.state && from.attempt == to.attempt && !self.is_new_use()
        });
        matches!(&*to.state, "in_progress" | "pending") && !again
    }

    fn is_new_use(&self) -> bool {
        match (self.from, self.to) {
            (Some(from), Some(to)) => is_new_use(from, to, self.cause),
            _ => false,
        }
    }

    /// I4, and I6 where a reply is at stake.
    fn check_arrow(&self) -> Verdict {
        let (from, to) = (state(self.from), state(self.to));
        let word = match self.cause {
            Cause::Reserve { .. } => "reserve",
            Cause::Write { write, .. } => write,
            Cause::Sweep { .. } => "sweep",
            Cause::Reap { .. } => "reap",
            Cause::Resolve { resolution, .. } => match &**resolution {
                "complete" => "resolve complete",
                "release" => "resolve release",
                "void" => "resolve void",
                other => other,
            },
            Cause::Lost => "loss",
        };
        let mut arrows =
            ARROWS.iter().filter(|arrow| (arrow.0, arrow.1, arrow.2) == (from, to, word));
        if arrows.any(|(.., when)| self.holds(*when)) {
            return Ok(());
        }
        if from == "completed" {
            return self.wrong("I6", "gave up its reply before its time");
        }
        self.wrong("I4", "went where no arrow leads")
    }

    fn holds(&self, when: When) -> bool {
        let Some(from) = self.from else { return when == When::Always };
        let now = match self.cause {
            Cause::Reserve { now, .. } | Cause::Sweep { now } | Cause::Reap { now } => *now,
            Cause::Resolve { now, .. } => *now,
            Cause::Write { .. } | Cause::Lost => i64::MIN,
        };
        let lease_over = from.lease_until <= now;
        let proof = matches!(self.cause, Cause::Resolve { proof: Some(_), .. });
        match when {
            When::Always => true,
            When::Mine => self.to.is_some_and(|to| {
                to.attempt == from.attempt
                    && to.fence == from.fence
                    && to.generation == from.generation
            }),
            When::LeaseOver => lease_over,
            When::LeaseOverInVain => {
                lease_over && !matches!(&*from.effects, "external" | "undeclared")
            }
            When::RetentionOver => from.expires_at <= now,
            When::TombstoneOver => from.purge_at <= now,
            When::Proof => proof,
            When::ProofAndLeaseOver => proof && lease_over,
        }
    }

    /// I4: a tombstone says how it ended, and keeps nothing else of the reply.
    fn check_tombstone(&self) -> Verdict {
        let (Some(from), Some(to)) = (self.from, self.to) else { return Ok(()) };
        let kept = from.reply.is_some() && to.reply == from.reply;
        match from.state != "expired" && to.state == "expired" && kept {
            true => self.wrong("I4", "expired and kept its reply"),
            false => Ok(()),
        }
    }

    /// I6: where an expired key stays taken, it is used again only if nothing stands behind it.
    fn check_again(&self, known: &Known, story: Option<&Story>) -> Verdict {
        let (Some(from), Some(story)) = (self.from, story) else { return Ok(()) };
        let stays = known.rules_for(story).is_some_and(|rules| !rules.expired_runs_again);
        let stands = story.use_now(from.generation).is_some_and(Use::stands);
        let again = self.is_new_use() && !self.holds(When::TombstoneOver);
        match again && stays && stands && !story.lost {
            true => self.wrong("I6", "was used again, though its key stays taken"),
            false => Ok(()),
        }
    }

    /// I9: what a record is for changes only with a new use, and then so does its generation.
    fn check_identity(&self) -> Verdict {
        let (Some(from), Some(to)) = (self.from, self.to) else { return Ok(()) };
        if self.is_new_use() {
            let next = to.generation == from.generation.saturating_add(1);
            let anew = to.generation == 1 && self.holds(When::TombstoneOver);
            return match next || anew {
                true => Ok(()),
                false => self.wrong("I3", "was used again without the next generation"),
            };
        }
        if to.generation != from.generation {
            return self.wrong("I3", "changed its generation without a new use");
        }
        if to.fingerprint != from.fingerprint {
            return self.wrong("I9", "was changed by another request");
        }
        Ok(())
    }
}

fn state(stand: Option<&Stand>) -> &str {
    stand.map_or("absent", |stand| &stand.state)
}

//! A record moves: along the arrows of the state drawing, and only for who holds it.

use super::{
    Verdict, Violation,
    known::{Known, Story, Use, is_new_use},
    once::given_back,
};
use crate::history::{Cause, Stand, Subject};

/// What else must hold for an arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// The attempt that asks has the record already.
    Mine,
    /// The lease is over, by the clock of the store; of pending work, it is due.
    LeaseOver,
    /// What ran under the lease cannot have acted.
    InVain,
    /// It is made in steps, and the next may be made.
    GoesOn,
    /// A step may have acted that must not be made again.
    Stuck,
    /// No step was made.
    NoSteps,
    /// It was accepted for later.
    Queued,
    /// It was not.
    NotQueued,
    /// The time is over for which it may wait.
    QueueOver,
    /// The retention is over, by the clock of the store.
    RetentionOver,
    /// The time of the tombstone is over too.
    TombstoneOver,
    /// Somebody should ask what became of it, by the clock of the store.
    Due,
    /// It stays with the attempt that has it.
    SameAttempt,
    /// Somebody has proof.
    Proof,
    /// Somebody said that it did not act, and nobody has taken it since.
    Denied,
}

use When::{
    Denied, Due, GoesOn, InVain, LeaseOver, Mine, NoSteps, NotQueued, Proof, QueueOver, Queued,
    RetentionOver, SameAttempt, Stuck, TombstoneOver,
};

/// Every way in which a record may change: from, to, by what, when.
const ARROWS: [(&str, &str, &str, &[When]); 59] = [
    ("absent", "in_progress", "reserve", &[]),
    ("absent", "pending", "reserve", &[]),
    ("failed_retryable", "in_progress", "reserve", &[]),
    ("failed_retryable", "pending", "reserve", &[]),
    ("in_progress", "in_progress", "reserve", &[Mine]),
    ("in_progress", "in_progress", "reserve", &[LeaseOver, InVain]),
    ("in_progress", "in_progress", "reserve", &[LeaseOver, GoesOn]),
    ("in_progress", "pending", "reserve", &[LeaseOver, InVain]),
    ("in_progress", "failed_retryable", "reserve", &[LeaseOver, InVain, NotQueued]),
    ("in_progress", "unknown", "reserve", &[LeaseOver]),
    // Past its retention a record may be taken before the reaper came.
    ("completed", "in_progress", "reserve", &[RetentionOver]),
    ("completed", "pending", "reserve", &[RetentionOver]),
    ("expired", "in_progress", "reserve", &[]),
    ("expired", "pending", "reserve", &[]),
    ("pending", "in_progress", "claim", &[LeaseOver]),
    ("in_progress", "in_progress", "claim", &[Mine]),
    ("in_progress", "in_progress", "claim", &[LeaseOver, GoesOn]),
    ("in_progress", "in_progress", "renew", &[]),
    ("in_progress", "in_progress", "intend", &[]),
    ("in_progress", "in_progress", "save", &[]),
    ("in_progress", "in_progress", "withdraw", &[]),
    ("in_progress", "completed", "complete", &[]),
    ("unknown", "completed", "complete", &[]),
    // It was said not to have acted, and did, and comes before anybody runs it again.
    ("failed_retryable", "completed", "complete", &[Denied]),
    ("pending", "completed", "complete", &[Denied]),
    ("in_progress", "failed_retryable", "release", &[NotQueued, NoSteps]),
    ("in_progress", "pending", "release", &[Queued, NoSteps]),
    ("in_progress", "in_progress", "release", &[GoesOn]),
    ("in_progress", "unknown", "release", &[Stuck]),
    ("in_progress", "unknown", "mark_unknown", &[]),
    ("in_progress", "unknown", "sweep", &[LeaseOver]),
    ("in_progress", "failed_retryable", "sweep", &[LeaseOver, InVain, NotQueued]),
    ("in_progress", "pending", "sweep", &[LeaseOver, InVain, Queued]),
    ("completed", "expired", "reap", &[RetentionOver]),
    ("failed_retryable", "expired", "reap", &[RetentionOver]),
    ("completed", "absent", "reap", &[TombstoneOver]),
    ("failed_retryable", "absent", "reap", &[TombstoneOver]),
    ("expired", "absent", "reap", &[TombstoneOver]),
    // Somebody asks what became of it, learns something or nothing, gives up, and is sent again.
    ("unknown", "unknown", "ask", &[Due]),
    ("unknown", "unknown", "absent", &[]),
    ("unknown", "unknown", "dead_letter", &[]),
    ("unknown", "unknown", "redrive", &[]),
    ("unknown", "completed", "executed", &[SameAttempt]),
    ("in_progress", "completed", "executed", &[SameAttempt, LeaseOver]),
    // It was said not to have acted, and did. Whoever came after it is at rest.
    ("failed_retryable", "completed", "executed", &[]),
    ("pending", "completed", "executed", &[]),
    ("unknown", "completed", "resolve complete", &[]),
    // It was said not to have acted, and did.
    ("failed_retryable", "completed", "resolve complete", &[]),
    ("unknown", "failed_retryable", "resolve release", &[Proof, NotQueued, NoSteps]),
    ("unknown", "pending", "resolve release", &[Proof, Queued, NoSteps]),
    ("unknown", "in_progress", "resolve release", &[Proof, GoesOn]),
    ("unknown", "in_progress", "resolve release", &[Proof, Stuck]),
    // Whoever resolves a record whose lease is over need not wait for the sweeper.
    ("in_progress", "completed", "resolve complete", &[LeaseOver]),
    ("in_progress", "failed_retryable", "resolve release", &[Proof, LeaseOver, NotQueued, NoSteps]),
    ("in_progress", "pending", "resolve release", &[Proof, LeaseOver, Queued, NoSteps]),
    ("in_progress", "in_progress", "resolve release", &[Proof, LeaseOver, Stuck]),
    // Nobody has begun, or whoever did has not acted.
    ("pending", "completed", "resolve complete", &[]),
    ("pending", "completed", "resolve give_up", &[QueueOver]),
    ("completed", "expired", "resolve void", &[]),
];

pub(super) fn check(
    known: &Known,
    subject: &Subject,
    from: Option<&Stand>,
    to: Option<&Stand>,
    cause: &Cause,
) -> Verdict {
    let story = known.story_of(subject);
    let denied = story.is_some_and(|story| story.denied);
    let moved = Moved { subject, from, to, cause, denied };
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
    moved.check_given_back(known, story)?;
    moved.check_ticket()?;
    moved.check_again(known, story)?;
    moved.check_tombstone()?;
    moved.check_identity()
}

struct Moved<'a> {
    subject: &'a Subject,
    from: Option<&'a Stand>,
    to: Option<&'a Stand>,
    cause: &'a Cause,
    /// Whether the last thing that happened to it is that somebody said that it did not act.
    denied: bool,
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
            Cause::Claim { attempt, fence, .. } => format!("claim of {attempt} at fence {fence}"),
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
            // What is said of an attempt stays true after others have come and gone.
            (Cause::Resolve { resolution, .. }, Some(from))
                if resolution == "executed" && from.state != "unknown" =>
            {
                Ok(())
            }
            (Cause::Resolve { fence, .. }, Some(from)) if from.fence != *fence => {
                self.wrong("I3", "was resolved by somebody who had looked at another attempt")
            }
            (Cause::Claim { fence, .. }, Some(from))
                if from.fence != *fence && !self.holds(Mine) =>
            {
                self.wrong("I3", "was claimed by somebody who had looked at another attempt")
            }
            (Cause::Claim { .. }, None) => self.wrong("I3", "was made by a claim"),
            (Cause::Reserve { attempt, .. } | Cause::Claim { attempt, .. }, _) => match self.to {
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
        if !matches!(self.cause, Cause::Reserve { .. } | Cause::Claim { .. }) {
            return false;
        }
        let again = self.from.is_some_and(|from| {
            from.state == to.state && from.attempt == to.attempt && !self.is_new_use()
        });
        // A lease that is found to be over may leave it pending, for nobody yet.
        let kept = self.from.is_some_and(|from| from.attempt == to.attempt);
        match &*to.state {
            "in_progress" => !again,
            "pending" => !kept,
            _ => false,
        }
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
            Cause::Claim { .. } => "claim",
            Cause::Sweep { .. } => "sweep",
            Cause::Reap { .. } => "reap",
            Cause::Resolve { resolution, .. } => match &**resolution {
                "give_up" => "resolve give_up",
                "complete" => "resolve complete",
                "release" => "resolve release",
                "void" => "resolve void",
                other => other,
            },
            Cause::Lost => "loss",
        };
        let mut arrows =
            ARROWS.iter().filter(|arrow| (arrow.0, arrow.1, arrow.2) == (from, to, word));
        if arrows.any(|(.., when)| when.iter().all(|when| self.holds(*when))) {
            return Ok(());
        }
        if matches!(self.cause, Cause::Reap { .. }) {
            return self.wrong("I11", "was reaped before its time");
        }
        if from == "completed" {
            return self.wrong("I6", "gave up its reply before its time");
        }
        self.wrong("I4", "went where no arrow leads")
    }

    fn holds(&self, when: When) -> bool {
        let Some(from) = self.from else { return false };
        let now = match self.cause {
            Cause::Reserve { now, .. }
            | Cause::Claim { now, .. }
            | Cause::Sweep { now }
            | Cause::Reap { now } => *now,
            Cause::Resolve { now, .. } => *now,
            Cause::Write { .. } | Cause::Lost => i64::MIN,
        };
        let open = &from.open;
        match when {
            Mine => self.to.is_some_and(|to| {
                to.attempt == from.attempt
                    && to.fence == from.fence
                    && to.generation == from.generation
            }),
            LeaseOver => from.lease_until <= now,
            InVain => matches!(&*from.effects, "none" | "local") && !open.has_progress(),
            GoesOn => (from.effects == "phased" || open.has_progress()) && !open.must_not_go_on,
            Stuck => open.must_not_go_on,
            NoSteps => !open.has_progress(),
            Queued => open.queued_until.is_some(),
            NotQueued => open.queued_until.is_none(),
            QueueOver => open.queued_until.is_some_and(|until| until <= now),
            RetentionOver => from.expires_at <= now,
            TombstoneOver => from.purge_at <= now,
            Due => open.reconcile_after.is_some_and(|due| due <= now),
            SameAttempt => self.to.is_some_and(|to| to.attempt == from.attempt),
            Proof => matches!(self.cause, Cause::Resolve { proof: Some(_), .. }),
            Denied => self.denied,
        }
    }

    /// I1: what has acted is not given back as if it had not.
    fn check_given_back(&self, known: &Known, story: Option<&Story>) -> Verdict {
        let (Some(from), Some(to), Some(story)) = (self.from, self.to, story) else {
            return Ok(());
        };
        let began = matches!(&*from.state, "in_progress" | "unknown");
        if !began || !matches!(&*to.state, "failed_retryable" | "pending") {
            return Ok(());
        }
        let used = story.use_now(from.generation);
        match used.and_then(|used| given_back(known, story, used)) {
            Some(call) => self.wrong("I1", &format!("was given back, though call {call} acted")),
            None => Ok(()),
        }
    }

    /// I8: whatever is unknown is known as such to whoever finds out.
    fn check_ticket(&self) -> Verdict {
        match self.to {
            Some(to) if to.state == "unknown" && to.open.reconcile_after.is_none() => {
                self.wrong("I8", "became unknown, and nobody is told to find out")
            }
            _ => Ok(()),
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
        let again = self.is_new_use() && !self.holds(TombstoneOver);
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
            let anew = to.generation == 1 && self.holds(TombstoneOver);
            return match next || anew {
                true => Ok(()),
                false => self.wrong("I11", "was used again without the next generation"),
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

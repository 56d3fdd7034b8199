//! The state of a world, in canonical form: times are relative to now and end where nothing can
//! depend on them any more, old fences are numbered by their order, attempts that differ in their
//! names only are sorted. So the clock needs no end: what comes later looks like what was before.

use onceward::record::{Effects, State as RecordState};

/// How many attempts a world has at most.
pub(super) const ATTEMPTS: usize = 3;

/// A time in ticks, relative to now.
pub(super) type Ticks = i8;

/// A retention that does not end.
pub(super) const NEVER: Ticks = Ticks::MAX;

/// A fence, relative to now in microseconds. Those of ticks gone by are -1, -2 and so on, by their
/// order: the rules compare fences, and take the time if it is larger.
pub(super) type FenceNo = i8;

/// More grants than one tick can see.
const FENCES_PER_TICK: FenceNo = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) record: Option<Stored>,
    pub(super) attempts: [Attempt; ATTEMPTS],
    pub(super) reconciler: Reconciler,
    /// How many generations there were, purged ones too.
    pub(super) uses: u8,
    /// The largest fence that was ever granted.
    pub(super) fence_max: Option<FenceNo>,
}

/// The record. What the rules never read (who created it when, error codes, the path) is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stored {
    pub(super) state: RecordState,
    pub(super) asks: u8,
    pub(super) generation: u8,
    pub(super) attempt: Name,
    pub(super) fence: FenceNo,
    pub(super) effects: Effects,
    pub(super) lease_until: Ticks,
    pub(super) expires_at: Ticks,
    pub(super) reply: Option<Answer>,
    pub(super) has_ticket: bool,
    pub(super) void: bool,
    /// Whether it was accepted for later.
    pub(super) queued: bool,
    /// Whether somebody said that its last attempt did not act, and nobody has taken it since.
    pub(super) denied: bool,
    /// Which use of the key it is, counted over purges: known to the model only.
    pub(super) use_no: u8,
}

/// The random id of an attempt: whose it is, and which one, since an attempt that makes a new one
/// for every call is a mistake that can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) slot: u8,
    pub(super) nonce: u8,
}

/// A stored reply: whose work it tells of, or that it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Answer {
    Of(u8),
    Gone,
}

/// What comes to the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Role {
    /// Nothing: the world has fewer attempts.
    Absent,
    /// A request that executes.
    Request,
    /// A request that is accepted for later.
    Accepts,
    /// A worker that claims what was accepted.
    Claims,
}

/// One attempt, and the call it makes to upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Attempt {
    pub(super) role: Role,
    /// What is asked: equal numbers are equal fingerprints.
    pub(super) asks: u8,
    pub(super) nonce: u8,
    pub(super) phase: Phase,
    /// How long it may still call upstream, by its own clock.
    pub(super) left: Ticks,
    pub(super) lease: Option<Held>,
    /// Copies of its messages that may reach the store at any time.
    pub(super) sent: Sent,
    pub(super) call: Call,
    /// Upstream answered with a status after which the same request may run again.
    pub(super) rerunnable: bool,
}

/// Where an attempt stands in the engine's story.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Phase {
    Idle,
    /// Reserves, and repeats it until it is answered.
    Asking,
    /// The client was told 503; what may have been granted is taken back.
    Withdrawing,
    /// Has the lease, has not called upstream.
    Holding,
    /// Has called upstream.
    Working,
    /// Writes how it ended, and repeats it until it is answered.
    Writing(Ending),
    /// Marked unknown for taking too long; its handler still runs.
    Late,
    /// Resolves its own outcome: it never called.
    GivingBack,
    Done,
    Dead,
}

/// What an attempt writes at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Ending {
    Complete,
    /// The handler answered after all.
    CompleteLate,
    /// Nothing was sent: the answer is our own.
    Release,
    /// Upstream answered with a status that is declared re-runnable.
    ReleaseAnswered,
    ReleaseWithdrawn,
    Unknown,
    /// The handler goes on meanwhile.
    UnknownLate,
}

/// What a granted attempt knows of its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Held {
    pub(super) fence: FenceNo,
    pub(super) generation: u8,
    pub(super) use_no: u8,
}

/// Upstream's side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Call {
    None,
    /// May act within so many ticks.
    Underway(Ticks),
    /// Has acted; a probe may miss it for so many ticks.
    Acted(Ticks),
    /// Will never act.
    Over,
}

/// A set of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Sent(u8);

/// A message of an attempt to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Reserve,
    Renew,
    Complete,
    Release,
    MarkUnknown,
    GiveBack,
}

impl Message {
    pub(super) const ALL: [Message; 6] = [
        Message::Reserve,
        Message::Renew,
        Message::Complete,
        Message::Release,
        Message::MarkUnknown,
        Message::GiveBack,
    ];
}

impl Sent {
    pub(super) fn has(self, message: Message) -> bool {
        self.0 & (1 << (message as u8)) != 0
    }

    pub(super) fn add(&mut self, message: Message) {
        self.0 |= 1 << (message as u8);
    }

    pub(super) fn keep_only(&mut self, message: Message) {
        self.0 &= 1 << (message as u8);
    }

    fn without(mut self, message: Message) -> Sent {
        self.remove(message);
        self
    }

    pub(super) fn remove(&mut self, message: Message) {
        self.0 &= !(1 << (message as u8));
    }
}

/// What the reconciler has found out about the record it looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reconciler {
    Idle,
    /// A first probe found nothing.
    Probed {
        of: Looked,
        first: Ticks,
    },
    /// It decided, and its word may reach the store at any time.
    Decided {
        of: Looked,
        verdict: Verdict,
    },
}

/// The record that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Looked {
    pub(super) fence: FenceNo,
    pub(super) generation: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verdict {
    /// This attempt acted.
    Completed(u8),
    /// Two probes found nothing.
    NotExecuted { first: Ticks, second: Ticks },
}

/// A reconciler does not go by what it saw longer ago than this.
pub(super) const PROBE_KEPT: Ticks = 3;

impl Attempt {
    pub(super) const fn new(role: Role, asks: u8) -> Self {
        Attempt {
            role,
            asks,
            nonce: 0,
            phase: Phase::Idle,
            left: 0,
            lease: None,
            sent: Sent(0),
            call: Call::None,
            rerunnable: false,
        }
    }

    pub(super) fn has_acted(&self) -> bool {
        matches!(self.call, Call::Acted(_))
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::Done | Phase::Dead)
    }
}

impl State {
    /// One tick later. Relative times move, and end where nothing depends on them any more.
    pub(super) fn tick(&mut self, lease_floor: Ticks, expiry_floor: Ticks) {
        if let Some(record) = &mut self.record {
            record.lease_until = (record.lease_until - 1).max(lease_floor);
            if record.expires_at != NEVER {
                record.expires_at = (record.expires_at - 1).max(expiry_floor);
            }
        }
        for attempt in &mut self.attempts {
            attempt.left = (attempt.left - 1).max(0);
            attempt.call = match attempt.call {
                Call::Underway(0) => Call::Over,
                Call::Underway(left) => Call::Underway(left - 1),
                Call::Acted(fresh) => Call::Acted((fresh - 1).max(0)),
                call => call,
            };
        }
        self.reconciler = match self.reconciler {
            Reconciler::Probed { of, first } if first > -PROBE_KEPT => {
                Reconciler::Probed { of, first: first - 1 }
            }
            Reconciler::Decided { of, verdict: Verdict::NotExecuted { first, second } }
                if first > -PROBE_KEPT =>
            {
                let verdict = Verdict::NotExecuted { first: first - 1, second: second - 1 };
                Reconciler::Decided { of, verdict }
            }
            completed @ Reconciler::Decided { verdict: Verdict::Completed(_), .. } => completed,
            _ => Reconciler::Idle,
        };
        self.clock_moves();
    }

    /// The clock is past every fence that was granted. It moves with a tick, and before a purge:
    /// between a grant and the purge of its record lies more than a microsecond, see ADR 0005.
    pub(super) fn clock_moves(&mut self) {
        self.each_fence(|fence| *fence -= FENCES_PER_TICK);
        self.number_fences();
    }

    /// Forgets what no step can depend on any more.
    pub(super) fn forget(&mut self) {
        for attempt in &mut self.attempts {
            let may_act = matches!(attempt.call, Call::Underway(_));
            let writes = attempt.sent.without(Message::Reserve) != Sent::default();
            if attempt.is_over() && !may_act && !attempt.has_acted() && !writes {
                attempt.lease = None;
                attempt.call = Call::None;
                attempt.rerunnable = false;
            }
        }
    }

    /// Numbers the fences of ticks gone by in their order.
    pub(super) fn number_fences(&mut self) {
        let mut old = [0; ATTEMPTS + 3];
        let mut count = 0;
        self.each_fence(|fence| {
            if *fence < 0 && !old[..count].contains(fence) {
                old[count] = *fence;
                count += 1;
            }
        });
        let old = &mut old[..count];
        old.sort_unstable_by(|one, other| other.cmp(one));
        self.each_fence(|fence| {
            let place = old.iter().position(|known| known == fence);
            if let Some(place) = place {
                *fence = -(place as FenceNo) - 1;
            }
        });
    }

    fn each_fence(&mut self, mut change: impl FnMut(&mut FenceNo)) {
        self.record.iter_mut().for_each(|record| change(&mut record.fence));
        let leases = self.attempts.iter_mut().filter_map(|attempt| attempt.lease.as_mut());
        leases.for_each(|lease| change(&mut lease.fence));
        self.fence_max.iter_mut().for_each(&mut change);
        if let Reconciler::Probed { of, .. } | Reconciler::Decided { of, .. } = &mut self.reconciler
        {
            change(&mut of.fence);
        }
    }

    /// The same state with its attempts sorted.
    pub(super) fn sorted(&self) -> State {
        let mut order: [usize; ATTEMPTS] = std::array::from_fn(|slot| slot);
        let named = self.record.map(|record| (usize::from(record.attempt.slot), record.reply));
        let key = |slot: &usize| {
            let owns = named.is_some_and(|(owner, _)| owner == *slot);
            let told = named.is_some_and(|(_, reply)| reply == Some(Answer::Of(*slot as u8)));
            (self.attempts[*slot], owns, told)
        };
        order.sort_unstable_by_key(key);
        if order.is_sorted() {
            return *self;
        }
        let renamed = |slot: u8| {
            let place = order.iter().position(|old| *old == usize::from(slot));
            place.unwrap_or_default() as u8
        };
        let mut sorted = *self;
        sorted.attempts = order.map(|slot| self.attempts[slot]);
        if let Some(record) = &mut sorted.record {
            record.attempt.slot = renamed(record.attempt.slot);
            if let Some(Answer::Of(slot)) = &mut record.reply {
                *slot = renamed(*slot);
            }
        }
        if let Reconciler::Decided { verdict: Verdict::Completed(slot), .. } =
            &mut sorted.reconciler
        {
            *slot = renamed(*slot);
        }
        sorted
    }
}

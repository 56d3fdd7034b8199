//! All processes of a run, and what is done to them: at random moments, and at chosen ones.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use onceward_testbed::CutProxy;

use super::{
    gateway::{Gateway, Starting, stored_state},
    left::Edge,
    record::Recorder,
};
use crate::history::Subject;

/// A moment that does not come within this is given up.
const MOMENT_MAX: Duration = Duration::from_secs(10);

/// A request that does not come to its edge within this is let go. Another one may.
const EDGE_MAX: Duration = Duration::from_millis(300);

/// Longer than anything is held up.
const HELD: Duration = Duration::from_secs(60);

/// What is done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blow {
    /// SIGKILL, and a new process.
    Kill,
    /// SIGSTOP for longer than the lease, then SIGCONT.
    Stop(Duration),
}

/// When it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Whenever.
    Any,
    /// Right after a client sent a request: around reserve and dispatch.
    Asked,
    /// Upstream got a call and did not act yet.
    Called,
    /// Upstream acted and did not answer yet.
    Acted,
    /// Upstream answered: around complete.
    Replied,
    /// A client got an answer: what it was told must hold.
    Answered,
}

impl Moment {
    pub(super) const ALL: [Moment; 6] = [
        Moment::Any,
        Moment::Asked,
        Moment::Called,
        Moment::Acted,
        Moment::Replied,
        Moment::Answered,
    ];

    fn name(self) -> &'static str {
        match self {
            Moment::Any => "any",
            Moment::Asked => "asked",
            Moment::Called => "called",
            Moment::Acted => "acted",
            Moment::Replied => "replied",
            Moment::Answered => "answered",
        }
    }
}

/// The stable word of a fault of a process.
pub(super) fn fault_kind(blow: Blow, moment: Moment) -> String {
    let blow = if blow == Blow::Kill { "kill" } else { "stop" };
    format!("{blow}_{}", moment.name())
}

/// A blow that waits for its moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Strike {
    pub(super) blow: Blow,
    pub(super) moment: Moment,
    /// How long after the moment it strikes. Without, everything waits for it.
    pub(super) later: Option<Duration>,
    /// It strikes only where it leaves a request at this edge, at which it is held up if need be.
    pub(super) leaves: Option<Edge>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Trapping {
    Idle,
    Set(Strike),
    /// Its moment has come.
    Springs,
}

pub(super) struct Fleet {
    starting: Starting,
    record: Arc<Recorder>,
    slots: Vec<Slot>,
    trap: Mutex<Trapping>,
    /// Told when a trap was sprung, or was not.
    sprung: Condvar,
    spared: AtomicBool,
}

/// The place of one process after the other.
struct Slot {
    state: Mutex<State>,
    /// Where clients connect, whichever process is there.
    entrance: CutProxy,
    /// Where it connects itself.
    exit: CutProxy,
    /// The path tells upstream who calls.
    upstream: String,
}

#[derive(Default)]
struct State {
    gateway: Option<Gateway>,
    stopped: bool,
    /// How many processes there were.
    generation: u64,
}

impl Fleet {
    /// Slots, each with the proxies before and behind it. Nothing is started.
    pub(super) fn new(
        starting: Starting,
        record: Arc<Recorder>,
        slots: Vec<[CutProxy; 2]>,
    ) -> Arc<Fleet> {
        let slots = slots.into_iter().enumerate().map(|(number, [entrance, exit])| {
            let upstream = format!("http://{}/{number}", exit.address());
            Slot { state: Mutex::default(), entrance, exit, upstream }
        });
        let slots = slots.collect();
        let trap = Mutex::new(Trapping::Idle);
        let (sprung, spared) = (Condvar::new(), AtomicBool::new(false));
        Arc::new(Fleet { starting, record, slots, trap, sprung, spared })
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The way in to a slot.
    pub(super) fn entrance(&self, slot: usize) -> &CutProxy {
        &self.slots[slot].entrance
    }

    /// Starts a process wherever there is none.
    pub(super) fn start_missing(&self) -> Result<()> {
        for slot in &self.slots {
            let mut state = slot.lock();
            if state.gateway.is_none() {
                let gateway = self.starting.start(&slot.upstream)?;
                slot.entrance.lead_to(Some(gateway.address));
                *state = State {
                    gateway: Some(gateway),
                    stopped: false,
                    generation: state.generation + 1,
                };
            }
        }
        Ok(())
    }

    /// Ends all processes, also those that are stopped. No blow falls from now on.
    pub(super) fn kill_all(&self) -> Result<()> {
        self.spared.store(true, SeqCst);
        let killed = self.slots.iter().map(|slot| slot.kill(&mut slot.lock()));
        // All of them, whatever becomes of one.
        killed.fold(Ok(()), Result::and)
    }

    /// Strikes a process at this moment: this one, or the next that runs, if any moment will do;
    /// else the first that comes to it. Waits for the moment, but not for ever; says whether it
    /// came.
    pub(super) fn strike(self: &Arc<Self>, slot: usize, strike: Strike) -> bool {
        if strike.moment == Moment::Any {
            let give_up = Instant::now() + MOMENT_MAX;
            let slots = (0..self.len()).cycle().skip(slot);
            for slot in slots.take_while(|_| Instant::now() < give_up) {
                if self.deal(slot, strike, None) {
                    return true;
                }
                thread::sleep(Duration::from_millis(10));
            }
            return false;
        }
        let mut trap = self.trap();
        *trap = Trapping::Set(strike);
        let waits = |trap: &mut Trapping| *trap != Trapping::Idle;
        let waited = self.sprung.wait_timeout_while(trap, MOMENT_MAX, waits);
        trap = waited.unwrap_or_else(PoisonError::into_inner).0;
        std::mem::replace(&mut *trap, Trapping::Idle) == Trapping::Idle
    }

    /// This is such a moment, for the process of this slot and a request about this key.
    pub(super) fn at(self: &Arc<Self>, moment: Moment, slot: usize, subject: &Subject) {
        let set = {
            let mut trap = self.trap();
            let Trapping::Set(set) = *trap else { return };
            let fits = set.leaves.is_none() || self.record.seen_of(subject, slot).is_some();
            if set.moment != moment || !fits {
                return;
            }
            *trap = Trapping::Springs;
            set
        };
        let aim = set.leaves.map(|edge| (subject.clone(), edge));
        let held = set.leaves.and_then(|edge| self.slots[slot].held_at(edge)).cloned();
        if let Some(held) = &held {
            held.delay(HELD);
        }
        let fleet = Arc::clone(self);
        let spring = move || {
            thread::sleep(set.later.unwrap_or_default());
            let dealt = fleet.deal_in_time(slot, set, aim.as_ref());
            if let Some(held) = held {
                held.delay(Duration::ZERO);
                // What was held up never arrives.
                held.cut();
            }
            // Another process may be better to strike.
            *fleet.trap() = if dealt { Trapping::Idle } else { Trapping::Set(set) };
            fleet.sprung.notify_all();
        };
        match set.later {
            None => spring(),
            Some(_) => drop(thread::spawn(spring)),
        }
    }

    /// Strikes at once; or, with an aim, as soon as the request has come to its edge, if it comes there
    /// soon.
    fn deal_in_time(
        self: &Arc<Self>,
        slot: usize,
        strike: Strike,
        aim: Option<&(Subject, Edge)>,
    ) -> bool {
        let give_up = Instant::now() + EDGE_MAX;
        loop {
            if self.deal(slot, strike, aim) {
                return true;
            }
            let Some((subject, _)) = aim else { return false };
            if self.record.seen_of(subject, slot).is_none() || Instant::now() > give_up {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether the process was struck: one that is stopped or being started is left alone.
    fn deal(self: &Arc<Self>, slot: usize, strike: Strike, aim: Option<&(Subject, Edge)>) -> bool {
        let of = &self.slots[slot];
        let Ok(mut state) = of.state.try_lock() else { return false };
        if state.gateway.is_none() || state.stopped || self.spared.load(SeqCst) {
            return false;
        }
        // Nobody asks anew until it is known what is left.
        let hush = self.record.hush();
        if aim.is_some_and(|(subject, edge)| !self.is_at(slot, subject, *edge)) {
            return false;
        }
        let Strike { blow, moment, .. } = strike;
        self.record.fault(&fault_kind(blow, moment), &format!("gateway {slot}"));
        let dealt = match blow {
            Blow::Kill => {
                let mut waiting = self.record.waiting_at(slot);
                // Also if its client has given up just now.
                waiting.extend(aim.map(|(subject, _)| subject.clone()));
                let killed = of.kill(&mut state);
                for subject in waiting {
                    if let Some(stored) = self.stored(slot, &subject) {
                        self.record.left(subject, stored);
                    }
                }
                killed
            }
            Blow::Stop(time) => state.signal("STOP").map(|()| {
                state.stopped = true;
                self.continue_after(time, slot, state.generation);
            }),
        };
        drop(hush);
        dealt.unwrap_or_else(|error| self.trouble(&error));
        true
    }

    /// Whether a kill would leave the request at this edge.
    fn is_at(&self, slot: usize, subject: &Subject, edge: Edge) -> bool {
        let seen = self.record.seen_of(subject, slot);
        let stored = self.stored(slot, subject);
        let found = stored.zip(seen).and_then(|(stored, seen)| Edge::of(stored.as_deref(), seen));
        found == Some(edge)
    }

    /// What the store says of a key, by another process than that of this slot, if one can be asked:
    /// the name of a state, or that there is none.
    fn stored(&self, slot: usize, subject: &Subject) -> Option<Option<String>> {
        let others = self.slots.iter().enumerate().filter(|(number, _)| *number != slot);
        let mut serving = others.filter_map(|(_, other)| {
            let state = other.state.try_lock().ok()?;
            state.gateway.as_ref().filter(|_| !state.stopped).map(|gateway| gateway.address)
        });
        stored_state(serving.next()?, subject)
    }

    fn continue_after(self: &Arc<Self>, time: Duration, slot: usize, generation: u64) {
        let fleet = Arc::clone(self);
        thread::spawn(move || {
            thread::sleep(time);
            let mut state = fleet.slots[slot].lock();
            // It may have been killed meanwhile, and another one be in its place.
            if state.generation == generation && state.gateway.is_some() {
                state.signal("CONT").unwrap_or_else(|error| fleet.trouble(&error));
                state.stopped = false;
            }
        });
    }

    fn trouble(&self, error: &anyhow::Error) {
        self.record.trouble(format!("{error:#}"));
    }

    fn trap(&self) -> MutexGuard<'_, Trapping> {
        self.trap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has to be held up so that a request stays at this edge.
    fn held_at(&self, edge: Edge) -> Option<&CutProxy> {
        match edge {
            Edge::Unreserved | Edge::Called | Edge::Acted => None,
            Edge::Reserved | Edge::Replied => Some(&self.exit),
            Edge::Completed => Some(&self.entrance),
        }
    }

    fn kill(&self, state: &mut State) -> Result<()> {
        self.entrance.lead_to(None);
        match state.gateway.take() {
            Some(mut gateway) => gateway.kill(),
            None => Ok(()),
        }
    }
}

impl State {
    fn signal(&self, name: &str) -> Result<()> {
        self.gateway.as_ref().map_or(Ok(()), |gateway| gateway.signal(name))
    }
}

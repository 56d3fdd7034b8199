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
    gateway::{Gateway, Starting},
    record::Recorder,
};

/// A moment that does not come within this is given up.
const MOMENT_MAX: Duration = Duration::from_secs(10);

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
#[derive(Clone, Copy, PartialEq, Eq)]
struct Trap {
    blow: Blow,
    moment: Moment,
    /// How long after the moment it strikes. Without, everything waits for it.
    later: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Trapping {
    Idle,
    Set(Trap),
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
    /// Slots, each with the proxy before it and the address of its upstream. Nothing is started.
    pub(super) fn new(
        starting: Starting,
        record: Arc<Recorder>,
        slots: Vec<(CutProxy, String)>,
    ) -> Arc<Fleet> {
        let slots = slots.into_iter().map(|(entrance, upstream)| Slot {
            state: Mutex::default(),
            entrance,
            upstream,
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
    pub(super) fn strike(
        self: &Arc<Self>,
        slot: usize,
        blow: Blow,
        moment: Moment,
        later: Option<Duration>,
    ) -> bool {
        if moment == Moment::Any {
            let give_up = Instant::now() + MOMENT_MAX;
            let slots = (0..self.len()).cycle().skip(slot);
            for slot in slots.take_while(|_| Instant::now() < give_up) {
                if self.deal(slot, blow, moment) {
                    return true;
                }
                thread::sleep(Duration::from_millis(10));
            }
            return false;
        }
        let mut trap = self.trap();
        *trap = Trapping::Set(Trap { blow, moment, later });
        let waits = |trap: &mut Trapping| *trap != Trapping::Idle;
        let waited = self.sprung.wait_timeout_while(trap, MOMENT_MAX, waits);
        trap = waited.unwrap_or_else(PoisonError::into_inner).0;
        std::mem::replace(&mut *trap, Trapping::Idle) == Trapping::Idle
    }

    /// This is such a moment, for the process of this slot.
    pub(super) fn at(self: &Arc<Self>, moment: Moment, slot: usize) {
        let set = {
            let mut trap = self.trap();
            let Trapping::Set(set) = *trap else { return };
            if set.moment != moment {
                return;
            }
            *trap = Trapping::Springs;
            set
        };
        let fleet = Arc::clone(self);
        let spring = move || {
            thread::sleep(set.later.unwrap_or_default());
            let dealt = fleet.deal(slot, set.blow, moment);
            // Another process may be better to strike.
            *fleet.trap() = if dealt { Trapping::Idle } else { Trapping::Set(set) };
            fleet.sprung.notify_all();
        };
        match set.later {
            None => spring(),
            Some(_) => drop(thread::spawn(spring)),
        }
    }

    /// Whether the process was struck: one that is stopped or being started is left alone.
    fn deal(self: &Arc<Self>, slot: usize, blow: Blow, moment: Moment) -> bool {
        let of = &self.slots[slot];
        let Ok(mut state) = of.state.try_lock() else { return false };
        if state.gateway.is_none() || state.stopped || self.spared.load(SeqCst) {
            return false;
        }
        self.record.fault(&fault_kind(blow, moment), &format!("gateway {slot}"));
        let dealt = match blow {
            Blow::Kill => of.kill(&mut state),
            Blow::Stop(time) => state.signal("STOP").map(|()| {
                state.stopped = true;
                self.continue_after(time, slot, state.generation);
            }),
        };
        dealt.unwrap_or_else(|error| self.trouble(&error));
        true
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

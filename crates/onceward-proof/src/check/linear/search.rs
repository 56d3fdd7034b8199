//! Tries all orders at once: after each event, every world that explains what was seen so far.

use std::collections::HashMap;

use super::{
    spec::{Kind, Now, Owner, State},
    view::{Asks, Mark, Seen, View},
};

/// No world explains this mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unexplained(Mark);

impl Unexplained {
    pub(super) fn sentence(self, view: &View<'_>) -> String {
        let request = |place: usize| view.requests[place].number;
        match self.0 {
            Mark::Answered(place) => {
                let seen = view.requests[place].seen;
                format!(
                    "no order of steps explains that request {} was answered {seen:?}",
                    request(place)
                )
            }
            Mark::Called(call) => {
                let made_for = view.calls[call].made_for.map(request);
                let made_for = made_for.map_or("another key".to_owned(), |number| {
                    format!("request {number}, which cannot have begun by then")
                });
                format!("no order of steps explains a call for {made_for}")
            }
            mark => format!("no order of steps explains {mark:?}"),
        }
    }
}

/// Whether some order of steps explains everything that was seen.
pub(super) fn explain(view: &View<'_>) -> Result<(), Unexplained> {
    let mut search = Search::new(view);
    for mark in &view.marks {
        search.pass(*mark)?;
    }
    Ok(())
}

/// One way in which things may stand.
#[derive(Clone, Copy, Debug)]
struct World {
    state: State,
    /// The open requests, by slot, whose answer is explained.
    explained: u128,
    /// How many of each kind of silent request have begun.
    begun: Begun,
}

/// What is counted of a world and need not be told apart: fewer is better.
type Begun = [u8; KINDS];

/// Silent requests beyond so many kinds, or so many of a kind, may begin as often as they like.
const KINDS: usize = 8;

struct Search<'a> {
    view: &'a View<'a>,
    now: Now,
    worlds: Vec<World>,
    /// The requests that are open and will be answered. One that finds no slot is not checked.
    slots: [Option<usize>; 128],
    open: u128,
    silent: Vec<Silent>,
    known: HashMap<(State, u128), Vec<Begun>>,
}

/// Requests whose attempts may begin from now on for ever, all alike.
struct Silent {
    asks: Asks,
    acts: bool,
    kind: Kind,
    count: u8,
}

impl<'a> Search<'a> {
    fn new(view: &'a View<'a>) -> Self {
        Search {
            view,
            now: Now::new(view),
            worlds: vec![World { state: State::Free(None), explained: 0, begun: [0; KINDS] }],
            slots: [None; 128],
            open: 0,
            silent: Vec::new(),
            known: HashMap::new(),
        }
    }

    fn pass(&mut self, mark: Mark) -> Result<(), Unexplained> {
        match mark {
            Mark::Asked(place) => self.open(place),
            Mark::Called(call) => {
                self.spread();
                self.now.called = call + 1;
                if let Some(place) = self.view.calls[call].made_for {
                    self.retain_begun(place);
                }
            }
            Mark::Replied(call) => self.now.replied[call] = true,
            Mark::Expires => self.now.expires = true,
            Mark::ResolvedCompleted => self.now.resolved_completed = true,
            Mark::ResolvedReleased => self.now.resolved_released = true,
            Mark::Answered(place) => self.close(place),
        }
        if self.worlds.is_empty() { Err(Unexplained(mark)) } else { Ok(()) }
    }

    fn open(&mut self, place: usize) {
        let request = &self.view.requests[place];
        match Kind::of(place, request, self.view) {
            Some(kind @ (Kind::Silent | Kind::Withdrawn)) => {
                let (asks, acts) = (request.asks, request.acts);
                let same = |silent: &&mut Silent| {
                    (silent.asks, silent.acts, silent.kind) == (asks, acts, kind)
                };
                match self.silent.iter_mut().find(same) {
                    Some(silent) => silent.count = silent.count.saturating_add(1),
                    None => self.silent.push(Silent { asks, acts, kind, count: 1 }),
                }
            }
            _ => {
                let slot = (!self.open).trailing_zeros();
                if let Some(free) = self.slots.get_mut(slot as usize) {
                    *free = Some(place);
                    self.open |= 1 << slot;
                }
            }
        }
    }

    fn close(&mut self, place: usize) {
        let Some(slot) = self.slots.iter().position(|open| *open == Some(place)) else { return };
        self.spread();
        let bit = 1 << slot;
        self.worlds.retain_mut(|world| {
            let explained = world.explained & bit != 0;
            world.explained &= !bit;
            explained
        });
        self.open &= !bit;
        self.slots[slot] = None;
    }

    /// A call was made for this request, so that its attempt has begun.
    fn retain_begun(&mut self, place: usize) {
        let request = &self.view.requests[place];
        let given_back = matches!(request.seen, Seen::NotExecuted(_));
        if given_back && (!request.acts || self.view.was_resolved()) {
            return;
        }
        let owns =
            |world: &World| world.state.owner().is_some_and(|owner| owner.kind == Kind::Of(place));
        self.worlds.retain(owns);
    }

    /// Adds every world that can be reached by steps of the record and of open requests.
    fn spread(&mut self) {
        self.known.clear();
        let mut fresh = std::mem::take(&mut self.worlds);
        while let Some(mut world) = fresh.pop() {
            self.look(&mut world);
            if !self.is_better(&world) {
                continue;
            }
            self.worlds.push(world);
            self.begin(&world, &mut fresh);
            world.state.steps(self.view, &self.now, |state, ended| {
                let mut next = world;
                next.state = state;
                if let Some(place) = ended {
                    next.explained |= self.bit_of(place);
                }
                fresh.push(next);
            });
        }
    }

    /// A look changes nothing, so that whatever can be explained is explained at once.
    fn look(&self, world: &mut World) {
        let mut left = self.open & !world.explained;
        while left != 0 {
            let slot = left.trailing_zeros() as usize;
            left &= left - 1;
            let Some(place) = self.slots[slot] else { continue };
            if world.state.explains(place, self.view, &self.now) {
                world.explained |= 1 << slot;
            }
        }
    }

    /// Whether nothing that is known is at least as good.
    fn is_better(&mut self, world: &World) -> bool {
        let known = self.known.entry((world.state, world.explained)).or_default();
        let covers = |a: &Begun, b: &Begun| a.iter().zip(b).all(|(a, b)| a <= b);
        if known.iter().any(|begun| covers(begun, &world.begun)) {
            return false;
        }
        known.push(world.begun);
        true
    }

    fn begin(&self, world: &World, fresh: &mut Vec<World>) {
        if !matches!(world.state, State::Free(_)) {
            return;
        }
        let mut left = self.open;
        while left != 0 {
            let slot = left.trailing_zeros() as usize;
            left &= left - 1;
            let Some(place) = self.slots[slot] else { continue };
            let request = &self.view.requests[place];
            let Some(kind) = Kind::of(place, request, self.view) else { continue };
            let explained = world.explained & (1 << slot) != 0;
            let once = matches!(kind, Kind::Of(_) | Kind::Late);
            if !world.state.is_free_for(request.asks) || (once && explained) {
                continue;
            }
            let mut next = *world;
            next.state = State::Running(self.owner(request.asks, request.acts, kind));
            if matches!(request.seen, Seen::Unknown | Seen::UnknownFirst) {
                next.explained |= 1 << slot;
            }
            fresh.push(next);
        }
        for (number, silent) in self.silent.iter().enumerate() {
            if !world.state.is_free_for(silent.asks) {
                continue;
            }
            let mut next = *world;
            next.state = State::Running(self.owner(silent.asks, silent.acts, silent.kind));
            if let Some(begun) = next.begun.get_mut(number).filter(|_| silent.count < u8::MAX) {
                if *begun == silent.count {
                    continue;
                }
                *begun += 1;
            }
            fresh.push(next);
        }
    }

    fn owner(&self, asks: Asks, acts: bool, kind: Kind) -> Owner {
        let counts = matches!(kind, Kind::Told | Kind::Late | Kind::Silent);
        let since = if counts { self.now.called } else { 0 };
        Owner { asks, acts, kind, since }
    }

    fn bit_of(&self, place: usize) -> u128 {
        let slot = self.slots.iter().position(|open| *open == Some(place));
        slot.map_or(0, |slot| 1 << slot)
    }
}

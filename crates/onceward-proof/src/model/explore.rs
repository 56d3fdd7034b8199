//! The explorer: every state of a system, breadth first, so that what it finds wrong it finds by a
//! shortest way.

use std::{
    fmt,
    hash::{Hash, Hasher},
    time::{Duration, Instant},
};

use super::situation::Seen;

/// Something that can be in states and takes steps.
pub(super) trait System {
    /// A state: small, and equal when nothing that follows could differ.
    type State: Copy + Eq + Hash;
    /// What a step is called.
    type Label: fmt::Display;

    /// Where it begins.
    fn start(&self) -> Self::State;

    /// All steps from a state.
    fn steps(&self, from: &Self::State, steps: &mut Vec<Step<Self::State, Self::Label>>);

    /// The one of all states that differ in names only.
    fn canonical(&self, state: &Self::State) -> Self::State;

    /// Whether nothing is left to do.
    fn is_at_rest(&self, state: &Self::State) -> bool;
}

/// One step.
pub(super) struct Step<S, L> {
    /// What it is called.
    pub(super) label: L,
    /// Where it leads.
    pub(super) to: S,
    /// Whether it can be counted on when nothing fails any more.
    pub(super) fair: bool,
    /// What can be seen in it.
    pub(super) seen: Seen,
    /// What is wrong with it.
    pub(super) wrong: Option<String>,
}

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Explored {
    /// How many states.
    pub states: usize,
    /// How many steps between them.
    pub transitions: u64,
    /// The length of the longest of all shortest ways.
    pub depth: u32,
    /// How long it took.
    pub took: Duration,
    /// Which situations came up.
    pub seen: Seen,
    /// What is wrong, if anything.
    pub counterexample: Option<Counterexample>,
}

/// A shortest way to something wrong.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// What is wrong.
    pub wrong: String,
    /// The steps that lead there.
    pub steps: Vec<String>,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.wrong)?;
        for (number, step) in (1..).zip(&self.steps) {
            writeln!(f, "  {number:>2}. {step}")?;
        }
        Ok(())
    }
}

/// Visits every state that can be reached, until a step is wrong; then makes sure that rest can be
/// reached from each of them by fair steps alone.
pub(super) fn explore<M: System>(system: &M, states_at_most: usize) -> Explored {
    let begun = Instant::now();
    let mut search = Search::new(system);
    let mut steps = Vec::new();
    let mut wrong = None;
    let mut next = 0;
    'search: while next < search.states.len() {
        let from = search.states[next];
        steps.clear();
        system.steps(&from, &mut steps);
        for step in &steps {
            search.transitions += 1;
            search.seen |= step.seen;
            if let Some(why) = &step.wrong {
                wrong = Some((next, why.clone(), Some(system.canonical(&step.to))));
                break 'search;
            }
            let to = search.visit(system.canonical(&step.to), next);
            if step.fair {
                search.fair.push((next as u32, to as u32));
            }
        }
        next += 1;
        if search.states.len() > states_at_most {
            wrong = Some((0, format!("more than {states_at_most} states: make it smaller"), None));
            break;
        }
    }
    if wrong.is_none() {
        let stuck = search.cannot_rest(system);
        wrong =
            stuck.map(|state| (state, "live: no fair way leads to rest from here".into(), None));
    }
    let counterexample = wrong.map(|(state, wrong, last)| {
        let steps = search.way_to(system, state, last);
        Counterexample { wrong, steps }
    });
    Explored {
        states: search.states.len(),
        transitions: search.transitions,
        depth: search.depths.last().copied().unwrap_or(0),
        took: begun.elapsed(),
        seen: search.seen,
        counterexample,
    }
}

struct Search<S> {
    states: Vec<S>,
    parents: Vec<u32>,
    depths: Vec<u32>,
    fair: Vec<(u32, u32)>,
    /// Open addressing: half of the hash, and where the state stands in `states`, plus one.
    table: Vec<(u32, u32)>,
    transitions: u64,
    seen: Seen,
}

impl<S: Copy + Eq + Hash> Search<S> {
    fn new<M: System<State = S>>(system: &M) -> Self {
        let mut search = Search {
            states: Vec::new(),
            parents: Vec::new(),
            depths: Vec::new(),
            fair: Vec::new(),
            table: vec![(0, 0); 1 << 12],
            transitions: 0,
            seen: Seen::default(),
        };
        search.visit(system.canonical(&system.start()), 0);
        search
    }

    /// The number of a state, which is new if it was not there.
    fn visit(&mut self, state: S, parent: usize) -> usize {
        if self.states.len() * 2 >= self.table.len() {
            self.grow();
        }
        let hash = hash_of(&state);
        let place = match self.find(&state, hash) {
            Ok(known) => return known,
            Err(place) => place,
        };
        let depth = self.depths.get(parent).map_or(0, |depth| depth + 1);
        self.states.push(state);
        self.parents.push(parent as u32);
        self.depths.push(depth);
        self.table[place] = (hash as u32, self.states.len() as u32);
        self.states.len() - 1
    }

    /// The number of a state, or the free place for it.
    fn find(&self, state: &S, hash: u64) -> Result<usize, usize> {
        let mask = self.table.len() - 1;
        let mut place = (hash >> 32) as usize & mask;
        loop {
            let (other_hash, number) = self.table[place];
            let Some(number) = number.checked_sub(1) else { return Err(place) };
            if other_hash == hash as u32 && self.states[number as usize] == *state {
                return Ok(number as usize);
            }
            place = (place + 1) & mask;
        }
    }

    fn grow(&mut self) {
        self.table = vec![(0, 0); self.table.len() * 2];
        for number in 0..self.states.len() {
            let state = self.states[number];
            let hash = hash_of(&state);
            if let Err(place) = self.find(&state, hash) {
                self.table[place] = (hash as u32, number as u32 + 1);
            }
        }
    }

    /// The first state from which no fair way leads to rest.
    fn cannot_rest<M: System<State = S>>(&self, system: &M) -> Option<usize> {
        let before = self.before_by_fair_steps();
        let mut can: Vec<bool> = self.states.iter().map(|state| system.is_at_rest(state)).collect();
        let mut open: Vec<usize> = (0..can.len()).filter(|number| can[*number]).collect();
        while let Some(number) = open.pop() {
            for from in before.of(number) {
                let from = *from as usize;
                if !can[from] {
                    can[from] = true;
                    open.push(from);
                }
            }
        }
        can.iter().position(|can| !can)
    }

    fn before_by_fair_steps(&self) -> Before {
        let mut ends = vec![0; self.states.len() + 1];
        self.fair.iter().for_each(|(_, to)| ends[*to as usize + 1] += 1);
        let mut sum = 0;
        for end in &mut ends {
            sum += *end;
            *end = sum;
        }
        let mut places = ends.clone();
        let mut from = vec![0; self.fair.len()];
        for (before, to) in &self.fair {
            let place = &mut places[*to as usize];
            from[*place] = *before;
            *place += 1;
        }
        Before { ends, from }
    }

    /// The labels on the way to a state, and of the step after it. Walked anew with the names as
    /// they were given, since states are kept in canonical form.
    fn way_to<M: System<State = S>>(
        &self,
        system: &M,
        state: usize,
        last: Option<S>,
    ) -> Vec<String> {
        let mut way: Vec<S> = last.into_iter().collect();
        let mut number = state;
        while number != 0 {
            way.push(self.states[number]);
            number = self.parents[number] as usize;
        }
        let mut at = system.start();
        let mut labels = Vec::new();
        for (left, target) in way.iter().enumerate().rev() {
            let mut steps = Vec::new();
            system.steps(&at, &mut steps);
            let must_be_wrong = left == 0 && last.is_some();
            let found = steps.into_iter().find(|step| {
                system.canonical(&step.to) == *target && (!must_be_wrong || step.wrong.is_some())
            });
            let Some(step) = found else { break };
            labels.push(step.label.to_string());
            at = step.to;
        }
        labels
    }
}

/// For each state those from which a fair step leads to it, all in one vector.
struct Before {
    ends: Vec<usize>,
    from: Vec<u32>,
}

impl Before {
    fn of(&self, number: usize) -> &[u32] {
        &self.from[self.ends[number]..self.ends[number + 1]]
    }
}

fn hash_of(state: &impl Hash) -> u64 {
    let mut hasher = Multiply::default();
    state.hash(&mut hasher);
    hasher.finish()
}

/// A quick hash for small states of our own: nobody chooses them to collide.
#[derive(Default)]
struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 33)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_i8(&mut self, number: i8) {
        self.write_u64(u64::from(number as u8));
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

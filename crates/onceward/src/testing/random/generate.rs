//! From a seed to a script.

use std::{fmt, str::FromStr, sync::OnceLock, time::Duration};

use super::{Decided, Operation, PLACES};
use crate::{
    record::Effects,
    store::{Advance, Mode, Write},
    testing::samples::{self, LEASE, RETENTION, TOMBSTONE},
};

/// Where a random run begins. The same seed means the same operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u64);

static DRAWN: OnceLock<Seed> = OnceLock::new();

impl Seed {
    /// The seed of the environment variable `ONCEWARD_SEED`, or one that was drawn for this process:
    /// all stores whose suites run in it get the same operations, and so are compared with each other.
    ///
    /// # Panics
    /// When the variable is not a number.
    pub fn from_environment() -> Self {
        match std::env::var("ONCEWARD_SEED") {
            Ok(seed) => seed.parse().expect("ONCEWARD_SEED is a number"),
            Err(_) => *DRAWN.get_or_init(|| Seed(rand::random())),
        }
    }

    /// The seed of the sequence so many after this one.
    #[must_use]
    pub fn plus(self, sequences: u64) -> Self {
        Seed(self.0.wrapping_add(sequences))
    }
}

impl FromStr for Seed {
    type Err = std::num::ParseIntError;

    fn from_str(seed: &str) -> Result<Self, Self::Err> {
        seed.trim().parse().map(Seed)
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Numbers that look random. Our own, so that a seed means the same in every release: mixes a
/// counter with the finaliser of SplitMix64.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        usize::try_from(mixed % end.max(1) as u64).unwrap_or(0)
    }

    fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn small(&mut self, end: u8) -> u8 {
        u8::try_from(self.below(usize::from(end))).unwrap_or(0)
    }
}

/// A random script. Each has its own favourite effects, since mixing all of them all the time
/// would make most attempts end as unknown.
pub(super) fn script(seed: Seed, operations: usize) -> Vec<Operation> {
    let mut numbers = Numbers(seed.0);
    let favourite = numbers.one_of(&Effects::ALL);
    let places = 1 + numbers.below(PLACES.len());
    (0..operations).map(|_| operation(&mut numbers, favourite, places)).collect()
}

fn operation(numbers: &mut Numbers, favourite: Effects, places: usize) -> Operation {
    let place = numbers.below(places);
    let attempt = numbers.small(4);
    match numbers.below(100) {
        0..35 => reserve(numbers, place, attempt, favourite),
        35..40 => {
            let effects = if numbers.one_in(4) { numbers.one_of(&Effects::ALL) } else { favourite };
            Operation::Claim { place, attempt, effects }
        }
        40..58 => Operation::Write { place, attempt, write: write(numbers) },
        58..66 => Operation::Advance { place, attempt, advance: advance(numbers) },
        66..77 => {
            Operation::Resolve { place, stale: numbers.one_in(5), resolution: decision(numbers) }
        }
        77..82 => Operation::Sweep { limit: numbers.one_of(&[0, 1, 2, 100]) },
        82..86 => Operation::Reap,
        86..98 => Operation::Forward(forward(numbers)),
        _ => Operation::Back(numbers.one_of(&[
            Duration::from_micros(1),
            LEASE,
            Duration::from_secs(3_600),
            RETENTION,
        ])),
    }
}

fn reserve(numbers: &mut Numbers, place: usize, attempt: u8, favourite: Effects) -> Operation {
    let fingerprint = u8::from(numbers.one_in(5));
    let mode = match numbers.below(10) {
        0 => Mode::LookupOnly,
        1 | 2 => Mode::Accept,
        _ => Mode::Execute,
    };
    let runs_again = numbers.one_in(3);
    let effects = if numbers.one_in(4) { numbers.one_of(&Effects::ALL) } else { favourite };
    let request = numbers.one_of(&[None, Some("one"), Some("two")]);
    // Nobody goes on with anything else, and stores need not look for what is left of it.
    let request = request.filter(|_| mode == Mode::Accept || effects == Effects::Phased);
    Operation::Reserve { place, attempt, fingerprint, mode, runs_again, effects, request }
}

fn write(numbers: &mut Numbers) -> Write {
    match numbers.below(10) {
        0 | 1 => Write::Renew(numbers.one_of(&[Duration::ZERO, LEASE / 2, LEASE, LEASE * 3])),
        2..6 => Write::Complete(samples::reply(numbers.one_of(&["", "one", "two"]))),
        6 | 7 => Write::Release(numbers.one_of(&["not_sent", "refused"]).into()),
        _ => Write::MarkUnknown(numbers.one_of(&["reset", "timeout"]).into()),
    }
}

fn advance(numbers: &mut Numbers) -> Advance {
    let name = numbers.one_of(&["book", "charge", "mail"]);
    match numbers.below(6) {
        0 | 1 => samples::intend(name, numbers.one_in(2)),
        2 => samples::withdraw(name),
        _ => samples::save(name, numbers.one_of(&["", "one", "two"])),
    }
}

fn decision(numbers: &mut Numbers) -> Decided {
    let minutes = |number: usize| Duration::from_secs(60) * u32::try_from(number).unwrap_or(0);
    match numbers.below(16) {
        0 => Decided::Complete("found"),
        14 | 15 => {
            let attempt = u8::try_from(numbers.below(4)).unwrap_or(0);
            Decided::Executed { attempt, body: numbers.one_of(&["found", "told"]) }
        }
        1 => Decided::Release,
        2 | 3 => {
            let second_ago = minutes(numbers.below(3));
            let first_ago = second_ago + minutes(numbers.below(4));
            Decided::ReleaseAfterProbes { first_ago, second_ago }
        }
        4 => Decided::Void,
        5..8 => Decided::Ask,
        8 => Decided::AskStale,
        9..11 => Decided::Absent { apart: numbers.one_of(&[Duration::MAX, minutes(2)]) },
        11 => Decided::AbsentStale,
        12 => Decided::DeadLetter,
        _ => Decided::Redrive,
    }
}

/// Steps that end exactly at a lease's or a retention's end are the interesting ones.
fn forward(numbers: &mut Numbers) -> Duration {
    numbers.one_of(&[
        Duration::from_micros(1),
        Duration::from_secs(1),
        LEASE / 2,
        LEASE,
        LEASE,
        LEASE * 10,
        RETENTION,
        RETENTION,
        TOMBSTONE,
    ])
}

//! When which blow falls: every kind at every moment, in random order.

use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};

use super::fleet::{Blow, Moment};

/// One round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// A blow at a moment, and some time to see what comes of it.
    Strike { blow: Blow, moment: Moment, later: Option<Duration>, then: Duration },
    /// Processes live long enough for what comes late.
    Quiet(Duration),
}

impl Turn {
    /// Where a request can be when its process is killed. Whether it is reserved, and whether it is
    /// completed, cannot be seen from outside: around these, kills come after a random time, of at most so many microseconds.
    pub(super) const EDGES: [(Moment, Option<u64>); 7] = [
        (Moment::Asked, None),
        (Moment::Asked, Some(5000)),
        (Moment::Called, None),
        (Moment::Acted, None),
        (Moment::Replied, Some(1500)),
        (Moment::Replied, Some(8000)),
        (Moment::Answered, None),
    ];

    /// Kills without end. Within the first seven, and so on, each edge has its own.
    pub(super) fn kills(seed: u64) -> impl Iterator<Item = Turn> {
        let mut random = StdRng::seed_from_u64(seed.rotate_left(16));
        std::iter::repeat_with(move || {
            let mut turns = Self::EDGES.map(|(moment, most_micros)| {
                let micros = most_micros.map(|most| random.random_range(0..most));
                let later = micros.map(Duration::from_micros);
                Turn::Strike { blow: Blow::Kill, moment, later, then: Duration::ZERO }
            });
            turns.shuffle(&mut random);
            turns
        })
        .flatten()
    }

    /// Turns without end. Within the first 20, and so on, each kind has its own.
    pub(super) fn shuffled(seed: u64) -> impl Iterator<Item = Turn> {
        let mut random = StdRng::seed_from_u64(seed.rotate_left(32));
        std::iter::repeat_with(move || {
            let mut turns = vec![Turn::Quiet(Duration::from_millis(2500)); 2];
            for moment in Moment::ALL {
                // Stops take long, so that there are fewer of them.
                turns.extend([true, true, false].map(|kills| draw(kills, moment, &mut random)));
            }
            turns.shuffle(&mut random);
            turns
        })
        .flatten()
    }
}

fn draw(kills: bool, moment: Moment, random: &mut StdRng) -> Turn {
    let mut millis = |least, most| Duration::from_millis(random.random_range(least..most));
    // Longer than the lease of one second.
    let stop = millis(1100, 2200);
    // Some come to themselves in peace, others among further blows.
    let then = if random.random() { stop + Duration::from_millis(300) } else { Duration::ZERO };
    let (blow, then) = if kills { (Blow::Kill, Duration::ZERO) } else { (Blow::Stop(stop), then) };
    let later = match moment {
        Moment::Any | Moment::Called | Moment::Acted | Moment::Answered => None,
        Moment::Asked | Moment::Replied => {
            Some(Duration::from_micros(random.random_range(0..5000)))
        }
    };
    Turn::Strike { blow, moment, later, then }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURNS: usize = Moment::ALL.len() * 3 + 2;

    #[test]
    fn every_blow_has_its_turn_at_every_moment_and_a_seed_gives_the_same_turns() {
        let turns: Vec<Turn> = Turn::shuffled(1).take(TURNS).collect();
        for moment in Moment::ALL {
            let at = |kills| {
                let is = |turn: &&Turn| {
                    matches!(turn, Turn::Strike { blow, moment: at, .. }
                        if *at == moment && (*blow == Blow::Kill) == kills)
                };
                turns.iter().filter(is).count()
            };
            assert_eq!((at(true), at(false)), (2, 1), "{moment:?}");
        }
        assert_eq!(turns, Turn::shuffled(1).take(TURNS).collect::<Vec<_>>());
        assert_ne!(turns, Turn::shuffled(2).take(TURNS).collect::<Vec<_>>());
    }

    #[test]
    fn every_edge_has_its_kill_in_every_cycle() {
        let edges = Turn::EDGES.len();
        let turns: Vec<Turn> = Turn::kills(1).take(edges * 3).collect();
        for cycle in turns.chunks(edges) {
            for (moment, most_micros) in Turn::EDGES {
                let is = |turn: &&Turn| {
                    matches!(turn, Turn::Strike { blow: Blow::Kill, moment: at, later, .. }
                        if *at == moment && later.is_none() == most_micros.is_none())
                };
                let least = if moment == Moment::Replied { 2 } else { 1 };
                assert_eq!(cycle.iter().filter(is).count(), least, "{moment:?}");
            }
        }
        assert_ne!(turns, Turn::kills(2).take(edges * 3).collect::<Vec<_>>());
    }
}

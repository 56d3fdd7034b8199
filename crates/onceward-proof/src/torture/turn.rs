//! When which blow falls: every kind at every moment, in random order.

use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};

use super::{
    fleet::{Blow, Moment, Strike},
    left::Edge,
};

/// One round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// A blow at a moment, and some time to see what comes of it.
    Strike { strike: Strike, then: Duration },
    /// Processes live long enough for what comes late.
    Quiet(Duration),
}

/// Where a request can be when its process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KillAt {
    pub(super) moment: Moment,
    /// After a random time of at most so many microseconds. Without, everything waits for the kill.
    pub(super) most_micros: Option<u64>,
    /// What must be left for sure.
    pub(super) leaves: Option<Edge>,
}

const fn at(moment: Moment, most_micros: Option<u64>, leaves: Option<Edge>) -> KillAt {
    KillAt { moment, most_micros, leaves }
}

impl Turn {
    /// All these. Two come by chance, around reserve and around complete: there they meet what cannot be
    /// held up from outside, such as a write that is on its way.
    pub(super) const EDGES: [KillAt; 9] = [
        at(Moment::Asked, None, None),
        at(Moment::Asked, Some(5000), None),
        at(Moment::Asked, Some(2000), Some(Edge::Reserved)),
        at(Moment::Called, None, Some(Edge::Called)),
        at(Moment::Acted, None, Some(Edge::Acted)),
        at(Moment::Replied, Some(2000), Some(Edge::Replied)),
        at(Moment::Replied, Some(2000), Some(Edge::Completed)),
        at(Moment::Replied, Some(8000), None),
        at(Moment::Answered, None, None),
    ];

    /// Kills without end. Within the first nine, and so on, each edge has its own.
    pub(super) fn kills(seed: u64) -> impl Iterator<Item = Turn> {
        let mut random = StdRng::seed_from_u64(seed.rotate_left(16));
        std::iter::repeat_with(move || {
            let mut turns = Self::EDGES.map(|KillAt { moment, most_micros, leaves }| {
                let micros = most_micros.map(|most| random.random_range(0..most));
                let later = micros.map(Duration::from_micros);
                let strike = Strike { blow: Blow::Kill, moment, later, leaves };
                Turn::Strike { strike, then: Duration::ZERO }
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
    Turn::Strike { strike: Strike { blow, moment, later, leaves: None }, then }
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
                    matches!(turn, Turn::Strike { strike, .. }
                        if strike.moment == moment && (strike.blow == Blow::Kill) == kills)
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
            for KillAt { moment, most_micros, leaves } in Turn::EDGES {
                let is = |turn: &&Turn| {
                    matches!(turn, Turn::Strike { strike, .. }
                        if strike.blow == Blow::Kill
                            && strike.moment == moment
                            && strike.later.is_none() == most_micros.is_none()
                            && strike.leaves == leaves)
                };
                assert_eq!(cycle.iter().filter(is).count(), 1, "{moment:?} {leaves:?}");
            }
        }
        assert_ne!(turns, Turn::kills(2).take(edges * 3).collect::<Vec<_>>());
    }
}

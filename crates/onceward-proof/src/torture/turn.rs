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
    /// Turns without end. Within the first 17, and so on, each kind has its own.
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
        Moment::Any | Moment::Called | Moment::Acted => None,
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
}

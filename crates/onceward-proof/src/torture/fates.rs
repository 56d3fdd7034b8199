//! Which connections of a proxy break, and how, from a seed.

use std::time::Duration;

use onceward_testbed::{Break, Fate, Way};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

/// Which fates the connections of a proxy have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fates {
    pub(super) seed: u64,
    /// One connection in so many is bad.
    pub(super) one_in: u64,
    /// Those that break do so before so many bytes have passed.
    pub(super) bytes_max: usize,
}

impl Fates {
    /// The fate of a connection, by its number. Each kind has its turn.
    pub(super) fn of(self, connection: u64) -> Fate {
        if !connection.is_multiple_of(self.one_in) {
            return Fate::Honest;
        }
        let own = connection.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = StdRng::seed_from_u64(self.seed ^ own);
        let way = if random.random() { Way::There } else { Way::Back };
        let after = random.random_range(0..self.bytes_max);
        let turn = usize::try_from(connection / self.one_in).unwrap_or(0);
        match turn % (Break::ALL.len() + 2) {
            0 => Fate::Delays(Duration::from_millis(random.random_range(1..200))),
            1 => Fate::Slices,
            turn => Fate::Breaks(Break::ALL[turn - 2], way, after),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fates_of_a_seed_are_always_the_same_and_hold_every_kind() {
        let fates = |seed| -> Vec<Fate> {
            let fates = Fates { seed, one_in: 3, bytes_max: 500 };
            (0..100).map(|connection| fates.of(connection)).collect()
        };
        assert_eq!(fates(1), fates(1));
        assert_ne!(fates(1), fates(2));
        for kind in Break::ALL {
            assert!(
                fates(1).iter().any(|fate| matches!(fate, Fate::Breaks(of, ..) if *of == kind))
            );
        }
        assert!(fates(1).contains(&Fate::Slices) && fates(1).contains(&Fate::Honest));
    }
}

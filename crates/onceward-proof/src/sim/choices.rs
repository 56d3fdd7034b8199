//! Every choice of a run, from one place: drawn from a seed, or read from a list.
//!
//! Zero is always the dull choice: no fault, no delay, the first key. So a failing run can be made
//! shorter by putting zeros into its list, and all small deviations from the dull run can be tried
//! one after the other.

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

/// Where the choices of a run come from, and which were made.
#[derive(Debug)]
pub struct Choices {
    source: Source,
    made: Vec<Made>,
}

/// One choice that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// What was chosen.
    pub chosen: u32,
    /// Out of how many.
    pub of: u32,
    /// Whether it was about a fault; everything else is about the world and its load.
    pub fault: bool,
}

#[derive(Debug)]
enum Source {
    Seed(Box<StdRng>),
    List(Vec<u32>),
}

impl Choices {
    /// Choices drawn from a seed.
    pub fn from_seed(seed: u64) -> Self {
        Choices { source: Source::Seed(Box::new(StdRng::seed_from_u64(seed))), made: Vec::new() }
    }

    /// Choices read from a list; dull after its end.
    pub fn from_list(list: Vec<u32>) -> Self {
        Choices { source: Source::List(list), made: Vec::new() }
    }

    /// A number below `of`, all of them equally likely.
    pub fn number(&mut self, of: u32) -> u32 {
        self.choose(of, false, |random| random.random_range(0..of))
    }

    /// Zero, or with a likelihood of `in_10_000` a number from 1 to `of - 1`: which fault happens.
    pub fn fault(&mut self, of: u32, in_10_000: u32) -> u32 {
        self.choose(of, true, |random| {
            if random.random_range(0..10_000) < in_10_000 { random.random_range(1..of) } else { 0 }
        })
    }

    fn choose(&mut self, of: u32, fault: bool, draw: impl FnOnce(&mut StdRng) -> u32) -> u32 {
        let chosen = match &mut self.source {
            _ if of <= 1 => 0,
            Source::Seed(random) => draw(random),
            Source::List(list) => list.get(self.made.len()).map_or(0, |chosen| chosen % of),
        };
        self.made.push(Made { chosen, of, fault });
        chosen
    }

    /// The choices that were made so far.
    pub fn made(&self) -> &[Made] {
        &self.made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_repeats_what_a_seed_chose() {
        let ask = |choices: &mut Choices| -> Vec<u32> {
            (1..200)
                .map(|n| if n % 3 == 0 { choices.fault(n, 5_000) } else { choices.number(n) })
                .collect()
        };
        let mut drawn = Choices::from_seed(7);
        let first = ask(&mut drawn);
        assert!(first.iter().any(|chosen| *chosen > 0));
        let list = drawn.made().iter().map(|made| made.chosen).collect();
        assert_eq!(ask(&mut Choices::from_list(list)), first);
        assert_eq!(ask(&mut Choices::from_seed(7)), first);
        assert_ne!(ask(&mut Choices::from_seed(8)), first);
    }

    #[test]
    fn after_the_end_of_a_list_everything_is_dull() {
        let mut choices = Choices::from_list(vec![3, 9]);
        assert_eq!([choices.number(5), choices.fault(8, 10_000), choices.number(5)], [3, 1, 0]);
    }
}

//! The store and the model, asked the same random things.

use std::time::{Duration, Instant};

use crate::testing::{Harness, Seed, random};

const OPERATIONS: usize = 60;

/// No sequence begins after this, for each fifty of them: a store behind a network takes seconds for
/// one.
const TIME_MAX: Duration = Duration::from_secs(60);

/// So many of fifty are run however long it takes. With fewer, a store that is slow would pass for want
/// of trying.
const LEAST_OF_FIFTY: u64 = 10;

/// Random operations have the same answers and leave the same records on the store and the model.
pub async fn random_operations_agree_with_the_model(on: Harness) {
    let seed = Seed::from_environment();
    let sequences = random::sequences();
    println!("ONCEWARD_SEED={seed} ONCEWARD_RUNS={sequences}");
    let fifties = u32::try_from(sequences / 50).unwrap_or(u32::MAX).max(1);
    let time_max = TIME_MAX.saturating_mul(fifties);
    let begun = Instant::now();
    for sequence in 0..sequences {
        if let Err(disagreement) = random::run(&on, seed.plus(sequence), 1, OPERATIONS).await {
            panic!("{disagreement}");
        }
        let done = sequence + 1;
        if begun.elapsed() > time_max && done >= least_of(sequences) {
            println!("{done} of {sequences} sequences in {:?}", begun.elapsed());
            break;
        }
    }
}

/// Of so many sequences.
fn least_of(sequences: u64) -> u64 {
    (sequences * LEAST_OF_FIFTY / 50).clamp(1, sequences.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_all_sequences_is_run_however_slow_the_store_is() {
        assert_eq!([0, 1, 4, 50, 2000].map(least_of), [1, 1, 1, 10, 400]);
    }
}

//! The store and the model, asked the same random things.

use std::time::{Duration, Instant};

use crate::testing::{Harness, Seed, random};

const OPERATIONS: usize = 60;

/// No sequence begins after this, for each fifty of them: a store behind a network takes seconds for
/// one.
const TIME_MAX: Duration = Duration::from_secs(60);

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
        if begun.elapsed() > time_max {
            println!("{} sequences in {time_max:?}", sequence + 1);
            break;
        }
    }
}

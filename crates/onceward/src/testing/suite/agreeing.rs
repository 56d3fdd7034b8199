//! The store and the model, asked the same random things.

use crate::testing::{Harness, Seed, random};

/// How many sequences are run, unless `ONCEWARD_RUNS` says so.
const SEQUENCES: u64 = 100;
const OPERATIONS: usize = 60;

/// Random operations have the same answers and leave the same records on the store and the model.
pub async fn random_operations_agree_with_the_model(on: Harness) {
    let seed = Seed::from_environment();
    let sequences = match std::env::var("ONCEWARD_RUNS") {
        Ok(runs) => runs.trim().parse().expect("ONCEWARD_RUNS is a number"),
        Err(_) => SEQUENCES,
    };
    println!("ONCEWARD_SEED={seed} ONCEWARD_RUNS={sequences}");
    if let Err(disagreement) = random::run(&on, seed, sequences, OPERATIONS).await {
        panic!("{disagreement}");
    }
}

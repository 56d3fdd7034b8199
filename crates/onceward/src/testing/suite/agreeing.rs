//! The store and the model, asked the same random things.

use crate::testing::{Harness, Seed, random};

const OPERATIONS: usize = 60;

/// Random operations have the same answers and leave the same records on the store and the model.
pub async fn random_operations_agree_with_the_model(on: Harness) {
    let seed = Seed::from_environment();
    let sequences = random::sequences();
    println!("ONCEWARD_SEED={seed} ONCEWARD_RUNS={sequences}");
    if let Err(disagreement) = random::run(&on, seed, sequences, OPERATIONS).await {
        panic!("{disagreement}");
    }
}

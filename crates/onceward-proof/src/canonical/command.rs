//! The subcommand `canonical`.

use std::time::Instant;

use clap::Args;

use super::{compare, second::Slip};

/// How to compare.
#[derive(Args)]
pub struct Canonical {
    /// How many documents.
    #[arg(long, default_value_t = 1_000_000)]
    documents: u64,
    /// The seed of the first document; each further one has the next. Random by default.
    #[arg(long)]
    seed: Option<u64>,
    /// Makes the second implementation wrong on purpose: the comparison must fail.
    #[arg(long)]
    slip: Option<Slip>,
}

impl Canonical {
    /// Compares, and prints what was compared.
    ///
    /// # Errors
    /// With the first document on which the implementations differ.
    pub fn run(self) -> anyhow::Result<()> {
        let seed = self.seed.unwrap_or_else(rand::random);
        println!("canonical JSON: {} documents from --seed {seed}", self.documents);
        let begun = Instant::now();
        let compared = compare(seed, self.documents, self.slip)?;
        let seconds = begun.elapsed().as_secs_f64();
        let share = |part: u64| 100.0 * part as f64 / self.documents as f64;
        println!(
            "the implementations agree: {:.1} % canonical, {:.1} % raw; {:.0} documents/s, {seconds:.1} s",
            share(compared.canonical),
            share(compared.raw),
            self.documents as f64 / seconds
        );
        Ok(())
    }
}

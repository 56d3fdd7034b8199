//! The model: the protocol in small worlds, with everything that can go wrong, in every order.
//!
//! The store's atomic step is the real one, the functions of [`onceward::machine`]. What is modelled
//! around them is what the engine, upstream, the workers and the network do, as messages that get
//! lost, come twice and come late. The explorer is our own and small, since `stateright` would bring
//! a web server into the build.
//!
//! What is checked: that no step breaks a law (`laws`, and where upstream is called, acts and clients
//! are told), that from every state rest can be reached by fair steps alone, and that everything
//! worth being afraid of came up somewhere (`situation`). Errors made on purpose (`mistake`) show
//! that it would be found.
//!
//! What is assumed: upstream acts within `max_execution` and a settle after it was called, a probe
//! sees what is older than a settle, an operator is right, clocks neither drift apart nor go back,
//! and the store keeps what it acknowledged.

mod around; // time, upstream, workers
mod explore; // every state, breadth first
mod label; // what steps are called
mod laws; // what must hold whenever the record changes
mod mistake; // errors made on purpose
mod protocol; // what an attempt does
mod report; // the table
mod situation; // what must have come up
mod state; // a state, in canonical form
mod steps; // all steps from a state
mod store; // the real rules, on one record
mod world; // who comes, and how long things take

#[cfg(test)]
mod tests;

pub use explore::{Counterexample, Explored};
pub use mistake::Mistake;
pub use report::{Report, run};
pub use situation::{Seen, Situation};
pub use world::{LARGE, SMALL, World};

/// A world may not have more states than this.
const STATES_MAX: usize = 4_000_000;

/// Explores a world, with a mistake in it if one is given.
pub fn explore(world: World, mistake: Option<Mistake>) -> Explored {
    explore::explore(&steps::Protocol::new(world, mistake), STATES_MAX)
}

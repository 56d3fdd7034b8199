//! Workers: what has to be done though no client comes. Each can be run once, or again and again; any
//! number of processes may run them on one store.

mod beater;
mod reaper;
mod reconciler;
mod runner;
mod surveyor;
mod sweeper;

pub use beater::Beater;
pub use reaper::{Reap, Reaper};
pub use reconciler::{Finding, Probe, ProbeFuture, Reconciled, Reconciler, Unknown};
pub use surveyor::Surveyor;
pub use sweeper::{Sweep, Sweeper};

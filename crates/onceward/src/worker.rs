//! What goes on without a request.

mod reconciler;

pub use reconciler::{Finding, Probe, ProbeFuture, Reconciled, Reconciler, Unknown};

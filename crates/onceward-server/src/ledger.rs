//! The ledger check: our operations beside the provider's export.

mod amount; // exact decimals
mod entry; // what stands on each side
mod finding; // what is told
mod compare; // what a group of both means
mod spill; // more than fits in memory
mod check; // all of both sides
mod pointer; // parts of JSON documents
mod export; // the provider's side: CSV or lines of JSON
mod own; // our side: a store, or lines of JSON

pub(crate) use amount::Amount;
pub(crate) use check::Check;
pub(crate) use entry::{Charge, Claim, Entry};
pub(crate) use export::{Columns, Export, Format, moment};
pub(crate) use finding::{Finding, Kind, Summary};
pub(crate) use own::{OwnFile, Pointers, Reading};
pub(crate) use pointer::Pointer;

#[cfg(test)]
mod tests;

//! The tests of the library through its public interface, in one binary.

mod admission;
mod drain;
mod faults;
mod file_store;
mod in_flight;
mod lease;
mod outcomes;
mod service;

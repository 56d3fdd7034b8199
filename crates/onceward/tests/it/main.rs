//! The tests of the library through its public interface, in one binary.

mod drain;
mod faults;
mod file_store;
mod in_flight;
mod lease;
mod service;

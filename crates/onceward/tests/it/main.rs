//! The tests of the library through its public interface, in one binary.

mod acceptance;
mod admission;
mod bodies;
mod drain;
mod faults;
mod file_store;
mod in_flight;
mod lease;
mod observed;
mod outcomes;
mod problems;
mod replay;
mod server;
mod service;
mod stores;

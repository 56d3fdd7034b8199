//! The tests of the library through its public interface, in one binary.

mod acceptance;
mod admission;
mod bodies;
mod drain;
mod faults;
mod file_store;
mod file_store_batches;
mod file_store_lifetimes;
mod file_store_processes;
mod file_store_trouble;
mod fuzzing;
mod in_flight;
mod lease;
mod observed;
mod outbox;
mod outcomes;
mod problems;
mod processes;
mod replay;
mod schema;
mod scopes;
mod server;
mod service;
mod steps;
mod stores;

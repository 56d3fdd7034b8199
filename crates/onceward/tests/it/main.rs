//! The tests of the library through its public interface, in one binary.

mod faults;
mod file_store;
mod service;

//! The tests of the library through its public interface, in one binary.

mod file_store;

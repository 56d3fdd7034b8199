//! Real servers for tests and benchmarks, each in a directory and on a port of its own.

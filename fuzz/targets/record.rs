#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| onceward::testing::fuzz::record(data));

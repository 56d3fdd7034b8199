#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    onceward::testing::fuzz::json(data);
    if let Some(found) = onceward_proof::canonical::Disagreement::on(data, None) {
        panic!("{found}");
    }
});

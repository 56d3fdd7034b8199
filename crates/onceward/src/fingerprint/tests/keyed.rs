//! Keys, what is stored, and what is shown.

use std::collections::HashSet;

use super::super::{Fingerprint, FingerprintKey, KeyTooShort, RECIPE, Recipe};
use super::{JSON, of_body, post};

fn key(byte: u8) -> FingerprintKey {
    FingerprintKey::new(&[byte; 32]).expect("long enough")
}

fn keyed(byte: u8, body: &str) -> Fingerprint {
    let recipe = Recipe::canonical().keyed(key(byte));
    recipe.fingerprint(&post(&[("content-type", JSON)]), body.as_bytes())
}

/// Digests computed by another implementation. They are in people's stores:
/// if one changes, the recipe needs a new number.
#[test]
fn stored_fingerprints_stay_valid() {
    let hex = |fingerprint: Fingerprint| {
        let digits = fingerprint.digest().iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>()
    };
    let body = "{\"z\":[1.50,-0,\"\u{e9}\\/\"],\"a\":{\"\\u000a\":true}}";
    assert_eq!(
        hex(of_body(JSON, body)),
        "b228af56a2642ca8ffabcc446a788639faa8b4b3cc77209af8deced85b96e679"
    );
    assert_eq!(
        hex(keyed(7, body)),
        "968b0e6e7817df29edcf717d703b72f916a3f228c8c5980750e8fb49d7f8b30b"
    );
    assert_eq!(
        hex(of_body(super::FORM, "b=2&a=1+%25&a")),
        "3e8bffc75307960d9f1bef59a83549784a8995d7735ad2bf3c9b5f4da74fe185"
    );
    assert_eq!(
        hex(of_body("text/plain", "hello")),
        "aa88e40910636a60e0abcb0a152d0e676a3c04fb3c29ebde7ce747e305b1e910"
    );
    assert_eq!(
        hex(of_body(JSON, "{\"a\":1,\"a\":2}")),
        "838c08a584bd353218a144cbc11d9317275121db3fe464f478b2824116169c48"
    );
    assert_eq!(
        hex(of_body(JSON, "")),
        "411634e49306ddcb0f703076c5cb6e72709d5e51f344cba044c18c461560d210"
    );
}

#[test]
fn a_key_makes_other_fingerprints_and_the_same_key_the_same() {
    assert_eq!(keyed(1, "[1]"), keyed(1, "[ 1 ]"));
    assert_ne!(keyed(1, "[1]"), keyed(1, "[2]"));
    assert_ne!(keyed(1, "[1]"), keyed(2, "[1]"));
    assert_ne!(keyed(1, "[1]"), of_body(JSON, "[1]"));
}

#[test]
fn raw_bodies_are_keyed_too() {
    let parts = post(&[("content-type", JSON)]);
    let plain = Recipe::raw().fingerprint(&parts, b"[1]");
    let recipe = Recipe::raw().keyed(key(1));
    assert_ne!(recipe.fingerprint(&parts, b"[1]"), plain);
    assert_ne!(recipe.fingerprint(&parts, b"[1]"), recipe.fingerprint(&parts, b"[ 1]"));
    assert_eq!(recipe.fingerprint(&parts, b"[1]"), recipe.fingerprint(&parts, b"[1]"));
}

#[test]
fn a_key_id_names_the_key_and_only_the_key() {
    let id = |byte| Recipe::canonical().keyed(key(byte)).key_id();
    assert_eq!(id(1), id(1));
    assert_ne!(id(1), id(2));
    assert_eq!(id(1), Recipe::raw().keyed(key(1)).key_id());
    // Computed by another implementation, like the digests above.
    assert_eq!(id(7), Some([0x58, 0xab, 0xe6, 0xc3, 0x9a, 0x41, 0x2a, 0x28]));
    assert_eq!(Recipe::canonical().key_id(), None);
}

#[test]
fn a_short_key_is_refused() {
    assert_eq!(FingerprintKey::new(&[1; 15]).err(), Some(KeyTooShort));
    assert_eq!(FingerprintKey::new(&[]).err(), Some(KeyTooShort));
    assert!(FingerprintKey::new(&[1; 16]).is_ok());
    assert!(FingerprintKey::new(&[1; 100]).is_ok());
}

#[test]
fn secrets_are_not_shown() {
    let secret = b"correct horse battery staple";
    let key = FingerprintKey::new(secret).expect("long enough");
    assert_eq!(format!("{key:?}"), "FingerprintKey(..)");
    let shown = format!("{:?}", Recipe::canonical().keyed(key));
    assert!(shown.contains("FingerprintKey(..)"), "{shown}");
    assert!(!shown.contains("horse"), "{shown}");
}

#[test]
fn a_fingerprint_shows_its_recipe_and_four_bytes() {
    let digest = std::array::from_fn(|index| 0x0f + index as u8);
    let shown = format!("{:?}", Fingerprint::from_stored(1, digest));
    assert_eq!(shown, "Fingerprint(1:0f101112..)");
}

#[test]
fn a_fingerprint_comes_back_from_a_store_equal() {
    let made = of_body(JSON, "[1]");
    let stored = Fingerprint::from_stored(made.recipe(), *made.digest());
    assert_eq!(made, stored);
    assert_eq!(made.recipe(), RECIPE);
    assert_eq!(HashSet::from([made, stored]).len(), 1);
}

#[test]
fn every_bit_of_a_fingerprint_counts() {
    let zero = Fingerprint::from_stored(1, [0; 32]);
    assert_ne!(zero, Fingerprint::from_stored(2, [0; 32]));
    for bit in 0..256 {
        let mut digest = [0; 32];
        for byte in digest.iter_mut().skip(bit / 8).take(1) {
            *byte = 1 << (bit % 8);
        }
        assert_ne!(zero, Fingerprint::from_stored(1, digest));
    }
}

use clap::ValueEnum as _;

use super::*;

fn seed() -> u64 {
    let seed = match std::env::var("ONCEWARD_SEED") {
        Ok(seed) => seed.trim().parse().expect("ONCEWARD_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("ONCEWARD_SEED={seed}");
    seed
}

#[test]
fn two_implementations_of_canonical_json_agree_on_random_documents() {
    let compared = compare(seed(), 20_000, None).unwrap_or_else(|found| panic!("{found}"));
    // Agreement on nothing but garbage, or on nothing but tidy documents, would prove little.
    assert!(compared.canonical > 10_000, "{compared:?}");
    assert!(compared.raw > 4_000, "{compared:?}");
}

#[test]
fn two_implementations_of_canonical_json_agree_on_the_fuzz_corpus() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/json");
    let files: Vec<_> = std::fs::read_dir(corpus).expect("a corpus").collect();
    assert!(files.len() >= 10, "a corpus of {}", files.len());
    for file in files {
        let document = std::fs::read(file.expect("a file").path()).expect("readable");
        assert!(Disagreement::on(&document, None).is_none(), "{}", document.escape_ascii());
    }
}

#[test]
fn every_slip_of_the_second_implementation_is_found() {
    let seed = seed();
    for slip in Slip::value_variants() {
        let found = compare(seed, 20_000, Some(*slip)).err();
        let found = found.unwrap_or_else(|| panic!("{slip:?} was not found from seed {seed}"));
        println!("{slip:?} after {} documents: {found}", found.seed.wrapping_sub(seed) + 1);
        assert_ne!(found.library, found.second, "a shrunk document must show the difference still");
        assert!(Disagreement::on(&found.document, None).is_none(), "the slip alone is to blame");
    }
}

#[test]
fn a_disagreement_is_shown_on_a_short_document() {
    let long = br#"{"a": [1, 2, {"b": "x"}], "c": "long text \ud800 and more", "d": null}"#;
    let slip = Some(Slip::HalfPair);
    let found = Disagreement::on(long, slip).expect("half a pair").shrunk(slip);
    let text = String::from_utf8(found.document).expect("ASCII");
    assert!(text.starts_with("\"\\ud8") && text.len() == 8, "{text}");
    assert_eq!(found.library, None);
    assert_eq!(found.second.as_deref(), Some("\"\u{fffd}\"".as_bytes()));
}

/// The examples of the description, so that both cannot be wrong in the same way.
#[test]
fn the_second_implementation_says_what_the_description_says() {
    let canonical = |body: &str| {
        let form = second::canonical(body.as_bytes(), None)?;
        String::from_utf8(form).ok()
    };
    for (body, form) in [
        ("-12.50", "-125e-1"),
        ("1.0", "1"),
        ("10e-1", "1"),
        ("-0.0e7", "0"),
        ("9007199254740993", "9007199254740993"),
        ("100", "1e2"),
        (" [ 1 , {\"b\" : null, \"a\" : true} ] ", "[1,{\"a\":true,\"b\":null}]"),
        (r#"{"\ufb33":1,"\ud83d\ude02":2}"#, "{\"\u{1f602}\":2,\"\u{fb33}\":1}"),
        (r#""\u002f\u0008\u001F\u007f""#, "\"/\\b\\u001f\u{7f}\""),
    ] {
        assert_eq!(canonical(body).as_deref(), Some(form), "{body}");
    }
    for body in [
        "",
        "01",
        "{\"a\":1,\"\\u0061\":2}",
        "\"\\ud800\"",
        "1 2",
        "\u{feff}1",
        "1e99999999999999999999",
    ] {
        assert_eq!(canonical(body), None, "{body}");
    }
}

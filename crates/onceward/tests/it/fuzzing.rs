//! The fuzz targets without a fuzzer: every file of their corpora, and random offspring of them.

use std::{fs, path::PathBuf};

use onceward::testing::fuzz;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

/// How many random inputs each target gets.
const OFFSPRING: usize = 3_000;

#[test]
fn the_corpus_of_key_headers_holds() {
    run("key_header", fuzz::key_header);
}

#[test]
fn the_corpus_of_quoted_strings_holds() {
    run("quoted_string", fuzz::quoted_string);
}

#[test]
fn the_corpus_of_json_bodies_holds() {
    run("json", fuzz::json);
}

#[test]
fn the_corpus_of_form_bodies_holds() {
    run("form", fuzz::form);
}

#[test]
fn the_corpus_of_damaged_records_holds() {
    run("record", fuzz::record);
}

/// What is printed before a panic says which input it was.
fn run(target: &str, check: fn(&[u8])) {
    let corpus = corpus(target);
    assert!(corpus.len() >= 10, "a corpus of {}", corpus.len());
    for (name, input) in &corpus {
        println!("{name}");
        check(input);
    }
    let seed: u64 = match std::env::var("ONCEWARD_SEED") {
        Ok(seed) => seed.trim().parse().expect("ONCEWARD_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("ONCEWARD_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..OFFSPRING {
        check(&offspring(&corpus, &mut random));
    }
}

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let files = fs::read_dir(&folder).expect("a corpus").map(|file| file.expect("a file").path());
    let read = |path: PathBuf| (path.display().to_string(), fs::read(path).expect("readable"));
    let mut corpus: Vec<_> = files.map(read).collect();
    corpus.sort();
    corpus
}

/// The beginning of one input and the end of another, changed in a few places.
fn offspring(corpus: &[(String, Vec<u8>)], random: &mut StdRng) -> Vec<u8> {
    let mut half = || corpus.choose(random).expect("a corpus").1.clone();
    let (mut input, end) = (half(), half());
    if random.random_bool(0.3) {
        input.truncate(random.random_range(0..=input.len()));
        input.extend_from_slice(&end[random.random_range(0..=end.len())..]);
    }
    for _ in 0..random.random_range(0..4) {
        let at = random.random_range(0..=input.len());
        match random.random_range(0..3) {
            0 => input.insert(at, random.random()),
            1 if at < input.len() => {
                input.remove(at);
            }
            _ if at < input.len() => input[at] ^= 1 << random.random_range(0..8),
            _ => {}
        }
    }
    input
}

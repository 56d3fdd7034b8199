//! The acceptance table is true as far as a test can tell: complete, in order, and every test and
//! page that it names exists.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A row: its id, and what its proof column names.
struct Row {
    id: String,
    proofs: Vec<String>,
}

fn rows() -> Vec<Row> {
    let table = fs::read_to_string(repository().join("docs/acceptance.md")).expect("the table");
    let is_row = |line: &&str| line.starts_with("| R") || line.starts_with("| D");
    let rows = table.lines().filter(is_row).map(|line| {
        let columns: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [id, _level, _requirement, proof] = columns[..] else { panic!("four columns: {line}") };
        let proofs = proof.split(';').map(|part| part.trim().to_owned()).collect();
        Row { id: id.to_owned(), proofs }
    });
    rows.collect()
}

fn milestones() -> HashSet<String> {
    let table = fs::read_to_string(repository().join("docs/acceptance.md")).expect("the table");
    let names = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    names.map(|(name, _)| name.to_owned()).collect()
}

fn sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).expect("a source file"));
        }
    }
}

#[test]
fn every_requirement_has_its_row_in_order() {
    let requirements = (1..=303).map(|number| format!("R{number:03}"));
    let derived = (1..=20).map(|number| format!("D{number:02}"));
    let expected: Vec<String> = requirements.chain(derived).collect();
    let found: Vec<String> = rows().into_iter().map(|row| row.id).collect();
    assert_eq!(found, expected);
}

#[test]
fn every_proof_is_a_test_a_page_or_a_milestone_that_exists() {
    let mut text = String::new();
    for directory in ["crates", "examples"] {
        sources(&repository().join(directory), &mut text);
    }
    let milestones = milestones();
    let mut missing = Vec::new();
    for Row { id, proofs } in rows() {
        for proof in proofs {
            let exists = if let Some(milestone) = proof.strip_prefix("waits for: ") {
                milestones.contains(milestone)
            } else if let Some(page) = proof.strip_prefix("doc: ") {
                repository().join(page).is_file()
            } else {
                let name = proof.trim_matches('`');
                // A case that is written for several databases has parameters.
                let is_there = |after| text.contains(&format!("fn {name}{after}"));
                !name.is_empty() && (is_there('(') || is_there('<'))
            };
            if !exists {
                missing.push(format!("{id}: {proof}"));
            }
        }
    }
    assert!(missing.is_empty(), "not there:\n{}", missing.join("\n"));
}

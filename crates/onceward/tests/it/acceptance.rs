//! The acceptance table is true as far as a test can tell: complete, in order, and every test, page
//! and command that it names exists.

use std::{collections::HashSet, fs};

use crate::documents::{repository, walk};

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

/// What a file of sources has: functions that are tests, other functions, and names that stand alone in
/// a line, as cases do in the lists from which tests are made (`on_each_store!`, `store_suite!`).
#[derive(Default)]
struct Names {
    tests: HashSet<String>,
    functions: HashSet<String>,
    listed: HashSet<String>,
}

impl Names {
    fn read(&mut self, source: &str) {
        let mut is_test = false;
        for line in source.lines().map(str::trim) {
            if line.starts_with("#[") || line.starts_with("//") {
                is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
                continue;
            }
            if let Some(name) = function(line) {
                let these = if is_test { &mut self.tests } else { &mut self.functions };
                these.insert(name.to_owned());
            }
            let alone = match line.split_once("!(") {
                Some((list, name)) if list.starts_with("on_each_") => {
                    name.trim_end_matches([',', ')', ';'])
                }
                _ => line.strip_suffix(',').unwrap_or(line),
            };
            if is_name(alone) {
                self.listed.insert(alone.to_owned());
            }
            is_test = false;
        }
    }

    fn has_test(&self, name: &str) -> bool {
        self.tests.contains(name) || self.functions.contains(name) && self.listed.contains(name)
    }
}

/// The name of the function that begins in this line. A case that is written for several databases has
/// parameters.
fn function(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(line);
    let line = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
    line.split_once(['(', '<']).map(|(name, _)| name).filter(|name| is_name(name))
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
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
fn only_tests_and_listed_cases_are_taken_for_tests() {
    let mut names = Names::default();
    names.read(
        "on_each_store!(\n    listed,\n);\nfn listed(home: &Home) {}\nfn helper() {}\n\
         on_each_durable_store!(in_one_line,);\nfn in_one_line(home: &Home) {}\n\
         #[test]\nfn alone() {}\n\
         #[tokio::test(start_paused = true)]\n// why\n#[expect(lint)]\npub(crate) async fn slow() {}\n\
         async fn after_it<D: Database>() {}\nnobody,\n",
    );
    for (name, expected) in [
        ("listed", true),
        ("in_one_line", true),
        ("alone", true),
        ("slow", true),
        ("helper", false),
        ("after_it", false),
        ("nobody", false),
        ("absent", false),
    ] {
        assert_eq!(names.has_test(name), expected, "{name}");
    }
}

#[test]
fn every_proof_is_a_test_a_command_a_page_or_a_milestone_that_exists() {
    let mut names = Names::default();
    for directory in ["crates", "examples"] {
        for path in walk(&repository().join(directory), "rs") {
            names.read(&fs::read_to_string(path).expect("a source file"));
        }
    }
    let gate = fs::read_to_string(repository().join("test")).expect("./test");
    let milestones = milestones();
    let mut missing = Vec::new();
    for Row { id, proofs } in rows() {
        let mut seen = HashSet::new();
        for proof in &proofs {
            let exists = if let Some(milestone) = proof.strip_prefix("waits for: ") {
                milestones.contains(milestone)
            } else if let Some(page) = proof.strip_prefix("doc: ") {
                repository().join(page).is_file()
            } else if let Some(command) = proof.strip_prefix("run: ") {
                gate.lines().any(|line| line == command)
            } else {
                names.has_test(proof.trim_matches('`'))
            };
            if !exists || !seen.insert(proof) {
                missing.push(format!("{id}: {proof}"));
            }
        }
    }
    assert!(missing.is_empty(), "not there, or there twice:\n{}", missing.join("\n"));
}

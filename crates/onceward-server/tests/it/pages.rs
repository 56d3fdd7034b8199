//! The commands that pages type, in blocks and in sentences: each is one of the binary's, with flags that
//! it has.

use std::{collections::BTreeMap, fs, path::Path};

use crate::support::binary;

/// The pages of the repository.
fn pages(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && !matches!(name, "target" | ".git") {
            pages(&path, found);
        } else if name.ends_with(".md") {
            found.push(fs::read_to_string(&path).expect("a page"));
        }
    }
}

/// What a page says of a command, each with its arguments.
fn commands(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, part) in page.split("\n```").enumerate() {
        let typed: Vec<String> = match number % 2 {
            // A line of a block may go on in the next one.
            1 => part.replace("\\\n", " ").lines().map(str::to_owned).collect(),
            _ => part.split('`').skip(1).step_by(2).map(str::to_owned).collect(),
        };
        let typed = typed.iter().map(|line| line.trim().trim_start_matches("$ "));
        let typed = typed.filter_map(|line| line.strip_prefix("onceward "));
        found.extend(typed.map(|line| line.split(" # ").next().unwrap_or_default().to_owned()));
    }
    found
}

/// The words of a command before its arguments. Of `keys list|show` the first will do.
fn name(command: &str) -> Vec<String> {
    let words = command.split(' ').map(|word| word.split('|').next().unwrap_or_default());
    let is_name =
        |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
    words.take_while(is_name).map(str::to_owned).collect()
}

#[test]
fn every_command_that_a_page_types_is_there_with_its_flags() {
    let mut texts = Vec::new();
    pages(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), &mut texts);
    let mut helps: BTreeMap<Vec<String>, Option<String>> = BTreeMap::new();
    let mut help = |name: &[String]| {
        let told = helps.entry(name.to_vec()).or_insert_with(|| {
            let output = binary().args(name).arg("--help").output().expect("the binary runs");
            let text = String::from_utf8(output.stdout).expect("text");
            output.status.success().then_some(text)
        });
        told.clone()
    };
    let mut wrong = Vec::new();
    let mut typed = 0;
    for command in texts.iter().flat_map(|page| commands(page)) {
        let mut name = name(&command);
        // The last word may be an argument, where the command before it takes one.
        let told = help(&name).or_else(|| {
            name.pop();
            help(&name).filter(|told| !name.is_empty() && !told.contains("\nCommands:"))
        });
        typed += 1;
        let flags = command.split(' ').filter(|word| word.starts_with("--"));
        let mut flags = flags.map(|flag| flag.split(['=', ')', ',']).next().unwrap_or_default());
        let is_known = told.is_some_and(|told| flags.all(|flag| told.contains(flag)));
        if !is_known {
            wrong.push(command);
        }
    }
    assert!(typed > 100, "pages type commands: {typed}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

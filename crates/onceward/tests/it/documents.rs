//! The documents are true as far as a test can tell: what they lead to is there, and the map of the
//! code has all of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files below a folder whose names end in this way. What is built and what is not ours is left out.
pub(crate) fn walk(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, kind) = (entry.path(), entry.file_type().expect("its kind"));
        let name = entry.file_name();
        if kind.is_dir() && name != "target" && name != ".git" {
            found.extend(walk(&path, extension));
        } else if kind.is_file() && path.extension().is_some_and(|its| its == extension) {
            found.push(path);
        }
    }
    found
}

/// A page without its blocks of code, which have signs of their own.
fn prose(page: &Path) -> String {
    let text = fs::read_to_string(page).expect("a page");
    let outside = text.split("\n```").step_by(2);
    outside.collect()
}

/// Its headings, as links call them.
fn headings(page: &Path) -> BTreeSet<String> {
    let name = |heading: &str| {
        let kept = heading.trim().to_lowercase().replace(' ', "-");
        kept.chars().filter(|sign| sign.is_alphanumeric() || matches!(sign, '-' | '_')).collect()
    };
    let prose = prose(page);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| name(line.trim_start_matches('#'))).collect()
}

#[test]
fn every_link_of_a_page_leads_to_a_file_and_a_heading_that_are_there() {
    let mut lost = Vec::new();
    let mut followed = 0;
    for page in walk(&repository(), "md") {
        let text = prose(&page);
        let targets = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
        for target in targets.filter(|target| !target.contains("://")) {
            followed += 1;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file =
                if file.is_empty() { page.clone() } else { page.with_file_name("").join(file) };
            let is_there =
                file.exists() && (heading.is_empty() || headings(&file).contains(heading));
            if !is_there {
                lost.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(followed > 50, "the pages have links: {followed}");
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}

/// Pages name files by their paths from here, as `docs/guide.md`.
#[test]
fn every_path_that_a_page_names_is_there() {
    let mut lost = Vec::new();
    let mut named = 0;
    for page in walk(&repository(), "md") {
        let text = prose(&page);
        for name in text.split('`').skip(1).step_by(2) {
            let name = name.split([' ', ';']).next().unwrap_or_default();
            let folders = ["docs/", "deploy/", "crates/", "examples/", "fuzz/"];
            // `docs/errors/<code>.md` is not the name of one file.
            if folders.iter().any(|folder| name.starts_with(folder)) && !name.contains('<') {
                named += 1;
                if !repository().join(name).exists() {
                    lost.push(format!("{}: {name}", page.display()));
                }
            }
        }
    }
    assert!(named > 50, "the pages name files: {named}");
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}

/// What the code map says of each module, by its path below `src`: a row of a table, or a paragraph that
/// begins with its name. Several modules may share a row.
fn entries(map: &str) -> BTreeMap<String, String> {
    let mut entries: BTreeMap<String, String> = BTreeMap::new();
    for line in map.lines() {
        let names = match line.strip_prefix("| ") {
            Some(row) => row.split(" | ").next().unwrap_or_default(),
            None if line.starts_with("`store") => line.split(' ').next().unwrap_or_default(),
            None => continue,
        };
        for name in names.split('`').skip(1).step_by(2) {
            entries.entry(name.to_owned()).or_default().push_str(line);
        }
    }
    entries
}

/// The modules in a folder of sources, but for their tests.
fn modules(folder: &Path) -> BTreeSet<String> {
    let Ok(read) = fs::read_dir(folder) else { return BTreeSet::new() };
    let paths = read.map(|entry| entry.expect("an entry").path());
    let paths =
        paths.filter(|path| path.is_dir() || path.extension().is_some_and(|its| its == "rs"));
    let names = paths.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    names.filter(|name| !matches!(&**name, "tests" | "lib" | "main" | "lua")).collect()
}

/// What is missing of a folder. Its modules stand in what is said of it, or have an entry of their own;
/// or nothing is said of any of them.
fn missing(source: &Path, folder: &str, entries: &BTreeMap<String, String>) -> Vec<String> {
    let path = |name: &str| [folder, name].join("/").trim_start_matches('/').to_owned();
    let said = entries.get(folder).map(String::as_str).unwrap_or_default();
    let stands = |name: &&String| {
        let its = path(name);
        entries.contains_key(&its)
            || said.contains(&format!("`{name}`"))
            || said.contains(&format!("`{its}`"))
    };
    let all = modules(&source.join(folder));
    let (there, not): (Vec<&String>, Vec<&String>) = all.iter().partition(stands);
    let mut lost: Vec<String> = match folder.is_empty() || !there.is_empty() {
        true => not.iter().map(|name| path(name)).collect(),
        false => Vec::new(),
    };
    for name in there {
        lost.extend(missing(source, &path(name), entries));
    }
    lost
}

#[test]
fn every_module_has_its_place_in_the_code_map() {
    let text = fs::read_to_string(repository().join("ARCHITECTURE.md")).expect("the architecture");
    let map = text.split("## Code map").nth(1).expect("the code map");
    let (library, rest) =
        map.split_once("`crates/onceward-server`, the binary").expect("two parts");
    let server = rest.split("\n`crates/onceward-proof`").next().expect("its end");
    let mut lost = Vec::new();
    for (name, map) in [("onceward", library), ("onceward-server", server)] {
        let source = repository().join("crates").join(name).join("src");
        let entries = entries(map);
        lost.extend(
            missing(&source, "", &entries).into_iter().map(|path| format!("{name}: {path}")),
        );
        // Nothing is left in the map of what is gone.
        let gone = entries.keys().filter(|path| {
            !source.join(path).is_dir() && !source.join(format!("{path}.rs")).is_file()
        });
        lost.extend(
            gone.filter(|path| *path != "module").map(|path| format!("{name}: {path} is gone")),
        );
    }
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}

/// What the page of each store has, by the headings under which it stands.
const PARTS: [&str; 4] =
    ["## What it promises", "## What it can lose", "## Sizing", "## When to choose it"];

/// What stands under the heading that begins so.
fn under<'p>(page: &'p str, heading: &str) -> &'p str {
    let begun = page.split("\n## ").find_map(|part| part.strip_prefix(&heading[3..]));
    begun.and_then(|part| part.split_once('\n')).map_or("", |(_, text)| text.trim())
}

#[test]
fn the_page_of_each_store_says_what_it_promises_what_it_loses_its_size_and_when_to_choose_it() {
    let guide = repository().join("docs/guide");
    let choosing = fs::read_to_string(guide.join("stores.md")).expect("a page");
    let mut lacking = Vec::new();
    for store in ["memory", "file", "postgres", "mysql", "redis", "dynamodb", "cache"] {
        let name = format!("{store}.md");
        assert!(choosing.contains(&format!("]({name})")), "nothing leads to {name}");
        let page = fs::read_to_string(guide.join(&name)).expect("a page");
        let lacks = PARTS.iter().filter(|part| under(&page, part).len() < 80);
        lacking.extend(lacks.map(|part| format!("{name}: {part}")));
    }
    assert!(lacking.is_empty(), "{}", lacking.join("\n"));
    let hollow = "# A store\n\n## Sizing\n\n## When to choose it\n\nNever.\n";
    assert_eq!(PARTS.map(|part| under(hollow, part)), ["", "", "", "Never."]);
}

/// The numbers that stand right before these words.
fn numbers_before(text: &str, words: &str) -> Vec<u64> {
    let before = text.match_indices(words).map(|(at, _)| &text[..at]);
    let numbers = before.filter_map(|before| before.rsplit(char::is_whitespace).next());
    numbers.filter_map(|number| number.replace(',', "").parse().ok()).collect()
}

/// A cell such as `12 + 2R`: units, and those for each kB of a reply.
fn cost(cell: &str) -> Option<[u64; 2]> {
    let mut parts = cell.trim_matches(['*', ' ']).split(" + ");
    parts.try_fold([0, 0], |[units, replies], part| match part.strip_suffix('R') {
        Some("") => Some([units, replies + 1]),
        Some(times) => Some([units, replies + times.parse::<u64>().ok()?]),
        None => Some([units + part.parse::<u64>().ok()?, replies]),
    })
}

fn sum(costs: &[[u64; 2]]) -> [u64; 2] {
    [0, 1].map(|which| costs.iter().map(|cost| cost[which]).sum())
}

/// All of it is reckoned from the table of what each call writes, with replies of 1 kB.
#[test]
fn what_a_key_costs_in_dynamodb_is_one_figure_on_both_pages() {
    let page = |name: &str| {
        fs::read_to_string(repository().join("docs/guide").join(name)).expect("a page")
    };
    let (dynamodb, stores) = (page("dynamodb.md"), page("stores.md"));
    let table = dynamodb.split("| call | table |").nth(1).expect("a table");
    let table = table.split("\n\n").next().expect("its end");
    let rows: Vec<Vec<[u64; 2]>> =
        table.lines().skip(2).map(|row| row.split('|').filter_map(cost).collect()).collect();
    let (together, calls) = rows.split_last().expect("rows");
    let each: Vec<[u64; 2]> = calls.iter().map(|call| call[3]).collect();
    assert_eq!(calls.iter().map(|call| sum(&call[..3])).collect::<Vec<_>>(), each);
    assert_eq!(together, &[sum(&each)]);

    let a_key: u64 = together[0].iter().sum();
    assert_eq!(numbers_before(&stores, " WCU a key"), [a_key]);
    for (text, rates) in [(&dynamodb, &[1_000][..]), (&stores, &[200_000, 500])] {
        let units: Vec<u64> = rates.iter().map(|keys| keys * a_key).collect();
        assert_eq!(numbers_before(text, " WCU/s"), units);
        assert!(text.contains("0.625 USD") && text.contains("0.00065 USD"), "the prices");
        let on_demand = |units: u64| units * 30 * 86_400 * 625 / 1_000_000_000;
        let provisioned = |units: u64| units * 30 * 24 * 65 / 100_000;
        let dollars = |price: fn(u64) -> u64| units.iter().map(|it| price(*it)).collect();
        let (on_demand, provisioned): (Vec<u64>, Vec<u64>) =
            (dollars(on_demand), dollars(provisioned));
        for (words, exact) in
            [(" USD a month on demand", on_demand), (" USD a month provisioned", provisioned)]
        {
            let told = numbers_before(text, words);
            assert_eq!(told.len(), exact.len(), "{words}");
            for (told, exact) in told.iter().zip(&exact) {
                assert!(told.abs_diff(*exact) * 100 <= *exact, "{told} is not {exact}{words}");
            }
        }
        assert_eq!(numbers_before(text, " keys/s together"), [16 * 500]);
    }
}

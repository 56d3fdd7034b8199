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

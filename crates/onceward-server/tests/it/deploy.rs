//! What is shipped beside the binary: the image's build gets all that it needs, and the unit is one.

use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::support::binary;

fn repository() -> PathBuf {
    fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).expect("the repository")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rules of `.dockerignore` that we use: the last one that fits a path or a folder above it decides.
struct Context(Vec<(bool, String)>);

impl Context {
    fn read() -> Context {
        let rules = read(repository().join(".dockerignore"));
        let rules = rules.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        Context(
            rules
                .map(|line| match line.strip_prefix('!') {
                    Some(kept) => (true, kept.to_owned()),
                    None => (false, line.to_owned()),
                })
                .collect(),
        )
    }

    fn has(&self, path: &Path) -> bool {
        let mut fitting = self.0.iter().filter(|(_, pattern)| fits(pattern, path));
        fitting.next_back().is_none_or(|(kept, _)| *kept)
    }
}

/// `*` stands for a name or a part of one, `**/` for any folders.
fn fits(pattern: &str, path: &Path) -> bool {
    let names: Vec<&str> = path.iter().filter_map(|name| name.to_str()).collect();
    let name_fits = |pattern: &str, name: &str| match pattern.split_once('*') {
        Some((begin, end)) => name.starts_with(begin) && name.ends_with(end),
        None => pattern == name,
    };
    match pattern.strip_prefix("**/") {
        Some(last) => names.iter().any(|name| name_fits(last, name)),
        None => {
            let patterns: Vec<&str> = pattern.split('/').collect();
            patterns.len() <= names.len()
                && patterns.iter().zip(&names).all(|(pattern, name)| name_fits(pattern, name))
        }
    }
}

/// All that is in the repository but for what builds leave behind.
fn files(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match path.is_dir() {
            true if name != "target" && name != ".git" => files(&path, all),
            true => {}
            false => all.push(path),
        }
    }
}

/// The files outside of its folder that a source compiles in.
fn included(source: &Path) -> Vec<PathBuf> {
    let text = read(source);
    let folder = source.parent().expect("a folder");
    let after = ["include_str!", "include_bytes!", "include!"];
    let places = after.iter().flat_map(|name| text.match_indices(name));
    let named = places.filter_map(|(at, _)| {
        let literal = text[at..].split_once('"')?.1.split_once('"')?.0;
        literal.starts_with("..").then(|| folder.join(literal))
    });
    named.map(|path| without_dots(&path)).collect()
}

fn without_dots(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut clean, part| {
        match part {
            Component::ParentDir => drop(clean.pop()),
            part => clean.push(part),
        }
        clean
    })
}

#[test]
fn the_image_is_built_from_a_context_that_has_all_that_its_build_reads() {
    let (root, context) = (repository(), Context::read());
    let mut all = Vec::new();
    files(&root, &mut all);
    let relative = |path: &Path| path.strip_prefix(&root).expect("inside").to_owned();
    let kept: Vec<PathBuf> =
        all.iter().map(|path| relative(path)).filter(|path| context.has(path)).collect();
    let there = |path: &Path| kept.iter().any(|kept| kept == path || kept.starts_with(path));

    // What the sources take in from elsewhere.
    let mut wanted = BTreeSet::new();
    for source in &kept {
        let of_the_build = ["crates/onceward/src", "crates/onceward-server/src"];
        let is_source = source.extension().is_some_and(|extension| extension == "rs");
        if is_source && of_the_build.iter().any(|folder| source.starts_with(folder)) {
            wanted.extend(included(&root.join(source)).iter().map(|path| relative(path)));
        }
    }
    assert!(wanted.contains(Path::new("README.md")), "{wanted:?}");
    assert!(wanted.len() > 10, "{wanted:?}");
    // A part of a name may be put together by a macro: then its folder has to be there.
    let missing: Vec<_> = wanted.iter().filter(|path| !there(path)).collect();
    assert!(missing.is_empty(), "not in the context: {missing:?}");

    // What cargo asks for before it compiles anything: all members, with all their targets.
    let copy = tempfile::tempdir().expect("a folder");
    for path in &kept {
        let to = copy.path().join(path);
        fs::create_dir_all(to.parent().expect("a folder")).expect("made");
        fs::copy(root.join(path), to).expect("copied");
    }
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"])
        .current_dir(copy.path())
        .output()
        .expect("cargo");
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));

    for secret in [".git/config", "target/debug/onceward", "crates/onceward/target/x", "a.db"] {
        assert!(!context.has(Path::new(secret)), "{secret} is nobody's business");
    }
}

#[test]
fn the_image_is_built_by_the_compiler_that_the_workspace_asks_for_and_runs_as_nobody() {
    let image = read(repository().join("deploy/docker/Dockerfile"));
    let workspace = read(repository().join("Cargo.toml"));
    let version = workspace.lines().find_map(|line| line.strip_prefix("rust-version = \""));
    let version = version.expect("a version").trim_end_matches('"');
    assert!(image.contains(&format!("FROM rust:{version}-")), "{version}");
    assert!(image.contains("COPY . ."), "all of the context");
    let user = image.lines().rfind(|line| line.starts_with("USER ")).expect("a user");
    assert!(!user.contains("root") && !user.starts_with("USER 0"), "{user}");
}

#[test]
fn the_dashboards_are_json_and_each_panel_asks_for_something() {
    let folder = repository().join("deploy/grafana");
    let files = fs::read_dir(folder).expect("a folder").map(|file| file.expect("an entry").path());
    let mut panels_of_all = Vec::new();
    for file in files {
        let dashboard: Value = serde_json::from_str(&read(&file)).expect("JSON");
        let panels = dashboard["panels"].as_array().expect("panels");
        let (rows, shown): (Vec<&Value>, Vec<&Value>) =
            panels.iter().partition(|panel| panel["type"] == "row");
        let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
        assert_eq!(ids.len(), panels.len(), "{}: each has an id of its own", file.display());
        for panel in &shown {
            assert_ne!(panel["title"].as_str().unwrap_or_default(), "", "{panel}");
            let targets = panel["targets"].as_array().expect("targets");
            let names: BTreeSet<&str> =
                targets.iter().filter_map(|target| target["refId"].as_str()).collect();
            assert!(!targets.is_empty() && names.len() == targets.len(), "{panel}");
            for target in targets {
                assert!(target["expr"].as_str().is_some_and(|expr| !expr.is_empty()), "{panel}");
            }
        }
        panels_of_all.push((rows.len(), shown.len()));
    }
    assert_eq!(panels_of_all, [(4, 20)], "rows, and what stands in them");
}

#[test]
fn systemd_finds_nothing_to_say_about_the_unit() {
    let unit = read(repository().join("deploy/systemd/onceward.service"));
    let folder = tempfile::tempdir().expect("a folder");
    let verify = |unit: &str| -> String {
        let path = folder.path().join("onceward.service");
        // The program has to be there.
        let program = binary().get_program().to_str().expect("a path").to_owned();
        fs::write(&path, unit.replace("/usr/local/bin/onceward", &program)).expect("written");
        let said = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output();
        let said = said.expect("systemd-analyze, of the package systemd");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let said = String::from_utf8(said.stderr).expect("text");
        said.lines().filter(|line| line.contains("onceward.service")).collect()
    };
    assert_eq!(verify(&unit), "");
    let broken = verify(&unit.replace("RestartSec=", "RestartSecs="));
    assert!(broken.contains("RestartSecs"), "{broken}");
}

//! `config`, `routes` and `explain`, the examples, and the page that describes all settings.

use std::{collections::BTreeSet, path::Path, process::Output};

use serde_json::Value;

use crate::support::binary;

fn run(args: &[&str]) -> Output {
    let mut command = binary();
    // What the examples take from the environment.
    command.env("DATABASE_URL", "postgres://u:canary@db/shop");
    command.env("JWT_SECRET", "canary-0123456789-0123456789-0123456789");
    command.args(args).output().expect("the binary runs")
}

fn stdout(args: &[&str]) -> String {
    let output = run(args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).expect("JSON")
}

fn refusal(args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).expect("text")
}

fn with_file<T>(toml: &str, use_it: impl Fn(&str) -> T) -> T {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    let toml = format!("config_version = 1\n[gateway]\nupstream = \"http://bank:3000\"\n{toml}");
    std::fs::write(file.path(), toml).expect("written");
    use_it(file.path().to_str().expect("text"))
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn examples() -> Vec<String> {
    let folder = repository().join("deploy/examples");
    let files = std::fs::read_dir(folder).expect("the examples");
    let paths = files.map(|file| file.expect("a file").path().to_str().expect("text").to_owned());
    paths.filter(|path| path.ends_with(".toml")).collect()
}

#[test]
fn every_example_can_be_used_and_described() {
    let examples = examples();
    assert!(examples.len() >= 5, "{examples:?}");
    for path in &examples {
        assert_eq!(stdout(&["config", "check", path]), "the configuration can be used\n", "{path}");
        for command in [["config", "show"], ["config", "contract"], ["routes", "list"]] {
            let [group, name] = command;
            let table = stdout(&[group, name, path]);
            let json = json(&[group, name, path, "-o", "json"]).to_string();
            for text in [table, json] {
                assert!(!text.is_empty() && !text.contains("canary-"), "{path}: {text}");
            }
        }
    }
}

#[test]
fn check_says_what_is_wrong_and_what_is_probably_not_meant() {
    let hidden = "[[route]]\nmatch = \"* /v1/**\"\n[[route]]\nmatch = \"POST /v1/a\"\n";
    let refused = with_file(hidden, |file| refusal(&["config", "check", file]));
    assert!(refused.contains("route \"POST /v1/a\" (line 7): no request reaches it"), "{refused}");
    assert_eq!(refused.lines().count(), 1, "{refused}");
    let both = "[[route]]\nmatch = \"POST /*/a\"\n[[route]]\nmatch = \"POST /v1/*\"\n";
    let warned = with_file(both, |file| stdout(&["config", "check", file]));
    assert!(warned.starts_with("warning: routes \"POST /*/a\" (line 5) and"), "{warned}");
    let warned = with_file(both, |file| json(&["config", "check", file, "-o", "json"]));
    assert_eq!(warned["warnings"].as_array().map(Vec::len), Some(1));
    assert!(refusal(&["config", "check", "/does/not/exist.toml"]).contains("cannot be read"));
    assert!(refusal(&["config", "check"]).contains("no upstream"));
    assert!(refusal(&["config", "chekc"]).contains("check"));
    stdout(&["config", "check", "--upstream", "http://bank:3000"]);
}

#[test]
fn what_is_shown_is_what_holds() {
    let toml = "[scope]\nfrom = \"jwt:sub\"\njwt_secret = \"${env:JWT_SECRET}\"\n[store]\n\
                url = \"${env:DATABASE_URL}\"\n[defaults]\nlease = \"10s\"\n\
                fingerprint_key = \"canary-0123456789\"\n[[route]]\nmatch = \"POST /a\"\n\
                retention = \"72h\"\n[[webhook]]\nname = \"bank\"\n\
                secret = \"canary-0123456789\"\noperation = \"/operation\"\n\
                routes = [\"POST /a\"]\n\
                outcome = \"/status\"\ncompleted = [\"done\"]\n[[sink]]\nname = \"mail\"\n\
                url = \"http://mail/send\"\nidempotent = true\n\
                headers = { authorization = \"canary-0123456789\" }\n";
    let shown = with_file(toml, |file| json(&["config", "show", file, "-o", "json"]));
    assert_eq!(shown["store"]["url"], "postgres://u:***@db/shop");
    assert_eq!(
        (&shown["scope"]["jwt_secret"], &shown["scope"]["jwt_issuer"]),
        (&"***".into(), &Value::Null)
    );
    assert_eq!(
        (&shown["defaults"]["lease"], &shown["defaults"]["retention"]),
        (&"10s".into(), &"24h".into())
    );
    let route = &shown["route"][0];
    assert_eq!((&route["match"], &route["lease"]), (&"POST /a".into(), &"10s".into()));
    assert_eq!((&route["retention"], &route["fingerprint_key"]), (&"72h".into(), &"***".into()));
    let flags =
        ["config", "show", "--upstream", "http://b:1", "--scope", "anonymous", "-o", "json"];
    assert_eq!(json(&flags)["scope"]["from"], "anonymous");
    let table = with_file(toml, |file| stdout(&["config", "show", file]));
    assert!(table.contains("route \"POST /a\"\n  retention  72h\n"), "{table}");
    // Every key that can be written is shown, under its name.
    for (section, keys) in keys_of_the_schema() {
        let shown = match &*section {
            "route" | "webhook" | "sink" => &shown[&section][0],
            _ => &shown[&section],
        };
        let shown: BTreeSet<String> = shown.as_object().expect(&section).keys().cloned().collect();
        assert_eq!(shown, keys, "{section}");
    }
}

#[test]
fn routes_are_listed_in_their_order() {
    let toml = "[[route]]\nmatch = \"POST /a\"\nkey = \"off\"\n[[route]]\nmatch = \"* /b\"\n\
                methods = [\"PUT\"]\n";
    let table = with_file(toml, |file| stdout(&["routes", "list", file]));
    let first: Vec<&str> =
        table.lines().map(|line| line.split("  ").next().unwrap_or("")).collect();
    assert_eq!(first, ["MATCH", "POST /a", "* /b", "(all others)"]);
    let routes = with_file(toml, |file| json(&["routes", "list", file, "-o", "json"]));
    let protects: Vec<&Value> =
        routes.as_array().expect("a list").iter().map(|r| &r["protects"]).collect();
    assert_eq!(*protects[0], serde_json::json!([]));
    assert_eq!(*protects[1], serde_json::json!(["POST", "PATCH", "PUT"]));
    assert_eq!(*protects[2], serde_json::json!(["POST", "PATCH"]));
}

#[test]
fn the_contract_tells_clients_what_holds_for_each_route() {
    let toml = "[key]\nmin_len = 20\n[[route]]\nmatch = \"POST /a\"\nretention = \"72h\"\n\
                profile = \"stripe\"\nfingerprint_exclude = [\"/sent_at\"]\n\
                max_request_age = \"24h\"\n[[route]]\nmatch = \"POST /b\"\nkey = \"off\"\n";
    let text = with_file(toml, |file| stdout(&["config", "contract", file]));
    let (before, rest) = text.split_once("### `POST /a`").expect("a section");
    assert!(before.contains("20 to 255 characters"), "{before}");
    assert!(before.contains("`Authorization`"), "whose keys: {before}");
    let (a, rest) = rest.split_once("### `POST /b`").expect("a section");
    for part in [
        "| the same key, another request | 400,",
        "| kept for | 72h from completion |",
        "| after that | it runs again",
        "without `/sent_at`",
        "UUID of version 7",
        "| key | optional",
        "| 5xx of the service | stored",
    ] {
        assert!(a.contains(part), "{part} in {a}");
    }
    let (b, others) = rest.split_once("### All other requests").expect("a section");
    assert!(b.contains("Not protected"), "{b}");
    for part in ["| the same key, another request | 422,", "| kept for | 24h", "410 for 30d"] {
        assert!(others.contains(part), "{part} in {others}");
    }
    assert!(others.contains("| `idempotency_request_too_old` | 400 | `never` |"), "{others}");
    let same = with_file(toml, |file| json(&["config", "contract", file, "-o", "json"]));
    assert_eq!(same["routes"][0]["mismatch_status"], 400);
    assert_eq!(same["routes"][2]["retention_seconds"], 86_400);
    let plain = with_file("", |file| stdout(&["config", "contract", file]));
    assert!(!plain.contains("idempotency_request_too_old"), "only where it can come");
}

/// A part of a page, from its heading to the next one.
fn section<'p>(page: &'p str, heading: &str) -> &'p str {
    let (_, rest) = page.split_once(&format!("## {heading}\n\n")).expect("a heading");
    rest.split("\n## ").next().unwrap_or_default()
}

/// The rows of a table, by their first column.
fn row<'p>(section: &'p str, first: &str) -> &'p str {
    let mut rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let row = rows.find_map(|row| row.strip_prefix(first)?.strip_prefix(" | "));
    row.unwrap_or_else(|| panic!("no row `{first}` in {section}"))
}

#[test]
fn the_contract_tells_what_is_stored_of_a_request_and_how() {
    const PRIVATE: &str = "[privacy]\nhash_keys = \"0123456789abcdef\"\n\
        keys = [{ id = \"a\", secret = \"YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=\" }]\n";
    for (toml, key, reply, kept) in [
        ("", "as it was sent", "as it was sent", ["plain", "plain"]),
        (PRIVATE, "a digest of it that needs a secret (HMAC)", "encrypted", ["hmac", "encrypted"]),
    ] {
        let page = with_file(toml, |file| stdout(&["config", "contract", file]));
        let section = section(&page, "What is kept");
        assert!(row(section, "your key").starts_with(key), "{section}");
        assert!(row(section, "headers and body of the reply").starts_with(reply), "{section}");
        let request = row(section, "the body of the request");
        assert!(request.starts_with("not kept, only a digest of it; "), "{section}");
        assert!(request.contains("queued or runs in phases, like a reply until it ends"));
        assert_eq!(row(section, "method, path without query, status, times"), "as they were");
        assert_eq!(row(section, "credentials, cookies"), "never");
        let same = with_file(toml, |file| json(&["config", "contract", file, "-o", "json"]));
        let told = [&same["kept"]["keys"], &same["kept"]["replies"]];
        assert_eq!(told.map(|it| it.as_str().unwrap_or_default()), kept);
    }
}

#[test]
fn the_contract_tells_what_a_replay_is_and_by_what_it_is_known() {
    let page = with_file("", |file| stdout(&["config", "contract", file]));
    let section = section(&page, "What comes back");
    for part in [
        "its status, its body and its headers, without cookies, date, CORS and connection headers",
        "A replay is the same status and the same bytes.",
    ] {
        assert!(section.contains(part), "{part} in {section}");
    }
    for (header, says) in [
        ("`Idempotent-Replayed: true`", "this is a stored reply"),
        ("`Idempotency-Expires`", "until when the reply is kept"),
        ("`Idempotency-Generation`", "from 2 on: the key had expired, and ran again"),
        ("`Retry-After`", "how many seconds to wait before the next attempt"),
    ] {
        assert_eq!(row(section, header), says);
    }
    let outcome = row(section, "`Onceward-Outcome`");
    for word in ["`executed`", "`replayed`", "`conflict`", "`mismatch`", "`unknown`"] {
        assert!(outcome.contains(word), "{word} in {outcome}");
    }
}

#[test]
fn the_contract_tells_of_each_status_whether_it_is_stored_runs_again_or_leaves_it_open() {
    let toml = |word: &str| format!("[defaults]\non_5xx = \"{word}\"\n");
    let (stored, again) = ([200, 301, 400].as_slice(), [401, 403, 408, 425, 429].as_slice());
    let not_known = [502, 504].as_slice();
    for (word, of_500, says) in [
        ("retry", "runs_again", "passed on, and a retry runs again"),
        ("store", "stored", "stored and replayed like any other reply"),
        ("unknown", "unknown", "the outcome is unknown: a retry gets 409 and is not run"),
    ] {
        let toml = toml(word);
        let told = with_file(&toml, |file| json(&["config", "contract", file, "-o", "json"]));
        for (name, statuses) in [("stored", stored), ("runs_again", again), ("unknown", not_known)]
        {
            let more = if name == of_500 { [500, 503].as_slice() } else { &[] };
            let mut expected = [statuses, more].concat();
            expected.sort_unstable();
            assert_eq!(told["routes"][0][name], Value::from(expected), "{word}: {name}");
        }
        let page = with_file(&toml, |file| stdout(&["config", "contract", file]));
        assert_eq!(row(&page, "5xx of the service"), says);
        let stored = row(&page, "stored");
        assert!(stored.contains("except 401, 403, 408, 425 and 429"), "{stored}");
    }
}

#[test]
fn a_code_is_explained_and_a_typing_error_is_noticed() {
    let page = repository().join("docs/errors/idempotency_key_in_progress.md");
    let page = std::fs::read_to_string(page).expect("the page");
    for code in [
        "idempotency_key_in_progress",
        "key_in_progress",
        "urn:onceward:problem:idempotency_key_in_progress",
    ] {
        assert_eq!(stdout(&["explain", code]), page, "{code}");
    }
    let told = json(&["explain", "key_in_progress", "-o", "json"]);
    assert_eq!((&told["status"], &told["retry"]), (&409.into(), &"same_key".into()));
    let refused = refusal(&["explain", "key_in_progres"]);
    assert!(refused.contains("did you mean `idempotency_key_in_progress`?"), "{refused}");
}

#[test]
fn every_command_has_help_with_examples() {
    for args in [
        &["config", "check"][..],
        &["config", "show"],
        &["config", "schema"],
        &["config", "contract"],
        &["routes", "list"],
        &["explain"],
    ] {
        let help = stdout(&[args, &["--help"]].concat());
        assert!(help.contains("Examples:"), "{args:?}: {help}");
    }
    assert_eq!(run(&["explain"]).status.code(), Some(1), "a code is missing");
}

/// Section by section, the keys that the schema knows.
fn keys_of_the_schema() -> Vec<(String, BTreeSet<String>)> {
    let schema = json(&["config", "schema"]);
    let resolved = |value: &Value| -> Value {
        let value = value.get("items").unwrap_or(value);
        let reference = value["$ref"].as_str().expect("a reference");
        schema.pointer(reference.trim_start_matches('#')).expect(reference).clone()
    };
    let sections = schema["properties"].as_object().expect("sections").iter();
    sections
        .filter(|(name, _)| *name != "config_version")
        .map(|(name, section)| {
            let keys =
                resolved(section)["properties"].as_object().expect(name).keys().cloned().collect();
            (name.clone(), keys)
        })
        .collect()
}

#[test]
fn the_schema_refuses_unknown_keys_and_describes_the_known_ones() {
    let schema = json(&["config", "schema"]);
    assert_eq!(schema["required"], serde_json::json!(["config_version"]));
    assert_eq!(schema["additionalProperties"], false);
    let route = &schema["$defs"]["Route"];
    assert_eq!(route["required"], serde_json::json!(["match"]));
    assert_eq!(route["additionalProperties"], false);
    assert_eq!(
        route["properties"]["key"]["enum"],
        serde_json::json!(["required", "optional", "off", "shadow"])
    );
    assert_eq!(route["properties"]["upgrade"]["type"], "boolean");
    for section in ["Gateway", "Store", "Scope", "Key", "Defaults", "Route"] {
        let keys = schema["$defs"][section]["properties"].as_object().expect(section);
        for (key, value) in keys {
            assert!(value["description"].is_string(), "{section}.{key}");
        }
    }
}

/// The page has a heading for each section, `## [gateway]`, and a table whose first column are keys.
#[test]
fn the_page_about_the_gateway_describes_every_setting_and_no_other() {
    let page = repository().join("docs/guide/gateway.md");
    let page = std::fs::read_to_string(page).expect("the page");
    for (section, keys) in keys_of_the_schema() {
        let mut documented = BTreeSet::new();
        let mut within = false;
        for line in page.lines() {
            if line.starts_with("##") {
                within = line.contains(&format!("[{section}]"));
            }
            if let Some(rest) = line.strip_prefix("| `").filter(|_| within) {
                documented.insert(rest.split('`').next().unwrap_or_default().to_owned());
            }
        }
        // One table for both: only a route matches, and only the defaults are for all.
        match &*section {
            "route" => documented.remove("problem_base"),
            "defaults" => documented.remove("match"),
            _ => false,
        };
        assert_eq!(documented, keys, "[{section}]");
    }
}

//! What does not start, and what it says.

use std::process::Output;

use crate::support::{Gateway, binary};

fn run(args: &[&str]) -> Output {
    binary().args(args).output().expect("the binary runs")
}

/// The one line with which a start was refused.
fn refusal(args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(output.stdout.is_empty());
    text
}

fn refusal_of_file(toml: &str) -> String {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), toml).expect("written");
    refusal(&["serve", "--config", file.path().to_str().expect("text")])
}

const UPSTREAM: &str = "http://127.0.0.1:9";

#[test]
fn unsafe_settings_are_refused_with_what_to_do() {
    for (args, part) in [
        (&["--scope", "jwt:sub"][..], "set scope.jwt_secret or scope.jwt_public_key"),
        (&["--scope", "header:X-Account", "--listen", "0.0.0.0:0"], "scope.trusted_proxies"),
        (&["--store", "memory:", "--listen", "0.0.0.0:0"], "use --store file:PATH"),
        (&["--admin", "0.0.0.0:0"], "use a loopback address"),
        (&["--upstream", "ftp://bank"], "not a URL such as http://"),
        (&["--upstream", "bank"], "not a URL such as http://"),
        (&["--profile", "strip"], "did you mean `stripe`?"),
        (&["--scope", "authorisation"], "did you mean `authorization`?"),
        (&["--store", "oracle://u:secret@db"], "the store is neither postgres://"),
        (&["--config", "/does/not/exist.toml"], "/does/not/exist.toml cannot be read"),
    ] {
        let mut all = vec!["serve", "--store", "memory:", "--upstream", UPSTREAM];
        // A flag may be given once.
        for flag in args.iter().filter(|arg| arg.starts_with("--")) {
            if let Some(at) = all.iter().position(|given| given == flag) {
                all.drain(at..at + 2);
            }
        }
        all.extend(args);
        let text = refusal(&all);
        assert!(text.contains(part), "{text}");
        assert!(!text.contains("secret@"), "{text}");
    }
    assert!(refusal(&["serve"]).contains("use --upstream"));
}

#[test]
fn mistakes_in_the_file_are_named_with_their_place() {
    for (toml, part) in [
        ("[gateway]\n", "write `config_version = 1` at the top"),
        ("config_version = 2\n", "config_version must be 1"),
        (
            "config_version = 1\n[gateway]\nupstrem = \"x\"\n",
            "line 3: unknown key `upstrem` in [gateway]; did you mean `upstream`?",
        ),
        ("config_version = 1\n[default]\n", "unknown key `default`; did you mean `defaults`?"),
        (
            "config_version = 1\n[[route]]\nmatch = \"POST /a\"\nefects = \"none\"\n",
            "line 4: unknown key `efects` in [[route]] \"POST /a\"; did you mean `effects`?",
        ),
        (
            "config_version = 1\n[store]\nurl = \"${env:ONCEWARD_TEST_NOT_SET}\"\n",
            "line 3: the environment variable ONCEWARD_TEST_NOT_SET is not set",
        ),
        ("config_version = 1\n[defaults]\nlease = \"1 hour\"\n", "defaults.lease: `1 hour`"),
    ] {
        // An upstream is asked for last, so that none of these is about it.
        let upstream = format!("[gateway]\nupstream = \"{UPSTREAM}\"\n");
        let toml = match toml.contains("[gateway]") {
            true => toml.to_owned(),
            false => format!("{toml}{upstream}"),
        };
        let text = refusal_of_file(&toml);
        assert!(text.contains(part), "{text}");
        let of_a_value = part.starts_with("defaults.");
        assert!(of_a_value || text.contains(".tmp"), "the file is named: {text}");
    }
}

#[test]
fn a_secret_from_the_environment_is_used() {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    let toml = format!(
        "config_version = 1\n[gateway]\nupstream = \"{UPSTREAM}\"\nlisten = \"127.0.0.1:0\"\n\
         admin = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n[scope]\nfrom = \"jwt:sub\"\n\
         jwt_secret = \"${{env:ONCEWARD_TEST_SECRET}}\"\n"
    );
    std::fs::write(file.path(), toml).expect("written");
    let serve = ["serve", "--config", file.path().to_str().expect("text")];
    let mut short = binary();
    let short = short.args(serve).env("ONCEWARD_TEST_SECRET", "short").output().expect("runs");
    let text = String::from_utf8(short.stderr).expect("text");
    assert!(text.contains("scope.jwt_secret must have at least 32 bytes"), "{text}");
    let mut good = binary();
    good.args(serve).env("ONCEWARD_TEST_SECRET", "s".repeat(32));
    let gateway = Gateway::start(&mut good);
    assert_ne!(gateway.address.port(), 0);
}

#[test]
fn an_address_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let args = ["--store", "memory:", "--admin", "127.0.0.1:0", "--listen", &address];
    let output = run(&[&["serve", "--upstream", UPSTREAM][..], &args].concat());
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2));
    assert!(text.contains(&format!("cannot listen on {address}")), "{text}");
}

#[test]
fn help_and_version_are_given() {
    let help = String::from_utf8(run(&["serve", "--help"]).stdout).expect("text");
    for part in ["--upstream", "--accept-identity-change", "Examples:", "config_version = 1"] {
        assert!(help.contains(part), "{part} in {help}");
    }
    let version = String::from_utf8(run(&["--version"]).stdout).expect("text");
    assert_eq!(version.trim(), format!("onceward {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_store_of_other_identity_settings_is_refused_until_the_change_is_accepted() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let store = format!("file:{}", folder.path().join("onceward.db").display());
    let serve = |more: &[&str]| {
        let mut command = binary();
        command.args(["serve", "--upstream", UPSTREAM, "--store", &store]).args(more);
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command
    };
    let stop = |mut gateway: Gateway| {
        gateway.signal("TERM");
        assert_eq!(gateway.exit_status().code(), Some(0));
    };
    stop(Gateway::start(&mut serve(&["--scope", "anonymous"])));
    stop(Gateway::start(&mut serve(&["--scope", "anonymous"])));
    let drifted = serve(&["--scope", "authorization"]).output().expect("the binary runs");
    assert_eq!(drifted.status.code(), Some(2));
    let text = String::from_utf8(drifted.stderr).expect("text");
    assert!(text.contains("--accept-identity-change"), "{text}");
    let accepted = ["--scope", "authorization", "--accept-identity-change"];
    stop(Gateway::start(&mut serve(&accepted)));
    stop(Gateway::start(&mut serve(&["--scope", "authorization"])));
}

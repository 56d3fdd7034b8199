//! The ledger check: a real gateway, charges at an upstream that keeps a ledger of its own, and the
//! command as an operator types it.

use std::{
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex},
};

use onceward_testbed::{Database, Postgres};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{ALICE, Act, Gate, Gateway, Seen, Upstream, binary, post, response};

/// What the provider has booked.
#[derive(Clone, Debug)]
struct Booked {
    id: String,
    key: String,
    amount: i64,
}

/// A provider that charges, and misbehaves if it is told to.
struct Provider {
    upstream: Upstream,
    books: Arc<Mutex<Vec<Booked>>>,
}

impl Provider {
    fn start() -> Provider {
        let books = Arc::<Mutex<Vec<Booked>>>::default();
        let own = Arc::clone(&books);
        let upstream = Upstream::start(move |_, seen| charge(&mut own.lock().expect("lock"), seen));
        Provider { upstream, books }
    }

    /// Its export: a preface of quoted cells, and fees between the charges.
    fn csv(&self) -> String {
        let mut text =
            "created,type,id,\"note, quoted\",amount,currency,idempotency key\n".to_owned();
        for Booked { id, key, amount } in self.books.lock().expect("lock").iter() {
            let (whole, cents) = (amount / 100, amount % 100);
            let charge =
                format!("charge,{id},\"a \"\"note\"\",\nof two lines\",{whole}.{cents:02},EUR");
            text.push_str(&format!(
                "2026-01-01,{charge},{key}\n2026-01-01,fee,fee_{id},,0.01,EUR,\n"
            ));
        }
        text
    }

    fn jsonl(&self) -> String {
        let books = self.books.lock().expect("lock");
        let line = |it: &Booked| {
            let money = json!({ "amount": it.amount, "currency": "eur" });
            json!({ "data": { "charge": it.id, "money": money }, "key": it.key }).to_string() + "\n"
        };
        books.iter().map(line).collect()
    }
}

fn charge(books: &mut Vec<Booked>, seen: &Seen) -> Act {
    let asked: Value = serde_json::from_slice(&seen.body).expect("JSON");
    let (amount, how) = (asked["amount"].as_i64().expect("a number"), asked["how"].as_str());
    let key = seen.header("idempotency-key").expect("a key").to_owned();
    let id = format!("ch_{}", key.trim_start_matches("order-").trim_start_matches('0'));
    let mut book = |id: &str, amount: i64| {
        books.push(Booked { id: id.to_owned(), key: key.clone(), amount });
    };
    match how {
        Some("declined") => return reply(402, &json!({ "error": "no money" })),
        Some("lost there") => {}
        Some("other amount") => book(&id, amount + 1),
        Some("twice") => {
            book(&id, amount);
            book(&format!("{id}_again"), amount);
        }
        _ => book(&id, amount),
    }
    match how {
        Some("no answer") => Act::SendAndClose(Vec::new(), Gate::default()),
        Some("says no") => reply(503, &json!({ "error": "busy" })),
        _ => reply(201, &json!({ "charge": { "id": id, "amount": amount, "currency": "eur" } })),
    }
}

fn reply(status: u16, body: &Value) -> Act {
    Act::Send(response(status, "Content-Type: application/json\r\n", &body.to_string()))
}

/// A store that outlives gateways.
enum Home {
    File(TempDir),
    Postgres(Database<'static>),
}

impl Home {
    fn each() -> [Home; 2] {
        let folder = tempfile::tempdir().expect("temporary folder");
        [Home::File(folder), Home::Postgres(Postgres::shared().create_database())]
    }

    fn gateway(&self, provider: &Provider, toml: &str) -> Gateway {
        let url = match self {
            Home::File(folder) => format!("file:{}", folder.path().join("x.db").display()),
            Home::Postgres(database) => database.url(),
        };
        let toml = format!("[store]\nurl = \"{url}\"\n{ALICE}{toml}");
        Gateway::with(provider.upstream.address, &toml)
    }
}

fn pay(gateway: &Gateway, number: u32, how: &str) -> u16 {
    let body = json!({ "amount": 1000 + number, "how": how }).to_string();
    post(gateway.address, &key(number), &body, &[]).status
}

fn key(number: u32) -> String {
    format!("order-{number:016}")
}

struct Ended {
    code: Option<i32>,
    said: String,
    complained: String,
}

fn ended(command: &mut Command) -> Ended {
    let output = command.output().expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Ended { code: output.status.code(), said: text(output.stdout), complained: text(output.stderr) }
}

struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().expect("temporary folder"))
    }

    fn with(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    }

    /// The check of a CSV export, as lines of JSON.
    fn check(&self, provider: &Provider, gateway: &Gateway, more: &[&str]) -> Ended {
        let export = self.with("charges.csv", &provider.csv());
        let mut command = binary();
        command.args(["ledger", "check", "-o", "json", "--config"]).arg(gateway.config());
        command.args([
            "--id",
            "/charge/id",
            "--amount",
            "/charge/amount",
            "--our-minor-units",
            "2",
        ]);
        command.args(["--currency", "/charge/currency", "--currency-column", "currency"]);
        command.args(["--where", "type=charge", "--amount-column", "amount"]);
        command.arg("--export").arg(export).args(more);
        ended(&mut command)
    }
}

const BY_KEY: [&str; 2] = ["--key-column", "idempotency key"];

/// Each finding with the ids and our keys that it is about, sorted; and the summary.
fn findings(said: &str) -> (Vec<String>, Value) {
    let mut lines: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let summary = lines.pop().expect("a summary")["summary"].take();
    let texts = |list: &Value, name: &str| -> Vec<String> {
        let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().map(|it| it[name].as_str().expect("text").to_owned()).collect()
    };
    let told = lines.iter().map(|it| {
        let about = [texts(&it["theirs"], "id"), texts(&it["ours"], "key")].concat();
        format!("{} {}", it["finding"].as_str().expect("a kind"), about.join(" "))
    });
    let mut told: Vec<String> = told.collect();
    told.sort();
    (told, summary)
}

#[test]
fn a_ledger_that_agrees_is_0_and_each_difference_is_told_on_every_store() {
    for home in Home::each() {
        let (provider, files) = (Provider::start(), Files::new());
        let gateway = home.gateway(&provider, "");
        for number in 1..=3 {
            assert_eq!(pay(&gateway, number, "well"), 201);
            assert_eq!(pay(&gateway, number, "well"), 201, "a replay");
        }
        assert_eq!(pay(&gateway, 4, "declined"), 402);
        let agreed = files.check(&provider, &gateway, &BY_KEY);
        assert_eq!(agreed.code, Some(0), "{}{}", agreed.said, agreed.complained);
        let (told, summary) = findings(&agreed.said);
        assert_eq!(told, [""; 0]);
        let counted = ["charges", "left_out", "entries", "matched", "no_charge"];
        assert_eq!(counted.map(|name| summary[name].clone()), [3, 3, 4, 3, 1].map(Value::from));

        assert_eq!(pay(&gateway, 5, "lost there"), 201);
        assert_eq!(pay(&gateway, 6, "other amount"), 201);
        assert_eq!(pay(&gateway, 7, "twice"), 201);
        assert_eq!(pay(&gateway, 8, "no answer"), 502);
        assert_eq!(pay(&gateway, 9, "says no"), 503);
        // Past the gateway.
        let body = json!({ "amount": 5, "how": "well" }).to_string();
        assert_eq!(post(provider.upstream.address, &key(10), &body, &[]).status, 201);
        let differ = files.check(&provider, &gateway, &BY_KEY);
        assert_eq!(differ.code, Some(3), "{}{}", differ.said, differ.complained);
        let (told, summary) = findings(&differ.said);
        let expected = [
            format!("contradicted ch_9 {}", key(9)),
            format!("different_amount ch_6 {}", key(6)),
            format!("double_charge ch_7 ch_7_again {}", key(7)),
            "missing_here ch_10".to_owned(),
            format!("missing_there {}", key(5)),
            format!("unsettled ch_8 {}", key(8)),
        ];
        assert_eq!(told, expected, "{}", differ.said);
        assert_eq!(summary["agree"], false);
    }
}

#[test]
fn without_keys_in_the_export_a_charge_is_still_missed_and_what_is_open_is_told_beside_it() {
    let home = Home::File(tempfile::tempdir().expect("temporary folder"));
    let (provider, files) = (Provider::start(), Files::new());
    let gateway = home.gateway(&provider, "");
    assert_eq!(pay(&gateway, 1, "well"), 201);
    assert_eq!(pay(&gateway, 2, "no answer"), 502);
    assert_eq!(pay(&gateway, 3, "twice"), 201);
    let differ = files.check(&provider, &gateway, &[]);
    assert_eq!(differ.code, Some(3), "{}", differ.complained);
    let expected = [
        "missing_here ch_2".to_owned(),
        "missing_here ch_3_again".to_owned(),
        format!("open {}", key(2)),
    ];
    assert_eq!(findings(&differ.said).0, expected);
    // For people, with what to do.
    let export = files.with("charges.csv", &provider.csv());
    let report = files.0.path().join("report.jsonl");
    let mut command = binary();
    command.args(["ledger", "check", "--id", "/charge/id", "--where", "type=charge", "--config"]);
    command.arg(gateway.config()).arg("--export").arg(export).arg("--report").arg(&report);
    let table = ended(&mut command);
    assert_eq!(table.code, Some(3), "{}", table.complained);
    for part in ["missing_here (2): ", "ch_3_again", "There are 2 differences.", "open (1): "] {
        assert!(table.said.contains(part), "{part}: {}", table.said);
    }
    let report = std::fs::read_to_string(report).expect("a report");
    assert_eq!(findings(&report).0, expected, "all of it is in the file too");
}

#[test]
fn sealed_replies_and_hashed_keys_are_compared_with_the_configuration_that_made_them() {
    let home = Home::File(tempfile::tempdir().expect("temporary folder"));
    let (provider, files) = (Provider::start(), Files::new());
    let sealed = "[privacy]\nhash_keys = \"0123456789abcdef0123456789abcdef\"\n\
                  keys = [{ id = \"a\", secret = \"YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=\" }]\n";
    let gateway = home.gateway(&provider, sealed);
    assert_eq!(pay(&gateway, 1, "well"), 201);
    let agreed = files.check(&provider, &gateway, &BY_KEY);
    assert_eq!(agreed.code, Some(0), "{}{}", agreed.said, agreed.complained);
    assert_eq!(pay(&gateway, 2, "no answer"), 502);
    let differ = files.check(&provider, &gateway, &BY_KEY);
    assert_eq!(differ.code, Some(3), "{}", differ.complained);
    let (told, _) = findings(&differ.said);
    assert!(matches!(&told[..], [one] if one.starts_with("unsettled ch_2 hmac-")), "{told:?}");
    // Without the keys nothing is taken for a reply.
    let Home::File(folder) = &home else { panic!("a file") };
    let store = format!("file:{}", folder.path().join("x.db").display());
    let mut command = binary();
    command.args(["ledger", "export", "--id", "/charge/id", "--store", &store]);
    let blind = ended(&mut command);
    assert_eq!((blind.code, blind.said.as_str()), (Some(1), ""));
    assert!(blind.complained.contains("privacy.keys"), "{}", blind.complained);
}

#[test]
fn our_side_can_be_exported_and_compared_elsewhere() {
    let home = Home::File(tempfile::tempdir().expect("temporary folder"));
    let (provider, files) = (Provider::start(), Files::new());
    let gateway = home.gateway(&provider, "");
    for number in 1..=3 {
        assert_eq!(pay(&gateway, number, "well"), 201);
    }
    let mut command = binary();
    command.args(["ledger", "export", "--id", "/charge/id", "--amount", "/charge/amount"]);
    let exported = ended(command.arg("--config").arg(gateway.config()));
    assert_eq!(exported.code, Some(0), "{}", exported.complained);
    assert_eq!(exported.said.lines().count(), 3);
    drop(gateway);
    let ours = files.with("ours.jsonl", &exported.said);
    let check = |theirs: &str| {
        let export = files.with("charges.jsonl", theirs);
        let mut command = binary();
        command.args(["ledger", "check", "-o", "json", "--id-column", "/data/charge"]);
        command.args(["--amount-column", "/data/money/amount", "--key-column", "key"]);
        ended(command.arg("--ours").arg(&ours).arg("--export").arg(export))
    };
    let agreed = check(&provider.jsonl());
    assert_eq!(agreed.code, Some(0), "{}{}", agreed.said, agreed.complained);
    let shorter: String =
        provider.jsonl().lines().skip(1).map(|line| format!("{line}\n")).collect();
    let differ = check(&shorter);
    assert_eq!(differ.code, Some(3), "{}", differ.complained);
    assert_eq!(findings(&differ.said).0, [format!("missing_there {}", key(1))]);
}

#[test]
fn what_lies_outside_the_period_is_not_missed() {
    let home = Home::File(tempfile::tempdir().expect("temporary folder"));
    let (provider, files) = (Provider::start(), Files::new());
    let gateway = home.gateway(&provider, "");
    assert_eq!(pay(&gateway, 1, "lost there"), 201);
    let body = json!({ "amount": 5, "how": "well" }).to_string();
    assert_eq!(post(provider.upstream.address, &key(2), &body, &[]).status, 201);
    let at = |period: &[&str]| {
        let more = [&["--time-column", "created"], period].concat();
        let ended = files.check(&provider, &gateway, &more);
        let (told, summary) = findings(&ended.said);
        (ended.code, told, summary["outside"].as_u64())
    };
    // The export's charge is of the first day of 2026; ours is of now, which is not read then.
    let there = vec!["missing_here ch_2".to_owned()];
    assert_eq!(at(&["--from", "2026-01-01", "--before", "2026-01-02"]), (Some(3), there, Some(0)));
    let here = vec![format!("missing_there {}", key(1))];
    assert_eq!(at(&["--from", "2026-01-02"]), (Some(3), here, Some(1)));
    assert_eq!(at(&["--before", "2026-01-01"]), (Some(0), vec![], Some(1)));
    let empty =
        files.check(&provider, &gateway, &["--from", "2026-01-02", "--before", "2026-01-01"]);
    assert!(empty.code == Some(1) && empty.complained.contains("--before"), "{}", empty.complained);
}

#[test]
fn what_cannot_be_compared_is_1_and_says_why() {
    let files = Files::new();
    let ours = files.with("ours.jsonl", "{\"provider_id\":\"c1\"}\n{\"provider\":1}\n");
    let good = files.with("good.csv", "id\nc1\n");
    let check = |line: &[&str]| ended(binary().args(["ledger", "check"]).args(line));
    let text = |path: &std::path::Path| path.to_str().expect("text").to_owned();
    let (ours, good) = (text(&ours), text(&good));
    let bad = text(&files.with("bad.csv", "id,amount\nc1,1\nc2,one\n"));
    let missing = text(&files.0.path().join("none.csv"));
    let no_store = format!("file:{}", files.0.path().join("none.db").display());
    for (line, expected) in [
        (&["--ours", &ours, "--export", &good][..], "line 2: unknown field `provider`"),
        (&["--ours", &ours, "--export", &bad, "--amount-column", "amount"], "bad.csv: line 3: "),
        (&["--ours", &ours, "--export", &missing], "none.csv cannot be read"),
        (&["--ours", &ours, "--export", "charges.xlsx"], "--format"),
        (&["--ours", &ours, "--export", &good, "--id", "/id"], "cannot be used with"),
        (&["--export", &good], "give --config or --store"),
        (&["--export", &good, "--store", "memory:", "--id", "/id"], "nothing to read"),
        (&["--export", &good, "--store", &no_store, "--id", "/id"], "there is no store"),
        (&["--export", &good, "--store", &no_store], "give --id"),
        (&["--export", &good, "--store", &no_store, "--id", "id"], "begins with a slash"),
        (&["--ours", &ours, "--export", &good, "--slack", "x"], ""),
    ] {
        let ended = check(line);
        assert_eq!(ended.code, Some(1), "{line:?}: {}", ended.said);
        assert!(ended.complained.contains(expected), "{line:?}: {}", ended.complained);
        assert_eq!(ended.said, "", "nothing that could be taken for a result");
    }
    assert!(!files.0.path().join("none.db").exists(), "a store that is not there is not made");
    let sound = files.with("sound.jsonl", "{\"provider_id\":\"c1\"}\n");
    assert_eq!(check(&["--ours", &text(&sound), "--export", &good]).code, Some(0));
}

#[test]
fn progress_is_told_where_it_is_asked_for_and_nowhere_else() {
    let files = Files::new();
    let many: String = (0..3000).map(|n| format!("{{\"provider_id\":\"charge_{n}\"}}\n")).collect();
    let ours = files.with("ours.jsonl", &many);
    let rows: String = (0..3000).map(|n| format!("charge_{n}\n")).collect();
    let export = files.with("charges.csv", &format!("id\n{rows}"));
    let check = |more: &[&str]| {
        let mut command = binary();
        command.args(["ledger", "check", "-o", "json", "--temp-dir"]).arg(files.0.path());
        ended(command.arg("--ours").arg(&ours).arg("--export").arg(&export).args(more))
    };
    let told = check(&["--progress"]);
    assert_eq!(told.code, Some(0), "{}", told.complained);
    for part in ["3000 rows of the export\n", "3000 entries of ours\n"] {
        assert!(told.complained.contains(part), "{}", told.complained);
    }
    assert_eq!(findings(&told.said).1["matched"], 3000);
    let quiet = check(&[]);
    assert_eq!((quiet.code, quiet.complained.as_str()), (Some(0), ""));
    let left = std::fs::read_dir(files.0.path()).expect("a folder").count();
    assert_eq!(left, 2, "what was needed meanwhile is gone");
}

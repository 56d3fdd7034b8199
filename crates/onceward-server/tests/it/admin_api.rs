//! The admin API: what operators see, what they may decide, and what is refused.

use onceward_testbed::{Database, MariaDb, Postgres};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    ALICE, Act, Answer, Gate, Gateway, TOKEN, Upstream, admin, binary, document, ok, post, raw,
    refusal, response, send,
};

/// A store of each kind, with what it lives in.
struct Home {
    toml: String,
    _directory: Option<TempDir>,
    _database: Option<Database<'static>>,
}

fn homes() -> [Home; 4] {
    let home = |url: &str| format!("[store]\nurl = \"{url}\"\n{ALICE}");
    let directory = tempfile::tempdir().expect("temporary folder");
    let file = format!("file:{}", directory.path().join("store.db").display());
    let database = Postgres::shared().create_database();
    let url = database.url();
    let mysql = MariaDb::shared().url(&MariaDb::shared().create_database());
    [
        Home { toml: home("memory:"), _directory: None, _database: None },
        Home { toml: home(&file), _directory: Some(directory), _database: None },
        Home { toml: home(&url), _directory: None, _database: Some(database) },
        Home { toml: home(&mysql), _directory: None, _database: None },
    ]
}

/// Answers everybody but those whose body asks for nothing.
fn upstream() -> Upstream {
    Upstream::start(|_, seen| match &seen.body[..] {
        b"\"vanish\"" => Act::SendAndClose(Vec::new(), Gate::default()),
        body => Act::Send(response(
            201,
            "Content-Type: application/json\r\n",
            &String::from_utf8_lossy(body),
        )),
    })
}

fn key(number: u32) -> String {
    format!("order-{number:016}")
}

/// A record whose outcome nobody knows.
fn vanish(gateway: &Gateway, number: u32) {
    let answer = post(gateway.address, &key(number), "\"vanish\"", &[]);
    assert_eq!(answer.summary(), "502 idempotency_outcome_unknown");
}

fn again(gateway: &Gateway, number: u32) -> Answer {
    post(gateway.address, &key(number), "\"vanish\"", &[])
}

fn list(gateway: &Gateway, parameters: &str) -> Vec<Value> {
    let page = document(&admin(gateway, "GET", &format!("/api/v1/keys?{parameters}"), None));
    page["records"].as_array().expect("records").clone()
}

fn id_of(gateway: &Gateway, number: u32) -> String {
    let found = list(gateway, &format!("key={}", key(number)));
    found[0]["id"].as_str().expect("an id").to_owned()
}

/// Decides about a record as it is now.
fn change(gateway: &Gateway, id: &str, verb: &str, body: &Value) -> Answer {
    let shown = document(&admin(gateway, "GET", &format!("/api/v1/keys/{id}"), None));
    let mut bound = body.clone();
    bound["generation"] = shown["record"]["generation"].clone();
    bound["fence"] = shown["record"]["fence"].clone();
    decide(gateway, id, verb, &bound)
}

/// The same with a document that says itself what was looked at.
fn decide(gateway: &Gateway, id: &str, verb: &str, body: &Value) -> Answer {
    admin(gateway, "POST", &format!("/api/v1/keys/{id}/{verb}"), Some(body))
}

fn not_executed() -> Value {
    json!({ "reason": "ticket 7", "evidence": { "source": "the provider's ledger" } })
}

#[test]
fn an_operator_finds_an_unknown_record_and_says_what_had_happened() {
    for home in homes() {
        let upstream = upstream();
        let gateway = Gateway::with(upstream.address, &home.toml);
        vanish(&gateway, 1);
        post(gateway.address, &key(2), "{}", &[]);
        let unknown = list(&gateway, "state=unknown");
        assert_eq!(unknown.len(), 1);
        let id = unknown[0]["id"].as_str().expect("an id");
        let path = format!("/api/v1/keys/{id}");
        let shown = document(&admin(&gateway, "GET", &path, None));
        assert_eq!((&shown["record"], &shown["record"]["state"]), (&unknown[0], &"unknown".into()));
        let resolve = json!({
            "outcome": "completed",
            "reply": { "status": 201, "content_type": "text/plain", "body": "it was done" },
            "reason": "ticket 7",
            "evidence": { "source": "the provider's ledger" },
        });
        let changed = document(&change(&gateway, id, "resolve", &resolve));
        assert_eq!(changed["record"]["state"], "completed");
        let retry = again(&gateway, 1);
        assert_eq!((retry.status, retry.text()), (201, "it was done"));
        assert_eq!(retry.header("onceward-outcome"), Some("replayed"));
        let shown = document(&admin(&gateway, "GET", &path, None));
        let events: Vec<&str> = shown["timeline"]
            .as_array()
            .expect("a timeline")
            .iter()
            .map(|it| it["event"].as_str().expect("an event"))
            .collect();
        assert!(events.starts_with(&["created", "started"]), "{events:?}");
        assert!(events.contains(&"resolved_completed"), "{events:?}");
        let audit =
            document(&admin(&gateway, "GET", "/api/v1/audit?event=resolved_completed", None));
        let reason = audit["records"][0]["reason"].as_str().expect("a reason");
        assert_eq!(reason, "alice: ticket 7; evidence: the provider's ledger");
        // What was decided is not decided again.
        let twice = refusal(&change(&gateway, id, "resolve", &resolve));
        assert_eq!(twice, (409, "not_resolvable".to_owned()));
    }
}

#[test]
fn what_did_not_act_runs_again_once_there_is_proof() {
    for home in homes() {
        let upstream = upstream();
        let gateway = Gateway::with(upstream.address, &home.toml);
        vanish(&gateway, 1);
        let id = id_of(&gateway, 1);
        for (without, name) in [("reason", "missing"), ("evidence", "missing")] {
            let mut body = not_executed();
            body.as_object_mut().expect("an object").remove(without);
            let refused = change(&gateway, &id, "release", &body);
            assert_eq!(refusal(&refused).0, 400);
            assert!(refused.text().contains(name), "{}", refused.text());
        }
        let probes = json!({ "first": "2026-01-01T00:00:00Z", "second": "2026-01-02T00:00:00Z" });
        let early = json!({
            "reason": "ticket 7",
            "evidence": { "source": "the list of charges", "probes": probes },
        });
        let too_early = change(&gateway, &id, "release", &early);
        assert_eq!(refusal(&too_early), (409, "too_early".to_owned()));
        assert!(too_early.text().contains("not_before"));
        assert_eq!(upstream.count(), 1);
        let released = document(&change(&gateway, &id, "release", &not_executed()));
        assert_eq!(released["record"]["state"], "failed_retryable");
        again(&gateway, 1);
        assert_eq!(upstream.count(), 2);
    }
}

#[test]
fn a_reply_is_withdrawn_and_the_next_use_of_its_key_runs() {
    for home in homes() {
        let upstream = upstream();
        let gateway = Gateway::with(upstream.address, &home.toml);
        post(gateway.address, &key(1), "{}", &[]);
        let id = id_of(&gateway, 1);
        let void = json!({ "reason": "wrong amount" });
        let refused = refusal(&change(&gateway, &id, "release", &not_executed()));
        assert_eq!(refused, (409, "not_resolvable".to_owned()), "only unknown is released");
        document(&change(&gateway, &id, "void", &void));
        let next = post(gateway.address, &key(1), "{}", &[]);
        assert_eq!(next.header("onceward-outcome"), Some("executed"));
        assert_eq!(next.header("idempotency-generation"), Some("2"));
        assert_eq!(upstream.count(), 2);
    }
}

#[test]
fn a_decision_holds_for_the_record_that_was_looked_at_and_for_no_other() {
    for home in homes() {
        let upstream = upstream();
        let gateway = Gateway::with(upstream.address, &home.toml);
        vanish(&gateway, 1);
        let looked_at = list(&gateway, "state=unknown").remove(0);
        let id = looked_at["id"].as_str().expect("an id");
        let completed = json!({
            "outcome": "completed",
            "reply": { "status": 200 },
            "reason": "ticket 7",
            "evidence": { "source": "a guess" },
        });
        let void = json!({ "reason": "ticket 7" });
        for (verb, body) in [("resolve", completed), ("release", not_executed()), ("void", void)] {
            for (has, lacks) in [("generation", "fence"), ("fence", "generation")] {
                let mut half = body.clone();
                half[has] = looked_at[has].clone();
                let refused = decide(&gateway, id, verb, &half);
                assert_eq!(refusal(&refused), (400, "invalid_request".to_owned()), "{verb}");
                assert!(refused.text().contains(lacks), "{}", refused.text());
            }
        }
        // It runs once more, and nobody knows again: another attempt, of which no ledger told.
        let mut release = not_executed();
        release["generation"] = looked_at["generation"].clone();
        release["fence"] = looked_at["fence"].clone();
        document(&decide(&gateway, id, "release", &release));
        again(&gateway, 1);
        assert_eq!(list(&gateway, "state=unknown").len(), 1);
        let moved = decide(&gateway, id, "release", &release);
        assert_eq!(refusal(&moved), (409, "record_changed".to_owned()));
        assert_eq!(list(&gateway, "state=unknown").len(), 1, "nothing happened");
        document(&change(&gateway, id, "release", &not_executed()));
    }
}

#[test]
fn a_list_is_sorted_by_the_end_of_retention_where_it_is_asked_for() {
    const RETENTION: &str = "[[route]]\nmatch = \"POST /long\"\nretention = \"72h\"\n\
        [[route]]\nmatch = \"POST /middle\"\nretention = \"48h\"\n";
    for home in homes() {
        let upstream = upstream();
        let gateway = Gateway::with(upstream.address, &format!("{}{RETENTION}", home.toml));
        for (number, path) in [(1, "/long"), (2, "/short"), (3, "/middle")] {
            let request = format!(
                "POST {path} HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {}\r\n\
                 Content-Length: 2\r\n\r\n{{}}",
                key(number)
            );
            assert_eq!(send(gateway.address, &request).expect("an answer").status, 201);
        }
        for (asked, expected) in [
            ("sort=expires_at", [1, 3, 2]),
            ("sort=expires_at&order=ascending", [2, 3, 1]),
            ("sort=created_at", [3, 2, 1]),
            ("order=ascending", [1, 2, 3]),
        ] {
            let expected = expected.map(key);
            let found = list(&gateway, asked);
            let keys: Vec<&str> = found.iter().filter_map(|it| it["key"].as_str()).collect();
            assert_eq!(keys, expected, "{asked}");
            // Page by page the same.
            let mut paged = Vec::new();
            let mut after = String::new();
            while paged.len() < 3 {
                let path = format!("/api/v1/keys?{asked}&limit=1{after}");
                let page = document(&admin(&gateway, "GET", &path, None));
                paged.push(page["records"][0]["key"].as_str().expect("a key").to_owned());
                after =
                    page["next"].as_str().map(|next| format!("&after={next}")).unwrap_or_default();
            }
            assert_eq!((paged, after), (expected.to_vec(), String::new()), "{asked}");
        }
    }
}

#[test]
fn nobody_decides_about_an_attempt_that_is_alive() {
    let go = Gate::default();
    let held = go.clone();
    let upstream = Upstream::start(move |_, _| {
        let whole = response(200, "", "done");
        Act::SendLater(whole[..10].to_vec(), held.clone(), whole[10..].to_vec())
    });
    let gateway = Gateway::with(upstream.address, ALICE);
    let address = gateway.address;
    let asking = std::thread::spawn(move || post(address, &key(1), "{}", &[]));
    let found = crate::support::eventually("a record", || {
        Some(list(&gateway, "state=in_progress")).filter(|found| !found.is_empty())
    });
    let id = found[0]["id"].as_str().expect("an id");
    let completed = json!({
        "outcome": "completed",
        "reply": { "status": 200 },
        "reason": "ticket 7",
        "evidence": { "source": "a guess" },
    });
    let decisions = [
        ("resolve", completed),
        ("release", not_executed()),
        ("void", json!({ "reason": "ticket 7" })),
    ];
    for (verb, body) in decisions {
        let refused = refusal(&change(&gateway, id, verb, &body));
        assert_eq!(refused, (409, "not_resolvable".to_owned()), "{verb}");
    }
    go.open();
    assert_eq!(asking.join().expect("answered").text(), "done");
}

#[test]
fn a_plan_changes_exactly_what_it_was_made_for() {
    for home in homes() {
        let upstream = upstream();
        let gateway = Gateway::with(upstream.address, &home.toml);
        (1..=3).for_each(|number| vanish(&gateway, number));
        post(gateway.address, &key(9), "{}", &[]);
        let request = json!({
            "filter": { "state": "unknown" },
            "action": "release",
            "reason": "the provider was down",
            "evidence": { "source": "its status page" },
        });
        let mut all = request.clone();
        all["filter"] = json!({});
        let all = refusal(&admin(&gateway, "POST", "/api/v1/plans", Some(&all)));
        assert_eq!(all.0, 400, "nobody means everything");
        let plan = document(&admin(&gateway, "POST", "/api/v1/plans", Some(&request)));
        assert_eq!((&plan["count"], &plan["more"]), (&3.into(), &false.into()));
        assert_eq!(list(&gateway, "state=unknown").len(), 3, "a plan changes nothing");
        // One moves, and one comes, after the plan was made.
        document(&change(&gateway, &id_of(&gateway, 2), "release", &not_executed()));
        vanish(&gateway, 4);
        let name = plan["plan"].as_str().expect("a name");
        let path = format!("/api/v1/plans/{name}/apply");
        let other = refusal(&admin(&gateway, "POST", &path, Some(&json!({ "hash": "x" }))));
        assert_eq!(other, (409, "other_plan".to_owned()));
        let hash = json!({ "hash": plan["hash"] });
        let applied = document(&admin(&gateway, "POST", &path, Some(&hash)));
        assert_eq!(applied["applied"], 2);
        assert_eq!(applied["skipped"].as_array().expect("skipped").len(), 1);
        assert_eq!(applied["skipped"][0]["id"], id_of(&gateway, 2));
        let left = list(&gateway, "state=unknown");
        assert_eq!((left.len(), &left[0]["key"]), (1, &key(4).into()));
        let audit = document(&admin(&gateway, "GET", "/api/v1/audit?event=released", None));
        let reasons = audit["records"].to_string();
        assert_eq!(reasons.matches("alice: the provider was down (plan ").count(), 2, "{reasons}");
        assert_eq!(refusal(&admin(&gateway, "POST", &path, Some(&hash))).0, 404, "only once");
    }
}

#[test]
fn lists_have_pages_and_an_export_has_all() {
    for home in homes() {
        let upstream = upstream();
        let gateway = Gateway::with(upstream.address, &home.toml);
        for number in 0..7 {
            post(gateway.address, &key(number), "{}", &[]);
        }
        let mut seen = Vec::new();
        let mut path = "/api/v1/keys?limit=3&order=ascending".to_owned();
        loop {
            let page = document(&admin(&gateway, "GET", &path, None));
            let records = page["records"].as_array().expect("records").clone();
            assert!(records.len() <= 3);
            seen.extend(
                records.iter().map(|record| record["key"].as_str().unwrap_or("").to_owned()),
            );
            let Some(next) = page["next"].as_str() else { break };
            path = format!("/api/v1/keys?limit=3&order=ascending&after={next}");
        }
        assert_eq!(seen, (0..7).map(key).collect::<Vec<_>>());
        let export = admin(&gateway, "GET", "/api/v1/export?state=completed", None);
        let lines: Vec<&str> = export.text().lines().collect();
        assert_eq!(lines.len(), 7);
        for line in lines {
            let record: Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(record["state"], "completed");
        }
        let stats = document(&admin(&gateway, "GET", "/api/v1/stats", None));
        let completed = stats["states"]
            .as_array()
            .expect("states")
            .iter()
            .find(|it| it["state"] == "completed")
            .expect("counted");
        assert_eq!((&completed["records"], &completed["estimated"]), (&7.into(), &false.into()));
    }
}

#[test]
fn without_the_token_nothing_is_told_and_nothing_is_done() {
    let upstream = upstream();
    let gateway = Gateway::with(upstream.address, ALICE);
    post(gateway.address, &key(1), "{}", &[]);
    let id = id_of(&gateway, 1);
    let good = format!("Authorization: Bearer {TOKEN}\r\n");
    let wrong = "Authorization: Bearer token-of-alice-0123456780\r\n".to_owned();
    let foreign_host = format!("Host: evil.example\r\n{good}");
    let foreign_page = format!("Origin: http://evil.example\r\n{good}");
    let cases = [(String::new(), 401), (wrong, 401), (foreign_host, 403), (foreign_page, 403)];
    for (headers, status) in cases {
        for (method, path) in [
            ("GET", "/api/v1/keys".to_owned()),
            ("GET", "/api/v1/openapi.json".to_owned()),
            ("GET", "/api/v1/no-such-thing".to_owned()),
            ("POST", format!("/api/v1/keys/{id}/void")),
        ] {
            let with_kind = format!("{headers}Content-Type: application/json\r\n");
            let answer = raw(&gateway, method, &path, &with_kind, b"{\"reason\":\"x\"}");
            assert_eq!(refusal(&answer).0, status, "{headers} {path}");
        }
    }
    assert_eq!(list(&gateway, "state=completed").len(), 1, "with it, it is there");
    let open = raw(&gateway, "GET", "/livez", "", b"");
    assert_eq!(open.status, 200);
}

#[test]
fn a_server_without_a_token_makes_one_and_one_that_others_reach_does_not_start() {
    let upstream = Upstream::start(|_, _| ok(""));
    let serve = |address: &str| {
        let mut command = binary();
        let upstream = format!("http://{}", upstream.address);
        command.args(["serve", "--upstream", &upstream, "--scope", "anonymous"]);
        command.args(["--store", "memory:", "--listen", "127.0.0.1:0", "--admin", address]);
        command
    };
    let refused = serve("0.0.0.0:0").output().expect("it ends");
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("ONCEWARD_ADMIN_TOKEN"), "{said}");
    let with_one = Gateway::start(serve("0.0.0.0:0").env("ONCEWARD_ADMIN_TOKEN", TOKEN));
    assert_eq!(admin(&with_one, "GET", "/api/v1/stats", None).status, 200);
    let mut alone = Gateway::start(&mut serve("127.0.0.1:0"));
    let made = alone.admin_token();
    let bearer = format!("Authorization: Bearer {made}\r\n");
    assert_eq!(raw(&alone, "GET", "/api/v1/stats", &bearer, b"").status, 200);
    assert_eq!(refusal(&admin(&alone, "GET", "/api/v1/stats", None)).0, 401);
    assert!(!alone.log().contains(&made), "it is printed and not logged");
}

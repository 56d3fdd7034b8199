//! Workers in the real binary, on real stores: nothing stays stuck though no client comes, and nothing
//! is kept for ever.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    Act, Gate, Gateway, Home, LONGEST, Upstream, admin, binary, document, eventually, get, ok,
    on_each_durable_store, post, response,
};

const KEY: &str = "order-0000000000000001";
pub(crate) const OFTEN: &str =
    "[workers]\nsweep_every = \"1s\"\nreap_every = \"1s\"\nsurvey_every = \"1s\"\n";
const SHORT_LEASE: &str = "[defaults]\nlease = \"1s\"\nmax_execution = \"1s\"\n";

on_each_durable_store!(
    what_a_killed_gateway_left_behind_is_unknown_though_no_client_comes,
    a_process_that_only_works_sweeps_and_listens_to_operators_only,
    a_process_that_only_works_sends_what_was_accepted_elsewhere,
    past_retention_a_tombstone_is_left_and_then_nothing,
    past_retention_a_key_runs_again_where_its_route_says_so,
    each_of_many_records_that_are_swept_is_logged_and_counted,
);

fn start(home: &Home, upstream: &Upstream, toml: &str, flags: &[&str]) -> Gateway {
    Gateway::with_flags(upstream.address, &home.settings(&format!("{OFTEN}{toml}")), flags)
}

/// The value of a series, once it is there.
pub(crate) fn metric(gateway: &Gateway, series: &str) -> Option<f64> {
    let metrics = get(gateway.admin, "/metrics");
    let mut lines = metrics.text().lines();
    let line = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map(|value| value.parse().expect("a number"))
}

fn state(gateway: &Gateway) -> Option<String> {
    let records = document(&admin(gateway, "GET", "/api/v1/keys", None))["records"].clone();
    Some(records.get(0)?.get("state")?.as_str()?.to_owned())
}

/// A gateway that is killed while upstream is at work on a request.
fn killed_at_work(home: &Home, toml: &str) {
    killed_at_work_on(home, toml, &[KEY.to_owned()]);
}

/// A gateway that is killed while upstream is at work on a request of each key.
fn killed_at_work_on(home: &Home, toml: &str, keys: &[String]) {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        Act::SendLater(Vec::new(), at_gate.clone(), response(200, "", "too late"))
    });
    let mut gateway = start(home, &upstream, toml, &[]);
    let address = gateway.address;
    thread::scope(|clients| {
        for key in keys {
            // It is cut off with the gateway.
            let cut_off = move || post(address, key, "{}", &[]);
            clients.spawn(move || std::panic::catch_unwind(cut_off).is_err());
        }
        gate.reached_by(keys.len());
        gateway.signal("KILL");
        gateway.exit_status();
    });
    gate.open();
}

fn what_a_killed_gateway_left_behind_is_unknown_though_no_client_comes(home: &Home) {
    let toml = SHORT_LEASE.replace("1s\"\nmax", "2s\"\nmax");
    killed_at_work(home, &toml);
    let upstream = Upstream::start(|_, _| ok("never"));
    let gateway = start(home, &upstream, &toml, &[]);
    eventually("the sweep", || (state(&gateway)? == "unknown").then_some(()));
    assert_eq!(metric(&gateway, "onceward_swept_total{state=\"unknown\"}"), Some(1.0));
    eventually("the survey", || {
        (metric(&gateway, "onceward_records{state=\"unknown\"}")? == 1.0).then_some(())
    });
    assert!(metric(&gateway, "onceward_unknown_oldest_seconds") > Some(0.0));
    let log = gateway.log_with("a lease ran out");
    assert!(!log.contains(KEY), "{log}");
    let retry = post(gateway.address, KEY, "{}", &[]);
    assert_eq!(retry.summary(), "409 idempotency_outcome_unknown");
    assert_eq!(upstream.count(), 0);
}

fn each_of_many_records_that_are_swept_is_logged_and_counted(home: &Home) {
    let toml = SHORT_LEASE.replace("1s\"\nmax", "2s\"\nmax");
    let keys: Vec<String> = (0..7).map(|number| format!("order-000000000000000{number}")).collect();
    killed_at_work_on(home, &toml, &keys);
    let upstream = Upstream::start(|_, _| ok("never"));
    let gateway = start(home, &upstream, &toml, &[]);
    let swept = "onceward_swept_total{state=\"unknown\"}";
    eventually("the sweep", || (metric(&gateway, swept)? >= 7.0).then_some(()));
    let vanished = "api_idempotency_zombie_key_total{route=\"default\"}";
    assert_eq!([swept, vanished].map(|series| metric(&gateway, series)), [Some(7.0); 2]);
    let digests = eventually("a line for each", || {
        let log = gateway.log();
        let lines = log.lines().filter(|line| line.contains("a lease ran out"));
        let digests =
            lines.filter_map(|line| Some(line.split_once("key.digest=")?.1[..10].to_owned()));
        let digests: Vec<String> = digests.collect();
        (digests.len() >= 7).then_some(digests)
    });
    let different: BTreeSet<&String> = digests.iter().collect();
    assert_eq!((digests.len(), different.len()), (7, 7), "{digests:?}");
}

fn a_process_that_only_works_sweeps_and_listens_to_operators_only(home: &Home) {
    let toml = SHORT_LEASE.replace("1s\"\nmax", "2s\"\nmax");
    killed_at_work(home, &toml);
    let upstream = Upstream::start(|_, _| ok("never"));
    let serving = start(home, &upstream, &toml, &["--no-workers"]);
    let worker = start(home, &upstream, &toml, &["--only", "worker"]);
    assert!(worker.address.ip().is_unspecified(), "{}", worker.address);
    assert_eq!(get(worker.admin, "/readyz").status, 200);
    eventually("the sweep", || (state(&worker)? == "unknown").then_some(()));
    assert_eq!(metric(&worker, "onceward_swept_total{state=\"unknown\"}"), Some(1.0));
    // Where no worker runs, nothing is told of one, but for the beats that each process has.
    let metrics = get(serving.admin, "/metrics");
    let mut told = metrics.text().lines().filter(|line| line.starts_with("onceward_worker_"));
    assert!(told.all(|line| line.contains("worker=\"beater\"")), "{}", metrics.text());
    assert_eq!(post(serving.address, KEY, "{}", &[]).summary(), "409 idempotency_outcome_unknown");
}

#[test]
fn what_handlers_take_is_told_where_they_run_also_without_workers() {
    let home = &Home::file();
    let upstream = Upstream::start(|_, _| ok("charged"));
    let gateway = start(home, &upstream, "", &["--no-workers"]);
    assert_eq!(post(gateway.address, KEY, "{}", &[]).status, 200);
    let short = "onceward_lease_too_short{route=\"default\"}";
    assert_eq!(eventually("the gauge", || metric(&gateway, short)), 0.0);
    // So is who sends the same again: in the first minute, nobody yet.
    for what in ["requests", "duplicates"] {
        let others = format!("onceward_scope_{what}{{scope=\"other\"}}");
        assert_eq!(metric(&gateway, &others), Some(0.0), "{others}");
    }
}

fn a_process_that_only_works_sends_what_was_accepted_elsewhere(home: &Home) {
    const QUEUED: &str = "[privacy]\n\
        keys = [{ id = \"a\", secret = \"YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=\" }]\n\
        [defaults]\nexecution = \"queued\"\n";
    let upstream = Upstream::start(|_, _| ok("charged"));
    let serving = start(home, &upstream, QUEUED, &["--no-workers"]);
    assert_eq!(post(serving.address, KEY, "{}", &[]).status, 202);
    let worker = start(home, &upstream, QUEUED, &["--only", "worker"]);
    let reply = eventually("the reply", || {
        let answer = post(serving.address, KEY, "{}", &[]);
        (answer.status != 202).then_some(answer)
    });
    assert_eq!((reply.status, reply.text(), upstream.count()), (200, "charged", 1));
    drop(worker);
}

fn past_retention_a_tombstone_is_left_and_then_nothing(home: &Home) {
    let upstream = Upstream::start(|number, _| ok(&format!("run {number}")));
    let mut gateway = start(home, &upstream, "", &[]);
    assert_eq!(post(gateway.address, KEY, "{}", &[]).text(), "run 0");
    gateway.signal("TERM");
    assert!(gateway.exit_status().success());
    home.age(2);
    let mut gateway = start(home, &upstream, "", &[]);
    eventually("the reaper", || (metric(&gateway, "onceward_reaped_total")? == 1.0).then_some(()));
    let late = post(gateway.address, KEY, "{}", &[]);
    assert_eq!(late.summary(), "410 idempotency_key_expired");
    gateway.signal("TERM");
    assert!(gateway.exit_status().success());
    home.age(31);
    let gateway = start(home, &upstream, "", &[]);
    eventually("the purge", || {
        (metric(&gateway, "onceward_purged_total{what=\"record\"}")? == 1.0).then_some(())
    });
    assert_eq!(state(&gateway), None);
    assert_eq!(post(gateway.address, KEY, "{}", &[]).text(), "run 1");
}

fn past_retention_a_key_runs_again_where_its_route_says_so(home: &Home) {
    let again = "[defaults]\nexpired = \"execute\"\n";
    let upstream = Upstream::start(|number, _| ok(&format!("run {number}")));
    let mut gateway = start(home, &upstream, again, &[]);
    let first = post(gateway.address, KEY, "{}", &[]);
    assert_eq!((first.text(), first.header("idempotency-generation")), ("run 0", None));
    assert!(post(gateway.address, KEY, "{}", &[]).is_replay());
    gateway.signal("TERM");
    assert!(gateway.exit_status().success());
    home.age(2);
    let gateway = start(home, &upstream, again, &[]);
    let next = post(gateway.address, KEY, "[]", &[]);
    assert_eq!((next.text(), next.header("idempotency-generation")), ("run 1", Some("2")));
    let retry = post(gateway.address, KEY, "[]", &[]);
    assert_eq!((retry.text(), retry.is_replay()), ("run 1", true));
    assert_eq!(retry.header("idempotency-generation"), Some("2"));
    assert_eq!(upstream.count(), 2);
}

#[test]
fn other_times_hold_from_the_reload_on() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("onceward.toml");
    let upstream = Upstream::start(|_, _| ok("charged"));
    let write = |every: &str| {
        let toml = format!(
            "config_version = 1\n[gateway]\nupstream = \"http://{}\"\n[store]\nurl = \"memory:\"\n\
             [scope]\nfrom = \"anonymous\"\n[workers]\nsurvey_every = \"{every}\"\n",
            upstream.address
        );
        std::fs::write(&file, toml).expect("written");
    };
    write("1h");
    let mut command = binary();
    command.args(["serve", "--config"]).arg(&file);
    let gateway =
        Gateway::start(command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]));
    assert_eq!(metric(&gateway, "onceward_records{state=\"completed\"}"), None);
    write("1s");
    gateway.signal("HUP");
    eventually("the survey", || metric(&gateway, "onceward_records{state=\"completed\"}"));
}

#[test]
fn a_worker_ends_cleanly_and_at_once() {
    let home = &Home::file();
    let upstream = Upstream::start(|_, _| ok("never"));
    let mut worker = start(home, &upstream, "", &["--only", "worker"]);
    let asked = Instant::now();
    worker.signal("TERM");
    assert!(worker.exit_status().success());
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
}

#[test]
fn what_makes_no_sense_together_is_refused() {
    for (flags, word) in [
        (vec!["--only", "worker", "--no-workers"], "cannot be used with"),
        (vec!["--only", "worker", "--store", "memory:"], "memory:"),
        (vec!["--no-workers", "--store", "memory:"], "memory:"),
        (vec!["--only", "gateway"], "invalid value"),
    ] {
        let mut command = binary();
        command.args(["serve", "--upstream", "http://127.0.0.1:1", "--admin", "127.0.0.1:0"]);
        let refused = command.args(&flags).output().expect("it ends");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(word), "{flags:?}: {said}");
    }
}

/// Every name in a text that looks like one of our metrics, as it is without the ends of histograms.
fn metric_names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours =
        words.filter(|word| word.starts_with("onceward_") || word.starts_with("api_idempotency_"));
    let ends = ["_bucket", "_count", "_sum"];
    ours.map(|name| ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)).collect()
}

#[test]
fn every_metric_of_the_alerts_and_of_the_dashboard_is_there() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
    let home = &Home::file();
    let upstream = Upstream::start(|_, _| ok("charged"));
    let gateway = start(home, &upstream, "", &[]);
    assert_eq!(post(gateway.address, KEY, "{}", &[]).status, 200);
    for file in ["prometheus/rules.yaml", "grafana/onceward.json"] {
        let text = std::fs::read_to_string(format!("{root}/{file}")).expect(file);
        let wanted = metric_names(&text);
        assert!(wanted.len() > 10, "{file}: {wanted:?}");
        let give_up = Instant::now() + LONGEST;
        loop {
            let metrics = get(gateway.admin, "/metrics");
            let there = metric_names(metrics.text());
            let missing: Vec<&&str> = wanted.difference(&there).collect();
            if missing.is_empty() {
                break;
            }
            assert!(Instant::now() < give_up, "{file}: {missing:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn every_alert_is_tried_and_has_a_page_that_says_what_to_do() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let rules = std::fs::read_to_string(format!("{root}/deploy/prometheus/rules.yaml"));
    let rules = rules.expect("rules");
    let tried = std::fs::read_to_string(format!("{root}/deploy/prometheus/rules_test.yaml"));
    let tried = tried.expect("tests of the rules");
    let named: BTreeSet<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let pages = std::fs::read_dir(format!("{root}/docs/runbooks")).expect("runbooks");
    let pages: BTreeSet<String> = pages
        .map(|page| page.expect("a page").file_name().into_string().expect("text"))
        // The others are not about one alert.
        .filter(|name| name.starts_with("Onceward"))
        .collect();
    let wanted: BTreeSet<String> = named.iter().map(|alert| format!("{alert}.md")).collect();
    assert_eq!(pages, wanted);
    for alert in named {
        let page = std::fs::read_to_string(format!("{root}/docs/runbooks/{alert}.md"));
        let page = page.expect("a page");
        for part in ["## What it means", "## What to look at", "## What to do", "```"] {
            assert!(page.contains(part), "{alert} lacks {part}");
        }
        assert!(rules.contains(&format!("docs/runbooks/{alert}.md")), "{alert} has no link");
        // `promtool` runs them: once where all is well, once where it fires.
        let fires = format!("alertname: {alert}\n        exp_alerts:\n          - ");
        let silent = format!("alertname: {alert} }}\n");
        assert!(tried.contains(&fires) && tried.contains(&silent), "{alert} is not tried");
    }
}

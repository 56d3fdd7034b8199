//! The admin listener, and what is logged.

use crate::support::{Gateway, Upstream, binary, get, ok, post, send};

fn metric(gateway: &Gateway, line: &str) -> bool {
    get(gateway.admin, "/metrics").text().lines().any(|given| given == line)
}

#[test]
fn a_process_is_alive_and_ready() {
    let upstream = Upstream::start(|_, _| ok(""));
    let gateway = Gateway::before(upstream.address);
    assert_eq!(get(gateway.admin, "/livez").status, 200);
    assert_eq!(get(gateway.admin, "/readyz").status, 200);
    assert_eq!(get(gateway.admin, "/nothing").status, 404);
    let post = "POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(send(gateway.admin, post).expect("answer").status, 405);
    // What is served here is not served to clients.
    let answer = send(gateway.address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(answer.expect("answer").text(), "");
}

#[test]
fn what_needs_no_token_is_not_for_pages_of_other_sites_either() {
    let upstream = Upstream::start(|_, _| ok(""));
    let gateway = Gateway::with(upstream.address, "[admin]\nhosts = [\"probes.internal\"]\n");
    let ask = |path: &str, version: &str, headers: &str| {
        let request = format!("GET {path} HTTP/{version}\r\n{headers}Connection: close\r\n\r\n");
        send(gateway.admin, &request).expect("answer").status
    };
    for path in ["/livez", "/readyz", "/metrics"] {
        for foreign in [
            "Host: evil.example:8081\r\n",
            "Host: 127.0.0.1.evil.example\r\n",
            "Host: 127.0.0.1\r\nOrigin: http://evil.example\r\n",
            "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n",
        ] {
            assert_eq!(ask(path, "1.1", foreign), 403, "{path} {foreign}");
        }
        for own in [
            "Host: 127.0.0.1:8081\r\n",
            "Host: [::1]:8081\r\n",
            "Host: 10.1.2.3:8081\r\n",
            "Host: localhost\r\n",
            "Host: probes.internal\r\n",
        ] {
            assert_eq!(ask(path, "1.1", own), 200, "{path} {own}");
        }
        assert_eq!(ask(path, "1.0", ""), 200, "a probe that names no host");
    }
}

#[test]
fn twelve_counters_are_there_from_the_start_and_count() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::before(upstream.address);
    for name in [
        "reserve_created",
        "reserve_replay",
        "reserve_in_progress",
        "reserve_key_misuse",
        "reserve_failed_retry",
        "reserve_unknown",
        "store_error",
        "zombie_key",
        "ttl_pruned",
        "reconcile_scheduled",
        "reconcile_resolved",
        "reconcile_failed",
    ] {
        let line = format!("api_idempotency_{name}_total{{route=\"default\"}} 0");
        assert!(metric(&gateway, &line), "{line} in\n{}", get(gateway.admin, "/metrics").text());
    }
    let key = "order-0000000000000001";
    for body in ["{}", "{}", "[]"] {
        post(gateway.address, key, body, &[]);
    }
    for line in [
        "api_idempotency_reserve_created_total{route=\"default\"} 1",
        "api_idempotency_reserve_replay_total{route=\"default\"} 1",
        "api_idempotency_reserve_key_misuse_total{route=\"default\"} 1",
        "api_idempotency_operation_duration_seconds_count{route=\"default\"} 1",
    ] {
        assert!(metric(&gateway, line), "{line} in\n{}", get(gateway.admin, "/metrics").text());
    }
    assert!(!get(gateway.admin, "/metrics").text().contains(key));
}

#[test]
fn no_key_body_or_credential_is_logged() {
    let upstream = Upstream::start(|_, _| ok("canary-reply"));
    let scope = "[scope]\nfrom = \"authorization\"\n";
    let gateway = Gateway::with(upstream.address, scope);
    let credential = "Authorization: Bearer canary-credential";
    for body in ["canary-body", "canary-body", "canary-other"] {
        post(gateway.address, "canary-key-0000000001", body, &[credential]);
    }
    let log = gateway.log_with("mismatch");
    assert!(log.contains("serving"), "{log}");
    assert!(!log.contains("canary"), "{log}");
}

#[test]
fn logs_are_json_where_asked_for() {
    let mut command = binary();
    command.args(["serve", "--log-format", "json", "--upstream", "http://127.0.0.1:9"]);
    command.args(["--store", "memory:", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let gateway = Gateway::start(&mut command);
    let log = gateway.log_with("serving");
    let lines: Result<Vec<serde_json::Value>, _> = log.lines().map(serde_json::from_str).collect();
    let lines = lines.expect("JSON");
    assert!(lines.iter().any(|line| line["message"] == "serving"), "{log}");
}

//! Pages of other origins: preflights, and headers that they may read.

use crate::support::{Act, Answer, Gateway, Upstream, post, response, send};

const KEY: &str = "order-0000000000000001";
const ORIGIN: &str = "Origin: https://shop.example";

fn exposed(answer: &Answer) -> String {
    answer.all("access-control-expose-headers").join(", ").to_ascii_lowercase()
}

fn preflight(gateway: &Gateway, path: &str) -> Answer {
    let request = format!(
        "OPTIONS {path} HTTP/1.1\r\nHost: x\r\n{ORIGIN}\r\nAccess-Control-Request-Method: POST\r\n\
         Access-Control-Request-Headers: content-type,idempotency-key\r\nConnection: close\r\n\r\n"
    );
    send(gateway.address, &request).expect("answer")
}

const ALLOWING: &str = "Access-Control-Allow-Origin: https://shop.example\r\n\
                        Access-Control-Allow-Headers: content-type\r\n\
                        Access-Control-Expose-Headers: X-Own\r\n";

#[test]
fn a_preflight_passes_without_a_key_and_the_key_may_then_be_sent() {
    let upstream = Upstream::start(|_, _| Act::Send(response(204, ALLOWING, "")));
    let off = "[[route]]\nmatch = \"POST /off\"\nkey = \"off\"\n";
    let gateway = Gateway::with(upstream.address, off);
    let answer = preflight(&gateway, "/charges");
    assert_eq!(answer.status, 204);
    let allowed = answer.all("access-control-allow-headers").join(", ");
    assert_eq!(allowed, "content-type, Idempotency-Key");
    assert_eq!(exposed(&answer), "x-own");
    assert_eq!(preflight(&gateway, "/off").all("access-control-allow-headers"), ["content-type"]);
    assert_eq!(upstream.count(), 2);
    assert_eq!(
        post(gateway.address, "", "{}", &[ORIGIN]).status,
        400,
        "the request itself needs one"
    );
}

#[test]
fn a_preflight_that_upstream_refuses_stays_refused() {
    let upstream = Upstream::start(|_, _| Act::Send(response(403, "", "")));
    let gateway = Gateway::before(upstream.address);
    let answer = preflight(&gateway, "/charges");
    assert_eq!((answer.status, answer.header("access-control-allow-headers")), (403, None));
}

#[test]
fn what_upstream_lets_a_page_read_includes_our_headers() {
    let upstream = Upstream::start(|_, _| Act::Send(response(200, ALLOWING, "done")));
    let gateway = Gateway::before(upstream.address);
    let first = post(gateway.address, KEY, "{}", &[ORIGIN]);
    assert_eq!(exposed(&first), "x-own, idempotency-expires, onceward-outcome");
    let elsewhere = post(gateway.address, "order-0000000000000002", "{}", &[]);
    assert_eq!(exposed(&elsewhere), "x-own", "without an origin nobody asks");
    // Whom a reply is for is not stored with it, and nobody but upstream knows.
    let replay = post(gateway.address, KEY, "{}", &[ORIGIN]);
    assert!(replay.is_replay());
    assert_eq!(replay.header("access-control-allow-origin"), None);
}

#[test]
fn our_own_answers_can_be_read_by_the_pages_that_the_configuration_names() {
    let upstream = Upstream::start(|_, _| Act::Send(response(200, ALLOWING, "done")));
    let origins = "cors_origins = [\"https://shop.example\"]\ncors_credentials = true\n";
    let gateway = Gateway::with_gateway(upstream.address, origins);
    post(gateway.address, KEY, "{}", &[ORIGIN]);
    let replay = post(gateway.address, KEY, "{}", &[ORIGIN]);
    assert!(replay.is_replay());
    let mismatch = post(gateway.address, KEY, "[]", &[ORIGIN]);
    for answer in [&replay, &mismatch] {
        let allowed = answer.header("access-control-allow-origin");
        assert_eq!(allowed, Some("https://shop.example"));
        assert_eq!(answer.header("access-control-allow-credentials"), Some("true"));
        assert_eq!(answer.header("vary"), Some("Origin"));
        assert!(exposed(answer).contains("onceward-outcome"), "{}", exposed(answer));
    }
    assert!(exposed(&replay).contains("idempotent-replayed"));
    let state = "GET /.onceward/operations/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
    let state = send(gateway.address, &format!("{state}{ORIGIN}\r\n\r\n")).expect("answer");
    let allowed = state.header("access-control-allow-origin");
    assert_eq!((state.status, allowed), (404, Some("https://shop.example")));
    let stranger = post(gateway.address, KEY, "{}", &["Origin: https://evil.example"]);
    assert_eq!(stranger.header("access-control-allow-origin"), None);
    assert_eq!(exposed(&stranger), "");
}

//! Records in DynamoDB, under the real binary.

use onceward_testbed::DynamoDb;

use crate::support::{Gateway, Upstream, binary, ok, post};

const KEY: &str = "order-0000000000000001";

fn gateway(upstream: &Upstream, url: &str) -> Gateway {
    Gateway::with(upstream.address, &format!("[store]\nurl = \"{url}\"\n"))
}

#[test]
fn two_gateways_share_a_table_and_a_retry_at_either_gets_the_reply() {
    let upstream = Upstream::start(|_, _| ok("charged"));
    let url = DynamoDb::shared().url("two-gateways");
    let mut first = gateway(&upstream, &url);
    let charged = post(first.address, KEY, "{}", &[]);
    assert_eq!((charged.status, charged.is_replay()), (200, false));
    first.signal("KILL");
    assert!(!first.exit_status().success());
    let second = gateway(&upstream, &url);
    let retry = post(second.address, KEY, "{}", &[]);
    assert_eq!((retry.status, retry.text(), retry.is_replay()), (200, "charged", true));
    let other = post(second.address, KEY, "{\"amount\":2}", &[]);
    assert_eq!(other.summary(), "422 idempotency_key_reused_with_different_payload");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_reply_that_is_too_large_for_the_table_is_said_not_to_be_stored() {
    let body = "x".repeat(400_000);
    let answer = body.clone();
    let upstream = Upstream::start(move |_, _| ok(&answer));
    let gateway = gateway(&upstream, &DynamoDb::shared().url("large-replies"));
    let first = post(gateway.address, KEY, "{}", &[]);
    assert_eq!((first.status, first.text()), (200, &*body));
    let retry = post(gateway.address, KEY, "{}", &[]);
    assert_eq!(retry.summary(), "410 idempotency_reply_not_stored");
    assert!(retry.text().contains("200"), "the original status is told: {}", retry.text());
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_table_that_cannot_be_named_so_is_refused_with_what_to_write() {
    for (url, part) in [
        ("dynamodb://x", "names no table"),
        ("dynamodb://a/b", "names no table"),
        ("dynamodb://table?regio=local", "did you mean `region`?"),
        ("dynamodb://table?endpoint=127.0.0.1", "no URL such as http://"),
    ] {
        let serve = ["serve", "--upstream", "http://127.0.0.1:9", "--store", url];
        let ended = binary().args(serve).output().expect("it ends");
        let text = String::from_utf8(ended.stderr).expect("text");
        assert!(!ended.status.success() && text.contains(part), "{url}: {text}");
    }
}

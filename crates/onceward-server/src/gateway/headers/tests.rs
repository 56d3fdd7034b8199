use http::Request;

use super::*;

fn through(headers: &[(&str, &str)], peer: &str) -> HeaderMap {
    let mut request = Request::post("/charges");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (parts, ()) = request.body(()).expect("valid").into_parts();
    rewrite().request(parts, &at(peer, false), Trailers::Drop).headers
}

fn at(peer: &str, by_tls: bool) -> Peer {
    Peer::new(format!("{peer}:4711").parse().expect("address"), by_tls)
}

fn rewrite() -> Rewrite {
    Rewrite::new(
        TrustedProxies::default(),
        true,
        Deciding(["x-account".parse().expect("a name")].into()),
    )
}

fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    headers.get_all(name).iter().map(|value| value.to_str().expect("text")).collect()
}

#[test]
fn what_belongs_to_one_connection_is_stripped_and_the_rest_stays() {
    let headers = through(
        &[
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("expect", "100-continue"),
            ("x-stays", "1"),
            ("x-stays", "2"),
            ("idempotency-key", "\"k\""),
        ],
        "127.0.0.1",
    );
    for name in ["connection", "x-hop", "keep-alive", "te", "transfer-encoding", "upgrade"] {
        assert!(!headers.contains_key(name), "{name}");
    }
    assert!(!headers.contains_key("expect"));
    assert_eq!(values(&headers, "x-stays"), ["1", "2"]);
    assert_eq!(values(&headers, "idempotency-key"), ["\"k\""]);
}

#[test]
fn connection_cannot_take_away_the_credential_or_the_key() {
    let given = [("connection", "authorization, idempotency-key"), ("authorization", "a")];
    let headers = through(&given, "127.0.0.1");
    assert_eq!(values(&headers, "authorization"), ["a"]);
}

#[test]
fn nobody_speaks_in_our_name() {
    let headers = through(&[("onceward-attempt", "7"), ("onceward-fence", "1")], "127.0.0.1");
    assert!(headers.keys().all(|name| !name.as_str().starts_with("onceward-")));
    let response = Response::builder()
        .header("onceward-outcome", "replayed")
        .header("onceward-executed", "no")
        .header("onceward-provider-id", "ch_1")
        .header("connection", "x-a")
        .header("x-a", "1")
        .header("etag", "\"1\"");
    let response = response.body(()).expect("valid");
    let left = |trailers| {
        let response = rewrite().response(response.clone(), trailers);
        let mut left: Vec<String> = response.headers().keys().map(HeaderName::to_string).collect();
        left.sort_unstable();
        left
    };
    // The engine takes out what is for it.
    assert_eq!(left(Trailers::Drop), ["etag", "onceward-executed", "onceward-provider-id"]);
    assert_eq!(left(Trailers::Pass), ["etag"]);
}

#[test]
fn upstream_learns_where_a_request_came_from() {
    let said = [
        ("host", "shop.example"),
        ("x-forwarded-for", "203.0.113.7"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "other.example"),
    ];
    let of_proxy = through(&said, "127.0.0.1");
    assert_eq!(values(&of_proxy, "x-forwarded-for"), ["203.0.113.7", "127.0.0.1"]);
    assert_eq!(values(&of_proxy, "x-forwarded-proto"), ["https"]);
    assert_eq!(values(&of_proxy, "x-forwarded-host"), ["other.example"]);
    let of_stranger = through(&said, "198.51.100.1");
    assert_eq!(values(&of_stranger, "x-forwarded-for"), ["203.0.113.7", "198.51.100.1"]);
    assert_eq!(values(&of_stranger, "x-forwarded-proto"), ["http"]);
    assert_eq!(values(&of_stranger, "x-forwarded-host"), ["shop.example"]);
}

#[test]
fn the_standard_header_is_continued_for_trusted_proxies_and_removed_for_others() {
    let said = [("forwarded", "for=203.0.113.7;proto=https")];
    let of_proxy = through(&said, "127.0.0.1");
    let ours = "for=127.0.0.1;proto=http";
    assert_eq!(values(&of_proxy, "forwarded"), ["for=203.0.113.7;proto=https", ours]);
    assert!(!through(&said, "198.51.100.1").contains_key("forwarded"));
    assert!(!through(&[], "127.0.0.1").contains_key("forwarded"));
    let ipv6 = forwarded_element("2001:db8::1".parse().expect("address"), "https");
    assert_eq!(ipv6, "for=\"[2001:db8::1]\";proto=https");
}

#[test]
fn a_client_is_where_trusted_proxies_say_that_it_is() {
    let client = |said: &[&str], peer: &str| {
        let mut headers = HeaderMap::new();
        for line in said {
            headers.append(&X_FORWARDED_FOR, line.parse().expect("valid"));
        }
        rewrite().client(&headers, &at(peer, false)).map(|address| address.to_string())
    };
    assert_eq!(client(&["203.0.113.7"], "198.51.100.1").as_deref(), Some("198.51.100.1"));
    assert_eq!(
        client(&["10.9.9.9", "1.1.1.1, 203.0.113.7"], "127.0.0.1").as_deref(),
        Some("203.0.113.7")
    );
    assert_eq!(client(&["203.0.113.7, 127.0.0.1"], "127.0.0.1").as_deref(), Some("203.0.113.7"));
    assert_eq!(client(&[], "127.0.0.1"), None);
    assert_eq!(client(&["unknown"], "127.0.0.1"), None);
}

#[test]
fn upstream_learns_that_a_request_came_by_tls() {
    let (parts, ()) = Request::get("/").body(()).expect("valid").into_parts();
    let headers = rewrite().request(parts, &at("198.51.100.1", true), Trailers::Pass).headers;
    assert_eq!(values(&headers, "x-forwarded-proto"), ["https"]);
}

#[test]
fn an_address_that_names_its_host_decides() {
    let request = Request::post("http://shop.example/charges").header("host", "other.example");
    let (parts, ()) = request.body(()).expect("valid").into_parts();
    let headers = rewrite().request(parts, &at("127.0.0.1", false), Trailers::Drop).headers;
    assert_eq!(values(&headers, "host"), ["shop.example"]);
}

#[test]
fn trailers_are_announced_where_they_are_passed_on_and_only_there() {
    let request = Request::get("/").header("te", "gzip, trailers").header("trailer", "x-sum");
    let (parts, ()) = request.body(()).expect("valid").into_parts();
    let streamed =
        rewrite().request(parts.clone(), &at("127.0.0.1", false), Trailers::Pass).headers;
    assert_eq!(values(&streamed, "te"), ["trailers"]);
    assert_eq!(values(&streamed, "trailer"), ["x-sum"]);
    let buffered = rewrite().request(parts, &at("127.0.0.1", false), Trailers::Drop).headers;
    for name in ["te", "trailer"] {
        assert!(!buffered.contains_key(name), "{name}");
    }
}

#[test]
fn a_name_with_underscores_does_not_speak_for_another() {
    let headers = through(
        &[
            ("x_forwarded_for", "1"),
            ("idempotency_key", "1"),
            ("onceward_fence", "1"),
            ("x_account", "evil"),
            ("x.account", "evil"),
            ("x_http_method_override", "DELETE"),
            ("transfer_encoding", "chunked"),
            ("connection", "x-plan"),
            ("x-plan", "basic"),
            ("x_plan", "gold"),
            ("x_own_header", "stays"),
        ],
        "127.0.0.1",
    );
    let mut with: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
    with.retain(|name| name.contains(['_', '.']));
    assert_eq!(with, ["x_own_header"]);
    assert!(!headers.contains_key("x-account") && !headers.contains_key("x-plan"));
    let both = through(&[("x_account", "evil"), ("x-account", "acme")], "127.0.0.1");
    assert_eq!(values(&both, "x-account"), ["acme"]);
    assert!(!both.contains_key("x_account"));
}

#[test]
fn cookies_that_came_in_pieces_are_joined() {
    let headers = through(&[("cookie", "a=1"), ("cookie", "b=2")], "127.0.0.1");
    assert_eq!(values(&headers, "cookie"), ["a=1; b=2"]);
}

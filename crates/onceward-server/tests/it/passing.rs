//! What goes through the gateway, and how it is changed on the way.

use crate::support::{Act, Connection, Gate, Gateway, Upstream, ok, post, response, send};

const KEY: &str = "order-0000000000000001";

#[test]
fn upstream_sees_the_request_with_its_key_and_where_it_came_from() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::before(upstream.address);
    let request = format!(
        "POST /a%2Fb//c?x=%20&x HTTP/1.1\r\nHost: shop.example\r\nIdempotency-Key: \"{KEY}\"\r\n\
         Content-Length: 2\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nX-Stays: 1\r\n\
         Onceward-Attempt: 9\r\nOnceward-Fence: 9\r\nX-Forwarded-For: 203.0.113.7\r\n\r\n{{}}"
    );
    assert_eq!(send(gateway.address, &request).expect("answer").status, 200);
    let seen = &upstream.seen()[0];
    assert_eq!(seen.line, "POST /a%2Fb//c?x=%20&x HTTP/1.1");
    assert_eq!(seen.body, b"{}");
    assert_eq!(seen.header("host"), Some("shop.example"));
    assert_eq!(seen.header("idempotency-key"), Some(format!("\"{KEY}\"").as_str()));
    assert_eq!(seen.header("x-stays"), Some("1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.header("x-forwarded-host"), Some("shop.example"));
    let addresses: Vec<&str> = seen
        .headers
        .iter()
        .filter(|(name, _)| name == "x-forwarded-for")
        .map(|(_, value)| value.as_str())
        .collect();
    assert_eq!(addresses, ["203.0.113.7", "127.0.0.1"]);
    for name in ["x-hop", "connection", "onceward-attempt"] {
        assert_eq!(seen.header(name), None, "{name}");
    }
    // What SQL functions want is ours to say, and not the client's.
    let fence: i64 = seen.header("onceward-fence").and_then(|f| f.parse().ok()).expect("a fence");
    assert!(fence > 9, "{fence}");
    assert!(seen.header("onceward-operation").is_some_and(|handle| handle.starts_with("v1.")));
    assert_eq!(seen.header("onceward-attempt-id").map(str::len), Some(36));
}

#[test]
fn unprotected_requests_are_streamed_both_ways() {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        let first = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nfirst \r\n";
        Act::SendLater(first.to_vec(), at_gate.clone(), b"4\r\nlast\r\n0\r\n\r\n".to_vec())
    });
    let gateway = Gateway::before(upstream.address);
    let mut connection = Connection::open(gateway.address).expect("connected");
    // A key on a GET is ignored.
    let get = format!("GET /stream HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {KEY}\r\n\r\n");
    connection.write(get.as_bytes()).expect("written");
    let mut answer = connection.read_head().expect("head");
    assert!(connection.read_chunk(&mut answer.body).expect("chunk"));
    // The first part is here while upstream still holds the last one back.
    assert_eq!(answer.text(), "first ");
    gate.open();
    while connection.read_chunk(&mut answer.body).expect("chunk") {}
    assert_eq!((answer.status, answer.text()), (200, "first last"));
    assert_eq!(answer.header("onceward-outcome"), None);
}

#[test]
fn the_body_of_an_unprotected_request_arrives_while_the_client_still_sends() {
    use std::io::{Read as _, Write as _};
    let gate = Gate::default();
    let arrived = gate.clone();
    let upstream = Upstream::of_connections(move |_, mut stream| {
        let mut seen = Vec::new();
        let mut byte = [0; 1];
        while !seen.ends_with(b"first-half") && stream.read_exact(&mut byte).is_ok() {
            seen.push(byte[0]);
        }
        arrived.open();
        while !seen.ends_with(b"other-half") && stream.read_exact(&mut byte).is_ok() {
            seen.push(byte[0]);
        }
        let _ = stream.write_all(&response(200, "", "both"));
    });
    let gateway = Gateway::before(upstream.address);
    let mut connection = Connection::open(gateway.address).expect("connected");
    let head = "PUT /file HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\nfirst-half";
    connection.write(head.as_bytes()).expect("written");
    gate.pass();
    connection.write(b"other-half").expect("written");
    assert_eq!(connection.read_answer().expect("answer").text(), "both");
}

#[test]
fn an_unreachable_upstream_is_told_to_unprotected_requests_too() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = port.local_addr().expect("bound");
    drop(port);
    let gateway = Gateway::before(address);
    let get = send(gateway.address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("answer");
    assert_eq!(get.summary(), "502 idempotency_upstream_unreachable");
    let connect = send(gateway.address, "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n");
    assert_eq!(connect.expect("answer").status, 405);
}

#[test]
fn an_answer_to_head_keeps_its_length_and_has_no_body() {
    let upstream = Upstream::start(|_, _| {
        Act::Send(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n".to_vec())
    });
    let gateway = Gateway::before(upstream.address);
    let mut connection = Connection::open(gateway.address).expect("connected");
    for _ in 0..2 {
        connection.write(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n").expect("written");
        let head = connection.read_head().expect("head");
        assert_eq!((head.status, head.header("content-length")), (200, Some("1234")));
    }
}

#[tokio::test]
async fn http_2_without_tls_is_spoken_too() {
    use http_body_util::{BodyExt as _, Full};
    use hyper_util::{client::legacy::Client, rt::TokioExecutor};
    let upstream = Upstream::start(|number, _| ok(&format!("run {number}")));
    let gateway = Gateway::before(upstream.address);
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let ask = || async {
        let request = http::Request::post(format!("http://{}/charges", gateway.address))
            .header("idempotency-key", KEY)
            .body(Full::new(bytes::Bytes::from_static(b"{}")))
            .expect("valid");
        let response = client.request(request).await.expect("answer");
        let replayed = response.headers().contains_key("idempotent-replayed");
        let body = response.into_body().collect().await.expect("body").to_bytes();
        (body, replayed)
    };
    assert_eq!(ask().await, ("run 0".into(), false));
    assert_eq!(ask().await, ("run 0".into(), true));
    let host = upstream.seen()[0].header("host").map(str::to_owned);
    assert_eq!(host, Some(gateway.address.to_string()));
    assert_eq!(post(gateway.address, KEY, "{}", &[]).status, 422, "without a media type before");
}

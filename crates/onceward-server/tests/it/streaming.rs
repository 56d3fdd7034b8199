//! What is passed on besides heads and bodies: trailers, consent to send, other protocols.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};

use crate::support::{Act, Connection, Gateway, Upstream, ok, post, response, send};

const KEY: &str = "order-0000000000000001";

/// Reads the head of a request and hands over the reader.
fn read_head(stream: &mut BufReader<std::net::TcpStream>) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(stream.read_line(&mut head).expect("a head"), 0, "{head}");
    }
    head.to_ascii_lowercase()
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
                       5\r\nhello\r\n0\r\nX-Sum: 42\r\n\r\n";

#[test]
fn trailers_pass_both_ways_where_nothing_is_stored() {
    let upstream = Upstream::of_connections(|_, stream| {
        let mut stream = BufReader::new(stream);
        let head = read_head(&mut stream);
        assert!(head.contains("trailer: x-sum") && head.contains("te: trailers"), "{head}");
        let mut body = String::new();
        while !body.ends_with("\r\n\r\n") {
            stream.read_line(&mut body).expect("a line");
        }
        assert!(body.to_ascii_lowercase().ends_with("0\r\nx-sum: 7\r\n\r\n"), "{body}");
        stream.get_mut().write_all(CHUNKED.as_bytes()).expect("written");
    });
    let gateway = Gateway::before(upstream.address);
    let mut connection = Connection::open(gateway.address).expect("connected");
    let request = "PUT /file HTTP/1.1\r\nHost: x\r\nTE: trailers\r\nConnection: TE\r\n\
                   Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
                   2\r\nhi\r\n0\r\nX-Sum: 7\r\n\r\n";
    connection.write(request.as_bytes()).expect("written");
    let head = connection.read_head().expect("head");
    assert_eq!((head.status, head.header("trailer")), (200, Some("X-Sum")));
    let lines: Vec<String> =
        (0..5).map(|_| connection.read_line().expect("line").to_ascii_lowercase()).collect();
    assert_eq!(lines, ["5", "hello", "0", "x-sum: 42", ""]);
}

/// As services of gRPC do it: HTTP/2 on both sides, and the outcome in the trailers.
#[tokio::test(flavor = "multi_thread")]
async fn trailers_pass_through_http_2_too() {
    use bytes::Bytes;
    use http_body_util::{BodyExt as _, Full};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    fn with_trailers(
        body: &'static str,
        name: &'static str,
    ) -> impl http_body::Body<Data = Bytes, Error = std::convert::Infallible> + Send + Unpin + 'static
    {
        let trailers = [(name, "0")].map(|(name, value)| {
            (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
        });
        let trailers = http::HeaderMap::from_iter(trailers);
        Full::new(Bytes::from_static(body.as_bytes()))
            .with_trailers(std::future::ready(Some(Ok(trailers))))
            .boxed_unsync()
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        let service = hyper::service::service_fn(async |request: http::Request<_>| {
            let (parts, body): (_, hyper::body::Incoming) = request.into_parts();
            let asked = body.collect().await.expect("a body");
            let trailers = asked.trailers().cloned().unwrap_or_default();
            assert_eq!(parts.version, http::Version::HTTP_2);
            assert_eq!(parts.headers.get("te").expect("there"), "trailers");
            assert_eq!(trailers.get("x-asked").expect("there"), "0");
            assert_eq!(parts.uri.authority().expect("there"), "shop.example");
            assert_eq!(asked.to_bytes(), "ask");
            Ok::<_, std::convert::Infallible>(http::Response::new(with_trailers(
                "reply",
                "grpc-status",
            )))
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(TokioIo::new(stream), service).await;
    });
    let gateway = Gateway::with(address, "[upstream]\nhttp2 = true\n");
    let connector = tokio::net::TcpStream::connect(gateway.address).await.expect("connected");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(connector))
            .await
            .expect("a handshake");
    tokio::spawn(connection);
    let request = http::Request::put("http://shop.example/call")
        .header("te", "trailers")
        .body(with_trailers("ask", "x-asked"))
        .expect("valid");
    let response = sender.send_request(request).await.expect("answer");
    assert_eq!(response.status(), 200);
    let reply = response.into_body().collect().await.expect("a body");
    assert_eq!(reply.trailers().and_then(|all| all.get("grpc-status")).expect("there"), "0");
    assert_eq!(reply.to_bytes(), "reply");
}

#[test]
fn trailers_of_a_stored_reply_are_dropped_for_everybody() {
    let upstream = Upstream::start(|_, seen| {
        assert_eq!((seen.header("te"), seen.header("trailer")), (None, None));
        Act::Send(CHUNKED.as_bytes().to_vec())
    });
    let gateway = Gateway::before(upstream.address);
    let ask = || post(gateway.address, KEY, "{}", &["TE: trailers", "Connection: TE"]);
    let (first, retry) = (ask(), ask());
    assert!(retry.is_replay() && !first.is_replay());
    for answer in [first, retry] {
        assert_eq!((answer.status, answer.text()), (200, "hello"));
        // A length leaves no place for trailers.
        assert_eq!(answer.header("content-length"), Some("5"));
        assert_eq!((answer.header("trailer"), answer.header("x-sum")), (None, None));
    }
}

#[test]
fn a_client_that_asks_before_it_sends_its_body_is_told_to_only_when_it_is_wanted() {
    let upstream = Upstream::start(|_, seen| {
        assert_eq!(seen.header("expect"), None);
        ok("done")
    });
    let gateway = Gateway::with(upstream.address, "[defaults]\nrequest_bytes_max = 10\n");
    let head = |method: &str, key: &str, length: usize| {
        format!(
            "{method} /charges HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n{key}\
             Content-Length: {length}\r\n\r\n"
        )
    };
    let first_line = |request: String| {
        let mut connection = Connection::open(gateway.address).expect("connected");
        connection.write(request.as_bytes()).expect("written");
        let line = connection.read_line().expect("an answer");
        (line, connection)
    };
    let key = format!("Idempotency-Key: {KEY}\r\n");
    for (method, key) in [("POST", key.as_str()), ("PUT", "")] {
        let (line, mut connection) = first_line(head(method, key, 2));
        assert_eq!(line, "HTTP/1.1 100 Continue");
        assert_eq!(connection.read_line().expect("its end"), "");
        connection.write(b"{}").expect("written");
        assert_eq!(connection.read_answer().expect("answer").text(), "done");
    }
    for (key, length, status) in
        [("", 2, "400"), ("Idempotency-Key: short\r\n", 2, "400"), (key.as_str(), 11, "413")]
    {
        let (line, mut connection) = first_line(head("POST", key, length));
        assert!(line.starts_with(&format!("HTTP/1.1 {status}")), "{line}");
        let mut rest = Vec::new();
        connection.read_to_end(&mut rest).expect("the connection is closed");
    }
    assert_eq!(upstream.count(), 2);
}

#[test]
fn an_interim_answer_of_upstream_is_left_out_and_the_final_one_counts() {
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n";
    let upstream = Upstream::start(move |_, _| {
        Act::Send([hints.as_bytes(), &response(200, "", "done")].concat())
    });
    let gateway = Gateway::before(upstream.address);
    let get = send(gateway.address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("answer");
    assert_eq!((get.status, get.text()), (200, "done"));
    assert_eq!(post(gateway.address, KEY, "{}", &[]).text(), "done");
    assert!(post(gateway.address, KEY, "{}", &[]).is_replay());
}

const WEBSOCKET: &str = "GET /chat HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n\
                         Upgrade: websocket\r\nSec-WebSocket-Key: a\r\n\r\n";

/// Switches to a protocol that says everything again in capitals.
fn shouting() -> Upstream {
    Upstream::of_connections(|_, stream| {
        let mut stream = BufReader::new(stream);
        let head = read_head(&mut stream);
        let switches = head.contains("upgrade: websocket") && head.contains("connection: upgrade");
        if !switches {
            let _ = stream.get_mut().write_all(&response(426, "", "only websocket"));
            return;
        }
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                      Upgrade: websocket\r\n\r\n";
        stream.get_mut().write_all(answer.as_bytes()).expect("written");
        let mut byte = [0; 1];
        while stream.read_exact(&mut byte).is_ok() {
            stream
                .get_mut()
                .write_all(&byte.map(|byte| byte.to_ascii_uppercase()))
                .expect("written");
        }
    })
}

#[test]
fn another_protocol_passes_where_it_is_allowed() {
    let upstream = shouting();
    let gateway = Gateway::with(upstream.address, "[defaults]\nupgrade = true\n");
    let mut connection = Connection::open(gateway.address).expect("connected");
    connection.write(WEBSOCKET.as_bytes()).expect("written");
    let head = connection.read_head().expect("head");
    assert_eq!((head.status, head.header("upgrade")), (101, Some("websocket")));
    connection.write(b"hello\n").expect("written");
    assert_eq!(connection.read_line().expect("an echo"), "HELLO");
    connection.write(b"again\n").expect("written");
    assert_eq!(connection.read_line().expect("an echo"), "AGAIN");
}

#[test]
fn another_protocol_is_refused_where_it_is_not_allowed() {
    let upstream = Upstream::start(|_, seen| {
        assert_eq!((seen.header("upgrade"), seen.header("connection")), (None, None));
        ok("done")
    });
    let gateway = Gateway::before(upstream.address);
    let mut connection = Connection::open(gateway.address).expect("connected");
    connection.write(WEBSOCKET.as_bytes()).expect("written");
    assert_eq!(connection.read_answer().expect("answer").status, 501);
    assert_eq!(upstream.count(), 0);
    // A wish for HTTP/2 may be ignored, and the request is served as it is.
    let h2c = WEBSOCKET.replace("websocket", "h2c");
    connection.write(h2c.as_bytes()).expect("written");
    assert_eq!(connection.read_answer().expect("answer").text(), "done");
    // Nor does a key make a tunnel of a protected request.
    let upgrade = ["Connection: Upgrade", "Upgrade: websocket"];
    assert_eq!(post(gateway.address, KEY, "{}", &upgrade).text(), "done");
}

#[test]
fn an_upstream_that_changes_the_protocol_unasked_gave_no_answer() {
    let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
    let upstream = Upstream::start(move |_, _| Act::Send(switched.as_bytes().to_vec()));
    let gateway = Gateway::before(upstream.address);
    assert_eq!(post(gateway.address, KEY, "{}", &[]).summary(), "502 idempotency_outcome_unknown");
    let get = send(gateway.address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("answer");
    assert_eq!(get.status, 502);
}

#[test]
fn a_trace_is_passed_on_and_begun_where_there_is_none() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::before(upstream.address);
    let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    post(gateway.address, KEY, "{}", &[&format!("traceparent: {given}")]);
    send(gateway.address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("answer");
    let seen = upstream.seen();
    assert_eq!(seen[0].header("traceparent"), Some(given));
    assert_eq!(seen[1].header("traceparent").map(str::len), Some(given.len()));
    let passing = Gateway::with(upstream.address, "[upstream]\ntraceparent = \"pass\"\n");
    send(passing.address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("answer");
    assert_eq!(upstream.seen()[2].header("traceparent"), None);
}

#[test]
fn an_unprotected_request_that_is_not_answered_in_time_is_504() {
    let gate = crate::support::Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        Act::SendLater(Vec::new(), at_gate.clone(), response(200, "", "late"))
    });
    let settings = "[upstream]\nfirst_byte_timeout = \"300ms\"\n";
    let gateway = Gateway::with(upstream.address, settings);
    let get = send(gateway.address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("answer");
    assert_eq!(get.status, 504);
    gate.open();
}

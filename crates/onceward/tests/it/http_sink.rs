//! The HTTP sink against real servers: what each answer, and each way of not answering, means.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    response::Response,
    routing::post,
};
use http::{HeaderMap, HeaderName, StatusCode};
use onceward::{
    Message, Sink as _,
    outbox::{BadSink, Delivered, Delivery, HttpSink, MessageId},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

const KEY: &str = "derived-key-0000000000000001";

fn delivery() -> Delivery {
    Delivery {
        message_id: MessageId::from_stored(7),
        key: KEY.into(),
        message: Message::new("receipt", "mail", r#"{"to":"x"}"#).content_type("application/json"),
        attempt_number: 1,
    }
}

/// A request as the receiver got it.
#[derive(Clone, Debug)]
struct Got {
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

struct Receiver {
    url: String,
    got: Arc<Mutex<Vec<Got>>>,
}

impl Receiver {
    /// A server that answers every request this way.
    async fn answering(answer: impl Fn() -> Response + Clone + Send + Sync + 'static) -> Self {
        let got = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&got);
        let handle = post(move |request: Request| async move {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(body, 1 << 20).await.expect("a body");
            let path = parts.uri.path().to_owned();
            seen.lock().expect("not poisoned").push(Got { path, headers: parts.headers, body });
            answer()
        });
        let app = Router::new().fallback_service(handle);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/charges", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Receiver { url, got }
    }

    async fn with_status(status: u16, headers: &'static [(&'static str, &'static str)]) -> Self {
        Receiver::answering(move || answer(status, headers, "")).await
    }

    fn got(&self) -> Vec<Got> {
        self.got.lock().expect("not poisoned").clone()
    }
}

fn answer(status: u16, headers: &[(&'static str, &'static str)], body: &'static str) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    for (name, value) in headers {
        response.headers_mut().insert(*name, value.parse().expect("a value"));
    }
    response
}

/// A server that takes connections and does this with each.
async fn raw_server<F>(each: impl Fn(TcpStream) -> F + Send + 'static) -> (String, Arc<Mutex<u32>>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/charges", listener.local_addr().expect("an address"));
    let connections = Arc::new(Mutex::new(0));
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            *count.lock().expect("not poisoned") += 1;
            tokio::spawn(each(stream));
        }
    });
    (url, connections)
}

/// Reads a whole request.
async fn read_request(stream: &mut TcpStream) {
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while !seen.ends_with(br#"{"to":"x"}"#) {
        let read = stream.read(&mut buffer).await.expect("readable");
        assert!(read > 0, "cut off after {seen:?}");
        seen.extend(&buffer[..read]);
    }
}

fn sink(url: &str) -> HttpSink {
    HttpSink::idempotent(url).expect("a sink")
}

async fn delivered(url: &str) -> Delivered {
    sink(url).deliver(delivery()).await
}

fn done(provider_id: Option<&str>) -> Delivered {
    Delivered::Done { provider_id: provider_id.map(str::to_owned) }
}

#[tokio::test]
async fn a_message_is_posted_as_it_is_with_its_key() {
    let receiver = Receiver::with_status(200, &[]).await;
    let authorization: HeaderName = "authorization".parse().expect("a name");
    let sink = sink(&receiver.url).header(authorization, "Bearer s".parse().expect("a value"));
    assert_eq!(sink.deliver(delivery()).await, done(None));
    assert_eq!(sink.deliver(delivery()).await, done(None));
    let got = receiver.got();
    assert_eq!(got.len(), 2);
    for got in got {
        assert_eq!((&*got.path, &*got.body), ("/charges", &br#"{"to":"x"}"#[..]));
        for (name, value) in [
            ("idempotency-key", KEY),
            ("content-type", "application/json"),
            ("authorization", "Bearer s"),
        ] {
            assert_eq!(got.headers.get_all(name).iter().collect::<Vec<_>>(), [value], "{name}");
        }
    }
}

#[tokio::test]
async fn the_provider_id_comes_from_a_header_or_from_the_json() {
    let receiver = Receiver::answering(|| {
        answer(201, &[("x-charge", "ch_1")], r#"{"id":"ch_2","data":[{"number":17}]}"#)
    });
    let url = receiver.await.url;
    let header: HeaderName = "x-charge".parse().expect("a name");
    let missing: HeaderName = "x-missing".parse().expect("a name");
    for (sink, expected) in [
        (sink(&url).provider_id_from_header(header), Some("ch_1")),
        (sink(&url).provider_id_from_header(missing), None),
        (sink(&url).provider_id_from_json("/id"), Some("ch_2")),
        (sink(&url).provider_id_from_json("/data/0/number"), Some("17")),
        (sink(&url).provider_id_from_json("/data"), None),
        (sink(&url).provider_id_from_json("/nothing"), None),
        (sink(&url), None),
    ] {
        assert_eq!(sink.deliver(delivery()).await, done(expected));
    }
    let not_json = Receiver::answering(|| answer(200, &[], "fine")).await;
    let sink = sink(&not_json.url).provider_id_from_json("/id");
    assert_eq!(sink.deliver(delivery()).await, done(None), "it acted all the same");
}

#[tokio::test]
async fn every_status_means_one_thing() {
    let later = |seconds| Some(Duration::from_secs(seconds));
    for (status, retry_after, expected) in [
        (200, None, "done"),
        (202, None, "done"),
        (204, None, "done"),
        (301, None, "refused"),
        (303, None, "refused"),
        (308, None, "refused"),
        (400, None, "refused"),
        (401, None, "refused"),
        (404, None, "refused"),
        (408, None, "not delivered"),
        (409, None, "refused"),
        (409, later(3), "ambiguous"),
        (410, None, "refused"),
        (422, None, "refused"),
        (425, None, "not delivered"),
        (429, None, "not delivered"),
        (429, later(7), "later 7"),
        (500, None, "ambiguous"),
        (500, later(7), "ambiguous"),
        (502, None, "ambiguous"),
        (503, None, "ambiguous"),
        (503, later(9), "later 9"),
        (504, None, "ambiguous"),
    ] {
        let receiver = Receiver::answering(move || {
            let mut response = answer(status, &[], "");
            if let Some(after) = retry_after {
                response.headers_mut().insert("retry-after", after.as_secs().into());
            }
            response
        });
        let receiver = receiver.await;
        let said = match delivered(&receiver.url).await {
            Delivered::Done { .. } => "done".to_owned(),
            Delivered::NotDelivered(_) => "not delivered".to_owned(),
            Delivered::Later { after, .. } => format!("later {}", after.as_secs()),
            Delivered::Refused(_) => "refused".to_owned(),
            Delivered::Ambiguous(_) => "ambiguous".to_owned(),
        };
        assert_eq!(said, expected, "{status} {retry_after:?}");
        assert_eq!(receiver.got().len(), 1, "{status}: one request for each try");
    }
}

#[tokio::test]
async fn a_date_in_retry_after_is_understood() {
    let receiver = Receiver::answering(|| {
        let at = std::time::SystemTime::now() + Duration::from_secs(100);
        let mut response = answer(429, &[], "");
        let at = httpdate::fmt_http_date(at).parse().expect("a value");
        response.headers_mut().insert("retry-after", at);
        response
    });
    let Delivered::Later { after, .. } = delivered(&receiver.await.url).await else {
        panic!("expected to be asked to wait")
    };
    assert!((90..=100).contains(&after.as_secs()), "{after:?}");
    let past = "Sun, 06 Nov 1994 08:49:37 GMT";
    let receiver = Receiver::answering(move || answer(503, &[("retry-after", past)], "")).await;
    let why = "status 503".to_owned();
    let expected = Delivered::Later { after: Duration::ZERO, why };
    assert_eq!(delivered(&receiver.url).await, expected);
}

#[tokio::test]
async fn a_receiver_that_cannot_be_reached_did_not_act() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    drop(listener);
    let said = delivered(&url).await;
    assert!(matches!(said, Delivered::NotDelivered(_)), "{said:?}");
    // Nor one that does not speak TLS.
    let (url, _) = raw_server(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
    })
    .await;
    let said = delivered(&url.replace("http:", "https:")).await;
    assert!(matches!(said, Delivered::NotDelivered(_)), "{said:?}");
}

#[tokio::test]
async fn a_connection_that_breaks_after_the_request_may_have_acted_and_is_not_tried_again() {
    for idempotent in [true, false] {
        let (url, connections) = raw_server(|mut stream| async move {
            read_request(&mut stream).await;
            // Unread bytes or a lingering time of none make it a reset.
            stream.set_zero_linger().expect("set");
        })
        .await;
        let sink = match idempotent {
            true => HttpSink::idempotent(&url),
            false => HttpSink::not_idempotent(&url),
        };
        let said = sink.expect("a sink").deliver(delivery()).await;
        assert!(matches!(said, Delivered::Ambiguous(_)), "{said:?}");
        assert_eq!(*connections.lock().expect("not poisoned"), 1);
    }
}

#[tokio::test]
async fn an_answer_that_does_not_come_in_time_may_have_acted() {
    let (url, connections) = raw_server(|mut stream| async move {
        read_request(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let said = sink(&url).timeout(Duration::from_millis(100)).deliver(delivery()).await;
    assert_eq!(said, Delivered::Ambiguous("no answer in time".to_owned()));
    assert_eq!(*connections.lock().expect("not poisoned"), 1);
}

#[tokio::test]
async fn an_answer_that_is_cut_off_may_have_acted_where_its_content_counts() {
    let (url, _) = raw_server(|mut stream| async move {
        read_request(&mut stream).await;
        let cut = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"id\":\"ch_1\"";
        stream.write_all(cut).await.expect("written");
    })
    .await;
    let said = sink(&url).provider_id_from_json("/id").deliver(delivery()).await;
    assert_eq!(said, Delivered::Ambiguous("the answer was cut off".to_owned()));
    assert_eq!(delivered(&url).await, done(None), "the status alone says that it acted");
}

#[tokio::test]
async fn what_is_no_http_is_ambiguous() {
    let (url, _) = raw_server(|mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all(b"I am a teapot\r\n\r\n").await.expect("written");
    })
    .await;
    let said = delivered(&url).await;
    assert!(matches!(said, Delivered::Ambiguous(_)), "{said:?}");
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = Receiver::with_status(200, &[]).await;
    for status in [301, 302, 303, 307, 308] {
        let to = elsewhere.url.clone();
        let receiver = Receiver::answering(move || {
            let mut response = answer(status, &[], "");
            response.headers_mut().insert("location", to.parse().expect("a value"));
            response
        });
        let said = delivered(&receiver.await.url).await;
        assert_eq!(said, Delivered::Refused(format!("status {status}")));
    }
    assert_eq!(elsewhere.got().len(), 0, "nobody else saw the message or its key");
    assert_eq!(delivered(&elsewhere.url).await, done(None), "though it can be reached");
}

#[tokio::test]
async fn a_sink_that_knows_no_keys_uses_each_connection_once() {
    let receiver = Receiver::with_status(200, &[]).await;
    let sink = HttpSink::not_idempotent(&receiver.url).expect("a sink");
    for _ in 0..3 {
        assert_eq!(sink.deliver(delivery()).await, done(None));
    }
    // Kept alive by the server, closed at once by us: a fourth one cannot meet a stale connection.
    let (url, connections) = raw_server(|mut stream| async move {
        loop {
            read_request(&mut stream).await;
            let alive = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            if stream.write_all(alive).await.is_err() {
                return;
            }
            // Closed by the peer, or another request: the first byte tells.
            let mut byte = [0];
            if stream.peek(&mut byte).await.unwrap_or(0) == 0 {
                return;
            }
        }
    })
    .await;
    let sink = HttpSink::not_idempotent(&url).expect("a sink");
    for _ in 0..3 {
        assert_eq!(sink.deliver(delivery()).await, done(None));
    }
    assert_eq!(*connections.lock().expect("not poisoned"), 3);
}

#[test]
fn an_address_that_cannot_be_posted_to_is_refused() {
    for bad in ["", "charges", "/charges", "ftp://host/", "mailto:x@y", "http://", "file:///etc"] {
        let refused = HttpSink::idempotent(bad).expect_err(bad);
        assert!(matches!(refused, BadSink::Url), "{bad}: {refused:?}");
    }
    assert!(HttpSink::idempotent("https://api.provider.example/v1").is_ok());
}

#[test]
fn nothing_secret_is_shown() {
    let sink = HttpSink::idempotent("https://user:pw@host.example/hooks/T0KEN?key=sk")
        .expect("a sink")
        .header(http::header::AUTHORIZATION, "Bearer sk".parse().expect("a value"));
    let shown = format!("{sink:?}");
    assert!(shown.contains("host.example"), "{shown}");
    for secret in ["pw", "T0KEN", "sk"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

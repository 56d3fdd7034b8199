//! TLS on both sides, with certificates made for the test.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::support::{
    Gateway, Upstream, eventually,
    frames::{self, Frames, HEADERS},
    ok, post, response,
    tls::{self, Authority},
};

const KEY: &str = "order-0000000000000001";

/// Reads the head of an answer, or whatever comes before the end.
fn read_head(stream: &mut impl std::io::Read) -> String {
    let (mut head, mut byte) = (Vec::new(), [0; 1]);
    while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("text").to_ascii_lowercase()
}

#[test]
fn clients_speak_http_1_and_http_2_over_tls() {
    let authority = Authority::new();
    authority.issue("gateway");
    let upstream = Upstream::start(|_, _| ok("done"));
    let settings = format!("[tls]\n{}", authority.settings("", "gateway"));
    let gateway = Gateway::with(upstream.address, &settings);

    let mut http1 = authority.connect(gateway.address, &["http/1.1"]).expect("a handshake");
    http1.write_all(b"GET /one HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("written");
    assert!(read_head(&mut http1).starts_with("http/1.1 200"));

    let stream = authority.connect(gateway.address, &["h2", "http/1.1"]).expect("a handshake");
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
    let mut http2 = Frames::open(stream).expect("written");
    http2.write(HEADERS, 5, 1, &frames::get("https", "localhost")).expect("written");
    let answer = loop {
        let frame = http2.read().expect("a frame");
        if frame.kind == HEADERS {
            break frame;
        }
    };
    // `:status: 200` of the static table.
    assert_eq!(answer.payload.first(), Some(&0x88));
    for seen in upstream.seen() {
        assert_eq!(seen.header("x-forwarded-proto"), Some("https"));
        assert_eq!(seen.header("host"), Some("localhost"));
    }
    assert_eq!(upstream.count(), 2);
}

#[test]
fn a_client_without_tls_gets_nothing_from_a_gateway_with_tls() {
    let authority = Authority::new();
    authority.issue("gateway");
    let upstream = Upstream::start(|_, _| ok("done"));
    let settings = format!("[tls]\n{}", authority.settings("", "gateway"));
    let gateway = Gateway::with(upstream.address, &settings);
    let mut plain = TcpStream::connect(gateway.address).expect("connected");
    plain.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("written");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_hangup_reads_the_certificate_again_and_a_damaged_one_leaves_the_old_in_use() {
    let authority = Authority::new();
    authority.issue("gateway");
    let upstream = Upstream::start(|_, _| ok("done"));
    let settings = format!("[tls]\n{}", authority.settings("", "gateway"));
    let gateway = Gateway::with(upstream.address, &settings);
    let shown = || {
        let stream = authority.connect(gateway.address, &[]).expect("a handshake");
        stream.conn.peer_certificates().expect("shown").to_vec()
    };
    let mut open = authority.connect(gateway.address, &[]).expect("a handshake");
    let first = shown();
    authority.issue("gateway");
    let second = tls::read_chain(&authority.path("gateway.crt"));
    assert_ne!(first, second);
    assert_eq!(shown(), first, "not before it is told to");
    gateway.signal("HUP");
    eventually("the new certificate", || (shown() == second).then_some(()));
    // A connection that was open goes on.
    open.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("written");
    assert!(read_head(&mut open).starts_with("http/1.1 200"));

    std::fs::write(authority.path("gateway.crt"), "nonsense").expect("written");
    gateway.signal("HUP");
    let complaint = "the configuration was not reloaded; the old one holds";
    eventually("a complaint", || gateway.log().contains(complaint).then_some(()));
    assert_eq!(shown(), second);
}

/// An upstream over TLS that answers and counts requests.
fn secured(config: Arc<rustls::ServerConfig>) -> (Upstream, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let upstream = Upstream::of_connections(move |_, stream| {
        let Some(mut stream) = tls::accept(&config, stream) else { return };
        if stream.conn.alpn_protocol() == Some(b"h2") {
            let Ok(mut frames) = Frames::serve(stream) else { return };
            while let Ok(stream) = frames.read_request() {
                counted.fetch_add(1, Ordering::SeqCst);
                frames.answer(stream).expect("written");
            }
            return;
        }
        while read_head(&mut stream).ends_with("\r\n\r\n") {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut body = [0; 2];
            stream.read_exact(&mut body).expect("a body");
            stream.write_all(&response(201, "", "")).expect("written");
        }
    });
    (upstream, requests)
}

#[test]
fn upstream_is_spoken_to_over_tls_in_the_protocol_that_it_chooses() {
    let authority = Authority::new();
    authority.issue("upstream");
    let ca = format!("[upstream]\nca_file = \"{}\"\n", authority.path("ca.crt").display());
    // The answer tells the protocol: 200 in HTTP/2, 201 in HTTP/1.1.
    for (offered, more, status) in [
        (&["http/1.1"][..], "", 201),
        (&["h2", "http/1.1"], "", 200),
        (&["h2", "http/1.1"], "http2 = false\n", 201),
        (&[], "", 201),
    ] {
        let (upstream, requests) = secured(authority.server("upstream", offered, false));
        let url = format!("https://localhost:{}", upstream.address.port());
        let gateway = Gateway::before_url(&url, &format!("{ca}{more}"));
        for number in 0..3 {
            let answer = post(gateway.address, &format!("{KEY}{number}"), "{}", &[]);
            assert_eq!(answer.status, status, "{offered:?} {more}");
        }
        assert_eq!(requests.load(Ordering::SeqCst), 3);
    }
}

#[test]
fn an_upstream_that_cannot_prove_who_it_is_gets_no_request() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    authority.issue("upstream");
    let (upstream, requests) = secured(authority.server("upstream", &[], false));
    let url = format!("https://localhost:{}", upstream.address.port());
    let ca = |authority: &Authority| {
        format!("[upstream]\nca_file = \"{}\"\n", authority.path("ca.crt").display())
    };
    let wary = Gateway::before_url(&url, &ca(&stranger));
    let refused = post(wary.address, KEY, "{}", &[]);
    assert_eq!(refused.summary(), "502 idempotency_upstream_unreachable");
    assert_eq!(requests.load(Ordering::SeqCst), 0);
    let trusting = Gateway::before_url(&url, &ca(&authority));
    assert_eq!(post(trusting.address, KEY, "{}", &[]).status, 201);
}

#[test]
fn an_upstream_that_asks_who_we_are_is_told() {
    let authority = Authority::new();
    authority.issue("upstream");
    authority.issue("gateway");
    let (upstream, requests) = secured(authority.server("upstream", &[], true));
    let url = format!("https://localhost:{}", upstream.address.port());
    let ca = format!("[upstream]\nca_file = \"{}\"\n", authority.path("ca.crt").display());
    let unknown = Gateway::before_url(&url, &ca);
    // TLS 1.3 tells us only after we have begun to write, so that nobody knows.
    assert_eq!(post(unknown.address, KEY, "{}", &[]).status, 502);
    assert_eq!(requests.load(Ordering::SeqCst), 0);
    let known = format!("{ca}{}", authority.settings("client_", "gateway"));
    let known = Gateway::before_url(&url, &known);
    assert_eq!(post(known.address, KEY, "{}", &[]).status, 201);
}

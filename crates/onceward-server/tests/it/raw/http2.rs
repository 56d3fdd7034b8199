//! Clients that speak HTTP/2 before an upstream that speaks HTTP/1.1: what a frame may hold must not
//! become a line, nor lie about a body, once it is written out.

use std::net::{SocketAddr, TcpStream};

use super::{HIDDEN, strict::Strict};
use crate::support::{
    Gate, Gateway, LONGEST,
    frames::{self, DATA, Frames, GOAWAY, HEADERS, RST_STREAM},
};

type Fields = Vec<(String, String)>;

/// A request in frames.
struct Case {
    name: &'static str,
    fields: Fields,
    body: String,
    trailers: Option<Fields>,
}

/// What came of a request.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// It was answered, with 200 or with something else.
    Answered { ok: bool },
    /// The stream was reset, or the connection ended.
    Refused,
}

const PUT: [(&str, &str); 4] =
    [(":method", "PUT"), (":scheme", "http"), (":authority", "shop"), (":path", "/file")];

/// A streamed request with these fields after its own.
fn put(name: &'static str, more: &[(&str, &str)], body: &str) -> Case {
    of(name, &[&PUT[..], more].concat(), body)
}

/// The same with one of its own fields changed.
fn instead(name: &'static str, field: &str, value: &str) -> Case {
    let changed = PUT.map(|(own, said)| (own, if own == field { value } else { said }));
    of(name, &changed, "")
}

fn of(name: &'static str, fields: &[(&str, &str)], body: &str) -> Case {
    let fields = fields.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    Case { name, fields, body: body.to_owned(), trailers: None }
}

/// As a protected request.
fn protected(case: &Case, number: usize) -> Case {
    let key = ("idempotency-key".to_owned(), format!("of-http-2-{number:016}"));
    let mut fields: Fields = case.fields.iter().cloned().chain([key]).collect();
    for (name, value) in &mut fields {
        if (name.as_str(), value.as_str()) == (":method", "PUT") {
            "POST".clone_into(value);
        }
    }
    Case { fields, body: case.body.clone(), trailers: case.trailers.clone(), ..*case }
}

/// Sends it on a connection of its own.
fn ask(to: SocketAddr, case: &Case) -> End {
    let stream = TcpStream::connect(to).expect("connected");
    stream.set_read_timeout(Some(LONGEST)).expect("set");
    let mut client = Frames::open(stream).expect("written");
    let block = |fields: &Fields| {
        let fields: Vec<(&str, &str)> =
            fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        frames::head(&fields)
    };
    const ENDS: u8 = 1;
    const WHOLE: u8 = 4;
    let ends = |is_last: bool| if is_last { ENDS } else { 0 };
    let (has_body, has_trailers) = (!case.body.is_empty(), case.trailers.is_some());
    let mut bytes =
        frames::frame(HEADERS, WHOLE | ends(!has_body && !has_trailers), 1, &block(&case.fields));
    if has_body {
        bytes.extend(frames::frame(DATA, ends(!has_trailers), 1, case.body.as_bytes()));
    }
    if let Some(trailers) = &case.trailers {
        bytes.extend(frames::frame(HEADERS, WHOLE | ENDS, 1, &block(trailers)));
    }
    // The gateway may close while we write.
    let _ = client.write_raw(&bytes);
    loop {
        match client.read() {
            // 0x88 is `:status: 200` of the static table, which comes first but for a word on the
            // size of the other one.
            Ok(frame) if (frame.kind, frame.stream) == (HEADERS, 1) => {
                let status = frame.payload.iter().find(|byte| !(0x20..0x40).contains(*byte));
                return End::Answered { ok: status == Some(&0x88) };
            }
            Ok(frame) if frame.kind == RST_STREAM || frame.kind == GOAWAY => return End::Refused,
            Ok(_) => {}
            Err(error) => {
                let silent = matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                );
                assert!(!silent, "{}: no answer and no end", case.name);
                return End::Refused;
            }
        }
    }
}

/// Nothing of these may reach upstream.
fn unclear() -> Vec<Case> {
    let chunked = format!("0\r\n\r\n{HIDDEN}");
    let line = "/file HTTP/1.1\r\nHost: x\r\n\r\nPOST /smuggled";
    let more = |name, field: &str, value: &str| put(name, &[(field, value)], "{}");
    let mut all = vec![
        more("a line break in a value", "x-a", "1\r\nTransfer-Encoding: chunked"),
        more("a line feed in a value", "x-a", "1\nTransfer-Encoding: chunked"),
        more("a return in a value", "x-a", "1\rTransfer-Encoding: chunked"),
        more("a zero byte in a value", "x-a", "1\0"),
        more("a line break in a name", "x-a: 1\r\nx-b", "1"),
        more("a colon in a name", "transfer-encoding: chunked", "1"),
        more("a space in a name", "transfer-encoding ", "chunked"),
        more("a capital in a name", "Transfer-Encoding", "chunked"),
        more("no name", "", "1"),
        put("chunks", &[("transfer-encoding", "chunked")], &chunked),
        put(
            "chunks and a length",
            &[("transfer-encoding", "chunked"), ("content-length", "4")],
            &chunked,
        ),
        put("a coding that is none", &[("transfer-encoding", "identity")], &chunked),
        more("what is for one connection", "connection", "transfer-encoding"),
        more("a connection that is kept", "keep-alive", "timeout=5"),
        more("a connection to a proxy", "proxy-connection", "keep-alive"),
        more("another protocol", "upgrade", "h2c"),
        more("a coding of the way back", "te", "chunked"),
        put("a length under that of the body", &[("content-length", "4")], &chunked),
        put("a length over that of the body", &[("content-length", "400")], &chunked),
        put("a length of nothing", &[("content-length", "0")], HIDDEN),
        put("a length of nothing at all", &[("content-length", "10")], ""),
        put("a length with a sign", &[("content-length", "+2")], "{}"),
        put("a length that is none", &[("content-length", "x")], "{}"),
        put("two lengths", &[("content-length", "2"), ("content-length", "2")], "{}"),
        put("two lengths that differ", &[("content-length", "2"), ("content-length", "9")], "{}"),
        put("two lengths in one", &[("content-length", "2, 2")], "{}"),
        instead("a line in the path", ":path", line),
        instead("a space in the path", ":path", "/file HTTP/1.1"),
        instead("a line feed in the path", ":path", "/file\nX: 1"),
        instead("no path", ":path", ""),
        instead("a path without its slash", ":path", "file"),
        instead("a path that is an address", ":path", "http://evil/file"),
        instead("a line in the method", ":method", "PUT /file HTTP/1.1\r\nHost: x\r\n\r\nPOST"),
        instead("a space in the method", ":method", "PUT /smuggled"),
        instead("no method", ":method", ""),
        instead("a line in the host", ":authority", "shop\r\nX: 1"),
        instead("a path in the host", ":authority", "shop/smuggled"),
        instead("a space in the host", ":authority", "shop evil"),
        instead("a user in the host", ":authority", "evil@shop"),
        instead("a line in the scheme", ":scheme", "http\r\nX: 1"),
        more("a second path", ":path", "/smuggled"),
        more("a second method", ":method", "GET"),
        more("a second host", ":authority", "evil"),
        more("a host that is not the address", "host", "evil"),
        put("two hosts", &[("host", "shop"), ("host", "shop")], "{}"),
        more("a field that only answers have", ":status", "200"),
        more("a field that nobody knows", ":smuggled", "1"),
        of("a field after others", &[&[("x-a", "1")], &PUT[..]].concat(), ""),
    ];
    for left_out in [":method", ":scheme", ":path"] {
        let fields: Vec<(&str, &str)> =
            PUT.into_iter().filter(|(name, _)| *name != left_out).collect();
        all.push(of("a field that is missing", &fields, ""));
    }
    all
}

#[test]
fn nothing_that_is_unclear_in_http_2_reaches_upstream() {
    let upstream = Strict::start(Gate::default());
    let gateway = Gateway::before(upstream.address());
    let mut reached = Vec::new();
    for (number, case) in unclear().into_iter().enumerate() {
        for case in [protected(&case, number), case] {
            let end = ask(gateway.address, &case);
            let (seen, findings) = (upstream.requests(), upstream.findings());
            if end == (End::Answered { ok: true }) || !seen.is_empty() || !findings.is_empty() {
                reached.push(format!("{}: {end:?}, {seen:?}, {findings:?}", case.name));
                upstream.forget();
            }
        }
    }
    assert!(reached.is_empty(), "{reached:#?}");
    // The positive twin, after all of that: nothing is left over on the connections to upstream.
    for body in ["", "{}", HIDDEN] {
        let clear = put("clear", &[], body);
        assert_eq!(ask(gateway.address, &clear), End::Answered { ok: true });
    }
    let lines: Vec<String> = upstream.requests().into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, ["PUT /file HTTP/1.1"; 3]);
}

#[test]
fn what_is_clear_in_http_2_reaches_upstream_in_one_clear_form() {
    let upstream = Strict::start(Gate::default());
    let gateway = Gateway::before(upstream.address());
    let length = HIDDEN.len().to_string();
    let mut with_trailers = put("trailers", &[], HIDDEN);
    with_trailers.trailers = Some(vec![("x-sum".to_owned(), "1".to_owned())]);
    let cases = [
        put("no body", &[], ""),
        put("a body without a length", &[], HIDDEN),
        put("a body with its length", &[("content-length", &length)], HIDDEN),
        put("a length of nothing", &[("content-length", "0")], ""),
        put("trailers that are taken", &[("te", "trailers")], "{}"),
        put("the host twice alike", &[("host", "shop")], "{}"),
        put("cookies in pieces", &[("cookie", "a=1"), ("cookie", "b=2")], "{}"),
        instead("a path with two slashes", ":path", "//evil/file"),
        instead("a path with another host", ":path", "/http://evil/file"),
        with_trailers,
    ];
    for (number, case) in cases.into_iter().enumerate() {
        for case in [protected(&case, number), case] {
            let before = upstream.requests().len();
            assert_eq!(ask(gateway.address, &case), End::Answered { ok: true }, "{}", case.name);
            let seen = upstream.requests().split_off(before);
            let [(line, _)] = &seen[..] else { panic!("{}: {seen:?}", case.name) };
            let expected = |name: &str| {
                case.fields.iter().find(|(given, _)| given == name).expect("there").1.clone()
            };
            assert_eq!(*line, format!("{} {} HTTP/1.1", expected(":method"), expected(":path")));
        }
    }
    assert_eq!(upstream.findings(), Vec::<String>::new());
}

#[test]
fn trailers_of_http_2_say_nothing_that_a_head_would_have_to() {
    let upstream = Strict::start(Gate::default());
    let gateway = Gateway::before(upstream.address());
    for (name, value) in [
        ("content-length", "0"),
        ("transfer-encoding", "chunked"),
        ("host", "evil"),
        (":path", "/smuggled"),
        ("x-a", "1\r\n\r\nPOST /smuggled HTTP/1.1"),
    ] {
        let mut case = put("trailers", &[("te", "trailers"), ("trailer", name)], "{}");
        case.trailers = Some(vec![(name.to_owned(), value.to_owned())]);
        ask(gateway.address, &case);
        // Upstream may have begun with it. It never takes anything for the next request.
        assert_eq!(ask(gateway.address, &put("clear", &[], "")), End::Answered { ok: true });
    }
    let lines: Vec<String> = upstream.requests().into_iter().map(|(line, _)| line).collect();
    assert!(lines.iter().all(|line| line == "PUT /file HTTP/1.1"), "{lines:?}");
    assert_eq!(upstream.findings(), Vec::<String>::new());
}

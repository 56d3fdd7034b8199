//! Clients that speak HTTP/2 and go away, or do not come to an end.

use std::net::{SocketAddr, TcpStream};

use crate::support::{
    Act, Gate, Gateway, Home, LONGEST, Upstream, eventually,
    frames::{self, CANCEL, DATA, Frames, GOAWAY, HEADERS, INTERNAL_ERROR, NO_ERROR, RST_STREAM},
    ok, on_each_store, post, response,
};

const KEY: &str = "order-0000000000000001";

/// The end of a request, and of its head.
const ENDS: u8 = 1;
const WHOLE: u8 = 4;

on_each_store!(a_stream_that_its_client_resets_is_worked_on_to_the_end_and_its_reply_is_replayed);

fn connected(to: SocketAddr) -> Frames {
    let stream = TcpStream::connect(to).expect("connected");
    stream.set_read_timeout(Some(LONGEST)).expect("set");
    Frames::open(stream).expect("written")
}

/// The head of a request, and so much of its body.
fn begin(client: &mut Frames, stream: u32, method: &str, key: &str, body: &[u8], ends: u8) {
    let mut fields = vec![
        (":method", method),
        (":scheme", "http"),
        (":authority", "shop"),
        (":path", "/charges"),
        ("content-type", "application/json"),
    ];
    if !key.is_empty() {
        fields.push(("idempotency-key", key));
    }
    client.write(HEADERS, WHOLE, stream, &frames::head(&fields)).expect("written");
    client.write(DATA, ends, stream, body).expect("written");
}

fn a_stream_that_its_client_resets_is_worked_on_to_the_end_and_its_reply_is_replayed(home: &Home) {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |number, _| {
        let answer = response(201, "Content-Type: text/plain\r\n", &format!("run {number}"));
        Act::SendLater(Vec::new(), at_gate.clone(), answer)
    });
    let gateway = home.gateway(&upstream, "");
    let mut client = connected(gateway.address);
    let keys = [CANCEL, NO_ERROR, INTERNAL_ERROR].map(|code| format!("order-reset-with-{code:06}"));
    for (number, (key, code)) in keys.iter().zip([CANCEL, NO_ERROR, INTERNAL_ERROR]).enumerate() {
        let stream = 2 * number as u32 + 1;
        begin(&mut client, stream, "POST", key, b"{}", ENDS);
        gate.reached_by(number + 1);
        client.reset(stream, code).expect("written");
        let retry = post(gateway.address, key, "{}", &[]);
        assert_eq!(retry.summary(), "409 idempotency_key_in_progress", "{code}");
    }
    // The whole connection goes while it works.
    begin(&mut client, 7, "POST", KEY, b"{}", ENDS);
    gate.reached_by(4);
    client.close();
    gate.open();
    let mut bodies: Vec<String> = Vec::new();
    for key in keys.iter().map(String::as_str).chain([KEY]) {
        let replay = eventually("the end of the work", || {
            let answer = post(gateway.address, key, "{}", &[]);
            answer.is_replay().then_some(answer)
        });
        assert_eq!(replay.status, 201);
        assert_eq!(post(gateway.address, key, "{}", &[]).body, replay.body);
        bodies.push(replay.text().to_owned());
    }
    bodies.sort();
    assert_eq!(bodies, ["run 0", "run 1", "run 2", "run 3"]);
    assert_eq!(upstream.count(), 4);
}

#[test]
fn a_body_of_http_2_that_comes_too_slowly_is_ended_and_not_executed() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let limits = "[limits]\nbody_timeout = \"500ms\"\nstall_timeout = \"500ms\"\n";
    let gateway = Gateway::with(upstream.address, limits);
    let mut client = connected(gateway.address);
    begin(&mut client, 1, "POST", KEY, b"half", 0);
    // 408 with its document, or an end without one.
    loop {
        let frame = client.read().expect("an answer or an end");
        let is_end = matches!(frame.kind, HEADERS | RST_STREAM) && frame.stream == 1;
        if is_end || frame.kind == GOAWAY {
            // 0x88 is `:status: 200` of the static table.
            let status = frame.payload.iter().find(|byte| !(0x20..0x40).contains(*byte));
            assert!(frame.kind != HEADERS || status != Some(&0x88));
            break;
        }
    }
    assert_eq!(upstream.count(), 0);
    let mut client = connected(gateway.address);
    begin(&mut client, 1, "POST", KEY, b"{}", ENDS);
    eventually("an answer", || {
        let frame = client.read().expect("an answer");
        (frame.kind == HEADERS && frame.stream == 1).then_some(())
    });
    assert!(post(gateway.address, KEY, "{}", &[]).is_replay());
    assert_eq!(upstream.count(), 1);
}

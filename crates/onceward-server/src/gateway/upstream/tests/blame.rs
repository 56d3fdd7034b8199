//! Who is to blame for an answer that did not come.

use super::{rest::Client, *};

#[tokio::test]
async fn a_request_that_still_waits_when_its_connection_ends_is_not_blamed_on_the_client() {
    let (upstream, mut servers) = streams::by_frames();
    let (sending, server) = streams::not_allowed(&upstream, &mut servers).await;
    drop(server);
    let failure = sending.await.expect_err("no answer");
    assert_eq!(failure, Failure::no_answer("upstream_gave_no_answer"));
}

#[tokio::test]
async fn a_request_that_its_client_does_not_finish_is_blamed_on_the_client() {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let (ends, mut servers) = mpsc::unbounded_channel();
        let base = Uri::from_static("http://bank");
        let upstream = Upstream::through(Pipes(ends, protocol), base, Duration::from_secs(5));
        let (mut client, body) = Client::begin().await;
        let (parts, ()) = Request::post("/files").body(()).expect("valid").into_parts();
        let mut sending = Box::pin(upstream.send(parts, body, &true));
        client.send("x").await;
        let mut server = streams::beside(&mut sending, servers.recv()).await.expect("a connection");
        streams::beside(&mut sending, server.read_u8()).await.expect("the first byte");
        drop(client);
        let failure = sending.await.expect_err("no answer");
        assert_eq!(failure, Failure::ClientBrokeOff { too_slow: false }, "{protocol:?}");
    }
}

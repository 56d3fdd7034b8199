//! Requests that are not ours: streamed both ways, with what comes after their bodies; and other
//! protocols, where they are allowed.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderValue, Method, Response, StatusCode, Version,
    header::{CONNECTION, UPGRADE},
    request::Parts,
};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use onceward::{Rejection, rejection::Code, tower::Body};
use tokio::{io::copy_bidirectional, time::Instant};
use tracing::{debug, warn};

use super::{
    Failure, FromUpstream, GatewayBody, Outgoing, Peer, Rewrite, Setup, Trailers, bare,
    headers::names, paced::Paced,
};

/// How long things may take that nobody else limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Between two parts of a request.
    pub(crate) stall_max: Duration,
    /// Until the head of an answer.
    pub(crate) first_byte_max: Duration,
    /// Until the end of an answer.
    pub(crate) total_max: Option<Duration>,
}

impl Pace {
    /// The body of a request, as it comes.
    pub(super) fn request(&self, body: Incoming) -> Paced {
        Paced::no_stall(body, self.stall_max)
    }
}

/// Passes a request on as it comes, and its answer too.
pub(super) async fn send(
    setup: &Setup,
    peer: &Peer,
    mut parts: Parts,
    body: Outgoing,
    upgrades: bool,
) -> Result<Response<GatewayBody>, Failure> {
    let Setup { upstream, rewrite, pace, .. } = setup;
    let begun = Instant::now();
    let deadline = pace.total_max.map(|at_most| begun + at_most);
    let first_byte = begun + pace.first_byte_max;
    let first_byte = deadline.map_or(first_byte, |deadline| first_byte.min(deadline));
    let sent = match asks_for_upgrade(&parts) {
        Some(_) if !upgrades => return Ok(bare(StatusCode::NOT_IMPLEMENTED)),
        Some(protocol) => {
            let client = parts.extensions.remove::<OnUpgrade>();
            let mut parts = rewrite.request(parts, peer, Trailers::Drop);
            parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(UPGRADE, protocol);
            let sent = Box::pin(upstream.send_upgrade(parts, body));
            let sent = peer.alarms.until(first_byte, sent).await;
            match (sent, client) {
                (Some(Ok(response)), Some(client))
                    if response.status() == StatusCode::SWITCHING_PROTOCOLS =>
                {
                    return Ok(tunnel(rewrite, client, response));
                }
                (sent, _) => sent,
            }
        }
        None => {
            let parts = rewrite.request(parts, peer, Trailers::Pass);
            peer.alarms.until(first_byte, upstream.send(parts, body, &true)).await
        }
    };
    let too_slow =
        Failure::NoFullAnswer { status: StatusCode::GATEWAY_TIMEOUT, why: "upstream_too_slow" };
    let response = rewrite.response(sent.unwrap_or(Err(too_slow))?, Trailers::Pass);
    Ok(response.map(|body| Body::streaming(Paced::until(body, deadline))))
}

/// The answer to a request that was not answered.
pub(super) fn not_passed(failure: Failure) -> Response<GatewayBody> {
    match failure {
        Failure::NeverSent { why } => {
            warn!(why, "upstream could not be reached");
            let detail = "The service did not take the request. Nothing was executed.";
            let rejection = Rejection::new(Code::UpstreamUnreachable, detail);
            rejection.into_response(None, onceward::Profile::Ietf).map(Body::full)
        }
        Failure::NoFullAnswer { status, why } => {
            warn!(why, "upstream gave no answer to an unprotected request");
            bare(status)
        }
        Failure::ClientBrokeOff { too_slow } => {
            let status =
                if too_slow { StatusCode::REQUEST_TIMEOUT } else { StatusCode::BAD_REQUEST };
            let mut response = bare(status);
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
            response
        }
    }
}

/// The protocol that a client asks for instead of HTTP. A wish for HTTP/2 is not granted here and
/// may be ignored: who has it speaks it from the start.
fn asks_for_upgrade(parts: &Parts) -> Option<HeaderValue> {
    let asks = parts.version == Version::HTTP_11
        && parts.method == Method::GET
        && names(&parts.headers, &CONNECTION, "upgrade");
    let protocol = parts.headers.get(UPGRADE).filter(|_| asks)?;
    (!names(&parts.headers, &UPGRADE, "h2c")).then(|| protocol.clone())
}

/// Joins both sides, once both have said that they speak something else from here on.
fn tunnel(
    rewrite: &Rewrite,
    client: OnUpgrade,
    mut response: Response<FromUpstream>,
) -> Response<GatewayBody> {
    let upstream = hyper::upgrade::on(&mut response);
    tokio::spawn(async move {
        let (Ok(client), Ok(upstream)) = tokio::join!(client, upstream) else {
            debug!("a change of protocol did not come about");
            return;
        };
        let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        if let Err(error) = copy_bidirectional(&mut client, &mut upstream).await {
            debug!(%error, "a tunnel ended with an error");
        }
    });
    let protocol = response.headers().get(UPGRADE).cloned();
    let mut response = rewrite.response(response, Trailers::Drop);
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        headers.insert(UPGRADE, protocol);
    }
    response.map(|_| Body::full(Bytes::new()))
}

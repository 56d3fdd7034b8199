//! The client to upstream, and what its errors prove.
//!
//! The one question that matters: may any byte of the request have been written? If not, it is known
//! that nothing was done. If so, it is never sent again. hyper answers it: a request that was not
//! begun is handed back. Connections are kept here, so that nobody else decides to send anything.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use http::{
    HeaderValue, Request, Response, StatusCode, Uri,
    header::{CONNECTION, HOST, TE},
    request::Parts,
    uri::{self, Authority},
};
use hyper::{
    client::conn::http1,
    rt::{Read, Write},
};
use hyper_util::rt::TokioIo;
use onceward::{Operation, tower::Body};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{debug, warn};

use super::paced::Paced;
use crate::config::UpstreamSettings;

mod dial; // new connections
mod link; // a connection, polled by whoever waits for it
mod pool; // connections that are used again
mod shared; // a connection for many requests at a time
mod streams; // how many requests are under way there
mod turns; // who makes the next one
mod unanswered; // what can be known without an answer
mod uploading; // the body of a request, until it is sent

use dial::{Dial, Network, Protocol};
pub(crate) use link::FromUpstream;
use link::Link;
use pool::{Pool, Sender};
use streams::Begun;
use turns::Turns;
use unanswered::Unanswered;
use uploading::{Upload, Uploading};

/// A kept-alive connection is used again within this: upstreams close idle ones after 5 s and more,
/// and a request that meets the closing may or may not have arrived.
const IDLE_MAX: Duration = Duration::from_secs(2);

/// The body of a request to upstream.
pub(crate) type Outgoing = Body<Paced>;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Upstream did not begin with the request: nothing was done.
    NeverSent { why: &'static str },
    /// It may have: nobody knows. With the status for a client.
    NoFullAnswer { status: StatusCode, why: &'static str },
    /// The client did not send the body that it had promised, or not in time. Upstream has a part
    /// of the request.
    ClientBrokeOff { too_slow: bool },
}

impl Failure {
    fn no_answer(why: &'static str) -> Self {
        Failure::NoFullAnswer { status: StatusCode::BAD_GATEWAY, why }
    }
}

/// Who is asked before a request is begun, and told if it was not begun after all.
pub(crate) trait Leave {
    /// The request is about to be begun, if it still may be.
    fn begin(&self) -> bool;

    /// Nothing of it was written.
    fn not_begun(&self) {}
}

impl Leave for Operation {
    fn begin(&self) -> bool {
        self.may_send()
    }

    fn not_begun(&self) {
        self.not_yet_sent();
    }
}

/// Always, or never.
impl Leave for bool {
    fn begin(&self) -> bool {
        *self
    }
}

/// One upstream.
pub(crate) struct Upstream<D = Network> {
    base: Uri,
    dial: D,
    connect_time_max: Duration,
    pool: Arc<Pool>,
    /// Whether the next connection can probably be shared, and who makes it.
    may_share: AtomicBool,
    turns: Turns,
}

impl Upstream {
    /// A connection has to be there in half of `max_execution`: an attempt that ran out of time
    /// while it still connected would be called unknown, though nothing was sent.
    pub(crate) fn new(
        base: Uri,
        settings: &UpstreamSettings,
        max_execution: Duration,
    ) -> Result<Self> {
        let dial = Network::new(base.clone(), settings)?;
        Ok(Self::through(dial, base, settings.connect_time_max.min(max_execution / 2)))
    }
}

impl<D: Dial> Upstream<D> {
    fn through(dial: D, base: Uri, connect_time_max: Duration) -> Self {
        let pool = Arc::<Pool>::default();
        let pruned = Arc::downgrade(&pool);
        tokio::spawn(async move {
            let mut ticks = interval(IDLE_MAX);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while let Some(pool) = pruned.upgrade() {
                pool.prune();
                drop(pool);
                ticks.tick().await;
            }
        });
        let may_share = AtomicBool::new(dial.may_share());
        Upstream { base, dial, connect_time_max, pool, may_share, turns: Turns::default() }
    }

    /// Sends a request. If a kept-alive connection turns out to be closed before anything was
    /// written, the request goes out on one new connection, if the attempt still may act under its
    /// lease.
    pub(crate) async fn send(
        &self,
        parts: Parts,
        body: Outgoing,
        leave: &impl Leave,
    ) -> Result<Response<FromUpstream>, Failure> {
        let in_time = || match leave.begin() {
            true => Ok(()),
            // The wait may have outlasted the lease; a right that may be lost is not used.
            false => Err(Failure::NeverSent { why: "lease_over_before_dispatch" }),
        };
        let mut request = Request::from_parts(parts, body);
        if let Some(kept) = self.pool.take() {
            in_time()?;
            match self.send_on(kept, request).await {
                Ok(response) => return expected(response),
                Err(Unanswered::Failed(failure)) => return Err(failure),
                Err(Unanswered::HandedBack(unsent)) => request = *unsent,
            }
            leave.not_begun();
        }
        // Seldom, and large: in a box.
        let fresh = Box::pin(self.connect()).await?;
        in_time()?;
        match self.send_on(fresh, request).await {
            Ok(response) => expected(response),
            Err(unanswered) => Err(unanswered.into()),
        }
    }

    /// Sends a request that asks for another protocol, on a connection of its own. Its answer may
    /// be 101.
    pub(crate) async fn send_upgrade(
        &self,
        parts: Parts,
        body: Outgoing,
    ) -> Result<Response<FromUpstream>, Failure> {
        let fresh = self.in_time(self.open(true)).await?;
        let sent = self.send_on(fresh, Request::from_parts(parts, body)).await;
        sent.map_err(Into::into)
    }

    async fn send_on(
        &self,
        sender: Sender,
        request: Request<Outgoing>,
    ) -> Result<Response<FromUpstream>, Unanswered> {
        let (mut parts, body) = request.into_parts();
        let asked = parts.uri.clone();
        match sender {
            Sender::Http1(mut link) => {
                self.address_http1(&mut parts)?;
                let sent = link.send(Request::from_parts(parts, body)).await;
                let sent = sent.map_err(|error| Unanswered::of(error, asked, link.broke_off()))?;
                Ok(sent.map(|body| FromUpstream::over(body, link, &self.pool)))
            }
            Sender::Http1Alone(mut sender) => {
                self.address_http1(&mut parts)?;
                let upload = Arc::default();
                let request = Uploading::of(Request::from_parts(parts, body), &upload);
                let sent = sender.try_send_request(request).await;
                let sent =
                    sent.map_err(|error| Unanswered::of(error, asked, upload.broke_off()))?;
                Ok(sent.map(FromUpstream::from))
            }
            Sender::Http2(mut sender, place) => {
                self.address_http2(&mut parts)?;
                let upload = Upload::among_others(place);
                let request = Uploading::of(Request::from_parts(parts, body), &upload);
                let sending = sender.try_send_request(request);
                let begun = Begun::new(&upload);
                let sent = sending.await;
                let sent = sent.map_err(|error| Unanswered::of(error, asked, upload.broke_off()));
                if !matches!(sent, Err(Unanswered::Failed(_))) {
                    begun.decided();
                }
                Ok(sent?.map(|body| FromUpstream::among_others(body, upload)))
            }
        }
    }

    /// A new connection, or one that somebody else has just made and shares.
    async fn connect(&self) -> Result<Sender, Failure> {
        self.in_time(async {
            if !self.may_share.load(Ordering::Relaxed) {
                return self.open(false).await;
            }
            let (turn, has_waited) = self.turns.take().await;
            if !self.may_share.load(Ordering::Relaxed) {
                drop(turn);
                return self.open(false).await;
            }
            match self.pool.take() {
                Some(shared @ Sender::Http2(..)) => {
                    if has_waited {
                        turn.enough();
                    }
                    Ok(shared)
                }
                _ => {
                    let opened = self.open(false).await;
                    if has_waited && opened.is_ok() {
                        turn.too_few();
                    }
                    opened
                }
            }
        })
        .await
    }

    async fn in_time(
        &self,
        opening: impl Future<Output = Result<Sender>>,
    ) -> Result<Sender, Failure> {
        let error = match timeout(self.connect_time_max, opening).await {
            Ok(Ok(sender)) => return Ok(sender),
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "it took too long".to_owned(),
        };
        warn!(error, "no connection to upstream");
        Err(Failure::NeverSent { why: "upstream_unreachable" })
    }

    async fn open(&self, only_http1: bool) -> Result<Sender> {
        let (stream, protocol) = self.dial.dial(only_http1).await?;
        let stream = TokioIo::new(stream);
        match protocol {
            Protocol::Http1 if only_http1 => alone(stream).await,
            Protocol::Http1 => {
                self.may_share.store(false, Ordering::Relaxed);
                Ok(Sender::Http1(Link::over(stream).await?))
            }
            Protocol::Http2 => {
                let (sender, streams) = shared::open(stream).await?;
                let place = streams.place().context("upstream allows no request")?;
                self.pool.share(&sender, streams);
                Ok(Sender::Http2(sender, place))
            }
        }
    }

    /// The client's path and query, behind the upstream's own path.
    fn path(&self, asked: &Uri) -> Result<uri::PathAndQuery, Failure> {
        let prefix = self.base.path().trim_end_matches('/');
        if let (Some(asked), true) = (asked.path_and_query(), prefix.is_empty()) {
            return Ok(asked.clone());
        }
        let asked = asked.path_and_query().map_or("/", uri::PathAndQuery::as_str);
        let wanted =
            if asked.starts_with('*') { "*".to_owned() } else { format!("{prefix}{asked}") };
        wanted.parse().map_err(|_| Failure::NeverSent { why: "address_not_usable" })
    }

    /// In HTTP/1.1 the host has a header of its own.
    fn address_http1(&self, parts: &mut Parts) -> Result<(), Failure> {
        parts.uri = self.path(&parts.uri)?.into();
        if !parts.headers.contains_key(HOST)
            && let Some(own) = self.base.authority()
            && let Ok(own) = HeaderValue::from_str(own.as_str())
        {
            parts.headers.insert(HOST, own);
        }
        // It holds for this connection only, and HTTP/1.1 has to say so.
        if parts.headers.contains_key(TE) {
            parts.headers.insert(CONNECTION, HeaderValue::from_static("TE"));
        }
        Ok(())
    }

    /// In HTTP/2 the host is a part of the address, and there only. Nothing is said about
    /// connections.
    fn address_http2(&self, parts: &mut Parts) -> Result<(), Failure> {
        parts.headers.remove(CONNECTION);
        let host = parts.headers.remove(HOST);
        let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        let mut address = self.base.clone().into_parts();
        address.path_and_query = Some(self.path(&parts.uri)?);
        address.authority = host.or(address.authority);
        parts.uri = Uri::from_parts(address)
            .map_err(|_| Failure::NeverSent { why: "address_not_usable" })?;
        Ok(())
    }
}

/// A connection for one request, with a task of its own.
async fn alone(stream: impl Read + Write + Send + Unpin + 'static) -> Result<Sender> {
    let (sender, connection) = http1::Builder::new().handshake(stream).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            debug!(%error, "a connection to upstream ended with an error");
        }
    });
    Ok(Sender::Http1Alone(sender))
}

/// Nobody asked for another protocol.
fn expected(response: Response<FromUpstream>) -> Result<Response<FromUpstream>, Failure> {
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => Err(Failure::no_answer("upstream_switched_protocols")),
        _ => Ok(response),
    }
}

#[cfg(test)]
mod tests;

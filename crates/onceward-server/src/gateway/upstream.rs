//! The client to upstream, and what its errors prove.
//!
//! The one question that matters: may any byte of the request have been written? If not, it is known
//! that nothing was done. If so, it is never sent again.

use std::{error::Error as _, time::Duration};

use bytes::Bytes;
use http::{Request, Response, Uri, request::Parts, uri};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{
        Client, Error,
        connect::{Connect, HttpConnector},
    },
    rt::{TokioExecutor, TokioTimer},
};
use onceward::tower::Body;

/// A kept-alive connection is used again within this: upstreams close idle ones after 5 s and more,
/// and a request that meets the closing may or may not have arrived.
const IDLE_MAX: Duration = Duration::from_secs(2);

const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No byte of the request was written: nothing was done.
    NeverSent { why: &'static str },
    /// Some may have been: nobody knows.
    NoFullAnswer { why: &'static str },
}

/// One upstream.
pub(crate) struct Upstream<C = HttpConnector> {
    base: Uri,
    /// Connections that are used again.
    kept_alive: Client<C, Body<Incoming>>,
    /// A new connection for each request.
    fresh: Client<C, Body<Incoming>>,
}

impl Upstream {
    /// A connection has to be there in half of `max_execution`: an attempt that ran out of time
    /// while it still connected would be called unknown, though nothing was sent.
    pub(crate) fn new(base: Uri, max_execution: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIME_MAX.min(max_execution / 2)));
        connector.set_nodelay(true);
        Self::through(connector, base)
    }
}

impl<C: Connect + Clone + Send + Sync + 'static> Upstream<C> {
    fn through(connector: C, base: Uri) -> Self {
        let mut client = Client::builder(TokioExecutor::new());
        // Whether a request may be sent again is decided here and nowhere else.
        client.retry_canceled_requests(false);
        client.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_MAX);
        let kept_alive = client.build(connector.clone());
        let fresh = client.pool_max_idle_per_host(0).build(connector);
        Upstream { base, kept_alive, fresh }
    }

    /// Sends a request whose body is in memory. If a kept-alive connection turns out to be closed
    /// before anything was written, the request goes out on one new connection, if the attempt
    /// still may act under its lease.
    pub(crate) async fn send(
        &self,
        mut parts: Parts,
        body: Bytes,
        may_act: impl Fn() -> bool,
    ) -> Result<Response<Incoming>, Failure> {
        parts.uri = self.address(&parts.uri)?;
        let request = || Request::from_parts(parts.clone(), Body::full(body.clone()));
        match self.kept_alive.request(request()).await {
            Ok(response) => Ok(response),
            Err(error) if found_closed(&error) => {
                // The wait may have outlasted the lease; a right that may be lost is not used.
                if !may_act() {
                    return Err(Failure::NeverSent { why: "lease_over_before_dispatch" });
                }
                self.fresh.request(request()).await.map_err(|error| proof(&error))
            }
            Err(error) => Err(proof(&error)),
        }
    }

    /// Sends an unprotected request as it comes. Only one without a body can have a second
    /// connection, since a body is gone once it was handed over.
    pub(crate) async fn send_streaming(
        &self,
        mut parts: Parts,
        body: Body<Incoming>,
    ) -> Result<Response<Incoming>, Failure> {
        parts.uri = self.address(&parts.uri)?;
        let again = body.is_end_stream().then(|| parts.clone());
        let first = self.kept_alive.request(Request::from_parts(parts, body));
        match (first.await, again) {
            (Ok(response), _) => Ok(response),
            (Err(error), Some(parts)) if found_closed(&error) => {
                let request = Request::from_parts(parts, Body::full(Bytes::new()));
                self.fresh.request(request).await.map_err(|error| proof(&error))
            }
            (Err(error), _) => Err(proof(&error)),
        }
    }

    /// The client's path and query, behind the upstream's address.
    fn address(&self, asked: &Uri) -> Result<Uri, Failure> {
        let prefix = self.base.path().trim_end_matches('/');
        let asked = asked.path_and_query().map_or("/", uri::PathAndQuery::as_str);
        let mut parts = self.base.clone().into_parts();
        let wanted =
            if asked.starts_with('*') { "*".to_owned() } else { format!("{prefix}{asked}") };
        parts.path_and_query = wanted.parse().ok();
        Uri::from_parts(parts).map_err(|_| Failure::NeverSent { why: "address_not_usable" })
    }
}

/// The connection ended before the request was begun. hyper says so only when it hands the request
/// back unwritten.
fn found_closed(error: &Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<hyper::Error>());
    source.is_some_and(hyper::Error::is_canceled)
}

fn proof(error: &Error) -> Failure {
    if error.is_connect() {
        Failure::NeverSent { why: "upstream_unreachable" }
    } else if found_closed(error) {
        Failure::NeverSent { why: "upstream_closed_before_dispatch" }
    } else {
        Failure::NoFullAnswer { why: "upstream_gave_no_answer" }
    }
}

#[cfg(test)]
mod tests;

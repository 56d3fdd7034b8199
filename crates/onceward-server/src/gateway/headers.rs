//! Headers on their way through: what belongs to one connection is stripped, what upstream has to
//! know about the client is added, and nobody speaks in our name.

use std::net::IpAddr;

use http::{
    HeaderMap, HeaderName, HeaderValue, Response, Version,
    header::{
        CONNECTION, EXPECT, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
        TRANSFER_ENCODING, UPGRADE,
    },
    request::Parts,
};
use onceward::reply::ONCEWARD_EXECUTED;

use crate::{config::TrustedProxies, listener::Peer};

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
static KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
static PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// What only we may say.
const OURS: &str = "onceward-";

/// Changes messages on their way through.
#[derive(Clone, Debug)]
pub(crate) struct Rewrite {
    proxies: TrustedProxies,
}

impl Rewrite {
    pub(crate) fn new(proxies: TrustedProxies) -> Self {
        Rewrite { proxies }
    }

    /// The head of a request as upstream is to see it.
    pub(super) fn request(&self, asked: &Parts, peer: Option<Peer>) -> Parts {
        let mut parts = asked.clone();
        // What the server put there for itself is of no use to the client.
        parts.extensions = http::Extensions::new();
        parts.version = Version::HTTP_11;
        let headers = &mut parts.headers;
        strip_hop_by_hop(headers);
        // We answered it, or have the whole body already.
        headers.remove(EXPECT);
        headers.remove(PROXY_AUTHORIZATION);
        strip_ours(headers, None);
        // HTTP/2 names the host in the address.
        if !headers.contains_key(HOST)
            && let Some(authority) = asked.uri.authority()
            && let Ok(host) = HeaderValue::from_str(authority.as_str())
        {
            headers.insert(HOST, host);
        }
        if let Some(Peer(peer)) = peer {
            self.forwarded(headers, peer.ip().to_canonical());
        }
        parts
    }

    /// A response as the client is to see it.
    pub(super) fn response<B>(&self, response: Response<B>) -> Response<B> {
        let (mut parts, body) = response.into_parts();
        parts.extensions = http::Extensions::new();
        parts.version = Version::HTTP_11;
        strip_hop_by_hop(&mut parts.headers);
        // Upstream's word on whether it acted is for the engine, which removes it.
        strip_ours(&mut parts.headers, Some(&ONCEWARD_EXECUTED));
        Response::from_parts(parts, body)
    }

    /// Says where the request came from. What a peer says about those before it is kept in the list
    /// of addresses, and otherwise believed only of trusted proxies.
    fn forwarded(&self, headers: &mut HeaderMap, peer: IpAddr) {
        if let Ok(peer) = HeaderValue::from_str(&peer.to_string()) {
            headers.append(&X_FORWARDED_FOR, peer);
        }
        let trusted = self.proxies.contain(peer);
        if !trusted || !headers.contains_key(&X_FORWARDED_PROTO) {
            headers.insert(&X_FORWARDED_PROTO, HeaderValue::from_static("http"));
        }
        if !trusted || !headers.contains_key(&X_FORWARDED_HOST) {
            match headers.get(HOST).cloned() {
                Some(host) => headers.insert(&X_FORWARDED_HOST, host),
                None => headers.remove(&X_FORWARDED_HOST),
            };
        }
    }
}

/// Headers that belong to one connection (RFC 9110, 7.6.1), and those that `Connection` names.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // A client could otherwise take away what tells it apart or what it is held to.
        .filter(|name| !MUST_STAY.contains(&HeaderName::as_str(name)))
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, PROXY_AUTHENTICATE] {
        headers.remove(name);
    }
    headers.remove(&KEEP_ALIVE);
    headers.remove(&PROXY_CONNECTION);
}

/// End-to-end whatever `Connection` says.
const MUST_STAY: [&str; 8] = [
    "host",
    "authorization",
    "cookie",
    "idempotency-key",
    "content-length",
    "content-type",
    "content-encoding",
    "x-forwarded-for",
];

fn strip_ours(headers: &mut HeaderMap, but: Option<&HeaderName>) {
    let ours = headers.keys().filter(|name| name.as_str().starts_with(OURS) && Some(*name) != but);
    for name in ours.cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn through(headers: &[(&str, &str)], peer: &str) -> HeaderMap {
        let mut request = Request::post("/charges");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).expect("valid").into_parts();
        let peer = Peer(format!("{peer}:4711").parse().expect("address"));
        Rewrite::new(TrustedProxies::default()).request(&parts, Some(peer)).headers
    }

    fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
        headers.get_all(name).iter().map(|value| value.to_str().expect("text")).collect()
    }

    #[test]
    fn what_belongs_to_one_connection_is_stripped_and_the_rest_stays() {
        let headers = through(
            &[
                ("connection", "close, x-hop"),
                ("x-hop", "1"),
                ("keep-alive", "timeout=5"),
                ("te", "trailers"),
                ("transfer-encoding", "chunked"),
                ("upgrade", "websocket"),
                ("expect", "100-continue"),
                ("x-stays", "1"),
                ("x-stays", "2"),
                ("idempotency-key", "\"k\""),
            ],
            "127.0.0.1",
        );
        for name in ["connection", "x-hop", "keep-alive", "te", "transfer-encoding", "upgrade"] {
            assert!(!headers.contains_key(name), "{name}");
        }
        assert!(!headers.contains_key("expect"));
        assert_eq!(values(&headers, "x-stays"), ["1", "2"]);
        assert_eq!(values(&headers, "idempotency-key"), ["\"k\""]);
    }

    #[test]
    fn connection_cannot_take_away_the_credential_or_the_key() {
        let given = [("connection", "authorization, idempotency-key"), ("authorization", "a")];
        let headers = through(&given, "127.0.0.1");
        assert_eq!(values(&headers, "authorization"), ["a"]);
    }

    #[test]
    fn nobody_speaks_in_our_name() {
        let headers = through(&[("onceward-attempt", "7"), ("onceward-fence", "1")], "127.0.0.1");
        assert!(headers.keys().all(|name| !name.as_str().starts_with("onceward-")));
        let response = Response::builder()
            .header("onceward-outcome", "replayed")
            .header("onceward-executed", "no")
            .header("connection", "x-a")
            .header("x-a", "1")
            .header("etag", "\"1\"");
        let response = response.body(()).expect("valid");
        let response = Rewrite::new(TrustedProxies::default()).response(response);
        let mut left: Vec<&str> = response.headers().keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["etag", "onceward-executed"]);
    }

    #[test]
    fn upstream_learns_where_a_request_came_from() {
        let said = [
            ("host", "shop.example"),
            ("x-forwarded-for", "203.0.113.7"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "other.example"),
        ];
        let of_proxy = through(&said, "127.0.0.1");
        assert_eq!(values(&of_proxy, "x-forwarded-for"), ["203.0.113.7", "127.0.0.1"]);
        assert_eq!(values(&of_proxy, "x-forwarded-proto"), ["https"]);
        assert_eq!(values(&of_proxy, "x-forwarded-host"), ["other.example"]);
        let of_stranger = through(&said, "198.51.100.1");
        assert_eq!(values(&of_stranger, "x-forwarded-for"), ["203.0.113.7", "198.51.100.1"]);
        assert_eq!(values(&of_stranger, "x-forwarded-proto"), ["http"]);
        assert_eq!(values(&of_stranger, "x-forwarded-host"), ["shop.example"]);
    }
}

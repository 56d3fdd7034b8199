//! Headers on their way through: what belongs to one connection is stripped, what upstream has to
//! know about the client is added, and nobody speaks in our name.

use std::{net::IpAddr, sync::Arc};

use http::{
    HeaderMap, HeaderName, HeaderValue, Response, Version,
    header::{CONNECTION, COOKIE, EXPECT, FORWARDED, HOST, TE, TRAILER},
    request::Parts,
};
use onceward::{
    ScopeRule,
    fingerprint::METHOD_OVERRIDES,
    reply::{ONCEWARD_EXECUTED, ONCEWARD_PROVIDER_ID},
};

use crate::{
    config::{RouteTable, TrustedProxies},
    listener::Peer,
};

mod trace; // traceparent

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// So many headers are added to a request at most, with those of its attempt.
const ADDED_MAX: usize = 8;

/// What only we may say.
const OURS: &str = "onceward-";

/// Headers by which we or upstream decide, besides those of every gateway: that of the scope, those of
/// fingerprints, those of ages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deciding(Arc<[HeaderName]>);

impl Deciding {
    pub(crate) fn new(scope: &ScopeRule, routes: &RouteTable) -> Self {
        let scope = scope.name().strip_prefix("header:").and_then(|name| name.parse().ok());
        let of_routes = routes.all().flat_map(|route| route.deciding_headers());
        Deciding(scope.into_iter().chain(of_routes).collect())
    }

    /// Whether a header of this name, in lower case, decides.
    pub(super) fn contains(&self, name: &str) -> bool {
        name.starts_with(OURS)
            || MUST_STAY.contains(&name)
            || METHOD_OVERRIDES.iter().chain(&*self.0).any(|deciding| deciding.as_str() == name)
    }
}

/// Changes messages on their way through.
#[derive(Clone, Debug)]
pub(crate) struct Rewrite {
    proxies: TrustedProxies,
    makes_traceparent: bool,
    deciding: Deciding,
}

/// Whether what comes after a body is passed on too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trailers {
    /// Both ways: the body is streamed.
    Pass,
    /// The body is buffered, and what is stored has none.
    Drop,
}

impl Rewrite {
    pub(crate) fn new(
        proxies: TrustedProxies,
        makes_traceparent: bool,
        deciding: Deciding,
    ) -> Self {
        Rewrite { proxies, makes_traceparent, deciding }
    }

    pub(super) fn deciding(&self) -> &Deciding {
        &self.deciding
    }

    /// Where a request came from first, as far as those say it who are trusted.
    pub(super) fn client(&self, headers: &HeaderMap, peer: &Peer) -> Option<IpAddr> {
        let said: Vec<&str> = listed(headers, &X_FORWARDED_FOR).collect();
        let mut said = said.into_iter().rev();
        let mut address = peer.ip();
        while self.proxies.contain(address) {
            address = said.next()?.parse().ok()?;
        }
        Some(address)
    }

    /// The head of a request as upstream is to see it.
    pub(super) fn request(&self, asked: Parts, peer: &Peer, trailers: Trailers) -> Parts {
        let mut parts = asked;
        // What the server put there for itself is of no use to the client.
        parts.extensions.clear();
        parts.version = Version::HTTP_11;
        let headers = &mut parts.headers;
        let seen = Seen::in_head(headers);
        if seen.lookalikes {
            // First, while those that they look like are all there.
            strip_lookalikes(headers, &self.deciding);
        }
        if seen.not_for_upstream {
            let takes_trailers = trailers == Trailers::Pass && names(headers, &TE, "trailers");
            strip_named_by_connection(headers);
            // `Expect`: we answered it, or have the whole body already.
            strip(headers, |name| {
                is_hop_by_hop(name, trailers) || name.starts_with(OURS) || name == EXPECT
            });
            if takes_trailers {
                headers.insert(TE, HeaderValue::from_static("trailers"));
            }
        }
        if seen.cookies {
            join_cookies(headers);
        }
        // An address that names its host decides (RFC 9112, 3.2.2), as it does in HTTP/2.
        if let Some(authority) = parts.uri.authority()
            && let Ok(host) = HeaderValue::from_str(authority.as_str())
        {
            headers.insert(HOST, host);
        }
        // For what is added here and with the attempt: it grows once.
        headers.reserve(ADDED_MAX);
        self.forwarded(headers, peer, seen.forwarded);
        if self.makes_traceparent {
            trace::ensure(headers, seen.traced);
        }
        parts
    }

    /// A response as the client is to see it.
    pub(super) fn response<B>(&self, response: Response<B>, trailers: Trailers) -> Response<B> {
        let (mut parts, body) = response.into_parts();
        parts.extensions = http::Extensions::new();
        parts.version = Version::HTTP_11;
        strip_named_by_connection(&mut parts.headers);
        // Upstream's word on whether it acted, and under which id of its provider, is for the engine,
        // which removes it. What is streamed does not meet the engine.
        let for_the_engine = |name: &str| {
            trailers == Trailers::Drop
                && (name == ONCEWARD_EXECUTED || name == ONCEWARD_PROVIDER_ID)
        };
        strip(&mut parts.headers, |name| {
            is_hop_by_hop(name, trailers) || (name.starts_with(OURS) && !for_the_engine(name))
        });
        Response::from_parts(parts, body)
    }

    /// Says where the request came from. What a peer says about those before it is kept in the list
    /// of addresses, and otherwise believed only of trusted proxies.
    fn forwarded(&self, headers: &mut HeaderMap, peer: &Peer, said: bool) {
        let scheme = if peer.by_tls { "https" } else { "http" };
        headers.append(&X_FORWARDED_FOR, peer.written.clone());
        if !said {
            headers.append(&X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
            if let Some(host) = headers.get(HOST).cloned() {
                headers.append(&X_FORWARDED_HOST, host);
            }
            return;
        }
        let peer = peer.ip();
        let trusted = self.proxies.contain(peer);
        if !trusted || !headers.contains_key(&X_FORWARDED_PROTO) {
            headers.insert(&X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
        }
        if !trusted || !headers.contains_key(&X_FORWARDED_HOST) {
            match headers.get(HOST).cloned() {
                Some(host) => headers.insert(&X_FORWARDED_HOST, host),
                None => headers.remove(&X_FORWARDED_HOST),
            };
        }
        // Upstream may believe the standard header before the others: it is continued where a
        // trusted proxy began it, and taken away where anybody could have.
        if !trusted {
            headers.remove(FORWARDED);
        } else if headers.contains_key(FORWARDED)
            && let Ok(ours) = HeaderValue::from_str(&forwarded_element(peer, scheme))
        {
            headers.append(FORWARDED, ours);
        }
    }
}

/// What a head has of all that is looked for. Most have little: their names are looked at once.
#[derive(Default)]
struct Seen {
    /// Names that some servers take for others.
    lookalikes: bool,
    /// What belongs to one connection, or is ours to say.
    not_for_upstream: bool,
    cookies: bool,
    /// Anything about those before the peer.
    forwarded: bool,
    traced: bool,
}

impl Seen {
    fn in_head(headers: &HeaderMap) -> Self {
        let mut seen = Seen::default();
        for name in headers.keys() {
            let name = name.as_str();
            match name {
                "cookie" => seen.cookies = true,
                "forwarded" | "x-forwarded-for" | "x-forwarded-host" | "x-forwarded-proto" => {
                    seen.forwarded = true;
                }
                "traceparent" | "tracestate" => seen.traced = true,
                "expect" => seen.not_for_upstream = true,
                _ => {
                    seen.not_for_upstream |= is_of_one_connection(name) || name.starts_with(OURS);
                    seen.lookalikes |= !is_plain(name);
                }
            }
        }
        seen
    }
}

/// RFC 7239: an address of IPv6 has brackets and quotes.
fn forwarded_element(peer: IpAddr, scheme: &str) -> String {
    match peer {
        IpAddr::V4(peer) => format!("for={peer};proto={scheme}"),
        IpAddr::V6(peer) => format!("for=\"[{peer}]\";proto={scheme}"),
    }
}

/// The values of a list.
pub(super) fn listed<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'h str> + use<'h> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Whether one of the values of a list is this word.
pub(super) fn names(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    listed(headers, name).any(|value| value.eq_ignore_ascii_case(word))
}

/// Takes away what has such a name. Most heads have nothing of it, and are only looked at.
fn strip(headers: &mut HeaderMap, is_meant: impl Fn(&str) -> bool) {
    let meant = headers.keys().filter(|name| is_meant(name.as_str()));
    for name in meant.cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
}

/// Headers that belong to one connection because it says so (RFC 9110, 7.6.1).
fn strip_named_by_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = listed(headers, &CONNECTION)
        .filter_map(|name| name.parse().ok())
        // A client could otherwise take away what tells it apart or what it is held to.
        .filter(|name| !MUST_STAY.contains(&HeaderName::as_str(name)))
        .collect();
    for name in named {
        headers.remove(name);
    }
}

fn is_hop_by_hop(name: &str, trailers: Trailers) -> bool {
    is_of_one_connection(name) && (trailers == Trailers::Drop || name != TRAILER)
}

/// What always belongs to one connection, and what is said to us. A match, since every header is
/// compared with all of them: most differ in their length.
fn is_of_one_connection(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// End-to-end whatever `Connection` says.
const MUST_STAY: [&str; 11] = [
    "host",
    "authorization",
    "cookie",
    "idempotency-key",
    "content-length",
    "content-type",
    "content-encoding",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];

/// Some servers make one name of `X_Account`, `X.Account` and `X-Account`. The others must not speak
/// for the last one, nor for what decides, nor for what frames a message.
fn strip_lookalikes(headers: &mut HeaderMap, deciding: &Deciding) {
    let is_lookalike = |name: &&HeaderName| {
        if is_plain(name.as_str()) {
            return false;
        }
        let meant =
            name.as_str().replace(|char: char| char != '-' && !char.is_ascii_alphanumeric(), "-");
        deciding.contains(&meant)
            || is_of_one_connection(&meant)
            || headers.contains_key(meant.as_str())
    };
    for name in headers.keys().filter(is_lookalike).cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
}

/// Whether a name, which is in lower case, has nothing but letters, digits and hyphens.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'-' | b'0'..=b'9'))
}

/// HTTP/2 may send cookies in pieces, HTTP/1.1 may not (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let pieces: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if pieces.len() > 1
        && let Ok(whole) = HeaderValue::from_bytes(&pieces.join(&b"; "[..]))
    {
        headers.insert(COOKIE, whole);
    }
}

#[cfg(test)]
mod tests;

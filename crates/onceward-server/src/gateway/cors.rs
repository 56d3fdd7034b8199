//! Browsers: our headers can be sent and read by pages that upstream, or the configuration, allows.
//! Preflights are OPTIONS requests and pass without a key like all of them.

use http::{
    HeaderMap, HeaderValue, Method,
    header::{
        ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS,
        ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_HEADERS,
        ACCESS_CONTROL_REQUEST_METHOD, HeaderName, ORIGIN, VARY,
    },
    request::Parts,
};
use onceward::key::IDEMPOTENCY_KEY;

/// What a page has to be able to read to retry well.
const EXPOSED: [&str; 7] = [
    "Idempotent-Replayed",
    "Idempotency-Expires",
    "Idempotency-Generation",
    "Onceward-Outcome",
    "Onceward-Schema-Version",
    "Retry-After",
    "Location",
];

/// Which pages may read our own answers. Upstream says it for what it answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cors {
    pub(crate) origins: Vec<Box<str>>,
    pub(crate) credentials: bool,
}

/// A request that a page of another origin makes, or is about to make.
pub(super) struct CrossOrigin {
    origin: HeaderValue,
    /// The method of the request itself, which a preflight only announces.
    pub(super) method: Method,
    is_preflight: bool,
    announces_key: bool,
}

impl CrossOrigin {
    pub(super) fn of(parts: &Parts) -> Option<CrossOrigin> {
        let origin = parts.headers.get(ORIGIN)?.clone();
        let announced = parts.headers.get(ACCESS_CONTROL_REQUEST_METHOD);
        let announced = announced.filter(|_| parts.method == Method::OPTIONS);
        let method = match announced {
            Some(announced) => Method::from_bytes(announced.as_bytes()).ok()?,
            None => parts.method.clone(),
        };
        Some(CrossOrigin {
            origin,
            method,
            is_preflight: announced.is_some(),
            announces_key: lists(
                &parts.headers,
                &ACCESS_CONTROL_REQUEST_HEADERS,
                IDEMPOTENCY_KEY.as_str(),
            ),
        })
    }

    /// Completes the answer to a request on a protected route.
    pub(super) fn answer(&self, cors: &Cors, headers: &mut HeaderMap) {
        if self.is_preflight {
            // Upstream allows the page, and need not know of keys.
            let allowed = headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN);
            if allowed && self.announces_key {
                add(headers, ACCESS_CONTROL_ALLOW_HEADERS, &["Idempotency-Key"]);
            }
            return;
        }
        let known = cors.origins.iter().any(|known| known.as_bytes() == self.origin.as_bytes());
        if known && !headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.origin.clone());
            headers.append(VARY, HeaderValue::from_static("Origin"));
            if cors.credentials {
                let yes = HeaderValue::from_static("true");
                headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
            }
        }
        let readable = [ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS];
        if readable.iter().any(|name| headers.contains_key(name)) {
            let there: Vec<&str> =
                EXPOSED.into_iter().filter(|name| headers.contains_key(*name)).collect();
            add(headers, ACCESS_CONTROL_EXPOSE_HEADERS, &there);
        }
    }
}

/// Adds names to a header that is a list of names.
fn add(headers: &mut HeaderMap, header: HeaderName, names: &[&'static str]) {
    let missing = names.iter().filter(|name| !lists(headers, &header, name));
    let missing: Vec<&str> = missing.copied().collect();
    if let (false, Ok(value)) = (missing.is_empty(), HeaderValue::try_from(missing.join(", "))) {
        headers.append(header, value);
    }
}

fn lists(headers: &HeaderMap, header: &HeaderName, name: &str) -> bool {
    let values = headers.get_all(header).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|given| given.trim().eq_ignore_ascii_case(name))
}

//! Requests that say one thing to us and another to upstream. They are refused.

use http::{HeaderMap, HeaderName, Method, header::CONNECTION, request::Parts};
use onceward::{Rejection, fingerprint::METHOD_OVERRIDES, rejection::Code};

use super::headers::{Deciding, listed};
use crate::config::{RouteTable, Treatment};

/// Refuses a request that upstream could take for another one than we do.
pub(super) fn check(
    parts: &Parts,
    deciding: &Deciding,
    routes: &RouteTable,
) -> Result<(), Rejection> {
    if let Some(name) = taken_away(&parts.headers, deciding) {
        return Err(refused(format!(
            "The header Connection names {name}, which is not for one connection only."
        )));
    }
    match hidden_method(parts, routes) {
        Some(hidden) => Err(refused(format!(
            "A {} request may not ask to be taken for {hidden}: send it as {hidden}, with an \
             Idempotency-Key.",
            parts.method
        ))),
        None => Ok(()),
    }
}

fn refused(detail: String) -> Rejection {
    Rejection::new(Code::RequestAmbiguous, format!("{detail} Nothing was executed."))
}

/// A header by which we decide, and that upstream would not see: `Connection` names it, so that it
/// ends at the next hop.
fn taken_away(headers: &HeaderMap, deciding: &Deciding) -> Option<HeaderName> {
    let named = listed(headers, &CONNECTION).filter_map(|name| name.parse().ok());
    named.into_iter().find(|name: &HeaderName| deciding.contains(name.as_str()))
}

/// A method that is protected, where the request's own is not, or less.
fn hidden_method(parts: &Parts, routes: &RouteTable) -> Option<Method> {
    // Most requests have none: their names are looked at once.
    if !parts.headers.keys().any(|name| METHOD_OVERRIDES.contains(name)) {
        return None;
    }
    let path = parts.uri.path();
    let own = || routes.find(&parts.method, path).strictness(&parts.method);
    let named = METHOD_OVERRIDES.iter().flat_map(|name| listed(&parts.headers, name));
    let methods = named.filter_map(|name| name.to_ascii_uppercase().parse().ok());
    methods.into_iter().find(|method: &Method| {
        let route = routes.find(method, path);
        route.treatment(method) == Treatment::Protect && route.strictness(method) > own()
    })
}

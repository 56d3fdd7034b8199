//! What was passed on without protection though it may change something: a short table of methods and
//! paths, for `onceward routes audit`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use http::{Method, StatusCode};

use crate::admin::api::types::{Seen, TrafficView};

/// So many endpoints are remembered.
const ENDPOINTS_MAX: usize = 1000;

/// Longer paths are remembered by their beginning.
const SEGMENTS_MAX: usize = 12;

/// The table, shared by the gateway that writes it and the admin listener that reads it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    seen: BTreeMap<Box<str>, Noted>,
    /// How many requests were noted.
    time: u64,
    more: bool,
}

/// A method, a space, and a path with `{}` for ids.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint(String);

#[derive(Clone, Copy, Debug)]
struct Noted {
    requests: u64,
    last: u64,
}

impl Endpoint {
    /// What a request is for, if two of it may do more than one.
    pub(crate) fn of(method: &Method, path: &str) -> Option<Endpoint> {
        changes_things(method).then(|| Endpoint(template(method, path)))
    }
}

impl Traffic {
    /// Notes a request that was passed on without a key, and how upstream answered it. Where
    /// upstream has nothing there is nothing to protect.
    pub(crate) fn note(&self, endpoint: Endpoint, answer: Option<StatusCode>) {
        if matches!(answer, Some(StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)) {
            return;
        }
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Table { seen, time, more } = &mut *table;
        *time += 1;
        if let Some(noted) = seen.get_mut(&*endpoint.0) {
            *noted = Noted { requests: noted.requests + 1, last: *time };
            return;
        }
        if seen.len() >= ENDPOINTS_MAX {
            *more = true;
            // What was seen the least, and the longest ago, makes room: made-up paths come once.
            let least = seen.iter().min_by_key(|(_, noted)| (noted.requests, noted.last));
            if let Some(least) = least.map(|(endpoint, _)| endpoint.clone()) {
                seen.remove(&least);
            }
        }
        seen.insert(endpoint.0.into(), Noted { requests: 1, last: *time });
    }

    /// What was noted so far.
    pub(crate) fn seen(&self) -> TrafficView {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = table.seen.iter().map(|(endpoint, noted)| {
            let (method, path) = endpoint.split_once(' ').unwrap_or_default();
            Seen { method: method.to_owned(), path: path.to_owned(), requests: noted.requests }
        });
        TrafficView { unprotected: seen.collect(), more: table.more }
    }
}

/// Whether two requests may do more than one. What HTTP calls idempotent need not be protected.
pub(crate) fn changes_things(method: &Method) -> bool {
    !(method.is_idempotent() || *method == Method::CONNECT)
}

/// The method, and the path with `{}` for each segment that looks like an id: endpoints are few, ids
/// are not.
fn template(method: &Method, path: &str) -> String {
    let mut template = String::with_capacity(method.as_str().len() + 1 + path.len());
    template.push_str(method.as_str());
    template.push(' ');
    let without_path = template.len();
    for (number, segment) in path.split('/').skip(1).enumerate() {
        template.push('/');
        if number == SEGMENTS_MAX {
            template.push_str("...");
            break;
        }
        template.push_str(if is_id(segment) { "{}" } else { segment });
    }
    if template.len() == without_path {
        template.push('/');
    }
    template
}

/// A number, or a long word with digits in it. Names of versions are none.
fn is_id(segment: &str) -> bool {
    let digits = segment.bytes().filter(u8::is_ascii_digit).count();
    let all = !segment.is_empty() && digits == segment.len();
    all || segment.len() > 40 || (segment.len() >= 8 && digits >= 2) || segment.contains('%')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_in_paths_do_not_make_endpoints() {
        for (path, expected) in [
            ("/", "/"),
            ("/v1/charges", "/v1/charges"),
            ("/v1/charges/42/refund", "/v1/charges/{}/refund"),
            ("/users/3f2504e0-4f89-11d3-9a0c-0305e82c3301", "/users/{}"),
            ("/o/ch_1Mx2Y3Z4/capture", "/o/{}/capture"),
            ("/a/b/c/d/e/f/g/h/i/j/k/l/m/n", "/a/b/c/d/e/f/g/h/i/j/k/l/..."),
        ] {
            assert_eq!(template(&Method::POST, path), format!("POST {expected}"));
        }
    }

    fn note(traffic: &Traffic, method: &Method, path: &str, answer: u16) {
        if let Some(endpoint) = Endpoint::of(method, path) {
            traffic.note(endpoint, StatusCode::from_u16(answer).ok());
        }
    }

    /// A path that nobody has made up before.
    fn made_up(number: usize) -> String {
        let digits = number.to_string();
        let letters = digits.bytes().map(|byte| char::from(byte + 49));
        std::iter::once('/').chain(letters).collect()
    }

    #[test]
    fn only_what_may_act_twice_is_noted_and_never_too_much_of_it() {
        let traffic = Traffic::default();
        for method in [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS] {
            note(&traffic, &method, "/x", 200);
        }
        assert_eq!(traffic.seen().unprotected, []);
        note(&traffic, &Method::POST, "/x/1", 200);
        note(&traffic, &Method::POST, "/x/2", 500);
        note(&traffic, &Method::PATCH, "/x", 201);
        let counts: Vec<u64> = traffic.seen().unprotected.iter().map(|it| it.requests).collect();
        assert_eq!((counts, traffic.seen().more), (vec![1, 2], false));
        for number in 0..2 * ENDPOINTS_MAX {
            note(&traffic, &Method::POST, &made_up(number), 200);
        }
        assert_eq!((traffic.seen().unprotected.len(), traffic.seen().more), (ENDPOINTS_MAX, true));
    }

    #[test]
    fn made_up_paths_do_not_push_out_real_endpoints() {
        let traffic = Traffic::default();
        let has = |path: &str| traffic.seen().unprotected.iter().any(|it| it.path == path);
        for number in 0..2 * ENDPOINTS_MAX {
            note(&traffic, &Method::POST, &made_up(number), 404);
        }
        assert_eq!(traffic.seen().unprotected, [], "there is nothing to protect");
        note(&traffic, &Method::POST, "/v1/charges", 201);
        note(&traffic, &Method::POST, "/v1/charges", 201);
        for number in 0..10 * ENDPOINTS_MAX {
            note(&traffic, &Method::POST, &made_up(number), 200);
            if number % 100 == 0 {
                note(&traffic, &Method::POST, "/v1/refunds", 200);
            }
        }
        assert!(has("/v1/charges") && has("/v1/refunds"));
        assert!(!has(&made_up(0)));
    }
}

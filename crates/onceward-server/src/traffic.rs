//! What was passed on without protection though it may change something: a short table of methods and
//! paths, for `onceward routes audit`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use http::Method;

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
    seen: BTreeMap<(String, String), u64>,
    more: bool,
}

impl Traffic {
    /// Notes a request that was passed on without a key.
    pub(crate) fn note(&self, method: &Method, path: &str) {
        if !changes_things(method) {
            return;
        }
        let endpoint = (method.as_str().to_owned(), template(path));
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Table { seen, more } = &mut *table;
        let room = seen.len() < ENDPOINTS_MAX;
        match seen.get_mut(&endpoint) {
            Some(count) => *count += 1,
            None if room => drop(seen.insert(endpoint, 1)),
            None => *more = true,
        }
    }

    /// What was noted so far.
    pub(crate) fn seen(&self) -> TrafficView {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = table.seen.iter().map(|((method, path), requests)| Seen {
            method: method.clone(),
            path: path.clone(),
            requests: *requests,
        });
        TrafficView { unprotected: seen.collect(), more: table.more }
    }
}

/// Whether two requests may do more than one. What HTTP calls idempotent need not be protected.
pub(crate) fn changes_things(method: &Method) -> bool {
    !(method.is_idempotent() || *method == Method::CONNECT)
}

/// The path with `{}` for each segment that looks like an id: endpoints are few, ids are not.
fn template(path: &str) -> String {
    let mut template = String::new();
    for (number, segment) in path.split('/').skip(1).enumerate() {
        template.push('/');
        if number == SEGMENTS_MAX {
            template.push_str("...");
            break;
        }
        template.push_str(if is_id(segment) { "{}" } else { segment });
    }
    if template.is_empty() { "/".to_owned() } else { template }
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
            assert_eq!(template(path), expected);
        }
    }

    #[test]
    fn only_what_may_act_twice_is_noted_and_never_too_much_of_it() {
        let traffic = Traffic::default();
        for method in [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS] {
            traffic.note(&method, "/x");
        }
        assert_eq!(traffic.seen().unprotected, []);
        traffic.note(&Method::POST, "/x/1");
        traffic.note(&Method::POST, "/x/2");
        traffic.note(&Method::PATCH, "/x");
        let counts: Vec<u64> = traffic.seen().unprotected.iter().map(|it| it.requests).collect();
        assert_eq!((counts, traffic.seen().more), (vec![1, 2], false));
        for word in 0..2 * ENDPOINTS_MAX {
            let letters: String = word.to_string().bytes().map(|b| char::from(b + 49)).collect();
            traffic.note(&Method::POST, &format!("/{letters}"));
        }
        assert_eq!((traffic.seen().unprotected.len(), traffic.seen().more), (ENDPOINTS_MAX, true));
    }
}

//! Routes with `key = "shadow"`: requests pass on untouched, and what `required` would have done is
//! told. Nothing is stored and nobody is refused.
//!
//! What was seen is kept in this process only, for the last keys, and forgotten at its end. Several
//! gateways do not know of each other's keys.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use bytes::{Bytes, BytesMut};
use http::{StatusCode, request::Parts};
use metrics::{Unit, counter, describe_counter};
use onceward::{
    fingerprint::Fingerprint, policy::Meaning, record::RecordId, rejection::Code, tower::Watch,
};
use tracing::info;

use super::budget::Room;
use crate::config::{KeyUse, Route, RouteTable};

const SHADOW: &str = "onceward_shadow_total";

/// No more keys than this are remembered; the oldest is forgotten first.
const KEYS_MAX: usize = 20_000;

/// No more observations than this are listed.
const LISTED_MAX: usize = 1_000;

/// What a protected route would have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Executed it.
    Execute,
    /// Sent a stored reply.
    Replay,
    /// Refused it with this code.
    Refuse(Code),
}

impl Verdict {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verdict::Execute => "execute",
            Verdict::Replay => "replay",
            Verdict::Refuse(code) => code.name(),
        }
    }
}

/// A request that a protected route would not just have executed.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    pub(crate) at: SystemTime,
    pub(crate) route: Box<str>,
    pub(crate) method: Box<str>,
    pub(crate) path: Box<str>,
    /// What stands for the key in logs.
    pub(crate) key_digest: Option<String>,
    pub(crate) verdict: Verdict,
}

/// What was seen on shadow routes.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    seen: Mutex<Seen>,
    tickets: AtomicU64,
}

#[derive(Debug, Default)]
struct Seen {
    keys: HashMap<RecordId, Entry>,
    /// In the order in which they came, to forget the oldest.
    order: VecDeque<(RecordId, u64)>,
    listed: VecDeque<Observation>,
}

#[derive(Debug)]
struct Entry {
    ticket: u64,
    fingerprint: Fingerprint,
    begun: Instant,
    answer: Option<Meaning>,
}

impl Shadow {
    /// Makes the counters of the shadow routes appear at 0.
    pub(crate) fn register(routes: &RouteTable) {
        describe_counter!(SHADOW, Unit::Count, "what a shadow route would have done");
        for route in routes.all().filter(|route| route.key == KeyUse::Shadow) {
            for verdict in [
                Verdict::Execute,
                Verdict::Replay,
                Verdict::Refuse(Code::KeyMissing),
                Verdict::Refuse(Code::KeyInvalid),
                Verdict::Refuse(Code::KeyInProgress),
                Verdict::Refuse(Code::Mismatch),
            ] {
                count(route, verdict, 0);
            }
        }
    }

    /// The last observations, oldest first.
    pub(crate) fn listed(&self) -> Vec<Observation> {
        self.lock().listed.iter().cloned().collect()
    }

    /// Tells what would have been done with a request.
    pub(super) fn tell(&self, route: &Route, parts: &Parts, id: Option<&RecordId>, told: Verdict) {
        count(route, told, 1);
        if told == Verdict::Execute {
            return;
        }
        let key_digest = id.map(|id| id.key.digest());
        info!(
            route = route.name(),
            key.digest = key_digest,
            verdict = told.name(),
            "shadow: a protected route would not have executed this request"
        );
        let mut seen = self.lock();
        if seen.listed.len() >= LISTED_MAX {
            seen.listed.pop_front();
        }
        seen.listed.push_back(Observation {
            at: SystemTime::now(),
            route: route.name().into(),
            method: parts.method.as_str().into(),
            path: parts.uri.path().chars().take(255).collect(),
            key_digest,
            verdict: told,
        });
    }

    /// A whole request has come.
    fn asked(&self, id: &RecordId, route: &Route, ticket: u64, asks: Fingerprint) -> Verdict {
        let mut seen = self.lock();
        let rules = route.policy.rules();
        let verdict = match seen.keys.get(id) {
            Some(entry) => entry.verdict(asks, rules.max_execution, rules.retention),
            None => Verdict::Execute,
        };
        if verdict == Verdict::Execute {
            let entry = Entry { ticket, fingerprint: asks, begun: Instant::now(), answer: None };
            seen.keys.insert(id.clone(), entry);
            seen.order.push_back((id.clone(), ticket));
            if seen.order.len() > KEYS_MAX {
                seen.forget_oldest();
            }
        }
        verdict
    }

    /// Upstream answered the request of this ticket, or did not.
    fn answered(&self, id: &RecordId, ticket: u64, meaning: Meaning) {
        let mut seen = self.lock();
        if let Some(entry) = seen.keys.get_mut(id).filter(|entry| entry.ticket == ticket) {
            entry.answer = Some(meaning);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn forget_oldest(&mut self) {
        let Some((id, ticket)) = self.order.pop_front() else { return };
        // A key that was used anew has a later place.
        if self.keys.get(&id).is_some_and(|entry| entry.ticket == ticket) {
            self.keys.remove(&id);
        }
    }
}

impl Entry {
    /// What a request would get that finds this one.
    fn verdict(&self, asks: Fingerprint, max_execution: Duration, retention: Duration) -> Verdict {
        let age = self.begun.elapsed();
        if self.fingerprint != asks {
            return Verdict::Refuse(Code::Mismatch);
        }
        match self.answer {
            Some(Meaning::Final) if age > retention => Verdict::Execute,
            Some(Meaning::Final) => Verdict::Replay,
            Some(Meaning::NotExecuted) => Verdict::Execute,
            Some(Meaning::Unknown) => Verdict::Refuse(Code::OutcomeUnknown),
            None if age > max_execution => Verdict::Refuse(Code::OutcomeUnknown),
            None => Verdict::Refuse(Code::KeyInProgress),
        }
    }
}

fn count(route: &Route, verdict: Verdict, times: u64) {
    let route = route.name().to_owned();
    counter!(SHADOW, "route" => route, "would" => verdict.name()).increment(times);
}

/// One request with a key on a shadow route.
#[derive(Clone)]
pub(super) struct Watched {
    shadow: Arc<Shadow>,
    route: Arc<Route>,
    parts: Arc<Parts>,
    id: RecordId,
    ticket: u64,
}

impl Watched {
    pub(super) fn new(
        shadow: &Arc<Shadow>,
        route: &Arc<Route>,
        parts: &Arc<Parts>,
        id: RecordId,
    ) -> Watched {
        Watched {
            shadow: Arc::clone(shadow),
            route: Arc::clone(route),
            parts: Arc::clone(parts),
            id,
            ticket: shadow.tickets.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Sees the body of the request pass.
    pub(super) fn body(&self, room: Room) -> impl Watch + use<> {
        Body { watched: self.clone(), seen: BytesMut::new(), too_large: false, _room: room }
    }

    /// Upstream's answer; none if there was no full one.
    pub(super) fn answered(&self, status: Option<StatusCode>) {
        let meaning = status.map(|status| self.route.policy.meaning_of(status));
        self.shadow.answered(&self.id, self.ticket, meaning.unwrap_or(Meaning::Unknown));
    }
}

/// A copy of the body, as far as the cap of its route.
struct Body {
    watched: Watched,
    seen: BytesMut,
    too_large: bool,
    /// For what was copied.
    _room: Room,
}

impl Watch for Body {
    fn part(&mut self, part: &Bytes) {
        let cap = self.watched.route.policy.request_cap();
        self.too_large |= self.seen.len() + part.len() > cap;
        match self.too_large {
            true => self.seen = BytesMut::new(),
            false => self.seen.extend_from_slice(part),
        }
    }

    fn end(self: Box<Self>) {
        let Watched { shadow, route, parts, id, ticket } = &self.watched;
        let verdict = match self.too_large {
            true => Verdict::Refuse(Code::BodyTooLarge),
            false => {
                let asks = route.recipe.fingerprint(parts, &self.seen);
                shadow.asked(id, route, *ticket, asks)
            }
        };
        shadow.tell(route, parts, Some(id), verdict);
    }
}

#[cfg(test)]
mod tests;

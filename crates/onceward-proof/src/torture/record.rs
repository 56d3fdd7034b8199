//! The history of a run, written by everybody under one lock, so that its order is the real one.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use super::left::Seen;
use crate::history::{Answer, CallNo, Event, RequestNo, Rules, Subject, UpstreamAnswer, What};

/// The one route of these worlds.
const ROUTE: &str = "POST /charges";

pub(super) struct Recorder {
    begun: Instant,
    inner: Mutex<Inner>,
    /// Held by whoever asks, for a moment, and by whoever looks at what a kill left.
    hush: Mutex<()>,
}

#[derive(Default)]
struct Inner {
    events: Vec<Event>,
    requests: RequestNo,
    calls: CallNo,
    open_calls: usize,
    trouble: Option<String>,
    /// The keys that were asked for.
    known: HashSet<Subject>,
    /// Of these, those with one request only, which still waits.
    fresh: HashMap<Subject, Fresh>,
}

/// The first request about a key, while nobody else asks for it.
struct Fresh {
    request: RequestNo,
    /// The process that was asked.
    slot: usize,
    call: Option<CallNo>,
    seen: Seen,
}

impl Inner {
    /// Somebody saw that the request of this call has come so far.
    fn see(&mut self, call: CallNo, seen: Seen) {
        let fresh = self.fresh.values_mut().find(|fresh| fresh.call == Some(call));
        if let Some(fresh) = fresh {
            fresh.seen = fresh.seen.max(seen);
        }
    }
}

impl Recorder {
    pub(super) fn begin() -> Recorder {
        let recorder =
            Recorder { begun: Instant::now(), inner: Mutex::default(), hush: Mutex::default() };
        let rules = Rules {
            route: ROUTE.to_owned(),
            acts: true,
            // Without declared effects, by the default policy.
            rerunnable: vec![401, 403, 408, 425, 429, 500, 501, 503],
            expired_runs_again: false,
            kept_headers: vec!["content-type".to_owned(), "x-note".to_owned()],
            goes_on: false,
        };
        // Every store is held to this, also the one that is known to forget.
        recorder.push(&mut recorder.lock(), What::World { routes: vec![rules], durable: true });
        recorder
    }

    /// Nobody begins to ask while this is held.
    pub(super) fn hush(&self) -> MutexGuard<'_, ()> {
        self.hush.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client is about to send a request to the process of this slot.
    pub(super) fn asked(&self, subject: &Subject, asks: &str, slot: usize) -> RequestNo {
        let _hush = self.hush();
        let mut inner = self.lock();
        inner.requests += 1;
        let request = inner.requests;
        match inner.known.insert(subject.clone()) {
            true => {
                let fresh = Fresh { request, slot, call: None, seen: Seen::Nothing };
                inner.fresh.insert(subject.clone(), fresh);
            }
            false => drop(inner.fresh.remove(subject)),
        }
        let (subject, route, asks) = (subject.clone(), ROUTE.to_owned(), asks.to_owned());
        self.push(&mut inner, What::Asked { request, subject, route, asks });
        request
    }

    /// How its request ended for a client: with a whole answer or without.
    pub(super) fn ended(&self, request: RequestNo, answer: Option<&Answer>) {
        let what = match answer {
            Some(answer) => What::Answered { request, answer: answer.clone() },
            None => What::GaveUp { request },
        };
        let mut inner = self.lock();
        inner.fresh.retain(|_, fresh| fresh.request != request);
        self.push(&mut inner, what);
    }

    /// Upstream got a whole request.
    pub(super) fn called(&self, subject: &Subject, asks: &str) -> CallNo {
        let mut inner = self.lock();
        inner.calls += 1;
        inner.open_calls += 1;
        let call = inner.calls;
        if let Some(fresh) = inner.fresh.get_mut(subject) {
            fresh.call.get_or_insert(call);
            fresh.seen = fresh.seen.max(Seen::Called);
        }
        let (subject, asks) = (subject.clone(), asks.to_owned());
        self.push(&mut inner, What::Called { call, subject, asks, holder: None });
        call
    }

    /// Upstream is about to write its ledger.
    pub(super) fn acted(&self, call: CallNo) {
        let mut inner = self.lock();
        inner.see(call, Seen::Acted);
        self.push(&mut inner, What::Acted { call });
    }

    /// Upstream is about to send the end of its answer, or to break off.
    pub(super) fn replied(&self, call: CallNo, answer: Option<UpstreamAnswer>) {
        let mut inner = self.lock();
        inner.open_calls -= 1;
        inner.see(call, if answer.is_some() { Seen::Replied } else { Seen::BrokeOff });
        self.push(&mut inner, What::Replied { call, answer });
    }

    pub(super) fn fault(&self, kind: &str, detail: &str) {
        let (kind, detail) = (kind.to_owned(), detail.to_owned());
        self.push(&mut self.lock(), What::Fault { kind, detail });
    }

    /// How far the only request about this key has come, if it waits at the process of this slot.
    pub(super) fn seen_of(&self, subject: &Subject, slot: usize) -> Option<Seen> {
        let inner = self.lock();
        inner.fresh.get(subject).filter(|fresh| fresh.slot == slot).map(|fresh| fresh.seen)
    }

    /// All keys whose only request waits at the process of this slot.
    pub(super) fn waiting_at(&self, slot: usize) -> HashSet<Subject> {
        let inner = self.lock();
        let waiting = inner.fresh.iter().filter(|(_, fresh)| fresh.slot == slot);
        waiting.map(|(subject, _)| subject.clone()).collect()
    }

    /// What the store says of such a key, now that the process is dead.
    pub(super) fn left(&self, subject: Subject, state: Option<String>) {
        let mut inner = self.lock();
        inner.fresh.remove(&subject);
        self.push(&mut inner, What::Left { subject, state });
    }

    pub(super) fn calm(&self) {
        self.push(&mut self.lock(), What::Calm);
    }

    /// The runner itself could not do what it should: the run proves nothing.
    pub(super) fn trouble(&self, what: String) {
        self.lock().trouble.get_or_insert(what);
    }

    /// The first of these troubles.
    pub(super) fn trouble_so_far(&self) -> Option<String> {
        self.lock().trouble.clone()
    }

    /// Whether upstream is done with all its calls.
    pub(super) fn no_open_calls(&self) -> bool {
        self.lock().open_calls == 0
    }

    /// How many requests were sent so far, and how many calls were made.
    pub(super) fn progress(&self) -> (RequestNo, CallNo) {
        let inner = self.lock();
        (inner.requests, inner.calls)
    }

    /// Ends the history and hands it over.
    pub(super) fn end(&self) -> Vec<Event> {
        let mut inner = self.lock();
        self.push(&mut inner, What::End);
        std::mem::take(&mut inner.events)
    }

    fn push(&self, inner: &mut Inner, what: What) {
        let at = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        inner.events.push(Event { at, what });
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

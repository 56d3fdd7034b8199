//! The history of a run, written by everybody under one lock, so that its order is the real one.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::history::{Answer, CallNo, Event, RequestNo, Rules, Subject, UpstreamAnswer, What};

/// The one route of these worlds.
const ROUTE: &str = "POST /charges";

pub(super) struct Recorder {
    begun: Instant,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    events: Vec<Event>,
    requests: RequestNo,
    calls: CallNo,
    open_calls: usize,
    trouble: Option<String>,
}

impl Recorder {
    pub(super) fn begin() -> Recorder {
        let recorder = Recorder { begun: Instant::now(), inner: Mutex::default() };
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

    /// A client is about to send a request.
    pub(super) fn asked(&self, subject: &Subject, asks: &str) -> RequestNo {
        let mut inner = self.lock();
        inner.requests += 1;
        let request = inner.requests;
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
        self.push(&mut self.lock(), what);
    }

    /// Upstream got a whole request.
    pub(super) fn called(&self, subject: &Subject, asks: &str) -> CallNo {
        let mut inner = self.lock();
        inner.calls += 1;
        inner.open_calls += 1;
        let call = inner.calls;
        let (subject, asks) = (subject.clone(), asks.to_owned());
        self.push(&mut inner, What::Called { call, subject, asks, holder: None });
        call
    }

    /// Upstream is about to write its ledger.
    pub(super) fn acted(&self, call: CallNo) {
        self.push(&mut self.lock(), What::Acted { call });
    }

    /// Upstream is about to send the end of its answer, or to break off.
    pub(super) fn replied(&self, call: CallNo, answer: Option<UpstreamAnswer>) {
        let mut inner = self.lock();
        inner.open_calls -= 1;
        self.push(&mut inner, What::Replied { call, answer });
    }

    pub(super) fn fault(&self, kind: &str, detail: &str) {
        let (kind, detail) = (kind.to_owned(), detail.to_owned());
        self.push(&mut self.lock(), What::Fault { kind, detail });
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

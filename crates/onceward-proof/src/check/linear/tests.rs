//! What clients may see of a key, and what they may not.

use super::check;
use crate::history::{
    Answer, CallNo, Cause, Event, Open, RequestNo, Rules, Stand, Subject, UpstreamAnswer, What,
};

mod brute;
mod random;

const PAY: &str = "pay 10";
const OTHER: &str = "pay 99";

/// The history of one key. A request says what it asks, an answer how it ends.
struct Tale(Vec<Event>);

fn subject() -> Subject {
    Subject { tenant: "acme".into(), key: "key-1".into() }
}

fn answer(status: u16, outcome: &str, body: &str) -> Answer {
    let headers = vec![("onceward-outcome".into(), outcome.into())];
    Answer { status, headers, body: body.into() }
}

impl Tale {
    fn new() -> Self {
        Self::on(true)
    }

    fn on(acts: bool) -> Self {
        let rules = Rules {
            route: "pay".into(),
            acts,
            rerunnable: vec![503],
            expired_runs_again: false,
            kept_headers: Vec::new(),
            goes_on: false,
        };
        Tale(Vec::new()).then(What::World { routes: vec![rules], durable: true })
    }

    fn then(mut self, what: What) -> Self {
        self.0.push(Event { at: self.0.len() as u64, what });
        self
    }

    fn asked(self, request: RequestNo) -> Self {
        self.asked_for(request, PAY)
    }

    fn asked_for(self, request: RequestNo, asks: &str) -> Self {
        let asks = asks.into();
        self.then(What::Asked { request, subject: subject(), route: "pay".into(), asks })
    }

    fn called(self, call: CallNo) -> Self {
        self.called_for(call, PAY)
    }

    fn called_for(self, call: CallNo, asks: &str) -> Self {
        self.then(What::Called { call, subject: subject(), asks: asks.into(), holder: None })
    }

    fn replied(self, call: CallNo) -> Self {
        let body = format!("answer {call}");
        let answer = UpstreamAnswer { status: 201, executed: None, headers: Vec::new(), body };
        self.then(What::Replied { call, answer: Some(answer) })
    }

    fn ran(self, call: CallNo) -> Self {
        self.called(call).replied(call)
    }

    fn told(self, request: RequestNo, status: u16, outcome: &str) -> Self {
        self.then(What::Answered { request, answer: answer(status, outcome, "a problem") })
    }

    fn got(self, request: RequestNo, outcome: &str, call: CallNo) -> Self {
        let answer = answer(201, outcome, &format!("answer {call}"));
        self.then(What::Answered { request, answer })
    }

    fn moved(self, from: &str, to: &str, cause: Cause) -> Self {
        let stand = |state: &str| Stand {
            state: state.into(),
            generation: 1,
            attempt: "a".into(),
            fence: 1,
            fingerprint: "f".into(),
            lease_until: 0,
            expires_at: 0,
            purge_at: 2000,
            effects: "external".into(),
            reply: None,
            open: Open::default(),
        };
        let (from, to) = (Some(stand(from)), Some(stand(to)));
        self.then(What::Moved { subject: subject(), from, to, cause })
    }

    fn is_explained(&self) -> bool {
        check(&self.0, |_| false).next().is_none()
    }

    #[track_caller]
    fn passes(self) {
        let found: Vec<_> = check(&self.0, |_| false).collect();
        assert!(found.is_empty(), "{found:#?}");
    }

    #[track_caller]
    fn fails(self) {
        assert!(!self.is_explained(), "{:#?}", self.0);
    }
}

fn executed() -> Tale {
    Tale::new().asked(1).ran(1).got(1, "executed", 1)
}

#[test]
fn a_reply_is_there_for_good() {
    executed().asked(2).got(2, "replayed", 1).passes();
    executed().asked(2).told(2, 409, "conflict").fails();
    executed().asked(2).told(2, 409, "unknown").fails();
    executed().asked(2).told(2, 504, "unknown").fails();
    executed().asked(2).told(2, 410, "expired").passes();
    // While it is being made, the others may see less.
    Tale::new().asked(1).asked(2).ran(1).told(2, 409, "conflict").got(1, "executed", 1).passes();
    Tale::new().asked(1).asked(2).ran(1).got(1, "executed", 1).told(2, 409, "conflict").passes();
    Tale::new().asked(1).asked(2).ran(1).got(1, "executed", 1).told(2, 409, "unknown").passes();
}

#[test]
fn nothing_runs_after_a_reply() {
    executed().asked(2).ran(2).got(2, "executed", 2).fails();
    executed().asked(2).ran(2).told(2, 502, "not_executed").fails();
    executed().asked(2).told(2, 503, "unavailable").passes();
    // Nor beside it.
    let two = Tale::new().asked(1).asked(2).ran(1).ran(2);
    two.got(1, "executed", 1).got(2, "executed", 2).fails();
    let one = Tale::new().asked(1).asked(2).ran(1).got(1, "executed", 1);
    one.got(2, "replayed", 1).passes();
}

#[test]
fn only_what_is_completed_is_replayed() {
    Tale::new().asked(1).asked(2).called(1).replied(1).got(2, "replayed", 1).passes();
    // Nobody can have completed it: who ran it gave it back, or has not begun.
    let back = Tale::new().asked(1).ran(1).got(1, "not_executed", 1).asked(2);
    back.got(2, "replayed", 1).fails();
    Tale::new().asked(1).told(1, 503, "unavailable").ran(1).asked(2).got(2, "replayed", 1).fails();
    Tale::new().asked(1).told(1, 504, "unknown").ran(1).asked(2).got(2, "replayed", 1).passes();
}

#[test]
fn a_call_is_made_by_an_attempt_that_has_begun() {
    Tale::new().asked(2).ran(1).asked(1).got(1, "executed", 1).fails();
    Tale::new().asked(2).asked(1).ran(1).got(1, "executed", 1).passes();
    // Whoever begins after a call did not make it.
    let tale = || Tale::new().asked(1).called(1);
    let first_gave_back = tale().told(1, 503, "unavailable").asked(2).replied(1).asked(3);
    first_gave_back.got(3, "replayed", 1).fails();
    tale().asked(2).replied(1).asked(3).got(3, "replayed", 1).passes();
}

#[test]
fn two_replies_of_one_key_are_one_too_many() {
    let tale = |second| {
        let tale = Tale::new().asked(1).asked(2).asked(3).asked(4).ran(1).ran(2);
        tale.got(3, "replayed", 1).got(4, "replayed", second)
    };
    tale(1).passes();
    tale(2).fails();
}

#[test]
fn a_mismatch_needs_a_record_for_something_else() {
    let tale = Tale::new().asked_for(1, OTHER).called_for(1, OTHER).replied(1);
    tale.got(1, "executed", 1).asked(2).told(2, 422, "mismatch").passes();
    // What was asked otherwise came too late, or never to the record.
    executed().asked_for(2, OTHER).asked(3).told(3, 422, "mismatch").fails();
    executed().asked_for(2, OTHER).told(2, 422, "mismatch").passes();
    let refused = Tale::new().asked_for(1, OTHER).told(1, 400, "refused");
    refused.asked(2).told(2, 422, "mismatch").fails();
}

#[test]
fn what_was_given_back_runs_again_for_the_same_request_only() {
    let back = || Tale::new().asked(1).ran(1).got(1, "not_executed", 1);
    back().asked(2).ran(2).got(2, "executed", 2).passes();
    let other = back().asked_for(2, OTHER).called_for(2, OTHER).replied(2);
    other.got(2, "executed", 2).fails();
    back().asked_for(2, OTHER).told(2, 422, "mismatch").passes();
    back().asked(2).told(2, 409, "conflict").fails();
    back().asked(2).told(2, 409, "unknown").passes();
}

#[test]
fn an_unknown_outcome_stays_until_somebody_knows() {
    let unknown = |acts| Tale::on(acts).asked(1).called(1).told(1, 504, "unknown");
    unknown(true).asked(2).told(2, 409, "unknown").passes();
    unknown(true).asked(2).ran(2).got(2, "executed", 2).fails();
    unknown(true).asked(2).told(2, 502, "not_executed").fails();
    // Its own reply may come late.
    unknown(true).replied(1).asked(2).got(2, "replayed", 1).passes();
    // What cannot have acted runs again after its lease.
    unknown(false).asked(2).ran(2).got(2, "executed", 2).passes();
    let resolve = resolved_as("release");
    let released = unknown(true).moved("unknown", "failed_retryable", resolve);
    released.asked(2).ran(2).got(2, "executed", 2).passes();
}

fn resolved_as(resolution: &str) -> Cause {
    let proof = Some("two_probes".into());
    Cause::Resolve { resolution: resolution.into(), proof, fence: 1, now: 0 }
}

#[test]
fn who_resolves_an_outcome_may_bring_the_reply() {
    let resolve = || resolved_as("complete");
    let resolved = || {
        let tale = Tale::new().asked(1).called(1).told(1, 504, "unknown");
        tale.moved("unknown", "completed", resolve())
    };
    resolved().asked(2).got(2, "replayed", 1).asked(3).got(3, "replayed", 1).passes();
    resolved().asked(2).got(2, "replayed", 1).asked(3).got(3, "replayed", 9).fails();
    // It is the same reply when it comes by itself afterwards.
    let late = resolved().asked(2).got(2, "replayed", 1).replied(1);
    late.asked(3).got(3, "replayed", 1).passes();
    resolved().asked(2).got(2, "replayed", 1).asked(3).told(3, 409, "unknown").fails();
}

#[test]
fn an_expired_key_runs_again_where_the_history_says_so() {
    let expired = || executed().asked(2).told(2, 410, "expired");
    expired().asked(3).got(3, "replayed", 1).fails();
    expired().asked(3).ran(2).got(3, "executed", 2).fails();
    let mut next = answer(201, "executed", "answer 2");
    next.headers.push(("idempotency-generation".into(), "2".into()));
    let again = expired().asked(3).ran(2).then(What::Answered { request: 3, answer: next });
    again.passes();
}

#[test]
fn a_voided_reply_is_gone_for_its_own_client_too() {
    let void = |tale: Tale| tale.moved("completed", "expired", resolved_as("void"));
    void(Tale::new().asked(1).ran(1)).told(1, 410, "expired").passes();
    Tale::new().asked(1).told(1, 410, "expired").fails();
    Tale::new().asked(1).called(1).told(1, 410, "expired").fails();
}

#[test]
fn a_reply_that_was_not_kept_is_there_all_the_same() {
    let not_kept = |tale: Tale| tale.asked(8).told(8, 410, "reply_not_stored");
    not_kept(executed()).passes();
    not_kept(executed()).asked(9).told(9, 409, "unknown").fails();
    not_kept(Tale::new().asked(1).ran(1)).passes();
    not_kept(Tale::new().asked(1).called(1)).fails();
    not_kept(Tale::new().ran(1)).fails();
}

#[test]
fn a_silent_request_explains_only_what_it_can_have_done() {
    let conflicts = |tale: Tale| tale.asked(8).told(8, 409, "conflict");
    conflicts(Tale::new()).fails();
    conflicts(Tale::new().asked(1)).passes();
    conflicts(Tale::new().asked(1).told(1, 503, "unavailable")).passes();
    conflicts(Tale::new().asked(1).told(1, 429, "rate_limited")).fails();
    // One silent request is one attempt, not two.
    let back = |tale: Tale| conflicts(tale).asked(9).ran(1).got(9, "not_executed", 1).asked(10);
    back(Tale::new().asked(1)).told(10, 409, "conflict").fails();
    back(Tale::new().asked(1).asked(2)).told(10, 409, "conflict").passes();
}

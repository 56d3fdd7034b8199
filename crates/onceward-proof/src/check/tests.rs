//! For each invariant: the smallest history that violates it, and the nearly equal one that does not.

use super::{Judge, judge};
use crate::history::{
    Answer, CallNo, Cause, Event, Holder, Open, RequestNo, Rules, Stand, Subject, UpstreamAnswer,
    What,
};

mod answers;
mod calls;
mod form;
mod messages;
mod records;
mod work;

/// A history in the making.
struct Tale(Vec<Event>);

const PAY: &str = "pay 10";
const OTHER: &str = "pay 99";

fn rules(route: &str) -> Rules {
    Rules {
        route: route.into(),
        acts: route != "look",
        rerunnable: vec![429, 503],
        expired_runs_again: route != "look",
        kept_headers: vec!["etag".into(), "link".into()],
        goes_on: false,
    }
}

fn subject(tenant: &str) -> Subject {
    Subject { tenant: tenant.into(), key: "key-1".into() }
}

/// What upstream answers in a call.
fn upstream(call: CallNo, status: u16) -> UpstreamAnswer {
    UpstreamAnswer {
        status,
        executed: None,
        headers: headers(&[("etag", "e"), ("link", "<a>"), ("link", "<b>")]),
        body: format!("answer {call}"),
    }
}

fn headers(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// The reply of a call, as a client gets it.
fn reply(call: CallNo, outcome: &str) -> Answer {
    let UpstreamAnswer { status, mut headers, body, .. } = upstream(call, 201);
    headers.push(("onceward-outcome".into(), outcome.into()));
    if outcome == "replayed" {
        headers.push(("idempotent-replayed".into(), "true".into()));
    }
    Answer { status, headers, body }
}

/// An answer of our own.
fn refusal(status: u16, outcome: &str) -> Answer {
    let headers = headers(&[
        ("content-type", "application/problem+json"),
        ("onceward-outcome", outcome),
        ("retry-after", "1"),
    ]);
    Answer { status, headers, body: format!("{{\"outcome\":\"{outcome}\"}}") }
}

/// A record in its first generation, held by attempt `a<fence>`.
fn stand(state: &str, fence: i64) -> Stand {
    Stand {
        state: state.into(),
        generation: 1,
        attempt: format!("a{fence}"),
        fence,
        fingerprint: "f".into(),
        lease_until: 100,
        expires_at: 1000,
        purge_at: 2000,
        effects: "external".into(),
        reply: None,
        open: Open { reconcile_after: Some(0), ..Open::default() },
    }
}

fn reserve(fence: i64, now: i64) -> Cause {
    Cause::Reserve { attempt: format!("a{fence}"), now }
}

fn write(write: &str, fence: i64) -> Cause {
    Cause::Write { write: write.into(), attempt: format!("a{fence}"), fence }
}

/// By somebody who looked at fence 5, when the lease was over.
fn resolve(resolution: &str, proof: Option<&str>) -> Cause {
    let (resolution, proof) = (resolution.into(), proof.map(Into::into));
    Cause::Resolve { resolution, proof, fence: 5, now: 100 }
}

impl Tale {
    fn new() -> Self {
        Self::in_world(true)
    }

    fn in_world(durable: bool) -> Self {
        let routes = vec![rules("pay"), rules("look")];
        Tale(Vec::new()).then(What::World { routes, durable })
    }

    fn then(mut self, what: What) -> Self {
        self.0.push(Event { at: self.0.len() as u64, what });
        self
    }

    fn asked(self, request: RequestNo) -> Self {
        self.asked_by(request, "acme", "pay", PAY)
    }

    fn asked_by(self, request: RequestNo, tenant: &str, route: &str, asks: &str) -> Self {
        let (route, asks) = (route.into(), asks.into());
        self.then(What::Asked { request, subject: subject(tenant), route, asks })
    }

    fn called(self, call: CallNo) -> Self {
        self.called_by(call, "acme", PAY)
    }

    fn called_by(self, call: CallNo, tenant: &str, asks: &str) -> Self {
        let asks = asks.into();
        self.then(What::Called { call, subject: subject(tenant), asks, holder: None })
    }

    /// A call by attempt `a<fence>`.
    fn called_under(self, call: CallNo, fence: i64, lease_left: i64) -> Self {
        let attempt = format!("a{fence}");
        let holder = Holder { attempt, fence, generation: 1, attempt_number: 1, lease_left };
        let asks = PAY.into();
        self.then(What::Called { call, subject: subject("acme"), asks, holder: Some(holder) })
    }

    fn acted(self, call: CallNo) -> Self {
        self.then(What::Acted { call })
    }

    fn replied(self, call: CallNo, status: u16) -> Self {
        self.then(What::Replied { call, answer: Some(upstream(call, status)) })
    }

    fn broke_off(self, call: CallNo) -> Self {
        self.then(What::Replied { call, answer: None })
    }

    /// A whole call that acts.
    fn ran(self, call: CallNo) -> Self {
        self.called(call).acted(call).replied(call, 201)
    }

    fn answered(self, request: RequestNo, answer: Answer) -> Self {
        self.then(What::Answered { request, answer })
    }

    fn moved(self, from: Option<Stand>, to: Option<Stand>, cause: Cause) -> Self {
        self.then(What::Moved { subject: subject("acme"), from, to, cause })
    }

    /// Granted to attempt `a<fence>`, from nothing.
    fn granted(self, fence: i64) -> Self {
        self.moved(None, Some(stand("in_progress", fence)), reserve(fence, 10))
    }

    fn completed(self, fence: i64) -> Self {
        let (from, to) = (stand("in_progress", fence), stand("completed", fence));
        self.moved(Some(from), Some(to), write("complete", fence))
    }

    /// What is wrong, by name.
    fn wrongs(&self) -> Vec<&'static str> {
        judge(&self.0).into_iter().map(|violation| violation.invariant).collect()
    }

    #[track_caller]
    fn passes(self) {
        let found = judge(&self.0);
        assert!(found.is_empty(), "{found:#?}");
    }

    /// Wrong in this and nothing else, but for the order of steps that it spoils.
    #[track_caller]
    fn violates(self, invariant: &str) {
        let found = judge(&self.0);
        let names = found.iter().map(|violation| violation.invariant);
        let names: Vec<_> = names.filter(|name| *name != "LIN").collect();
        assert_eq!(names, [invariant], "{found:#?}");
    }
}

#[test]
fn a_judge_who_sits_beside_says_the_same_as_one_who_comes_later() {
    let tale = Tale::new().asked(1).ran(1).ran(2).answered(1, reply(1, "executed"));
    let mut judge = Judge::new();
    let verdicts: Vec<_> = tale.0.iter().map(|event| judge.observe(event).is_ok()).collect();
    // The second effect is certain with the answer after it.
    assert_eq!(verdicts, [true, true, true, true, true, true, true, false, true]);
    assert_eq!(tale.wrongs(), ["I1"]);
}

#[test]
fn a_violation_is_a_sentence() {
    let found = judge(&Tale::new().asked(1).ran(1).ran(2).0);
    let said = "I1: acme/key-1: calls 1 and 2 both acted in generation 1";
    assert_eq!(found[0].to_string(), said);
}

//! Upstream: acts at most once in a call, keeps a ledger of it, and answers as it likes.

use std::{collections::HashMap, convert::Infallible, future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Response, StatusCode, response::Parts};
use onceward::{
    Effects, Operation,
    clock::Timestamp,
    engine::{Captured, Execution, Handler},
    record::RecordId,
    reply::{Reply, ReplyBody},
};
use tokio::{sync::oneshot, time::sleep};

use super::{
    bugs,
    faults::{ON_ITS_WAY, PAST_EVERY_LEASE, UpstreamFault},
    node::Gate,
    options::{RouteOptions, SECOND},
    world::{World, lock},
};
use crate::{
    check::Violation,
    history::{CallNo, Holder, Subject, UpstreamAnswer, What},
};

/// The calls that upstream got.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) calls: Vec<Entry>,
    /// Which call acted under each key, in each use of the record. A key that is new has new ones.
    by_key: HashMap<(String, Option<Timestamp>), CallNo>,
}

/// One call.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: RecordId,
    /// When this use of the key began. Generations are counted anew once a tombstone is purged.
    pub(super) use_began: Option<Timestamp>,
    pub(super) acted: bool,
    /// Nothing more will come of it.
    pub(super) is_over: bool,
    pub(super) answer: UpstreamAnswer,
    /// Upstream itself said that it may be run again.
    pub(super) disowned: bool,
    /// Which step of its operation it is, if it is one.
    pub(super) step: Option<&'static str>,
    key: Option<String>,
    /// The call that acted for it, under the same key: most often itself.
    stands: CallNo,
}

/// A call that is one step of its operation.
pub(super) struct Keyed {
    pub(super) step: &'static str,
    /// What upstream tells repetitions by, if it does.
    pub(super) key: Option<String>,
}

/// The handler of a request: one call of upstream.
pub(super) struct Call {
    pub(super) world: Arc<World>,
    pub(super) node: u32,
    pub(super) gate: Arc<Gate>,
    pub(super) subject: Subject,
    pub(super) asks: String,
    pub(super) route: u32,
    /// The node had been asked to end when the request came.
    pub(super) came_too_late: bool,
}

/// What upstream does in a call.
pub(super) struct Conduct {
    /// How long the call is on its way; `None` if it never arrives.
    there: Option<Duration>,
    acts: bool,
    status: u16,
    pub(super) executed: Option<&'static str>,
    /// How long the answer is on its way; `None` if it never arrives.
    back: Option<Duration>,
}

impl Conduct {
    pub(super) fn of(fault: UpstreamFault, world: &World, route: u32) -> Self {
        let usual = Conduct {
            there: Some(ON_ITS_WAY * 2),
            acts: true,
            status: 201,
            executed: None,
            back: Some(ON_ITS_WAY * 2),
        };
        let route = world.options.routes.get(route as usize);
        let lease = route.map_or(SECOND, |route| route.lease);
        let longest = route.map_or(SECOND, |route| route.max_execution);
        match fault {
            UpstreamFault::None
            | UpstreamFault::NeverSent
            | UpstreamFault::Large
            | UpstreamFault::Panics
            | UpstreamFault::CrashAfter
            | UpstreamFault::PauseAfter
            | UpstreamFault::BadGateway => usual,
            UpstreamFault::LostBefore
            | UpstreamFault::SilentBefore
            | UpstreamFault::CrashBefore
            | UpstreamFault::GatewayTimeout => Conduct { there: None, acts: false, ..usual },
            UpstreamFault::LostAfter | UpstreamFault::SilentAfter => {
                Conduct { back: None, ..usual }
            }
            UpstreamFault::ActsLate => {
                let latest = world.options.latest_act(longest);
                let there = if world.number(3) == 2 { latest } else { world.delay().min(latest) };
                Conduct { there: Some(there), back: None, ..usual }
            }
            UpstreamFault::Slow => Conduct { back: Some(lease * 2), ..usual },
            UpstreamFault::VerySlow => Conduct { back: Some(longest + SECOND), ..usual },
            UpstreamFault::Busy => Conduct { acts: false, status: 503, ..usual },
            UpstreamFault::FailsAfterActing => Conduct { status: 500, ..usual },
            UpstreamFault::Limits => Conduct { acts: false, status: 429, ..usual },
            UpstreamFault::Declines => Conduct { acts: false, status: 422, ..usual },
            UpstreamFault::SaysNo => {
                Conduct { acts: false, status: 500, executed: Some("no"), ..usual }
            }
            UpstreamFault::SaysMaybe => Conduct { status: 200, executed: Some("maybe"), ..usual },
        }
    }
}

impl Handler for Call {
    type Rest = Bytes;

    async fn run(self, operation: Operation) -> Execution<Bytes> {
        if self.came_too_late {
            self.wrong("I7", "a node that was asked to end took new work".into());
        }
        if self.route_options().is_some_and(|route| route.effects == Effects::Phased) {
            return self.in_steps(&operation).await;
        }
        let fault = self.upstream_fault();
        if fault == UpstreamFault::NeverSent {
            sleep(ON_ITS_WAY).await;
            return Execution::NeverSent { why: "connect_refused" };
        }
        let conduct = Conduct::of(fault, &self.world, self.route);
        let executed = conduct.executed;
        let arrives = conduct.there.is_some();
        let (call, answer) = self.call(&operation, conduct, fault, None);
        let ended = tokio::select! {
            biased;
            ended = self.wait(fault, answer, executed) => ended,
            never = self.watch(&operation) => match never {},
        };
        self.check_belief(&operation);
        let again = bugs::sends_again(&self.world, &ended);
        if again {
            let usual = Conduct::of(UpstreamFault::None, &self.world, self.route);
            let (_, answer) = self.call(&operation, usual, UpstreamFault::None, None);
            return self.wait(UpstreamFault::None, answer, None).await;
        }
        bugs::execution(&self.world, ended, arrives.then_some(call))
    }
}

impl Call {
    pub(super) fn route_options(&self) -> Option<&RouteOptions> {
        self.world.options.routes.get(self.route as usize)
    }

    pub(super) fn upstream_fault(&self) -> UpstreamFault {
        let (fault, kind) = self.world.pick(&UpstreamFault::ALL, 4);
        if fault != UpstreamFault::None {
            self.world.fault(kind, format!("node {} for {}", self.node, self.subject.key));
        }
        fault
    }

    /// Sends the call. Whatever becomes of this process, it goes its way.
    pub(super) fn call(
        &self,
        operation: &Operation,
        conduct: Conduct,
        fault: UpstreamFault,
        keyed: Option<Keyed>,
    ) -> (CallNo, oneshot::Receiver<UpstreamAnswer>) {
        let world = &self.world;
        let holder = Holder {
            attempt: world.attempt_name(operation.attempt()),
            fence: operation.fence().number(),
            generation: operation.generation(),
            attempt_number: operation.attempt_number(),
            lease_left: world.lease_left(operation.attempt()).unwrap_or(-1),
        };
        let rules = world.options.rules();
        let rerunnable = rules.get(self.route as usize).map(|rules| &rules.rerunnable);
        let disowned = conduct.executed == Some("no")
            || rerunnable.is_some_and(|statuses| statuses.contains(&conduct.status));
        let id = operation.id().clone();
        let use_began = lock(&world.records).records.get(&id).map(|record| record.created_at);
        let call = {
            let mut ledger = lock(&world.ledger);
            let call = ledger.calls.len() as CallNo + 1;
            let mut answer = answer(call, &self.subject, &self.asks, &conduct);
            if fault == UpstreamFault::Large {
                answer.body.push_str(" and more than is stored");
            }
            ledger.calls.push(Entry {
                id,
                use_began,
                acted: false,
                is_over: false,
                answer,
                disowned,
                step: keyed.as_ref().map(|keyed| keyed.step),
                key: keyed.and_then(|keyed| keyed.key),
                stands: call,
            });
            call
        };
        world.record(What::Called {
            call,
            subject: self.subject.clone(),
            asks: self.asks.clone(),
            holder: Some(holder),
        });
        let (sender, receiver) = oneshot::channel();
        let (world, gate, node) = (Arc::clone(world), Arc::clone(&self.gate), self.node);
        tokio::spawn(async move {
            match conduct.there {
                Some(there) => sleep(there).await,
                None => return world.over(call, None),
            }
            // What upstream has no time for it does not look up either.
            let looks = conduct.acts || conduct.status == 422;
            if !(looks && world.repeats(call, conduct.acts)) && conduct.acts {
                world.act(call);
            }
            match fault {
                UpstreamFault::CrashAfter => world.crash(node, &gate),
                UpstreamFault::PauseAfter => world.pause(&gate, PAST_EVERY_LEASE),
                _ => {}
            }
            let (own, stands) = (world.answer_of(call), world.call_that_stands(call)());
            world.over(call, own);
            let answer = world.answer_of(stands);
            if let (Some(answer), Some(back)) = (answer, conduct.back) {
                sleep(back).await;
                let _ = sender.send(answer);
            }
        });
        (call, receiver)
    }

    /// Asks again and again whether it may still act, always at the moment when that changes.
    async fn watch(&self, operation: &Operation) -> Infallible {
        loop {
            let left = self.world.lease_left(operation.attempt()).unwrap_or_default();
            let left = Duration::from_micros(u64::try_from(left).unwrap_or_default());
            sleep(if left.is_zero() { SECOND } else { left }).await;
            self.check_belief(operation);
        }
    }

    /// R5: an attempt that asks whether it may still act is told what the store told it, after
    /// renewals too.
    fn check_belief(&self, operation: &Operation) {
        let left = self.world.lease_left(operation.attempt());
        let (may, believes) = (left.is_some_and(|left| left > 0), operation.may_act());
        if may != believes {
            let what = format!("an attempt believes that it may act: {believes}, which is {may}");
            self.wrong("R5", what);
        }
    }

    fn wrong(&self, invariant: &'static str, what: String) {
        let subject = Some(self.subject.clone());
        self.world.violate(Violation { invariant, subject, what });
    }

    /// What the handler sees of the call.
    pub(super) async fn wait(
        &self,
        fault: UpstreamFault,
        answer: oneshot::Receiver<UpstreamAnswer>,
        executed: Option<&'static str>,
    ) -> Execution<Bytes> {
        let cut = |status, why| Execution::NoFullAnswer { status, why };
        match fault {
            UpstreamFault::CrashBefore => {
                self.world.crash(self.node, &self.gate);
                return pending().await;
            }
            UpstreamFault::LostBefore | UpstreamFault::LostAfter => {
                sleep(ON_ITS_WAY * 5).await;
                return cut(StatusCode::BAD_GATEWAY, "connection_reset");
            }
            UpstreamFault::ActsLate => {
                sleep(ON_ITS_WAY * 5).await;
                return cut(StatusCode::GATEWAY_TIMEOUT, "upstream_timeout");
            }
            UpstreamFault::GatewayTimeout => {
                sleep(ON_ITS_WAY * 5).await;
                return answered(&in_between(504), None, false);
            }
            _ => {}
        }
        let Ok(answer) = answer.await else { return pending().await };
        match fault {
            UpstreamFault::BadGateway => answered(&in_between(502), None, false),
            UpstreamFault::Panics => {
                std::panic::resume_unwind(Box::new("a panic of the simulation"))
            }
            _ => answered(&answer, executed, fault == UpstreamFault::Large),
        }
    }
}

impl World {
    /// Upstream acts, unless it did so before under the same key.
    fn act(&self, call: CallNo) {
        if let Some(entry) = lock(&self.ledger).calls.get_mut(call as usize - 1) {
            entry.acted = true;
        }
        self.record(What::Acted { call });
    }

    /// Whether upstream has acted under the key of this call before. Then that call stands for it.
    fn repeats(&self, call: CallNo, acts: bool) -> bool {
        let mut ledger = lock(&self.ledger);
        let Some(entry) = ledger.calls.get(call as usize - 1) else { return false };
        let Some(key) = entry.key.clone() else { return false };
        let key = (key, entry.use_began);
        let before = ledger.by_key.get(&key).copied();
        if before.is_none() && acts {
            ledger.by_key.insert(key, call);
        }
        let Some(before) = before else { return false };
        if let Some(entry) = ledger.calls.get_mut(call as usize - 1) {
            entry.stands = before;
        }
        drop(ledger);
        self.met("step_repeated_under_its_key");
        true
    }

    /// Tells, once it is over, which call acted for this one.
    pub(super) fn call_that_stands(&self, call: CallNo) -> impl Fn() -> CallNo + '_ {
        move || {
            let ledger = lock(&self.ledger);
            ledger.calls.get(call as usize - 1).map_or(call, |entry| entry.stands)
        }
    }

    pub(super) fn answer_of(&self, call: CallNo) -> Option<UpstreamAnswer> {
        lock(&self.ledger).calls.get(call as usize - 1).map(|entry| entry.answer.clone())
    }

    fn over(&self, call: CallNo, answer: Option<UpstreamAnswer>) {
        if let Some(entry) = lock(&self.ledger).calls.get_mut(call as usize - 1) {
            entry.is_over = true;
        }
        self.record(What::Replied { call, answer });
    }
}

fn answer(call: CallNo, subject: &Subject, asks: &str, conduct: &Conduct) -> UpstreamAnswer {
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    UpstreamAnswer {
        status: conduct.status,
        executed: conduct.executed.map(Into::into),
        headers: vec![
            header("content-type", "text/plain"),
            header("x-note", "first"),
            header("x-note", "second"),
            header("etag", &format!("\"call-{call}\"")),
            header("set-cookie", &format!("session={}", subject.tenant)),
            header("access-control-allow-origin", "https://a.example"),
            // Ours to say, not upstream's.
            header("idempotent-replayed", "true"),
            header("idempotency-generation", "7"),
            header("onceward-outcome", "replayed"),
        ],
        body: format!("call {call} for {} {}: {asks}", subject.tenant, subject.key),
    }
}

/// What somebody between us and upstream says.
pub(super) fn in_between(status: u16) -> UpstreamAnswer {
    let headers = vec![("content-type".to_owned(), "application/problem+json".to_owned())];
    UpstreamAnswer { status, executed: None, headers, body: "no upstream".into() }
}

pub(super) fn answered(
    answer: &UpstreamAnswer,
    executed: Option<&'static str>,
    large: bool,
) -> Execution<Bytes> {
    let mut parts = parts(answer);
    if let Some(executed) = executed {
        let value = http::HeaderValue::from_static(executed);
        parts.headers.insert("onceward-executed", value);
    }
    let body = Bytes::from(answer.body.clone());
    let body = if large { Captured::TooLarge(body) } else { Captured::Whole(body) };
    Execution::Answered(parts, body)
}

fn parts(answer: &UpstreamAnswer) -> Parts {
    let mut response = Response::builder().status(answer.status);
    for (name, value) in &answer.headers {
        response = response.header(name, value);
    }
    let response = response.body(()).unwrap_or_else(|bad| unreachable!("{bad}"));
    response.into_parts().0
}

/// The reply that the ledger has for a call.
pub(super) fn reply(answer: &UpstreamAnswer) -> Reply {
    let body = ReplyBody::Stored(Bytes::from(answer.body.clone()));
    Reply::capture(&parts(answer), body, None)
}

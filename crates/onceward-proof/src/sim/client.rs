//! Clients: ask, wait, hang up, and ask again until there is a final answer.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, request};
use onceward::{Key, Scope, engine::Captured, record::RecordId};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{
    bugs,
    faults::{ClientFault, ON_ITS_WAY},
    node::{Gate, Life},
    options,
    upstream::Call,
    world::{World, credential, tenant},
};
use crate::{
    check::Violation,
    history::{Answer, Subject, What},
};

/// What a client wants: one thing under one key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wish {
    pub(super) subject: Subject,
    pub(super) route: u32,
    /// Which of the things that are asked under this key.
    pub(super) body: u32,
}

impl Wish {
    pub(super) fn new(world: &World, tenant_no: u32, key: u32, body: u32) -> Self {
        let subject = Subject { tenant: tenant(tenant_no), key: format!("key-{key:016}") };
        Wish { subject, route: world.options.route_of_key(key), body }
    }

    fn id(&self) -> RecordId {
        let scope = Scope::of_credential(credential(&self.subject.tenant).as_bytes());
        let key = Key::new(self.subject.key.as_str()).expect("a well-formed key");
        RecordId { scope, key }
    }

    fn asks(&self) -> String {
        format!("pay {}", 100 + self.body)
    }

    /// The same wish may be written in several ways.
    fn bytes(&self, writing: u32) -> Bytes {
        let amount = 100 + self.body;
        let who = &self.subject.tenant;
        Bytes::from(match writing {
            0 => format!("{{\"amount\":{amount},\"who\":\"{who}\"}}"),
            1 => format!("{{ \"who\": \"{who}\", \"amount\": {amount}.0 }}"),
            _ => format!("{{\"who\":\"{who}\",\n\"amount\":{amount}e0}}\n"),
        })
    }
}

/// A client that has its operations done one after the other.
pub(super) async fn run(world: Arc<World>, number: u32) {
    let options = &world.options;
    // Two clients that ask at the very same moment meet most often.
    let begins = world.number(3);
    sleep(ON_ITS_WAY * begins).await;
    for _ in 0..options.operations {
        let tenant = world.number(options.tenants);
        let key = world.number(options.keys);
        // Misuse is rare.
        let body = if world.number(4) == 3 { world.number(options.bodies) } else { 0 };
        let wish = Wish::new(&world, tenant, key, body);
        for _ in 0..4 {
            let node = number + world.number(options.nodes);
            let answer = ask(&world, &wish, node).await;
            if answer.as_ref().is_some_and(is_final) {
                break;
            }
            sleep(pause(&world)).await;
        }
        sleep(pause(&world)).await;
    }
}

fn pause(world: &World) -> Duration {
    const PAUSES: [u64; 5] = [1_000, 5, 100, 4_000, 31_000];
    let chosen = world.number(5) as usize;
    Duration::from_millis(PAUSES.get(chosen).copied().unwrap_or_default())
}

/// Whether asking again would change nothing.
pub(super) fn is_final(answer: &Answer) -> bool {
    match answer.outcome() {
        Some("executed" | "replayed" | "mismatch") => true,
        _ => answer.status == 410,
    }
}

/// One request of a client, and what came of it.
pub(super) async fn ask(world: &Arc<World>, wish: &Wish, node: u32) -> Option<Answer> {
    let (fault, kind) = world.pick(&ClientFault::ALL, 1);
    if fault != ClientFault::None {
        world.fault(kind, wish.subject.key.clone());
    }
    if fault == ClientFault::Twice {
        // A copy of the request, of which nobody waits for the answer.
        let (world, wish) = (Arc::clone(world), wish.clone());
        let later = world.delay();
        tokio::spawn(async move {
            let request = asked(&world, &wish);
            world.record(What::GaveUp { request });
            sleep(later).await;
            drop(arrive(&world, &wish, node + 1));
        });
    }
    let request = asked(world, wish);
    let way = if fault == ClientFault::Delayed { world.delay() } else { ON_ITS_WAY };
    sleep(way).await;
    let patience = match fault {
        ClientFault::HangsUp => ON_ITS_WAY * (1 + world.number(12)),
        _ => PATIENCE,
    };
    let answer = match arrive(world, wish, node) {
        Some(connection) => {
            let (gate, before) = (Arc::clone(&connection.gate), connection.gate.changes());
            let answer = timeout(patience, connection.answer()).await;
            let undisturbed = gate.changes() == before && gate.life() == Life::Running;
            match answer {
                Ok(None) if gate.life() != Life::Dead => leaves(world, wish, "without an answer"),
                Err(_) if patience == PATIENCE && undisturbed => {
                    leaves(world, wish, "without an answer for too long");
                }
                _ => {}
            }
            answer.ok().flatten()
        }
        None => None,
    };
    sleep(ON_ITS_WAY).await;
    match answer.filter(|_| fault != ClientFault::AnswerLost) {
        Some(response) => {
            let answer = bugs::answer(world, received(response));
            world.record(What::Answered { request, answer: answer.clone() });
            Some(answer)
        }
        None => {
            world.record(What::GaveUp { request });
            None
        }
    }
}

/// Longer than a request takes on a node that runs: to reserve, to wait for another attempt, to
/// execute, and to write what came of it.
const PATIENCE: Duration = Duration::from_secs(90);

/// I8: a node that runs answers, whatever happened to its store and to upstream.
fn leaves(world: &World, wish: &Wish, how: &str) {
    world.violate(Violation {
        invariant: "I8",
        subject: Some(wish.subject.clone()),
        what: format!("a node that runs left its client {how}"),
    });
}

fn asked(world: &World, wish: &Wish) -> u64 {
    let request = world.next_request();
    world.record(What::Asked {
        request,
        subject: wish.subject.clone(),
        route: options::path(wish.route),
        asks: wish.asks(),
    });
    request
}

/// A connection on which a request was sent. Dropping it is hanging up.
struct Connection {
    answer: oneshot::Receiver<Response<Captured<Bytes>>>,
    gate: Arc<Gate>,
    _is_open: oneshot::Sender<()>,
}

impl Connection {
    async fn answer(self) -> Option<Response<Captured<Bytes>>> {
        self.answer.await.ok()
    }
}

/// The request is at a node; nothing, if there is no node.
fn arrive(world: &Arc<World>, wish: &Wish, number: u32) -> Option<Connection> {
    let number = number % world.options.nodes;
    let node = world.node(number);
    if node.gate.life() == Life::Dead {
        return None;
    }
    let (sender, answer) = oneshot::channel();
    let (is_open, closed) = oneshot::channel();
    let parts = head(wish);
    let body = wish.bytes(world.number(3));
    let handler = Call {
        world: Arc::clone(world),
        node: number,
        gate: Arc::clone(&node.gate),
        subject: wish.subject.clone(),
        asks: wish.asks(),
        route: wish.route,
        came_too_late: node.is_closed.load(Ordering::Relaxed),
    };
    let engine = Arc::clone(&node.engine);
    let problem = "every request of the simulation can be admitted";
    let run = async move {
        let policy = Arc::clone(engine.policy_for(&parts).expect(problem));
        let admitted = engine.admit(&parts, &policy).expect(problem).expect(problem);
        let asked = engine.ask(admitted, &parts, &body);
        engine.run(asked, handler, sender).await;
    };
    let hung_up = async move { drop(closed.await) };
    let run = bugs::detached(world, wish.id(), hung_up, run);
    tokio::spawn(node.gate.guard(run));
    Some(Connection { answer, gate: Arc::clone(&node.gate), _is_open: is_open })
}

fn head(wish: &Wish) -> request::Parts {
    let request = Request::post(options::path(wish.route))
        .header("authorization", credential(&wish.subject.tenant))
        .header("content-type", "application/json")
        .header("idempotency-key", &wish.subject.key)
        .body(());
    request.unwrap_or_else(|bad| unreachable!("{bad}")).into_parts().0
}

fn received(response: Response<Captured<Bytes>>) -> Answer {
    let (parts, body) = response.into_parts();
    let headers = parts.headers.iter();
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let body = match body {
        Captured::Whole(body) | Captured::TooLarge(body) => body,
    };
    Answer {
        status: parts.status.as_u16(),
        headers: headers.map(|(name, value)| (name.as_str().to_owned(), text(value))).collect(),
        body: String::from_utf8_lossy(&body).into_owned(),
    }
}

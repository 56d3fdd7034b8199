//! A bank that charges an account for every request it gets, and keeps an append-only ledger. It
//! knows nothing of keys: whoever asks twice is charged twice.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Result;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::watch;

use crate::listener::{Answer, Listening, Peer};

/// What somebody asks to be charged.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Charge {
    pub(super) account: String,
    pub(super) amount: u64,
}

pub(super) struct Bank {
    listening: Listening,
    counter: Counter,
}

/// The counter at which charges are made.
#[derive(Clone)]
struct Counter(Arc<Inner>);

struct Inner {
    ledger: Mutex<Vec<Charge>>,
    pace: watch::Sender<Pace>,
    /// How many requests arrived.
    arrived: watch::Sender<usize>,
    /// How many charges were made.
    charged: watch::Sender<usize>,
}

/// How the clerk works.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    Quick,
    /// Requests lie on the desk.
    Slow,
    /// Charges are made, and answers lie on the desk.
    Silent,
}

impl Bank {
    pub(super) async fn start(address: SocketAddr) -> Result<Bank> {
        let counter = Counter(Arc::new(Inner {
            ledger: Mutex::default(),
            pace: watch::Sender::new(Pace::Quick),
            arrived: watch::Sender::new(0),
            charged: watch::Sender::new(0),
        }));
        let listening = Listening::bind(address, counter.clone()).await?;
        Ok(Bank { listening, counter })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.listening.address
    }

    /// How many charges the ledger has.
    pub(super) fn charges(&self) -> usize {
        self.counter.ledger(|ledger| ledger.len())
    }

    /// Requests stay on the desk from now on.
    pub(super) fn slow_down(&self) {
        self.counter.0.pace.send_replace(Pace::Slow);
    }

    /// Charges are made from now on, but answers stay on the desk.
    pub(super) fn fall_silent(&self) {
        self.counter.0.pace.send_replace(Pace::Silent);
    }

    /// What lies on the desk is worked off.
    pub(super) fn go_on(&self) {
        self.counter.0.pace.send_replace(Pace::Quick);
    }

    /// How many requests arrived so far.
    pub(super) fn arrived(&self) -> usize {
        *self.counter.0.arrived.borrow()
    }

    /// Comes back when that many requests arrived.
    pub(super) async fn has_seen(&self, requests: usize) {
        let mut arrived = self.counter.0.arrived.subscribe();
        // The sender lives as long as the bank, so that waiting cannot fail.
        let _ = arrived.wait_for(|arrived| *arrived >= requests).await;
    }

    /// Comes back when the ledger has that many charges.
    pub(super) async fn has_charged(&self, charges: usize) {
        let mut charged = self.counter.0.charged.subscribe();
        let _ = charged.wait_for(|charged| *charged >= charges).await;
    }

    /// What was answered to the last charge, or would have been.
    pub(super) fn last_receipt(&self) -> Option<String> {
        self.counter.ledger(|ledger| ledger.last().map(|charge| receipt(ledger.len(), charge)))
    }

    pub(super) async fn close(self) {
        self.go_on();
        self.listening.stop(Duration::from_secs(1)).await;
    }
}

impl Counter {
    fn ledger<T>(&self, look: impl FnOnce(&mut Vec<Charge>) -> T) -> T {
        look(&mut self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn charge(self, body: Incoming) -> Response<Full<Bytes>> {
        self.0.arrived.send_modify(|arrived| *arrived += 1);
        let Ok(body) = body.collect().await else { return text(StatusCode::BAD_REQUEST, "{}") };
        let Ok(charge) = serde_json::from_slice::<Charge>(&body.to_bytes()) else {
            let wanted = r#"{"error":"send {\"account\":\"alice\",\"amount\":1200}"}"#;
            return text(StatusCode::BAD_REQUEST, wanted);
        };
        let mut pace = self.0.pace.subscribe();
        let _ = pace.wait_for(|pace| *pace != Pace::Slow).await;
        let number = self.ledger(|ledger| {
            ledger.push(charge.clone());
            ledger.len()
        });
        self.0.charged.send_replace(number);
        let _ = pace.wait_for(|pace| *pace == Pace::Quick).await;
        text(StatusCode::CREATED, receipt(number, &charge))
    }
}

fn receipt(number: usize, charge: &Charge) -> String {
    let Charge { account, amount } = charge;
    let receipt = json!({ "charge": format!("ch_{number}"), "account": account, "amount": amount });
    format!("{receipt}\n")
}

impl Answer for Counter {
    type Body = Full<Bytes>;

    async fn answer(&self, _: &Arc<Peer>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        match (request.method(), request.uri().path()) {
            (&Method::POST, "/charges") => {
                // Like any real service, the bank goes on when whoever asked has hung up.
                let charge = tokio::spawn(self.clone().charge(request.into_body()));
                charge.await.unwrap_or_else(|_| text(StatusCode::INTERNAL_SERVER_ERROR, ""))
            }
            (&Method::GET, "/ledger") => {
                let lines = self.ledger(|ledger| {
                    let lines = ledger.iter().map(|charge| json!(charge).to_string() + "\n");
                    lines.collect::<String>()
                });
                text(StatusCode::OK, lines)
            }
            _ => text(StatusCode::NOT_FOUND, "there are POST /charges and GET /ledger\n"),
        }
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

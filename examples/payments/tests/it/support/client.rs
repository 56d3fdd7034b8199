use std::{net::SocketAddr, time::Instant};

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;
use tokio::time::sleep;

use super::{Node, PATIENCE, PAUSE, World};

/// An answer of the application.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) replayed: bool,
}

/// Headers that are said anew with each answer: when it was sent, what Onceward did, until when that can be
/// had, and that nobody between may keep a replay.
const ANEW: [&str; 5] =
    ["date", "onceward-outcome", "idempotent-replayed", "idempotency-expires", "cache-control"];

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The error code, if it is one of Onceward's.
    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    /// Nobody knows what became of it, and that is said.
    pub(crate) fn is_unknown(&self) -> bool {
        self.status == 409 && self.code() == "idempotency_outcome_unknown"
    }

    pub(crate) fn is_in_progress(&self) -> bool {
        self.status == 409 && self.code() == "idempotency_key_in_progress"
    }

    /// Not to be tried again.
    fn is_settled(&self) -> bool {
        self.status < 500 && !self.is_in_progress()
    }

    /// What does not change from one answer to the next.
    pub(crate) fn bytes(&self) -> (u16, HeaderMap, &Bytes) {
        let mut headers = self.headers.clone();
        for name in ANEW {
            headers.remove(name);
        }
        (self.status, headers, &self.body)
    }

    pub(crate) fn id(&self) -> String {
        self.json()["id"].as_str().expect("an id").to_owned()
    }
}

impl World {
    /// Sends a request once. None if there was no whole answer.
    pub(crate) async fn post(
        &self,
        address: SocketAddr,
        path: &str,
        key: Option<&str>,
        body: &Value,
    ) -> Option<Answer> {
        let post = self.client.post(format!("http://{address}{path}"));
        let post = post.header("authorization", "Bearer sk_test_123");
        let post = match key {
            Some(key) => post.header("idempotency-key", key),
            None => post,
        };
        let body = serde_json::to_vec(body).expect("JSON");
        let post = post.header("content-type", "application/json").body(body);
        let response = post.send().await.ok()?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let replayed = headers.contains_key("idempotent-replayed");
        let body = response.bytes().await.ok()?;
        Some(Answer { status, headers, body, replayed })
    }

    pub(crate) async fn get(&self, node: &Node, path: &str) -> Value {
        let get = self.client.get(format!("http://{}{path}", node.address())).send().await;
        let body = get.expect("an answer").bytes().await.expect("a body");
        serde_json::from_slice(&body).expect("JSON")
    }

    /// What a good client does: the same request under the same key, until it is answered for good.
    /// An application that has died is started again.
    pub(crate) async fn settle(&self, node: &Node, path: &str, key: &str, body: &Value) -> Answer {
        let begun = Instant::now();
        let mut last = None;
        while begun.elapsed() < PATIENCE {
            match self.post(node.address(), path, Some(key), body).await {
                Some(answer) if answer.is_settled() => return answer,
                Some(answer) => last = Some(answer),
                None => node.revive(),
            }
            sleep(PAUSE).await;
        }
        panic!("{path} under {key} was never settled: {last:?}");
    }

    /// Creates a payment of this reference, under a key that belongs to it.
    pub(crate) async fn pay(&self, node: &Node, reference: &str) -> Answer {
        let key = format!("key-of-the-payment-{reference}");
        self.settle(node, "/payments", &key, &super::order(reference)).await
    }
}

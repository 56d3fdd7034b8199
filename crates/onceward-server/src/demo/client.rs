//! What a customer's program would do: send a charge, with or without a key.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header::AUTHORIZATION};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::json;

use super::bank::Charge;

/// Alice's credential: keys are hers alone.
pub(super) const CREDENTIAL: &str = "Bearer alice-secret";

#[derive(Clone)]
pub(super) struct Client(HttpClient<HttpConnector, Full<Bytes>>);

/// An answer, as far as the story looks at it.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Received {
    pub(super) fn is_replay(&self) -> bool {
        self.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
    }

    /// Whether a client would see the same: status, body and what kind of body it is.
    pub(super) fn is_same_as(&self, other: &Received) -> bool {
        let kind = |received: &Received| received.headers.get("content-type").cloned();
        self.status == other.status && self.body == other.body && kind(self) == kind(other)
    }

    /// The status, and the code of a rejection.
    pub(super) fn summary(&self) -> String {
        let document: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        match document.get("code").and_then(|code| code.as_str()) {
            Some(code) => format!("{} {code}", self.status.as_u16()),
            None => self.status.as_u16().to_string(),
        }
    }
}

impl Client {
    pub(super) fn new() -> Self {
        let mut client = HttpClient::builder(TokioExecutor::new());
        Client(client.retry_canceled_requests(false).pool_max_idle_per_host(0).build_http())
    }

    /// Asks for a charge.
    pub(super) async fn charge(
        &self,
        to: SocketAddr,
        key: Option<&str>,
        amount: u64,
    ) -> Result<Received> {
        let charge = json!(Charge { account: "alice".to_owned(), amount });
        let mut request = Request::post(format!("http://{to}/charges"))
            .header(AUTHORIZATION, CREDENTIAL)
            .header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        self.send(request.body(Full::from(charge.to_string()))?).await
    }

    /// The same by somebody who has time: an attempt at work is waited for.
    pub(super) async fn charge_patiently(
        &self,
        to: SocketAddr,
        key: &str,
        amount: u64,
    ) -> Result<Received> {
        let charge = json!(Charge { account: "alice".to_owned(), amount });
        let request = Request::post(format!("http://{to}/charges"))
            .header(AUTHORIZATION, CREDENTIAL)
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .header("prefer", "wait=10");
        self.send(request.body(Full::from(charge.to_string()))?).await
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Received> {
        let response = self.0.request(request).await.context("no answer came")?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.context("the answer was cut off")?.to_bytes();
        Ok(Received { status: parts.status, headers: parts.headers, body })
    }
}

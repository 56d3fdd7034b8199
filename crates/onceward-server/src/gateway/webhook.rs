//! What providers tell by themselves: signed messages about operations.
//!
//! `Onceward-Signature: t=SECONDS,v1=HEX`, where HEX is the HMAC-SHA256 of `SECONDS.BODY`. Nothing of a
//! message is looked at before its signature holds.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{
    HeaderMap, HeaderValue, Method, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
    request::Parts,
};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use onceward::{
    Key, LookupKey, Reply, Scope, Store, observe,
    record::{Record, RecordId, State},
    reply::ReplyBody,
    store::{Proof, Resolution, Resolve, Resolved, StoreError},
};
use serde_json::Value;
use sha2::Sha256;
use tokio::time::timeout;
use tracing::{info, warn};

use super::{GatewayBody, bare};
use crate::config::{About, ReplyStatus, WebhookSettings};

/// Where messages go.
const PATH: &str = "/.onceward/webhooks/";

/// No message is larger.
const BODY_MAX: usize = 1 << 20;

/// The providers that may tell, and the store that is told.
pub(crate) struct Webhooks {
    store: Arc<dyn Store>,
    lookup_key: Option<LookupKey>,
    all: Vec<WebhookSettings>,
}

/// What a message says.
enum Said {
    Completed(Reply),
    NotExecuted,
    Nothing,
}

impl Webhooks {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        lookup_key: Option<LookupKey>,
        all: Vec<WebhookSettings>,
    ) -> Self {
        Webhooks { store, lookup_key, all }
    }

    /// Whether a request is for us. Without webhooks no path is.
    pub(super) fn takes(&self, parts: &Parts) -> bool {
        !self.all.is_empty() && parts.uri.path().starts_with(PATH)
    }

    pub(super) async fn answer(
        &self,
        parts: &Parts,
        body: Incoming,
        time_max: Duration,
    ) -> Response<GatewayBody> {
        let name = parts.uri.path().strip_prefix(PATH).unwrap_or_default();
        let Some(webhook) = self.all.iter().find(|webhook| webhook.name == name) else {
            return bare(StatusCode::NOT_FOUND);
        };
        if parts.method != Method::POST {
            return bare(StatusCode::METHOD_NOT_ALLOWED);
        }
        let body = match timeout(time_max, Limited::new(body, BODY_MAX).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) => return bare(StatusCode::PAYLOAD_TOO_LARGE),
            Err(_) => return bare(StatusCode::REQUEST_TIMEOUT),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if !is_signed(webhook, &parts.headers, &body, now) {
            warn!(webhook = name, "a message that is not signed, or is too old, was refused");
            return bare(StatusCode::UNAUTHORIZED);
        }
        let Ok(message) = serde_json::from_slice::<Value>(&body) else {
            return bare(StatusCode::BAD_REQUEST);
        };
        let Some(id) = self.id_of(webhook, &message) else { return bare(StatusCode::NOT_FOUND) };
        let told = match said(webhook, &message, &body) {
            Said::Nothing => return bare(StatusCode::OK),
            told => told,
        };
        match self.tell(webhook, &id, told).await {
            Ok(status) if status == StatusCode::CONFLICT => later(status),
            Ok(status) => bare(status),
            Err(error) => {
                warn!(%error, webhook = name, "a message could not be kept");
                later(StatusCode::SERVICE_UNAVAILABLE)
            }
        }
    }

    fn id_of(&self, webhook: &WebhookSettings, message: &Value) -> Option<RecordId> {
        let text = |pointer: &str| message.pointer(pointer)?.as_str();
        match &webhook.about {
            About::Operation(at) => RecordId::from_handle(text(at)?),
            About::Key { scope, key } => {
                let key = Key::new(text(key)?).ok()?;
                let key = match &self.lookup_key {
                    Some(lookup) => lookup.stored_unless_it_is(&key),
                    None => key,
                };
                Some(RecordId { scope: Scope::new(text(scope)?).ok()?, key })
            }
        }
    }

    /// A provider that signs is believed. What it told before, it may tell again.
    async fn tell(
        &self,
        webhook: &WebhookSettings,
        id: &RecordId,
        told: Said,
    ) -> Result<StatusCode, StoreError> {
        let Some(record) = self.store.load(id).await? else { return Ok(StatusCode::NOT_FOUND) };
        let resolution = match told {
            Said::Completed(reply) => Resolution::Complete(reply),
            Said::NotExecuted => Resolution::Release(Proof::Authoritative),
            Said::Nothing => return Ok(StatusCode::OK),
        };
        let completes = match &resolution {
            Resolution::Complete(reply) => Some(reply.status),
            _ => None,
        };
        // Nobody has begun, or somebody is at it: what is told may be about an earlier attempt.
        if record.state == State::Pending || record.state == State::InProgress {
            return Ok(StatusCode::CONFLICT);
        }
        let resolve = Resolve {
            id: id.clone(),
            generation: record.generation,
            fence: record.fence,
            resolution,
            reason: format!("webhook {}: a signed message", webhook.name).into(),
        };
        Ok(match self.store.resolve(resolve).await? {
            Resolved::Applied(record) => {
                info!(webhook = webhook.name, route = &*record.route, "an outcome was told");
                StatusCode::OK
            }
            Resolved::Absent => StatusCode::NOT_FOUND,
            Resolved::TooEarly { .. } => StatusCode::CONFLICT,
            Resolved::Refused(now) => {
                if contradicts(&now, completes) {
                    observe::incident(&now.route);
                    warn!(
                        webhook = webhook.name,
                        route = &*now.route,
                        "told otherwise than stored"
                    );
                }
                match now.state {
                    State::Unknown | State::InProgress => StatusCode::CONFLICT,
                    _ => StatusCode::OK,
                }
            }
        })
    }
}

fn contradicts(now: &Record, told: Option<StatusCode>) -> bool {
    let stands = now.reply.as_ref().map(|reply| reply.status);
    now.state == State::Completed && stands != told
}

/// Compared in constant time. The time is part of what is signed.
fn is_signed(webhook: &WebhookSettings, headers: &HeaderMap, body: &[u8], now: u64) -> bool {
    let mut lines = headers.get_all("onceward-signature").iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return false };
    let Ok(line) = line.to_str() else { return false };
    let part = |name: &str| line.split(',').find_map(|part| part.trim().strip_prefix(name));
    let (Some(time), Some(signature)) = (part("t="), part("v1=")) else { return false };
    let (Ok(at), Some(signature)) = (time.parse::<u64>(), from_hex(signature)) else {
        return false;
    };
    if now.abs_diff(at) > webhook.tolerance.as_secs() {
        return false;
    }
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&webhook.secret) else { return false };
    mac.update(time.as_bytes());
    mac.update(b".");
    mac.update(body);
    mac.verify_slice(&signature).is_ok()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() != 64 {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let pairs = text.as_bytes().chunks_exact(2);
    pairs.map(|pair| Some(digit(pair[0])? * 16 + digit(pair[1])?)).collect()
}

fn said(webhook: &WebhookSettings, message: &Value, body: &Bytes) -> Said {
    let outcome = match message.pointer(&webhook.outcome) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => return Said::Nothing,
    };
    if webhook.not_executed.contains(&outcome) {
        return Said::NotExecuted;
    }
    if !webhook.completed.contains(&outcome) {
        return Said::Nothing;
    }
    reply(webhook, message, body).map_or(Said::Nothing, Said::Completed)
}

fn reply(webhook: &WebhookSettings, message: &Value, body: &Bytes) -> Option<Reply> {
    let status = match &webhook.reply_status {
        ReplyStatus::Is(status) => *status,
        ReplyStatus::At(at) => u16::try_from(message.pointer(at.as_str())?.as_u64()?).ok()?,
    };
    let status = Some(status).filter(|status| (200..600).contains(status))?;
    let body = match &webhook.reply_body {
        None => body.clone(),
        Some(at) => serde_json::to_vec(message.pointer(at)?).ok()?.into(),
    };
    Some(Reply {
        status: StatusCode::from_u16(status).ok()?,
        headers: vec![(CONTENT_TYPE, HeaderValue::from_static("application/json"))],
        body: ReplyBody::Stored(body),
        schema_version: None,
    })
}

/// The provider is to come again.
fn later(status: StatusCode) -> Response<GatewayBody> {
    let mut response = bare(status);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("30"));
    response
}

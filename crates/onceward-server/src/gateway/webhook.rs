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
    header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER},
    request::Parts,
};
use http_body::Body as _;
use hyper::body::Incoming;
use onceward::{
    Key, LookupKey, ProviderId, Reply, Scope, Store, observe,
    record::{AttemptId, Fence, ProviderNote, Record, RecordId, State},
    reply::ReplyBody,
    store::{Proof, Resolution, Resolve, Resolved, StoreError},
    tower::{Collected, Consent, collect, early},
};
use serde_json::value::RawValue;
use sha2::Sha256;
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::{Budget, GatewayBody, Room, bare, busy, part};
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

/// What a message is about.
struct Subject {
    id: RecordId,
    /// The use of the key, and the attempt, that had the provider id which the message names.
    noted: Option<ProviderNote>,
}

/// What a message says, and of which attempt.
enum Said {
    Completed(Option<AttemptId>, Reply),
    NotExecuted(AttemptId),
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
        budget: &Budget,
        time_max: Duration,
    ) -> Response<GatewayBody> {
        let name = parts.uri.path().strip_prefix(PATH).unwrap_or_default();
        let refuse =
            async |body, response| early(parts.version, body, Consent::of(parts), response).await;
        let Some(webhook) = self.all.iter().find(|webhook| webhook.name == name) else {
            return refuse(body, bare(StatusCode::NOT_FOUND)).await;
        };
        if parts.method != Method::POST {
            return refuse(body, bare(StatusCode::METHOD_NOT_ALLOWED)).await;
        }
        if body.size_hint().lower() > BODY_MAX as u64 {
            return refuse(body, bare(StatusCode::PAYLOAD_TOO_LARGE)).await;
        }
        let Some(room) = budget.take(&body, BODY_MAX) else { return refuse(body, busy()).await };
        let body = match timeout(time_max, collect(body, BODY_MAX)).await {
            Ok(Collected::Whole(body, _)) => body,
            Ok(Collected::TooLarge(_, rest)) => {
                let too_large = bare(StatusCode::PAYLOAD_TOO_LARGE);
                return early(parts.version, rest, Consent::Given, too_large).await;
            }
            Ok(Collected::Broken) => return closing(StatusCode::BAD_REQUEST),
            Err(_) => return closing(StatusCode::REQUEST_TIMEOUT),
        };
        self.heard(webhook, &parts.headers, &body, room).await
    }

    /// A whole message, which takes room until it is answered.
    async fn heard(
        &self,
        webhook: &WebhookSettings,
        headers: &HeaderMap,
        body: &Bytes,
        _room: Room,
    ) -> Response<GatewayBody> {
        let name = &*webhook.name;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if !is_signed(webhook, headers, body, now) {
            warn!(webhook = name, "a message that is not signed, or is too old, was refused");
            return bare(StatusCode::UNAUTHORIZED);
        }
        if serde_json::from_slice::<&RawValue>(body).is_err() {
            return bare(StatusCode::BAD_REQUEST);
        }
        match self.told(webhook, body).await {
            Ok(status) if status == StatusCode::CONFLICT => later(status),
            Ok(status) => bare(status),
            Err(error) => {
                warn!(%error, webhook = name, "a message could not be kept");
                later(StatusCode::SERVICE_UNAVAILABLE)
            }
        }
    }

    /// A message that is signed.
    async fn told(
        &self,
        webhook: &WebhookSettings,
        body: &Bytes,
    ) -> Result<StatusCode, StoreError> {
        let Some(subject) = self.subject(webhook, body).await? else {
            return Ok(StatusCode::NOT_FOUND);
        };
        match said(webhook, body) {
            Some(Said::Nothing) => Ok(StatusCode::OK),
            Some(Said::Completed(attempt, reply)) => {
                self.completed(webhook, &subject, attempt, reply).await
            }
            Some(Said::NotExecuted(attempt)) => {
                self.not_executed(webhook, &subject.id, attempt).await
            }
            None => {
                let name = &*webhook.name;
                warn!(webhook = name, "a message does not have what the configuration points to");
                Ok(StatusCode::UNPROCESSABLE_ENTITY)
            }
        }
    }

    async fn subject(
        &self,
        webhook: &WebhookSettings,
        body: &[u8],
    ) -> Result<Option<Subject>, StoreError> {
        let About::ProviderId { provider, id } = &webhook.about else {
            return Ok(self.id_of(webhook, body).map(|id| Subject { id, noted: None }));
        };
        let told = part::word(body, id).and_then(|id| ProviderId::new(&**provider, id).ok());
        let Some(told) = told else { return Ok(None) };
        let noted = self.store.by_provider_id(&told).await?;
        if noted.is_none() {
            // It may be noted in a moment: providers are fast.
            warn!(webhook = webhook.name, "a message names a provider id that no operation has");
        }
        Ok(noted.map(|noted| Subject { id: noted.record.clone(), noted: Some(noted) }))
    }

    fn id_of(&self, webhook: &WebhookSettings, body: &[u8]) -> Option<RecordId> {
        match &webhook.about {
            About::Operation(at) => RecordId::from_handle(&part::text(body, at)?),
            About::Key { scope, key } => {
                let key = Key::new(&*part::text(body, key)?).ok()?;
                let key = match &self.lookup_key {
                    Some(lookup) => lookup.stored_unless_it_is(&key),
                    None => key,
                };
                Some(RecordId { scope: Scope::new(&*part::text(body, scope)?).ok()?, key })
            }
            About::ProviderId { .. } => None,
        }
    }

    /// The record, if it is of a route that this provider may tell about.
    async fn load(
        &self,
        webhook: &WebhookSettings,
        id: &RecordId,
    ) -> Result<Option<Record>, StoreError> {
        let Some(record) = self.store.load(id).await? else { return Ok(None) };
        if webhook.routes.iter().any(|route| **route == *record.route) {
            return Ok(Some(record));
        }
        warn!(
            webhook = webhook.name,
            route = &*record.route,
            "a message about a route that is none of the webhook's was refused"
        );
        Ok(None)
    }

    /// A provider that signs is believed about the attempt that it names, and about no other: a message
    /// may come late, or again.
    async fn not_executed(
        &self,
        webhook: &WebhookSettings,
        id: &RecordId,
        attempt: AttemptId,
    ) -> Result<StatusCode, StoreError> {
        let Some(record) = self.load(webhook, id).await? else { return Ok(StatusCode::NOT_FOUND) };
        if record.attempt != attempt {
            info!(webhook = webhook.name, route = &*record.route, "told about an earlier attempt");
            return Ok(StatusCode::OK);
        }
        let (generation, fence) = (record.generation, record.fence);
        let resolution = Resolution::Release(Proof::Authoritative);
        self.tell(webhook, id, (generation, fence, attempt), resolution).await
    }

    async fn completed(
        &self,
        webhook: &WebhookSettings,
        subject: &Subject,
        attempt: Option<AttemptId>,
        reply: Reply,
    ) -> Result<StatusCode, StoreError> {
        let Subject { id, noted } = subject;
        let Some(record) = self.load(webhook, id).await? else { return Ok(StatusCode::NOT_FOUND) };
        let attempt = match (attempt, noted) {
            (Some(attempt), _) => attempt,
            (None, Some(noted)) => noted.attempt,
            (None, None) if record.generation > 1 => {
                warn!(
                    webhook = webhook.name,
                    route = &*record.route,
                    "a message without an attempt may be about an earlier use of the key"
                );
                return Ok(StatusCode::UNPROCESSABLE_ENTITY);
            }
            // Nobody has begun, or somebody is at it: it may be about an earlier attempt.
            (None, None) if matches!(record.state, State::Pending | State::InProgress) => {
                return Ok(StatusCode::CONFLICT);
            }
            (None, None) => record.attempt,
        };
        let noted = noted.as_ref().filter(|noted| noted.attempt == attempt);
        let grant = match noted {
            Some(noted) => Some((noted.generation, noted.fence)),
            None => self.grant_of(&record, attempt).await?,
        };
        let Some((generation, fence)) = grant else {
            warn!(webhook = webhook.name, route = &*record.route, "told about an unknown attempt");
            return Ok(StatusCode::OK);
        };
        let resolution = Resolution::Executed { attempt, reply };
        self.tell(webhook, id, (generation, fence, attempt), resolution).await
    }

    /// Which use of the key an attempt belongs to, and the fence that it had, as far as is known.
    async fn grant_of(
        &self,
        record: &Record,
        attempt: AttemptId,
    ) -> Result<Option<(u32, Fence)>, StoreError> {
        if record.attempt == attempt || record.generation == 1 {
            return Ok(Some((record.generation, record.fence)));
        }
        let audit = self.store.audit(&record.id).await?;
        let known = audit.iter().find(|it| it.attempt == attempt);
        Ok(known.map(|it| (it.generation, it.fence)))
    }

    async fn tell(
        &self,
        webhook: &WebhookSettings,
        id: &RecordId,
        (generation, fence, attempt): (u32, Fence, AttemptId),
        resolution: Resolution,
    ) -> Result<StatusCode, StoreError> {
        let reason = format!("webhook {}: a signed message", webhook.name).into();
        let resolve = Resolve { id: id.clone(), generation, fence, resolution, reason };
        let resolved = self.store.resolve(resolve.clone()).await?;
        if observe::resolved(&resolve, &resolved)
            && let Resolved::Applied(record) | Resolved::Refused(record) = &resolved
        {
            let (webhook, route) = (&*webhook.name, &*record.route);
            error!(webhook, route, "told otherwise than was known; both are kept");
        }
        Ok(match resolved {
            Resolved::Applied(record) => {
                info!(webhook = webhook.name, route = &*record.route, "an outcome was told");
                StatusCode::OK
            }
            Resolved::Absent => StatusCode::NOT_FOUND,
            Resolved::TooEarly { .. } => StatusCode::CONFLICT,
            // It is still at it.
            Resolved::Refused(now) if now.attempt == attempt && is_open(now.state) => {
                StatusCode::CONFLICT
            }
            Resolved::Refused(_) => StatusCode::OK,
        })
    }
}

fn is_open(state: State) -> bool {
    matches!(state, State::Pending | State::InProgress | State::Unknown)
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

/// `None` when a message that says something does not say all that is needed.
fn said(webhook: &WebhookSettings, body: &Bytes) -> Option<Said> {
    let Some(outcome) = part::word(body, &webhook.outcome) else { return Some(Said::Nothing) };
    let attempt = || match &webhook.attempt {
        None => Some(None),
        Some(at) => AttemptId::from_text(&part::text(body, at)?).map(Some),
    };
    if webhook.not_executed.contains(&outcome) {
        return attempt()?.map(Said::NotExecuted);
    }
    if !webhook.completed.contains(&outcome) {
        return Some(Said::Nothing);
    }
    Some(Said::Completed(attempt()?, reply(webhook, body)?))
}

fn reply(webhook: &WebhookSettings, body: &Bytes) -> Option<Reply> {
    let status = match &webhook.reply_status {
        ReplyStatus::Is(status) => *status,
        ReplyStatus::At(at) => part::status(body, at.as_str())?,
    };
    let status = Some(status).filter(|status| (200..600).contains(status))?;
    let body = match &webhook.reply_body {
        None => body.clone(),
        Some(at) => part::bytes(body, at)?,
    };
    Some(Reply {
        status: StatusCode::from_u16(status).ok()?,
        headers: vec![(CONTENT_TYPE, HeaderValue::from_static("application/json"))],
        body: ReplyBody::Stored(body),
        schema_version: None,
    })
}

/// The message never came as a whole.
fn closing(status: StatusCode) -> Response<GatewayBody> {
    let mut response = bare(status);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The provider is to come again.
fn later(status: StatusCode) -> Response<GatewayBody> {
    let mut response = bare(status);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("30"));
    response
}

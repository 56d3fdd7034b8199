//! The admin API: `/api/v1`. One table of endpoints, from which requests are answered and the OpenAPI
//! document is made.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt as _, Full, Limited, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use onceward::{Canary, Key, LookupKey, OutboxStore, Store, record::RecordId};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::timeout;

use super::access::{Access, Who};
use crate::{gateway::Shadow, traffic::Traffic};

mod erase; // what was sealed for one scope
mod keys; // list, show, export, audit, stats
mod messages; // of the outbox
mod openapi; // the document
mod plans; // many at once: first a plan
mod problem; // refusals
mod query; // parameters
mod regression; // a store that has lost data
mod resolve; // one record: resolve, release, void
pub(crate) mod types; // what goes over the wire

pub(crate) use openapi::document;
use plans::Plans;
pub(crate) use problem::Problem;
pub(crate) use query::Filter;
use query::{FILTER, Parameters};
pub(crate) use regression::{AcknowledgeRequest, RegressionView};
use types::{
    Applied, ApplyRequest, AuditPageView, Changed, ErasureRequest, ErasureView, KeyDetail, KeyPage,
    MessageChanged, MessageDetail, MessagePage, MessageRequest, PlanRequest, PlanView,
    RedriveRequest, ReleaseRequest, ResolveRequest, ShadowView, StatsView, TrafficView,
    VoidRequest,
};

/// The body of an answer: whole, or a stream.
pub(crate) type ApiBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// The body of a request holds at most a reply.
const BODY_BYTES_MAX: usize = 2 << 20;

/// A client has this long to send it.
const BODY_TIME_MAX: Duration = Duration::from_secs(10);

const PREFIX: &str = "/api/v1";

/// What the API answers with.
#[derive(Clone)]
pub(crate) struct Api(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    /// If the store has one.
    outbox: Option<Arc<dyn OutboxStore>>,
    canary: Arc<Canary>,
    /// Keys are stored as their HMAC.
    lookup_key: Option<LookupKey>,
    access: Access,
    plans: Plans,
    traffic: Traffic,
    shadow: Arc<Shadow>,
}

/// One thing that can be asked for.
struct Endpoint {
    method: Method,
    /// Behind the prefix; `{}` stands for one segment.
    path: &'static str,
    operation: Operation,
    summary: &'static str,
    parameters: &'static [&'static str],
    request: Option<&'static str>,
    /// The type of the answer and its schema.
    answer: (&'static str, &'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    ListKeys,
    ShowKey,
    ResolveKey,
    ReleaseKey,
    VoidKey,
    RedriveKey,
    ListMessages,
    ShowMessage,
    RedriveMessage,
    DiscardMessage,
    MakePlan,
    ApplyPlan,
    Export,
    Stats,
    Audit,
    Traffic,
    Shadow,
    Erase,
    ShowRegression,
    AcknowledgeRegression,
    Document,
}

const JSON: &str = "application/json";

const LIST: [&str; 17] = {
    let mut names = [""; 17];
    let own = ["sort", "order", "after", "limit", "provider_id"];
    let mut index = 0;
    while index < own.len() {
        names[index] = own[index];
        index += 1;
    }
    index = 0;
    while index < FILTER.len() {
        names[index + own.len()] = FILTER[index];
        index += 1;
    }
    names
};
const MESSAGES: [&str; 5] = ["state", "sink", "older_than", "after", "limit"];
const AUDIT: [&str; 6] = ["event", "scope", "from", "before", "after", "limit"];

const fn get(
    path: &'static str,
    operation: Operation,
    summary: &'static str,
    parameters: &'static [&'static str],
    answer: (&'static str, &'static str),
) -> Endpoint {
    Endpoint { method: Method::GET, path, operation, summary, parameters, request: None, answer }
}

const fn post(
    path: &'static str,
    operation: Operation,
    summary: &'static str,
    request: &'static str,
    answer: &'static str,
) -> Endpoint {
    let (method, request) = (Method::POST, Some(request));
    Endpoint { method, path, operation, summary, parameters: &[], request, answer: (JSON, answer) }
}

static ENDPOINTS: [Endpoint; 21] = [
    get("/keys", Operation::ListKeys, "Lists records", &LIST, (JSON, "KeyPage")),
    get("/keys/{}", Operation::ShowKey, "Shows a record and its past", &[], (JSON, "KeyDetail")),
    post(
        "/keys/{}/resolve",
        Operation::ResolveKey,
        "Says what had happened behind an unknown record",
        "ResolveRequest",
        "Changed",
    ),
    post(
        "/keys/{}/release",
        Operation::ReleaseKey,
        "Says that an unknown record did not act",
        "ReleaseRequest",
        "Changed",
    ),
    post(
        "/keys/{}/void",
        Operation::VoidKey,
        "Withdraws the reply of a completed record",
        "VoidRequest",
        "Changed",
    ),
    post(
        "/keys/{}/redrive",
        Operation::RedriveKey,
        "Has an unknown record asked about at once, be it a dead letter or not",
        "RedriveRequest",
        "Changed",
    ),
    get(
        "/messages",
        Operation::ListMessages,
        "Lists messages of the outbox, in the order in which they were staged",
        &MESSAGES,
        (JSON, "MessagePage"),
    ),
    get("/messages/{}", Operation::ShowMessage, "Shows a message", &[], (JSON, "MessageDetail")),
    post(
        "/messages/{}/redrive",
        Operation::RedriveMessage,
        "Has a dead letter delivered anew",
        "MessageRequest",
        "MessageChanged",
    ),
    post(
        "/messages/{}/discard",
        Operation::DiscardMessage,
        "Deletes a dead letter, and lets go what waited behind it",
        "MessageRequest",
        "MessageChanged",
    ),
    post(
        "/plans",
        Operation::MakePlan,
        "Plans a change of many records, or of many dead letters of the outbox",
        "PlanRequest",
        "PlanView",
    ),
    post("/plans/{}/apply", Operation::ApplyPlan, "Applies a plan", "ApplyRequest", "Applied"),
    get(
        "/export",
        Operation::Export,
        "All records of a filter, one JSON document for each line",
        &FILTER,
        ("application/jsonl", "KeyRecord"),
    ),
    get("/stats", Operation::Stats, "Counts records by state", &[], (JSON, "StatsView")),
    get("/audit", Operation::Audit, "Lists audit records", &AUDIT, (JSON, "AuditPageView")),
    get(
        "/traffic",
        Operation::Traffic,
        "What was passed on without protection",
        &[],
        (JSON, "TrafficView"),
    ),
    get(
        "/shadow",
        Operation::Shadow,
        "What protection would have done on shadow routes, the latest last",
        &[],
        (JSON, "ShadowView"),
    ),
    post(
        "/erasures",
        Operation::Erase,
        "Erases what was sealed for a scope; without a hash it only says what that would be",
        "ErasureRequest",
        "ErasureView",
    ),
    get(
        "/regression",
        Operation::ShowRegression,
        "Whether the store has lost data that it had acknowledged",
        &[],
        (JSON, "RegressionView"),
    ),
    post(
        "/regression/acknowledge",
        Operation::AcknowledgeRegression,
        "Lets keys run again although the store has lost data",
        "AcknowledgeRequest",
        "RegressionView",
    ),
    get("/openapi.json", Operation::Document, "This document", &[], (JSON, "")),
];

impl Api {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        outbox: Option<Arc<dyn OutboxStore>>,
        canary: Arc<Canary>,
        lookup_key: Option<LookupKey>,
        access: Access,
        traffic: Traffic,
        shadow: Arc<Shadow>,
    ) -> Self {
        let plans = Plans::default();
        Api(Arc::new(Inner { store, outbox, canary, lookup_key, access, plans, traffic, shadow }))
    }

    /// The handle of a record, whichever form of its key it was made of.
    fn stored_handle(&self, handle: String) -> String {
        let id = RecordId::from_handle(&handle);
        let (Some(lookup), Some(mut id)) = (&self.0.lookup_key, id) else { return handle };
        id.key = lookup.stored_unless_it_is(&id.key);
        id.handle()
    }

    /// The same filter, by the key as it is stored.
    fn stored_filter(&self, mut filter: Filter) -> Filter {
        let key = filter.key.as_deref().and_then(|key| Key::new(key).ok());
        if let (Some(lookup), Some(key)) = (&self.0.lookup_key, key) {
            filter.key = Some(lookup.stored_unless_it_is(&key).as_str().to_owned());
        }
        filter
    }

    fn outbox(&self) -> Result<&dyn OutboxStore, Problem> {
        self.0.outbox.as_deref().ok_or_else(messages::no_outbox)
    }

    async fn decide(
        &self,
        id: String,
        decision: messages::Decision,
        who: Who,
        asked: MessageRequest,
    ) -> Result<Response<ApiBody>, Problem> {
        let api = self.clone();
        detached(async move { messages::decide(api.outbox()?, &id, decision, asked, &who).await })
            .await
    }

    /// Whether this path is ours.
    pub(crate) fn has(path: &str) -> bool {
        path.strip_prefix(PREFIX).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Whether the request carries a token.
    pub(crate) fn admits(&self, parts: &Parts) -> Result<Who, Problem> {
        self.0.access.check(parts)
    }

    /// Whether the request may have come from somebody who needs no token.
    pub(crate) fn admits_probe(&self, parts: &Parts) -> Result<(), Problem> {
        self.0.access.check_probe(parts)
    }

    /// Answers one request.
    ///
    /// A change that was begun goes on when its client hangs up.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<ApiBody> {
        match self.route(request).await {
            Ok(response) => response,
            Err(problem) => problem.into_response().map(whole),
        }
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Response<ApiBody>, Problem> {
        let (parts, body) = request.into_parts();
        // Before anything is told about what is there.
        let who = self.admits(&parts)?;
        let path = parts.uri.path().strip_prefix(PREFIX).unwrap_or_default();
        let there: Vec<(&Endpoint, Option<&str>)> = ENDPOINTS
            .iter()
            .filter_map(|endpoint| Some((endpoint, segment(endpoint.path, path)?)))
            .collect();
        if there.is_empty() {
            return Err(Problem::not_found("There is nothing here; see /api/v1/openapi.json."));
        }
        // HEAD is a GET without its body, which hyper leaves out.
        let method = if parts.method == Method::HEAD { &Method::GET } else { &parts.method };
        let Some((endpoint, id)) = there.iter().find(|(it, _)| it.method == *method) else {
            let allowed = there.iter().map(|(it, _)| it.method.as_str());
            return Err(Problem::method_not_allowed(allowed.collect::<Vec<_>>().join(", ")));
        };
        let parameters = Parameters::read(parts.uri.query(), endpoint.parameters)?;
        let id = self.stored_handle(id.unwrap_or_default().to_owned());
        self.run(endpoint, id, parameters, who, &parts, body).await
    }

    async fn run(
        &self,
        endpoint: &Endpoint,
        id: String,
        parameters: Parameters,
        who: Who,
        parts: &Parts,
        body: Incoming,
    ) -> Result<Response<ApiBody>, Problem> {
        let api = self.clone();
        let store = &*self.0.store;
        match endpoint.operation {
            Operation::ListKeys => {
                let query = parameters.query(self.stored_filter(parameters.filter()))?;
                json(&keys::list(store, query, parameters.provider_id()?).await?)
            }
            Operation::ShowKey => json(&keys::show(store, &id).await?),
            Operation::Export => {
                let query = self.stored_filter(parameters.filter()).query()?;
                Ok(keys::export(Arc::clone(&self.0.store), query))
            }
            Operation::Stats => json(&StatsView::from(store.stats().await?)),
            Operation::Audit => json(&keys::audit(store, parameters.audit_query()?).await?),
            Operation::Traffic => json(&self.0.traffic.seen()),
            Operation::Shadow => json(&ShadowView::from(self.0.shadow.listed())),
            Operation::Document => json(&document()),
            Operation::ShowRegression => json(&regression::show(&self.0.canary).await?),
            Operation::ResolveKey => {
                let asked: ResolveRequest = read(parts, body).await?;
                detached(async move { resolve::resolve(&*api.0.store, &id, asked, &who).await })
                    .await
            }
            Operation::ReleaseKey => {
                let asked: ReleaseRequest = read(parts, body).await?;
                detached(async move { resolve::release(&*api.0.store, &id, asked, &who).await })
                    .await
            }
            Operation::VoidKey => {
                let asked: VoidRequest = read(parts, body).await?;
                detached(async move { resolve::void(&*api.0.store, &id, asked, &who).await }).await
            }
            Operation::RedriveKey => {
                let asked: RedriveRequest = read(parts, body).await?;
                detached(async move { resolve::redrive(&*api.0.store, &id, asked, &who).await })
                    .await
            }
            Operation::ListMessages => {
                json(&messages::list(self.outbox()?, parameters.message_query()?).await?)
            }
            Operation::ShowMessage => json(&messages::show(self.outbox()?, &id).await?),
            Operation::RedriveMessage => {
                let asked = read(parts, body).await?;
                self.decide(id, messages::Decision::Redrive, who, asked).await
            }
            Operation::DiscardMessage => {
                let asked = read(parts, body).await?;
                self.decide(id, messages::Decision::Discard, who, asked).await
            }
            Operation::MakePlan => {
                let mut asked: PlanRequest = read(parts, body).await?;
                asked.filter = asked.filter.map(|filter| self.stored_filter(filter));
                json(&self.0.plans.make(store, self.outbox(), asked).await?)
            }
            Operation::Erase => {
                let asked: ErasureRequest = read(parts, body).await?;
                detached(async move { erase::erase(&*api.0.store, asked, &who).await }).await
            }
            Operation::AcknowledgeRegression => {
                let asked: AcknowledgeRequest = read(parts, body).await?;
                detached(async move {
                    let Inner { store, canary, .. } = &*api.0;
                    regression::acknowledge(&**store, canary, asked, &who).await
                })
                .await
            }
            Operation::ApplyPlan => {
                let asked: ApplyRequest = read(parts, body).await?;
                detached(async move {
                    let Inner { store, plans, .. } = &*api.0;
                    plans.apply(&**store, api.outbox(), &id, &asked.hash, &who).await
                })
                .await
            }
        }
    }
}

/// The part of the path that `{}` stands for, if the path is this one.
fn segment<'p>(template: &str, path: &'p str) -> Option<Option<&'p str>> {
    let Some((before, after)) = template.split_once("{}") else {
        return (template == path).then_some(None);
    };
    let part = path.strip_prefix(before)?.strip_suffix(after)?;
    (!part.is_empty() && !part.contains('/')).then_some(Some(part))
}

/// Runs to its end whether or not anybody waits: a change is made and audited, or is not.
async fn detached<T: Serialize + Send + 'static>(
    change: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<Response<ApiBody>, Problem> {
    let broken = |_| {
        let detail = "The change may have been made: look at the record.";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", detail)
    };
    json(&tokio::spawn(change).await.map_err(broken)??)
}

async fn read<T: DeserializeOwned>(parts: &Parts, body: Incoming) -> Result<T, Problem> {
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    if !kind.is_some_and(|kind| kind.eq_ignore_ascii_case(JSON)) {
        let detail = "Send a JSON document, with Content-Type: application/json.";
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            detail,
        ));
    }
    let collected = timeout(BODY_TIME_MAX, Limited::new(body, BODY_BYTES_MAX).collect()).await;
    let late = |_| Problem::invalid("The body did not come in time.");
    let body = collected.map_err(late)?.map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() {
            let detail = format!("A body has at most {BODY_BYTES_MAX} bytes.");
            return Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail);
        }
        Problem::invalid("The body could not be read.")
    })?;
    parse(&body.to_bytes())
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let wrong = |error| Problem::invalid(format!("The document is not as it should be: {error}."));
    let document: Value = serde_json::from_slice(body).map_err(wrong)?;
    // serde takes an array for an object whose members come in order, or do not come at all: a
    // filter without conditions.
    if has_array(&document) {
        return Err(Problem::invalid("No part of the document is an array."));
    }
    serde_json::from_value(document).map_err(wrong)
}

fn has_array(value: &Value) -> bool {
    match value {
        Value::Array(_) => true,
        Value::Object(members) => members.values().any(has_array),
        _ => false,
    }
}

fn json(value: &impl Serialize) -> Result<Response<ApiBody>, Problem> {
    let body = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(whole(body.into()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// A body that is there already.
pub(crate) fn whole(body: Bytes) -> ApiBody {
    Full::new(body).map_err(|never| match never {}).boxed_unsync()
}

#[cfg(test)]
mod tests;

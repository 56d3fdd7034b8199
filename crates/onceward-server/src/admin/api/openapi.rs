//! The OpenAPI document, made from the table of endpoints and from the types.

use serde_json::{Map, Value, json};
use utoipa::{PartialSchema, ToSchema};

use super::{
    AcknowledgeRequest, Applied, ApplyRequest, AuditPageView, Changed, ENDPOINTS, Endpoint,
    ErasureRequest, ErasureView, FILTER, JSON, KeyDetail, KeyPage, MessageChanged, MessageDetail,
    MessagePage, MessageRequest, Operation, PREFIX, PlanRequest, PlanView, RedriveRequest,
    RegressionView, ReleaseRequest, ResolveRequest, ShadowView, StatsView, TrafficView,
    VoidRequest,
    problem::ProblemDocument,
    query::{Filter, MessageFilter},
    types::KeyRecord,
};

/// What every endpoint may answer instead.
const PROBLEMS: [(u16, &str); 9] = [
    (400, "The request is not as it should be"),
    (401, "No token, or one that is not known"),
    (403, "The request comes from a page of another site"),
    (404, "There is no such thing"),
    (405, "Not with this method"),
    (409, "The record does not let this be done"),
    (413, "The body is too large"),
    (415, "The body is not JSON"),
    (503, "The store did not answer"),
];

/// The document.
pub(crate) fn document() -> Value {
    let mut paths = Map::new();
    for endpoint in &ENDPOINTS {
        let path = format!("{PREFIX}{}", endpoint.path.replace("{}", "{id}"));
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[endpoint.method.as_str().to_ascii_lowercase()] = operation(endpoint);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Onceward admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Looking at records and deciding about them. Every change is audited.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas(),
        },
    })
}

fn operation(endpoint: &Endpoint) -> Value {
    let mut responses = Map::new();
    let (kind, schema) = endpoint.answer;
    let schema = if schema.is_empty() { json!({ "type": "object" }) } else { reference(schema) };
    let done =
        json!({ "description": endpoint.summary, "content": { kind: { "schema": schema } } });
    responses.insert("200".into(), done);
    for (status, description) in PROBLEMS {
        let content = json!({ "application/problem+json": { "schema": reference("Problem") } });
        let refused = json!({ "description": description, "content": content });
        responses.insert(status.to_string(), refused);
    }
    let mut operation = json!({
        "operationId": identifier(endpoint),
        "summary": endpoint.summary,
        "parameters": parameters(endpoint),
        "responses": responses,
    });
    if let Some(request) = endpoint.request {
        operation["requestBody"] =
            json!({ "required": true, "content": { JSON: { "schema": reference(request) } } });
    }
    operation
}

/// The name of the operation: `ListKeys` is `listKeys`.
fn identifier(endpoint: &Endpoint) -> String {
    let mut name = format!("{:?}", endpoint.operation);
    if let Some(first) = name.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    name
}

fn parameters(endpoint: &Endpoint) -> Vec<Value> {
    let mut parameters = Vec::new();
    if endpoint.path.contains("{}") {
        let schema = json!({ "type": "string", "minLength": 1, "maxLength": 1024 });
        parameters.push(json!({ "name": "id", "in": "path", "required": true, "schema": schema }));
    }
    let of_messages = endpoint.operation == Operation::ListMessages;
    let filter = if of_messages { MessageFilter::schema() } else { Filter::schema() };
    let filter = serde_json::to_value(filter).unwrap_or_default();
    for name in endpoint.parameters {
        let is_of_filter =
            (of_messages || FILTER.contains(name)) && filter["properties"].get(*name).is_some();
        let mut schema =
            if is_of_filter { filter["properties"][*name].clone() } else { parameter(name) };
        // A parameter is there or is not.
        if schema["type"].is_array() {
            schema["type"] = json!("string");
        }
        let description = schema.as_object_mut().and_then(|it| it.remove("description"));
        let mut described = json!({ "name": name, "in": "query", "schema": schema });
        if let Some(description) = description {
            described["description"] = description;
        }
        parameters.push(described);
    }
    parameters
}

fn parameter(name: &str) -> Value {
    let events = onceward::record::AuditEvent::ALL.map(|event| event.name());
    let states = onceward::outbox::MessageState::ALL.map(|state| state.name());
    match name {
        "limit" => json!({ "type": "integer", "minimum": 1, "maximum": 1000, "default": 100 }),
        "sort" => json!({ "type": "string", "enum": ["created_at", "expires_at"] }),
        "order" => json!({ "type": "string", "enum": ["descending", "ascending"] }),
        "event" => json!({ "type": "string", "enum": events }),
        "state" => json!({ "type": "string", "enum": states }),
        "provider_id" => json!({
            "type": "string",
            "pattern": "^([A-Za-z0-9_.-]{1,64} )?[!-~]{1,255}$",
            "description": "What a provider calls the operation: its id, or the name of the \
                            provider, a space, and its id.",
        }),
        "from" | "before" => json!({ "type": "string", "format": "date-time" }),
        _ => json!({
            "type": "string",
            "description": "`next` of the page before, with all else as it was.",
        }),
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn schemas() -> Map<String, Value> {
    let mut all = Map::new();
    fn add<T: ToSchema>(all: &mut Map<String, Value>) {
        let mut within = Vec::new();
        T::schemas(&mut within);
        within.push((T::name().into_owned(), T::schema()));
        for (name, schema) in within {
            all.insert(name, serde_json::to_value(schema).unwrap_or_default());
        }
    }
    add::<KeyPage>(&mut all);
    add::<KeyRecord>(&mut all);
    add::<KeyDetail>(&mut all);
    add::<ResolveRequest>(&mut all);
    add::<ReleaseRequest>(&mut all);
    add::<VoidRequest>(&mut all);
    add::<RedriveRequest>(&mut all);
    add::<Changed>(&mut all);
    add::<MessagePage>(&mut all);
    add::<MessageDetail>(&mut all);
    add::<MessageRequest>(&mut all);
    add::<MessageChanged>(&mut all);
    add::<PlanRequest>(&mut all);
    add::<PlanView>(&mut all);
    add::<ApplyRequest>(&mut all);
    add::<Applied>(&mut all);
    add::<StatsView>(&mut all);
    add::<AuditPageView>(&mut all);
    add::<TrafficView>(&mut all);
    add::<ShadowView>(&mut all);
    add::<ErasureRequest>(&mut all);
    add::<ErasureView>(&mut all);
    add::<AcknowledgeRequest>(&mut all);
    add::<RegressionView>(&mut all);
    add::<ProblemDocument>(&mut all);
    all
}

//! Looking at records.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use onceward::{
    Store,
    record::{AuditEvent, AuditRecord, ProviderId, Record, RecordId, State},
    store::list::{AuditQuery, KeyFilter, Order, PAGE_MAX, Query},
};

use super::{
    ApiBody, AuditPageView, KeyDetail, KeyPage, Problem,
    types::{AuditView, Happened, KeyRecord, ProviderIdView, ReplyView},
};
use crate::admin::time::rfc3339;

/// With a provider id, of the one record that has it.
pub(super) async fn list(
    store: &dyn Store,
    mut query: Query,
    provider_id: Option<ProviderId>,
) -> Result<KeyPage, Problem> {
    if let Some(id) = provider_id {
        let noted = store.by_provider_id(&id).await?;
        let fits = |id: &RecordId| {
            let key = match &query.key {
                None => true,
                Some(KeyFilter::Exact(key)) => id.key == *key,
                Some(KeyFilter::Prefix(prefix)) => id.key.as_str().starts_with(&**prefix),
            };
            key && query.scope.as_ref().is_none_or(|scope| *scope == id.scope)
        };
        let Some(noted) = noted.filter(|noted| fits(&noted.record)) else {
            return Ok(KeyPage { records: Vec::new(), next: None });
        };
        query.scope = Some(noted.record.scope);
        query.key = Some(KeyFilter::Exact(noted.record.key));
    }
    let page = store.list_records(query).await?;
    let next = page.next.map(|next| next.to_string());
    Ok(KeyPage { records: page.records.iter().map(KeyRecord::from).collect(), next })
}

pub(super) async fn audit(store: &dyn Store, query: AuditQuery) -> Result<AuditPageView, Problem> {
    let page = store.audit_log(query).await?;
    let next = page.next.map(|next| next.to_string());
    Ok(AuditPageView { records: page.records.iter().map(AuditView::from).collect(), next })
}

/// What a handle stands for.
pub(super) fn id_of(handle: &str) -> Result<RecordId, Problem> {
    RecordId::from_handle(handle).ok_or_else(absent)
}

pub(super) fn absent() -> Problem {
    Problem::not_found("There is no record of this id.")
}

pub(super) async fn show(store: &dyn Store, handle: &str) -> Result<KeyDetail, Problem> {
    let record = store.load(&id_of(handle)?).await?.ok_or_else(absent)?;
    let audit = store.audit(&record.id).await?;
    let provider_ids = store.provider_ids(vec![record.id.clone()]).await?;
    Ok(KeyDetail {
        provider_ids: provider_ids.iter().map(ProviderIdView::from).collect(),
        reply: record.reply.as_ref().map(ReplyView::from),
        timeline: timeline(&record, &audit),
        advice: advice(&record).to_owned(),
        record: KeyRecord::from(&record),
    })
}

/// What the record and the audit records tell, oldest first.
fn timeline(record: &Record, audit: &[AuditRecord]) -> Vec<Happened> {
    let generation = record.generation;
    let own = |event: &str, reason: Option<String>| Happened {
        at: String::new(),
        event: event.to_owned(),
        generation,
        reason,
        reply_status: None,
    };
    let mut happened = vec![(record.created_at, own("created", None))];
    if record.attempts > 0 {
        let attempt = format!("attempt {} of this generation", record.attempts);
        happened.push((record.started_at, own("started", Some(attempt))));
    }
    for audit in audit {
        happened.push((
            audit.at,
            Happened {
                at: String::new(),
                event: audit.event.name().to_owned(),
                generation: audit.generation,
                reason: (!audit.reason.is_empty()).then(|| audit.reason.to_string()),
                reply_status: audit.reply.as_ref().map(|reply| reply.status.as_u16()),
            },
        ));
    }
    if let Some(at) = record.finished_at {
        let ended = match record.state {
            State::FailedRetryable => "failed_retryable",
            _ => "completed",
        };
        let mut ended = own(ended, record.last_error.as_deref().map(str::to_owned));
        ended.reply_status = record.reply.as_ref().map(|reply| reply.status.as_u16());
        happened.push((at, ended));
    }
    if record.state == State::Expired && !voided(audit, generation) {
        happened.push((record.expires_at, own("expired", None)));
    }
    happened.sort_by_key(|(at, _)| *at);
    happened.into_iter().map(|(at, it)| Happened { at: rfc3339(at), ..it }).collect()
}

fn voided(audit: &[AuditRecord], generation: u32) -> bool {
    audit.iter().any(|it| it.event == AuditEvent::Voided && it.generation == generation)
}

fn advice(record: &Record) -> &'static str {
    match record.state {
        State::Pending => {
            "It is executed when it is due. To give it up, resolve it as completed, with the reply that \
             its client is to get."
        }
        State::InProgress => "Nothing to do: an attempt is at work, or its lease will be swept.",
        State::Completed => "Retries get its reply. If that is wrong, void it: the next use runs.",
        State::FailedRetryable => "Nothing to do: it did not act, and a retry runs.",
        State::Unknown => {
            "Find out whether it acted, then resolve it as completed or not executed."
        }
        State::Expired => "Retention is over: retries are told so, or run as a new generation.",
    }
}

/// All records, page by page, as lines. Cut off when the store fails, so that it is not taken for
/// the whole.
pub(super) fn export(store: Arc<dyn Store>, query: Query) -> Response<ApiBody> {
    let query = Query { order: Order::Ascending, limit: PAGE_MAX, ..query };
    let pages = stream::unfold(Some(query), move |query| {
        let store = Arc::clone(&store);
        async move {
            let query = query?;
            match store.list_records(query.clone()).await {
                Ok(page) => {
                    let mut lines = Vec::new();
                    for record in &page.records {
                        // A record of ours can always be written.
                        let _ = serde_json::to_writer(&mut lines, &KeyRecord::from(record));
                        lines.push(b'\n');
                    }
                    let rest = page.next.map(|next| Query { after: Some(next), ..query });
                    Some((Ok(Bytes::from(lines)), rest))
                }
                Err(error) => Some((Err(error), None)),
            }
        }
    });
    let frames = pages.map(|page| page.map(Frame::data).map_err(Into::into));
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/jsonl"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

//! What goes over the wire. The OpenAPI document is made from these types.

use std::time::UNIX_EPOCH;

use onceward::{
    clock::Timestamp,
    record::{AuditRecord, ProviderNote, Record, State},
    reply::{Reply, ReplyBody},
    store::list::{Count, Stats},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::time::rfc3339;
use crate::gateway::Observation;

mod message; // of the outbox

pub(crate) use message::{MessageChanged, MessageDetail, MessagePage, MessageRequest, MessageView};

/// Texts of operators are words of one line.
pub(super) const TEXT_MAX: usize = 500;

/// A record as operators see it. Replies are not part of it.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct KeyRecord {
    /// Its handle, by which it is asked for.
    pub(crate) id: String,
    /// Who asked.
    pub(crate) scope: String,
    /// What the client sent.
    pub(crate) key: String,
    /// Where it stands: `pending`, `in_progress`, `completed`, `failed_retryable`, `unknown` or
    /// `expired`.
    pub(crate) state: String,
    /// Which use of the key this is.
    pub(crate) generation: u32,
    /// The fence of the last grant. A change that names it applies only if nothing moved since.
    pub(crate) fence: i64,
    /// The last attempt.
    pub(crate) attempt: String,
    /// How many attempts were granted.
    pub(crate) attempts: u32,
    /// What the work can do to the world, as declared.
    pub(crate) effects: String,
    /// The name of the policy.
    pub(crate) route: String,
    /// The request's method.
    pub(crate) method: String,
    /// The request's path.
    pub(crate) path: String,
    /// When it was first seen.
    pub(crate) created_at: String,
    /// When the last attempt began.
    pub(crate) started_at: String,
    /// Until when that attempt may be silent.
    pub(crate) lease_until: String,
    /// When it came to rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finished_at: Option<String>,
    /// When retention ends. Counts for records at rest only.
    pub(crate) expires_at: String,
    /// The status that was replied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reply_status: Option<u16>,
    /// Why the last attempt did not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<String>,
    /// The last step of a phased operation that was committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recovery_point: Option<String>,
    /// The effect of which nobody knows whether it acted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) open_effect: Option<String>,
    /// Nothing stands behind this tombstone: the next use runs.
    pub(crate) void: bool,
    /// Of a pending record: when it may be begun, or begun again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) due_at: Option<String>,
    /// Of an accepted record: when it is given up if it was not executed by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queued_until: Option<String>,
    /// Of an unknown record: when it is asked about next. Absent when it is a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reconcile_after: Option<String>,
    /// How often it was asked what became of it.
    #[serde(default)]
    pub(crate) probes: u32,
    /// The reconciler has given up on it: a person must decide.
    #[serde(default)]
    pub(crate) dead_letter: bool,
}

impl From<&Record> for KeyRecord {
    fn from(record: &Record) -> Self {
        KeyRecord {
            id: record.id.handle(),
            scope: record.id.scope.as_str().to_owned(),
            key: record.id.key.as_str().to_owned(),
            state: record.state.name().to_owned(),
            generation: record.generation,
            fence: record.fence.number(),
            attempt: record.attempt.to_string(),
            attempts: record.attempts,
            effects: record.effects.name().to_owned(),
            route: record.route.to_string(),
            method: record.method.to_string(),
            path: record.path.to_string(),
            created_at: rfc3339(record.created_at),
            started_at: rfc3339(record.started_at),
            lease_until: rfc3339(record.lease_until),
            finished_at: record.finished_at.map(rfc3339),
            expires_at: rfc3339(record.expires_at),
            reply_status: record.reply.as_ref().map(|reply| reply.status.as_u16()),
            last_error: record.last_error.as_deref().map(str::to_owned),
            recovery_point: record.progress.recovery_point.as_deref().map(str::to_owned),
            open_effect: record.progress.open_effect.as_ref().map(|open| open.name.to_string()),
            void: record.void,
            due_at: (record.state == State::Pending).then(|| rfc3339(record.lease_until)),
            queued_until: record.queued_until.map(rfc3339),
            reconcile_after: record
                .reconcile_after
                .filter(|_| !record.is_dead_letter())
                .map(rfc3339),
            probes: record.inquiry.probes,
            dead_letter: record.is_dead_letter(),
        }
    }
}

/// A part of a list of records.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct KeyPage {
    /// The records.
    pub(crate) records: Vec<KeyRecord>,
    /// Where to go on: the parameter `after` of the next call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// One record, with what is known of its past.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct KeyDetail {
    /// The record.
    pub(crate) record: KeyRecord,
    /// What it is answered with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reply: Option<ReplyView>,
    /// What providers call it, in the order in which that was noted.
    #[serde(default)]
    pub(crate) provider_ids: Vec<ProviderIdView>,
    /// What happened, oldest first.
    pub(crate) timeline: Vec<Happened>,
    /// What an operator can do about it.
    pub(crate) advice: String,
}

/// What a provider calls an operation.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct ProviderIdView {
    /// The name of the provider; `default` if none was told.
    pub(crate) provider: String,
    /// Its id of the operation.
    pub(crate) id: String,
    /// Which use of the key it belongs to.
    pub(crate) generation: u32,
    /// The last attempt that noted it.
    pub(crate) attempt: String,
    /// When it was noted first.
    pub(crate) at: String,
}

impl From<&ProviderNote> for ProviderIdView {
    fn from(note: &ProviderNote) -> Self {
        ProviderIdView {
            provider: note.id.provider().to_owned(),
            id: note.id.id().to_owned(),
            generation: note.generation,
            attempt: note.attempt.to_string(),
            at: rfc3339(note.at),
        }
    }
}

/// A stored reply. Its body is not shown.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct ReplyView {
    /// The status.
    pub(crate) status: u16,
    /// The names of its headers.
    pub(crate) headers: Vec<String>,
    /// How long its body is; absent when it was not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body_bytes: Option<u64>,
}

impl From<&Reply> for ReplyView {
    fn from(reply: &Reply) -> Self {
        ReplyView {
            status: reply.status.as_u16(),
            headers: reply.headers.iter().map(|(name, _)| name.to_string()).collect(),
            body_bytes: match &reply.body {
                ReplyBody::Stored(body) => Some(body.len() as u64),
                ReplyBody::NotStored => None,
            },
        }
    }
}

/// Something that happened to a record.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Happened {
    /// When.
    pub(crate) at: String,
    /// What: a state, or the event of an audit record.
    pub(crate) event: String,
    /// In which generation.
    pub(crate) generation: u32,
    /// By whom and why, or what it means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// The status of the reply that came with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reply_status: Option<u16>,
}

/// An audit record.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct AuditView {
    /// When.
    pub(crate) at: String,
    /// The record that it is about.
    pub(crate) id: String,
    /// Its scope.
    pub(crate) scope: String,
    /// Its key.
    pub(crate) key: String,
    /// Its generation.
    pub(crate) generation: u32,
    /// What happened.
    pub(crate) event: String,
    /// The attempt that it is about.
    pub(crate) attempt: String,
    /// The fence which that attempt held.
    pub(crate) fence: i64,
    /// By whom and why. Empty for what happens by itself.
    pub(crate) reason: String,
    /// The status of the reply that came with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reply_status: Option<u16>,
}

impl From<&AuditRecord> for AuditView {
    fn from(audit: &AuditRecord) -> Self {
        AuditView {
            at: rfc3339(audit.at),
            id: audit.id.handle(),
            scope: audit.id.scope.as_str().to_owned(),
            key: audit.id.key.as_str().to_owned(),
            generation: audit.generation,
            event: audit.event.name().to_owned(),
            attempt: audit.attempt.to_string(),
            fence: audit.fence.number(),
            reason: audit.reason.to_string(),
            reply_status: audit.reply.as_ref().map(|reply| reply.status.as_u16()),
        }
    }
}

/// A part of the audit records, the latest first.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct AuditPageView {
    /// The audit records.
    pub(crate) records: Vec<AuditView>,
    /// Where to go on: the parameter `after` of the next call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// How many records there are.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct StatsView {
    /// For each state.
    pub(crate) states: Vec<StateCount>,
    /// When the oldest attempt was begun whose outcome is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_unknown: Option<String>,
    /// When the oldest attempt was begun that is in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_in_progress: Option<String>,
    /// When the oldest record was created that waits to be begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_pending: Option<String>,
}

/// How many records are in one state.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct StateCount {
    /// The state.
    pub(crate) state: String,
    /// How many.
    pub(crate) records: u64,
    /// It is reckoned from a sample, or is at least so many.
    pub(crate) estimated: bool,
}

impl From<Stats> for StatsView {
    fn from(stats: Stats) -> Self {
        let states = State::ALL.map(|state| {
            let Count { records, estimated } = stats.of(state);
            StateCount { state: state.name().to_owned(), records, estimated }
        });
        StatsView {
            states: states.into(),
            oldest_unknown: stats.oldest_unknown.map(rfc3339),
            oldest_in_progress: stats.oldest_in_progress.map(rfc3339),
            oldest_pending: stats.oldest_pending.map(rfc3339),
        }
    }
}

/// Finds out what had happened behind an unknown record.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResolveRequest {
    /// What it was.
    pub(crate) outcome: Outcome,
    /// What retries get, when it was completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reply: Option<NewReply>,
    /// Why it is done, for whoever reads the audit records. One line.
    #[schema(
        min_length = 1,
        max_length = 500,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]*[!-~][^\u0000-\u001f\u007f-\u009f]*$"
    )]
    pub(crate) reason: String,
    /// The generation that was looked at. If the record has another one, nothing happens.
    pub(crate) generation: u32,
    /// The fence that was looked at. If the record has another one, nothing happens.
    pub(crate) fence: i64,
    /// How it is known.
    pub(crate) evidence: Evidence,
}

/// What had happened.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// It acted, and this was its reply.
    Completed,
    /// It did not act: the same request may run again.
    NotExecuted,
}

/// Says that an unknown record did not act.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReleaseRequest {
    /// Why it is done, for whoever reads the audit records. One line.
    #[schema(
        min_length = 1,
        max_length = 500,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]*[!-~][^\u0000-\u001f\u007f-\u009f]*$"
    )]
    pub(crate) reason: String,
    /// The generation that was looked at. If the record has another one, nothing happens.
    pub(crate) generation: u32,
    /// The fence that was looked at. If the record has another one, nothing happens.
    pub(crate) fence: i64,
    /// How it is known.
    pub(crate) evidence: Evidence,
}

/// Withdraws the reply of a completed record: the next use of its key runs.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct VoidRequest {
    /// Why it is done, for whoever reads the audit records. One line.
    #[schema(
        min_length = 1,
        max_length = 500,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]*[!-~][^\u0000-\u001f\u007f-\u009f]*$"
    )]
    pub(crate) reason: String,
    /// The generation that was looked at. If the record has another one, nothing happens.
    pub(crate) generation: u32,
    /// The fence that was looked at. If the record has another one, nothing happens.
    pub(crate) fence: i64,
}

/// Has an unknown record asked about at once, as if it had just become so.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RedriveRequest {
    /// Why it is done, for whoever reads the audit records. One line.
    #[schema(
        min_length = 1,
        max_length = 500,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]*[!-~][^\u0000-\u001f\u007f-\u009f]*$"
    )]
    pub(crate) reason: String,
    /// The generation that was looked at. If the record has another one, nothing happens.
    pub(crate) generation: u32,
    /// The fence that was looked at. If the record has another one, nothing happens.
    pub(crate) fence: i64,
}

/// How it is known what happened, or that nothing did.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Evidence {
    /// Who or what says so: the provider's ledger, a ticket. One line.
    #[schema(
        min_length = 1,
        max_length = 500,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]*[!-~][^\u0000-\u001f\u007f-\u009f]*$"
    )]
    pub(crate) source: String,
    /// Two looks that found nothing, when the source itself may be late. They count only when both
    /// came late enough after the last attempt, and far enough apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) probes: Option<Probes>,
}

/// When somebody looked and found nothing.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Probes {
    /// The first time.
    #[schema(format = DateTime)]
    pub(crate) first: String,
    /// The second time.
    #[schema(format = DateTime)]
    pub(crate) second: String,
}

/// What retries get.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewReply {
    /// The status, from 200 to 599.
    #[schema(minimum = 200, maximum = 599)]
    pub(crate) status: u16,
    /// Its content type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 255, pattern = r"^[!-~]+( [!-~]+)*$")]
    pub(crate) content_type: Option<String>,
    /// The body as text.
    #[serde(default)]
    pub(crate) body: String,
}

/// What a record is after a change.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Changed {
    /// The record as it stands now.
    pub(crate) record: KeyRecord,
}

/// Asks what a change of many records, or of many dead letters of the outbox, would be. It has either
/// `filter` or `messages`.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlanRequest {
    /// Which records: those that a list with the same filter has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) filter: Option<super::query::Filter>,
    /// Which dead letters of the outbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) messages: Option<super::query::MessageFilter>,
    /// What to do with each.
    pub(crate) action: Action,
    /// Why it is done, for whoever reads the audit records. One line.
    #[schema(
        min_length = 1,
        max_length = 500,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]*[!-~][^\u0000-\u001f\u007f-\u009f]*$"
    )]
    pub(crate) reason: String,
    /// How it is known that none of them acted; needed for `release`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) evidence: Option<Evidence>,
}

/// What is done with each record of a plan.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    /// Unknown records did not act.
    Release,
    /// Replies of completed records are withdrawn.
    Void,
    /// Unknown records are asked about at once, be they dead letters or not. Messages that are dead
    /// letters are delivered anew.
    Redrive,
    /// Messages that are dead letters are deleted.
    Discard,
}

impl Action {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Action::Release => "release",
            Action::Void => "void",
            Action::Redrive => "redrive",
            Action::Discard => "discard",
        }
    }
}

/// What would be done. Nothing is, before it is applied.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct PlanView {
    /// Its name.
    pub(crate) plan: String,
    /// What would be done with each.
    pub(crate) action: Action,
    /// It is about messages of the outbox, not about records.
    #[serde(default)]
    pub(crate) messages: bool,
    /// How many it is about.
    pub(crate) count: u32,
    /// How many of these messages a delivery may have acted on. Look at each before redriving them.
    #[serde(default)]
    pub(crate) ambiguous: u32,
    /// More records match than one plan may hold: make another one afterwards.
    pub(crate) more: bool,
    /// The records.
    pub(crate) ids: Vec<String>,
    /// Stands for exactly these records as they are now, the action and the reason.
    pub(crate) hash: String,
    /// Until when it can be applied, by the server that made it.
    pub(crate) expires_at: String,
}

/// Applies a plan.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApplyRequest {
    /// The hash of the plan that was looked at.
    pub(crate) hash: String,
}

/// What came of a plan.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Applied {
    /// Its name.
    pub(crate) plan: String,
    /// It was about messages of the outbox, not about records.
    #[serde(default)]
    pub(crate) messages: bool,
    /// How many were changed.
    pub(crate) applied: u32,
    /// Those that were not, each with why.
    pub(crate) skipped: Vec<Skipped>,
    /// Those of which the store did not say: they may have been changed. Look at them again.
    pub(crate) failed: Vec<Skipped>,
}

/// A record of a plan that was not changed.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Skipped {
    /// The record.
    pub(crate) id: String,
    /// Why: the code of a problem.
    pub(crate) code: String,
}

/// What clients asked for without protection.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct TrafficView {
    /// Endpoints that change things and were passed on without a key, by method and path.
    pub(crate) unprotected: Vec<Seen>,
    /// There were more of them than are remembered.
    pub(crate) more: bool,
}

/// An endpoint that was seen.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Seen {
    /// The method.
    pub(crate) method: String,
    /// The path, with `{}` for what looks like an id.
    pub(crate) path: String,
    /// How often.
    pub(crate) requests: u64,
}

/// What protection would have done, if it were switched on.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct ShadowView {
    /// The last requests that would not simply have been executed.
    pub(crate) observations: Vec<Observed>,
}

/// A request on a shadow route.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Observed {
    /// When it came.
    pub(crate) at: String,
    /// The route.
    pub(crate) route: String,
    /// The method.
    pub(crate) method: String,
    /// The path without its query.
    pub(crate) path: String,
    /// What stands for the key in logs.
    pub(crate) key_digest: Option<String>,
    /// `replay`, or the code of the refusal.
    pub(crate) would: String,
}

impl From<Vec<Observation>> for ShadowView {
    fn from(listed: Vec<Observation>) -> Self {
        let time = |it: &Observation| {
            let since = it.at.duration_since(UNIX_EPOCH).unwrap_or_default();
            Timestamp::from_micros(0).plus(since)
        };
        let observed = |it: Observation| Observed {
            at: rfc3339(time(&it)),
            route: it.route.into(),
            method: it.method.into(),
            path: it.path.into(),
            key_digest: it.key_digest,
            would: it.verdict.name().to_owned(),
        };
        ShadowView { observations: listed.into_iter().map(observed).collect() }
    }
}

/// Erases what was sealed for a scope, or says what that would be.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ErasureRequest {
    /// Whose replies.
    #[schema(min_length = 1, max_length = 255, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    pub(crate) scope: String,
    /// Why it is done, for whoever reads the audit records. One line.
    #[schema(
        min_length = 1,
        max_length = 500,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]*[!-~][^\u0000-\u001f\u007f-\u009f]*$"
    )]
    pub(crate) reason: String,
    /// The hash of the plan that was looked at. Without it nothing is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hash: Option<String>,
}

/// What was erased, or would be.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct ErasureView {
    /// Whose replies.
    pub(crate) scope: String,
    /// Whether it was done.
    pub(crate) applied: bool,
    /// How many data keys. Without any, nothing is sealed for this scope.
    pub(crate) data_keys: u32,
    /// How many records the scope has; at most 1000 are counted.
    pub(crate) records: u32,
    /// Those of them that are not at rest: what was kept of them for going on goes too.
    pub(crate) at_work: u32,
    /// Names the data keys. To be given to erase exactly these.
    pub(crate) hash: String,
}

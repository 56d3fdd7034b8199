//! Deciding about one record. What may be decided is the machine's to say.

use http::{HeaderValue, StatusCode, header};
use onceward::{
    Reply, Store, observe,
    record::{Fence, Record},
    store::{Proof, Resolution, Resolve, Resolved},
};

use super::{
    Changed, Problem, RedriveRequest, ReleaseRequest, ResolveRequest, VoidRequest, keys,
    query::when,
    types::{Evidence, KeyRecord, NewReply, Outcome, TEXT_MAX},
};
use crate::admin::access::Who;

pub(super) async fn resolve(
    store: &dyn Store,
    handle: &str,
    asked: ResolveRequest,
    who: &Who,
) -> Result<Changed, Problem> {
    let reason = because(who, &asked.reason, Some(&asked.evidence))?;
    let resolution = match (asked.outcome, asked.reply) {
        (Outcome::Completed, Some(new)) => Resolution::Complete(reply(new)?),
        (Outcome::Completed, None) => {
            return Err(Problem::invalid("What was completed needs a `reply` for its retries."));
        }
        (Outcome::NotExecuted, None) => Resolution::Release(proof(&asked.evidence)?),
        (Outcome::NotExecuted, Some(_)) => {
            return Err(Problem::invalid("What was not executed has no `reply`."));
        }
    };
    decide(store, handle, (asked.generation, asked.fence), resolution, reason).await
}

pub(super) async fn release(
    store: &dyn Store,
    handle: &str,
    asked: ReleaseRequest,
    who: &Who,
) -> Result<Changed, Problem> {
    let reason = because(who, &asked.reason, Some(&asked.evidence))?;
    let resolution = Resolution::Release(proof(&asked.evidence)?);
    decide(store, handle, (asked.generation, asked.fence), resolution, reason).await
}

pub(super) async fn void(
    store: &dyn Store,
    handle: &str,
    asked: VoidRequest,
    who: &Who,
) -> Result<Changed, Problem> {
    let reason = because(who, &asked.reason, None)?;
    decide(store, handle, (asked.generation, asked.fence), Resolution::Void, reason).await
}

pub(super) async fn redrive(
    store: &dyn Store,
    handle: &str,
    asked: RedriveRequest,
    who: &Who,
) -> Result<Changed, Problem> {
    let reason = because(who, &asked.reason, None)?;
    decide(store, handle, (asked.generation, asked.fence), Resolution::Redrive, reason).await
}

async fn decide(
    store: &dyn Store,
    handle: &str,
    looked_at: (u32, i64),
    resolution: Resolution,
    reason: Box<str>,
) -> Result<Changed, Problem> {
    let (generation, fence) = (looked_at.0, Fence::from_stored(looked_at.1));
    let id = keys::id_of(handle)?;
    let resolve = Resolve { id, generation, fence, resolution, reason };
    let record = apply(store, resolve).await?;
    Ok(Changed { record: KeyRecord::from(&record) })
}

/// Makes the change, or says why not.
pub(super) async fn apply(store: &dyn Store, resolve: Resolve) -> Result<Record, Problem> {
    let (generation, fence) = (resolve.generation, resolve.fence);
    let resolved = store.resolve(resolve.clone()).await?;
    observe::resolved(&resolve, &resolved);
    match resolved {
        Resolved::Applied(record) => Ok(*record),
        Resolved::Absent => Err(keys::absent()),
        Resolved::Refused(record) if (record.generation, record.fence) != (generation, fence) => {
            let detail = "The record has moved since it was looked at. Look again.";
            Err(Problem::conflict("record_changed", detail).with_state(record.state.name()))
        }
        Resolved::Refused(record) => {
            let detail = "Only an unknown record is resolved, released or redriven, or resolved as \
                          completed after it was released; only a completed one is void; neither \
                          while an attempt holds the lease.";
            Err(Problem::conflict("not_resolvable", detail).with_state(record.state.name()))
        }
        Resolved::TooEarly { not_before } => {
            let detail = "The attempt may still act, or may have acted between the two probes. Look \
                          again later.";
            Err(Problem::conflict("too_early", detail).not_before(not_before))
        }
    }
}

/// Who, why, and how it is known: what goes into the audit record.
pub(super) fn because(
    who: &Who,
    reason: &str,
    evidence: Option<&Evidence>,
) -> Result<Box<str>, Problem> {
    let reason = one_line("reason", reason)?;
    let mut text = format!("{}: {reason}", who.0);
    if let Some(evidence) = evidence {
        text.push_str("; evidence: ");
        text.push_str(one_line("evidence.source", &evidence.source)?);
    }
    Ok(text.into())
}

fn one_line<'t>(name: &str, text: &'t str) -> Result<&'t str, Problem> {
    let printable = text.bytes().any(|byte| byte.is_ascii_graphic());
    let good = printable && text.chars().count() <= TEXT_MAX && !text.chars().any(char::is_control);
    let wrong = || Problem::invalid(format!("`{name}` is one line of 1 to {TEXT_MAX} characters."));
    if good { Ok(text) } else { Err(wrong()) }
}

/// "Not executed" needs proof: an authority, or two looks that came late and apart enough.
pub(super) fn proof(evidence: &Evidence) -> Result<Proof, Problem> {
    match &evidence.probes {
        None => Ok(Proof::Authoritative),
        Some(probes) => {
            Ok(Proof::TwoProbes { first: when(&probes.first)?, second: when(&probes.second)? })
        }
    }
}

fn reply(new: NewReply) -> Result<Reply, Problem> {
    let status =
        StatusCode::from_u16(new.status).ok().filter(|it| (200..600).contains(&it.as_u16()));
    let status = status.ok_or_else(|| Problem::invalid("`reply.status` is from 200 to 599."))?;
    let reply = Reply::new(status, new.body);
    let Some(kind) = new.content_type else { return Ok(reply) };
    let good = kind.len() <= 255 && !kind.trim().is_empty();
    let kind = HeaderValue::from_str(&kind).ok().filter(|_| good);
    let kind = kind.ok_or_else(|| Problem::invalid("`reply.content_type` is not a media type."))?;
    Ok(reply.with_header(header::CONTENT_TYPE, kind))
}

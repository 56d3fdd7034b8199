//! What is remembered of a record: each thing once, unless it can happen again.

use onceward::record::AuditEvent;

use super::{
    Verdict, Violation,
    known::{Known, Note},
};
use crate::history::Subject;

pub(super) fn check(known: &Known, subject: &Subject, noted: &Note) -> Verdict {
    let Some(story) = known.story_of(subject).filter(|story| !story.lost) else { return Ok(()) };
    let Note { note, attempt, fence, .. } = noted;
    // I1: whoever was said not to have acted has, and nobody runs it again: then nobody must.
    let stands = story.stand.as_ref().and_then(Option::as_ref);
    let is_its_own = stands.is_some_and(|it| it.attempt == *attempt && it.fence == *fence);
    if *note == AuditEvent::SupersededResult.name() && story.denied && is_its_own {
        let what = format!("the reply of {attempt}, which was released, is noted and not kept");
        return Err(Violation::of("I1", subject, what));
    }
    // Incidents of one attempt differ by what was told.
    let event = AuditEvent::from_name(note);
    let recurs = event.is_some_and(AuditEvent::may_recur) && event != Some(AuditEvent::Incident);
    match recurs || !story.notes.contains(noted) {
        true => Ok(()),
        false => {
            let what = format!("{note} of {attempt} with fence {fence} was noted twice");
            Err(Violation::of("AUDIT", subject, what))
        }
    }
}

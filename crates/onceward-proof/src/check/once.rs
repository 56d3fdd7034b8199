//! Effects are counted: at most one for each use of a key, other than those declared re-runnable.

use super::{
    Verdict, Violation,
    known::{Call, CallEnd, Known, Story, Use},
};
use crate::history::{CallNo, Rules, UpstreamAnswer};

/// After a call acted or ended.
pub(super) fn check(known: &Known, number: CallNo) -> Verdict {
    let Some(call) = known.call(number) else {
        let what = format!("call {number} acted, which nobody made");
        return Err(Violation { invariant: "I7", subject: None, what });
    };
    let story = known.story(call.story);
    match story.use_of(call.place).and_then(|used| twice(known, story, used)) {
        Some(found) => Err(found),
        None => Ok(()),
    }
}

/// At the end of the world, when calls that never ended never will.
pub(super) fn check_all(known: &Known) -> Vec<Violation> {
    let uses = known.stories().flat_map(|story| story.uses.iter().map(move |used| (story, used)));
    uses.filter_map(|(story, used)| twice(known, story, used)).collect()
}

fn twice(known: &Known, story: &Story, used: &Use) -> Option<Violation> {
    if story.lost || used.acted.len() < 2 {
        return None;
    }
    let counted: Vec<_> = counted(known, used).collect();
    // Of an operation in steps each acts once.
    let pairs = counted.iter().enumerate().flat_map(|(place, first)| {
        counted.iter().skip(place + 1).map(move |second| (first, second))
    });
    let ((first, _), (second, _)) =
        pairs.into_iter().find(|(one, two)| one.1.step == two.1.step)?;
    let generation = used.place.generation;
    let what = format!("calls {first} and {second} both acted in generation {generation}");
    Some(Violation::of("I1", &story.subject, what))
}

/// The calls of a use whose effects are certain to be ones that must stay the only ones.
fn counted<'a>(known: &'a Known, used: &'a Use) -> impl Iterator<Item = (CallNo, &'a Call)> {
    let calls = used.acted.iter().filter_map(|number| Some((*number, known.call(*number)?)));
    calls.filter(|(_, call)| counts(known, call))
}

/// I1: what has acted is not said to have done nothing.
pub(super) fn given_back(known: &Known, story: &Story, used: &Use) -> Option<CallNo> {
    // Of an open step nobody can say more than that it did not act, also where it may be repeated.
    if story.lost || used.released {
        return None;
    }
    counted(known, used).next().map(|(number, _)| number)
}

/// Whether the effect of this call is certain to be one that must stay the only one.
fn counts(known: &Known, call: &Call) -> bool {
    let rules = known.rules_of(call);
    if rules.is_some_and(|rules| !rules.acts) {
        return false;
    }
    match &call.end {
        CallEnd::NotYet => known.ended,
        CallEnd::BrokeOff => true,
        CallEnd::Answered(answer) => !rules.is_some_and(|rules| may_rerun(answer, rules)),
    }
}

/// Whether the same request may run again after this answer. Upstream's own word goes before its
/// status, and a word that is not understood is no leave.
pub(super) fn may_rerun(answer: &UpstreamAnswer, rules: &Rules) -> bool {
    match &answer.executed {
        Some(word) => word.trim().eq_ignore_ascii_case("no"),
        None => rules.rerunnable.contains(&answer.status),
    }
}

//! Nothing is left over, once nothing is broken any more.

use super::{Verdict, Violation, known::Known};

pub(super) fn check(known: &Known) -> impl Iterator<Item = Violation> + '_ {
    let over = known.calm && known.ended;
    let waiting = known.requests().filter(|(_, request)| !request.over).map(|(number, request)| {
        let what = format!("request {number} was never answered");
        Violation::of("I8", &known.story(request.story).subject, what)
    });
    let left = known.stories().filter_map(|story| {
        let stand = story.stand.as_ref()?.as_ref()?;
        let at_work = matches!(&*stand.state, "in_progress" | "pending");
        at_work.then(|| {
            let what = format!("the record was left {} by {}", stand.state, stand.attempt);
            Violation::of("I8", &story.subject, what)
        })
    });
    waiting.chain(left).filter(move |_| over)
}

/// Nobody is at work who began long ago: an attempt ends, or its lease does and somebody sees to it,
/// though no client comes.
pub(super) fn check_rested(known: &Known, now: u64, within: u64) -> Verdict {
    let left = known
        .stories()
        .find(|story| story.at_work_since.is_some_and(|since| since.saturating_add(within) <= now));
    let Some(story) = left else { return Ok(()) };
    let stand = story.stand.as_ref().and_then(Option::as_ref);
    let by = stand.map_or("nobody", |stand| &*stand.attempt);
    let what = format!("the record is left in_progress by {by}, and nobody sees to it");
    Err(Violation::of("I8", &story.subject, what))
}

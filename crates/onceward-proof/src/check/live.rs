//! Nothing is left over, once nothing is broken any more.

use super::{Violation, known::Known};

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

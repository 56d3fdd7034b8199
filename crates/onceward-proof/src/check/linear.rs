//! LIN: what the clients of a key saw could have come from one record that moves step by step.
//!
//! Each request is a look at the record, or an attempt that begins and ends, at moments between its
//! question and its answer that are to be found. A request without an answer may begin at any time
//! after its question and end in any way, or do nothing. `spec` says which steps exist, `view` what
//! a history says about one key, and `search` tries all orders at once (Wing and Gong, with what
//! Lowe added: event by event, with the set of all worlds that explain what was seen so far).
//!
//! Where workers go on without a client, what one is told of its own attempt says nothing of how the
//! operation ends: such keys are left to the other checks.
//!
//! What may be freely chosen is chosen in favour of the accused:
//!
//! - a lease may run out at any time;
//! - where a history tells of resolutions or of expiry, they may happen at other times too;
//! - a request that was told 409 `unknown` may have looked and have begun, more than once.

use super::Violation;
use crate::history::{Event, Subject};

mod view;
mod spec;
mod search;

#[cfg(test)]
mod tests;

/// The keys whose answers no order of steps explains, one violation each.
pub(super) fn check<'a>(
    history: &'a [Event],
    exempt: impl Fn(&Subject) -> bool + 'a,
) -> impl Iterator<Item = Violation> + 'a {
    let views = view::views(history).into_iter().filter(move |view| !exempt(view.subject));
    views.filter(|view| !view.goes_on).filter_map(|view| {
        let what = search::explain(&view).err()?.sentence(&view);
        Some(Violation::of("LIN", view.subject, what))
    })
}

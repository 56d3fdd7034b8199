//! Steps of a phased operation: which may be made, and who may go on with it.

use super::Step;
use crate::{
    record::{Lease, OpenEffect, Record, State},
    store::{Advance, Advanced, Found, Reservation},
};

/// Moves a phased operation on, if the attempt still may. `saved` says whether a step of that name
/// is saved already in this generation.
///
/// As in [`super::write`], state and fence decide, not lease time.
pub fn advance(
    found: Option<&Record>,
    lease: &Lease,
    advance: &Advance,
    saved: bool,
) -> Step<Advanced> {
    let Some(stored) = found else { return Step::keep(Advanced::Superseded(None)) };
    let mine = stored.attempt == lease.attempt && stored.fence == lease.fence;
    if !mine || stored.state != State::InProgress {
        return Step::keep(Advanced::Superseded(Some(Box::new(stored.clone()))));
    }
    let open = stored.progress.open_effect.as_ref();
    let is_open = open.is_some_and(|effect| *effect.name == *advance.name());
    let mut record = stored.clone();
    match advance {
        Advance::Save { name, .. } => {
            if saved || stored.progress.recovery_point.as_deref() == Some(name) {
                return Step::keep(Advanced::AlreadyMine);
            }
            if open.is_some() && !is_open {
                return Step::keep(Advanced::Refused(ANOTHER_EFFECT_IS_OPEN));
            }
            record.progress.recovery_point = Some(name.clone());
            record.progress.open_effect = None;
        }
        // An effect that has a result is never opened again: it might be called again.
        Advance::Intend { .. } | Advance::Withdraw { .. } if saved => {
            return Step::keep(Advanced::Refused(STEP_HAS_A_RESULT));
        }
        Advance::Intend { .. } if is_open => return Step::keep(Advanced::AlreadyMine),
        Advance::Intend { .. } if open.is_some() => {
            return Step::keep(Advanced::Refused(ANOTHER_EFFECT_IS_OPEN));
        }
        Advance::Intend { name, idempotent } => {
            let effect = OpenEffect { name: name.clone(), idempotent: *idempotent };
            record.progress.open_effect = Some(effect);
        }
        Advance::Withdraw { .. } if !is_open => return Step::keep(Advanced::AlreadyMine),
        Advance::Withdraw { .. } => record.progress.open_effect = None,
    }
    Step::put(record, None, Advanced::Applied)
}

/// A step cannot be made while the effect of another one is open.
pub const ANOTHER_EFFECT_IS_OPEN: &str = "another_effect_is_open";

/// The step was saved in this generation.
pub const STEP_HAS_A_RESULT: &str = "step_has_a_result";

/// Whether the request is kept that was asked with, unless one of this generation is kept already:
/// it is by whoever takes the record, in the same step. A repeated call has nothing to add.
pub fn keeps_request(answer: &Reservation) -> bool {
    match answer {
        Reservation::Granted { found, .. } | Reservation::Accepted { found } => {
            *found != Found::Mine
        }
        _ => false,
    }
}

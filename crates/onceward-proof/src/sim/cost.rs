//! What one fault may cost. The judge says what must not happen; an engine that gave up at the first
//! sign of trouble, and left everything to the sweeper and the reconciler, would pass before it.

use super::Run;
use crate::{
    check::Violation,
    history::{Cause, Event, What},
};

/// Faults that cost nobody the outcome when they come alone: no record becomes unknown.
const NOTHING_UNKNOWN: [&str; 19] = [
    "store_refused",
    "store_lost_before",
    "store_lost_after",
    "store_silent_before",
    "store_silent_after",
    "store_late",
    "store_slow_there",
    "store_slow_back",
    "store_twice",
    "upstream_never_sent",
    "upstream_slow",
    "upstream_limits",
    "upstream_declines",
    "upstream_says_no",
    "upstream_large",
    "client_hangs_up",
    "client_answer_lost",
    "client_delayed",
    "client_twice",
];

/// Faults that nobody is told of when they come alone: no client hears that something is unknown or
/// away.
const NOTHING_TOLD: [&str; 9] = [
    "store_refused",
    "store_lost_before",
    "store_lost_after",
    "store_late",
    "store_twice",
    "upstream_slow",
    "client_answer_lost",
    "client_delayed",
    "client_twice",
];

/// Faults after which the attempt itself knows how it ended: it never was dispatched, or its handler
/// answered after all. Nobody else has to find out.
const NOTHING_ASKED: [&str; 3] = ["pause_before_store", "pause_after_store", "upstream_very_slow"];

/// I8: what the only fault of a run cost, though it need not.
pub(super) fn check(run: &Run) -> Option<Violation> {
    let mut faults = run.faults.iter();
    let (Some((kind, 1)), None) = (faults.next(), faults.next()) else { return None };
    let unknown = |event: &Event| match &event.what {
        What::Moved { subject, to: Some(to), .. } if to.state == "unknown" => Some(subject.clone()),
        _ => None,
    };
    let is_told = |event: &Event| match &event.what {
        What::Answered { answer, .. } => {
            matches!(answer.outcome(), Some("unknown" | "unavailable"))
        }
        _ => false,
    };
    let asked = |event: &Event| match &event.what {
        What::Moved { subject, cause: Cause::Resolve { resolution, proof, .. }, .. } => {
            let probed = proof.as_deref() == Some("two_probes");
            let found = *kind == "upstream_very_slow" && resolution == "executed";
            (probed || found).then(|| subject.clone())
        }
        _ => None,
    };
    let history = || run.history.iter();
    let subject = history().find_map(asked).filter(|_| NOTHING_ASKED.contains(kind));
    if subject.is_some() {
        let what = format!("{kind} alone left it to others to find out what the attempt knew");
        return Some(Violation { invariant: "I8", subject, what });
    }
    let subject = history().find_map(unknown).filter(|_| NOTHING_UNKNOWN.contains(kind));
    if subject.is_some() {
        let what = format!("{kind} alone made an outcome unknown");
        return Some(Violation { invariant: "I8", subject, what });
    }
    let told = NOTHING_TOLD.contains(kind) && history().any(is_told);
    told.then(|| Violation {
        invariant: "I8",
        subject: None,
        what: format!("{kind} alone was not made good: a client was told of it"),
    })
}

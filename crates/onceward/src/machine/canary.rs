//! Whether a store has lost something that it had acknowledged.

use std::time::Duration;

use crate::{
    clock::Timestamp,
    record::AuditRecord,
    store::{Beat, Beaten, Pulse, Regression},
};

/// How long the last beat of a node is kept. A node that remembers for less cannot miss it.
pub const BEATS_KEPT: Duration = Duration::from_secs(60 * 24 * 60 * 60);

/// What becomes of the last beat of a node, and of what is known to be lost.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct BeatStep {
    /// The last beat from now on.
    pub beaten: Beaten,
    /// What is worth an audit record: something was found to be lost just now.
    pub audit: Option<AuditRecord>,
    /// The answer, with the regression as it is to be kept.
    pub pulse: Pulse,
}

/// Counts a beat. A count under the one that was acknowledged means that a commit is gone.
///
/// The count never falls behind what its node knows, so that one loss is found once.
pub fn beat(
    found: Option<Beaten>,
    known: Option<Regression>,
    beat: &Beat,
    now: Timestamp,
) -> BeatStep {
    let stored = found.map_or(0, |beaten| beaten.count);
    let lost = (stored < beat.acked)
        .then(|| Regression { since: found.map(|beaten| beaten.at), found: now });
    let regression = match (known, lost) {
        (Some(known), Some(lost)) => Some(Regression {
            since: known.since.zip(lost.since).map(|(one, other)| one.min(other)),
            found: lost.found,
        }),
        (known, lost) => lost.or(known),
    };
    let count = stored.max(beat.acked).saturating_add(1);
    BeatStep {
        beaten: Beaten { count, at: now },
        audit: lost.map(|lost| AuditRecord::regressed(beat.node, lost)),
        // A store that is in one place does not change hands.
        pulse: Pulse { count, regression, absent: 0 },
    }
}

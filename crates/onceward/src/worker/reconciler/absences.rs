//! What this process has seen for itself: since when its probes about an attempt find nothing.
//!
//! The store's clock may leap, and then two probes of which its timestamps say that they are far apart
//! were begun a moment apart. What is here is measured by a monotonic clock, and forgotten with the
//! process: the next one has to see it for itself.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::record::{AttemptId, Fence, Record};

/// So many attempts at most: a few megabytes. Those beyond wait until others are resolved.
const MOST: usize = 50_000;

/// What was not asked about for so long, which is longer than every pause, was resolved by others.
const KEPT: Duration = Duration::from_secs(3 * 3_600);

/// The attempts that this process found not to have acted, and when its first probe was begun that did.
#[derive(Debug, Default)]
pub(super) struct Absences(Mutex<HashMap<(AttemptId, Fence), Absence>>);

#[derive(Debug)]
struct Absence {
    first: Instant,
    last: Instant,
}

impl Absences {
    /// A probe that was begun then found nothing. With how much earlier the first one was begun.
    pub(super) fn note(&self, record: &Record, begun: Instant) -> Duration {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let attempt = (record.attempt, record.fence);
        if known.len() >= MOST && !known.contains_key(&attempt) {
            known.retain(|_, absence| begun.saturating_duration_since(absence.last) < KEPT);
            if known.len() >= MOST {
                return Duration::ZERO;
            }
        }
        let absence = known.entry(attempt).or_insert(Absence { first: begun, last: begun });
        absence.last = begun;
        begun.saturating_duration_since(absence.first)
    }

    /// Nobody asks about this attempt any more.
    pub(super) fn forget(&self, record: &Record) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(&(record.attempt, record.fence));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::Timestamp, machine::tests::record_in, record::State};

    fn unknown(number: usize) -> Record {
        let at = Timestamp::from_micros(i64::try_from(number + 1).expect("few"));
        Record { fence: Fence::next(None, at), ..record_in(State::Unknown) }
    }

    #[test]
    fn the_first_absence_of_an_attempt_counts_and_others_have_their_own() {
        let (absences, begun) = (Absences::default(), Instant::now());
        let minute = Duration::from_secs(60);
        assert_eq!(absences.note(&unknown(1), begun), Duration::ZERO);
        assert_eq!(absences.note(&unknown(1), begun + minute), minute);
        assert_eq!(absences.note(&unknown(1), begun + minute * 3), minute * 3);
        assert_eq!(absences.note(&unknown(2), begun + minute * 3), Duration::ZERO, "another fence");
        let another = Record { attempt: AttemptId::random(), ..unknown(1) };
        assert_eq!(absences.note(&another, begun + minute * 3), Duration::ZERO);
        absences.forget(&unknown(1));
        assert_eq!(absences.note(&unknown(1), begun + minute * 4), Duration::ZERO);
        assert_eq!(absences.note(&unknown(2), begun + minute * 4), minute);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_room_comes_back() {
        let (absences, begun) = (Absences::default(), Instant::now());
        let second = Duration::from_secs(1);
        for number in 0..MOST {
            absences.note(&unknown(number), begun);
        }
        // One more is not remembered, and those that are keep what they have.
        for _ in 0..2 {
            assert_eq!(absences.note(&unknown(MOST), begun + second), Duration::ZERO);
        }
        assert_eq!(absences.note(&unknown(MOST), begun + second * 2), Duration::ZERO);
        assert_eq!(absences.note(&unknown(7), begun + second * 2), second * 2);
        assert_eq!(absences.0.lock().expect("not poisoned").len(), MOST);
        // When one is resolved, and when nobody has asked about the others for long.
        absences.forget(&unknown(7));
        absences.note(&unknown(MOST), begun + second * 3);
        assert_eq!(absences.note(&unknown(MOST), begun + second * 4), second);
        absences.note(&unknown(MOST + 1), begun + KEPT);
        assert_eq!(absences.note(&unknown(MOST + 1), begun + KEPT + second), second);
        assert!(absences.0.lock().expect("not poisoned").len() < 4);
    }
}

#![cfg(any(feature = "postgres", feature = "mysql", feature = "redis"))]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Finding;

/// How often a server is asked for its time; the quickest answer counts.
pub(crate) const ASKED: usize = 5;

/// More than this between two clocks is worth knowing.
const WORTH_KNOWING: Duration = Duration::from_secs(5);

/// A question for the time of a server, and its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// Our time when it was asked.
    pub(crate) at: SystemTime,
    /// How long the answer took.
    pub(crate) took: Duration,
    /// Its time, in microseconds since 1970.
    pub(crate) answer: i64,
}

impl Asked {
    /// How far the server is ahead, in microseconds, as if the answer was made half way.
    fn ahead(&self) -> i64 {
        let ours = (self.at + self.took / 2).duration_since(UNIX_EPOCH).unwrap_or_default();
        self.answer - i64::try_from(ours.as_micros()).unwrap_or(i64::MAX)
    }
}

/// How far the clock of a server is from ours.
pub(crate) fn skew(asked: &[Asked]) -> Finding {
    const NAME: &str = "clock skew";
    let Some(best) = asked.iter().min_by_key(|asked| asked.took) else {
        return Finding::failed(NAME, "the server does not tell its time");
    };
    let (ahead, bound) = (best.ahead(), best.took / 2);
    let by = Duration::from_micros(ahead.unsigned_abs());
    let way = if ahead < 0 { "behind" } else { "ahead of" };
    let found = format!(
        "the server is {:.3} s {way} this machine, give or take {:.3} s",
        by.as_secs_f64(),
        bound.as_secs_f64()
    );
    if by.saturating_sub(bound) < WORTH_KNOWING {
        return Finding::ok(NAME, found);
    }
    let advice = "set both clocks by NTP: the server's decides when leases and retention end, and \
                  this machine's how old a key with a time in it is";
    Finding::note(NAME, found, advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::site::Verdict;

    fn asked(took: Duration, ahead: i64) -> Asked {
        let at = UNIX_EPOCH + Duration::from_secs(1_000);
        let half = i64::try_from(took.as_micros()).expect("short") / 2;
        Asked { at, took, answer: 1_000_000_000 + half + ahead }
    }

    #[test]
    fn the_quickest_answer_tells_how_far_the_clocks_are_apart() {
        let slow = asked(Duration::from_secs(4), 60_000_000);
        let found = skew(&[slow, asked(Duration::from_millis(2), 250_000)]);
        assert_eq!(
            found.found,
            "the server is 0.250 s ahead of this machine, give or take 0.001 s"
        );
        assert_eq!(found.verdict, Verdict::Ok);
        let found = skew(&[asked(Duration::from_millis(2), -7_000_000)]);
        assert!(found.found.starts_with("the server is 7.000 s behind this machine"));
        assert_eq!(found.verdict, Verdict::Note);
        let unsure = skew(&[asked(Duration::from_secs(6), -7_000_000)]);
        assert_eq!(unsure.verdict, Verdict::Ok, "it may be 4 s: {}", unsure.found);
        assert_eq!(skew(&[]).verdict, Verdict::Failed);
    }
}

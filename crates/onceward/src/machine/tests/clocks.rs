//! The lease and the retention are two clocks, and the fence grows whatever they show.

use super::*;

#[test]
fn retention_does_not_touch_what_is_not_at_rest() {
    let much_later = at(RESTED + 10 * (RETENTION + TOMBSTONE));
    for state in [State::Pending, State::InProgress, State::Unknown] {
        let record = record_in(state);
        assert_eq!(reap(&record, much_later), Change::Keep, "{state:?}");
        assert_eq!(load(Some(&record), much_later), Some(record));
    }
    for state in [State::Completed, State::FailedRetryable, State::Expired] {
        assert_eq!(reap(&record_in(state), much_later), Change::Remove, "{state:?}");
    }
}

#[test]
fn the_end_of_the_lease_does_not_touch_what_is_at_rest() {
    for state in [State::Completed, State::FailedRetryable, State::Unknown, State::Expired] {
        let record = record_in(state);
        assert_eq!(sweep(&record, at(LEASE + 1)), Step::keep(None), "{state:?}");
        assert_eq!(load(Some(&record), at(LEASE + 1)), Some(record));
    }
}

#[test]
fn retention_counts_from_completion_and_not_from_the_reserve() {
    let first = record_in(State::InProgress);
    let late = at(RETENTION + 5);
    let record = put(write(Some(&first), &lease(&first), Write::Complete(reply("a")), late));
    assert_eq!(load(Some(&record), late), Some(record.clone()));
    assert_eq!(record.expires_at, at(RETENTION + 5 + RETENTION));
}

#[test]
fn retention_ends_exactly_then() {
    let record = record_in(State::Completed);
    let end = at(RESTED + RETENTION);
    let just_before = Timestamp::from_micros(end.as_micros() - 1);
    assert_eq!(load(Some(&record), just_before), Some(record.clone()));
    assert_eq!(reap(&record, just_before), Change::Keep);
    let runs_again = Ask { expired_runs_again: true, ..retry() };
    assert_eq!(occupied(reserve(Some(&record), &runs_again, just_before)), record);
    assert_eq!(load(Some(&record), end).expect("a tombstone").state, State::Expired);
    assert_eq!(granted(reserve(Some(&record), &runs_again, end)).2, Found::Expired);
}

#[test]
fn a_tombstone_stays_one_when_the_clock_goes_back() {
    let tombstone = record_in(State::Expired);
    let seen = occupied(reserve(Some(&tombstone), &retry(), at(20)));
    assert_eq!(seen, tombstone);
}

#[test]
fn a_live_lease_stays_live_when_the_clock_goes_back() {
    let record = record_in(State::InProgress);
    let earlier = Timestamp::from_micros(at(0).as_micros() - 1_000_000_000);
    assert_eq!(sweep(&record, earlier), Step::keep(None));
    assert_eq!(occupied(reserve(Some(&record), &retry(), earlier)), record);
    let step = write(Some(&record), &lease(&record), Write::Renew(Duration::ZERO), earlier);
    assert_eq!(put(step).lease_until, record.lease_until);
}

#[test]
fn the_fence_grows_with_every_grant_and_never_comes_back() {
    let runs_again = |attempt: u8| Ask {
        attempt: AttemptId::from_bytes([attempt; 16]),
        expired_runs_again: true,
        ..ask()
    };
    let mut fences = Vec::new();
    let (mut record, lease, _) = granted(reserve(None, &runs_again(1), at(0)));
    fences.push(lease.fence);
    let mut grant = |record: &mut Record, now: Timestamp| {
        let attempt = u8::try_from(fences.len() + 1).expect("few grants");
        let (next, lease, _) = granted(reserve(Some(record), &runs_again(attempt), now));
        assert_eq!(lease.fence, next.fence);
        fences.push(lease.fence);
        *record = next;
    };
    let release = |record: &mut Record, now: Timestamp| {
        let what = Write::Release("not_sent".into());
        *record = put(write(Some(record), &super::lease(record), what, now));
    };
    // Again in the same microsecond.
    release(&mut record, at(0));
    grant(&mut record, at(0));
    // With a clock that stepped back by an hour.
    release(&mut record, at(3_600));
    grant(&mut record, at(3_600));
    release(&mut record, at(0));
    grant(&mut record, at(0));
    // As the next generation.
    release(&mut record, at(10));
    grant(&mut record, at(10 + RETENTION));
    assert_eq!(record.generation, 2);
    // As a new record in the place of a purged one that nobody reaped.
    release(&mut record, at(20 + RETENTION));
    grant(&mut record, at(20 + 2 * RETENTION + TOMBSTONE));
    assert_eq!(record.generation, 1);
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");

    // As a new record after the reaper removed the old one: the clock went on.
    let (_, lease, _) = granted(reserve(None, &runs_again(99), at(21 + 2 * RETENTION + TOMBSTONE)));
    assert!(fences.iter().all(|old| *old < lease.fence));
}

#[test]
fn a_fence_is_the_time_unless_that_would_go_back() {
    let now = at(5);
    assert_eq!(Fence::next(None, now).number(), now.as_micros());
    assert_eq!(Fence::next(Some(Fence::from_stored(7)), now).number(), now.as_micros());
    let ahead = Fence::from_stored(now.as_micros() + 10);
    assert_eq!(Fence::next(Some(ahead), now).number(), now.as_micros() + 11);
    assert_eq!(Fence::next(None, Timestamp::from_micros(-5)).number(), 1);
}

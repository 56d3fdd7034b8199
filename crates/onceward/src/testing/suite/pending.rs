//! Work that is accepted now and claimed later.

use crate::{
    record::State,
    store::{Ask, Found, Mode, Reservation, Write, Written},
    testing::{
        Harness,
        samples::{LEASE, RETENTION, another_request, ask, claim, reply, retry},
    },
};

async fn accepted(on: &Harness) -> Ask {
    let ask = Ask { mode: Mode::Accept, ..ask("key") };
    assert_eq!(on.reserve(&ask).await, Reservation::Accepted { found: Found::Absent });
    ask
}

/// Accepted work is pending until it is claimed, and then runs.
pub async fn accepted_work_is_pending_until_it_is_claimed(on: Harness) {
    let ask = accepted(&on).await;
    let record = on.occupied(&retry(&ask)).await;
    assert_eq!((record.state, record.attempts), (State::Pending, 0));
    let Reservation::Granted { lease, found } = on.claim(&claim(&ask)).await else {
        panic!("expected a grant")
    };
    assert_eq!((found, lease.attempt_number), (Found::Pending, 1));
    assert!(lease.fence > record.fence);
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    assert_eq!(on.occupied(&retry(&ask)).await.reply, Some(reply("done")));
}

/// An accept that is repeated after a lost answer is accepted again.
pub async fn a_repeated_accept_of_one_attempt_is_accepted_again(on: Harness) {
    let ask = accepted(&on).await;
    let before = on.record(&ask.id).await;
    assert_eq!(on.reserve(&ask).await, Reservation::Accepted { found: Found::Mine });
    assert_eq!(on.record(&ask.id).await, before);
    assert_eq!(on.occupied(&retry(&ask)).await, before);
    assert_eq!(on.occupied(&another_request(&ask)).await, before);
}

/// Two workers, one claim.
pub async fn pending_work_is_claimed_by_one_worker(on: Harness) {
    let ask = accepted(&on).await;
    let (mine, theirs) = (claim(&ask), claim(&ask));
    let first = on.claim(&mine).await;
    assert!(matches!(first, Reservation::Granted { found: Found::Pending, .. }), "{first:?}");
    let second = on.claim(&theirs).await;
    assert!(matches!(second, Reservation::Occupied { .. }), "{second:?}");
    // Repeated after a lost answer, it is still the first one's.
    let again = on.claim(&mine).await;
    assert!(matches!(again, Reservation::Granted { found: Found::Mine, .. }), "{again:?}");
}

/// There is nothing to claim where nothing waits.
pub async fn only_pending_work_can_be_claimed(on: Harness) {
    assert_eq!(on.claim(&claim(&ask("no-such-key"))).await, Reservation::Free);
    let states = [
        ("running", None),
        ("completed", Some(Write::Complete(reply("done")))),
        ("retryable", Some(Write::Release("not_sent".into()))),
        ("unknown", Some(Write::MarkUnknown("reset".into()))),
    ];
    for (key, write) in states {
        let ask = ask(key);
        let lease = on.grant(&ask).await;
        if let Some(write) = write {
            assert_eq!(on.write(&lease, write).await, Written::Applied);
        }
        let before = on.record(&ask.id).await;
        let answer = on.claim(&claim(&ask)).await;
        let expected =
            Reservation::Occupied { record: Box::new(before.clone()), lease_ran_out: false };
        assert_eq!(answer, expected, "{key}");
        assert_eq!(on.record(&ask.id).await, before, "{key}");
    }
}

/// Pending work has no lease to run out and no retention.
pub async fn pending_work_waits_as_long_as_it_takes(on: Harness) {
    let ask = accepted(&on).await;
    on.clock.advance(RETENTION * 100);
    assert_eq!(on.sweep(10).await, []);
    assert_eq!(on.record(&ask.id).await.state, State::Pending);
    let claimed = on.claim(&claim(&ask)).await;
    assert!(matches!(claimed, Reservation::Granted { .. }), "{claimed:?}");
}

/// Who accepted the work cannot write to it before it was claimed.
pub async fn pending_work_cannot_be_written_to(on: Harness) {
    let ask = accepted(&on).await;
    let record = on.record(&ask.id).await;
    let lease = crate::record::Lease {
        id: ask.id.clone(),
        attempt: record.attempt,
        fence: record.fence,
        generation: 1,
        attempt_number: 0,
        until: on.now().plus(LEASE),
    };
    let written = on.write(&lease, Write::Complete(reply("early"))).await;
    assert!(matches!(written, Written::Superseded(Some(_))), "{written:?}");
    assert_eq!(on.record(&ask.id).await, record);
}

/// A retryable key can be accepted for later, too.
pub async fn a_released_record_can_be_accepted_for_later(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::Release("not_sent".into())).await, Written::Applied);
    let later = Ask { mode: Mode::Accept, ..retry(&ask) };
    assert_eq!(on.reserve(&later).await, Reservation::Accepted { found: Found::Retryable });
    assert_eq!(on.record(&ask.id).await.state, State::Pending);
    let Reservation::Granted { lease, .. } = on.claim(&claim(&ask)).await else {
        panic!("expected a grant")
    };
    assert_eq!(lease.attempt_number, 2);
}

//! What an attempt may write, and what happens to one that lost its right.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;

use crate::{
    record::{AttemptId, AuditEvent, Effects, Fence, Lease, State},
    store::{Ask, Write, Written},
    testing::{
        Harness,
        samples::{LEASE, RETENTION, TOMBSTONE, ask, reply, retry},
    },
};

fn all_writes() -> [Write; 4] {
    [
        Write::Renew(LEASE),
        Write::Complete(reply("late")),
        Write::Release("late".into()),
        Write::MarkUnknown("late".into()),
    ]
}

/// A first attempt that was replaced by a second one, both leases.
async fn replaced(on: &Harness, key: &str) -> (Lease, Lease) {
    let ask = Ask { effects: Effects::None, ..ask(key) };
    let first = on.grant(&ask).await;
    on.clock.advance(LEASE);
    (first, on.grant(&retry(&ask)).await)
}

async fn refused(on: &Harness, lease: &Lease, write: Write) {
    let before = on.load(&lease.id).await;
    match on.write(lease, write.clone()).await {
        Written::Superseded(record) => assert_eq!(record.map(|record| *record), before),
        other => panic!("expected {write:?} to be superseded, found {other:?}"),
    }
    assert_eq!(on.load(&lease.id).await, before, "a superseded write changes nothing");
}

/// Retention counts from the completion.
pub async fn completing_starts_retention(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    on.clock.advance(Duration::from_secs(17));
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    let record = on.record(&ask.id).await;
    assert_eq!(record.finished_at, Some(on.now()));
    assert_eq!(record.expires_at, on.now().plus(RETENTION));
}

/// A release says why and leaves no reply.
pub async fn releasing_says_why_and_keeps_no_reply(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::Release("not_sent".into())).await, Written::Applied);
    let record = on.record(&ask.id).await;
    assert_eq!((record.state, record.reply), (State::FailedRetryable, None));
    assert_eq!(record.last_error.as_deref(), Some("not_sent"));
}

/// An unknown outcome asks for a reconciler.
pub async fn marking_unknown_asks_for_a_reconciler(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    on.clock.advance(Duration::from_secs(1));
    assert_eq!(on.write(&lease, Write::MarkUnknown("reset".into())).await, Written::Applied);
    let record = on.record(&ask.id).await;
    assert_eq!((record.state, record.reconcile_after), (State::Unknown, Some(on.now())));
    assert_eq!(record.last_error.as_deref(), Some("reset"));
}

/// Renewing moves the end of the lease and nothing else.
pub async fn renewing_moves_only_the_lease_end(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    let before = on.record(&ask.id).await;
    on.clock.advance(LEASE / 3);
    assert_eq!(on.write(&lease, Write::Renew(LEASE)).await, Written::Applied);
    let mut expected = before;
    expected.lease_until = on.now().plus(LEASE);
    assert_eq!(on.record(&ask.id).await, expected);
}

/// A shorter renewal does not take back what was promised.
pub async fn renewing_never_shortens_a_lease(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::Renew(Duration::from_secs(1))).await, Written::Applied);
    assert_eq!(on.record(&ask.id).await.lease_until, lease.until);
}

/// Completing again is acknowledged again, and applied once.
pub async fn completing_twice_is_applied_once(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    let before = on.record(&ask.id).await;
    on.clock.advance(Duration::from_secs(5));
    // The stored bytes count, even if the second call has others.
    for body in ["done", "other bytes"] {
        let again = on.write(&lease, Write::Complete(reply(body))).await;
        assert_eq!(again, Written::AlreadyMine(Some(reply("done"))));
    }
    assert_eq!(on.record(&ask.id).await, before);
    assert_eq!(on.audit(&ask.id).await, []);
}

/// Releasing again is acknowledged again.
pub async fn releasing_twice_is_applied_once(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    let release = Write::Release("not_sent".into());
    assert_eq!(on.write(&lease, release.clone()).await, Written::Applied);
    let before = on.record(&ask.id).await;
    on.clock.advance(Duration::from_secs(5));
    assert_eq!(on.write(&lease, release).await, Written::AlreadyMine(None));
    assert_eq!(on.record(&ask.id).await, before);
}

/// Marking unknown again is acknowledged again.
pub async fn marking_unknown_twice_is_applied_once(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    let unknown = Write::MarkUnknown("reset".into());
    assert_eq!(on.write(&lease, unknown.clone()).await, Written::Applied);
    let before = on.record(&ask.id).await;
    on.clock.advance(Duration::from_secs(5));
    assert_eq!(on.write(&lease, unknown).await, Written::AlreadyMine(None));
    assert_eq!(on.record(&ask.id).await, before);
}

/// A renewal that crosses its own completion is not alarmed.
pub async fn renewing_what_one_has_completed_changes_nothing(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    let before = on.record(&ask.id).await;
    let renewed = on.write(&lease, Write::Renew(LEASE * 10)).await;
    assert_eq!(renewed, Written::AlreadyMine(Some(reply("done"))));
    assert_eq!(on.record(&ask.id).await, before);
}

/// A reply is final: its own attempt cannot take it back.
pub async fn a_completed_record_cannot_be_released_or_marked_by_its_attempt(on: Harness) {
    let lease = on.grant(&ask("key")).await;
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    let before = on.record(&lease.id).await;
    for write in [Write::Release("not_sent".into()), Write::MarkUnknown("reset".into())] {
        assert_eq!(on.write(&lease, write).await, Written::AlreadyMine(Some(reply("done"))));
    }
    assert_eq!(on.record(&lease.id).await, before);
}

/// State and fence decide, not lease time.
pub async fn a_late_owner_that_nobody_replaced_completes(on: Harness) {
    let lease = on.grant(&ask("key")).await;
    on.clock.advance(LEASE * 100);
    assert_eq!(on.write(&lease, Write::Complete(reply("late"))).await, Written::Applied);
    assert_eq!(on.record(&lease.id).await.reply, Some(reply("late")));
    assert_eq!(on.audit(&lease.id).await, []);
}

/// State and fence decide, not lease time: a late renewal brings the lease back to life.
pub async fn a_late_owner_that_nobody_replaced_renews(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    on.clock.advance(LEASE * 2);
    assert_eq!(on.write(&lease, Write::Renew(LEASE)).await, Written::Applied);
    assert_eq!(on.sweep(10).await, []);
    assert_eq!(on.occupied(&retry(&ask)).await.state, State::InProgress);
}

/// The new owner's record is not completed by the old one.
pub async fn a_superseded_lease_cannot_complete(on: Harness) {
    let (first, second) = replaced(&on, "key").await;
    refused(&on, &first, Write::Complete(reply("late"))).await;
    assert_eq!(on.write(&second, Write::Complete(reply("mine"))).await, Written::Applied);
    refused(&on, &first, Write::Complete(reply("late"))).await;
    assert_eq!(on.record(&first.id).await.reply, Some(reply("mine")));
}

/// The new owner's record is not freed by the old one.
pub async fn a_superseded_lease_cannot_release(on: Harness) {
    let (first, second) = replaced(&on, "key").await;
    refused(&on, &first, Write::Release("not_sent".into())).await;
    assert_eq!(on.write(&second, Write::Release("not_sent".into())).await, Written::Applied);
}

/// The new owner's lease is not prolonged by the old one.
pub async fn a_superseded_lease_cannot_renew(on: Harness) {
    let (first, second) = replaced(&on, "key").await;
    refused(&on, &first, Write::Renew(LEASE * 10)).await;
    assert_eq!(on.write(&second, Write::Renew(LEASE)).await, Written::Applied);
}

/// The new owner's outcome is not put in doubt by the old one.
pub async fn a_superseded_lease_cannot_mark_unknown(on: Harness) {
    let (first, second) = replaced(&on, "key").await;
    refused(&on, &first, Write::MarkUnknown("reset".into())).await;
    assert_eq!(on.write(&second, Write::MarkUnknown("reset".into())).await, Written::Applied);
}

/// The result of an attempt that lost its right is kept, with its bytes, and kept once.
pub async fn a_superseded_result_is_kept_as_evidence_once(on: Harness) {
    let (first, _second) = replaced(&on, "key").await;
    let trail = on.audit(&first.id).await.len();
    for _ in 0..3 {
        refused(&on, &first, Write::Complete(reply("late"))).await;
    }
    let audit = on.audit(&first.id).await;
    assert_eq!(audit.len(), trail + 1);
    let evidence = audit.last().expect("evidence");
    assert_eq!(evidence.event, AuditEvent::SupersededResult);
    assert_eq!((evidence.attempt, evidence.fence), (first.attempt, first.fence));
    assert_eq!((evidence.reply.as_ref(), evidence.at), (Some(&reply("late")), on.now()));
    // Other writes carry nothing worth keeping.
    refused(&on, &first, Write::Release("not_sent".into())).await;
    assert_eq!(on.audit(&first.id).await.len(), trail + 1);
}

/// The fence alone, or the attempt alone, opens nothing.
pub async fn a_write_needs_its_attempt_and_its_fence(on: Harness) {
    let lease = on.grant(&ask("key")).await;
    let Lease { attempt, fence, generation, attempt_number, until, .. } = lease;
    let with = |attempt: AttemptId, fence: i64| Lease {
        id: lease.id.clone(),
        attempt,
        fence: Fence::from_stored(fence),
        generation,
        attempt_number,
        until,
    };
    let forged = [
        with(AttemptId::random(), fence.number()),
        with(attempt, fence.number() - 1),
        with(attempt, fence.number() + 1),
    ];
    for lease in &forged {
        for write in all_writes() {
            refused(&on, lease, write).await;
        }
    }
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
}

/// The same where many writes come together, among them some that are right.
pub async fn writes_that_come_together_need_their_attempts_and_fences(on: Harness) {
    let mut leases = Vec::new();
    for number in 0..60 {
        let right = on.grant(&ask(&format!("key-{number}"))).await;
        let (attempt, fence) = match number % 3 {
            0 => (right.attempt, right.fence.number()),
            1 => (AttemptId::random(), right.fence.number()),
            _ => (right.attempt, right.fence.number() + 1),
        };
        leases.push(Lease { attempt, fence: Fence::from_stored(fence), ..right });
    }
    let mut tasks = JoinSet::new();
    for (number, lease) in leases.into_iter().enumerate() {
        let store = Arc::clone(&on.store);
        let complete = Write::Complete(reply(format!("reply-{number}")));
        tasks.spawn(async move { (number, store.write(&lease, complete).await) });
    }
    for (number, written) in tasks.join_all().await {
        let written = written.expect("write answers");
        assert_eq!(written == Written::Applied, number % 3 == 0, "{number}: {written:?}");
        let id = ask(&format!("key-{number}")).id;
        let record = on.store.load(&id).await.expect("load answers").expect("a record");
        let expected = (number % 3 == 0).then(|| reply(format!("reply-{number}")));
        assert_eq!(record.reply, expected, "{number}");
    }
}

/// A write to a key that was never reserved is refused and makes nothing.
pub async fn a_write_to_nothing_makes_nothing(on: Harness) {
    let other = on.grant(&ask("key")).await;
    let nobody = Lease { id: ask("no-such-key").id, ..other };
    for write in all_writes() {
        assert_eq!(on.write(&nobody, write).await, Written::Superseded(None));
    }
    assert_eq!(on.load(&nobody.id).await, None);
}

/// An owner from before the purge cannot write into the record that was made after it.
pub async fn an_old_lease_cannot_write_to_a_record_that_was_purged_and_made_again(on: Harness) {
    let ask = Ask { effects: Effects::None, ..ask("key") };
    let old = on.grant(&ask).await;
    on.clock.advance(LEASE);
    assert_eq!(on.sweep(10).await.len(), 1);
    on.clock.advance(RETENTION + TOMBSTONE);
    assert_eq!(on.reap(10).await.purged, 1);
    // It is gone: the old owner finds nothing.
    assert_eq!(on.write(&old, Write::Complete(reply("late"))).await, Written::Superseded(None));
    // It is there again: the old owner finds somebody else's.
    let new = on.grant(&retry(&ask)).await;
    assert!(new.fence > old.fence, "the fence grows across the purge");
    for write in all_writes() {
        refused(&on, &old, write).await;
    }
    assert_eq!(on.write(&new, Write::Complete(reply("new"))).await, Written::Applied);
}

/// An owner of an earlier generation cannot write into a later one.
pub async fn an_old_lease_cannot_write_to_the_next_generation(on: Harness) {
    let ask = Ask { expired_runs_again: true, ..ask("key") };
    let old = on.grant(&ask).await;
    assert_eq!(on.write(&old, Write::Complete(reply("old"))).await, Written::Applied);
    on.clock.advance(RETENTION);
    let new = on.grant(&retry(&ask)).await;
    assert_eq!(new.generation, 2);
    for write in all_writes() {
        refused(&on, &old, write).await;
    }
    let evidence = on.audit(&ask.id).await;
    assert_eq!(evidence.last().map(|audit| audit.generation), Some(1));
}

/// The attempt that was marked unknown knows best: its late result counts, and is audited.
pub async fn a_late_complete_by_the_unknown_attempt_is_accepted_and_audited(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    on.clock.advance(LEASE);
    assert_eq!(on.sweep(10).await.len(), 1);
    assert_eq!(on.write(&lease, Write::Complete(reply("late"))).await, Written::Applied);
    let record = on.occupied(&retry(&ask)).await;
    assert_eq!((record.state, record.reply), (State::Completed, Some(reply("late"))));
    let events: Vec<_> = on.audit(&ask.id).await.into_iter().map(|audit| audit.event).collect();
    assert_eq!(events, [AuditEvent::LeaseExpired, AuditEvent::LateCompletion]);
}

/// A late word that nothing happened is not believed: only a result is.
pub async fn a_late_release_by_the_unknown_attempt_is_refused(on: Harness) {
    let lease = on.grant(&ask("key")).await;
    assert_eq!(on.write(&lease, Write::MarkUnknown("reset".into())).await, Written::Applied);
    refused(&on, &lease, Write::Release("not_sent".into())).await;
    refused(&on, &lease, Write::Renew(LEASE)).await;
}

//! What reconcilers and operators decide.

use std::time::Duration;

use crate::{
    machine::{EXECUTED_AFTER_ALL, SETTLE},
    record::{AuditEvent, Effects, Fence, Lease, RecordId, State},
    store::{Ask, Proof, Resolution, Resolve, Resolved, Write, Written},
    testing::{
        Harness,
        samples::{LEASE, MAX_EXECUTION, RETENTION, another_request, ask, reply, retry},
    },
};

async fn unknown(on: &Harness) -> Ask {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::MarkUnknown("reset".into())).await, Written::Applied);
    ask
}

async fn events(on: &Harness, id: &RecordId) -> Vec<AuditEvent> {
    on.audit(id).await.into_iter().map(|audit| audit.event).collect()
}

fn all_resolutions() -> [Resolution; 3] {
    [
        Resolution::Complete(reply("found")),
        Resolution::Release(Proof::Authoritative),
        Resolution::Void,
    ]
}

/// A reconciler found the result: retries get it.
pub async fn an_unknown_record_is_resolved_as_completed(on: Harness) {
    let ask = unknown(&on).await;
    on.resolved(&ask.id, Resolution::Complete(reply("found"))).await;
    let record = on.occupied(&retry(&ask)).await;
    assert_eq!((record.state, record.reply), (State::Completed, Some(reply("found"))));
    let audit = on.audit(&ask.id).await;
    let last = audit.last().expect("an audit record");
    assert_eq!((last.event, &*last.reason), (AuditEvent::ResolvedCompleted, "ticket 7"));
    assert_eq!(last.reply, Some(reply("found")));
}

/// A source that cannot be wrong said that nothing happened: a retry runs.
pub async fn an_unknown_record_is_released_on_authority(on: Harness) {
    let ask = unknown(&on).await;
    on.resolved(&ask.id, Resolution::Release(Proof::Authoritative)).await;
    assert_eq!(events(&on, &ask.id).await, [AuditEvent::Released]);
    assert_eq!(on.occupied(&another_request(&ask)).await.state, State::FailedRetryable);
    assert_eq!(on.grant(&retry(&ask)).await.attempt_number, 2);
}

/// Two probes that found nothing count only when they came late enough and apart enough.
pub async fn two_probes_release_an_unknown_record_only_when_late_and_apart_enough(on: Harness) {
    let ask = unknown(&on).await;
    let quiet = on.record(&ask.id).await.lease_until.plus(MAX_EXECUTION).plus(SETTLE);
    on.clock.set(quiet.plus(SETTLE * 10));
    let probes = |first, second| Resolution::Release(Proof::TwoProbes { first, second });
    let not_before = quiet.plus(SETTLE);
    let just_before = crate::clock::Timestamp::from_micros(quiet.as_micros() - 1);
    let early = on.resolve(&ask.id, probes(just_before, on.now())).await;
    assert_eq!(early, Resolved::TooEarly { not_before });
    let close = on.resolve(&ask.id, probes(quiet, quiet.plus(SETTLE / 2))).await;
    assert_eq!(close, Resolved::TooEarly { not_before });
    assert_eq!(on.record(&ask.id).await.state, State::Unknown);
    assert_eq!(events(&on, &ask.id).await, []);
    on.resolved(&ask.id, probes(quiet, not_before)).await;
    assert_eq!(on.record(&ask.id).await.state, State::FailedRetryable);
}

/// What the attempt itself says after somebody else resolved its outcome is kept as evidence.
pub async fn a_result_after_the_outcome_was_resolved_is_kept_and_not_applied(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::MarkUnknown("reset".into())).await, Written::Applied);
    on.resolved(&ask.id, Resolution::Complete(reply("found"))).await;
    let late = on.write(&lease, Write::Complete(reply("late"))).await;
    assert!(matches!(late, Written::Superseded(Some(_))), "{late:?}");
    assert_eq!(on.record(&ask.id).await.reply, Some(reply("found")));
    let kept = on.audit(&ask.id).await.pop().expect("an audit record");
    assert_eq!((kept.event, kept.reply), (AuditEvent::SupersededResult, Some(reply("late"))));
}

/// A withdrawn reply frees its key as the next generation, even where expired keys are refused.
pub async fn a_void_reply_frees_the_key_as_the_next_generation(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::Complete(reply("wrong"))).await, Written::Applied);
    on.resolved(&ask.id, Resolution::Void).await;
    let record = on.record(&ask.id).await;
    let left = Some(reply("wrong").status_only());
    assert_eq!((record.state, record.void, record.reply), (State::Expired, true, left));
    assert_eq!(events(&on, &ask.id).await, [AuditEvent::Voided]);
    assert!(!ask.expired_runs_again);
    let lease = on.grant(&another_request(&ask)).await;
    assert_eq!((lease.generation, lease.attempt_number), (2, 1));
    assert!(!on.record(&ask.id).await.void);
}

/// Who looked at an older generation or grant decides nothing.
pub async fn a_resolution_needs_the_generation_and_fence_it_looked_at(on: Harness) {
    let ask = unknown(&on).await;
    let record = on.record(&ask.id).await;
    for resolution in all_resolutions() {
        let looked_at = |generation, fence| Resolve {
            id: ask.id.clone(),
            generation,
            fence: Fence::from_stored(fence),
            resolution: resolution.clone(),
            reason: "ticket 7".into(),
        };
        let fence = record.fence.number();
        for stale in [looked_at(2, fence), looked_at(1, fence - 1), looked_at(1, fence + 1)] {
            assert_eq!(on.resolve_as(stale).await, Resolved::Refused(Box::new(record.clone())));
        }
    }
    assert_eq!(events(&on, &ask.id).await, []);
}

/// Nobody decides about an attempt that is alive.
pub async fn a_live_lease_cannot_be_resolved(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    for resolution in all_resolutions() {
        let refused = on.resolve(&ask.id, resolution).await;
        assert!(matches!(refused, Resolved::Refused(_)), "{refused:?}");
    }
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
}

/// Each state can be resolved in its own way only.
pub async fn only_unknown_is_completed_or_released_and_only_completed_is_void(on: Harness) {
    let states: [(&str, Write, &[usize]); 3] = [
        ("completed", Write::Complete(reply("done")), &[2]),
        ("retryable", Write::Release("not_sent".into()), &[]),
        ("unknown", Write::MarkUnknown("reset".into()), &[0, 1]),
    ];
    for (name, write, allowed) in states {
        for (number, resolution) in all_resolutions().into_iter().enumerate() {
            let ask = ask(&format!("{name}-{number}"));
            let lease = on.grant(&ask).await;
            assert_eq!(on.write(&lease, write.clone()).await, Written::Applied);
            let resolved = on.resolve(&ask.id, resolution).await;
            let applied = matches!(resolved, Resolved::Applied(_));
            assert_eq!(applied, allowed.contains(&number), "{name} {resolved:?}");
        }
    }
}

/// There is nothing to resolve where there is no record.
pub async fn a_resolution_of_nothing_finds_nothing(on: Harness) {
    for resolution in all_resolutions() {
        let resolve = Resolve {
            id: ask("no-such-key").id,
            generation: 1,
            fence: Fence::from_stored(1),
            resolution,
            reason: "ticket 7".into(),
        };
        assert_eq!(on.resolve_as(resolve).await, Resolved::Absent);
    }
}

/// A vanished attempt is resolved as what its lease made of it, swept or not.
pub async fn a_vanished_attempt_can_be_resolved_before_it_is_swept(on: Harness) {
    let ask = ask("key");
    on.occupy(&ask).await;
    on.clock.advance(LEASE);
    on.resolved(&ask.id, Resolution::Complete(reply("found"))).await;
    assert_eq!(on.sweep(10).await, []);
    let harmless = Ask { effects: Effects::None, ..self::ask("harmless") };
    on.occupy(&harmless).await;
    on.clock.advance(LEASE);
    let refused = on.resolve(&harmless.id, Resolution::Complete(reply("found"))).await;
    assert!(matches!(refused, Resolved::Refused(_)), "{refused:?}");
}

/// An attempt that was said not to have acted, and by whom.
async fn released(on: &Harness, ask: &Ask) -> Lease {
    let lease = on.grant(ask).await;
    assert_eq!(on.write(&lease, Write::MarkUnknown("reset".into())).await, Written::Applied);
    on.clock.advance(Duration::from_secs(1));
    on.resolved(&ask.id, Resolution::Release(Proof::Authoritative)).await;
    lease
}

/// The owner was alive after all, and nobody has run it again: its reply stands, and retries get it.
pub async fn a_result_after_the_release_completes_what_nobody_has_taken_since(on: Harness) {
    for effects in Effects::ALL {
        let ask = Ask { effects, ..ask(effects.name()) };
        let lease = released(&on, &ask).await;
        let late = Write::Complete(reply("late"));
        assert_eq!(on.write(&lease, late.clone()).await, Written::AppliedAfterRelease);
        let record = on.record(&ask.id).await;
        assert_eq!((record.state, &record.reply), (State::Completed, &Some(reply("late"))));
        assert_eq!((record.attempt, record.fence), (lease.attempt, lease.fence));
        assert_eq!(record.last_error.as_deref(), Some(EXECUTED_AFTER_ALL));
        assert_eq!(record.expires_at, on.now().plus(RETENTION));
        // Its answer may have been lost.
        on.clock.advance(Duration::from_secs(1));
        assert_eq!(on.write(&lease, late).await, Written::AlreadyMine(Some(reply("late"))));
        assert_eq!(on.occupied(&retry(&ask)).await.reply, Some(reply("late")), "no retry runs");
        let incident = on.audit(&ask.id).await.pop().expect("an incident");
        assert_eq!((incident.event, incident.reply), (AuditEvent::Incident, Some(reply("late"))));
        assert_eq!(events(&on, &ask.id).await, [AuditEvent::Released, AuditEvent::Incident]);
    }
}

/// Whoever has the record now is not disturbed, and neither is whoever waits for it by another fence.
pub async fn a_result_after_the_release_is_evidence_once_another_has_the_record(on: Harness) {
    let ask = ask("key");
    let first = released(&on, &ask).await;
    let second = on.grant(&retry(&ask)).await;
    let before = on.record(&ask.id).await;
    let late = on.write(&first, Write::Complete(reply("late"))).await;
    assert!(matches!(late, Written::Superseded(Some(_))), "{late:?}");
    assert_eq!(on.record(&ask.id).await, before);
    let expected = [AuditEvent::Released, AuditEvent::SupersededResult];
    assert_eq!(events(&on, &ask.id).await, expected);
    assert_eq!(on.write(&second, Write::Complete(reply("done"))).await, Written::Applied);
    assert_eq!(on.record(&ask.id).await.reply, Some(reply("done")));
}

/// Only a reply says that it did act: everything else leaves the record free for a retry.
pub async fn what_else_is_written_after_the_release_changes_nothing(on: Harness) {
    let ask = ask("key");
    let lease = released(&on, &ask).await;
    let before = on.record(&ask.id).await;
    let release = on.write(&lease, Write::Release("not_sent".into())).await;
    assert_eq!(release, Written::AlreadyMine(None));
    for write in [Write::Renew(LEASE), Write::MarkUnknown("timeout".into())] {
        let late = on.write(&lease, write).await;
        assert!(matches!(late, Written::Superseded(Some(_))), "{late:?}");
    }
    assert_eq!(on.record(&ask.id).await, before);
    assert_eq!(events(&on, &ask.id).await, [AuditEvent::Released]);
    assert_eq!(on.grant(&retry(&ask)).await.attempt_number, 2);
}

/// An attempt that has said itself that it did not act is not believed the contrary.
pub async fn a_result_after_ones_own_release_is_evidence(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::Release("not_sent".into())).await, Written::Applied);
    let late = on.write(&lease, Write::Complete(reply("late"))).await;
    assert!(matches!(late, Written::Superseded(Some(_))), "{late:?}");
    assert_eq!(events(&on, &ask.id).await, [AuditEvent::SupersededResult]);
    assert_eq!(on.grant(&retry(&ask)).await.attempt_number, 2);
}

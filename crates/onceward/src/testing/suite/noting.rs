//! Provider ids: whose they are, and for how long.

use std::time::Duration;

use crate::{
    record::{AuditEvent, Lease, ProviderId, ProviderNote, RecordId},
    store::{Ask, Noted, Proof, Reservation, Resolution, Write},
    testing::{
        Harness,
        samples::{LEASE, RETENTION, TOMBSTONE, ask, id, reply, retry},
    },
};

const MICROSECOND: Duration = Duration::from_micros(1);

fn named(text: &str) -> ProviderId {
    text.parse().expect("a provider id")
}

async fn note(on: &Harness, lease: &Lease, text: &str) -> Noted {
    on.store.note_provider_id(lease, named(text)).await.expect("it is answered")
}

async fn whose(on: &Harness, text: &str) -> Option<ProviderNote> {
    on.store.by_provider_id(&named(text)).await.expect("it is answered")
}

async fn ids_of(on: &Harness, records: &[&RecordId]) -> Vec<String> {
    let of = records.iter().map(|id| (*id).clone()).collect();
    let notes = on.store.provider_ids(of).await.expect("they are told");
    notes.iter().map(|note| format!("{} {}", note.record.key.as_str(), note.id)).collect()
}

/// While the attempt is at work.
pub async fn an_operation_is_found_by_its_provider_id(on: Harness) {
    let lease = on.grant(&ask("key")).await;
    assert_eq!(whose(&on, "ch_1").await, None);
    on.clock.advance(MICROSECOND);
    assert_eq!(note(&on, &lease, "ch_1").await, Noted::Applied);
    let expected = ProviderNote {
        id: named("ch_1"),
        record: lease.id.clone(),
        generation: 1,
        attempt: lease.attempt,
        fence: lease.fence,
        at: on.now(),
    };
    assert_eq!(whose(&on, "ch_1").await, Some(expected.clone()));
    assert_eq!(whose(&on, "ch_2").await, None);
    assert_eq!(whose(&on, "CH_1").await, None, "case counts");
    let all = on.store.provider_ids(vec![lease.id.clone()]).await.expect("they are told");
    assert_eq!(all, [expected]);
    // Nothing of the record has changed.
    on.record(&lease.id).await;
}

/// As after a lost answer.
pub async fn a_provider_id_that_is_noted_again_stays(on: Harness) {
    let lease = on.grant(&ask("key")).await;
    assert_eq!(note(&on, &lease, "ch_1").await, Noted::Applied);
    let first = whose(&on, "ch_1").await;
    on.clock.advance(MICROSECOND);
    assert_eq!(note(&on, &lease, "ch_1").await, Noted::AlreadyMine);
    assert_eq!(whose(&on, "ch_1").await, first);
    assert_eq!(ids_of(&on, &[&lease.id]).await, ["key ch_1"]);
    assert!(on.audit(&lease.id).await.is_empty());
}

/// Each of its own provider.
pub async fn an_operation_may_have_many_provider_ids(on: Harness) {
    let one = on.grant(&ask("one")).await;
    let two = on.grant(&ask("two")).await;
    for text in ["ch_9", "ch_1", "dhl 17"] {
        assert_eq!(note(&on, &one, text).await, Noted::Applied, "{text}");
    }
    assert_eq!(note(&on, &two, "ups 17").await, Noted::Applied);
    let none = id("tenant", "none");
    assert_eq!(
        ids_of(&on, &[&two.id, &none, &one.id]).await,
        ["two ups 17", "one ch_9", "one ch_1", "one dhl 17"]
    );
    assert!(ids_of(&on, &[]).await.is_empty());
}

/// The first keeps it. Somebody has to look.
pub async fn a_provider_id_of_another_operation_is_refused_and_an_incident(on: Harness) {
    let first = on.grant(&ask("first")).await;
    let second = on.grant(&Ask { id: id("other", "second"), ..ask("second") }).await;
    assert_eq!(note(&on, &first, "ch_1").await, Noted::Applied);
    assert_eq!(note(&on, &second, "ch_1").await, Noted::Taken);
    assert_eq!(whose(&on, "ch_1").await.expect("a note").record, first.id);
    assert!(ids_of(&on, &[&second.id]).await.is_empty());
    let audit = on.store.audit(&second.id).await.expect("audit answers");
    let [incident] = &audit[..] else { panic!("{audit:?}") };
    assert_eq!(incident.event, AuditEvent::Incident);
    assert_eq!(incident.attempt, second.attempt);
    assert_eq!((incident.fence, incident.at), (second.fence, on.now()));
    assert_eq!(&*incident.reason, "the provider id ch_1 is that of another operation");
    assert!(on.audit(&first.id).await.is_empty());
    // Of another provider it is another one.
    assert_eq!(note(&on, &second, "dhl ch_1").await, Noted::Applied);
}

/// Whoever comes first.
pub async fn of_many_that_note_one_provider_id_exactly_one_has_it(on: Harness) {
    let mut leases = Vec::new();
    for number in 0..20 {
        leases.push(on.grant(&ask(&format!("key-{number}"))).await);
    }
    let notes = leases.iter().map(|lease| on.store.note_provider_id(lease, named("ch_1")));
    let noted = futures_util::future::join_all(notes).await;
    let noted: Vec<Noted> = noted.into_iter().map(|noted| noted.expect("answered")).collect();
    let applied: Vec<usize> =
        (0..20).filter(|place| noted.get(*place) == Some(&Noted::Applied)).collect();
    let [winner] = applied[..] else { panic!("{noted:?}") };
    assert_eq!(noted.iter().filter(|noted| **noted == Noted::Taken).count(), 19);
    let holder = whose(&on, "ch_1").await.expect("a note");
    assert_eq!(Some(&holder.record), leases.get(winner).map(|lease| &lease.id));
}

/// A provider that knows idempotency keys gives the same charge to both.
pub async fn a_later_attempt_takes_the_provider_id_over(on: Harness) {
    let first = on.grant(&ask("key")).await;
    assert_eq!(note(&on, &first, "ch_1").await, Noted::Applied);
    let noted_at = on.now();
    let _ = on.write(&first, Write::Release("nothing sent".into())).await;
    on.clock.advance(MICROSECOND);
    let second = on.grant(&retry(&ask("key"))).await;
    assert_eq!(note(&on, &second, "ch_1").await, Noted::Applied);
    let held = whose(&on, "ch_1").await.expect("a note");
    assert_eq!((held.attempt, held.fence, held.at), (second.attempt, second.fence, noted_at));
    assert_eq!(note(&on, &first, "ch_1").await, Noted::AlreadyMine, "an earlier one does not");
    assert_eq!(whose(&on, "ch_1").await, Some(held));
    assert!(on.audit(&first.id).await.is_empty());
}

/// It may be the one that acted.
pub async fn an_attempt_that_lost_its_record_still_notes_its_provider_id(on: Harness) {
    let first = on.grant(&ask("key")).await;
    on.clock.advance(LEASE);
    assert_eq!(on.sweep(1).await.len(), 1);
    assert_eq!(note(&on, &first, "ch_1").await, Noted::Applied, "it is unknown");
    on.resolved(&first.id, Resolution::Release(Proof::Authoritative)).await;
    let second = on.grant(&retry(&ask("key"))).await;
    assert_eq!(note(&on, &first, "ch_2").await, Noted::Applied, "another one is at work");
    let _ = on.write(&second, Write::Complete(reply("done"))).await;
    assert_eq!(note(&on, &first, "ch_3").await, Noted::Applied, "another one has completed");
    for text in ["ch_1", "ch_2", "ch_3"] {
        assert_eq!(whose(&on, text).await.expect("a note").attempt, first.attempt, "{text}");
    }
    assert_eq!(on.record(&first.id).await.attempt, second.attempt);
}

/// Whatever becomes of the record, until it is purged.
pub async fn provider_ids_are_kept_as_long_as_the_record(on: Harness) {
    let lease = on.grant(&ask("key")).await;
    assert_eq!(note(&on, &lease, "ch_1").await, Noted::Applied);
    let _ = on.write(&lease, Write::Complete(reply("done"))).await;
    assert!(whose(&on, "ch_1").await.is_some());
    on.clock.advance(RETENTION);
    assert_eq!(on.reap(10).await.expired, 1);
    assert!(whose(&on, "ch_1").await.is_some(), "the tombstone has it");
    on.clock.advance(TOMBSTONE);
    assert_eq!(on.reap(10).await.purged, 1);
    assert_eq!(whose(&on, "ch_1").await, None);
    assert_eq!(note(&on, &lease, "ch_1").await, Noted::Absent);
    let other = on.grant(&ask("other")).await;
    assert_eq!(note(&on, &other, "ch_1").await, Noted::Applied);
    assert_eq!(ids_of(&on, &[&lease.id, &other.id]).await, ["other ch_1"]);
}

/// It must not speak for what comes after it.
pub async fn a_record_that_is_purged_and_made_again_has_no_provider_ids(on: Harness) {
    let old = on.grant(&ask("key")).await;
    assert_eq!(note(&on, &old, "ch_1").await, Noted::Applied);
    let _ = on.write(&old, Write::Complete(reply("done"))).await;
    on.clock.advance(RETENTION + TOMBSTONE);
    let new = match on.reserve(&retry(&ask("key"))).await {
        Reservation::Granted { lease, .. } => lease,
        other => panic!("{other:?}"),
    };
    assert_eq!(new.generation, 1);
    assert_eq!(whose(&on, "ch_1").await, None);
    assert!(ids_of(&on, &[&new.id]).await.is_empty());
    assert_eq!(note(&on, &old, "ch_2").await, Noted::Absent);
    assert_eq!(note(&on, &new, "ch_2").await, Noted::Applied);
}

/// The earlier use keeps what it has.
pub async fn the_next_generation_does_not_inherit_provider_ids(on: Harness) {
    let again = Ask { expired_runs_again: true, ..ask("key") };
    let first = on.grant(&again).await;
    assert_eq!(note(&on, &first, "ch_1").await, Noted::Applied);
    let _ = on.write(&first, Write::Complete(reply("done"))).await;
    on.clock.advance(RETENTION);
    let second = on.grant(&retry(&again)).await;
    assert_eq!(second.generation, 2);
    assert_eq!(whose(&on, "ch_1").await.expect("a note").generation, 1);
    assert_eq!(note(&on, &first, "ch_0").await, Noted::Absent, "its use of the key is over");
    assert_eq!(note(&on, &second, "ch_2").await, Noted::Applied);
    assert_eq!(whose(&on, "ch_2").await.expect("a note").generation, 2);
    assert_eq!(note(&on, &second, "ch_1").await, Noted::Taken);
    assert_eq!(ids_of(&on, &[&first.id]).await, ["key ch_1", "key ch_2"]);
}

/// There is nothing that it could be of.
pub async fn a_provider_id_of_no_record_is_not_noted(on: Harness) {
    let lease = on.grant(&ask("key")).await;
    let nowhere = Lease { id: id("tenant", "nowhere"), ..lease };
    assert_eq!(note(&on, &nowhere, "ch_1").await, Noted::Absent);
    assert_eq!(whose(&on, "ch_1").await, None);
}

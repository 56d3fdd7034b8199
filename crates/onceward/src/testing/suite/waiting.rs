//! What requests that wait are told of.

use std::collections::BTreeSet;

use crate::{
    record::RecordId,
    store::{Proof, Reservation, Resolution, Write, Written},
    testing::{
        Harness,
        samples::{LEASE, RETENTION, TOMBSTONE, ask, claim, id, phased, queued, reply, save},
    },
};

/// The keys of those that are told of.
async fn settled(on: &Harness, ids: &[RecordId]) -> BTreeSet<String> {
    let settled = on.store.settled(ids.to_vec()).await.expect("settled answers");
    assert!(settled.iter().all(|id| ids.contains(id)), "only what was asked for: {settled:?}");
    settled.iter().map(|id| id.key.as_str().to_owned()).collect()
}

fn keys<const N: usize>(keys: [&str; N]) -> BTreeSet<String> {
    keys.map(str::to_owned).into()
}

/// A record in each state, and one that is not there. With those that somebody will or does work on.
async fn in_each_state(on: &Harness) -> (Vec<RecordId>, BTreeSet<String>) {
    let accepted = queued("claimed");
    for ask in [&queued("pending"), &accepted] {
        assert!(matches!(on.reserve(ask).await, Reservation::Accepted { .. }));
    }
    assert!(matches!(on.claim(&claim(&accepted)).await, Reservation::Granted { .. }));
    let in_steps = on.grant(&phased("in-steps")).await;
    on.stepped(&in_steps, save("charge", "42")).await;
    on.occupy(&ask("running")).await;
    for (key, write) in [
        ("completed", Write::Complete(reply("done"))),
        ("released", Write::Release("declined".into())),
        ("unknown", Write::MarkUnknown("reset".into())),
    ] {
        let lease = on.grant(&ask(key)).await;
        assert_eq!(on.write(&lease, write).await, Written::Applied);
    }
    let ids =
        ["pending", "claimed", "in-steps", "running", "completed", "released", "unknown", "absent"];
    let at_work = keys(["pending", "claimed", "in-steps", "running"]);
    (ids.map(|key| ask(key).id).to_vec(), at_work)
}

/// Whoever waits for it looks at it then, and at nothing else.
pub async fn those_who_wait_are_told_of_what_nobody_is_at_work_on(on: Harness) {
    let (ids, at_work) = in_each_state(&on).await;
    let at_rest = keys(["completed", "released", "unknown", "absent"]);
    assert_eq!(settled(&on, &ids).await, at_rest);
    assert_eq!(settled(&on, &[]).await, keys([]));
    // The same key of somebody else is another record.
    let of_others: Vec<RecordId> = at_work.iter().map(|key| id("somebody-else", key)).collect();
    assert_eq!(settled(&on, &of_others).await, at_work);
    // A lease that was renewed is one.
    let lease = on.grant(&ask("renewed")).await;
    on.clock.advance(LEASE / 2);
    assert_eq!(on.write(&lease, Write::Renew(LEASE)).await, Written::Applied);
    on.clock.advance(LEASE / 2);
    assert_eq!(settled(&on, std::slice::from_ref(&lease.id)).await, keys([]));
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    assert_eq!(settled(&on, &[lease.id]).await, keys(["renewed"]));
}

/// What was decided from outside is told of too, and so is what nobody remembers any more.
pub async fn those_who_wait_are_told_of_what_was_decided_or_has_expired(on: Harness) {
    let (ids, at_work) = in_each_state(&on).await;
    on.resolved(&ask("unknown").id, Resolution::Release(Proof::Authoritative)).await;
    on.resolved(&ask("completed").id, Resolution::Void).await;
    for past in [RETENTION, TOMBSTONE] {
        on.clock.advance(past);
        on.reap(100).await;
        let told = settled(&on, &ids).await;
        let at_rest = keys(["completed", "released", "unknown", "absent"]);
        assert!(told.is_superset(&at_rest), "{told:?}");
        assert!(!told.contains("pending"), "it waits for a worker, however long that takes");
    }
    // A vanished attempt is told of once it was swept, if not as soon as its lease is over.
    on.sweep(100).await;
    let told = settled(&on, &ids).await;
    assert!(told.contains("running"), "{told:?} of {at_work:?}");
}

/// One call is for all that a process waits for.
pub async fn many_are_asked_about_in_one_call(on: Harness) {
    let (mut running, mut done) = (BTreeSet::new(), BTreeSet::new());
    let mut ids = Vec::new();
    for number in 0..300 {
        let ask = ask(&format!("many-{number:04}"));
        ids.push(ask.id.clone());
        match number % 100 {
            0 => on.occupy(&ask).await,
            1 => {
                let lease = on.grant(&ask).await;
                assert_eq!(
                    on.write(&lease, Write::Complete(reply("done"))).await,
                    Written::Applied
                );
            }
            _ => {}
        }
        let name = ask.id.key.as_str().to_owned();
        if number % 100 == 0 {
            running.insert(name)
        } else {
            done.insert(name)
        };
    }
    assert_eq!(running.len(), 3);
    assert_eq!(settled(&on, &ids).await, done);
    // Asked about twice, each is told of or not as ever.
    ids.extend(ids.clone());
    assert_eq!(settled(&on, &ids).await, done);
}

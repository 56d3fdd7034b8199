//! Many callers at once, on real threads.

use std::sync::Arc;

use tokio::{sync::Barrier, task::JoinSet};

use crate::{
    record::{AttemptId, Effects, Lease, State},
    store::{Ask, Found, Mode, Reservation, Store, Write, Written},
    testing::{
        Harness,
        samples::{LEASE, ask, claim, fingerprint, reply, retry},
    },
};

/// Calls that start together, each in a task of its own; answers in the order of the calls.
async fn at_once<T, Called>(calls: Vec<impl FnOnce() -> Called + Send + 'static>) -> Vec<T>
where
    T: Send + 'static,
    Called: Future<Output = T> + Send,
{
    let start = Arc::new(Barrier::new(calls.len()));
    let mut tasks = JoinSet::new();
    for (number, call) in calls.into_iter().enumerate() {
        let start = Arc::clone(&start);
        tasks.spawn(async move {
            start.wait().await;
            (number, call().await)
        });
    }
    let mut answers = tasks.join_all().await;
    answers.sort_by_key(|(number, _)| *number);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

async fn reserve_at_once(store: &Arc<dyn Store>, asks: &[Ask]) -> Vec<Reservation> {
    let calls = asks.iter().cloned().map(|ask| {
        let store = Arc::clone(store);
        move || async move { store.reserve(ask).await.expect("reserve answers") }
    });
    at_once(calls.collect()).await
}

async fn write_at_once(store: &Arc<dyn Store>, writes: Vec<(Lease, Write)>) -> Vec<Written> {
    let calls = writes.into_iter().map(|(lease, write)| {
        let store = Arc::clone(store);
        move || async move { store.write(&lease, write).await.expect("write answers") }
    });
    at_once(calls.collect()).await
}

fn copy(lease: &Lease) -> Lease {
    Lease { id: lease.id.clone(), ..*lease }
}

/// The winner of a race for one key; everybody else must have been shown the winner's record.
fn only_winner(asks: &[Ask], answers: Vec<Reservation>) -> (Ask, Lease) {
    let mut winner = None;
    let mut losers = Vec::new();
    for (ask, answer) in asks.iter().zip(answers) {
        match answer {
            Reservation::Granted { lease, .. } => {
                assert_eq!(lease.attempt, ask.attempt, "a grant is for the attempt that asked");
                assert!(winner.is_none(), "two attempts were granted");
                winner = Some((ask.clone(), lease));
            }
            Reservation::Occupied { record, .. } => losers.push(record),
            other => panic!("expected a grant or a record in the way, found {other:?}"),
        }
    }
    let (ask, lease) = winner.expect("somebody is granted");
    assert_eq!(losers.len(), asks.len() - 1);
    for record in losers {
        assert_eq!((record.attempt, record.fence), (lease.attempt, lease.fence));
        assert_eq!(record.fingerprint, ask.fingerprint);
    }
    (ask, lease)
}

/// A hundred retries at once, one grant.
pub async fn of_100_concurrent_reserves_exactly_one_is_granted(on: Harness) {
    for round in 0..5 {
        let first = ask(&format!("key-{round}"));
        let asks: Vec<Ask> = (0..100).map(|_| retry(&first)).collect();
        let answers = reserve_at_once(&on.store, &asks).await;
        let (_, lease) = only_winner(&asks, answers);
        let record = on.store.load(&first.id).await.expect("load answers").expect("a record");
        assert_eq!((record.attempt, record.attempts), (lease.attempt, 1));
    }
}

/// A hundred different requests with one key at once, one grant, and the record is the winner's.
pub async fn of_100_different_concurrent_requests_exactly_one_is_granted(on: Harness) {
    let first = ask("key");
    let asks: Vec<Ask> =
        (0..100).map(|number| Ask { fingerprint: fingerprint(number), ..retry(&first) }).collect();
    let answers = reserve_at_once(&on.store, &asks).await;
    let (winner, _) = only_winner(&asks, answers);
    let record = on.store.load(&first.id).await.expect("load answers").expect("a record");
    assert_eq!(record.fingerprint, winner.fingerprint);
}

/// A retryable key, and one whose lease is over, go to one of many.
pub async fn of_100_concurrent_reserves_of_a_free_record_exactly_one_is_granted(on: Harness) {
    let released = ask("released");
    let lease = on.grant(&released).await;
    assert_eq!(on.write(&lease, Write::Release("not_sent".into())).await, Written::Applied);
    let vanished = Ask { effects: Effects::None, ..ask("vanished") };
    on.occupy(&vanished).await;
    on.clock.advance(LEASE);
    for (ask, old) in [(released, lease.fence), (vanished, lease.fence)] {
        let asks: Vec<Ask> = (0..100).map(|_| retry(&ask)).collect();
        let answers = reserve_at_once(&on.store, &asks).await;
        let (_, lease) = only_winner(&asks, answers);
        assert!(lease.fence > old);
        assert_eq!(lease.attempt_number, 2);
    }
}

/// One attempt that repeats its reserve while the first is under way is granted once, by name.
pub async fn concurrent_repeats_of_one_reserve_share_one_grant(on: Harness) {
    let ask = ask("key");
    let answers = reserve_at_once(&on.store, &vec![ask.clone(); 50]).await;
    let mut absent = 0;
    let mut fences = Vec::new();
    for answer in answers {
        let Reservation::Granted { lease, found } = answer else { panic!("expected a grant") };
        absent += usize::from(found == Found::Absent);
        fences.push(lease.fence);
    }
    fences.dedup();
    assert_eq!((absent, fences.len()), (1, 1));
}

/// A thousand different keys in one burst are all granted, each to whom it belongs.
pub async fn a_burst_of_1000_different_keys_is_granted_without_mixing_up_answers(on: Harness) {
    let asks: Vec<Ask> = (0..1_000)
        .map(|number| {
            let fingerprint = crate::fingerprint::Fingerprint::from_stored(
                u16::try_from(number).expect("small"),
                [1; 32],
            );
            Ask { fingerprint, ..ask(&format!("key-{number}")) }
        })
        .collect();
    let answers = reserve_at_once(&on.store, &asks).await;
    let mut writes = Vec::new();
    for (ask, answer) in asks.iter().zip(answers) {
        let Reservation::Granted { lease, found } = answer else {
            panic!("expected a grant for {:?}", ask.id)
        };
        assert_eq!((&lease.id, lease.attempt), (&ask.id, ask.attempt));
        assert_eq!(found, Found::Absent);
        let body = ask.id.key.as_str().to_owned();
        writes.push((lease, Write::Complete(reply(body))));
    }
    for written in write_at_once(&on.store, writes).await {
        assert_eq!(written, Written::Applied);
    }
    let retries: Vec<Ask> = asks.iter().map(retry).collect();
    for (ask, answer) in retries.iter().zip(reserve_at_once(&on.store, &retries).await) {
        let completed = answer.completed().expect("a completed record");
        let body = ask.id.key.as_str().to_owned();
        assert_eq!((completed.fingerprint, completed.reply), (ask.fingerprint, reply(body)));
    }
}

/// Duplicates within one burst: each key goes to one, and a stranger is told of a mismatch.
pub async fn duplicates_within_one_burst_are_decided_one_by_one(on: Harness) {
    const KEYS: usize = 50;
    const COPIES: usize = 6;
    let mut asks = Vec::new();
    for copy in 0..COPIES {
        for key in 0..KEYS {
            // Half of the keys are asked for by two different requests.
            let of = u8::from(copy % 2 == 0 && key % 2 == 0);
            let ask = ask(&format!("key-{key}"));
            asks.push(Ask { fingerprint: fingerprint(of), ..ask });
        }
    }
    let answers = reserve_at_once(&on.store, &asks).await;
    let mut by_key: Vec<(Vec<Ask>, Vec<Reservation>)> = Vec::new();
    by_key.resize_with(KEYS, Default::default);
    for (number, (ask, answer)) in asks.into_iter().zip(answers).enumerate() {
        let (asks, answers) = &mut by_key[number % KEYS];
        asks.push(ask);
        answers.push(answer);
    }
    for (asks, answers) in by_key {
        assert_eq!(asks.len(), COPIES);
        let (winner, lease) = only_winner(&asks, answers);
        assert_eq!(winner.id, lease.id);
    }
}

/// One poisoned element does not fail the rest: superseded writes among good ones.
pub async fn good_and_superseded_writes_within_one_burst_are_told_apart(on: Harness) {
    let mut writes = Vec::new();
    for number in 0..100 {
        let lease = on.grant(&ask(&format!("key-{number}"))).await;
        let right = number % 3 != 0;
        let attempt = if right { lease.attempt } else { AttemptId::random() };
        writes.push((Lease { attempt, ..lease }, Write::Complete(reply(number.to_string()))));
    }
    let answers = write_at_once(&on.store, writes).await;
    for (number, answer) in answers.into_iter().enumerate() {
        match answer {
            Written::Applied => assert_ne!(number % 3, 0),
            Written::Superseded(Some(record)) => {
                assert_eq!(number % 3, 0);
                assert_eq!(record.id.key.as_str(), format!("key-{number}"));
            }
            other => panic!("unexpected {other:?}"),
        }
    }
}

/// One attempt that completes many times at once is applied once.
pub async fn concurrent_completes_of_one_attempt_are_applied_once(on: Harness) {
    let lease = on.grant(&ask("key")).await;
    let writes =
        (0..50).map(|number| (copy(&lease), Write::Complete(reply(number.to_string())))).collect();
    let answers = write_at_once(&on.store, writes).await;
    let stored = on.store.load(&lease.id).await.expect("load answers").expect("a record").reply;
    let applied: Vec<usize> = answers
        .iter()
        .enumerate()
        .filter_map(|(number, answer)| (*answer == Written::Applied).then_some(number))
        .collect();
    assert_eq!(applied.len(), 1, "one of them is applied");
    assert_eq!(stored, Some(reply(applied[0].to_string())));
    let mine = Written::AlreadyMine(stored);
    assert_eq!(answers.iter().filter(|answer| **answer == mine).count(), 49);
}

/// A renewal that meets the completion never undoes it.
pub async fn concurrent_renewals_do_not_undo_a_complete(on: Harness) {
    for round in 0..20 {
        let lease = on.grant(&ask(&format!("key-{round}"))).await;
        let mut writes: Vec<_> = (0..8).map(|_| (copy(&lease), Write::Renew(LEASE))).collect();
        writes.insert(round % 8, (copy(&lease), Write::Complete(reply("done"))));
        for answer in write_at_once(&on.store, writes).await {
            let fine = matches!(answer, Written::Applied | Written::AlreadyMine(Some(_)));
            assert!(fine, "{answer:?}");
        }
        let record = on.store.load(&lease.id).await.expect("load answers").expect("a record");
        assert_eq!((record.state, record.reply), (State::Completed, Some(reply("done"))));
    }
}

/// Complete, release and mark unknown by one attempt at once: one of them is the truth.
pub async fn of_contradicting_concurrent_writes_one_is_applied(on: Harness) {
    for round in 0..20 {
        let lease = on.grant(&ask(&format!("key-{round}"))).await;
        let mut writes = vec![
            (copy(&lease), Write::Complete(reply("done"))),
            (copy(&lease), Write::Release("not_sent".into())),
        ];
        writes.rotate_left(round % 2);
        let answers = write_at_once(&on.store, writes).await;
        let applied = answers.iter().filter(|answer| **answer == Written::Applied).count();
        assert_eq!(applied, 1, "{answers:?}");
    }
}

/// Many workers claim one pending record.
pub async fn of_50_concurrent_claims_exactly_one_is_granted(on: Harness) {
    let accepted = Ask { mode: Mode::Accept, ..ask("key") };
    let answer = on.reserve(&accepted).await;
    assert_eq!(answer, Reservation::Accepted { found: Found::Absent });
    let calls = (0..50).map(|_| {
        let store = Arc::clone(&on.store);
        let claim = claim(&accepted);
        move || async move { store.claim(claim).await.expect("claim answers") }
    });
    let answers: Vec<Reservation> = at_once(calls.collect()).await;
    let granted =
        answers.iter().filter(|answer| matches!(answer, Reservation::Granted { .. })).count();
    assert_eq!(granted, 1);
}

/// Sweepers at once: each record is moved on by one of them.
pub async fn concurrent_sweeps_move_each_record_once(on: Harness) {
    for number in 0..40 {
        on.occupy(&ask(&format!("key-{number}"))).await;
    }
    on.clock.advance(LEASE);
    let calls = (0..8).map(|_| {
        let store = Arc::clone(&on.store);
        move || async move { store.sweep(100).await.expect("sweep answers") }
    });
    let swept: Vec<Vec<crate::store::Swept>> = at_once(calls.collect()).await;
    let mut ids: Vec<_> = swept.into_iter().flatten().map(|one| one.id).collect();
    let moved = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!((moved, ids.len()), (40, 40));
    for id in ids {
        assert_eq!(on.store.audit(&id).await.expect("audit answers").len(), 1);
    }
}

/// Everything at once on a few keys: whoever was told `Applied` has the stored reply.
pub async fn in_a_crowd_every_acknowledged_reply_is_the_stored_one(on: Harness) {
    let calls = (0..200).map(|number| {
        let store = Arc::clone(&on.store);
        let ask = Ask { effects: Effects::None, ..ask(&format!("key-{}", number % 10)) };
        move || async move {
            match store.reserve(ask.clone()).await.expect("reserve answers") {
                Reservation::Granted { lease, .. } => {
                    // Some give up, and somebody else may try.
                    let give_up = number % 3 == 0;
                    let write = if give_up {
                        Write::Release("not_sent".into())
                    } else {
                        Write::Complete(reply(number.to_string()))
                    };
                    let written = store.write(&lease, write).await.expect("write answers");
                    assert_eq!(written, Written::Applied, "a live lease is not superseded");
                    (!give_up).then(|| (ask.id, reply(number.to_string())))
                }
                Reservation::Occupied { .. } | Reservation::Completed(_) => None,
                other => panic!("unexpected {other:?}"),
            }
        }
    });
    let acknowledged: Vec<_> = at_once(calls.collect()).await.into_iter().flatten().collect();
    let mut ids: Vec<_> = acknowledged.iter().map(|(id, _)| id.clone()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), acknowledged.len(), "no key is completed twice");
    for (id, reply) in acknowledged {
        let record = on.store.load(&id).await.expect("load answers").expect("a record");
        assert_eq!(record.reply, Some(reply));
    }
}

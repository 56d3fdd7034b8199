//! What is in the way of one element of a batch is no matter of the others: locked records, elements that
//! the server refuses. And a store that closes while batches are on their way.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use onceward::{
    Reply, Store as _,
    record::{Effects, Lease},
    store::{Ask, Reservation, StoreError, StoreErrorKind, Write, Written},
    testing::samples::{ask, reply, retry},
};
use onceward_testbed::Postgres;
use tokio::{task::JoinSet, time::timeout};

use crate::{
    postgres_batches::logged,
    postgres_home::{Home, copy, lines, one, run},
};

#[tokio::test]
async fn a_locked_record_does_not_hold_up_strangers_and_is_answered_honestly() {
    let home = Home::new().await;
    let locked = home.grant(&ask("locked-0001")).await;
    let mut strangers = Vec::new();
    for number in 0..200 {
        strangers.push(home.grant(&ask(&format!("stranger-{number:04}"))).await);
    }
    let mut other = home.connection().await;
    run(&mut other, "BEGIN; SELECT 1 FROM records WHERE key = 'locked-0001' FOR UPDATE").await;
    let begun = Instant::now();
    let mut writing = JoinSet::new();
    for lease in strangers.into_iter().chain([copy(&locked)]) {
        let store = Arc::clone(&home.store);
        writing.spawn(async move {
            let key = lease.id.key.as_str().to_owned();
            (key, store.write(&lease, Write::Complete(reply("done"))).await)
        });
    }
    let mut stranger_took = Duration::ZERO;
    while let Some(written) = writing.join_next().await {
        match written.expect("no panic") {
            (key, written) if key == "locked-0001" => {
                let error = written.expect_err("somebody has it");
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
                assert!(error.to_string().contains("locked"), "{error}");
            }
            (key, written) => {
                assert_eq!(written.expect("write answers"), Written::Applied, "{key}");
                stranger_took = begun.elapsed();
            }
        }
    }
    // They wait for the lock once, and go on together without the one that is locked.
    assert!(stranger_took < Duration::from_secs(5), "strangers took {stranger_took:?}");
    // A look does not wait for it.
    let seen = home.store.reserve(retry(&ask("locked-0001"))).await.expect("reserve answers");
    assert!(matches!(seen, Reservation::Occupied { .. }), "{seen:?}");
    run(&mut other, "COMMIT").await;
    home.write(&locked, Write::Complete(reply("done"))).await;
}

/// Far less than a call may take.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Renews two leases in one call while somebody has one of the records locked. Whether the other one is
/// renewed before that one is unlocked.
pub(crate) async fn strangers_are_renewed_beside_a_locked_record(home: &Home) -> bool {
    let locked = home.grant(&ask("locked-0001")).await;
    let stranger = home.grant(&ask("stranger-0001")).await;
    let mut other = home.connection().await;
    run(&mut other, "BEGIN; SELECT 1 FROM records WHERE key = 'locked-0001' FOR UPDATE").await;
    let renew = Write::Renew(Duration::from_secs(90));
    // Both stand in line before anybody looks there.
    let mut stuck = pin!(home.store.write(&locked, renew.clone()));
    let renewed = tokio::select! {
        biased;
        told = &mut stuck => panic!("it is locked: {told:?}"),
        renewed = timeout(AT_ONCE, home.store.write(&stranger, renew)) => renewed,
    };
    let is_renewed = match renewed {
        Ok(written) => written.expect("write answers") == Written::Applied,
        Err(_) => false,
    };
    run(&mut other, "ROLLBACK").await;
    // It was skipped, and is looked at by itself, as soon as it can be.
    assert_eq!(stuck.await.expect("write answers"), Written::Applied);
    is_renewed
}

#[tokio::test]
async fn a_locked_record_does_not_hold_up_the_renewals_of_strangers() {
    assert!(strangers_are_renewed_beside_a_locked_record(&Home::new().await).await);
}

/// Each retry of it would have to wait for its row.
#[tokio::test]
async fn a_storm_of_retries_for_a_locked_record_does_not_hold_up_single_calls() {
    let home = Home::new().await;
    let asked = Ask { effects: Effects::Phased, ..ask("storm-0001") };
    home.occupy(&asked).await;
    let mut other = home.connection().await;
    run(
        &mut other,
        "UPDATE records SET lease_until = 1; BEGIN; \
         SELECT 1 FROM records WHERE key = 'storm-0001' FOR UPDATE",
    )
    .await;
    let mut storm = JoinSet::new();
    for _ in 0..100 {
        let (store, again) = (Arc::clone(&home.store), retry(&asked));
        storm.spawn(async move { store.reserve(again).await });
    }
    // One of them has come to an end: the others are in line.
    let first = storm.join_next().await.expect("a hundred").expect("no panic");
    println!("the first of the storm: {:?}", first.map(|_| ()));
    let begun = Instant::now();
    home.store.ping().await.expect("well");
    let took = begun.elapsed();
    println!("a ping took {took:?}");
    assert!(took < Duration::from_secs(3), "a ping took {took:?}");
    run(&mut other, "ROLLBACK").await;
    let mut granted = 0;
    while let Some(answer) = storm.join_next().await {
        granted += match answer.expect("no panic") {
            Ok(Reservation::Granted { .. }) => 1,
            Ok(Reservation::Occupied { .. }) | Err(_) => 0,
            Ok(other) => panic!("{other:?}"),
        };
    }
    assert!(granted <= 1, "{granted} of the storm were granted");
}

#[tokio::test]
async fn one_element_that_the_server_refuses_does_not_fail_the_others() {
    let home = Home::new().await;
    let mut asks: Vec<Ask> = (0..50).map(|number| ask(&format!("good-{number:02}"))).collect();
    asks.push(Ask { route: "pay\0ments".into(), ..ask("poisoned") });
    let mut tasks = JoinSet::new();
    for asked in asks {
        let store = Arc::clone(&home.store);
        tasks.spawn(async move { (asked.clone(), store.reserve(asked).await) });
    }
    for (asked, answer) in tasks.join_all().await {
        match (asked.id.key.as_str(), answer) {
            ("poisoned", Err(error)) => assert_eq!(error.kind(), StoreErrorKind::Unavailable),
            ("poisoned", Ok(answer)) => panic!("a text cannot hold a NUL: {answer:?}"),
            (_, answer) => {
                let answer = answer.expect("reserve answers");
                assert!(matches!(answer, Reservation::Granted { .. }), "{answer:?}");
            }
        }
    }
    let mut look = home.connection().await;
    assert_eq!(one::<i64>(&mut look, "SELECT count(*) FROM records").await, 50);
}

/// Makes calls at once, so that they go together.
async fn all_at_once<A: Send + 'static>(
    calls: impl IntoIterator<Item: Future<Output = A> + Send + 'static>,
) -> Vec<A> {
    calls.into_iter().collect::<JoinSet<A>>().join_all().await
}

/// Writes of attempts, and what became of them, by their keys.
async fn write_at_once(
    home: &Home,
    writes: Vec<(Lease, Write)>,
) -> Vec<(String, Result<Written, StoreError>)> {
    let write = |(lease, write): (Lease, Write)| {
        let store = Arc::clone(&home.store);
        async move { (lease.id.key.as_str().to_owned(), store.write(&lease, write).await) }
    };
    all_at_once(writes.into_iter().map(write)).await
}

/// All but the one that is poisoned are applied.
fn only_the_poisoned_one_is_refused(answers: Vec<(String, Result<Written, StoreError>)>) {
    for (key, answer) in answers {
        match answer {
            Err(error) if key == "poisoned" => {
                assert_eq!(error.kind(), StoreErrorKind::Unavailable)
            }
            answer if key == "poisoned" => panic!("a text cannot hold a NUL: {answer:?}"),
            answer => assert_eq!(answer.expect("write answers"), Written::Applied, "{key}"),
        }
    }
}

/// Fifty attempts, and the one that is going to be poisoned.
async fn granted(home: &Home) -> Vec<Lease> {
    let mut leases = Vec::new();
    for number in 0..50 {
        leases.push(home.grant(&ask(&format!("good-{number:02}"))).await);
    }
    leases.push(home.grant(&ask("poisoned")).await);
    leases
}

/// Replies, of which the last one is poisoned.
fn replies(leases: &[Lease]) -> Vec<(Lease, Write)> {
    let (last, good) = leases.split_last().expect("some");
    let poisoned = Reply { schema_version: Some("v\0".into()), ..reply("done") };
    let good = good.iter().map(|lease| (copy(lease), Write::Complete(reply("done"))));
    good.chain([(copy(last), Write::Complete(poisoned))]).collect()
}

/// How many records are in this state.
async fn count(home: &Home, state: &str) -> i64 {
    let count = format!("SELECT count(*) FROM records WHERE state = '{state}'");
    one(&mut home.connection().await, &count).await
}

#[tokio::test]
async fn a_reply_that_the_server_refuses_does_not_fail_the_others() {
    let home = Home::new().await;
    let leases = granted(&home).await;
    only_the_poisoned_one_is_refused(write_at_once(&home, replies(&leases)).await);
    assert_eq!((count(&home, "completed").await, count(&home, "in_progress").await), (50, 1));
    // Its attempt still holds it, and may complete it with what can be stored.
    home.write(&leases[50], Write::Complete(reply("done"))).await;
}

#[tokio::test]
async fn a_reason_that_the_server_refuses_does_not_fail_the_others() {
    let home = Home::new().await;
    let leases = granted(&home).await;
    let release = |lease: &Lease| {
        let why = if lease.id.key.as_str() == "poisoned" { "de\0clined" } else { "declined" };
        (copy(lease), Write::Release(why.into()))
    };
    let releases = leases.iter().map(release).collect();
    only_the_poisoned_one_is_refused(write_at_once(&home, releases).await);
    let states = (count(&home, "failed_retryable").await, count(&home, "in_progress").await);
    assert_eq!(states, (50, 1));
    home.write(&leases[50], Write::Release("declined".into())).await;
}

/// Replies and reserves that go together, of which one is refused.
#[tokio::test]
async fn in_a_mixed_batch_one_that_the_server_refuses_does_not_fail_the_others() {
    for is_reply in [true, false] {
        let (home, _database) = logged().await;
        let route = |number: u32| if !is_reply && number == 50 { "pay\0ments" } else { "payments" };
        let asks = (0..51)
            .map(|number| Ask { route: route(number).into(), ..ask(&format!("new-{number:02}")) });
        let mut writes = replies(&granted(&home).await);
        if !is_reply {
            writes.truncate(50);
        }
        let reserve = |asked: Ask| {
            let store = Arc::clone(&home.store);
            async move { (asked.id.key.as_str().to_owned(), store.reserve(asked).await) }
        };
        let (written, reserved) =
            tokio::join!(write_at_once(&home, writes), all_at_once(asks.map(reserve)),);
        only_the_poisoned_one_is_refused(written);
        for (key, answer) in reserved {
            match answer {
                Err(error) if key == "new-50" && !is_reply => {
                    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
                }
                Ok(Reservation::Granted { .. }) if key != "new-50" || is_reply => {}
                answer => panic!("{key}: {answer:?}"),
            }
        }
        assert_eq!(count(&home, "completed").await, 50);
        assert_eq!(count(&home, "in_progress").await, if is_reply { 52 } else { 51 });
        // They did go together.
        let log = Postgres::shared().log();
        let refused = |line: &&str| {
            line.contains("STATEMENT: ")
                && line.contains(&home.schema)
                && line.contains("LEFT JOIN")
        };
        assert!(log.lines().any(|line| refused(&line)), "no statement with both was refused");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_finishes_what_stands_in_line_and_tells_the_rest() {
    let home = Home::new().await;
    let mut tasks = JoinSet::new();
    for number in 0..3_000 {
        let store = Arc::clone(&home.store);
        tasks.spawn(async move {
            let asked = ask(&format!("closing-{number:05}"));
            (asked.id.key.as_str().to_owned(), store.reserve(asked).await)
        });
    }
    // Some have been answered, most have not.
    let mut answers = vec![tasks.join_next().await.expect("some").expect("no panic")];
    home.store.close().await;
    answers.extend(tasks.join_all().await);
    let mut granted = Vec::new();
    for (key, answer) in answers {
        match answer {
            Ok(Reservation::Granted { .. }) => granted.push(key),
            Ok(other) => panic!("{key}: {other:?}"),
            // Nobody has to guess: it was never sent.
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{key}: {error:?}"),
        }
    }
    granted.sort();
    let mut look = home.connection().await;
    assert_eq!(lines(&mut look, "SELECT key FROM records ORDER BY key").await, granted);
    println!("{} granted", granted.len());
    let late = home.store.reserve(ask("late")).await.expect_err("closed");
    assert!(late.to_string().contains("closed"), "{late}");
}

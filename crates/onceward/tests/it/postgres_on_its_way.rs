//! A call whose connection broke may still be on its way to its commit. Whoever only reads then does not
//! see it, and would say that nothing happened. And a store that closes waits for what is on its way.

use std::{sync::Arc, time::Duration};

use onceward::{
    PgStore, Store as _,
    store::{Ask, Found, Reservation, StoreError, StoreErrorKind},
    testing::samples::ask,
};
use tokio::task::JoinSet;

use crate::{
    postgres_home::{Home, insist, one, run},
    postgres_lost_answers::behind_a_proxy,
};

/// What a caller is told.
type Told = Result<Reservation, StoreError>;

/// What becomes of a reserve whose connection is cut while its commit takes its time: what `reserve` says
/// meanwhile, and whether the record is there in the end.
async fn cut_on_its_way(reserve: impl AsyncFnOnce(Arc<PgStore>, Ask) -> Told) -> (Told, bool) {
    let (home, proxy) = behind_a_proxy(|options| options.connections(2, 1)).await;
    home.occupy(&ask("warms-the-connection")).await;
    make_slowly(&home, Duration::from_secs(4)).await;
    let asked = ask("on-its-way-0001");
    let is_cut = async {
        while !is_on_its_way(&home).await {
            tokio::task::yield_now().await;
        }
        proxy.cut();
    };
    let (told, ()) = tokio::join!(reserve(Arc::clone(&home.store), asked.clone()), is_cut);
    // It comes to its end, unless it was taken back.
    while is_on_its_way(&home).await {
        tokio::task::yield_now().await;
    }
    let granted = insist(|| home.store.reserve(asked.clone())).await;
    let is_there = matches!(granted, Reservation::Granted { found: Found::Mine, .. });
    (told, is_there)
}

/// From now on each record is made at once, and it takes a while until that is committed.
async fn make_slowly(home: &Home, time: Duration) {
    let slowly = format!(
        "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql \
         AS 'BEGIN PERFORM pg_sleep({}); RETURN NULL; END'; \
         CREATE TRIGGER slowly AFTER INSERT ON records FOR EACH ROW EXECUTE FUNCTION slowly()",
        time.as_secs_f64()
    );
    run(&mut home.connection().await, &slowly).await;
}

async fn is_on_its_way(home: &Home) -> bool {
    let waits = "SELECT count(*) FROM pg_stat_activity \
                 WHERE wait_event = 'PgSleep' AND query LIKE '%.reserve%(%' AND query LIKE";
    let waits = format!("{waits} '%{}%'", home.schema);
    one::<i64>(&mut home.connection().await, &waits).await > 0
}

/// Whoever is told that nothing happened can rely on it.
fn is_true((told, is_there): &(Told, bool)) -> bool {
    match told {
        Ok(answer) => *is_there == matches!(answer, Reservation::Granted { .. }),
        Err(error) => error.kind() == StoreErrorKind::Ambiguous || !is_there,
    }
}

#[tokio::test]
async fn a_lost_reserve_that_is_still_on_its_way_is_not_said_to_have_failed() {
    let seen = cut_on_its_way(async |store, asked| store.reserve(asked).await).await;
    assert!(is_true(&seen), "{seen:?}");
    let (told, is_there) = seen;
    assert_eq!(told.map_err(|error| error.kind()), Err(StoreErrorKind::Ambiguous));
    assert!(is_there, "it was on its way, and came there");
}

/// The bug that rule 3 is about.
#[tokio::test]
async fn a_bare_read_after_a_lost_answer_is_found() {
    let seen = cut_on_its_way(async |store, asked| {
        match store.reserve(asked.clone()).await {
            Err(error) if error.kind() == StoreErrorKind::Ambiguous => {}
            told => return told,
        }
        // Instead of the same write once more.
        match store.load(&asked.id).await? {
            Some(record) => {
                Ok(Reservation::Occupied { record: Box::new(record), lease_ran_out: false })
            }
            None => {
                let nothing = "the record is not there";
                Err(StoreError::new(StoreErrorKind::Unavailable, "a bare read", nothing))
            }
        }
    })
    .await;
    assert!(!is_true(&seen), "the case does not see the bug: {seen:?}");
}

#[tokio::test]
async fn a_batch_that_is_on_its_way_when_the_store_closes_is_finished_and_answered() {
    let home = Home::new().await;
    make_slowly(&home, Duration::from_millis(100)).await;
    let mut reserving = JoinSet::new();
    let mut reserve = |key: String| {
        let store = Arc::clone(&home.store);
        reserving.spawn(async move { store.reserve(ask(&key)).await });
    };
    for number in 0..3 {
        reserve(format!("on-its-way-{number:04}"));
    }
    while !is_on_its_way(&home).await {
        tokio::task::yield_now().await;
    }
    for number in 0..3 {
        reserve(format!("behind-it-{number:04}"));
    }
    tokio::task::yield_now().await;
    home.store.close().await;
    for answer in reserving.join_all().await {
        assert!(matches!(answer, Ok(Reservation::Granted { .. })), "{answer:?}");
    }
    let there: i64 = one(&mut home.connection().await, "SELECT count(*) FROM records").await;
    assert_eq!(there, 6);
    let late = home.store.reserve(ask("late-0001")).await.expect_err("closed");
    assert_eq!(late.kind(), StoreErrorKind::Unavailable, "{late}");
}

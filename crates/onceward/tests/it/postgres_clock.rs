//! The server's clock says what is over, and that of no process: here it is an hour ahead of ours.

use std::time::Duration;

use http::StatusCode;
use onceward::{
    Operation, Policy, Reply, Store as _,
    clock::{Clock as _, SystemClock, Timestamp},
    record::{Effects, State},
    store::{Ask, Reaped, Reservation, Write},
    testing::samples::{LEASE, ask, reply, retry},
};

use crate::{
    postgres_home::{Home, one, run},
    postgres_sessions::{pool, served},
    service::says,
    shop::failed,
};

const HOUR: Duration = Duration::from_secs(3_600);

/// What the test takes, and a slow machine.
const TOLERANCE: Duration = Duration::from_secs(300);

/// Moves the server's clock. A time that a caller sends counts as ever: one that was sent without need
/// would be an hour behind.
async fn an_hour_ahead(home: &Home) {
    run(
        &mut home.connection().await,
        &format!(
            "CREATE OR REPLACE FUNCTION {}.micros(at bigint) RETURNS bigint \
             LANGUAGE sql VOLATILE PARALLEL SAFE AS $$ \
             SELECT coalesce(at, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {}) $$",
            home.schema,
            HOUR.as_micros()
        ),
    )
    .await;
}

/// Whether this is so long from now, by the clock of this process.
fn is_in(what: Timestamp, ahead: Duration) -> bool {
    let expected = SystemClock.now().plus(ahead);
    expected.since(what).max(what.since(expected)) < TOLERANCE
}

#[tokio::test]
async fn the_servers_clock_gives_fences_and_leases_and_says_which_are_over() {
    let home = Home::new().await;
    let harmless = |key: &str| Ask { effects: Effects::None, ..ask(key) };
    let (taken, swept) = (harmless("taken-0001"), harmless("swept-0001"));
    let first = home.grant(&taken).await;
    home.occupy(&swept).await;
    // As long as both clocks are the same, nothing is over.
    assert!(is_in(first.until, LEASE), "{:?}", first.until);
    let busy = home.store.reserve(retry(&taken)).await.expect("reserve answers");
    assert!(matches!(busy, Reservation::Occupied { .. }), "{busy:?}");
    assert_eq!(home.store.sweep(10).await.expect("sweep answers"), []);

    an_hour_ahead(&home).await;
    for asked in [retry(&taken), ask("new-0001")] {
        let lease = home.grant(&asked).await;
        let key = asked.id.key.as_str();
        assert!(is_in(Timestamp::from_micros(lease.fence.number()), HOUR), "{key}: {lease:?}");
        assert!(is_in(lease.until, HOUR + LEASE), "{key}: {lease:?}");
        home.write(&lease, Write::Renew(LEASE * 10)).await;
        let record = home.store.load(&lease.id).await.expect("load answers").expect("a record");
        assert!(is_in(record.lease_until, HOUR + LEASE * 10), "{key}: {record:?}");
    }
    let moved = home.store.sweep(10).await.expect("sweep answers");
    let moved: Vec<_> = moved.iter().map(|swept| (&swept.id, swept.state)).collect();
    assert_eq!(moved, [(&swept.id, State::FailedRetryable)]);
}

#[tokio::test]
async fn the_servers_clock_says_whose_retention_is_over() {
    let home = Home::new().await;
    let asked = Ask { retention: HOUR / 2, ..ask("kept-0001") };
    let lease = home.grant(&asked).await;
    home.write(&lease, Write::Complete(reply("done"))).await;
    let replay = home.store.reserve(retry(&asked)).await.expect("reserve answers");
    assert!(replay.completed().is_some(), "{replay:?}");
    assert_eq!(home.store.reap(10).await.expect("reap answers"), Reaped::default());

    an_hour_ahead(&home).await;
    let expired = home.store.reserve(retry(&asked)).await.expect("reserve answers");
    let Reservation::Occupied { record, .. } = expired else { panic!("{expired:?}") };
    assert_eq!(record.state, State::Expired);
    let reaped = home.store.reap(10).await.expect("reap answers");
    assert_eq!(reaped, Reaped { expired: 1, purged: 0 });
    let kept = Ask { retention: HOUR * 2, ..ask("kept-0002") };
    let lease = home.grant(&kept).await;
    home.write(&lease, Write::Complete(reply("done"))).await;
    let replay = home.store.reserve(retry(&kept)).await.expect("reserve answers");
    let expires_at = replay.completed().expect("completed").expires_at;
    assert!(is_in(expires_at, HOUR * 3), "{expires_at:?}");
}

#[tokio::test]
async fn in_a_handlers_own_transaction_the_servers_clock_counts_too() {
    let home = Home::new().await;
    let pool = pool(&home).await;
    an_hour_ahead(&home).await;
    let handler = move |operation: Operation| {
        let pool = pool.clone();
        async move {
            let done = operation.transaction(&pool, async |_| {
                Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, "ordered"))
            });
            done.await.map_err(failed)
        }
    };
    let answer = served(&home, Policy::required().single(), "order-0000000000000001", handler);
    assert_eq!(answer.await.says(), says(201, "executed"));
    let mut look = home.connection().await;
    for moment in ["fence", "created_at", "finished_at"] {
        let seen: i64 = one(&mut look, &format!("SELECT {moment}::bigint FROM records")).await;
        assert!(is_in(Timestamp::from_micros(seen), HOUR), "{moment}: {seen}");
    }
}

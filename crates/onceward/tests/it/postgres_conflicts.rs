//! Others in the way of our own calls on PostgreSQL: serialization failures, deadlocks, and rows that are
//! gone when they are to be changed. Calls are made again, so often and no more. (A real deadlock is in
//! `postgres_batches`.)

use std::{sync::Arc, time::Duration};

use onceward::{
    Message, OutboxStore as _, PgStore, Store,
    outbox::Staged,
    record::{Effects, Lease, State},
    store::{
        Advanced, Ask, Found, Proof, Reservation, Resolution, Resolve, Resolved, StoreError,
        StoreErrorKind, Write, Written,
    },
    testing::samples::{ask, claim, phased, queued, reply, retry, save},
};
use tokio::time::timeout;

use crate::postgres_home::{Home, copy, lines, one, run};

/// No call is made more often than this, all of its tries together.
const TRIES_MAX: i64 = 32;

/// The server refuses whatever writes to our tables, the next few times, and counts how often it was asked.
async fn refuse(home: &Home, code: &str, times: i64) {
    let mut other = home.connection().await;
    run(
        &mut other,
        &format!(
            "CREATE SEQUENCE IF NOT EXISTS asked; SELECT setval('asked', 1, false); \
             CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF nextval('{schema}.asked') <= {times} THEN \
             RAISE EXCEPTION 'in the way' USING ERRCODE = '{code}'; END IF; \
             RETURN NULL; END $$",
            schema = home.schema
        ),
    )
    .await;
    for table in ["records", "steps", "outbox"] {
        let trigger = format!(
            "DROP TRIGGER IF EXISTS refuse ON {table}; \
             CREATE TRIGGER refuse AFTER INSERT OR UPDATE OR DELETE ON {table} \
             FOR EACH STATEMENT EXECUTE FUNCTION refuse()"
        );
        run(&mut other, &trigger).await;
    }
}

/// How often it was asked since.
async fn asked(home: &Home) -> i64 {
    let asked = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM asked";
    one(&mut home.connection().await, asked).await
}

/// The calls that write.
const CALLS: [&str; 13] = [
    "reserve", "retake", "accept", "claim", "renew", "complete", "release", "unknown", "advance",
    "stage", "resolve", "sweep", "reap",
];

/// What a call needs to be there.
struct Prepared {
    ask: Ask,
    lease: Option<Lease>,
}

async fn prepare(home: &Home, call: &str, key: &str) -> Prepared {
    let plain = ask(key);
    let ask = match call {
        "accept" | "claim" => queued(key),
        "advance" | "stage" => phased(key),
        "sweep" => Ask { lease: Duration::ZERO, ..plain },
        "reap" => Ask { retention: Duration::ZERO, tombstone: Duration::ZERO, ..plain },
        _ => plain,
    };
    let lease = match call {
        "reserve" | "accept" => None,
        "claim" => {
            let accepted = home.store.reserve(ask.clone()).await.expect("reserve answers");
            assert!(matches!(accepted, Reservation::Accepted { .. }), "{accepted:?}");
            None
        }
        _ => Some(home.grant(&ask).await),
    };
    match (call, &lease) {
        ("retake", Some(lease)) => home.write(lease, Write::Release("declined".into())).await,
        ("resolve", Some(lease)) => home.write(lease, Write::MarkUnknown("reset".into())).await,
        ("reap", Some(lease)) => home.write(lease, Write::Complete(reply("done"))).await,
        _ => {}
    }
    Prepared { ask, lease }
}

/// Makes the call, which is applied if it is not an error.
async fn make(store: &PgStore, call: &str, prepared: &Prepared) -> Result<(), StoreError> {
    let Prepared { ask, lease } = prepared;
    let written = async |write| -> Result<(), StoreError> {
        let written = store.write(lease.as_ref().expect("a lease"), write).await?;
        assert_eq!(written, Written::Applied);
        Ok(())
    };
    match call {
        "reserve" | "retake" => match store.reserve(retry(ask)).await? {
            Reservation::Granted { found, .. } => {
                let expected = if call == "reserve" { Found::Absent } else { Found::Retryable };
                assert_eq!(found, expected);
            }
            other => panic!("expected a grant, found {other:?}"),
        },
        "accept" => match store.reserve(retry(ask)).await? {
            Reservation::Accepted { found: Found::Absent } => {}
            other => panic!("expected it accepted, found {other:?}"),
        },
        "claim" => match Store::claim(store, claim(ask)).await? {
            Reservation::Granted { found: Found::Pending, .. } => {}
            other => panic!("expected a grant, found {other:?}"),
        },
        "renew" => written(Write::Renew(Duration::from_secs(60))).await?,
        "complete" => written(Write::Complete(reply("done"))).await?,
        "release" => written(Write::Release("declined".into())).await?,
        "unknown" => written(Write::MarkUnknown("reset".into())).await?,
        "advance" => {
            let lease = lease.as_ref().expect("a lease");
            assert_eq!(store.advance(lease, save("book", "7")).await?, Advanced::Applied);
        }
        "stage" => {
            let message = Message::new("receipt", "mail", "thank you");
            let lease = lease.as_ref().expect("a lease");
            assert_eq!(store.stage(lease, message).await?, Staged::Applied);
        }
        "resolve" => {
            let lease = copy(lease.as_ref().expect("a lease"));
            let resolved = store.resolve(Resolve {
                id: lease.id,
                generation: lease.generation,
                fence: lease.fence,
                resolution: Resolution::Release(Proof::Authoritative),
                reason: "ticket 7".into(),
            });
            let resolved = resolved.await?;
            assert!(matches!(resolved, Resolved::Applied(_)), "{resolved:?}");
        }
        "sweep" => assert_eq!(store.sweep(10).await?.len(), 1),
        "reap" => assert_eq!(store.reap(10).await?.purged, 1),
        other => panic!("no call {other}"),
    }
    Ok(())
}

#[tokio::test]
async fn a_call_that_others_were_in_the_way_of_is_made_again() {
    for code in ["40001", "40P01"] {
        let home = Home::new().await;
        for call in CALLS {
            let prepared = prepare(&home, call, &format!("{call}-0001")).await;
            refuse(&home, code, 2).await;
            let made = make(&home.store, call, &prepared).await;
            assert!(made.is_ok(), "{call} after two {code}: {made:?}");
            assert!(asked(&home).await > 2, "{call}: it was refused");
            refuse(&home, code, 0).await;
            // Nothing of it stays for those who come after.
            home.store.sweep(100).await.expect("sweep answers");
        }
    }
}

#[tokio::test]
async fn a_call_that_others_are_always_in_the_way_of_is_given_up_and_has_done_nothing() {
    for code in ["40001", "40P01"] {
        let home = Home::new().await;
        for call in CALLS {
            let prepared = prepare(&home, call, &format!("{call}-0001")).await;
            refuse(&home, code, i64::MAX).await;
            let error = make(&home.store, call, &prepared).await.expect_err("always refused");
            // The server took each of them back, and said so.
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{call}: {error:?}");
            let tries = asked(&home).await;
            assert!((2..=TRIES_MAX).contains(&tries), "{call} was made {tries} times");
            refuse(&home, code, 0).await;
            // It can be made as if for the first time.
            let made = make(&home.store, call, &prepared).await;
            assert!(made.is_ok(), "{call}: {made:?}");
            home.store.sweep(100).await.expect("sweep answers");
        }
    }
}

/// A change to each row that is looked at, and never to what was seen: nobody comes to an end there.
#[tokio::test]
async fn a_record_that_never_stays_as_it_was_seen_is_given_up() {
    let home = Home::new().await;
    let mut other = home.connection().await;
    run(
        &mut other,
        &format!(
            "CREATE SEQUENCE asked; CREATE FUNCTION vanish() RETURNS trigger LANGUAGE plpgsql AS $$ \
             BEGIN PERFORM nextval('{}.asked'); RETURN NULL; END $$; \
             CREATE TRIGGER vanish BEFORE INSERT ON records FOR EACH ROW EXECUTE FUNCTION vanish()",
            home.schema
        ),
    )
    .await;
    let reserved = home.store.reserve(ask("vanishes-0001")).await;
    let error = reserved.expect_err("nothing stays");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    let tries = asked(&home).await;
    assert!((2..=TRIES_MAX).contains(&tries), "it was tried {tries} times");
    run(&mut other, "DROP TRIGGER vanish ON records").await;
    home.occupy(&ask("vanishes-0001")).await;
}

/// Until somebody waits for a lock in this schema.
async fn somebody_waits(home: &Home) {
    let mut look = home.connection().await;
    let waits = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
         AND query LIKE '%{}%' AND pid <> pg_backend_pid()",
        home.schema
    );
    let waits = async {
        while one::<i64>(&mut look, &waits).await == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), waits).await.expect("somebody waits");
}

/// It has been looked at, and is not there any more when it is to be changed.
#[tokio::test]
async fn a_record_that_is_purged_between_look_and_change_is_taken_as_new() {
    let home = Home::new().await;
    let asked = ask("purged-0001");
    let lease = home.grant(&asked).await;
    home.write(&lease, Write::Release("declined".into())).await;
    let mut other = home.connection().await;
    run(&mut other, "BEGIN; DELETE FROM records").await;
    let reserving = tokio::spawn({
        let (store, ask) = (Arc::clone(&home.store), retry(&asked));
        async move { store.reserve(ask).await.expect("reserve answers") }
    });
    somebody_waits(&home).await;
    run(&mut other, "COMMIT").await;
    let reserved = reserving.await.expect("no panic");
    let Reservation::Granted { lease: next, found } = reserved else {
        panic!("expected a grant, found {reserved:?}")
    };
    assert_eq!((found, next.attempt_number), (Found::Absent, 1));
    // And an attempt whose record is gone makes none.
    let written = home.store.write(&lease, Write::Complete(reply("late"))).await;
    assert!(matches!(written, Ok(Written::Superseded(Some(_)))), "{written:?}");
    home.write(&next, Write::Complete(reply("done"))).await;
}

/// Its owner completes it while another waits to take it over.
#[tokio::test]
async fn a_record_that_is_completed_between_look_and_change_is_not_taken() {
    let home = Home::new().await;
    let asked = Ask { effects: Effects::None, lease: Duration::ZERO, ..ask("overtaken-0001") };
    let lease = home.grant(&asked).await;
    let mut other = home.connection().await;
    // What the owner does, and has not committed yet.
    let completes = format!(
        "BEGIN; SELECT complete_one(NULL, '{}', '{}', '{}', {}, 201::smallint, '\\x01', NULL, 'done', NULL)",
        lease.id.scope.as_str(),
        lease.id.key.as_str(),
        lines(&mut home.connection().await, "SELECT attempt::text FROM records").await[0],
        lease.fence.number(),
    );
    run(&mut other, &completes).await;
    let reserving = tokio::spawn({
        let (store, ask) = (Arc::clone(&home.store), retry(&asked));
        async move { store.reserve(ask).await.expect("reserve answers") }
    });
    somebody_waits(&home).await;
    run(&mut other, "COMMIT").await;
    let reserved = reserving.await.expect("no panic");
    let Reservation::Occupied { record, .. } = reserved else {
        panic!("it has completed: {reserved:?}")
    };
    assert_eq!((record.state, record.attempt), (State::Completed, lease.attempt));
}

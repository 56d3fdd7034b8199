//! Connections to Redis that break at the worst moment: what was done is found out, never done again.

use std::time::Duration;

use onceward::{
    RedisStore, Store as _,
    record::State,
    store::{Advance, Advanced, Found, Reservation, StoreErrorKind, Write, Written},
    testing::samples::{ask, intend, phased, reply, retry, save},
};
use onceward_testbed::{CutProxy, Redis};

use crate::redis_home::{grant, load, store_at};

/// The first bytes of any answer.
const ANY: &[u8] = b"";

async fn behind_a_proxy() -> (RedisStore, CutProxy) {
    let redis = Redis::shared();
    let proxy = CutProxy::start(redis.address());
    (store_at(redis.url_through(proxy.address())).await, proxy)
}

#[tokio::test]
async fn a_reserve_whose_answer_is_lost_is_granted_once_to_the_same_attempt() {
    let (store, proxy) = behind_a_proxy().await;
    let asked = ask("answer-lost-0001");
    proxy.cut_after(b"answer-lost-0001", ANY);
    let answer = store.reserve(asked.clone()).await.expect("reserve answers");
    let Reservation::Granted { lease, found: Found::Mine } = answer else {
        panic!("expected the grant that was lost: {answer:?}");
    };
    assert_eq!(proxy.sprung(), 1);
    let record = load(&store, &asked).await;
    assert_eq!((record.attempts, record.fence), (1, lease.fence));
    let other = store.reserve(retry(&asked)).await.expect("reserve answers");
    assert!(matches!(other, Reservation::Occupied { .. }), "{other:?}");
}

#[tokio::test]
async fn a_reserve_that_never_arrived_is_made_on_another_connection() {
    let (store, proxy) = behind_a_proxy().await;
    let epoch = store.epoch();
    proxy.cut_before(b"never-arrived-0001");
    let answer = store.reserve(ask("never-arrived-0001")).await.expect("reserve answers");
    assert!(matches!(answer, Reservation::Granted { found: Found::Absent, .. }), "{answer:?}");
    assert_eq!(proxy.sprung(), 1);
    assert!(store.epoch() > epoch, "the connection is another one");
}

#[tokio::test]
async fn a_takeover_whose_answer_is_lost_is_granted_once_to_the_same_attempt() {
    let (store, proxy) = behind_a_proxy().await;
    let asked = ask("taken-over-0001");
    let first = grant(&store, &asked).await;
    let _ = store.write(&first, Write::Release("declined".into())).await.expect("a release");
    let again = retry(&asked);
    // What is put into an index is in the call that changes the record, and not in the one that looks.
    proxy.cut_after(b"put\r\n", ANY);
    let second = grant(&store, &again).await;
    assert_eq!(proxy.sprung(), 1);
    assert!(second.fence > first.fence);
    let record = load(&store, &asked).await;
    assert_eq!((record.attempts, record.attempt), (2, again.attempt));
}

#[tokio::test]
async fn each_write_whose_answer_is_lost_is_applied_once() {
    let (store, proxy) = behind_a_proxy().await;
    let writes = [
        ("write-lost-complete", Write::Complete(reply("done")), State::Completed),
        ("write-lost-release", Write::Release("declined".into()), State::FailedRetryable),
        ("write-lost-unknown", Write::MarkUnknown("reset".into()), State::Unknown),
        ("write-lost-renew", Write::Renew(Duration::from_secs(90)), State::InProgress),
    ];
    for (number, (key, write, state)) in writes.into_iter().enumerate() {
        let lease = grant(&store, &ask(key)).await;
        proxy.cut_after(key.as_bytes(), ANY);
        let answer = store.write(&lease, write.clone()).await.expect("write answers");
        assert_eq!(proxy.sprung(), number as u64 + 1, "{key}");
        match (&write, &answer) {
            (Write::Renew(_), Written::Applied) => {}
            (Write::Complete(sent), Written::AlreadyMine(Some(stored))) => assert_eq!(sent, stored),
            (Write::Release(_) | Write::MarkUnknown(_), Written::AlreadyMine(None)) => {}
            _ => panic!("{key} is answered {answer:?}"),
        }
        let record = store.load(&lease.id).await.expect("load answers").expect("a record");
        assert_eq!(record.state, state);
        let audit = store.audit(&lease.id).await.expect("audit answers");
        assert!(audit.is_empty(), "nothing was superseded: {audit:?}");
    }
}

#[tokio::test]
async fn each_step_whose_answer_is_lost_is_made_once() {
    let (store, proxy) = behind_a_proxy().await;
    let lease = grant(&store, &phased("step-lost-0001")).await;
    let steps = [
        save("reserve-stock", "7"),
        intend("charge", true),
        Advance::Withdraw { name: "charge".into() },
        intend("charge", false),
        save("charge", "paid"),
    ];
    for step in steps {
        proxy.cut_after(b"put\r\n", ANY);
        let made = store.advance(&lease, step).await.expect("advance answers");
        assert!(matches!(made, Advanced::Applied | Advanced::AlreadyMine), "{made:?}");
    }
    assert_eq!(proxy.sprung(), 5);
    let saved = store.steps(&lease.id, 1).await.expect("steps answers");
    let names: Vec<&str> = saved.iter().map(|step| &*step.name).collect();
    assert_eq!(names, ["reserve-stock", "charge"]);
}

/// A caller who is told that nothing happened would believe it.
#[tokio::test]
async fn a_write_that_may_have_happened_is_never_called_a_failure() {
    let (store, proxy) = behind_a_proxy().await;
    let asked = ask("may-have-happened-0001");
    let lease = grant(&store, &asked).await;
    proxy.cut_after(b"may-have-happened-0001", ANY);
    // From then on nobody is there any more.
    let written = tokio::join!(store.write(&lease, Write::Complete(reply("done"))), async {
        while proxy.sprung() == 0 {
            tokio::task::yield_now().await;
        }
        proxy.lead_to(None);
    });
    let error = written.0.expect_err("nobody answers");
    assert_eq!(error.kind(), StoreErrorKind::Ambiguous, "{error:?}");
    proxy.lead_to(Some(Redis::shared().address()));
    assert_eq!(load(&store, &asked).await.state, State::Completed);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_to_have_done_nothing() {
    let (store, proxy) = behind_a_proxy().await;
    proxy.lead_to(None);
    proxy.cut();
    // What is on its way when a connection ends may have arrived; what comes later cannot have.
    for number in 1..10 {
        let asked = ask(&format!("not-there-{number:04}"));
        let error = store.reserve(asked.clone()).await.expect_err("nobody answers");
        if error.kind() == StoreErrorKind::Ambiguous {
            continue;
        }
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
        proxy.lead_to(Some(Redis::shared().address()));
        let _lease = grant(&store, &asked).await;
        return;
    }
    panic!("it is never said that nothing happened");
}

/// As after SCRIPT FLUSH, or a restart.
#[tokio::test]
async fn scripts_that_the_server_forgot_are_loaded_again() {
    let redis = tokio::task::spawn_blocking(Redis::start).await.expect("a server");
    let store = store_at(redis.url()).await;
    assert_eq!(redis.cli(&["SCRIPT", "FLUSH"]), "OK");
    let _lease = grant(&store, &ask("forgotten-0001")).await;
}

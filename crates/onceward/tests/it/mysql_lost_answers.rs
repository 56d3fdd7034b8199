//! Connections to MariaDB that break at the worst moment: what was done is found out, never done again.

use std::{sync::Arc, time::Duration};

use onceward::{
    MySqlOptions, Store as _,
    record::State,
    store::{Advance, Advanced, Found, Reservation, StoreErrorKind, Write, Written},
    testing::samples::{ask, intend, phased, reply, retry, save},
};
use onceward_testbed::{CutProxy, MariaDb};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::task::JoinSet;

use crate::{mysql_home::Home, postgres_home::insist};

/// How a transaction of ours is committed.
const COMMIT: &[u8] = b"\x03COMMIT";

/// Any answer at all.
const ANSWERED: &[u8] = b"";

/// A store behind a proxy that breaks connections.
async fn behind_a_proxy(options: impl FnOnce(MySqlOptions) -> MySqlOptions) -> (Home, CutProxy) {
    let server = MariaDb::shared();
    let proxy = CutProxy::start(server.address());
    let url = server.url_through(proxy.address(), &server.create_database());
    (Home::at(url, options).await, proxy)
}

#[tokio::test]
async fn a_reserve_whose_commit_is_not_answered_is_granted_once_to_the_same_attempt() {
    let (home, proxy) = behind_a_proxy(|options| options).await;
    let asked = ask("answer-lost-0001");
    proxy.cut_after(COMMIT, ANSWERED);
    let answer = home.store.reserve(asked.clone()).await.expect("reserve answers");
    let Reservation::Granted { lease, found: Found::Mine } = answer else {
        panic!("expected the grant that was lost: {answer:?}");
    };
    assert_eq!(proxy.sprung(), 1);
    let record = home.store.load(&asked.id).await.expect("load answers").expect("a record");
    assert_eq!((record.attempts, record.fence), (1, lease.fence));
    let other = home.store.reserve(retry(&asked)).await.expect("reserve answers");
    assert!(matches!(other, Reservation::Occupied { .. }), "{other:?}");
}

#[tokio::test]
async fn a_reserve_whose_commit_never_arrived_is_made_on_another_connection() {
    let (home, proxy) = behind_a_proxy(|options| options).await;
    proxy.cut_before(COMMIT);
    let answer = home.store.reserve(ask("never-arrived-0001")).await.expect("reserve answers");
    assert!(matches!(answer, Reservation::Granted { found: Found::Absent, .. }), "{answer:?}");
    assert_eq!(proxy.sprung(), 1);
}

#[tokio::test]
async fn each_write_whose_commit_is_not_answered_is_applied_once() {
    let (home, proxy) = behind_a_proxy(|options| options).await;
    let writes = [
        ("write-lost-complete", Write::Complete(reply("done")), State::Completed),
        ("write-lost-release", Write::Release("declined".into()), State::FailedRetryable),
        ("write-lost-unknown", Write::MarkUnknown("reset".into()), State::Unknown),
        ("write-lost-renew", Write::Renew(Duration::from_secs(90)), State::InProgress),
    ];
    for (number, (key, write, state)) in writes.into_iter().enumerate() {
        let lease = home.grant(&ask(key)).await;
        proxy.cut_after(COMMIT, ANSWERED);
        let answer = home.store.write(&lease, write.clone()).await.expect("write answers");
        assert_eq!(proxy.sprung(), number as u64 + 1, "{key}");
        match (&write, &answer) {
            (Write::Renew(_), Written::Applied) => {}
            (Write::Complete(sent), Written::AlreadyMine(Some(stored))) => assert_eq!(sent, stored),
            (Write::Release(_) | Write::MarkUnknown(_), Written::AlreadyMine(None)) => {}
            _ => panic!("{key} is answered {answer:?}"),
        }
        let record = home.store.load(&lease.id).await.expect("load answers").expect("a record");
        assert_eq!(record.state, state);
        let audit = home.store.audit(&lease.id).await.expect("audit answers");
        assert!(audit.is_empty(), "nothing was superseded: {audit:?}");
    }
}

#[tokio::test]
async fn each_step_whose_commit_is_not_answered_is_made_once() {
    let (home, proxy) = behind_a_proxy(|options| options).await;
    let lease = home.grant(&phased("step-lost-0001")).await;
    let steps = [
        save("reserve-stock", "7"),
        intend("charge", true),
        Advance::Withdraw { name: "charge".into() },
        intend("charge", false),
        save("charge", "paid"),
    ];
    for step in steps {
        proxy.cut_after(COMMIT, ANSWERED);
        let advanced = home.store.advance(&lease, step).await.expect("advance answers");
        assert_eq!(advanced, Advanced::AlreadyMine);
    }
    assert_eq!(proxy.sprung(), 5);
    let saved = home.store.steps(&lease.id, 1).await.expect("steps answers");
    let names: Vec<&str> = saved.iter().map(|step| &*step.name).collect();
    assert_eq!(names, ["reserve-stock", "charge"]);
}

/// A caller who is told that nothing happened would believe it.
#[tokio::test]
async fn what_was_committed_and_then_cannot_be_asked_for_is_said_to_be_ambiguous() {
    let (home, proxy) = behind_a_proxy(|options| options.connections(1, 1)).await;
    let lease = home.grant(&ask("then-no-way-0001")).await;
    proxy.cut_after(COMMIT, ANSWERED);
    proxy.lead_to(None);
    let said = home.store.write(&lease, Write::Complete(reply("done"))).await;
    assert_eq!(said.expect_err("no way").kind(), StoreErrorKind::Ambiguous);
    assert_eq!(proxy.sprung(), 1);
    // And its twin: what was never sent is known not to have happened.
    let said = home.store.reserve(ask("then-no-way-0002")).await;
    assert_eq!(said.expect_err("no way").kind(), StoreErrorKind::Unavailable);
    proxy.lead_to(Some(MariaDb::shared().address()));
    let there = async |key: &str| home.store.load(&ask(key).id).await.expect("load answers");
    assert_eq!(there("then-no-way-0001").await.expect("a record").state, State::Completed);
    assert!(there("then-no-way-0002").await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_all_the_time_lose_nothing_and_grant_nothing_twice() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let (home, proxy) = behind_a_proxy(|options| options).await;
    let mut calls = JoinSet::new();
    for number in 0..120 {
        let store = Arc::clone(&home.store);
        calls.spawn(async move {
            let asked = ask(&format!("cut-{number:04}"));
            let other = retry(&asked);
            let (one, two) = tokio::join!(
                insist(|| store.reserve(asked.clone())),
                insist(|| store.reserve(other.clone())),
            );
            let leases: Vec<_> = [one, two]
                .into_iter()
                .filter_map(|answer| match answer {
                    Reservation::Granted { lease, .. } => Some(lease),
                    _ => None,
                })
                .collect();
            let [lease] = &leases[..] else { panic!("{} grants", leases.len()) };
            let write = || store.write(lease, Write::Complete(reply("done")));
            let written = insist(write).await;
            assert!(
                matches!(written, Written::Applied | Written::AlreadyMine(Some(_))),
                "{written:?}"
            );
            let record = insist(|| store.load(&asked.id)).await.expect("a record");
            assert_eq!((record.state, record.attempts), (State::Completed, 1));
        });
    }
    let cutter = {
        let proxy = proxy.clone();
        tokio::spawn(async move {
            let mut random = StdRng::seed_from_u64(seed);
            loop {
                tokio::time::sleep(Duration::from_millis(random.random_range(1..30))).await;
                match random.random_range(0..3) {
                    0 => proxy.cut(),
                    1 => proxy.cut_before(COMMIT),
                    _ => proxy.cut_after(COMMIT, ANSWERED),
                }
            }
        })
    };
    while let Some(call) = calls.join_next().await {
        call.expect("no panic");
    }
    cutter.abort();
}

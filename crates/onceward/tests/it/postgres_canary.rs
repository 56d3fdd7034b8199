//! The canary on PostgreSQL, where what was lost is taken away by hand: what a beat asks for, and who is
//! waited for.

use std::{sync::Arc, time::Duration};

use onceward::{
    Canary, PgOptions, Policy, Settings, Store,
    clock::ManualClock,
    engine::BreakerState,
    record::Lease,
    store::{Advance, Advanced, Beat, NodeId, Pulse},
    testing::samples::{ask, intend, phased, save, withdraw},
};
use onceward_testbed::{CutProxy, Postgres, READY_FOR_QUERY};
use sqlx::PgConnection;
use tokio::time::{sleep, timeout};

use crate::{
    postgres_home::{Home, copy, one, run},
    service::{Service, says},
};

const HERE: NodeId = NodeId::from_bytes([1; 16]);
const THERE: NodeId = NodeId::from_bytes([2; 16]);

const EARLY: &str = "order-0000000000000001";
const LATE: &str = "order-0000000000000002";

/// All beats so far were made on the server before this one.
const CHANGE_HANDS: &str = "UPDATE beats SET timeline = 'before'";

/// On the shared server, with this many connections for single calls.
async fn home(singles: usize) -> Home {
    let url = Postgres::shared().url("postgres");
    Home::at(url, |options| options.connections(1, singles)).await
}

async fn beat(home: &Home, node: NodeId, acked: u64) -> Pulse {
    home.store.beat(Beat { node, acked }).await.expect("a beat")
}

async fn advance(home: &Home, lease: &Lease, advance: Advance) {
    let advanced = home.store.advance(lease, advance).await.expect("an answer");
    assert_eq!(advanced, Advanced::Applied);
}

#[tokio::test]
async fn nodes_are_waited_for_however_long_the_store_was_away() {
    let clock = ManualClock::default();
    let (url, given) = (Postgres::shared().url("postgres"), Arc::new(clock.clone()));
    let home = Home::at(url, |options: PgOptions| options.clock(given)).await;
    let gone = NodeId::from_bytes([3; 16]);
    beat(&home, gone, 0).await;
    clock.advance(Duration::from_secs(61));
    beat(&home, THERE, 0).await;
    beat(&home, HERE, 0).await;
    run(&mut home.connection().await, CHANGE_HANDS).await;
    clock.advance(Duration::from_secs(3600));
    // Who had gone before the server did is not.
    assert_eq!(beat(&home, HERE, 1).await.absent, 1);
    clock.advance(Duration::from_secs(30));
    assert_eq!(beat(&home, HERE, 2).await.absent, 1);
    assert_eq!(beat(&home, THERE, 1).await.absent, 0);
    assert_eq!(beat(&home, HERE, 3).await.absent, 0);
}

#[tokio::test]
async fn a_node_that_does_not_come_in_the_first_minute_is_not_waited_for() {
    let clock = ManualClock::default();
    let (url, given) = (Postgres::shared().url("postgres"), Arc::new(clock.clone()));
    let home = Home::at(url, |options: PgOptions| options.clock(given)).await;
    beat(&home, THERE, 0).await;
    beat(&home, HERE, 0).await;
    run(&mut home.connection().await, CHANGE_HANDS).await;
    assert_eq!(beat(&home, HERE, 1).await.absent, 1);
    clock.advance(Duration::from_secs(59));
    assert_eq!(beat(&home, HERE, 2).await.absent, 1);
    clock.advance(Duration::from_secs(1));
    assert_eq!(beat(&home, HERE, 3).await.absent, 0);
}

#[tokio::test]
async fn while_nodes_are_waited_for_nothing_runs_and_the_store_is_not_taken_for_down() {
    let home = home(2).await;
    let store = Arc::clone(&home.store) as Arc<dyn Store>;
    let canary = Arc::new(Canary::new(Arc::clone(&store)));
    let settings = Settings {
        canary: Some(Arc::clone(&canary)),
        store_deadline: Duration::from_millis(200),
        ..Settings::default()
    };
    let work = |_| async { "charged" };
    let service = Service::with_settings(|_| store, Policy::required(), settings, work);
    beat(&home, THERE, 0).await;
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    run(&mut home.connection().await, CHANGE_HANDS).await;
    // A beat that does not meet all takes back what the last one said, on the same connections.
    canary.beat().await.expect("a beat");
    // At once, so that no answer of the store comes between them and makes up for it.
    let refused = [0, 1, 2, 3].map(|number| service.spawn_charge(&format!("{LATE}-{number}")));
    for refused in refused {
        assert_eq!(refused.await.expect("an answer").says(), says(503, "store_unavailable"));
    }
    assert_eq!((service.runs(), service.engine.breaker_state()), (1, BreakerState::Closed));
    assert_eq!(service.charge(EARLY).await.says(), says(200, "replayed"));
    beat(&home, THERE, 1).await;
    canary.beat().await.expect("a beat");
    assert_eq!(service.charge(LATE).await.says(), says(200, "executed"));
}

/// A phased operation that saved a step, announced an effect and took it back, on one connection.
async fn withdrawn(home: &Home) {
    let lease = home.grant(&phased(EARLY)).await;
    advance(home, &lease, save("book", "booked")).await;
    advance(home, &lease, intend("charge", false)).await;
    advance(home, &lease, withdraw("charge")).await;
}

#[tokio::test]
async fn an_effect_that_was_withdrawn_is_no_loss() {
    let home = home(1).await;
    withdrawn(&home).await;
    assert_eq!(beat(&home, HERE, 0).await.regression, None);
}

#[tokio::test]
async fn what_was_acknowledged_before_an_effect_that_was_withdrawn_is_still_asked_for() {
    let home = home(1).await;
    withdrawn(&home).await;
    run(&mut home.connection().await, "DELETE FROM steps").await;
    assert!(beat(&home, HERE, 0).await.regression.is_some(), "a saved step is gone");
}

#[tokio::test]
async fn an_effect_that_is_gone_is_a_loss() {
    let home = home(1).await;
    let lease = home.grant(&phased(EARLY)).await;
    advance(&home, &lease, intend("charge", false)).await;
    let lose = "UPDATE records SET open_effect = NULL, open_effect_idempotent = NULL";
    run(&mut home.connection().await, lose).await;
    assert!(beat(&home, HERE, 0).await.regression.is_some(), "an announced effect is gone");
}

#[tokio::test]
async fn an_effect_whose_withdrawal_was_not_heard_of_is_no_loss() {
    let server = Postgres::shared();
    let proxy = CutProxy::start(server.address());
    let url = server.url_through(proxy.address(), "postgres");
    let home = Home::at(url, |options| options.connections(1, 1)).await;
    let lease = home.grant(&phased(EARLY)).await;
    advance(&home, &lease, intend("charge", false)).await;
    // It is carried out, its answer is lost, and nobody can ask again for now.
    proxy.lead_to(None);
    proxy.cut_after(b"withdraw", READY_FOR_QUERY);
    home.store.advance(&lease, withdraw("charge")).await.expect_err("no answer");
    assert_eq!(proxy.sprung(), 1);
    proxy.lead_to(Some(server.address()));
    let open: bool =
        one(&mut home.connection().await, "SELECT open_effect IS NOT NULL FROM records").await;
    assert!(!open, "it was withdrawn");
    assert_eq!(beat(&home, HERE, 0).await.regression, None);
}

/// Waits until a call of this store stands before a lock.
async fn stands(home: &Home) {
    let waits = format!(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
         AND query LIKE '%{}%beat%'",
        home.schema
    );
    until(&mut home.connection().await, &waits).await;
}

/// Looks again and again until it is so.
async fn until(eyes: &mut PgConnection, condition: &str) {
    let looking = async {
        while !one::<bool>(eyes, condition).await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(60), looking).await.expect("it comes to be so");
}

#[tokio::test]
async fn an_effect_is_not_withdrawn_while_a_beat_asks_for_it() {
    let home = Arc::new(home(2).await);
    let lease = home.grant(&phased(EARLY)).await;
    beat(&home, HERE, 0).await;
    advance(&home, &lease, intend("charge", false)).await;
    let mut other = home.connection().await;
    run(&mut other, "BEGIN; SELECT FROM beats FOR UPDATE").await;
    let asker = Arc::clone(&home);
    let asking = tokio::spawn(async move { beat(&asker, HERE, 1).await });
    stands(&home).await;
    let (at_it, own) = (Arc::clone(&home), copy(&lease));
    let mut withdrawing = tokio::spawn(async move {
        at_it.store.advance(&own, withdraw("charge")).await.expect("an answer")
    });
    // It waits for the beat. One that did not wait would be done in this time.
    let done = timeout(Duration::from_millis(300), &mut withdrawing).await.is_ok();
    run(&mut other, "ROLLBACK").await;
    assert_eq!(asking.await.expect("a beat").regression, None);
    assert!(!done, "the beat could have missed it");
    assert_eq!(withdrawing.await.expect("an answer"), Advanced::Applied);
}

#[tokio::test]
async fn a_beat_that_nobody_heard_of_still_counts() {
    let home = Arc::new(home(1).await);
    assert_eq!(beat(&home, HERE, 0).await.count, 1);
    home.occupy(&ask(LATE)).await;
    let mut other = home.connection().await;
    run(&mut other, "BEGIN; SELECT FROM beats FOR UPDATE").await;
    let asker = Arc::clone(&home);
    let asking = tokio::spawn(async move { beat(&asker, HERE, 1).await });
    stands(&home).await;
    // Its caller goes, as one whose time is over does. The beat asks for the record, and finds it.
    asking.abort();
    run(&mut other, "ROLLBACK").await;
    until(&mut other, "SELECT count = 2 FROM beats").await;
    // Both are lost. The node says what it has heard of.
    run(&mut other, "UPDATE beats SET count = 1; DELETE FROM records").await;
    assert!(beat(&home, HERE, 1).await.regression.is_some(), "the beat stood for the record");
}

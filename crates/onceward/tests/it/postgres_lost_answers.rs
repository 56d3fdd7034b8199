//! Connections to PostgreSQL that break at the worst moment: what was done is found out, never done
//! again.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use axum::Router;
use onceward::{
    Idempotency, PgOptions, PgStore, Policy, Store,
    clock::{Clock as _, ManualClock},
    record::{Effects, State},
    store::{
        Advance, Advanced, Ask, Found, Reservation, Resolution, Resolve, Resolved, StoreErrorKind,
        StoreFuture, Write, Written,
    },
    testing::{
        Fault, FaultyStore, Model, StoreCall,
        samples::{ask, intend, phased, reply, retry, save},
    },
};
use onceward_testbed::{CutProxy, Postgres, READY_FOR_QUERY};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use crate::{
    postgres_home::{Home, copy, insist, one, run},
    service::{Answer, charge, says},
};

/// A store behind a proxy that breaks connections.
pub(crate) async fn behind_a_proxy(
    options: impl FnOnce(PgOptions) -> PgOptions,
) -> (Home, CutProxy) {
    behind_a_proxy_in("postgres", options).await
}

async fn behind_a_proxy_in(
    database: &str,
    options: impl FnOnce(PgOptions) -> PgOptions,
) -> (Home, CutProxy) {
    let postgres = Postgres::shared();
    let proxy = CutProxy::start(postgres.address());
    let url = postgres.url_through(proxy.address(), database);
    let home = Home::at(url, options).await;
    // The test itself has a way around it.
    (Home { url: postgres.url("postgres"), ..home }, proxy)
}

#[tokio::test]
async fn a_reserve_whose_answer_is_lost_is_granted_once_to_the_same_attempt() {
    let (home, proxy) = behind_a_proxy(|options| options).await;
    let asked = ask("answer-lost-0001");
    proxy.cut_after(b"answer-lost-0001", READY_FOR_QUERY);
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
async fn a_reserve_that_never_arrived_is_made_on_another_connection() {
    let (home, proxy) = behind_a_proxy(|options| options).await;
    proxy.cut_before(b"never-arrived-0001");
    let answer = home.store.reserve(ask("never-arrived-0001")).await.expect("reserve answers");
    assert!(matches!(answer, Reservation::Granted { found: Found::Absent, .. }), "{answer:?}");
    assert_eq!(proxy.sprung(), 1);
}

#[tokio::test]
async fn a_takeover_whose_answer_is_lost_is_granted_once_to_the_same_attempt() {
    let (home, proxy) = behind_a_proxy(|options| options).await;
    let asked = ask("taken-over-0001");
    let first = home.grant(&asked).await;
    home.write(&first, Write::Release("declined".into())).await;
    let again = retry(&asked);
    // Its attempt id is in the statement that changes the record, and not in the one that looks.
    let attempt = again.attempt.as_bytes().iter().map(|byte| format!("{byte:02x}"));
    let attempt: String = attempt.collect();
    proxy.cut_after(&attempt.as_bytes()[..8], READY_FOR_QUERY);
    let second = home.grant(&again).await;
    assert_eq!(proxy.sprung(), 1);
    assert!(second.fence > first.fence);
    let record = home.store.load(&asked.id).await.expect("load answers").expect("a record");
    assert_eq!((record.attempts, record.attempt), (2, again.attempt));
}

#[tokio::test]
async fn each_write_whose_answer_is_lost_is_applied_once() {
    let (home, proxy) = behind_a_proxy(|options| options).await;
    let writes = [
        ("write-lost-complete", Write::Complete(reply("done")), State::Completed),
        ("write-lost-release", Write::Release("declined".into()), State::FailedRetryable),
        ("write-lost-unknown", Write::MarkUnknown("reset".into()), State::Unknown),
        ("write-lost-renew", Write::Renew(Duration::from_secs(90)), State::InProgress),
    ];
    for (number, (key, write, state)) in writes.into_iter().enumerate() {
        let lease = home.grant(&ask(key)).await;
        proxy.cut_after(key.as_bytes(), READY_FOR_QUERY);
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
async fn each_step_whose_answer_is_lost_is_made_once() {
    let (home, proxy) = behind_a_proxy(|options| options).await;
    let lease = home.grant(&phased("step-lost-0001")).await;
    let steps = [
        (save("reserve-stock", "7"), Advanced::AlreadyMine),
        (intend("charge", true), Advanced::AlreadyMine),
        (Advance::Withdraw { name: "charge".into() }, Advanced::AlreadyMine),
        (intend("charge", false), Advanced::AlreadyMine),
        (save("charge", "paid"), Advanced::AlreadyMine),
    ];
    for (step, expected) in steps {
        proxy.cut_after(b"step-lost-0001", READY_FOR_QUERY);
        assert_eq!(home.store.advance(&lease, step).await.expect("advance answers"), expected);
    }
    assert_eq!(proxy.sprung(), 5);
    let saved = home.store.steps(&lease.id, 1).await.expect("steps answers");
    let names: Vec<&str> = saved.iter().map(|step| &*step.name).collect();
    assert_eq!(names, ["reserve-stock", "charge"]);
}

/// A caller who is told that nothing happened would believe it.
#[tokio::test]
async fn a_call_that_was_made_and_then_cannot_be_repeated_is_said_to_be_ambiguous() {
    let (home, proxy) = behind_a_proxy(|options| options.connections(2, 1)).await;
    let asked = phased("then-no-way-0001");
    let lease = home.grant(&asked).await;
    home.write(&lease, Write::Renew(Duration::from_secs(70))).await;
    home.store.ping().await.expect("all three connections are there");
    // The answer is lost, and there is no other connection to be had.
    let no_way = |key: &[u8]| {
        proxy.cut_after(key, READY_FOR_QUERY);
        proxy.lead_to(None);
    };
    let back = || proxy.lead_to(Some(Postgres::shared().address()));

    no_way(b"then-no-way-0001");
    let said = home.store.write(&lease, Write::Renew(Duration::from_secs(90))).await;
    assert_eq!(said.expect_err("no way").kind(), StoreErrorKind::Ambiguous);
    no_way(b"then-no-way-0001");
    let said = home.store.advance(&lease, save("pack", "1")).await;
    assert_eq!(said.expect_err("no way").kind(), StoreErrorKind::Ambiguous);
    // There is a connection again for it to be sent on.
    back();
    home.occupy(&ask("then-no-way-0004")).await;
    no_way(b"then-no-way-0002");
    let said = home.store.reserve(ask("then-no-way-0002")).await;
    assert_eq!(said.expect_err("no way").kind(), StoreErrorKind::Ambiguous);
    assert_eq!(proxy.sprung(), 3);
    // And its twin: what was never sent is known not to have happened.
    let said = home.store.reserve(ask("then-no-way-0003")).await;
    assert_eq!(said.expect_err("no way").kind(), StoreErrorKind::Unavailable);
    back();
    let there = async |key: &str| home.store.load(&ask(key).id).await.expect("load answers");
    assert_eq!(home.store.steps(&lease.id, 1).await.expect("steps answers").len(), 1);
    assert!(there("then-no-way-0002").await.is_some());
    assert!(there("then-no-way-0003").await.is_none());
}

#[tokio::test]
async fn a_decision_whose_answer_is_lost_is_not_said_to_be_refused() {
    let (home, proxy) = behind_a_proxy(|options| options).await;
    let asked = ask("decided-0001");
    let lease = home.grant(&asked).await;
    home.write(&lease, Write::MarkUnknown("reset".into())).await;
    let resolve = |reason: &str| Resolve {
        id: asked.id.clone(),
        generation: lease.generation,
        fence: lease.fence,
        resolution: Resolution::Complete(reply("done")),
        reason: reason.into(),
    };
    // The reason is in the statement that changes the record, and not in the one that looks.
    proxy.cut_after(b"the provider says so", READY_FOR_QUERY);
    let said = home.store.resolve(resolve("the provider says so")).await;
    assert_eq!(said.expect_err("lost").kind(), StoreErrorKind::Ambiguous);
    assert_eq!(proxy.sprung(), 1);
    let record = home.store.load(&asked.id).await.expect("load answers").expect("a record");
    assert_eq!(record.state, State::Completed);
    // And its twin: a look that was lost has decided nothing.
    proxy.cut_after(b"decided-0001", READY_FOR_QUERY);
    let said = home.store.resolve(resolve("once more")).await.expect("resolve answers");
    assert!(matches!(said, Resolved::Refused(_)), "{said:?}");
    assert_eq!(proxy.sprung(), 2);
}

/// An earlier call of the same attempt may be what has the record locked.
#[tokio::test]
async fn after_a_lost_answer_a_locked_record_whose_lease_is_over_is_not_somebody_elses() {
    let home = Home::new().await;
    let (unlock, mut locked) = tokio::sync::mpsc::unbounded_channel();
    let answers = Arc::new(Mutex::new(Vec::new()));
    let plan = {
        let answers = Arc::clone(&answers);
        move |call, _| {
            let mut planned = answers.lock().expect("no panic");
            match planned.pop() {
                Some(Some(fault)) if call == StoreCall::Reserve => fault,
                Some(None) if call == StoreCall::Reserve => {
                    let _ = unlock.send(());
                    Fault::None
                }
                _ => Fault::None,
            }
        }
    };
    let store = FaultyStore::new(Arc::clone(&home.store) as Arc<dyn Store>, plan);
    let policy = Policy::required().effects(Effects::None).expect("allowed");
    let layer = Idempotency::new(Arc::new(store), policy);
    let app = Router::new().fallback(async || "done").layer(layer);
    let send = async || {
        let sent = app.clone().oneshot(charge("order-0000000000000001")).await;
        Answer::read(sent.expect("infallible")).await
    };
    assert_eq!(send().await.says(), says(200, "executed"));
    let mut other = home.connection().await;
    let cut_off = "UPDATE records SET state = 'in_progress', lease_until = 1, reply_status = NULL, \
                   finished_at = NULL, reply_headers = NULL, reply_body = NULL";
    run(&mut other, cut_off).await;
    run(&mut other, "BEGIN; SELECT 1 FROM records FOR UPDATE").await;
    // From the end: lost, answered while it is locked, and once more.
    *answers.lock().expect("no panic") = vec![None, Some(Fault::None), Some(Fault::LostBefore)];
    let mut sent = std::pin::pin!(send());
    let answer = tokio::select! {
        answer = &mut sent => answer,
        _ = locked.recv() => {
            run(&mut other, "ROLLBACK").await;
            sent.await
        }
    };
    assert_eq!(answer.says(), says(200, "executed"));
}

/// What a repeated call must answer, if the model answers so.
fn agrees(answer: &Written, expected: &Written, write: &Write) -> bool {
    match (answer, expected) {
        (Written::AlreadyMine(stored), Written::Applied) => match write {
            Write::Complete(sent) => stored.as_ref() == Some(sent),
            _ => stored.is_none(),
        },
        _ => answer == expected,
    }
}

/// A database that only a store behind a proxy uses.
struct Quiet<'a> {
    database: &'a str,
    proxy: &'a CutProxy,
    watcher: PgConnection,
}

impl Quiet<'_> {
    /// Repeats a call until the store answers it. What a call sent over a connection that was cut has
    /// come to its end before the next one: it would be in its way, or come late.
    async fn insist<'a, A>(&mut self, call: impl Fn() -> StoreFuture<'a, A>) -> A {
        loop {
            let answer = call().await;
            self.settle().await;
            match answer {
                Ok(answer) => return answer,
                Err(error) => assert!(error.may_be_repeated(), "{error:?}"),
            }
        }
    }

    async fn settle(&mut self) {
        let sessions = "SELECT count(*) FROM pg_stat_activity \
                        WHERE backend_type = 'client backend' AND datname";
        let sessions = format!("{sessions} = '{}'", self.database);
        while one::<i64>(&mut self.watcher, &sessions).await.unsigned_abs() > self.proxy.open() {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn through_hundreds_of_random_cuts_store_and_model_hold_the_same() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let clock = ManualClock::default();
    let database = Postgres::shared().create_database();
    let with_clock = |options: PgOptions| options.clock(Arc::new(clock.clone()));
    let (home, proxy) = behind_a_proxy_in(database.name(), with_clock).await;
    let watcher = PgConnection::connect(&home.url).await.expect("a connection");
    let mut quiet = Quiet { database: database.name(), proxy: &proxy, watcher };
    let mut model = Model::default();
    let mut leases = Vec::new();
    for round in 0..250_u32 {
        let key = format!("random-cut-{:04}", random.random_range(0..40));
        match random.random_range(0..4) {
            0 => {}
            1 => proxy.cut_before(key.as_bytes()),
            2 => proxy.cut_after(key.as_bytes(), READY_FOR_QUERY),
            _ => proxy.cut(),
        }
        let asked = Ask { effects: Effects::None, ..ask(&key) };
        if leases.is_empty() || random.random_bool(0.5) {
            let answer = quiet.insist(|| home.store.reserve(asked.clone())).await;
            let expected = model.reserve(&asked, clock.now());
            match (&answer, expected) {
                (
                    Reservation::Granted { lease, .. },
                    Reservation::Granted { lease: expected, .. },
                ) => {
                    assert_eq!(*lease, expected, "round {round}");
                    leases.push(copy(lease));
                }
                (Reservation::Completed(found), expected) => {
                    assert_eq!(Some(&**found), expected.completed().as_ref(), "round {round}");
                }
                (_, expected) => assert_eq!(answer, expected, "round {round}"),
            }
        } else {
            let lease = copy(&leases[random.random_range(0..leases.len())]);
            let write = match random.random_range(0..4) {
                0 => Write::Complete(reply(format!("reply {round}"))),
                1 => Write::Release("declined".into()),
                2 => Write::MarkUnknown("reset".into()),
                _ => Write::Renew(Duration::from_secs(90)),
            };
            let answer = quiet.insist(|| home.store.write(&lease, write.clone())).await;
            let expected = model.write(&lease, write.clone(), clock.now());
            assert!(agrees(&answer, &expected, &write), "round {round}: {answer:?} {expected:?}");
        }
        clock.advance(Duration::from_millis(random.random_range(0..20_000)));
    }
    proxy.be_honest();
    assert!(proxy.sprung() > 50, "{} cuts", proxy.sprung());
    for number in 0..40 {
        let id = ask(&format!("random-cut-{number:04}")).id;
        let held = quiet.insist(|| home.store.load(&id)).await;
        assert_eq!(held, model.load(&id, clock.now()));
        let audit = quiet.insist(|| home.store.audit(&id)).await;
        model.agrees_on_audit(&id, &audit).expect("the same is remembered");
    }
}

/// Grants by key, and the replies that were acknowledged.
#[derive(Default)]
pub(crate) struct Ledger {
    grants: HashMap<String, Vec<i64>>,
    pub(crate) acknowledged: HashMap<String, String>,
}

/// Several attempts for each key; whoever is granted completes.
pub(crate) async fn contend(
    store: Arc<PgStore>,
    ledger: Arc<Mutex<Ledger>>,
    keys: std::ops::Range<u32>,
) {
    let mut tasks = JoinSet::new();
    for number in keys {
        for attempt in 0..3 {
            let (store, ledger) = (Arc::clone(&store), Arc::clone(&ledger));
            tasks.spawn(async move {
                let key = format!("contended-{number:05}");
                let asked = ask(&key);
                let answer = insist(|| store.reserve(asked.clone())).await;
                let Reservation::Granted { lease, .. } = answer else { return };
                let body = format!("by {attempt}");
                {
                    let mut ledger = ledger.lock().expect("not poisoned");
                    ledger.grants.entry(key.clone()).or_default().push(lease.fence.number());
                }
                let write = Write::Complete(reply(body.clone()));
                let written = insist(|| store.write(&lease, write.clone())).await;
                let stored = matches!(written, Written::Applied | Written::AlreadyMine(Some(_)));
                assert!(stored, "{key}: {written:?}");
                ledger.lock().expect("not poisoned").acknowledged.insert(key, body);
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
}

/// Each key was granted once, and its acknowledged reply is the stored one.
pub(crate) async fn settle_accounts(store: &PgStore, ledger: &Mutex<Ledger>, keys: u32) {
    let ledger = std::mem::take(&mut *ledger.lock().expect("not poisoned"));
    assert_eq!((ledger.grants.len(), ledger.acknowledged.len()), (keys as usize, keys as usize));
    for (key, fences) in &ledger.grants {
        assert_eq!(fences.len(), 1, "{key} was granted more than once");
    }
    for (key, body) in &ledger.acknowledged {
        let id = ask(key).id;
        let record = insist(|| store.load(&id)).await.expect("a record");
        assert_eq!(record.state, State::Completed, "{key}");
        assert_eq!(record.reply, Some(reply(body.clone())), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_crowd_whose_connections_break_all_the_time_each_key_is_granted_once() {
    let (home, proxy) = behind_a_proxy(|options| options).await;
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let over = Arc::new(AtomicBool::new(false));
    let breaker = tokio::spawn({
        let (proxy, over) = (proxy.clone(), Arc::clone(&over));
        async move {
            let mut cuts = 0;
            while !over.load(SeqCst) {
                tokio::time::sleep(Duration::from_millis(rand::random_range(20..600))).await;
                proxy.cut();
                cuts += 1;
            }
            cuts
        }
    });
    for batch in 0..20 {
        contend(Arc::clone(&home.store), Arc::clone(&ledger), batch * 50..(batch + 1) * 50).await;
    }
    over.store(true, SeqCst);
    let cuts = breaker.await.expect("no panic");
    println!("{cuts} cuts");
    settle_accounts(&home.store, &ledger, 1_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_a_server_that_is_killed_under_load() {
    let mut postgres = Postgres::start();
    let home = Home::at(postgres.url("postgres"), |options| options).await;
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let load = tokio::spawn(contend(Arc::clone(&home.store), Arc::clone(&ledger), 0..2_000));
    for _ in 0..2 {
        let enough = ledger.lock().expect("not poisoned").acknowledged.len() + 50;
        let begun = Instant::now();
        while ledger.lock().expect("not poisoned").acknowledged.len() < enough {
            assert!(begun.elapsed() < Duration::from_secs(60), "no progress");
            if load.is_finished() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::task::block_in_place(|| {
            postgres.kill_9();
            postgres.start_again();
        });
    }
    load.await.expect("no panic");
    settle_accounts(&home.store, &ledger, 2_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_calls_to_a_silent_server_end_and_recover_soon_after_it_does() {
    let mut postgres = Postgres::start();
    let home = Home::at(postgres.url("postgres"), |options| options).await;
    home.occupy(&ask("before-the-silence")).await;
    postgres.hold();
    let (failed, mut told) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    for number in 0..6_000 {
        let (store, failed) = (Arc::clone(&home.store), failed.clone());
        tasks.spawn(async move {
            let asked = ask(&format!("in-the-silence-{number:05}"));
            loop {
                match store.reserve(asked.clone()).await {
                    Ok(answer) => return answer,
                    // Who waits has been told: a closed channel is of no interest.
                    Err(error) => drop(failed.send(error.kind())),
                }
            }
        });
    }
    told.recv().await.expect("nobody waits for ever");
    postgres.go();
    let recovered = Instant::now();
    while let Some(answer) = tasks.join_next().await {
        let answer = answer.expect("no panic");
        assert!(matches!(answer, Reservation::Granted { .. }), "{answer:?}");
    }
    let took = recovered.elapsed();
    assert!(took < Duration::from_secs(10), "it took {took:?} to recover");
}

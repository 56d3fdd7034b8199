//! What the store on MariaDB promises beside the suite: keys are bytes, locked rows and other processes
//! are in nobody's way, and what was acknowledged survives the server.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use onceward::{
    Key, MySqlOptions, MySqlStore, Store as _,
    record::{Effects, RecordId, State},
    store::{Ask, MySqlConnectError, Reservation, StoreErrorKind, Write, Written},
    testing::samples::{ask, phased, reply, retry},
};
use onceward_testbed::{CutProxy, MariaDb};
use tokio::task::JoinSet;

use crate::{
    mysql_home::{Home, one, run},
    postgres_batches::{complete_all, reserve_all},
    postgres_home::{copy, insist, whole},
};

fn keyed(key: &str) -> Ask {
    let asked = ask("any");
    let id = RecordId { key: Key::new(key).expect("a key"), ..asked.id.clone() };
    Ask { id, attempt: onceward::record::AttemptId::random(), ..asked }
}

#[tokio::test]
async fn keys_that_differ_in_case_or_in_a_space_at_the_end_are_different_keys() {
    let home = Home::new().await;
    for key in ["order-a", "order-A", "order-a ", "order-a  ", "ORDER-A"] {
        let lease = home.grant(&keyed(key)).await;
        home.write(&lease, Write::Complete(reply(key))).await;
    }
    for key in ["order-a", "order-A", "order-a ", "order-a  ", "ORDER-A"] {
        let record = home.store.load(&keyed(key).id).await.expect("load answers");
        assert_eq!(record.expect("a record").reply, Some(reply(key)), "{key:?}");
    }
}

/// Each batch is one commit, and so one sync of the log.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_calls_at_once_are_a_few_commits_on_mariadb() {
    let server = MariaDb::shared();
    let proxy = CutProxy::start(server.address());
    let url = server.url_through(proxy.address(), &server.create_database());
    let home = Home::at(url, |options| options).await;
    // The same to the server: it is counted, and nothing else.
    proxy.replace(b"\x03COMMIT", b"\x03commit");
    let mut before = 0;
    let mut commits = || {
        let after = proxy.replacements();
        after - std::mem::replace(&mut before, after)
    };
    home.occupy(&ask("alone-0001")).await;
    assert_eq!(commits(), 1, "a call that is alone");

    let asks: Vec<Ask> = (0..1_000).map(|number| ask(&format!("many-{number:04}"))).collect();
    let granted = reserve_all(&home.store, asks.clone()).await;
    assert!(granted.iter().all(|answer| matches!(answer, Reservation::Granted { .. })));
    let reserved = commits();
    assert!((1..100).contains(&reserved), "{reserved} commits for 1000 reserves");
    complete_all(&home.store, granted).await;
    let completed = commits();
    assert!((1..100).contains(&completed), "{completed} commits for 1000 completes");
    let replayed = reserve_all(&home.store, asks.iter().map(retry).collect()).await;
    assert!(replayed.iter().all(|answer| answer.completed().is_some()));
    let replayed = commits();
    assert!(replayed < 100, "{replayed} commits for 1000 replays");
}

#[tokio::test]
async fn a_locked_row_stalls_nobody_but_those_who_ask_for_it() {
    let home = Home::new().await;
    let lease = home.grant(&ask("locked-0000000001")).await;
    let mut other = home.connection().await;
    // The row alone: at REPEATABLE READ it would be all gaps, too.
    run(&mut other, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await;
    run(&mut other, "BEGIN; SELECT * FROM onceward_records FOR UPDATE").await;
    let begun = Instant::now();
    let mut calls = JoinSet::new();
    for number in 0..200 {
        let store = Arc::clone(&home.store);
        calls.spawn(async move {
            let asked = ask(&format!("stranger-{number:04}"));
            let reserved = store.reserve(asked).await.expect("reserve answers");
            let Reservation::Granted { lease, .. } = reserved else { panic!("{reserved:?}") };
            let written = store.write(&lease, Write::Complete(reply("done"))).await;
            assert_eq!(written.expect("write answers"), Written::Applied);
        });
    }
    // Those stand in one line with these.
    let (write, reserve) = tokio::join!(
        home.store.write(&lease, Write::Complete(reply("done"))),
        home.store.reserve(retry(&ask("locked-0000000001"))),
    );
    assert_eq!(write.expect_err("it is locked").kind(), StoreErrorKind::Unavailable);
    // Work whose row is locked is alive.
    let reserve = reserve.expect("reserve answers");
    let Reservation::Occupied { record, .. } = reserve else { panic!("{reserve:?}") };
    assert_eq!(record.state, State::InProgress);
    while let Some(call) = calls.join_next().await {
        call.expect("answered");
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    run(&mut other, "ROLLBACK").await;
    home.write(&lease, Write::Complete(reply("done"))).await;
}

#[tokio::test]
async fn of_two_stores_on_one_database_one_grants_each_key() {
    let home = Home::new().await;
    let second = Home::at(home.url.clone(), |options| options).await;
    let mut calls = JoinSet::new();
    for number in 0..100 {
        let asked = ask(&format!("raced-{number:04}"));
        for store in [&home.store, &second.store] {
            for _ in 0..2 {
                let (store, asked) = (Arc::clone(store), retry(&asked));
                calls.spawn(async move { insist(|| store.reserve(asked.clone())).await });
            }
        }
    }
    let mut granted = 0;
    while let Some(call) = calls.join_next().await {
        match call.expect("answered") {
            Reservation::Granted { .. } => granted += 1,
            Reservation::Occupied { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(granted, 100);
}

#[tokio::test]
async fn one_element_that_cannot_be_written_does_not_fail_the_rest() {
    let home = Home::new().await;
    run(
        &mut home.connection().await,
        "ALTER TABLE onceward_records ADD CONSTRAINT no_poison CHECK (`key` <> 'poisoned')",
    )
    .await;
    let mut calls = JoinSet::new();
    for number in 0..64 {
        let key = if number == 17 { "poisoned".to_owned() } else { format!("sound-{number:04}") };
        let store = Arc::clone(&home.store);
        calls.spawn(async move { (key.clone(), store.reserve(ask(&key)).await) });
    }
    while let Some(call) = calls.join_next().await {
        let (key, reserved) = call.expect("answered");
        match key.as_str() {
            "poisoned" => {
                let error = reserved.expect_err("it is refused");
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
            }
            _ => {
                let reserved = reserved.expect("reserve answers");
                assert!(matches!(reserved, Reservation::Granted { .. }), "{key}: {reserved:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_a_mariadb_that_is_killed_under_load() {
    let mut server = tokio::task::spawn_blocking(MariaDb::start).await.expect("a server");
    let database = server.create_database();
    let home = Home::at(server.url(&database), |options| options).await;
    let acknowledged = Arc::new(Mutex::new(HashMap::new()));
    let over = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for client in 0..8 {
        let (store, over) = (Arc::clone(&home.store), Arc::clone(&over));
        let acknowledged = Arc::clone(&acknowledged);
        clients.spawn(async move {
            for number in 0.. {
                if over.load(SeqCst) {
                    break;
                }
                let asked = ask(&format!("load-{client}-{number:06}"));
                let reserved = insist(|| store.reserve(asked.clone())).await;
                let Reservation::Granted { lease, .. } = reserved else { panic!("{reserved:?}") };
                let write = || store.write(&lease, Write::Complete(reply("done")));
                let written = insist(write).await;
                assert!(
                    matches!(written, Written::Applied | Written::AlreadyMine(Some(_))),
                    "{written:?}"
                );
                acknowledged.lock().expect("not poisoned").insert(asked.id.clone(), copy(&lease));
            }
        });
    }
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        server = tokio::task::spawn_blocking(move || {
            server.kill_9();
            server.start_again();
            server
        })
        .await
        .expect("started again");
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    over.store(true, SeqCst);
    while let Some(client) = clients.join_next().await {
        client.expect("no panic");
    }
    let acknowledged = std::mem::take(&mut *acknowledged.lock().expect("not poisoned"));
    assert!(acknowledged.len() > 20, "only {}", acknowledged.len());
    for (id, lease) in acknowledged {
        let record = insist(|| home.store.load(&id)).await.expect("it is there");
        assert_eq!(
            (record.state, record.fence, record.attempts),
            (State::Completed, lease.fence, 1)
        );
    }
    home.store.close().await;
    tokio::task::spawn_blocking(move || drop(server)).await.expect("stopped");
}

#[tokio::test]
async fn tables_are_made_once_and_newer_ones_are_used_if_they_say_so() {
    let server = MariaDb::shared();
    let url = server.url(&server.create_database());
    let not_there = MySqlStore::connect(MySqlOptions::new(&*url).migrate(false)).await;
    let not_there = not_there.expect_err("no tables");
    assert!(matches!(not_there, MySqlConnectError::NotMigrated { found: 0, .. }), "{not_there:?}");
    let together = (0..4).map(|_| MySqlStore::connect(MySqlOptions::new(&*url)));
    let together = futures_util::future::join_all(together).await;
    assert!(together.iter().all(Result::is_ok), "{together:?}");
    let home = Home::at(url.clone(), |options| options.migrate(false)).await;
    home.occupy(&ask("there-0000000001")).await;
    // A migration that a crash has cut off is made again.
    let mut other = home.connection().await;
    run(&mut other, "DELETE FROM onceward_migrations").await;
    let again = Home::at(url.clone(), |options| options).await;
    assert!(again.store.load(&ask("there-0000000001").id).await.expect("answers").is_some());
    run(&mut other, "INSERT INTO onceward_migrations (version) VALUES (99)").await;
    Home::at(url.clone(), |options| options).await.occupy(&ask("there-0000000002")).await;
    let since = "UPDATE onceward_meta SET value = '99' WHERE name = 'compatible_since'";
    run(&mut other, since).await;
    let newer = MySqlStore::connect(MySqlOptions::new(&*url)).await.expect_err("newer");
    assert!(whole(&newer).contains("version 99"), "{newer}");
    let two: i64 = one(&mut other, "SELECT COUNT(*) FROM onceward_meta WHERE name = 'name'").await;
    assert_eq!(two, 1);
}

#[tokio::test]
async fn addresses_that_cannot_work_are_refused_with_a_reason() {
    let server = MariaDb::shared();
    let database = server.create_database();
    let refused = async |options: MySqlOptions| {
        whole(&MySqlStore::connect(options).await.expect_err("refused"))
    };
    let named = refused(MySqlOptions::new(server.url(""))).await;
    assert!(named.contains("names no database"), "{named}");
    let prefix = refused(MySqlOptions::new(server.url(&database)).prefix("a-b")).await;
    assert!(prefix.contains("prefix"), "{prefix}");
    let nowhere = refused(MySqlOptions::new("mysql://root@127.0.0.1:1/test")).await;
    assert!(nowhere.contains("cannot be used"), "{nowhere}");
    // And its twin: another prefix is another store in the same database.
    let one = Home::at(server.url(&database), |options| options).await;
    let other = Home::at(server.url(&database), |options| options.prefix("other_")).await;
    one.occupy(&ask("two-stores-0001")).await;
    other.occupy(&ask("two-stores-0001")).await;
}

/// What is kept beside a record goes when that comes to rest; of this one nobody would look for it.
#[tokio::test]
async fn a_request_is_kept_of_work_in_steps_only() {
    let home = Home::new().await;
    let mut look = home.connection().await;
    let kept = "SELECT COUNT(*) FROM onceward_requests";
    let asked = phased("kept-request-0001");
    assert!(asked.request.is_some());
    home.occupy(&asked).await;
    assert_eq!(one::<i64>(&mut look, kept).await, 1);
    let mut asked = phased("kept-request-0002");
    asked.effects = Effects::External;
    home.occupy(&asked).await;
    assert_eq!(one::<i64>(&mut look, kept).await, 1, "the other one's");
}

//! Steps that share a transaction, and steps that take the short way on what is remembered, compared
//! with the same steps one after another in memory.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use onceward::{
    Effects, MemoryStore, SqliteOptions, SqliteStore, Store,
    clock::{Clock as _, ManualClock, Timestamp},
    fingerprint::Fingerprint,
    record::{AttemptId, AuditRecord, Fence, Lease, RecordId},
    store::{
        Advance, Ask, Claim, Mode, Proof, Reservation, Resolution, Resolve, Resumable,
        StoreErrorKind, Which, Write, Written,
    },
    testing::samples::{intend, request, save, withdraw},
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use crate::file_store::{ask, directory, granted, open, reply, run_sql};

#[derive(Clone, Debug)]
enum Call {
    Reserve(Ask),
    Claim(Claim),
    Write(RecordId, AttemptId, Fence, u32, Write),
    Advance(RecordId, AttemptId, Fence, u32, Advance),
    Resolve(Resolve),
    Load(RecordId),
    Sweep,
    Reap,
}

/// Makes a call, and says what came of it in a way that can be compared.
async fn make(store: &dyn Store, call: Call) -> String {
    match call {
        Call::Reserve(ask) => format!("{:?}", store.reserve(ask).await),
        Call::Claim(claim) => format!("{:?}", store.claim(claim).await),
        Call::Write(id, attempt, fence, generation, write) => {
            let until = Timestamp::from_micros(0);
            let lease = Lease { id, attempt, fence, generation, attempt_number: 1, until };
            format!("{:?}", store.write(&lease, write).await)
        }
        Call::Advance(id, attempt, fence, generation, advance) => {
            let until = Timestamp::from_micros(0);
            let lease = Lease { id, attempt, fence, generation, attempt_number: 1, until };
            format!("{:?}", store.advance(&lease, advance).await)
        }
        Call::Resolve(resolve) => format!("{:?}", store.resolve(resolve).await),
        Call::Load(id) => format!("{:?}", store.load(&id).await),
        Call::Sweep => {
            let mut swept = store.sweep(1000).await.expect("an answer");
            swept.sort_by(|left, right| left.id.cmp(&right.id));
            format!("{swept:?}")
        }
        Call::Reap => format!("{:?}", store.reap(1000).await),
    }
}

const KEYS: [&str; 3] = ["order-1", "order-2", "order-3"];
const LEASES: [u64; 3] = [1, 10, 60];

struct Caller {
    random: StdRng,
    model: MemoryStore,
}

impl Caller {
    fn attempt(&mut self) -> AttemptId {
        // Few, so that attempts come back.
        AttemptId::from_bytes([self.random.random_range(0..12); 16])
    }

    fn duration(&mut self) -> Duration {
        Duration::from_secs(LEASES[self.random.random_range(0..LEASES.len())])
    }

    fn ask(&mut self, template: Ask) -> Ask {
        let mode = match self.random.random_range(0..8) {
            0 => Mode::Accept,
            1 => Mode::LookupOnly,
            _ => Mode::Execute,
        };
        let effects = match self.random.random_range(0..10) {
            kind @ 0..5 => Effects::ALL[kind],
            _ => Effects::Phased,
        };
        // Of anything else, stores need not keep one.
        let has_request = mode == Mode::Accept || effects == Effects::Phased;
        let body = self.random.random_range(0..3);
        Ask {
            fingerprint: Fingerprint::from_stored(1, [self.random.random_range(0..5) / 4; 32]),
            attempt: self.attempt(),
            mode,
            lease: self.duration(),
            max_execution: Duration::from_secs(5),
            retention: self.duration(),
            tombstone: self.duration() - Duration::from_secs(1),
            expired_runs_again: self.random.random_bool(0.3),
            effects,
            request: (has_request && body > 0).then(|| Arc::new(request(vec![body; 1000]))),
            ..template
        }
    }

    /// A call that has a chance to mean something, given what the model holds now.
    async fn call(&mut self) -> Call {
        let template = ask(KEYS[self.random.random_range(0..KEYS.len())]);
        let id = template.id.clone();
        let known = self.model.load(&id).await.expect("an answer");
        let stale = self.random.random_bool(0.1);
        let (attempt, fence, generation) = match &known {
            Some(record) if !stale => (record.attempt, record.fence, record.generation),
            _ => (self.attempt(), Fence::from_stored(self.random.random_range(1..9)), 1),
        };
        let reply = reply(&vec![b'a' + self.random.random_range(0..3); 2000]);
        match self.random.random_range(0..21) {
            0..6 => Call::Reserve(self.ask(template)),
            6 => Call::Claim(Claim {
                id,
                attempt: self.attempt(),
                lease: self.duration(),
                max_execution: Duration::from_secs(5),
                effects: Effects::ALL[self.random.random_range(0..5)],
                fence: None,
            }),
            7..13 => {
                let write = match self.random.random_range(0..8) {
                    0..4 => Write::Complete(reply),
                    4..6 => Write::Renew(self.duration()),
                    6 => Write::Release("because".into()),
                    _ => Write::MarkUnknown("because".into()),
                };
                Call::Write(id, attempt, fence, generation, write)
            }
            13 => {
                let resolution = match self.random.random_range(0..3) {
                    0 => Resolution::Complete(reply),
                    1 => Resolution::Release(Proof::Authoritative),
                    _ => Resolution::Void,
                };
                Call::Resolve(Resolve { id, generation, fence, resolution, reason: "test".into() })
            }
            14..19 => {
                let name = ["book", "charge", "mail"][self.random.random_range(0..3)];
                let advance = match self.random.random_range(0..6) {
                    0 | 1 => intend(name, self.random.random_bool(0.7)),
                    2 => withdraw(name),
                    _ => save(name, ["one", "two"][self.random.random_range(0..2)]),
                };
                Call::Advance(id, attempt, fence, generation, advance)
            }
            _ => Call::Load(id),
        }
    }
}

#[tokio::test]
async fn batches_and_the_short_way_do_what_single_steps_in_memory_do() {
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let directory = directory();
    let clock = ManualClock::default();
    let options =
        SqliteOptions::new(directory.path().join("store.db")).clock(Arc::new(clock.clone()));
    // What one of them remembers, the other one makes stale.
    let stores = [
        SqliteStore::open(options.clone()).await.expect("a store"),
        SqliteStore::open(options).await.expect("a store"),
    ];
    let model = MemoryStore::with_clock(Arc::new(clock.clone()));
    let mut caller = Caller { random: StdRng::seed_from_u64(seed), model };
    for round in 0..250 {
        let store = &stores[caller.random.random_range(0..2)];
        let mut calls = Vec::new();
        let size = [1, 1, 1, 2, 3, 8][caller.random.random_range(0..6)];
        for _ in 0..size {
            calls.push(caller.call().await);
        }
        match caller.random.random_range(0..20) {
            0 => calls = vec![Call::Sweep],
            1 => calls = vec![Call::Reap],
            _ => {}
        }
        let mut expected = Vec::new();
        for call in &calls {
            expected.push(make(&caller.model, call.clone()).await);
        }
        // All of them are in line before the store begins with the first.
        let answers = join_all(calls.iter().map(|call| make(store, call.clone()))).await;
        for ((call, answer), expected) in calls.iter().zip(&answers).zip(&expected) {
            assert_eq!(answer, expected, "seed {seed}, round {round}: {call:?} in {calls:?}");
        }
        for key in KEYS {
            let id = ask(key).id;
            let there = store.load(&id).await.expect("an answer");
            assert_eq!(there, caller.model.load(&id).await.expect("an answer"), "seed {seed}");
            for generation in 1..4 {
                let kept = store.steps(&id, generation).await.expect("an answer");
                let expected = caller.model.steps(&id, generation).await.expect("an answer");
                assert_eq!(kept, expected, "seed {seed}, round {round}: steps of {calls:?}");
            }
            // In memory the audit records go with the record; in the file they stay.
            let known = caller.model.audit(&id).await.expect("an answer");
            let kept = store.audit(&id).await.expect("an answer");
            let name = |audit: &AuditRecord| (audit.event, audit.attempt, audit.fence);
            let kept: Vec<_> = kept.iter().map(name).collect();
            let all = known.iter().map(name).all(|audit| kept.contains(&audit));
            assert!(all, "seed {seed}, round {round}: {known:?}, {kept:?}");
        }
        let waiting = by_id(store.resumable(Which::All, 10).await.expect("an answer"));
        let expected = by_id(caller.model.resumable(Which::All, 10).await.expect("an answer"));
        assert_eq!(waiting, expected, "seed {seed}, round {round}: {calls:?}");
        match caller.random.random_range(0..10) {
            0 => clock.advance(Duration::from_secs(caller.random.random_range(0..90))),
            1 => {
                let back = i64::from(caller.random.random_range(0..20_000_000_u32));
                clock.set(Timestamp::from_micros(clock.now().as_micros() - back));
            }
            _ => clock.advance(Duration::from_millis(caller.random.random_range(1..500))),
        }
    }
    let writes = stores.iter().map(|store| store.commits_and_writes().1).sum::<u64>();
    assert!(writes > 50, "only {writes} writes");
}

/// Reserves with the given attempt, in the given mode of fingerprint.
fn by_id(mut waiting: Vec<Resumable>) -> Vec<Resumable> {
    waiting.sort_by(|left, right| left.record.id.cmp(&right.record.id));
    waiting
}

fn asked_by(key: &str, attempt: u8, fingerprint: u8) -> Ask {
    Ask {
        attempt: AttemptId::from_bytes([attempt; 16]),
        fingerprint: Fingerprint::from_stored(1, [fingerprint; 32]),
        ..ask(key)
    }
}

#[tokio::test]
async fn of_several_reserves_in_one_batch_the_first_wins_and_each_gets_its_own_answer() {
    let directory = directory();
    let store = open(&directory.path().join("store.db")).await.expect("a store");
    let asks = [
        asked_by("order-1", 1, 1),
        asked_by("order-2", 2, 1),
        asked_by("order-1", 3, 1),
        asked_by("order-1", 4, 2),
        asked_by("order-1", 1, 1),
    ];
    let answers = join_all(asks.iter().map(|ask| store.reserve(ask.clone()))).await;
    let mut fences = Vec::new();
    for (ask, answer) in asks.iter().zip(answers) {
        let attempt = match answer.expect("an answer") {
            Reservation::Granted { lease, .. } => {
                assert_eq!((&lease.id, lease.attempt), (&ask.id, ask.attempt));
                fences.push(lease.fence);
                lease.attempt
            }
            Reservation::Occupied { record, .. } => {
                assert_eq!(record.id, ask.id);
                assert_eq!(*record.fingerprint.digest(), [1; 32], "of the first, not of this one");
                record.attempt
            }
            other => panic!("neither granted nor occupied: {other:?}"),
        };
        assert_eq!(attempt.as_bytes()[0], if ask.id.key.as_str() == "order-2" { 2 } else { 1 });
    }
    assert_eq!(fences.len(), 3, "order-1, order-2 and order-1 once more by its own attempt");
    assert_eq!(fences[0], fences[2], "the same grant");
    assert_eq!(store.commits_and_writes(), (1, 2), "one transaction, one row for each key");
}

#[tokio::test]
async fn an_element_that_fails_leaves_neither_its_record_nor_its_audit_record() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let mut leases = Vec::new();
    for key in KEYS {
        let lease = granted(&store, &ask(key)).await;
        let unknown = store.write(&lease, Write::MarkUnknown("test".into())).await;
        assert_eq!(unknown.expect("an answer"), Written::Applied);
        leases.push(lease);
    }
    run_sql(
        &path,
        "CREATE TRIGGER poison BEFORE UPDATE ON onceward_records WHEN NEW.key = 'order-2' \
         BEGIN SELECT RAISE(ABORT, 'poison'); END",
    )
    .await;
    // Late completions: each writes its record and an audit record.
    let complete = |lease| store.write(lease, Write::Complete(reply(b"late")));
    let answers = join_all(leases.iter().map(complete)).await;
    for (lease, answer) in leases.iter().zip(answers) {
        let poisoned = lease.id.key.as_str() == "order-2";
        match answer {
            Ok(written) => assert_eq!((written, poisoned), (Written::Applied, false)),
            Err(error) => {
                assert_eq!((error.kind(), poisoned), (StoreErrorKind::Unavailable, true));
            }
        }
        let record = store.load(&lease.id).await.expect("an answer").expect("a record");
        assert_eq!(record.reply.is_none(), poisoned);
        let audit = store.audit(&lease.id).await.expect("an answer");
        assert_eq!(audit.len(), if poisoned { 0 } else { 1 }, "{audit:?}");
    }
}

#[tokio::test]
async fn a_step_alone_that_cannot_be_written_is_known_not_to_have_happened() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let lease = granted(&store, &ask("order-1")).await;
    run_sql(
        &path,
        "CREATE TRIGGER no_insert BEFORE INSERT ON onceward_records \
         BEGIN SELECT RAISE(ABORT, 'poison'); END; \
         CREATE TRIGGER no_update BEFORE UPDATE ON onceward_records \
         BEGIN SELECT RAISE(ABORT, 'poison'); END",
    )
    .await;
    let error = store.reserve(ask("order-2")).await.expect_err("refused");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    let error = store.write(&lease, Write::Complete(reply(b"paid"))).await.expect_err("refused");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    run_sql(&path, "DROP TRIGGER no_insert; DROP TRIGGER no_update").await;
    assert!(store.load(&ask("order-2").id).await.expect("an answer").is_none());
    let written = store.write(&lease, Write::Complete(reply(b"paid"))).await.expect("answer");
    assert_eq!(written, Written::Applied);
}

#[tokio::test]
async fn many_replays_at_once_write_nothing_and_each_gets_the_whole_reply() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let first = ask("order-1");
    let lease = granted(&store, &first).await;
    let body: Vec<u8> = (0..1 << 20).map(|_| rand::random()).collect();
    let written = store.write(&lease, Write::Complete(reply(&body))).await.expect("answer");
    assert_eq!(written, Written::Applied);
    let log = std::fs::metadata(directory.path().join("store.db-wal")).expect("there").len();
    for _ in 0..4 {
        let retries = (0..250).map(|_| Ask { attempt: AttemptId::random(), ..first.clone() });
        for answer in join_all(retries.map(|retry| store.reserve(retry))).await {
            let Reservation::Occupied { record, .. } = answer.expect("an answer") else {
                panic!("granted twice");
            };
            assert_eq!(record.reply, Some(reply(&body)));
        }
    }
    let after = std::fs::metadata(directory.path().join("store.db-wal")).expect("there").len();
    assert_eq!(after, log, "replays write nothing");
}

/// What happened to a record since a store wrote it last.
#[derive(Clone, Copy, Debug)]
enum Since {
    Nothing,
    Renewed,
    Completed,
    MarkedUnknown,
    GrantedAgain,
    Swept,
    Voided,
    Purged,
    PurgedAndGrantedAgain,
}

async fn happen(since: Since, store: &dyn Store, clock: &ManualClock, lease: &Lease, again: &Ask) {
    let applied = |write| async {
        assert_eq!(store.write(lease, write).await.expect("an answer"), Written::Applied);
    };
    match since {
        Since::Nothing => {}
        Since::Renewed => applied(Write::Renew(Duration::from_secs(600))).await,
        Since::Completed => applied(Write::Complete(reply(b"theirs"))).await,
        Since::MarkedUnknown => applied(Write::MarkUnknown("test".into())).await,
        Since::GrantedAgain => {
            applied(Write::Release("test".into())).await;
            // At the same time, so that the lease ends when the first one would.
            let _ = granted(store, again).await;
        }
        Since::Swept => {
            clock.advance(Duration::from_secs(61));
            assert!(!store.sweep(1000).await.expect("an answer").is_empty());
        }
        Since::Voided => {
            applied(Write::Complete(reply(b"theirs"))).await;
            let resolve = Resolve {
                id: lease.id.clone(),
                generation: lease.generation,
                fence: lease.fence,
                resolution: Resolution::Void,
                reason: "test".into(),
            };
            let _ = store.resolve(resolve).await.expect("an answer");
        }
        Since::Purged | Since::PurgedAndGrantedAgain => {
            applied(Write::Complete(reply(b"theirs"))).await;
            clock.advance(Duration::from_secs(2 * 86_400));
            assert!(store.reap(1000).await.expect("an answer").purged > 0);
            if matches!(since, Since::PurgedAndGrantedAgain) {
                let _ = granted(store, again).await;
            }
        }
    }
}

#[tokio::test]
async fn what_a_store_remembers_never_wins_over_what_another_one_did_since() {
    use Since::*;
    let directory = directory();
    let path = directory.path().join("store.db");
    let all = [
        Nothing,
        Renewed,
        Completed,
        MarkedUnknown,
        GrantedAgain,
        Swept,
        Voided,
        Purged,
        PurgedAndGrantedAgain,
    ];
    for since in all {
        for action in 0..6 {
            let (clock, model_clock) = (ManualClock::default(), ManualClock::default());
            let model = MemoryStore::with_clock(Arc::new(model_clock.clone()));
            let options = SqliteOptions::new(&path).clock(Arc::new(clock.clone()));
            let ours = SqliteStore::open(options.clone()).await.expect("a store");
            let theirs = SqliteStore::open(options).await.expect("a store");
            let key = format!("{since:?}-{action}");
            let (first, again) = (asked_by(&key, 1, 1), asked_by(&key, 2, 1));
            let mut outcomes = Vec::new();
            let file: [(&dyn Store, &dyn Store, &ManualClock); 2] =
                [(&ours, &theirs, &clock), (&model, &model, &model_clock)];
            for (ours, theirs, clock) in file {
                let lease = granted(ours, &first).await;
                happen(since, theirs, clock, &lease, &again).await;
                let answer = match action {
                    0 => format!("{:?}", ours.reserve(asked_by(&key, 1, 1)).await),
                    1 => format!("{:?}", ours.reserve(asked_by(&key, 3, 1)).await),
                    2 => format!("{:?}", ours.write(&lease, Write::Complete(reply(b"ours"))).await),
                    3 => {
                        let renew = Write::Renew(Duration::from_secs(120));
                        format!("{:?}", ours.write(&lease, renew).await)
                    }
                    4 => format!("{:?}", ours.write(&lease, Write::Release("ours".into())).await),
                    _ => {
                        let unknown = Write::MarkUnknown("ours".into());
                        format!("{:?}", ours.write(&lease, unknown).await)
                    }
                };
                let record = theirs.load(&first.id).await.expect("an answer");
                let audit = theirs.audit(&first.id).await.expect("an answer");
                let audit: Vec<_> = audit.iter().map(|audit| audit.event).collect();
                outcomes.push((answer, record, audit));
            }
            let [file, model] = <[_; 2]>::try_from(outcomes).expect("two");
            assert_eq!((&file.0, &file.1), (&model.0, &model.1), "{since:?}, action {action}");
            // In memory the audit records of a purged record go with it.
            assert!(file.2.ends_with(&model.2), "{since:?}, action {action}: {:?}", file.2);
            ours.close().await;
            theirs.close().await;
        }
    }
}

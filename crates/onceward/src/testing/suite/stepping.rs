//! Steps of a phased operation: which are made, which are not, and what is kept of them.

use std::sync::Arc;

use crate::{
    record::{AttemptId, Effects, Fence, Lease, OpenEffect, Progress, SavedStep, State},
    store::{Advance, Advanced, Ask, Claim, Mode, Reservation, Resolution, Write, Written},
    testing::{
        Harness,
        samples::{
            LEASE, RETENTION, TOMBSTONE, ask, claim, intend, phased, reply, retry, save, withdraw,
        },
    },
};

fn saved(name: &str, result: &str) -> SavedStep {
    SavedStep { name: name.into(), result: result.to_owned().into() }
}

fn all_advances() -> [Advance; 3] {
    [save("late", "?"), intend("late", true), withdraw("late")]
}

async fn refused(on: &Harness, lease: &Lease, advance: Advance) {
    let before = on.load(&lease.id).await;
    match on.advance(lease, advance.clone()).await {
        Advanced::Superseded(record) => assert_eq!(record.map(|record| *record), before),
        other => panic!("expected {advance:?} to be superseded, found {other:?}"),
    }
    assert_eq!(on.load(&lease.id).await, before, "a superseded step changes nothing");
}

async fn misused(on: &Harness, lease: &Lease, advance: Advance) {
    let before = on.record(&lease.id).await;
    let answer = on.advance(lease, advance.clone()).await;
    assert!(matches!(answer, Advanced::Refused(_)), "{advance:?} was answered {answer:?}");
    assert_eq!(on.record(&lease.id).await, before, "a refused step changes nothing");
}

/// A step moves the recovery point, and nothing else of the record; its result is kept.
pub async fn saving_a_step_moves_the_recovery_point_and_keeps_its_result(on: Harness) {
    let lease = on.grant(&phased("key")).await;
    let mut expected = on.record(&lease.id).await;
    on.clock.advance(LEASE / 3);
    on.stepped(&lease, save("charge", "42")).await;
    expected.progress.recovery_point = Some("charge".into());
    assert_eq!(on.record(&lease.id).await, expected);
    assert_eq!(on.steps(&lease.id, 1).await, [saved("charge", "42")]);
}

/// Steps come back oldest first, whatever their names.
pub async fn steps_come_back_in_the_order_in_which_they_were_saved(on: Harness) {
    let lease = on.grant(&phased("key")).await;
    let names = ["zebra", "apple", "mango", "1", "Apple"];
    for name in names {
        on.stepped(&lease, save(name, name)).await;
    }
    assert_eq!(on.steps(&lease.id, 1).await, names.map(|name| saved(name, name)));
    assert_eq!(on.record(&lease.id).await.progress.recovery_point.as_deref(), Some("Apple"));
}

/// Results and names are bytes and text of any kind.
pub async fn results_and_names_of_any_kind_survive(on: Harness) {
    let lease = on.grant(&phased("key")).await;
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let names = ["empty", "binary", "large", "caf\u{e9} '\"; --", &"n".repeat(255)];
    let results = [vec![], every_byte, vec![7; 1 << 20], vec![1], vec![2]];
    for (name, result) in names.iter().zip(&results) {
        let advance = Advance::Save { name: (*name).into(), result: result.clone().into() };
        on.stepped(&lease, advance).await;
    }
    let held = on.steps(&lease.id, 1).await;
    assert_eq!(held.len(), names.len());
    for (step, (name, result)) in held.iter().zip(names.iter().zip(&results)) {
        assert_eq!((&*step.name, &step.result[..]), (*name, &result[..]));
    }
}

/// Saving again is acknowledged again; the first result counts.
pub async fn saving_a_step_twice_is_applied_once(on: Harness) {
    let lease = on.grant(&phased("key")).await;
    on.stepped(&lease, save("charge", "42")).await;
    assert_eq!(on.advance(&lease, save("charge", "43")).await, Advanced::AlreadyMine);
    // Also when others came after it, and when the effect of another one is open.
    on.stepped(&lease, save("book", "7")).await;
    on.stepped(&lease, intend("mail", false)).await;
    let before = on.record(&lease.id).await;
    assert_eq!(on.advance(&lease, save("charge", "44")).await, Advanced::AlreadyMine);
    assert_eq!(on.record(&lease.id).await, before);
    assert_eq!(on.steps(&lease.id, 1).await, [saved("charge", "42"), saved("book", "7")]);
}

/// An effect is open from its intent to its result.
pub async fn an_effect_is_open_from_its_intent_to_its_result(on: Harness) {
    for idempotent in [true, false] {
        let lease = on.grant(&phased(if idempotent { "one" } else { "other" })).await;
        on.stepped(&lease, intend("charge", idempotent)).await;
        let open = OpenEffect { name: "charge".into(), idempotent };
        let progress = on.record(&lease.id).await.progress;
        assert_eq!(progress, Progress { recovery_point: None, open_effect: Some(open) });
        assert_eq!(on.steps(&lease.id, 1).await, []);
        on.stepped(&lease, save("charge", "42")).await;
        let progress = on.record(&lease.id).await.progress;
        assert_eq!(progress.open_effect, None);
        assert_eq!(progress.recovery_point.as_deref(), Some("charge"));
        assert_eq!(on.steps(&lease.id, 1).await, [saved("charge", "42")]);
    }
}

/// Intending again is acknowledged again.
pub async fn intending_twice_is_applied_once(on: Harness) {
    let lease = on.grant(&phased("key")).await;
    on.stepped(&lease, intend("charge", true)).await;
    let before = on.record(&lease.id).await;
    assert_eq!(on.advance(&lease, intend("charge", true)).await, Advanced::AlreadyMine);
    assert_eq!(on.record(&lease.id).await, before);
}

/// What is known not to have acted is not open any more, and may be tried again.
pub async fn a_withdrawn_effect_is_not_open_any_more(on: Harness) {
    let lease = on.grant(&phased("key")).await;
    let before = on.record(&lease.id).await;
    on.stepped(&lease, intend("charge", false)).await;
    on.stepped(&lease, withdraw("charge")).await;
    assert_eq!(on.record(&lease.id).await, before, "as if it had never been intended");
    assert_eq!(on.advance(&lease, withdraw("charge")).await, Advanced::AlreadyMine);
    on.stepped(&lease, intend("charge", false)).await;
    assert_eq!(on.advance(&lease, withdraw("another")).await, Advanced::AlreadyMine);
    assert!(on.record(&lease.id).await.progress.open_effect.is_some(), "only its own");
}

/// One effect at a time: with two open, nobody could say which one acted.
pub async fn a_second_effect_is_not_opened_beside_an_open_one(on: Harness) {
    let lease = on.grant(&phased("key")).await;
    on.stepped(&lease, intend("charge", true)).await;
    misused(&on, &lease, intend("mail", true)).await;
    on.stepped(&lease, save("charge", "42")).await;
    on.stepped(&lease, intend("mail", true)).await;
}

/// The recovery point does not pass an effect of which nobody knows the result.
pub async fn no_step_is_saved_while_the_effect_of_another_is_open(on: Harness) {
    let lease = on.grant(&phased("key")).await;
    on.stepped(&lease, intend("charge", true)).await;
    misused(&on, &lease, save("book", "7")).await;
    assert_eq!(on.steps(&lease.id, 1).await, []);
    on.stepped(&lease, withdraw("charge")).await;
    on.stepped(&lease, save("book", "7")).await;
}

/// An intent that is late on its way does not open again what has a result.
pub async fn an_effect_that_has_a_result_is_not_opened_again(on: Harness) {
    let lease = on.grant(&phased("key")).await;
    on.stepped(&lease, intend("charge", false)).await;
    on.stepped(&lease, save("charge", "42")).await;
    misused(&on, &lease, intend("charge", false)).await;
    misused(&on, &lease, withdraw("charge")).await;
    on.stepped(&lease, save("book", "7")).await;
    misused(&on, &lease, intend("charge", false)).await;
}

/// Whoever was replaced makes no step any more, not even one that stands.
pub async fn a_superseded_attempt_cannot_advance(on: Harness) {
    let ask = phased("key");
    let first = on.grant(&ask).await;
    on.stepped(&first, save("charge", "42")).await;
    on.clock.advance(LEASE);
    let second = on.grant(&retry(&ask)).await;
    for advance in all_advances() {
        refused(&on, &first, advance).await;
    }
    refused(&on, &first, save("charge", "42")).await;
    assert_eq!(on.steps(&ask.id, 1).await, [saved("charge", "42")]);
    assert_eq!(on.audit(&ask.id).await.len(), 1, "the lease that ran out, and no evidence");
    on.stepped(&second, save("book", "7")).await;
}

/// Attempt and fence both count.
pub async fn an_advance_needs_its_attempt_and_its_fence(on: Harness) {
    let lease = on.grant(&phased("key")).await;
    let id = lease.id.clone();
    let another = Lease { id: id.clone(), attempt: AttemptId::random(), ..lease };
    let older = Fence::from_stored(lease.fence.number() - 1);
    let old = Lease { id, fence: older, ..lease };
    for advance in all_advances() {
        refused(&on, &another, advance.clone()).await;
        refused(&on, &old, advance).await;
    }
    on.stepped(&lease, save("charge", "42")).await;
}

/// A step of a record that is not there makes none.
pub async fn an_advance_of_nothing_makes_nothing(on: Harness) {
    let ask = Ask { tombstone: std::time::Duration::ZERO, ..phased("key") };
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    on.clock.advance(RETENTION);
    assert_eq!(on.reap(10).await.purged, 1);
    for advance in all_advances() {
        assert_eq!(on.advance(&lease, advance).await, Advanced::Superseded(None));
    }
    assert_eq!(on.load(&ask.id).await, None);
    assert_eq!(on.steps(&ask.id, 1).await, []);
}

/// In no other state does the attempt that brought it there make a step.
pub async fn only_work_in_progress_advances(on: Harness) {
    let ends = [
        ("completed", Write::Complete(reply("done"))),
        ("released", Write::Release("not_sent".into())),
        ("unknown", Write::MarkUnknown("reset".into())),
    ];
    for (key, end) in ends {
        let lease = on.grant(&phased(key)).await;
        assert_eq!(on.write(&lease, end).await, Written::Applied);
        for advance in all_advances() {
            refused(&on, &lease, advance).await;
        }
    }
    let accepted = Ask { mode: Mode::Accept, ..phased("accepted") };
    let _: crate::store::Reservation = on.reserve(&accepted).await;
    let record = on.record(&accepted.id).await;
    let lease = Lease {
        id: accepted.id,
        attempt: record.attempt,
        fence: record.fence,
        generation: 1,
        attempt_number: 0,
        until: on.now(),
    };
    for advance in all_advances() {
        refused(&on, &lease, advance).await;
    }
}

/// State and fence decide, not lease time.
pub async fn a_late_owner_that_nobody_replaced_advances(on: Harness) {
    let lease = on.grant(&phased("key")).await;
    on.clock.advance(LEASE * 100);
    on.stepped(&lease, intend("charge", true)).await;
    on.stepped(&lease, save("charge", "42")).await;
    assert!(!on.record(&lease.id).await.lease_is_live(on.now()), "a step renews no lease");
}

/// Steps of different keys and scopes do not meet.
pub async fn steps_of_different_records_do_not_meet(on: Harness) {
    let mut leases = Vec::new();
    for (scope, key) in [("a", "bc"), ("ab", "c"), ("a", "c"), ("ab", "bc")] {
        let id = crate::testing::samples::id(scope, key);
        leases.push(on.grant(&Ask { id, ..phased("unused") }).await);
    }
    for (number, lease) in leases.iter().enumerate() {
        on.stepped(lease, save("charge", &number.to_string())).await;
    }
    for (number, lease) in leases.iter().enumerate() {
        assert_eq!(on.steps(&lease.id, 1).await, [saved("charge", &number.to_string())]);
    }
    assert_eq!(on.write(&leases[0], Write::Complete(reply("done"))).await, Written::Applied);
    assert_eq!(on.steps(&leases[0].id, 1).await, []);
    assert_eq!(on.steps(&leases[1].id, 1).await.len(), 1);
}

/// The next attempt finds what those before it made, and goes on from there.
pub async fn the_next_attempt_finds_the_steps_of_those_before_it(on: Harness) {
    let ask = phased("key");
    let mut expected = Vec::new();
    for attempt in 1..=4_u32 {
        let lease = on.grant(&retry(&ask)).await;
        assert_eq!((lease.generation, lease.attempt_number), (1, attempt));
        assert_eq!(on.steps(&ask.id, 1).await, expected);
        for step in &expected {
            let again = save(&step.name, "another result");
            assert_eq!(on.advance(&lease, again).await, Advanced::AlreadyMine);
        }
        let name = format!("step-{attempt}");
        on.stepped(&lease, save(&name, "done")).await;
        expected.push(saved(&name, "done"));
        on.clock.advance(LEASE);
    }
}

/// A record at rest has no steps; the next generation begins without any, and may use every name.
pub async fn the_next_generation_begins_without_steps(on: Harness) {
    let ask = Ask { expired_runs_again: true, ..phased("key") };
    let first = on.grant(&ask).await;
    on.stepped(&first, save("charge", "42")).await;
    on.stepped(&first, intend("mail", true)).await;
    assert_eq!(on.write(&first, Write::Complete(reply("done"))).await, Written::Applied);
    assert_eq!(on.steps(&ask.id, 1).await, [], "completed");
    on.clock.advance(RETENTION);
    let second = on.grant(&retry(&ask)).await;
    assert_eq!(second.generation, 2);
    assert_eq!(on.record(&ask.id).await.progress, Progress::default());
    for generation in [0, 1, 2, 3] {
        assert_eq!(on.steps(&ask.id, generation).await, []);
    }
    on.stepped(&second, save("charge", "43")).await;
    assert_eq!(on.steps(&ask.id, 1).await, []);
    assert_eq!(on.steps(&ask.id, 2).await, [saved("charge", "43")]);
}

/// So does one that follows a reply which was withdrawn, and one that follows the purge.
pub async fn a_key_that_is_new_again_has_no_steps(on: Harness) {
    let ask = phased("key");
    for (round, generation) in [(0, 1), (1, 2), (2, 1)] {
        let lease = on.grant(&retry(&ask)).await;
        assert_eq!(lease.generation, generation, "in round {round}");
        assert_eq!(on.steps(&ask.id, generation).await, []);
        on.stepped(&lease, save("charge", "42")).await;
        assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
        if round == 0 {
            on.resolved(&ask.id, Resolution::Void).await;
        } else {
            on.clock.advance(RETENTION + TOMBSTONE);
        }
    }
}

/// Whatever it writes then: its handler may have completed the record in a transaction of its own.
pub async fn whoever_completed_a_record_is_told_its_reply(on: Harness) {
    let lease = on.grant(&phased("key")).await;
    on.stepped(&lease, save("charge", "42")).await;
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    let before = on.record(&lease.id).await;
    for write in [
        Write::Renew(LEASE),
        Write::Complete(reply("other bytes")),
        Write::Release("transaction_rolled_back".into()),
        Write::MarkUnknown("reset".into()),
    ] {
        let told = Written::AlreadyMine(Some(reply("done")));
        assert_eq!(on.write(&lease, write.clone()).await, told, "{write:?}");
    }
    assert_eq!(on.record(&lease.id).await, before);
    assert_eq!(on.audit(&lease.id).await, []);
    // Nobody else is.
    let another = Lease { id: lease.id.clone(), attempt: AttemptId::random(), ..lease };
    let late = on.write(&another, Write::Release("late".into())).await;
    assert!(matches!(late, Written::Superseded(Some(_))), "{late:?}");
}

/// One attempt that saves the same step many times at once saves one result.
pub async fn concurrent_saves_of_one_step_are_applied_once(on: Harness) {
    let lease = Arc::new(on.grant(&phased("key")).await);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..50 {
        let (store, lease) = (Arc::clone(&on.store), Arc::clone(&lease));
        tasks.spawn(async move {
            let answer = store.advance(&lease, save("charge", &number.to_string())).await;
            (number, answer.expect("advance answers"))
        });
    }
    let mut applied = Vec::new();
    for (number, answer) in tasks.join_all().await {
        match answer {
            Advanced::Applied => applied.push(number),
            other => assert_eq!(other, Advanced::AlreadyMine),
        }
    }
    let [winner] = applied[..] else { panic!("applied {} times", applied.len()) };
    let held = on.store.steps(&lease.id, 1).await.expect("steps answers");
    assert_eq!(held, [saved("charge", &winner.to_string())]);
}

/// Many operations that advance at once do not mix up their steps, and those that may not advance
/// do not harm the others.
pub async fn a_burst_of_steps_is_told_apart(on: Harness) {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..100_u32 {
        let mut lease = on.grant(&phased(&format!("key-{number}"))).await;
        let right = number % 3 != 0;
        if !right {
            lease.attempt = AttemptId::random();
        }
        let store = Arc::clone(&on.store);
        tasks.spawn(async move {
            for step in ["one", "two", "three"] {
                let result = format!("{step} of {number}");
                let answer = store.advance(&lease, save(step, &result)).await;
                let applied = answer.expect("advance answers") == Advanced::Applied;
                assert_eq!(applied, right, "{step} of {number}");
            }
            (number, right, lease.id)
        });
    }
    for (number, right, id) in tasks.join_all().await {
        let expected =
            ["one", "two", "three"].map(|step| saved(step, &format!("{step} of {number}")));
        let held = on.store.steps(&id, 1).await.expect("steps answers");
        assert_eq!(held, if right { &expected[..] } else { &[] });
    }
}

/// An owner that comes back from a long pause while another one goes on: the two never both step.
pub async fn of_two_attempts_only_one_makes_steps_at_a_time(on: Harness) {
    let ask = phased("key");
    let late = Arc::new(on.grant(&ask).await);
    on.clock.advance(LEASE);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..40 {
        let (store, late) = (Arc::clone(&on.store), Arc::clone(&late));
        tasks.spawn(async move {
            let name = format!("late-{number}");
            let answer = store.advance(&late, save(&name, "late")).await;
            (name, answer.expect("advance answers"))
        });
    }
    let answer = on.store.reserve(retry(&ask)).await.expect("reserve answers");
    let crate::store::Reservation::Granted { lease, .. } = answer else {
        panic!("expected a grant, found {answer:?}")
    };
    let seen = on.store.steps(&ask.id, 1).await.expect("steps answers");
    let own = on.store.advance(&lease, save("own", "own")).await.expect("advance answers");
    assert_eq!(own, Advanced::Applied);
    for (name, answer) in tasks.join_all().await {
        let counts = seen.iter().any(|step| *step.name == *name);
        assert_eq!(answer == Advanced::Applied, counts, "{name}: what the next one does not see");
    }
    let held = on.store.steps(&ask.id, 1).await.expect("steps answers");
    assert_eq!(held.len(), seen.len() + 1);
    assert_eq!(held.last().map(|step| &*step.name), Some("own"));
}

/// A policy may change while steps stand: they are not forgotten by a declaration without effects, and a
/// worker still finds whoever made them.
pub async fn steps_outlive_a_change_of_the_declared_effects(on: Harness) {
    for effects in [Effects::None, Effects::Local] {
        let ask = phased(effects.name());
        let lease = on.grant(&ask).await;
        on.stepped(&lease, save("charge", "42")).await;
        on.clock.advance(LEASE);
        on.occupy(&Ask { effects, ..retry(&ask) }).await;
        on.clock.advance(LEASE);
        assert_eq!(on.sweep(10).await, []);
        assert_eq!(on.record(&ask.id).await.state, State::InProgress, "{effects:?}");
        let waiting = on.resumable(10).await;
        assert_eq!(waiting.iter().map(|it| &it.record.id).collect::<Vec<_>>(), [&ask.id]);
        let claimed = on.claim(&Claim { effects, ..claim(&ask) }).await;
        let Reservation::Granted { lease: harmless, .. } = claimed else {
            panic!("expected a grant, found {claimed:?}")
        };
        on.clock.advance(LEASE);
        assert_eq!(on.resumable(10).await.len(), 1, "{effects:?}");
        let next = on.grant(&retry(&ask)).await;
        assert_eq!(next.attempt_number, harmless.attempt_number + 1);
        assert_eq!(on.steps(&ask.id, 1).await, [saved("charge", "42")]);
        assert_eq!(on.write(&next, Write::Complete(reply("done"))).await, Written::Applied);
    }
    let external = ask("external");
    on.occupy(&external).await;
    on.clock.advance(LEASE);
    assert_eq!(on.sweep(10).await.len(), 1, "the sweeper works all the same");
}

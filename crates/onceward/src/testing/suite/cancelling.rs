//! Callers that go away: the future of any call is dropped at any of its awaits.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use crate::{
    record::{Effects, Lease, Record, RecordId},
    store::{Ask, Claim, Mode, Reservation, Resolution, Resolve, StoreFuture, Write, Written},
    testing::{
        Harness, Model,
        samples::{LEASE, RETENTION, ask, claim, reply, retry},
    },
};

/// More awaits than any call has; a call that needs more of them hangs.
const POLLS_MAX: usize = 10_000;

/// Polls a call so many times and drops it then, unless it was done before.
struct Dropped<'a, T> {
    call: Option<StoreFuture<'a, T>>,
    polls_left: usize,
}

impl<T> Future for Dropped<'_, T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let has_polls_left = self.polls_left > 0;
        let Some(call) = self.call.as_mut().filter(|_| has_polls_left) else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(answer) = call.as_mut().poll(context) {
            return Poll::Ready(Some(answer.expect("the call answers")));
        }
        self.polls_left -= 1;
        if self.polls_left == 0 {
            self.call = None;
            return Poll::Ready(None);
        }
        Poll::Pending
    }
}

/// What a call is about: the record as it was, and what the call makes of it when it runs once, and
/// when it is repeated.
pub(super) struct Expected {
    id: RecordId,
    before: Option<Record>,
    after: Option<Record>,
    repeated: Option<Record>,
}

impl Expected {
    pub(super) fn of(on: &Harness, id: &RecordId, call: impl Fn(&mut Model)) -> Self {
        let mut model = on.model().clone();
        let mut load = |calls: usize| {
            (0..calls).for_each(|_| call(&mut model));
            model.load(id, on.now())
        };
        Expected { id: id.clone(), before: load(0), after: load(1), repeated: load(1) }
    }
}

/// Drops the call after 0, 1, 2, ... polls, each time on a fresh store, until it runs to its end.
/// Whatever is left must be the record before or after it; and repeating the call leads to where
/// the model is.
pub(super) async fn drop_at_every_await<T, Prepared>(
    on: &Harness,
    prepare: impl AsyncFn(&Harness) -> Prepared,
    expect: impl Fn(&Harness, &Prepared) -> Expected,
    call: impl for<'a> Fn(&'a Harness, &'a Prepared) -> StoreFuture<'a, T>,
) {
    drop_and_repeat(on, 1, prepare, expect, call).await;
}

/// The same for a call that passes over records which others have just then, such as one that was
/// dropped and is still at work.
async fn drop_a_worker_at_every_await<T, Prepared>(
    on: &Harness,
    prepare: impl AsyncFn(&Harness) -> Prepared,
    expect: impl Fn(&Harness, &Prepared) -> Expected,
    call: impl for<'a> Fn(&'a Harness, &'a Prepared) -> StoreFuture<'a, T>,
) {
    drop_and_repeat(on, 1_000, prepare, expect, call).await;
}

async fn drop_and_repeat<T, Prepared>(
    on: &Harness,
    repeats_max: usize,
    prepare: impl AsyncFn(&Harness) -> Prepared,
    expect: impl Fn(&Harness, &Prepared) -> Expected,
    call: impl for<'a> Fn(&'a Harness, &'a Prepared) -> StoreFuture<'a, T>,
) {
    for polls in 0..POLLS_MAX {
        let on = on.another().await;
        let prepared = prepare(&on).await;
        let expected = expect(&on, &prepared);
        let dropped = Dropped { call: Some(call(&on, &prepared)), polls_left: polls };
        let finished = dropped.await.is_some();
        let left = on.store.load(&expected.id).await.expect("load answers");
        let legal = left == expected.after || (!finished && left == expected.before);
        assert!(legal, "after {polls} polls the record is neither old nor new: {left:?}");
        for repeats in 1.. {
            call(&on, &prepared).await.expect("the repeated call answers");
            let left = on.store.load(&expected.id).await.expect("load answers");
            if left == expected.repeated || (!finished && left == expected.after) {
                break;
            }
            let passed_over = !finished && left == expected.before && repeats < repeats_max;
            assert!(passed_over, "after {polls} polls and a repeated call the record is {left:?}");
        }
        on.store.ping().await.expect("the store is usable");
        if finished {
            return;
        }
    }
    panic!("the call was polled {POLLS_MAX} times and is not done");
}

async fn drop_a_write(on: Harness, write: Write) {
    drop_at_every_await(
        &on,
        async |on| on.grant(&ask("key")).await,
        |on, lease: &Lease| {
            Expected::of(on, &lease.id, |model| {
                let _: Written = model.write(lease, write.clone(), on.now());
            })
        },
        |on, lease| on.store.write(lease, write.clone()),
    )
    .await;
}

/// Reserve.
pub async fn dropping_a_reserve_at_any_await_leaves_a_legal_record(on: Harness) {
    drop_at_every_await(
        &on,
        async |_| ask("key"),
        |on, ask: &Ask| {
            Expected::of(on, &ask.id, |model| {
                let _: Reservation = model.reserve(ask, on.now());
            })
        },
        |on, ask| on.store.reserve(ask.clone()),
    )
    .await;
}

/// Reserve of a record that is there.
pub async fn dropping_a_second_reserve_at_any_await_leaves_a_legal_record(on: Harness) {
    drop_at_every_await(
        &on,
        async |on| {
            let ask = Ask { effects: Effects::None, ..ask("key") };
            on.occupy(&ask).await;
            on.clock.advance(LEASE);
            retry(&ask)
        },
        |on, ask: &Ask| {
            Expected::of(on, &ask.id, |model| {
                let _: Reservation = model.reserve(ask, on.now());
            })
        },
        |on, ask| on.store.reserve(ask.clone()),
    )
    .await;
}

/// Claim.
pub async fn dropping_a_claim_at_any_await_leaves_a_legal_record(on: Harness) {
    drop_at_every_await(
        &on,
        async |on| {
            let ask = Ask { mode: Mode::Accept, ..ask("key") };
            let _: Reservation = on.reserve(&ask).await;
            claim(&ask)
        },
        |on, claim: &Claim| {
            Expected::of(on, &claim.id, |model| {
                let _: Reservation = model.claim(claim, on.now());
            })
        },
        |on, claim| on.store.claim(claim.clone()),
    )
    .await;
}

/// Renew.
pub async fn dropping_a_renew_at_any_await_leaves_a_legal_record(on: Harness) {
    drop_a_write(on, Write::Renew(LEASE * 2)).await;
}

/// Complete.
pub async fn dropping_a_complete_at_any_await_leaves_a_legal_record(on: Harness) {
    drop_a_write(on, Write::Complete(reply("done"))).await;
}

/// Release.
pub async fn dropping_a_release_at_any_await_leaves_a_legal_record(on: Harness) {
    drop_a_write(on, Write::Release("not_sent".into())).await;
}

/// Mark unknown.
pub async fn dropping_a_mark_unknown_at_any_await_leaves_a_legal_record(on: Harness) {
    drop_a_write(on, Write::MarkUnknown("reset".into())).await;
}

/// Resolve.
pub async fn dropping_a_resolve_at_any_await_leaves_a_legal_record(on: Harness) {
    drop_at_every_await(
        &on,
        async |on| {
            let lease = on.grant(&ask("key")).await;
            let unknown = Write::MarkUnknown("reset".into());
            assert_eq!(on.write(&lease, unknown).await, Written::Applied);
            Resolve {
                id: lease.id,
                generation: lease.generation,
                fence: lease.fence,
                resolution: Resolution::Complete(reply("found")),
                reason: "ticket 7".into(),
            }
        },
        |on, resolve: &Resolve| {
            Expected::of(on, &resolve.id, |model| {
                let _: crate::store::Resolved = model.resolve(resolve.clone(), on.now());
            })
        },
        |on, resolve| on.store.resolve(resolve.clone()),
    )
    .await;
}

/// Sweep.
pub async fn dropping_a_sweep_at_any_await_leaves_a_legal_record(on: Harness) {
    drop_a_worker_at_every_await(
        &on,
        async |on| {
            let lease = on.grant(&ask("key")).await;
            on.clock.advance(LEASE);
            lease.id
        },
        |on, id: &RecordId| {
            Expected::of(on, id, |model| {
                let due = model.due_to_sweep(on.now());
                model.sweep_as(&due, 10, on.now()).expect("what is due is swept");
            })
        },
        |on, _| on.store.sweep(10),
    )
    .await;
}

/// Reap.
pub async fn dropping_a_reap_at_any_await_leaves_a_legal_record(on: Harness) {
    drop_a_worker_at_every_await(
        &on,
        async |on| {
            let lease = on.grant(&ask("key")).await;
            let complete = Write::Complete(reply("done"));
            assert_eq!(on.write(&lease, complete).await, Written::Applied);
            on.clock.advance(RETENTION);
            lease.id
        },
        |on, id: &RecordId| {
            Expected::of(on, id, |model| {
                model.reap(on.now());
            })
        },
        |on, _| on.store.reap(10),
    )
    .await;
}

/// A crowd of callers of whom every second goes away does not harm the others.
pub async fn callers_that_go_away_do_not_harm_those_that_stay(on: Harness) {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..200_usize {
        let store = std::sync::Arc::clone(&on.store);
        let ask = ask(&format!("key-{number}"));
        tasks.spawn(async move {
            let goes = number % 2 == 0;
            let polls_left = if goes { number % 5 } else { usize::MAX };
            let reserved = Dropped { call: Some(store.reserve(ask.clone())), polls_left }.await;
            match reserved {
                Some(Reservation::Granted { lease, .. }) => {
                    assert_eq!((&lease.id, lease.attempt), (&ask.id, ask.attempt));
                }
                Some(other) => panic!("expected a grant, found {other:?}"),
                None => assert!(goes, "who stays is answered"),
            }
            ask
        });
    }
    for ask in tasks.join_all().await {
        // Whoever went away learns by repeating the call.
        let answer = on.store.reserve(ask.clone()).await.expect("reserve answers");
        let Reservation::Granted { lease, .. } = answer else {
            panic!("expected a grant, found {answer:?}")
        };
        assert_eq!((&lease.id, lease.attempt_number), (&ask.id, 1));
    }
}

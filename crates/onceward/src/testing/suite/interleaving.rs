//! Two callers, in every order of their beginnings and ends.

use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::{
    record::{Effects, Lease, RecordId},
    store::{
        Advance, Advanced, Ask, Claim, Mode, Reaped, Reservation, Resolution, Resolve, Resolved,
        Store, Swept, Write, Written,
    },
    testing::{
        Gate, GatedStore, Harness, Model, Paused, Point, StoreCall,
        samples::{
            LEASE, RETENTION, TOMBSTONE, another_request, ask, claim, intend, reply, retry, save,
        },
    },
};

/// In which order two callers `x` and `y` pass their two points: before the call takes effect, and
/// before it is answered.
const ORDERS: [&str; 6] = ["xxyy", "xyxy", "xyyx", "yxxy", "yxyx", "yyxx"];

/// What one of two callers does.
#[derive(Clone, Debug)]
enum Call {
    Reserve(Ask),
    Claim(Claim),
    Write(Arc<Lease>, Write),
    Advance(Arc<Lease>, Advance),
    Resolve(Resolve),
    Sweep,
    Reap,
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Reserved(Reservation),
    Written(Written),
    Advanced(Advanced),
    Resolved(Resolved),
    Swept(Vec<Swept>),
    Reaped(Reaped),
}

impl Answer {
    /// The answer to a reserve. Some stores tell of a completed record in short.
    fn of(reservation: Reservation) -> Self {
        match reservation.completed() {
            Some(completed) => Answer::Reserved(Reservation::Completed(Box::new(completed))),
            None => Answer::Reserved(reservation),
        }
    }
}

impl Call {
    fn name(&self) -> StoreCall {
        match self {
            Call::Reserve(_) => StoreCall::Reserve,
            Call::Claim(_) => StoreCall::Claim,
            Call::Write(_, write) => StoreCall::of(write),
            Call::Advance(_, advance) => StoreCall::of_advance(advance),
            Call::Resolve(_) => StoreCall::Resolve,
            Call::Sweep => StoreCall::Sweep,
            Call::Reap => StoreCall::Reap,
        }
    }

    async fn make(self, store: Arc<dyn Store>) -> Answer {
        match self {
            Call::Reserve(ask) => Answer::of(store.reserve(ask).await.expect("an answer")),
            Call::Claim(claim) => Answer::Reserved(store.claim(claim).await.expect("an answer")),
            Call::Write(lease, write) => {
                Answer::Written(store.write(&lease, write).await.expect("an answer"))
            }
            Call::Advance(lease, advance) => {
                Answer::Advanced(store.advance(&lease, advance).await.expect("an answer"))
            }
            Call::Resolve(resolve) => {
                Answer::Resolved(store.resolve(resolve).await.expect("an answer"))
            }
            Call::Sweep => Answer::Swept(store.sweep(10).await.expect("an answer")),
            Call::Reap => Answer::Reaped(store.reap(10).await.expect("an answer")),
        }
    }

    fn expected(&self, model: &mut Model, on: &Harness) -> Answer {
        let now = on.now();
        match self.clone() {
            Call::Reserve(ask) => Answer::of(model.reserve(&ask, now)),
            Call::Claim(claim) => Answer::Reserved(model.claim(&claim, now)),
            Call::Write(lease, write) => Answer::Written(model.write(&lease, write, now)),
            Call::Advance(lease, advance) => Answer::Advanced(model.advance(&lease, advance)),
            Call::Resolve(resolve) => Answer::Resolved(model.resolve(resolve, now)),
            Call::Sweep => {
                let due = model.due_to_sweep(now);
                model.sweep_as(&due, 10, now).expect("what is due is swept");
                Answer::Swept(due)
            }
            Call::Reap => Answer::Reaped(model.reap(now)),
        }
    }
}

impl Call {
    /// What a worker answers that passed over a record, since somebody else had it at that moment.
    fn passed_over(&self) -> Option<Answer> {
        match self {
            Call::Sweep => Some(Answer::Swept(Vec::new())),
            Call::Reap => Some(Answer::Reaped(Reaped::default())),
            _ => None,
        }
    }
}

/// A caller that stands at the gate.
struct Caller {
    call: Call,
    at_gate: Option<Paused>,
    task: JoinHandle<Answer>,
}

impl Caller {
    async fn arrive(call: Call, store: &Arc<dyn Store>, gate: &Gate) -> Self {
        let task = tokio::spawn(call.clone().make(Arc::clone(store)));
        let at_gate = Some(gate.expect(call.name(), Point::Before).await);
        Caller { call, at_gate, task }
    }

    /// Lets it pass its next point. Nobody else moves, so that the next arrival is its own.
    async fn pass(&mut self, gate: &Gate) -> Option<Answer> {
        let paused = self.at_gate.take().expect("a caller at the gate");
        let point = paused.point();
        paused.pass();
        match point {
            Point::Before => {
                self.at_gate = Some(gate.expect(self.call.name(), Point::After).await);
                None
            }
            Point::After => Some((&mut self.task).await.expect("the caller does not panic")),
        }
    }
}

/// Makes two calls in every order, and once truly at the same time, each on a fresh store. The
/// answers and the record must be those of the model, called in the order of taking effect. At the
/// same time, a worker may also pass over what somebody else has just then.
async fn in_every_order(on: &Harness, prepare: impl AsyncFn(&Harness) -> (RecordId, Call, Call)) {
    for order in ORDERS {
        let on = on.another().await;
        let (id, x, y) = prepare(&on).await;
        let (gated, gate) = GatedStore::new(Arc::clone(&on.store));
        let gated: Arc<dyn Store> = Arc::new(gated);
        let mut callers =
            [Caller::arrive(x, &gated, &gate).await, Caller::arrive(y, &gated, &gate).await];
        let mut model = on.model().clone();
        let mut expected = [None, None];
        for who in order.bytes() {
            let who = usize::from(who == b'y');
            if expected[who].is_none() {
                expected[who] = Some(callers[who].call.expected(&mut model, &on));
            }
            let answer = callers[who].pass(&gate).await;
            assert!(
                answer.is_none() || answer == expected[who],
                "{order}: {answer:?} is not {:?}",
                expected[who]
            );
        }
        let left = on.store.load(&id).await.expect("load answers");
        assert_eq!(left, model.load(&id, on.now()), "{order}");
    }
    at_the_same_time(&on.another().await, prepare).await;
}

async fn at_the_same_time(on: &Harness, prepare: impl AsyncFn(&Harness) -> (RecordId, Call, Call)) {
    let (id, x, y) = prepare(on).await;
    let serial = |first: &Call, second: &Call| {
        let mut model = on.model().clone();
        let answers = (first.expected(&mut model, on), second.expected(&mut model, on));
        (answers, model.load(&id, on.now()))
    };
    let ((x_first, y_second), after_xy) = serial(&x, &y);
    let ((y_first, x_second), after_yx) = serial(&y, &x);
    let alone = |call: &Call| {
        let mut model = on.model().clone();
        (call.expected(&mut model, on), model.load(&id, on.now()))
    };
    let without_x = x.passed_over().map(|x_idle| (alone(&y), x_idle));
    let without_x = without_x.map(|((y_alone, after), x_idle)| ((x_idle, y_alone), after));
    let without_y = y.passed_over().map(|y_idle| (alone(&x), y_idle));
    let without_y = without_y.map(|((x_alone, after), y_idle)| ((x_alone, y_idle), after));
    let x_answer = tokio::spawn(x.make(Arc::clone(&on.store)));
    let y_answer = tokio::spawn(y.make(Arc::clone(&on.store)));
    let answers = (x_answer.await.expect("no panic"), y_answer.await.expect("no panic"));
    let seen = Some((answers, on.store.load(&id).await.expect("load answers")));
    let legal = [
        Some(((x_first, y_second), after_xy)),
        Some(((x_second, y_first), after_yx)),
        without_x,
        without_y,
    ];
    assert!(legal.contains(&seen), "neither order explains {seen:?}");
}

async fn at_work(on: &Harness, effects: Effects) -> (Ask, Arc<Lease>) {
    let ask = Ask { effects, ..ask("key") };
    let lease = Arc::new(on.grant(&ask).await);
    (ask, lease)
}

/// Two retries.
pub async fn two_reserves_in_every_order(on: Harness) {
    in_every_order(&on, async |_| {
        let ask = ask("key");
        (ask.id.clone(), Call::Reserve(ask.clone()), Call::Reserve(retry(&ask)))
    })
    .await;
}

/// Two different requests with one key.
pub async fn two_different_requests_in_every_order(on: Harness) {
    in_every_order(&on, async |_| {
        let ask = ask("key");
        (ask.id.clone(), Call::Reserve(ask.clone()), Call::Reserve(another_request(&ask)))
    })
    .await;
}

/// A request and its own repetition.
pub async fn a_reserve_and_its_repetition_in_every_order(on: Harness) {
    in_every_order(&on, async |_| {
        let ask = ask("key");
        (ask.id.clone(), Call::Reserve(ask.clone()), Call::Reserve(ask))
    })
    .await;
}

/// A retry while the first attempt completes.
pub async fn a_reserve_and_a_complete_in_every_order(on: Harness) {
    for expired in [false, true] {
        in_every_order(&on, async |on| {
            let (ask, lease) = at_work(on, Effects::External).await;
            if expired {
                on.clock.advance(LEASE);
            }
            let complete = Call::Write(lease, Write::Complete(reply("done")));
            (ask.id.clone(), Call::Reserve(retry(&ask)), complete)
        })
        .await;
    }
}

/// A retry that takes over while the vanished owner comes back.
pub async fn a_takeover_and_a_late_complete_in_every_order(on: Harness) {
    in_every_order(&on, async |on| {
        let (ask, lease) = at_work(on, Effects::None).await;
        on.clock.advance(LEASE);
        let complete = Call::Write(lease, Write::Complete(reply("late")));
        (ask.id.clone(), Call::Reserve(retry(&ask)), complete)
    })
    .await;
}

/// A late owner that makes a step, and whoever takes its place.
pub async fn a_takeover_and_a_late_step_in_every_order(on: Harness) {
    for advance in [save("charge", "42"), intend("charge", false), intend("charge", true)] {
        in_every_order(&on, async |on| {
            let (ask, lease) = at_work(on, Effects::Phased).await;
            on.clock.advance(LEASE);
            (ask.id.clone(), Call::Reserve(retry(&ask)), Call::Advance(lease, advance.clone()))
        })
        .await;
    }
}

/// A late owner that intends an effect, and the sweeper.
pub async fn an_intent_and_a_sweep_in_every_order(on: Harness) {
    in_every_order(&on, async |on| {
        let (ask, lease) = at_work(on, Effects::Phased).await;
        on.clock.advance(LEASE);
        (ask.id, Call::Advance(lease, intend("charge", false)), Call::Sweep)
    })
    .await;
}

/// A late owner and the sweeper.
pub async fn a_complete_and_a_sweep_in_every_order(on: Harness) {
    for effects in [Effects::External, Effects::None] {
        in_every_order(&on, async |on| {
            let (ask, lease) = at_work(on, effects).await;
            on.clock.advance(LEASE);
            let complete = Call::Write(lease, Write::Complete(reply("late")));
            (ask.id, complete, Call::Sweep)
        })
        .await;
    }
}

/// A renewal and the sweeper.
pub async fn a_renew_and_a_sweep_in_every_order(on: Harness) {
    in_every_order(&on, async |on| {
        let (ask, lease) = at_work(on, Effects::External).await;
        on.clock.advance(LEASE);
        (ask.id, Call::Write(lease, Write::Renew(LEASE)), Call::Sweep)
    })
    .await;
}

/// Two sweepers.
pub async fn two_sweeps_in_every_order(on: Harness) {
    in_every_order(&on, async |on| {
        let (ask, _) = at_work(on, Effects::External).await;
        on.clock.advance(LEASE);
        (ask.id, Call::Sweep, Call::Sweep)
    })
    .await;
}

/// The reaper and a retry: it finds the tombstone, runs as the next generation, or finds the key new.
pub async fn a_reap_and_a_reserve_in_every_order(on: Harness) {
    for (later, expired_runs_again) in
        [(RETENTION, false), (RETENTION, true), (RETENTION + TOMBSTONE, false)]
    {
        in_every_order(&on, async |on| {
            let (ask, lease) = at_work(on, Effects::External).await;
            let written = on.write(&lease, Write::Complete(reply("done"))).await;
            assert_eq!(written, Written::Applied);
            on.clock.advance(later);
            let again = Ask { expired_runs_again, ..retry(&ask) };
            (ask.id, Call::Reap, Call::Reserve(again))
        })
        .await;
    }
}

/// An operator and the late owner.
pub async fn a_resolve_and_a_late_complete_in_every_order(on: Harness) {
    in_every_order(&on, async |on| {
        let (ask, lease) = at_work(on, Effects::External).await;
        on.clock.advance(LEASE);
        let proof = crate::store::Proof::Authoritative;
        let resolve = Resolve {
            id: ask.id.clone(),
            generation: lease.generation,
            fence: lease.fence,
            resolution: Resolution::Release(proof),
            reason: "ticket 7".into(),
        };
        let complete = Call::Write(lease, Write::Complete(reply("late")));
        (ask.id, Call::Resolve(resolve), complete)
    })
    .await;
}

/// Two workers and one pending record.
pub async fn two_claims_in_every_order(on: Harness) {
    in_every_order(&on, async |on| {
        let ask = Ask { mode: Mode::Accept, ..ask("key") };
        let _: Reservation = on.reserve(&ask).await;
        (ask.id.clone(), Call::Claim(claim(&ask)), Call::Claim(claim(&ask)))
    })
    .await;
}

//! What a rehearsal finds in handlers that are wrong, and that it finds nothing in one that is not.

use std::{
    future::pending,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{Request, Response, StatusCode};
use onceward::{
    Effect, EffectError, MemoryStore, Operation, Reply, Store,
    clock::ManualClock,
    testing::{Ended, Rehearsal, Stage, Trial},
};

use crate::shop::{Ledger, failed};

/// What a handler has.
#[derive(Clone, Default)]
struct World {
    ledger: Ledger,
    runs: Arc<AtomicU32>,
    /// How many stages there were before.
    number: u32,
}

type Failed = (StatusCode, String);
type Handler = fn(World, Operation) -> BoxFuture<'static, Result<Reply, Failed>>;

struct Rehearsed {
    store: Arc<MemoryStore>,
    world: World,
    handler: Handler,
}

impl Stage for Rehearsed {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as _
    }

    async fn handle(&self, _request: Request<Bytes>, operation: Operation) -> Response<Bytes> {
        self.world.runs.fetch_add(1, Ordering::SeqCst);
        match (self.handler)(self.world.clone(), operation).await {
            Ok(reply) => reply.into(),
            Err((status, why)) => Reply::new(status, why).into(),
        }
    }

    async fn done(&self) -> String {
        format!("{:?}", self.world.ledger.done())
    }
}

/// The trials, or what the rehearsal complains of.
async fn rehearse(handler: Handler) -> Result<Vec<Trial>, String> {
    let request = Request::post("/orders").body(Bytes::from_static(b"tea")).expect("a request");
    let stages = AtomicU32::new(0);
    let stage = async |clock: ManualClock| {
        let number = stages.fetch_add(1, Ordering::SeqCst);
        let store = Arc::new(MemoryStore::with_clock(Arc::new(clock)));
        Rehearsed { store, world: World { number, ..World::default() }, handler }
    };
    let rehearsal = Rehearsal::new(request);
    let played = AssertUnwindSafe(rehearsal.play(stage)).catch_unwind().await;
    played.map_err(|panic| match panic.downcast::<String>() {
        Ok(said) => *said,
        Err(panic) => panic.downcast::<&str>().expect("words").to_string(),
    })
}

/// Somebody who acts once for each key is paid.
async fn pay(world: &World, operation: &Operation, name: &str) -> Result<String, Failed> {
    let paid = operation.effect(Effect::idempotent(name), async |key| {
        Ok::<_, EffectError<&str>>(world.ledger.act_once(&key))
    });
    paid.await.map_err(failed)
}

fn created(receipt: &str) -> Result<Reply, Failed> {
    Ok(Reply::new(StatusCode::CREATED, receipt.to_owned()))
}

#[tokio::test(start_paused = true)]
async fn nothing_is_found_in_a_handler_that_makes_each_step_once() {
    let idempotent: Handler = |world, operation| {
        Box::pin(async move {
            let paid = pay(&world, &operation, "pay").await?;
            let shipped = pay(&world, &operation, "ship").await?;
            created(&format!("{paid}, {shipped}"))
        })
    };
    let trials = rehearse(idempotent).await.expect("nothing is found");
    assert_eq!(trials.len(), 2 * 2 * 3, "two steps, two disturbances at three edges");
    assert!(trials.iter().all(|trial| trial.ended == Ended::Alike), "{trials:?}");

    let not_idempotent: Handler = |world, operation| {
        Box::pin(async move {
            let paid = operation.effect(Effect::not_idempotent("pay"), async |key| {
                Ok::<_, EffectError<&str>>(world.ledger.act(&key))
            });
            created(&paid.await.map_err(failed)?)
        })
    };
    let trials = rehearse(not_idempotent).await.expect("it is honest about what it does not know");
    assert!(trials.iter().any(|trial| trial.ended == Ended::Unknown), "{trials:?}");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_does_not_do_the_same_each_time_is_found() {
    let another_reply: Handler = |world, operation| {
        Box::pin(async move {
            let paid = pay(&world, &operation, "pay").await?;
            created(&format!("{paid}, run {}", world.runs.load(Ordering::SeqCst)))
        })
    };
    let another_step: Handler = |world, operation| {
        Box::pin(async move {
            let name = format!("pay {}", world.runs.load(Ordering::SeqCst));
            pay(&world, &operation, &name).await?;
            created("paid")
        })
    };
    let by_chance: Handler = |world, operation| {
        Box::pin(async move {
            pay(&world, &operation, "pay").await?;
            created(&format!("paid, number {}", world.number))
        })
    };
    for (handler, found) in [
        (another_reply, "another end"),
        (another_step, "did not come to an end"),
        (by_chance, "another end"),
    ] {
        let complaint = rehearse(handler).await.expect_err("it is found");
        assert!(complaint.contains(found), "{complaint}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_effect_that_is_made_twice_is_found() {
    let not_as_declared: Handler = |world, operation| {
        Box::pin(async move {
            let paid = operation.effect(Effect::idempotent("pay"), async |key| {
                world.ledger.act(&key);
                Ok::<_, EffectError<&str>>(())
            });
            paid.await.map_err(failed)?;
            created("paid")
        })
    };
    let beside_the_steps: Handler = |world, operation| {
        Box::pin(async move {
            world.ledger.act("mail");
            pay(&world, &operation, "pay").await?;
            created("paid")
        })
    };
    for handler in [not_as_declared, beside_the_steps] {
        let complaint = rehearse(handler).await.expect_err("it is found");
        assert!(complaint.contains("another end"), "{complaint}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_does_not_come_to_its_end_is_found() {
    let never: Handler = |world, operation| {
        Box::pin(async move {
            pay(&world, &operation, "pay").await?;
            Err((StatusCode::SERVICE_UNAVAILABLE, "later".to_owned()))
        })
    };
    let hangs: Handler = |world, operation| {
        Box::pin(async move {
            pay(&world, &operation, "pay").await?;
            pending().await
        })
    };
    let hangs_when_it_goes_on: Handler = |world, operation| {
        Box::pin(async move {
            let first = world.runs.load(Ordering::SeqCst) == 1;
            pay(&world, &operation, "pay").await?;
            if first { created("paid") } else { pending().await }
        })
    };
    let makes_no_step: Handler = |_, _| Box::pin(async { created("paid") });
    for (handler, found) in [
        (never, "did not come to an end"),
        (hangs, "the outcome is unknown"),
        (hangs_when_it_goes_on, "the outcome is unknown"),
        (makes_no_step, "makes no step"),
    ] {
        let complaint = rehearse(handler).await.expect_err("it is found");
        assert!(complaint.contains(found), "{complaint}");
    }
}

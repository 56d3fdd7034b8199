//! An operation in phases and effects: cut off at every edge, gone on with, each step done once.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode};
use onceward::{
    Effect, EffectError, Effects, Operation, Policy, Reply, StepError, Store,
    clock::ManualClock,
    phase::Misuse,
    testing::{Disturbance, Edge, Ended, Fault, FaultyStore, Rehearsal, Stage, StoreCall, Trial},
};
use sqlx::Pool;
use tokio::sync::Notify;

use crate::{
    service::says,
    shop::{Database, Ledger, Opened, Shop, WAITS_MAX, dropped_at, failed, on_each_database},
};

on_each_database!(
    steps_that_all_succeed_are_done_once_and_a_retry_replays,
    cut_off_or_failing_at_any_edge_every_step_is_done_once,
    an_effect_that_is_not_idempotent_is_never_called_again_without_its_result,
    a_superseded_attempt_saves_no_result_and_its_phase_is_rolled_back,
    using_steps_wrongly_is_an_error,
    a_phase_that_is_dropped_at_any_of_its_waits_is_made_once,
    a_phase_whose_work_fails_may_be_tried_again_under_its_name,
    a_last_phase_may_complete_the_operation_in_its_transaction,
    an_operation_is_not_completed_in_a_transaction_while_an_effect_is_open,
    a_result_that_cannot_be_read_any_more_is_an_error_and_calls_nobody,
    a_store_whose_own_step_fails_does_not_run_the_phase_twice,
);

const KEY: &str = "order-0000000000000001";

fn phased() -> Policy {
    Policy::required().effects(Effects::Phased).expect("allowed")
}

type Failed = (StatusCode, String);

/// Orders, pays, and ships: a phase, an effect, and a phase.
async fn order_pay_ship<D: Database>(
    pool: &Pool<D>,
    ledger: &Ledger,
    operation: &Operation,
    payment: Effect<'_>,
) -> Result<Reply, Failed> {
    let ordered = operation.phase(pool, "order", async |tx| {
        D::order(tx, "tea").await?;
        Ok::<u32, sqlx::Error>(7)
    });
    let number = ordered.await.map_err(failed)?;
    let paid = operation.effect(payment, async |key| {
        Ok::<_, EffectError<&str>>(match payment == Effect::idempotent("pay") {
            true => ledger.act_once(&key),
            false => ledger.act(&key),
        })
    });
    let receipt = paid.await.map_err(failed)?;
    let shipped = operation.phase(pool, "ship", async |tx| D::order(tx, "parcel").await);
    shipped.await.map_err(failed)?;
    Ok(Reply::new(StatusCode::CREATED, format!("order {number}, {receipt}")))
}

async fn idempotent<D: Database>(shop: Shop<D>, operation: Operation) -> Result<Reply, Failed> {
    order_pay_ship(&shop.pool, &shop.ledger, &operation, Effect::idempotent("pay")).await
}

async fn steps_that_all_succeed_are_done_once_and_a_retry_replays<D: Database>() {
    let shop = Shop::<D>::open().await;
    let served = shop.serve(phased(), idempotent);
    let first = served.charge(KEY).await;
    assert_eq!(first.says(), says(201, "executed"));
    let retry = served.charge(KEY).await;
    assert_eq!((retry.says(), retry.text()), (says(201, "replayed"), first.text()));
    assert_eq!((shop.orders().await, shop.runs()), (vec!["tea".into(), "parcel".into()], 1));
    assert_eq!(shop.ledger.calls().len(), 1);
}

/// The same handler, on a stage of its own for each trial.
struct Rehearsed<D: Database> {
    shop: Opened<D>,
    ledger: Ledger,
    payment: Effect<'static>,
}

impl<D: Database> Stage for Rehearsed<D> {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.shop.store) as _
    }

    async fn handle(
        &self,
        _request: Request<Bytes>,
        operation: Operation,
    ) -> http::Response<Bytes> {
        let ended = order_pay_ship(&self.shop.pool, &self.ledger, &operation, self.payment).await;
        match ended {
            Ok(reply) => reply.into(),
            Err((status, why)) => Reply::new(status, why).into(),
        }
    }

    async fn done(&self) -> String {
        let orders = D::orders(&self.shop.pool).await;
        format!("orders {orders:?}, paid {:?}", self.ledger.done())
    }
}

async fn rehearse<D: Database>(payment: Effect<'static>) -> Vec<Trial> {
    let request = Request::post("/orders").body(Bytes::from_static(b"tea")).expect("a request");
    let stage = async |clock: ManualClock| {
        let shop = Opened::<D>::new(Arc::new(clock)).await;
        Rehearsed { shop, ledger: Ledger::default(), payment }
    };
    Rehearsal::new(request).play(stage).await
}

async fn cut_off_or_failing_at_any_edge_every_step_is_done_once<D: Database>() {
    let trials = rehearse::<D>(Effect::idempotent("pay")).await;
    let edges: Vec<_> = trials.iter().map(|trial| (&*trial.step, trial.edge)).collect();
    for step in ["order", "ship"] {
        assert!(edges.contains(&(step, Edge::Written)) && edges.contains(&(step, Edge::Saved)));
    }
    for edge in [Edge::Intended, Edge::Called, Edge::Saved] {
        assert!(edges.contains(&("pay", edge)));
    }
    assert_eq!(trials.len(), 14);
    assert!(trials.iter().all(|trial| trial.ended == Ended::Alike), "{trials:?}");
}

async fn an_effect_that_is_not_idempotent_is_never_called_again_without_its_result<D: Database>() {
    let trials = rehearse::<D>(Effect::not_idempotent("pay")).await;
    for trial in &trials {
        let inside = trial.step == "pay" && trial.edge != Edge::Saved;
        let expected = if inside { Ended::Unknown } else { Ended::Alike };
        assert_eq!(trial.ended, expected, "{trial:?}");
    }
    assert_eq!(trials.iter().filter(|trial| trial.disturbance == Disturbance::Cut).count(), 7);
}

async fn a_superseded_attempt_saves_no_result_and_its_phase_is_rolled_back<D: Database>() {
    for step in ["phase", "effect"] {
        let shop = Shop::<D>::open().await;
        let (working, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let seen = Arc::new(Mutex::new(None));
        let served = shop.serve(phased(), {
            let (working, go_on, seen) = (working.clone(), go_on.clone(), seen.clone());
            move |shop: Shop<D>, operation: Operation| {
                let (working, go_on, seen) = (working.clone(), go_on.clone(), seen.clone());
                async move {
                    if shop.runs() > 1 {
                        return idempotent(shop, operation).await;
                    }
                    working.notify_one();
                    go_on.notified().await;
                    let error = match step {
                        "phase" => {
                            let late = async |tx: &mut _| D::order(tx, "coffee").await;
                            let late = operation.phase(&shop.pool, "order", late).await;
                            format!("{:?}", late.expect_err("superseded"))
                        }
                        _ => {
                            let late = Effect::idempotent("pay");
                            let late = operation.effect(late, async |key| {
                                Ok::<_, EffectError<&str>>(shop.ledger.act(&key))
                            });
                            format!("{:?}", late.await.expect_err("superseded"))
                        }
                    };
                    *seen.lock().expect("not poisoned") = Some(error);
                    Err(failed("superseded"))
                }
            }
        });
        let first = served.spawn_charge(KEY);
        working.notified().await;
        // By its own clock it still may; the store knows better.
        shop.clock.advance(Duration::from_secs(61));
        assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
        go_on.notify_one();
        assert_eq!(first.await.expect("answered").says(), says(201, "replayed"), "{step}");
        assert_eq!(seen.lock().expect("not poisoned").as_deref(), Some("LeaseLost"), "{step}");
        assert_eq!(shop.orders().await, ["tea", "parcel"], "{step}");
        assert_eq!(shop.ledger.calls().len(), 1, "{step}");
    }
}

/// What a handler is told that uses its operation wrongly.
async fn misused<D: Database>(policy: Policy, how: &'static str) -> Misuse {
    let shop = Shop::<D>::open().await;
    let seen = Arc::new(Mutex::new(None));
    let told = seen.clone();
    let served = shop.serve(policy, move |shop: Shop<D>, operation: Operation| {
        let told = told.clone();
        async move {
            let effect = |name| {
                let operation = operation.clone();
                async move {
                    let effect = Effect::not_idempotent(name);
                    operation.effect(effect, async |_| Ok::<_, EffectError<&str>>(1)).await
                }
            };
            let wrong: Result<i32, StepError<&str>> = match how {
                "a name twice" => {
                    effect("a").await.expect("the first time");
                    effect("a").await
                }
                "the name of a phase twice" => {
                    let phase = async || operation.phase(&shop.pool, "p", async |_| Ok(1)).await;
                    phase().await.expect("the first time");
                    phase().await
                }
                "an effect in a phase" => {
                    let inner = async |_: &mut D::Connection| Ok(effect("a").await);
                    operation
                        .phase(&shop.pool, "p", async |tx| {
                            let inner: Result<_, &str> = inner(tx).await;
                            inner?.map_err(|error| {
                                let StepError::Misuse(misuse) = error else { panic!("{error:?}") };
                                *told.lock().expect("not poisoned") = Some(misuse);
                                "misused"
                            })
                        })
                        .await
                }
                "a step while an effect is open" => {
                    let lost = Effect::not_idempotent("lost");
                    let lost = operation
                        .effect(lost, async |_| Err::<i32, _>(EffectError::from("timed out")));
                    assert!(matches!(lost.await, Err(StepError::Ambiguous("timed out"))));
                    effect("a").await
                }
                "the same effect while it is open" => {
                    let lost = Effect::not_idempotent("a");
                    let lost = operation
                        .effect(lost, async |_| Err::<i32, _>(EffectError::from("timed out")));
                    assert!(matches!(lost.await, Err(StepError::Ambiguous("timed out"))));
                    effect("a").await
                }
                _ => effect("a").await,
            };
            if let Err(StepError::Misuse(misuse)) = wrong {
                *told.lock().expect("not poisoned") = Some(misuse);
            }
            StatusCode::INTERNAL_SERVER_ERROR
        }
    });
    served.charge(KEY).await;
    let misuse = seen.lock().expect("not poisoned").take();
    misuse.unwrap_or_else(|| panic!("{how} was taken"))
}

async fn using_steps_wrongly_is_an_error<D: Database>() {
    let local = Policy::required().effects(Effects::Local).expect("allowed");
    for policy in [Policy::required(), local] {
        assert_eq!(misused::<D>(policy, "not phased").await, Misuse::NotPhased);
    }
    assert_eq!(misused::<D>(phased(), "a name twice").await, Misuse::NameUsedTwice);
    let phase = misused::<D>(phased(), "the name of a phase twice").await;
    assert_eq!(phase, Misuse::NameUsedTwice);
    assert_eq!(misused::<D>(phased(), "an effect in a phase").await, Misuse::PhaseIsOpen);
    let open = misused::<D>(phased(), "a step while an effect is open").await;
    assert_eq!(open, Misuse::EffectIsOpen);
    let same = misused::<D>(phased(), "the same effect while it is open").await;
    assert_eq!(same, Misuse::EffectIsOpen);
}

async fn a_phase_whose_work_fails_may_be_tried_again_under_its_name<D: Database>() {
    let shop = Shop::<D>::open().await;
    let served = shop.serve(phased(), |shop: Shop<D>, operation: Operation| async move {
        let out_of_tea = operation.phase(&shop.pool, "order", async |tx| {
            D::order(tx, "tea").await.expect("ordered");
            Err::<(), _>("out of tea")
        });
        let Err(StepError::Failed("out of tea")) = out_of_tea.await else { panic!("it failed") };
        operation
            .phase(&shop.pool, "order", async |tx| D::order(tx, "coffee").await)
            .await
            .map_err(failed)
    });
    assert_eq!(served.charge(KEY).await.says(), says(200, "executed"));
    assert_eq!(shop.orders().await, ["coffee"]);
}

async fn a_last_phase_may_complete_the_operation_in_its_transaction<D: Database>() {
    let shop = Shop::<D>::open().await;
    let served = shop.serve(phased(), |shop: Shop<D>, operation: Operation| async move {
        let paid = operation.effect(Effect::idempotent("pay"), async |key| {
            Ok::<_, EffectError<&str>>(shop.ledger.act_once(&key))
        });
        let receipt = paid.await.map_err(failed)?;
        let ended = operation.transaction(&shop.pool, async |tx| {
            D::order(tx, "tea").await?;
            match shop.runs() {
                1 => Err(sqlx::Error::RowNotFound),
                _ => Ok(Reply::new(StatusCode::CREATED, receipt)),
            }
        });
        ended.await.map_err(failed)
    });
    assert_eq!(served.charge(KEY).await.says(), says(500, "suspended"));
    assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
    assert_eq!(served.charge(KEY).await.says(), says(201, "replayed"));
    assert_eq!((shop.orders().await.len(), shop.ledger.calls().len()), (1, 1));
}

async fn an_operation_is_not_completed_in_a_transaction_while_an_effect_is_open<D: Database>() {
    let shop = Shop::<D>::open().await;
    let served = shop.serve(phased(), |shop: Shop<D>, operation: Operation| async move {
        let pay = Effect::not_idempotent("pay");
        let _ = operation.effect(pay, async |_| Err::<(), _>(EffectError::from("timed out"))).await;
        let ended = operation.transaction(&shop.pool, async |tx| {
            D::order(tx, "tea").await?;
            Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, "paid, surely"))
        });
        ended.await.map_err(failed)
    });
    assert_eq!(served.charge(KEY).await.says(), says(502, "outcome_unknown"));
    assert_eq!(shop.orders().await, [""; 0]);
}

async fn a_result_that_cannot_be_read_any_more_is_an_error_and_calls_nobody<D: Database>() {
    let shop = Shop::<D>::open().await;
    let served = shop.serve(phased(), |shop: Shop<D>, operation: Operation| async move {
        let pay = Effect::not_idempotent("pay");
        if shop.runs() == 1 {
            let paid = operation
                .effect(pay, async |key| Ok::<_, EffectError<&str>>(shop.ledger.act(&key)));
            paid.await.expect("paid");
        } else {
            let paid = operation.effect(pay, async |key| {
                shop.ledger.act(&key);
                Ok::<u64, EffectError<&str>>(1)
            });
            let error = paid.await.expect_err("another type by now");
            assert!(matches!(error, StepError::Result(_)), "{error:?}");
        }
        StatusCode::INTERNAL_SERVER_ERROR
    });
    for _ in 0..3 {
        assert_eq!(served.charge(KEY).await.says(), says(500, "suspended"));
    }
    assert_eq!((shop.ledger.calls().len(), shop.runs()), (1, 3));
}

async fn a_store_whose_own_step_fails_does_not_run_the_phase_twice<D: Database>() {
    let shop = Shop::<D>::open().await;
    // The first write after the phase is refused: the attempt ends there.
    let store = FaultyStore::new(shop.store.clone(), |call, _| match call {
        StoreCall::Intend => Fault::Corrupt,
        _ => Fault::None,
    });
    let broken = shop.serve_on(Arc::new(store), phased(), idempotent);
    assert_eq!(broken.charge(KEY).await.says(), says(500, "suspended"));
    let whole = shop.serve(phased(), idempotent);
    assert_eq!(whole.charge(KEY).await.says(), says(201, "executed"));
    assert_eq!(shop.orders().await, ["tea", "parcel"]);
}

/// Dropped before its commit, it is made by the next attempt; dropped after it, it is not made again.
async fn a_phase_that_is_dropped_at_any_of_its_waits_is_made_once<D: Database>() {
    let shop = Shop::<D>::open().await;
    let dropped = Arc::new(AtomicU32::new(0));
    let served = shop.serve(phased(), {
        let dropped = Arc::clone(&dropped);
        move |shop: Shop<D>, operation: Operation| {
            let dropped = Arc::clone(&dropped);
            async move {
                let wait = match operation.attempt_number() {
                    1 => 1 + shop.runs() % WAITS_MAX,
                    _ => u32::MAX,
                };
                let phase = operation.phase(&shop.pool, "order", async |tx| {
                    D::order(tx, "tea").await?;
                    Ok::<u32, sqlx::Error>(7)
                });
                let Some(number) = dropped_at(wait, phase).await else {
                    dropped.fetch_add(1, Ordering::SeqCst);
                    return Err((StatusCode::INTERNAL_SERVER_ERROR, "dropped".to_owned()));
                };
                assert_eq!(number.map_err(failed)?, 7);
                Ok::<_, Failed>("ordered")
            }
        }
    });
    let keys = 3 * WAITS_MAX;
    for number in 0..keys {
        let key = format!("order-{number:016}");
        if served.charge(&key).await.status != 200 {
            assert_eq!(served.charge(&key).await.says(), says(200, "executed"), "{number}");
        }
        shop.nobody_stays_in_a_transaction().await;
    }
    let dropped = dropped.load(Ordering::SeqCst);
    println!("{dropped} of {keys} dropped");
    assert!(dropped > 3 && dropped < keys, "{dropped} of {keys} dropped");
    assert_eq!(shop.orders().await.len(), keys as usize);
}

//! Effects: calls to others, on any store. What is known of them, and what an attempt may do about it.

use std::sync::Arc;

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use onceward::{
    Effect, EffectError, Effects, MemoryStore, Operation, Policy, StepError, Store,
    policy::ServerErrors,
    record::State,
    store::{Proof, Resolution, Resolve},
    testing::{Fault, StoreCall},
};

use crate::{
    service::{FOR_EVER, Faults, Service, says},
    shop::{Ledger, failed},
};

const KEY: &str = "order-0000000000000001";

fn phased() -> Policy {
    Policy::required().effects(Effects::Phased).expect("allowed")
}

/// A service on the memory store whose handler makes one payment, and ends with what that came to.
fn paying(
    store: impl FnOnce(Arc<MemoryStore>) -> Arc<dyn Store>,
    pay: impl Fn(u32, Operation) -> futures_util::future::BoxFuture<'static, Response>
    + Send
    + Sync
    + 'static,
) -> Service {
    Service::on(store, phased(), move |run| pay(run.number, run.operation()))
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hides_an_open_effect_is_not_believed() {
    for (payment, first, again, calls) in [
        (
            Effect::not_idempotent("pay"),
            says(502, "outcome_unknown"),
            says(409, "outcome_unknown"),
            1,
        ),
        (Effect::idempotent("pay"), says(503, "key_in_progress"), says(200, "executed"), 2),
    ] {
        let ledger = Ledger::default();
        let noted = ledger.clone();
        let service = paying(
            |memory| memory,
            move |number, operation| {
                let ledger = ledger.clone();
                Box::pin(async move {
                    let paid = operation.effect(payment, async |key| {
                        let receipt = ledger.act(&key);
                        match number {
                            1 => Err("timed out")?,
                            _ => Ok(receipt),
                        }
                    });
                    let _ = paid.await;
                    "all is well".into_response()
                })
            },
        );
        let told = service.charge(KEY).await;
        assert_eq!(told.says(), first, "{payment:?}");
        assert_eq!(told.json()["retry"], "same_key");
        assert_eq!(service.charge(KEY).await.says(), again, "{payment:?}");
        let keys = noted.calls();
        assert_eq!(keys.len(), calls, "{payment:?}");
        assert!(keys.iter().all(|key| key == &keys[0]), "one derived key: {keys:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_effect_that_is_known_not_to_have_acted_may_be_called_again() {
    let ledger = Ledger::default();
    let noted = ledger.clone();
    let service = paying(
        |memory| memory,
        move |number, operation| {
            let ledger = ledger.clone();
            Box::pin(async move {
                let paid =
                    operation.effect(Effect::not_idempotent("pay"), async |key| match number {
                        1 => Err(EffectError::NotExecuted("connection refused")),
                        _ => Ok(ledger.act(&key)),
                    });
                match paid.await {
                    Ok(receipt) => receipt.into_response(),
                    Err(StepError::Failed(why)) => (StatusCode::BAD_GATEWAY, why).into_response(),
                    Err(other) => panic!("{other:?}"),
                }
            })
        },
    );
    let first = service.charge(KEY).await;
    assert_eq!((first.status, first.outcome()), (502, "suspended"));
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
    assert_eq!((noted.done().len(), service.runs()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn an_effect_that_may_have_acted_before_stays_open_when_it_is_declined_now() {
    let ledger = Ledger::default();
    let noted = ledger.clone();
    let service = paying(
        |memory| memory,
        move |number, operation| {
            let ledger = ledger.clone();
            Box::pin(async move {
                let pay = Effect::idempotent("pay");
                let paid = operation.effect(pay, async |key| match number {
                    1 => {
                        ledger.act_once(&key);
                        Err(EffectError::Ambiguous("timed out"))
                    }
                    2 => Err(EffectError::NotExecuted("busy")),
                    _ => Ok(ledger.act_once(&key)),
                });
                match (number, paid.await) {
                    (_, Ok(receipt)) => receipt.into_response(),
                    (1 | 2, Err(StepError::Ambiguous(_))) => StatusCode::CONFLICT.into_response(),
                    (_, Err(other)) => panic!("{other:?}"),
                }
            })
        },
    );
    for _ in 0..2 {
        assert_eq!(service.charge(KEY).await.says(), says(503, "key_in_progress"));
        let record = service.record(KEY).await.expect("a record");
        assert_eq!(record.state, State::InProgress);
        assert!(record.progress.open_effect.is_some());
    }
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
    assert_eq!((noted.done().len(), service.runs()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_try_an_idempotent_effect_again_by_itself() {
    let ledger = Ledger::default();
    let noted = ledger.clone();
    let service = paying(
        |memory| memory,
        move |_, operation| {
            let ledger = ledger.clone();
            Box::pin(async move {
                for idempotent in [true, true] {
                    let pay = if idempotent { Effect::idempotent("pay") } else { continue };
                    let paid = operation.effect(pay, async |key| {
                        let receipt = ledger.act_once(&key);
                        match ledger.calls().len() {
                            1 => Err("timed out")?,
                            _ => Ok(receipt),
                        }
                    });
                    if let Ok(receipt) = paid.await {
                        return receipt.into_response();
                    }
                }
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            })
        },
    );
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
    assert_eq!((noted.calls().len(), noted.done().len(), service.runs()), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_resumed_handler_cannot_end_before_an_effect_that_was_left_open() {
    let service = paying(
        |memory| memory,
        move |number, operation| {
            Box::pin(async move {
                if number == 1 {
                    let pay = Effect::idempotent("pay");
                    let lost = operation
                        .effect(pay, async |_| Err::<(), _>(EffectError::from("timed out")));
                    let _ = lost.await;
                }
                "all is well".into_response()
            })
        },
    );
    for _ in 0..3 {
        assert_eq!(service.charge(KEY).await.says(), says(503, "key_in_progress"));
    }
    let record = service.record(KEY).await.expect("a record");
    assert_eq!(record.state, State::InProgress);
    assert!(record.progress.open_effect.is_some());
}

#[tokio::test(start_paused = true)]
async fn lost_answers_to_the_steps_of_an_effect_are_asked_for_again() {
    for call in [StoreCall::Intend, StoreCall::Save] {
        for fault in [Fault::LostAfter, Fault::LostBefore, Fault::Refused, Fault::HangsAfter] {
            let faults = Faults::default();
            faults.fail(call, fault, 1);
            let ledger = Ledger::default();
            let noted = ledger.clone();
            let service = paying(
                |memory| faults.on(memory),
                move |_, operation| {
                    let ledger = ledger.clone();
                    Box::pin(async move {
                        let pay = Effect::not_idempotent("pay");
                        let paid = operation
                            .effect(pay, async |key| Ok::<_, EffectError<&str>>(ledger.act(&key)));
                        match paid.await {
                            Ok(receipt) => receipt.into_response(),
                            Err(error) => failed(error).into_response(),
                        }
                    })
                },
            );
            let told = service.charge(KEY).await.says();
            // A call that never answers takes all the time there is.
            let expected = match (call, fault) {
                (StoreCall::Intend, Fault::HangsAfter) => says(500, "not_executed"),
                (_, Fault::HangsAfter) => says(502, "outcome_unknown"),
                _ => says(200, "executed"),
            };
            assert_eq!(told, expected, "{call:?} {fault:?}");
            let called = usize::from(!(call == StoreCall::Intend && fault == Fault::HangsAfter));
            assert_eq!(noted.calls().len(), called, "{call:?} {fault:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn steps_that_cannot_be_read_keep_a_resumed_handler_from_running() {
    let faults = Faults::default();
    let service = paying(
        |memory| faults.on(memory),
        move |number, operation| {
            Box::pin(async move {
                let paid = operation
                    .effect(Effect::idempotent("pay"), async |key| Ok::<_, EffectError<&str>>(key));
                let key = paid.await.expect("paid");
                match number {
                    1 => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
                    _ => key.into_response(),
                }
            })
        },
    );
    assert_eq!(service.charge(KEY).await.says(), says(500, "suspended"));
    faults.fail(StoreCall::Steps, Fault::Refused, FOR_EVER);
    assert_eq!(service.charge(KEY).await.says(), says(503, "store_unavailable"));
    assert_eq!(service.runs(), 1);
    faults.heal();
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
    assert_eq!(service.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_ends_a_phased_handler_early_is_gone_on_with_and_never_repeats_a_step() {
    for (case, told) in [
        ("panic", says(503, "key_in_progress")),
        ("500", says(500, "suspended")),
        ("502", says(502, "suspended")),
        ("429", says(429, "suspended")),
    ] {
        let ledger = Ledger::default();
        let noted = ledger.clone();
        let service = paying(
            |memory| memory,
            move |number, operation| {
                let ledger = ledger.clone();
                Box::pin(async move {
                    let paid = operation.effect(Effect::not_idempotent("pay"), async |key| {
                        Ok::<_, EffectError<&str>>(ledger.act(&key))
                    });
                    let receipt = paid.await.expect("paid");
                    match (number, case) {
                        (1, "panic") => panic!("after the payment"),
                        (1, status) => {
                            let status = status.parse().expect("a number");
                            StatusCode::from_u16(status).expect("a status").into_response()
                        }
                        _ => receipt.into_response(),
                    }
                })
            },
        );
        assert_eq!(service.charge(KEY).await.says(), told, "{case}");
        let retry = service.charge(KEY).await;
        assert_eq!((retry.says(), retry.text()), (says(200, "executed"), "receipt 1"), "{case}");
        assert_eq!((noted.calls().len(), service.runs()), (1, 2), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_step_a_phased_handler_has_done_nothing() {
    for (status, told) in [(500, says(500, "not_executed")), (503, says(503, "not_executed"))] {
        let service = Service::new(phased(), move |run| async move {
            let status = if run.number == 1 { status } else { 200 };
            StatusCode::from_u16(status).expect("a status")
        });
        assert_eq!(service.charge(KEY).await.says(), told);
        let record = service.record(KEY).await.expect("a record");
        assert_eq!(record.state, State::FailedRetryable);
        assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
    }
    // Where the policy says that errors are unknown, they are.
    let service = Service::new(phased().server_errors(ServerErrors::Unknown), |_| async {
        StatusCode::INTERNAL_SERVER_ERROR
    });
    assert_eq!(service.charge(KEY).await.says(), says(502, "outcome_unknown"));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_effect_that_is_found_not_to_have_acted_is_called_by_the_next_attempt() {
    let ledger = Ledger::default();
    let noted = ledger.clone();
    let service = paying(
        |memory| memory,
        move |number, operation| {
            let ledger = ledger.clone();
            Box::pin(async move {
                let paid =
                    operation.effect(Effect::not_idempotent("pay"), async |key| match number {
                        1 => Err("timed out")?,
                        _ => Ok(ledger.act(&key)),
                    });
                match paid.await {
                    Ok(receipt) => receipt.into_response(),
                    Err(error) => failed(error).into_response(),
                }
            })
        },
    );
    assert_eq!(service.charge(KEY).await.says(), says(502, "outcome_unknown"));
    let record = service.record(KEY).await.expect("a record");
    assert_eq!(record.last_error.as_deref(), Some("effect_without_result"));
    let resolve = Resolve {
        id: record.id,
        generation: record.generation,
        fence: record.fence,
        resolution: Resolution::Release(Proof::Authoritative),
        reason: "the provider has no such payment".into(),
    };
    let _ = service.memory.resolve(resolve).await.expect("memory answers");
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
    assert_eq!(noted.done().len(), 1);
}

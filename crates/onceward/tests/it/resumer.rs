//! Phased operations that no client comes back for are gone on with by a worker.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use onceward::{
    Effect, EffectError, Effects, Operation, Policy, Resumer, Store as _, engine::Resumed,
    record::State, store::Which,
};
use tokio::sync::Notify;

use crate::{
    service::{Run, Service, keyed, says},
    shop::{Database, Served, Shop, failed, on_each_database},
};

on_each_database!(
    what_was_cut_off_is_gone_on_with_and_its_client_finds_the_reply,
    two_workers_go_on_with_it_once,
    a_process_that_drains_takes_nothing_on,
    what_no_phased_route_takes_any_more_is_left,
    a_lease_that_lives_is_left_alone,
);

const KEY: &str = "order-0000000000000001";
const LEASE: Duration = Duration::from_secs(60);

fn phased() -> Policy {
    Policy::required().effects(Effects::Phased).expect("allowed")
}

/// Pays once, then orders; the first attempt hangs in between, as one does that is cut off there.
async fn pay_then_order<D: Database>(
    shop: Shop<D>,
    operation: Operation,
) -> Result<String, (StatusCode, String)> {
    let paid = operation.effect(Effect::not_idempotent("pay"), async |key| {
        Ok::<_, EffectError<&str>>(shop.ledger.act(&key))
    });
    let receipt = paid.await.map_err(failed)?;
    if shop.runs() == 1 {
        std::future::pending::<()>().await;
    }
    let ordered = operation.phase(&shop.pool, "order", async |tx| D::order(tx, "tea").await);
    ordered.await.map_err(failed)?;
    Ok(receipt)
}

/// A shop with an operation that was cut off after its first step, and whose lease is over.
async fn cut_off<D: Database>() -> (Shop<D>, Served) {
    let shop = Shop::<D>::open().await;
    let served = shop.serve(phased(), pay_then_order);
    let _client = served.spawn_charge(KEY);
    while shop.record(KEY).await.is_none_or(|record| record.progress.recovery_point.is_none()) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    shop.clock.advance(LEASE + Duration::from_secs(1));
    // Another process: its clients are gone, and the first attempt is never heard of again.
    let next = shop.serve(phased(), pay_then_order);
    (shop, next)
}

async fn what_was_cut_off_is_gone_on_with_and_its_client_finds_the_reply<D: Database>() {
    let (shop, served) = cut_off::<D>().await;
    let resumer = Resumer::new(Arc::clone(&served.engine), served.inner.clone());
    let resumed = resumer.run_once(10).await.expect("the store answers");
    assert_eq!(resumed, Resumed { taken: 1, ..Resumed::default() });
    assert_eq!(shop.record(KEY).await.expect("a record").state, State::Completed);
    assert_eq!((shop.orders().await, shop.ledger.calls().len()), (vec!["tea".to_owned()], 1));
    let retry = served.charge(KEY).await;
    assert_eq!((retry.says(), retry.text()), (says(200, "replayed"), "receipt 1"));
    assert_eq!(shop.runs(), 2);
    let again = resumer.run_once(10).await.expect("the store answers");
    assert_eq!(again, Resumed::default());
}

async fn a_lease_that_lives_is_left_alone<D: Database>() {
    let shop = Shop::<D>::open().await;
    let served = shop.serve(phased(), pay_then_order);
    let _client = served.spawn_charge(KEY);
    while shop.record(KEY).await.is_none_or(|record| record.progress.recovery_point.is_none()) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let resumer = Resumer::new(Arc::clone(&served.engine), served.inner.clone());
    assert_eq!(resumer.run_once(10).await.expect("the store answers"), Resumed::default());
}

async fn two_workers_go_on_with_it_once<D: Database>() {
    let (shop, served) = cut_off::<D>().await;
    let other = shop.serve(phased(), pay_then_order);
    let resumers = [served, other].map(|it| Resumer::new(Arc::clone(&it.engine), it.inner.clone()));
    let [one, two] = &resumers;
    let both = tokio::join!(one.run_once(10), two.run_once(10));
    both.0.expect("the store answers");
    both.1.expect("the store answers");
    assert_eq!((shop.runs(), shop.orders().await.len()), (2, 1));
}

async fn a_process_that_drains_takes_nothing_on<D: Database>() {
    let (shop, served) = cut_off::<D>().await;
    served.engine.drain(Duration::ZERO).await;
    let resumer = Resumer::new(Arc::clone(&served.engine), served.inner.clone());
    assert_eq!(resumer.run_once(10).await.expect("the store answers"), Resumed::default());
    assert_eq!(shop.runs(), 1);
}

async fn what_no_phased_route_takes_any_more_is_left<D: Database>() {
    let (shop, _) = cut_off::<D>().await;
    let external = Policy::required().effects(Effects::External).expect("allowed");
    let served = shop.serve(external, pay_then_order);
    let resumer = Resumer::new(Arc::clone(&served.engine), served.inner.clone());
    let resumed = resumer.run_once(10).await.expect("the store answers");
    assert_eq!((resumed, shop.runs()), (Resumed { left: 1, ..Resumed::default() }, 1));
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_given_the_request_without_credentials() {
    let hung = Arc::new(Notify::new());
    let service = Service::new(phased(), {
        let hung = hung.clone();
        move |_: Run| {
            let hung = hung.clone();
            async move {
                hung.notify_one();
                std::future::pending::<StatusCode>().await
            }
        }
    });
    let request = keyed(KEY).uri("/charges?currency=eur").header("x-trace", "7");
    let request = request.header("cookie", "session=1").header("connection", "x-hop");
    let request = request.header("x-hop", "1").body(Body::from("{\"a\": 1}")).expect("a request");
    let _client = service.spawn(request);
    hung.notified().await;
    service.clock.advance(LEASE);
    let seen: Arc<Mutex<Vec<Request<Bytes>>>> = Arc::default();
    let noted = seen.clone();
    let resume = move |request: Request<Bytes>, operation: Operation| {
        assert_eq!(operation.attempt_number(), 2);
        noted.lock().expect("not poisoned").push(request);
        async { Response::new(Bytes::from_static(b"done")) }
    };
    let resumed = service.engine.resume_once(10, resume).await.expect("the store answers");
    assert_eq!(resumed, Resumed { taken: 1, ..Resumed::default() });
    let seen = std::mem::take(&mut *seen.lock().expect("not poisoned"));
    let [request] = &*seen else { panic!("{seen:?}") };
    assert_eq!(
        (request.method().as_str(), request.uri().to_string()),
        ("POST", "/charges?currency=eur".into())
    );
    assert_eq!(request.body(), "{\"a\": 1}");
    for kept in ["x-trace", "content-type", "idempotency-key"] {
        assert!(request.headers().contains_key(kept), "{kept}");
    }
    for gone in ["authorization", "cookie", "connection", "x-hop"] {
        assert!(!request.headers().contains_key(gone), "{gone}");
    }
    let record = service.record(KEY).await.expect("a record");
    assert_eq!(record.state, State::Completed);
    assert_eq!(service.memory.resumable(Which::All, 10).await.expect("memory answers"), []);
}

#[tokio::test(start_paused = true)]
async fn a_worker_stops_at_its_limit_and_goes_on_from_there() {
    let service = Service::new(phased(), |run: Run| async move {
        let step = Effect::idempotent("step");
        let step = run.operation().effect(step, async |key| Ok::<_, EffectError<&str>>(key)).await;
        step.expect("a step");
        StatusCode::INTERNAL_SERVER_ERROR
    });
    for number in 0..5 {
        service.charge(&format!("order-{number:016}")).await;
    }
    let done = |_: Request<Bytes>, _: Operation| async { Response::new(Bytes::new()) };
    let mut taken = Vec::new();
    while taken.last() != Some(&0) {
        let resumed = service.engine.resume_once(2, done).await.expect("the store answers");
        taken.push(resumed.taken);
    }
    assert_eq!(taken, [2, 2, 1, 0]);
}

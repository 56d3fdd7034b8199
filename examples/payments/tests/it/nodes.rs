//! Two processes on one database, both given every request.

use futures_util::future::join_all;

use crate::support::{Memory, Store, World, order};

const LOAD: usize = 24;

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_that_get_every_request_at_once_pay_once() {
    // At a bank that forgets: a second call would show.
    let world = World::new(Store::postgres(), Memory::Forgets).lease("10s");
    let nodes = [world.node(), world.node()];
    let [one, two] = &nodes;
    let pay = |number: usize| {
        let world = &world;
        async move {
            let reference = format!("load-{number}");
            let (key, order) = (format!("key-of-the-payment-{reference}"), order(&reference));
            let post = |address| world.post(address, "/payments", Some(&key), &order);
            let at_once = tokio::join!(post(one.address()), post(two.address()));
            let paid = world.pay(one, &reference).await;
            assert_eq!(paid.status, 201, "{paid:?}");
            for answer in [at_once.0, at_once.1].map(|answer| answer.expect("an answer")) {
                assert!(answer.is_in_progress() || answer.bytes() == paid.bytes(), "{answer:?}");
            }
            assert_eq!(world.pay(two, &reference).await.bytes(), paid.bytes());
            assert_eq!(world.times("authorizations", &reference), 1, "{reference}");
        }
    };
    join_all((0..LOAD).map(pay)).await;
    let payments = world.payments().await;
    assert_eq!(payments.len(), LOAD);
    assert!(payments.values().all(|states| *states == ["authorized"]), "{payments:?}");
}

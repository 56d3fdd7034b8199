//! Handlers that say that nothing was sent, and the end that comes before they are done.

use http::Request;
use tokio::{sync::oneshot, time::sleep};

use super::*;
use crate::{engine::Captured, record::State};

/// Says so, or does not, and takes longer than there is time.
struct Sends(Told);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    NotSent,
    Sent,
}

impl Handler for Sends {
    type Rest = ();

    async fn run(self, operation: Operation) -> Execution<()> {
        if self.0 != Told::Nothing {
            operation.not_yet_sent();
        }
        if self.0 == Told::Sent {
            assert!(operation.may_send());
        }
        sleep(seconds(60)).await;
        Execution::NoFullAnswer { status: StatusCode::BAD_GATEWAY, why: "test" }
    }
}

fn engine() -> Arc<Engine> {
    let policy = Policy::required().max_execution(seconds(30)).expect("long enough");
    let settings = Settings { scope: ScopeRule::anonymous(), ..Settings::default() };
    Arc::new(Engine::new(Arc::new(MemoryStore::new()), policy.into(), settings))
}

/// Runs to the end, with the status that the client got and the state that is left.
async fn run(engine: &Arc<Engine>, handler: Sends) -> (StatusCode, State) {
    let request = Request::post("/").header("idempotency-key", "order-0000000000000001");
    let (parts, ()) = request.body(()).expect("valid").into_parts();
    let policy = engine.policy_for(&parts).expect("a policy");
    let admitted = engine.admit(&parts, policy).expect("admitted").expect("a key");
    let id = admitted.id().clone();
    let (sender, answer) = oneshot::channel::<Response<Captured<()>>>();
    let asked = engine.ask(admitted, &parts, &Bytes::new());
    Arc::clone(engine).run(asked, handler, sender).await;
    let record = engine.store().load(&id).await.expect("loaded").expect("a record");
    (answer.await.expect("answered").status(), record.state)
}

#[tokio::test(start_paused = true)]
async fn what_has_sent_nothing_when_its_time_is_over_is_released() {
    for (told, status, state) in [
        (Told::NotSent, StatusCode::BAD_GATEWAY, State::FailedRetryable),
        (Told::Sent, StatusCode::GATEWAY_TIMEOUT, State::Unknown),
        (Told::Nothing, StatusCode::GATEWAY_TIMEOUT, State::Unknown),
    ] {
        assert_eq!(run(&engine(), Sends(told)).await, (status, state));
    }
}

#[tokio::test(start_paused = true)]
async fn what_had_sent_nothing_at_the_end_of_the_process_is_released() {
    for (told, status, state) in [
        (Told::NotSent, StatusCode::SERVICE_UNAVAILABLE, State::FailedRetryable),
        (Told::Sent, StatusCode::GATEWAY_TIMEOUT, State::Unknown),
        (Told::Nothing, StatusCode::GATEWAY_TIMEOUT, State::Unknown),
    ] {
        let engine = engine();
        let stop = async {
            sleep(seconds(1)).await;
            engine.drain(seconds(1)).await;
        };
        let (ended, ()) = tokio::join!(run(&engine, Sends(told)), stop);
        assert_eq!(ended, (status, state));
    }
}

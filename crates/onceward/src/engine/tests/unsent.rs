//! Handlers that say that nothing was sent, and the end that comes before they are done.

use http::Request;
use tokio::{sync::oneshot, time::sleep};

use super::*;
use crate::{engine::Captured, record::State};

/// Says so, or does not, and ends after a while.
struct Sends {
    told: Told,
    after: Duration,
    end: fn() -> Execution<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    NotSent,
    Sent,
}

impl Handler for Sends {
    type Rest = ();

    async fn run(self, operation: Operation) -> Execution<()> {
        if self.told != Told::Nothing {
            operation.not_yet_sent();
        }
        if self.told == Told::Sent {
            assert!(operation.may_send());
        }
        sleep(self.after).await;
        (self.end)()
    }
}

const NEVER_SENT: fn() -> Execution<()> = || Execution::NeverSent { why: "test" };
const NO_ANSWER: fn() -> Execution<()> =
    || Execution::NoFullAnswer { status: StatusCode::BAD_GATEWAY, why: "test" };

fn engine() -> Arc<Engine> {
    let policy = Policy::required().max_execution(seconds(5)).expect("long enough");
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
    let running = Arc::clone(engine).run(admitted, Arc::new(parts), Bytes::new(), handler, sender);
    running.await;
    let record = engine.store().load(&id).await.expect("loaded").expect("a record");
    (answer.await.expect("answered").status(), record.state)
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_turns_out_late_to_have_sent_nothing_is_released() {
    for (end, state) in [(NEVER_SENT, State::FailedRetryable), (NO_ANSWER, State::Unknown)] {
        let late = Sends { told: Told::NotSent, after: seconds(8), end };
        assert_eq!(run(&engine(), late).await, (StatusCode::GATEWAY_TIMEOUT, state));
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
        let hangs = Sends { told, after: seconds(60), end: NO_ANSWER };
        let stop = async {
            sleep(seconds(1)).await;
            engine.drain(seconds(1)).await;
        };
        let (ended, ()) = tokio::join!(run(&engine, hangs), stop);
        assert_eq!(ended, (status, state));
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_past_its_time_and_had_sent_nothing_is_released_at_the_end_of_the_process() {
    for (told, state) in [(Told::NotSent, State::FailedRetryable), (Told::Sent, State::Unknown)] {
        let engine = engine();
        let hangs = Sends { told, after: seconds(60), end: NO_ANSWER };
        let stop = async {
            sleep(seconds(7)).await;
            engine.drain(seconds(1)).await;
        };
        let (ended, ()) = tokio::join!(run(&engine, hangs), stop);
        assert_eq!(ended, (StatusCode::GATEWAY_TIMEOUT, state));
    }
}

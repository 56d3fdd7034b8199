//! What an answer of the handler means, and what a record means to the next request.

use std::time::Duration;

use axum::{body::Body, response::IntoResponse as _};
use http::{Request, StatusCode};
use onceward::{Effects, Policy, Profile, policy::ServerErrors, record::State};

use crate::service::{ACME, Answer, EVIL, Run, Service, keyed, pass, says};

const KEY: &str = "order-0000000000000001";
const HOUR: Duration = Duration::from_secs(3600);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A service that answers with this status the first time, and with 200 after that.
fn first_answers(status: u16, policy: Policy) -> Service {
    Service::new(policy, move |run: Run| async move {
        let status = StatusCode::from_u16(status).expect("a status");
        let status = if run.number == 1 { status } else { StatusCode::OK };
        (status, [("x-kept", "1")], format!("run {}", run.number))
    })
}

/// What the first caller and its retry get, and how often the handler ran.
async fn twice(service: &Service) -> (Answer, Answer, u32) {
    let first = service.charge(KEY).await;
    let retry = service.charge(KEY).await;
    (first, retry, service.runs())
}

fn effects(effects: Effects) -> Policy {
    Policy::required().effects(effects).expect("allowed")
}

#[tokio::test(start_paused = true)]
async fn replies_of_2xx_3xx_and_4xx_are_stored_and_replayed() {
    for status in [200, 201, 202, 204, 302, 400, 404, 409, 410, 418, 422] {
        let service = first_answers(status, Policy::required());
        let (first, retry, runs) = twice(&service).await;
        assert_eq!(
            (first.says(), retry.says()),
            (says(status, "executed"), says(status, "replayed"))
        );
        assert_eq!((&first.body, runs), (&retry.body, 1), "{status}");
        assert_eq!((first.header("x-kept"), retry.header("x-kept")), ("1", "1"), "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn answers_that_say_come_back_are_passed_on_and_a_retry_runs() {
    for status in [401, 403, 408, 425, 429] {
        for effects in [effects(Effects::External), effects(Effects::None), Policy::required()] {
            let service = first_answers(status, effects);
            let (first, retry, runs) = twice(&service).await;
            assert_eq!((first.says(), first.text()), (says(status, "not_executed"), "run 1"));
            assert_eq!((retry.says(), runs), (says(200, "executed"), 2), "{status}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_handlers_own_5xx_means_what_its_effects_and_its_policy_say() {
    let retry = (says(500, "not_executed"), says(200, "executed"), 2);
    let unknown = (says(502, "outcome_unknown"), says(409, "outcome_unknown"), 1);
    let store = (says(500, "executed"), says(500, "replayed"), 1);
    let external = || effects(Effects::External);
    for (case, policy, expected) in [
        ("undeclared", Policy::required(), &retry),
        ("none", effects(Effects::None), &retry),
        ("external", external(), &unknown),
        ("external, retry", external().server_errors(ServerErrors::Retry), &retry),
        ("external, store", external().server_errors(ServerErrors::Store), &store),
        ("none, store", effects(Effects::None).server_errors(ServerErrors::Store), &store),
        ("none, unknown", effects(Effects::None).server_errors(ServerErrors::Unknown), &unknown),
        ("stripe", Policy::of_profile(Profile::Stripe), &store),
    ] {
        let (first, again, runs) = twice(&first_answers(500, policy)).await;
        assert_eq!(&(first.says(), again.says(), runs), expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_full_answer_is_unknown_whatever_was_declared() {
    for effects in [effects(Effects::External), effects(Effects::None), Policy::required()] {
        for (status, told) in [(502, 502), (504, 504)] {
            let policy = effects.clone().server_errors(ServerErrors::Retry);
            let (first, retry, runs) = twice(&first_answers(status, policy)).await;
            assert_eq!(first.says(), says(told, "outcome_unknown"));
            assert_eq!((retry.says(), runs), (says(409, "outcome_unknown"), 1));
            assert!(!retry.header("retry-after").is_empty());
            assert!(retry.header("location").starts_with("/.onceward/operations/"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_another_length_than_it_says_is_unknown() {
    for (length, expected) in [("5", says(200, "executed")), ("9", says(502, "outcome_unknown"))] {
        let service = Service::new(Policy::required(), move |_| async move {
            ([("content-length", length)], "12345")
        });
        assert_eq!(service.charge(KEY).await.says(), expected, "{length}");
    }
}

/// A handler that says with its own word whether it acted.
async fn with_own_word(word: &'static str, status: u16, policy: Policy) -> (Answer, Answer, u32) {
    let service = Service::new(policy, move |run: Run| async move {
        let status = StatusCode::from_u16(status).expect("a status");
        match run.number {
            1 => (status, [("onceward-executed", word)], "first").into_response(),
            _ => "second".into_response(),
        }
    });
    twice(&service).await
}

#[tokio::test(start_paused = true)]
async fn a_handlers_own_word_decides_and_is_not_passed_on() {
    let external = || effects(Effects::External);
    for (word, status, policy, first_says, retry_says) in [
        ("no", 500, external(), says(500, "not_executed"), says(200, "executed")),
        ("No", 500, external(), says(500, "not_executed"), says(200, "executed")),
        ("no", 502, external(), says(502, "not_executed"), says(200, "executed")),
        ("no", 200, external(), says(200, "not_executed"), says(200, "executed")),
        (
            "maybe",
            500,
            Policy::required(),
            says(502, "outcome_unknown"),
            says(409, "outcome_unknown"),
        ),
        (
            "Maybe",
            429,
            Policy::required(),
            says(502, "outcome_unknown"),
            says(409, "outcome_unknown"),
        ),
        // A word that is not understood is no leave to run again.
        (
            "yes",
            500,
            Policy::required(),
            says(502, "outcome_unknown"),
            says(409, "outcome_unknown"),
        ),
        ("yes", 200, Policy::required(), says(200, "executed"), says(200, "replayed")),
    ] {
        let (first, retry, _) = with_own_word(word, status, policy).await;
        assert_eq!((first.says(), retry.says()), (first_says, retry_says), "{word} {status}");
        for answer in [first, retry] {
            assert!(!answer.headers.contains_key("onceward-executed"), "{word} {status}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_cannot_speak_in_our_name() {
    let service = Service::new(Policy::required(), |_| async {
        let ours = [
            ("idempotent-replayed", "true"),
            ("onceward-outcome", "replayed"),
            ("idempotency-generation", "7"),
            ("onceward-schema-version", "9"),
        ];
        (ours, "charged")
    });
    let first = service.charge(KEY).await;
    assert_eq!(first.says(), says(200, "executed"));
    for name in ["idempotent-replayed", "idempotency-generation", "onceward-schema-version"] {
        assert!(!first.headers.contains_key(name), "{name}");
    }
    assert_eq!(service.charge(KEY).await.header("idempotent-replayed"), "true");
}

#[tokio::test(start_paused = true)]
async fn a_rerun_is_told_its_number_and_a_client_cannot_claim_one() {
    let service = Service::new(Policy::optional(), |run: Run| async move {
        let seen = run.header("onceward-attempt").unwrap_or("none").to_owned();
        let status = if run.number < 3 { 429 } else { 200 };
        (StatusCode::from_u16(status).expect("a status"), seen)
    });
    let claims = || {
        let request = keyed(KEY).header("onceward-attempt", "9");
        request.body(Body::empty()).expect("a request")
    };
    for expected in ["none", "2", "3", "3"] {
        assert_eq!(service.send(claims()).await.text(), expected);
    }
    assert_eq!(service.runs(), 3);
    let (mut unkeyed, _) = claims().into_parts();
    unkeyed.headers.remove("idempotency-key");
    let unkeyed = Request::from_parts(unkeyed, Body::empty());
    assert_eq!(service.send(unkeyed).await.text(), "none");
}

/// Another request under the same key.
fn other_amount(key: &str) -> Request<Body> {
    keyed(key).body(Body::from(r#"{"amount":101}"#)).expect("a request")
}

/// A service with a record in this state under [`KEY`].
async fn service_with(state: State, policy: Policy) -> Service {
    let service = Service::new(policy, move |run: Run| async move {
        match (state, run.number) {
            (State::InProgress, 1) => std::future::pending().await,
            (State::FailedRetryable, 1) => StatusCode::TOO_MANY_REQUESTS.into_response(),
            (State::Unknown, 1) => StatusCode::BAD_GATEWAY.into_response(),
            _ => format!("run {}", run.number).into_response(),
        }
    });
    let first = service.spawn_charge(KEY);
    pass(seconds(1)).await;
    if state == State::Expired {
        service.clock.advance(25 * HOUR);
    }
    drop(first);
    assert_eq!(service.record(KEY).await.expect("a record").state, state);
    service
}

const STATES: [State; 5] =
    [State::InProgress, State::Completed, State::FailedRetryable, State::Unknown, State::Expired];

#[tokio::test(start_paused = true)]
async fn another_request_under_the_key_is_refused_in_every_state_and_changes_nothing() {
    for state in STATES {
        let service = service_with(state, Policy::required()).await;
        let before = service.record(KEY).await;
        let refused = service.send(other_amount(KEY)).await;
        assert_eq!(refused.says(), says(422, "key_reused_with_different_payload"), "{state:?}");
        assert_eq!((refused.outcome(), refused.header("location")), ("mismatch", ""), "{state:?}");
        assert_eq!((service.runs(), service.record(KEY).await), (1, before), "{state:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_request_under_the_key_gets_what_its_state_says() {
    for (state, expected) in STATES.into_iter().zip([
        says(409, "key_in_progress"),
        says(200, "replayed"),
        says(200, "executed"),
        says(409, "outcome_unknown"),
        says(410, "key_expired"),
    ]) {
        let service = service_with(state, Policy::required()).await;
        assert_eq!(service.charge(KEY).await.says(), expected, "{state:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_profile_stripe_answers_a_mismatch_with_400_where_stripe_clients_look() {
    for state in [State::InProgress, State::Completed, State::FailedRetryable] {
        let policy = Policy::of_profile(Profile::Stripe);
        let service = service_with(state, policy).await;
        let refused = service.send(other_amount(KEY)).await;
        assert_eq!(refused.says(), says(400, "key_reused_with_different_payload"), "{state:?}");
        assert_eq!(refused.json()["error"]["type"], "idempotency_error");
    }
}

#[tokio::test(start_paused = true)]
async fn every_part_of_what_is_asked_counts() {
    let service = Service::new(Policy::required(), |_| async { "charged" });
    let asks = |method: &str, uri: &str, media: &str, body: &'static str| {
        let request = Request::builder().method(method).uri(uri).header("authorization", ACME);
        let request = request.header("idempotency-key", KEY).header("content-type", media);
        request.body(Body::from(body)).expect("a request")
    };
    let json = "application/json";
    let same = || asks("POST", "/charges?a=1", json, r#"{"a":1,"b":2}"#);
    assert_eq!(service.send(same()).await.says(), says(200, "executed"));
    let spelled = asks("POST", "/charges?a=1", json, r#"{ "b": 2, "a": 1.0 }"#);
    assert_eq!(service.send(spelled).await.says(), says(200, "replayed"));
    for other in [
        asks("PATCH", "/charges?a=1", json, r#"{"a":1,"b":2}"#),
        asks("POST", "/refunds?a=1", json, r#"{"a":1,"b":2}"#),
        asks("POST", "/charges?a=2", json, r#"{"a":1,"b":2}"#),
        asks("POST", "/charges?a=1", "text/plain", r#"{"a":1,"b":2}"#),
        asks("POST", "/charges?a=1", json, r#"{"a":1,"b":3}"#),
        asks("POST", "/charges?a=1", json, ""),
    ] {
        let asked = format!("{} {}", other.method(), other.uri());
        assert_eq!(service.send(other).await.status, 422, "{asked}");
    }
    assert_eq!(service.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn two_scopes_use_one_key_and_never_see_each_other() {
    let service = Service::new(Policy::required(), |run: Run| async move {
        format!("secret of {}", run.header("authorization").unwrap_or_default())
    });
    let by = |credential: &str| {
        let request = Request::post("/charges").header("authorization", credential);
        request.header("idempotency-key", KEY).body(Body::empty()).expect("a request")
    };
    for outcome in ["executed", "replayed"] {
        for credential in [ACME, EVIL] {
            let answer = service.send(by(credential)).await;
            assert_eq!(answer.says(), says(200, outcome));
            assert_eq!(answer.text(), format!("secret of {credential}"));
        }
    }
    // A payload of its own is not even compared with the other scope's.
    let (parts, _) = by("Bearer third-party-credential").into_parts();
    let other = Request::from_parts(parts, Body::from("something else"));
    assert_eq!(service.send(other).await.says(), says(200, "executed"));
}

#[tokio::test(start_paused = true)]
async fn an_expired_key_is_410_while_its_tombstone_lives_and_then_new() {
    let service = first_answers(200, Policy::required());
    let first = service.charge(KEY).await;
    assert_eq!(first.header("idempotency-expires"), "Mon, 10 Sep 2001 01:46:40 GMT");
    service.clock.advance(24 * HOUR - seconds(1));
    let replayed = service.charge(KEY).await;
    assert_eq!(replayed.says(), says(200, "replayed"));
    assert_eq!(replayed.header("idempotency-expires"), first.header("idempotency-expires"));
    service.clock.advance(seconds(1));
    let expired = service.charge(KEY).await;
    assert_eq!((expired.says(), expired.outcome()), (says(410, "key_expired"), "expired"));
    service.clock.advance(30 * 24 * HOUR);
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
    assert_eq!(service.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_expired_key_runs_as_the_next_generation_where_the_policy_says_so() {
    let service = first_answers(200, Policy::required().expired_runs_again(true));
    let first = service.charge(KEY).await;
    assert_eq!((first.text(), first.header("idempotency-generation")), ("run 1", ""));
    service.clock.advance(25 * HOUR);
    let second = service.charge(KEY).await;
    assert_eq!((second.says(), second.text()), (says(200, "executed"), "run 2"));
    assert_eq!(second.header("idempotency-generation"), "2");
    let replayed = service.charge(KEY).await;
    assert_eq!((replayed.says(), replayed.text()), (says(200, "replayed"), "run 2"));
    assert_eq!(replayed.header("idempotency-generation"), "2");
    assert_eq!(service.runs(), 2);
}

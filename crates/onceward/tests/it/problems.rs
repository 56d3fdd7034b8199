//! Every rejection is a problem document that says what happened and what to do.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    time::Duration,
};

use axum::{body::Body, response::IntoResponse as _};
use http::{Request, StatusCode};
use onceward::{
    Policy, Profile, Rejection, Settings,
    rejection::Code,
    testing::{Fault, StoreCall},
};
use tower::ServiceExt as _;

use crate::service::{ACME, Answer, FOR_EVER, Faults, Run, Service, charge, keyed, pass};

const KEY: &str = "order-0000000000000001";

/// One rejection of each kind that the layer can give by itself, under the name of its case.
async fn rejections(settings: Settings, profile: Profile) -> HashMap<&'static str, Answer> {
    let faults = Faults::default();
    let policy = Policy::of_profile(profile)
        .presence(onceward::policy::Presence::Required)
        .expired_runs_again(false)
        .reply_bytes_max(10);
    let service = Service::with_settings(
        |memory| faults.on(memory),
        policy.request_bytes_max(100),
        settings,
        |run: Run| async move {
            match run.parts.uri.path() {
                "/slow" => std::future::pending().await,
                "/lost" => StatusCode::BAD_GATEWAY.into_response(),
                "/large" => "more than ten bytes".into_response(),
                _ => "charged".into_response(),
            }
        },
    );
    let to =
        |path: &str, key: &str| keyed(key).uri(path).body(Body::from("{}")).expect("a request");
    let by = |credential: &str| {
        let request = Request::post("/charges").header("authorization", credential);
        request.body(Body::empty()).expect("a request")
    };
    let mut found = HashMap::new();
    found.insert("key missing", service.send(by(ACME)).await);
    found.insert("key invalid", service.send(to("/", "short")).await);
    found.insert("scope unstable", service.send(by("Bearer eyJ9.e30.eA")).await);
    found.insert("scope missing", service.send(by(" ")).await);
    let large = keyed(KEY).body(Body::from("x".repeat(101))).expect("a request");
    found.insert("body too large", service.send(large).await);
    service.charge(KEY).await;
    found.insert("mismatch", service.send(to("/", KEY)).await);
    service.send(to("/large", "order-that-is-large")).await;
    found.insert("not stored", service.send(to("/large", "order-that-is-large")).await);
    found.insert("first unknown", service.send(to("/lost", "order-that-is-lost")).await);
    found.insert("unknown", service.send(to("/lost", "order-that-is-lost")).await);
    let slow = service.spawn(to("/slow", "order-that-is-slow"));
    pass(Duration::from_secs(1)).await;
    found.insert("in progress", service.send(to("/slow", "order-that-is-slow")).await);
    slow.abort();
    service.clock.advance(Duration::from_secs(25 * 3600));
    found.insert("expired", service.charge(KEY).await);
    faults.fail(StoreCall::Reserve, Fault::Refused, FOR_EVER);
    found.insert("store", service.charge(KEY).await);
    faults.heal();
    service.engine.drain(Duration::ZERO).await;
    found.insert("draining", service.charge("order-0000000000000009").await);
    found
}

#[tokio::test(start_paused = true)]
async fn every_rejection_is_a_whole_problem_document() {
    for profile in Profile::ALL {
        let found = rejections(Settings::default(), profile).await;
        for (case, answer) in &found {
            let document = answer.json();
            let text = |member: &str| document[member].as_str().unwrap_or_default().to_owned();
            assert_eq!(answer.header("content-type"), "application/problem+json", "{case}");
            assert_eq!(answer.header("cache-control"), "no-store", "{case}");
            assert_eq!(document["status"], answer.status, "{case}");
            assert_eq!(text("type"), format!("urn:onceward:problem:{}", text("code")), "{case}");
            let known = Code::ALL.into_iter().find(|code| code.name() == text("code"));
            let code = known.unwrap_or_else(|| panic!("{case}: {document}"));
            assert_eq!(
                (text("title").as_str(), text("retry").as_str()),
                (code.title(), code.retry().name())
            );
            assert_eq!(answer.outcome(), code.outcome(), "{case}");
            assert!(text("detail").ends_with('.'), "{case}: {document}");
            assert!(!answer.text().contains(KEY) && !answer.text().contains("acme"), "{case}");
            assert_eq!(document["error"].is_object(), profile == Profile::Stripe, "{case}");
            let after = answer.header("retry-after");
            let told = document["retry_after"].as_u64().map(|after| after.to_string());
            assert_eq!(told.unwrap_or_default(), after, "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_case_has_its_status_its_code_and_its_advice() {
    let found = rejections(Settings::default(), Profile::Ietf).await;
    let expected = [
        ("key missing", 400, "idempotency_key_missing", "never", false),
        ("key invalid", 400, "idempotency_key_invalid", "never", false),
        ("scope unstable", 400, "idempotency_scope_unstable", "never", false),
        ("scope missing", 401, "idempotency_scope_missing", "never", false),
        ("body too large", 413, "idempotency_body_too_large", "never", false),
        ("mismatch", 422, "idempotency_key_reused_with_different_payload", "new_key", false),
        ("not stored", 410, "idempotency_reply_not_stored", "never", false),
        ("first unknown", 502, "idempotency_outcome_unknown", "same_key", true),
        ("unknown", 409, "idempotency_outcome_unknown", "same_key", true),
        ("in progress", 409, "idempotency_key_in_progress", "same_key", true),
        ("expired", 410, "idempotency_key_expired", "never", false),
        ("store", 503, "idempotency_store_unavailable", "same_key", true),
        ("draining", 503, "idempotency_store_unavailable", "same_key", true),
    ];
    assert_eq!(found.len(), expected.len());
    for (case, status, code, retry, come_back) in expected {
        let answer = &found[case];
        let document = answer.json();
        assert_eq!((answer.status, &document["code"]), (status, &code.into()), "{case}");
        assert_eq!(document["retry"], retry, "{case}");
        assert_eq!(!answer.header("retry-after").is_empty(), come_back, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn documents_point_to_the_configured_pages() {
    let base = "https://docs.example/errors/";
    let settings = Settings { problem_base: Some(base.into()), ..Settings::default() };
    for (case, answer) in rejections(settings, Profile::Ietf).await {
        let document = answer.json();
        let page = format!("{base}{}", document["code"].as_str().expect("a code"));
        assert_eq!(document["type"], page, "{case}");
        assert!(answer.header("link").starts_with(&format!("<{page}>; rel=\"describedby\"")));
    }
}

#[tokio::test]
async fn a_rejection_is_found_in_the_extensions_and_a_reply_has_none() {
    let service = Service::new(Policy::required(), |_| async { "charged" });
    let unkeyed = Request::post("/").header("authorization", ACME).body(Body::empty());
    let rejected = service.app.clone().oneshot(unkeyed.expect("ok")).await.expect("infallible");
    let rejection = rejected.extensions().get::<Rejection>().expect("for outer layers");
    assert_eq!((rejection.code(), rejection.status()), (Code::KeyMissing, StatusCode::BAD_REQUEST));
    let replied = service.app.clone().oneshot(charge(KEY)).await.expect("infallible");
    assert!(replied.extensions().get::<Rejection>().is_none());
}

#[tokio::test(start_paused = true)]
async fn our_own_answers_are_never_stored_under_the_key() {
    let service = Service::new(Policy::required().request_bytes_max(20), |_| async { "charged" });
    let large = keyed(KEY).body(Body::from("x".repeat(21))).expect("a request");
    assert_eq!(service.send(large).await.status, 413);
    let nobody = Request::post("/charges").header("idempotency-key", KEY);
    assert_eq!(service.send(nobody.body(Body::empty()).expect("ok")).await.status, 401);
    assert_eq!(service.record(KEY).await, None);
    assert_eq!(service.charge(KEY).await.outcome(), "executed");
    let before = service.record(KEY).await;
    let mismatch = keyed(KEY).body(Body::from("{}")).expect("a request");
    assert_eq!(service.send(mismatch).await.status, 422);
    assert_eq!(service.record(KEY).await, before);
    service.clock.advance(Duration::from_secs(25 * 3600));
    let before = service.record(KEY).await;
    assert_eq!(service.charge(KEY).await.status, 410);
    assert_eq!(service.record(KEY).await, before);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_and_a_store_that_is_down_leave_the_record_as_it_was() {
    let faults = Faults::default();
    let service = Service::on(
        |memory| faults.on(memory),
        Policy::required(),
        |_| std::future::pending::<String>(),
    );
    let _at_work = service.spawn_charge(KEY);
    pass(Duration::from_secs(1)).await;
    let before = service.record(KEY).await;
    assert_eq!(service.charge(KEY).await.status, 409);
    assert_eq!(service.record(KEY).await, before);
    faults.fail(StoreCall::Reserve, Fault::Refused, FOR_EVER);
    assert_eq!(service.charge(KEY).await.status, 503);
    assert_eq!((service.record(KEY).await, service.runs()), (before, 1));
}

#[test]
fn no_two_codes_have_the_same_name_or_title() {
    let names: HashSet<_> = Code::ALL.map(Code::name).into();
    let titles: HashSet<_> = Code::ALL.map(Code::title).into();
    assert_eq!((names.len(), titles.len()), (Code::ALL.len(), Code::ALL.len()));
}

/// What each page answers.
const QUESTIONS: [&str; 5] = [
    "## What happened",
    "## Was anything executed?",
    "## Is repeating safe?",
    "## What a client should do",
    "## What an operator should do",
];

#[test]
fn each_code_has_a_page_and_a_row_in_the_list_of_pages() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    let list = std::fs::read_to_string(pages.join("README.md")).expect("the list of pages");
    for code in Code::ALL {
        let name = code.name();
        let page = std::fs::read_to_string(pages.join(format!("{name}.md")));
        let page = page.unwrap_or_else(|error| panic!("{name}: {error}"));
        let (status, retry) = (code.status(), code.retry().name());
        let says_the_same = |row: &str, before: &str| {
            row.starts_with(&format!("{before}| {} ", status.as_str()))
                && row.contains(&format!("| `{retry}` |"))
        };
        assert!(page.starts_with(&format!("# {name}\n")), "{name}");
        let row = page.lines().find(|row| says_the_same(row, ""));
        let row = row.unwrap_or_else(|| panic!("{name} says something else"));
        let entry = format!("| [`{name}`]({name}.md) ");
        assert!(
            list.lines().any(|listed| listed.strip_prefix(&*entry) == Some(row)),
            "{name} in the list"
        );
        let headings: Vec<&str> = page.lines().filter(|line| line.starts_with("## ")).collect();
        assert_eq!(headings, QUESTIONS, "{name}");
        let is_safe = page.split("## Is repeating safe?\n\n").nth(1).unwrap_or_default();
        let word = is_safe.split([' ', ',', '.', ':']).next().unwrap_or_default();
        assert!(matches!(word, "Yes" | "No"), "{name}: {is_safe}");
    }
}

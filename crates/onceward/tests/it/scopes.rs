//! The border between callers: what one of them did is nothing to another.

use axum::body::Body;
use http::Request;
use onceward::{Policy, Scope, ScopeRule, Settings};

use crate::service::{ACME, EVIL, Run, Service, says};

const KEY: &str = "order-0000000000000001";

fn by(credential: Option<&str>, path: &str, body: &'static str) -> Request<Body> {
    let request = Request::post(path).header("idempotency-key", KEY);
    let request = match credential {
        Some(credential) => request.header("authorization", credential),
        None => request,
    };
    request.body(Body::from(body)).expect("a request")
}

#[tokio::test]
async fn a_known_key_tells_nothing_to_a_caller_of_another_scope_or_of_none() {
    let service = Service::new(Policy::required(), |run: Run| async move {
        let secret = run.header("authorization").unwrap_or_default().to_owned();
        ([("x-canary", secret.clone())], secret)
    });
    let ask = |credential| service.send(by(credential, "/charges", "{}"));
    assert_eq!(ask(Some(ACME)).await.says(), says(200, "executed"));
    let nobody = ask(None).await;
    assert_eq!(nobody.says(), says(401, "scope_missing"));
    let foreign = ask(Some(EVIL)).await;
    assert_eq!(foreign.says(), says(200, "executed"), "as if nobody had used the key before");
    for answer in [nobody, foreign] {
        assert!(!format!("{:?}{}", answer.headers, answer.text()).contains("acme"), "{answer:?}");
    }
    let own = ask(Some(ACME)).await;
    assert_eq!((own.says(), own.text()), (says(200, "replayed"), ACME));
    assert_eq!(own.header("x-canary"), ACME);
    assert_eq!(service.runs(), 2);
}

#[tokio::test]
async fn a_tenant_that_the_request_names_itself_is_not_its_scope() {
    let service =
        Service::new(Policy::required(), |run: Run| async move { format!("run {}", run.number) });
    let named = |credential| by(credential, "/charges?tenant=evil", r#"{"tenant":"evil"}"#);
    assert_eq!(service.send(named(Some(ACME))).await.text(), "run 1");
    assert_eq!(service.send(named(Some(EVIL))).await.text(), "run 2");
    assert_eq!(service.send(named(Some(ACME))).await.text(), "run 1");
    assert_eq!(service.send(named(None)).await.says(), says(401, "scope_missing"));
    assert_eq!(service.runs(), 2);
}

#[tokio::test]
async fn a_rule_of_ones_own_may_make_the_route_part_of_the_scope() {
    let with_route = ScopeRule::custom("account and route", |parts| {
        let account = ScopeRule::authorization().read(parts)?;
        Scope::new(format!("{} {}", account.as_str(), parts.uri.path()))
    });
    for (scope, elsewhere) in
        [(with_route, says(200, "executed")), (ScopeRule::authorization(), says(422, MISMATCH))]
    {
        let settings = Settings { scope, ..Settings::default() };
        let service =
            Service::with_settings(|memory| memory, Policy::required(), settings, |_| async { "" });
        let ask = |path: &'static str| service.send(by(Some(ACME), path, "{}"));
        assert_eq!(ask("/charges").await.says(), says(200, "executed"));
        assert_eq!(ask("/refunds").await.says(), elsewhere);
        assert_eq!(ask("/charges").await.says(), says(200, "replayed"));
    }
}

const MISMATCH: &str = "key_reused_with_different_payload";

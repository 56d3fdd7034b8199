use axum::body::Body;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use sqlx::Sqlite;
use tower::ServiceExt as _;

use super::*;

/// Every path there is, and a few that there are not.
const PATHS: [&str; 7] = [
    "/payments",
    "/payments/1/capture",
    "/payments/1/refund",
    "/payments/1/notes",
    "/customers",
    "/payments/",
    "/some/path/of/tomorrow",
];

async fn service(dir: &tempfile::TempDir) -> Router {
    let opened = crate::tables::open_file(&dir.path().join("payments.db")).await.expect("opened");
    let bank = Bank::new("http://127.0.0.1:1", false).expect("a client");
    let app = App::<Sqlite> { pool: opened.pool, bank };
    let policies = policies(Duration::from_secs(1)).expect("policies");
    protected(handlers(app), Idempotency::new(opened.store, policies))
}

async fn send(
    service: &Router,
    method: Method,
    path: &str,
    key: Option<&str>,
) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path).header("authorization", "Bearer me");
    let request = match key {
        Some(key) => request.header("idempotency-key", key),
        None => request,
    };
    let request = request.body(Body::empty()).expect("a request");
    let response = service.clone().oneshot(request).await.expect("infallible");
    let status = response.status();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn whatever_changes_something_needs_a_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = service(&dir).await;
    for path in PATHS {
        for method in [Method::POST, Method::PATCH] {
            let (status, body) = send(&service, method, path, None).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{path}");
            assert!(body.contains("idempotency_key_missing"), "{path}: {body}");
        }
    }
}

#[tokio::test]
async fn with_a_key_a_request_arrives_and_reading_needs_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = service(&dir).await;
    for (number, path) in PATHS.into_iter().enumerate() {
        let key = format!("a-key-of-its-own-{number}");
        let (_, body) = send(&service, Method::POST, path, Some(&key)).await;
        assert!(!body.contains("idempotency_"), "{path}: {body}");
    }
    let (status, _) = send(&service, Method::GET, "/payments/1", None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

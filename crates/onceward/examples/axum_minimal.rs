//! The smallest service that is safe to retry.
//!
//! `cargo run -p onceward --example axum_minimal` sends a charge twice and shows that it ran once;
//! with the argument `serve` it listens on 127.0.0.1:3000 instead.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use axum::{Router, body::Body, http::Request, routing::post};
use http_body_util::BodyExt as _;
use onceward::{Idempotency, MemoryStore, Operation, Policy};
use tower::ServiceExt as _;

fn app(charges: Arc<AtomicU32>) -> Router {
    let store = Arc::new(MemoryStore::new());
    let charge = move |operation: Operation| async move {
        let number = charges.fetch_add(1, Ordering::SeqCst) + 1;
        format!("charge {number}, attempt {}\n", operation.attempt_number())
    };
    Router::new().route("/charges", post(charge)).layer(Idempotency::new(store, Policy::required()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let charges = Arc::new(AtomicU32::new(0));
    let app = app(Arc::clone(&charges));
    if std::env::args().nth(1).as_deref() == Some("serve") {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
        return Ok(axum::serve(listener, app).await?);
    }
    let mut bodies = Vec::new();
    for _ in 0..2 {
        let request = Request::post("/charges")
            .header("authorization", "Bearer sk_test_123")
            .header("idempotency-key", "7f9c2ba4-e88f-4f0b-8a1e-2c1d7c0f5b11")
            .body(Body::empty())?;
        let response = app.clone().oneshot(request).await?;
        println!("{} {:?}", response.status(), response.headers().get("idempotent-replayed"));
        bodies.push(response.into_body().collect().await?.to_bytes());
    }
    assert_eq!(bodies.first(), bodies.last(), "the retry got the same bytes");
    assert_eq!(charges.load(Ordering::SeqCst), 1, "and the charge ran once");
    Ok(())
}

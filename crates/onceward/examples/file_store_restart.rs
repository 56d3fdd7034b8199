//! A reply outlives the process: the same file, opened again, replays it.
//!
//! `cargo run -p onceward --features sqlite --example file_store_restart`

use std::{path::Path, sync::Arc};

use axum::{Router, body::Body, http::Request, response::Response, routing::post};
use http_body_util::BodyExt as _;
use onceward::{Idempotency, Policy, SqliteOptions, SqliteStore};
use tower::ServiceExt as _;

/// One life of the service: opens the file, answers one request, ends without closing anything.
async fn live_once(
    path: &Path,
    answer: &'static str,
) -> Result<Response, Box<dyn std::error::Error>> {
    let store = Arc::new(SqliteStore::open(SqliteOptions::new(path)).await?);
    let layer = Idempotency::new(store, Policy::required());
    // Another scope rule would make every key look new: the store remembers and tells.
    let identity = layer.engine().identity();
    let check = layer.engine().store().check_identity(&identity).await?;
    assert_eq!(check, onceward::store::IdentityCheck::Same);
    let app = Router::new().route("/orders", post(move || async move { answer })).layer(layer);
    let request = Request::post("/orders")
        .header("authorization", "Bearer sk_test_123")
        .header("idempotency-key", "7f9c2ba4-e88f-4f0b-8a1e-2c1d7c0f5b11")
        .body(Body::from("{\"item\":\"tea\"}"))?;
    Ok(app.oneshot(request).await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("onceward.db");
    let first = live_once(&path, "order 1 placed").await?;
    let second = live_once(&path, "order 2 placed").await?;
    assert_eq!(second.headers()["idempotent-replayed"], "true");
    let first = first.into_body().collect().await?.to_bytes();
    let second = second.into_body().collect().await?.to_bytes();
    assert_eq!(first, second, "the second process replays the reply of the first");
    println!("both lives answered: {}", String::from_utf8_lossy(&second));
    Ok(())
}

//! `axum-idempotent` with its key from the header, on its session store for PostgreSQL, put together as
//! its documentation does. Arguments: the URL of a database, and the size of the pool.

use std::{env, sync::Arc};

use axum::{
    Router, body::Bytes, http::header, response::IntoResponse as _, routing::post,
    serve::ListenerExt as _,
};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use ruts::{
    CookieOptions, SessionLayer,
    store::postgres::{PostgresStore, PostgresStoreBuilder},
};
use sqlx::postgres::PgPoolOptions;
use tokio::net::TcpListener;
use tower_cookies::CookieManagerLayer;

// What the load sends is there too.
#[allow(dead_code)]
#[path = "../../../src/postgres/payment.rs"]
mod payment;
#[path = "../serves.rs"]
mod serves;

type Failed = Box<dyn std::error::Error>;

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Failed> {
    let mut arguments = env::args().skip(1);
    let url = arguments.next().ok_or("no URL")?;
    let pool = arguments.next().ok_or("no size of pool")?.parse()?;
    let pool = PgPoolOptions::new().max_connections(pool).connect(&url).await?;
    let store = PostgresStoreBuilder::new(pool).create_table(true).build().await?;
    let options = IdempotentOptions::default()
        .use_idempotency_key_header(Some("Idempotency-Key"), true)
        .expire_after(24 * 60 * 60);
    let pay = |body: Bytes| async move {
        let (status, body) = payment::pay(&body);
        (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
    };
    let app = Router::new()
        .route("/payments", post(pay))
        .layer(IdempotentLayer::<PostgresStore>::new(options))
        .layer(
            SessionLayer::new(Arc::new(store))
                .with_cookie_options(CookieOptions::build().name("session")),
        )
        .layer(CookieManagerLayer::new());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    serves::say(listener.local_addr()?);
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    Ok(axum::serve(listener, app).await?)
}

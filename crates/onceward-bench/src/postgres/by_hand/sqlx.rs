//! By hand with sqlx, in two ways.
//!
//! The usual one: a pool with its defaults, and every statement is given the pool. sqlx then tests
//! a connection each time it is taken and each time it is returned, a round trip each.
//!
//! The tuned one: the first test is switched off, and a request keeps its connection from the
//! reserve to the complete, so that the second comes once. With slow handlers one would not do that.

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
    routing::post,
};
use sqlx::{
    ConnectOptions as _, PgExecutor, PgPool, Row as _,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::{super::payment, Asked, COMPLETE, Found, LOOK_UP, RESERVE, TABLE, answer};

#[derive(Clone)]
struct Service {
    pool: PgPool,
    tuned: bool,
}

pub(crate) async fn service(url: &str, pool: u32, tuned: bool) -> anyhow::Result<Router> {
    let options: PgConnectOptions = url.parse()?;
    let pool = PgPoolOptions::new()
        .min_connections(pool)
        .max_connections(pool)
        .test_before_acquire(!tuned)
        .connect_with(options.disable_statement_logging())
        .await?;
    sqlx::query(TABLE).execute(&pool).await?;
    Ok(Router::new().route("/payments", post(handle)).with_state(Service { pool, tuned }))
}

async fn handle(
    State(service): State<Service>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, StatusCode> {
    let asked = Asked::read(&headers, &body)?;
    let response = match service.tuned {
        true => once_tuned(&service.pool, &asked, &body).await,
        false => once(&service.pool, &asked, &body).await,
    };
    response.map_err(|error| {
        eprintln!("sqlx: {error}");
        StatusCode::SERVICE_UNAVAILABLE
    })
}

async fn once(pool: &PgPool, asked: &Asked, body: &[u8]) -> sqlx::Result<Response> {
    if !reserve(pool, asked).await? {
        return look_up(pool, asked).await;
    }
    let (status, body) = payment::pay(body);
    complete(pool, asked, status, &body).await?;
    Ok(answer(status, body))
}

async fn once_tuned(pool: &PgPool, asked: &Asked, body: &[u8]) -> sqlx::Result<Response> {
    let mut connection = pool.acquire().await?;
    if !reserve(&mut *connection, asked).await? {
        return look_up(&mut *connection, asked).await;
    }
    let (status, body) = payment::pay(body);
    complete(&mut *connection, asked, status, &body).await?;
    Ok(answer(status, body))
}

async fn reserve(executor: impl PgExecutor<'_>, asked: &Asked) -> sqlx::Result<bool> {
    let reserve = sqlx::query(RESERVE).bind(&asked.scope[..]).bind(&asked.key);
    let done = reserve.bind(&asked.fingerprint[..]).execute(executor).await?;
    Ok(done.rows_affected() == 1)
}

async fn complete(
    executor: impl PgExecutor<'_>,
    asked: &Asked,
    status: StatusCode,
    body: &[u8],
) -> sqlx::Result<()> {
    let complete = sqlx::query(COMPLETE).bind(&asked.scope[..]).bind(&asked.key);
    complete.bind(status.as_u16().cast_signed()).bind(body).execute(executor).await?;
    Ok(())
}

async fn look_up(executor: impl PgExecutor<'_>, asked: &Asked) -> sqlx::Result<Response> {
    let look_up = sqlx::query(LOOK_UP).bind(&asked.scope[..]).bind(&asked.key);
    let Some(row) = look_up.fetch_optional(executor).await? else {
        return Ok(StatusCode::CONFLICT.into_response());
    };
    let found =
        Found { fingerprint: row.try_get(0)?, status: row.try_get(1)?, body: row.try_get(2)? };
    Ok(found.answer(asked))
}

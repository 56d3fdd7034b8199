//! By hand with sqlx's pool.
//!
//! sqlx tests a connection when it is returned to the pool, and by default again when it is taken:
//! a round trip each. The second is switched off, and a request keeps its connection from the
//! reserve to the complete, so that the first comes once.

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
    routing::post,
};
use sqlx::{
    ConnectOptions as _, PgConnection, PgPool, Row as _,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::{super::payment, Asked, COMPLETE, Found, LOOK_UP, RESERVE, TABLE, answer};

pub(crate) async fn service(url: &str, pool: u32) -> anyhow::Result<Router> {
    let options: PgConnectOptions = url.parse()?;
    let pool = PgPoolOptions::new()
        .min_connections(pool)
        .max_connections(pool)
        .test_before_acquire(false)
        .connect_with(options.disable_statement_logging())
        .await?;
    sqlx::query(TABLE).execute(&pool).await?;
    Ok(Router::new().route("/payments", post(handle)).with_state(pool))
}

async fn handle(
    State(pool): State<PgPool>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, StatusCode> {
    let asked = Asked::read(&headers, &body)?;
    match once(&pool, &asked, &body).await {
        Ok(response) => Ok(response),
        Err(error) => {
            eprintln!("sqlx: {error}");
            Err(StatusCode::SERVICE_UNAVAILABLE)
        }
    }
}

async fn once(pool: &PgPool, asked: &Asked, body: &[u8]) -> sqlx::Result<Response> {
    let mut connection = pool.acquire().await?;
    let reserve = sqlx::query(RESERVE).bind(&asked.scope[..]).bind(&asked.key);
    let reserve = reserve.bind(&asked.fingerprint[..]);
    if reserve.execute(&mut *connection).await?.rows_affected() == 0 {
        return look_up(&mut connection, asked).await;
    }
    let (status, body) = payment::pay(body);
    let complete = sqlx::query(COMPLETE).bind(&asked.scope[..]).bind(&asked.key);
    let complete = complete.bind(status.as_u16().cast_signed()).bind(&body[..]);
    complete.execute(&mut *connection).await?;
    Ok(answer(status, body))
}

async fn look_up(connection: &mut PgConnection, asked: &Asked) -> sqlx::Result<Response> {
    let look_up = sqlx::query(LOOK_UP).bind(&asked.scope[..]).bind(&asked.key);
    let Some(row) = look_up.fetch_optional(connection).await? else {
        return Ok(StatusCode::CONFLICT.into_response());
    };
    let found =
        Found { fingerprint: row.try_get(0)?, status: row.try_get(1)?, body: row.try_get(2)? };
    Ok(found.answer(asked))
}

//! By hand with tokio-postgres, pooled by deadpool.

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
    routing::post,
};
use deadpool_postgres::{
    Client, Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, tokio_postgres::NoTls,
};

use super::{super::payment, Asked, COMPLETE, Found, LOOK_UP, RESERVE, TABLE, answer};

pub(crate) async fn service(url: &str, pool: usize) -> anyhow::Result<Router> {
    // Fast: a connection is not tested by a round trip when it is taken.
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(url.parse()?, NoTls, recycling);
    let pool = Pool::builder(manager).max_size(pool).build()?;
    pool.get().await?.batch_execute(TABLE).await?;
    Ok(Router::new().route("/payments", post(handle)).with_state(pool))
}

async fn handle(
    State(pool): State<Pool>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, StatusCode> {
    let asked = Asked::read(&headers, &body)?;
    match once(&pool, &asked, &body).await {
        Ok(response) => Ok(response),
        Err(error) => {
            eprintln!("tokio-postgres: {error}");
            Err(StatusCode::SERVICE_UNAVAILABLE)
        }
    }
}

async fn once(pool: &Pool, asked: &Asked, body: &[u8]) -> Result<Response, PoolError> {
    let client = pool.get().await?;
    let reserve = client.prepare_cached(RESERVE).await?;
    let (scope, fingerprint) = (&asked.scope[..], &asked.fingerprint[..]);
    if client.execute(&reserve, &[&scope, &asked.key, &fingerprint]).await? == 0 {
        return look_up(&client, asked).await;
    }
    let (status, body) = payment::pay(body);
    let complete = client.prepare_cached(COMPLETE).await?;
    let code = status.as_u16().cast_signed();
    client.execute(&complete, &[&scope, &asked.key, &code, &&body[..]]).await?;
    Ok(answer(status, body))
}

async fn look_up(client: &Client, asked: &Asked) -> Result<Response, PoolError> {
    let look_up = client.prepare_cached(LOOK_UP).await?;
    let scope = &asked.scope[..];
    let Some(row) = client.query_opt(&look_up, &[&scope, &asked.key]).await? else {
        return Ok(StatusCode::CONFLICT.into_response());
    };
    let found =
        Found { fingerprint: row.try_get(0)?, status: row.try_get(1)?, body: row.try_get(2)? };
    Ok(found.answer(asked))
}

//! The raw limits: what the engine of a store is asked for at least, so that a key is taken once and
//! its reply is kept. Batches are as large as the requests under way allow, no other process is in the
//! way, and there is no HTTP. They do less than a store: no lease, no fence, no expiry, no audit, and no
//! index but the one of the keys.

use super::drive::{Form, Work};

mod dynamodb;
mod file;
mod memory;
mod mysql;
mod postgres;
mod redis;

/// What all of them store beside the key.
pub(super) const BODY: &[u8] = &[b'x'; 200];
const SCOPE: &[u8] = &[3; 32];
const FINGERPRINT: &[u8] = &[7; 32];
const STATUS: i16 = 201;

/// Connections, in a place that is made ready first. Each does `each` requests at a time.
pub(super) async fn workers(
    form: Form,
    url: &str,
    links: usize,
    each: usize,
) -> anyhow::Result<Vec<Box<dyn Work>>> {
    let scheme = url.split_once(':').map_or(url, |(scheme, _)| scheme);
    match (form, scheme) {
        (Form::Append, _) => file::append(url),
        (_, "memory") => Ok(memory::workers(links)),
        (_, "file") => file::sqlite(url, each).await,
        (_, "postgres") => postgres::workers(url, links).await,
        (_, "mysql") => mysql::workers(url, links, each).await,
        (_, "redis" | "redis+cluster") => redis::workers(url, links).await,
        (_, "dynamodb") => dynamodb::workers(url, links).await,
        (_, other) => anyhow::bail!("no raw limit for {other}"),
    }
}

//! Many records in a short time: copies of one, made in SQL.

use futures_util::future::try_join;
use tokio_postgres::Client;

use super::database::connect;

/// How many rows one statement makes.
const CHUNK: i64 = 1_000_000;

/// Makes copies of the one record that is there. Returns about so many of their keys, from all over the
/// table.
pub(crate) async fn fill(url: &str, size: u64, keys: u64) -> anyhow::Result<Vec<String>> {
    let client = connect(url).await?;
    let size = i64::try_from(size)?;
    // Sorting all keys at the end is much faster than to put each in its place.
    let indexes = take_indexes(&client).await?;
    let others = connect(url).await?;
    let ids = Ids::take(&client, size).await?;
    try_join(records(&client, &ids), replies(&others, &ids)).await?;
    client.batch_execute("SET maintenance_work_mem = '1GB'").await?;
    for index in indexes {
        client.batch_execute(&index).await?;
    }
    let step = (size / i64::try_from(keys.max(1))?).max(1);
    let some = "SELECT md5(n::text) FROM generate_series(1::bigint, $1, $2) AS n";
    let rows = client.query(some, &[&size, &step]).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

/// The record that is copied, and the ids of its copies: `after + 1` and on.
struct Ids {
    first: i64,
    after: i64,
    size: i64,
}

impl Ids {
    /// From the sequence: a session that is open keeps some for itself.
    async fn take(client: &Client, size: i64) -> anyhow::Result<Self> {
        let first = "SELECT min(record_id) FROM onceward.records";
        let take = "SELECT setval(ids, pg_sequence_last_value(ids) + $1) \
            FROM pg_get_serial_sequence('onceward.records', 'record_id') AS named, \
            LATERAL (SELECT named::regclass AS ids) AS sequence";
        let last: i64 = client.query_one(take, &[&size]).await?.try_get(0)?;
        Ok(Ids { first: client.query_one(first, &[]).await?.try_get(0)?, after: last - size, size })
    }
}

/// Keys are as random as those of clients. The first is found at once, without an index: it is in front.
async fn records(client: &Client, ids: &Ids) -> anyhow::Result<()> {
    let same = "SELECT string_agg(quote_ident(column_name), ', ') \
        FROM information_schema.columns WHERE table_schema = 'onceward' \
        AND table_name = 'records' \
        AND column_name NOT IN ('record_id', 'key', 'created_at', 'reap_at')";
    let same: String = client.query_one(same, &[]).await?.try_get(0)?;
    let copy = format!(
        "INSERT INTO onceward.records (record_id, key, created_at, reap_at, {same}) \
         OVERRIDING SYSTEM VALUE \
         SELECT $2 + n, md5(n::text), created_at + n, reap_at + n, {same} \
         FROM (SELECT * FROM onceward.records WHERE record_id = $1 LIMIT 1) AS first, \
         generate_series($3::bigint, $4) AS n"
    );
    copies(client, &copy, ids, "records").await
}

async fn replies(client: &Client, ids: &Ids) -> anyhow::Result<()> {
    let copy = "INSERT INTO onceward.replies (record_id, headers, schema_version, body) \
        SELECT $2 + n, headers, schema_version, body \
        FROM (SELECT * FROM onceward.replies WHERE record_id = $1 LIMIT 1) AS first, \
        generate_series($3::bigint, $4) AS n";
    copies(client, copy, ids, "replies").await
}

async fn copies(client: &Client, copy: &str, ids: &Ids, what: &str) -> anyhow::Result<()> {
    let Ids { first, after, size } = *ids;
    let mut made = 0;
    while made < size {
        let until = size.min(made + CHUNK);
        client.execute(copy, &[&first, &after, &(made + 1), &until]).await?;
        made = until;
        eprintln!("{made} of {size} {what}");
    }
    Ok(())
}

/// Drops all indexes of the two tables. Returns the statements that make them again.
async fn take_indexes(client: &Client) -> anyhow::Result<Vec<String>> {
    // Some belong to a constraint, which makes them.
    let all = "SELECT \
        CASE WHEN of.oid IS NULL THEN format('DROP INDEX %s', i.indexrelid::regclass) \
            ELSE format('ALTER TABLE %s DROP CONSTRAINT %I', i.indrelid::regclass, conname) END, \
        CASE WHEN of.oid IS NULL THEN pg_get_indexdef(i.indexrelid) \
            ELSE format('ALTER TABLE %s ADD CONSTRAINT %I %s', i.indrelid::regclass, conname, \
                pg_get_constraintdef(of.oid)) END \
        FROM pg_index AS i LEFT JOIN pg_constraint AS of \
            ON of.conindid = i.indexrelid AND of.contype IN ('p', 'u') \
        WHERE i.indrelid IN ('onceward.records'::regclass, 'onceward.replies'::regclass) \
        ORDER BY i.indexrelid";
    let mut make = Vec::new();
    for row in client.query(all, &[]).await? {
        client.batch_execute(row.try_get(0)?).await?;
        make.push(row.try_get(1)?);
    }
    Ok(make)
}

#[cfg(test)]
mod tests {
    use onceward_testbed::Postgres;

    use super::*;
    use crate::{
        file::{DAY, ask, request_kept},
        stores::open,
    };

    async fn indexes(client: &Client) -> Vec<String> {
        let all = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'onceward' ORDER BY indexdef";
        let rows = client.query(all, &[]).await.expect("its indexes");
        rows.iter().map(|row| row.get(0)).collect()
    }

    #[tokio::test]
    async fn copies_are_found_and_the_store_goes_on() {
        let server = Postgres::start();
        let url = server.url("postgres");
        let store = open(&url).await.expect("opened");
        request_kept(&*store, DAY, DAY).await.expect("one that is real");
        let client = connect(&url).await.expect("connected");
        let before = indexes(&client).await;
        let keys = fill(&url, 1000, 10).await.expect("filled");
        assert_eq!(keys.len(), 10);
        assert_eq!(indexes(&client).await, before, "all that were taken are there again");
        for key in &keys {
            let reserved = store.reserve(ask(key, DAY, DAY).expect("asked")).await;
            let reserved = reserved.expect("an answer");
            assert!(reserved.completed().is_some(), "{key} is not completed: {reserved:?}");
        }
        // Their ids are not those of the copies.
        for _ in 0..100 {
            request_kept(&*store, DAY, DAY).await.expect("a new one");
        }
    }
}

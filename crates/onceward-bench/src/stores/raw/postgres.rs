//! Batched SQL over tokio-postgres, on the table of those who write it by hand.

use anyhow::ensure;
use futures_util::future::BoxFuture;
use tokio_postgres::{Client, Statement, types::ToSql};

use super::{BODY, FINGERPRINT, SCOPE, STATUS};
use crate::{
    postgres::{TABLE, connect},
    stores::drive::Work,
};

const RESERVE: &str = "INSERT INTO idempotency_keys (scope, key, fingerprint) \
    SELECT $1, key, fingerprint FROM unnest($2::text[], $3::bytea[]) AS asked (key, fingerprint) \
    ON CONFLICT DO NOTHING";

/// A table that looks empty when the statement is planned would be scanned, and each of its rows compared
/// with each of the batch. What is lateral, and not flattened because of `OFFSET`, must be looked up.
const COMPLETE: &str = "UPDATE idempotency_keys AS kept SET state = 'completed', status = $2, \
    body = asked.body FROM unnest($3::text[], $4::bytea[]) AS asked (key, body), \
    LATERAL (SELECT ctid FROM idempotency_keys WHERE scope = $1 AND key = asked.key OFFSET 0) \
        AS found \
    WHERE kept.ctid = found.ctid AND kept.state = 'in_progress'";

const LOOK_UP: &str = "SELECT kept.fingerprint, kept.status, kept.body \
    FROM unnest($2::text[]) AS asked (key), \
    LATERAL (SELECT fingerprint, status, body FROM idempotency_keys \
        WHERE scope = $1 AND key = asked.key OFFSET 0) AS kept";

/// Or a table that was never analysed is scanned for each batch. To remember what was found takes time
/// too, and nothing is asked for twice; older servers do not know that setting.
const BY_INDEX: &str = "SET plan_cache_mode = force_generic_plan; \
    SELECT set_config(name, 'off', false) FROM pg_settings \
    WHERE name IN ('enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'enable_bitmapscan', \
        'enable_memoize')";

pub(super) async fn workers(url: &str, links: usize) -> anyhow::Result<Vec<Box<dyn Work>>> {
    let mut workers: Vec<Box<dyn Work>> = Vec::new();
    for _ in 0..links {
        let client = connect(url).await?;
        client.batch_execute(TABLE).await?;
        client.batch_execute(BY_INDEX).await?;
        workers.push(Box::new(Link {
            reserve: client.prepare(RESERVE).await?,
            complete: client.prepare(COMPLETE).await?,
            look_up: client.prepare(LOOK_UP).await?,
            client,
        }));
    }
    Ok(workers)
}

struct Link {
    client: Client,
    reserve: Statement,
    complete: Statement,
    look_up: Statement,
}

impl Work for Link {
    fn first<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(async move {
            let fingerprints = vec![FINGERPRINT; keys.len()];
            let asked: [&(dyn ToSql + Sync); 3] = [&SCOPE, &keys, &fingerprints];
            let taken = self.client.execute(&self.reserve, &asked).await?;
            let bodies = vec![BODY; keys.len()];
            let done: [&(dyn ToSql + Sync); 4] = [&SCOPE, &STATUS, &keys, &bodies];
            let completed = self.client.execute(&self.complete, &done).await?;
            let all = keys.len() as u64;
            ensure!((taken, completed) == (all, all), "{taken} and {completed} of {all} rows");
            Ok(())
        })
    }

    fn replay<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(async move {
            let rows = self.client.query(&self.look_up, &[&SCOPE, &keys]).await?;
            ensure!(rows.len() == keys.len(), "{} of {} rows", rows.len(), keys.len());
            for row in rows {
                ensure!(row.try_get::<_, &[u8]>(2)? == BODY, "another reply");
            }
            Ok(())
        })
    }

    fn settle(&mut self) -> BoxFuture<'_, anyhow::Result<()>> {
        Box::pin(async {
            self.client.batch_execute("VACUUM (ANALYZE)").await?;
            Ok(self.client.batch_execute("CHECKPOINT").await?)
        })
    }
}

#[cfg(test)]
mod tests {
    use onceward_testbed::Postgres;
    use tokio_postgres::SimpleQueryMessage;

    use super::*;

    #[tokio::test]
    async fn each_key_is_looked_up_though_the_table_was_planned_for_when_it_was_empty() {
        let server = Postgres::start();
        let client = connect(&server.url("postgres")).await.expect("connected");
        for before in [TABLE, "VACUUM (ANALYZE)", BY_INDEX] {
            client.batch_execute(before).await.expect("made ready");
        }
        for (statement, values) in [(COMPLETE, "'', 1::int2, '{a}', '{b}'"), (LOOK_UP, "'', '{a}'")]
        {
            let prepare = format!("PREPARE asked AS {statement}");
            client.batch_execute(&prepare).await.expect("prepared");
            let explain = format!("EXPLAIN EXECUTE asked ({values}); DEALLOCATE asked");
            let plan = client.simple_query(&explain).await.expect("planned");
            let lines = plan.iter().filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            });
            let plan = lines.collect::<Vec<_>>().join("\n");
            assert!(plan.contains("Index Cond: ((scope = $1) AND (key = asked.key))"), "{plan}");
            assert!(!plan.contains("Seq Scan"), "{plan}");
        }
    }
}

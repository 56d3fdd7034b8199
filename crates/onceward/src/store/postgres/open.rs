//! Connecting, and what is refused.

use std::{io, str::FromStr as _, sync::Arc};

use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, postgres::PgConnectOptions,
};
use tokio::time::timeout;

use super::{PgOptions, link::CONNECT_TIME_MAX, migrate};

/// Messages without their payloads.
const SHOWN: &str = "SELECT message_id, scope, key, generation, name, derived_key, sink, aggregate, \
    content_type, ''::bytea AS payload, state, attempts, ambiguous, next_at, lease_until, attempt, \
    fence, provider_id, last_error, created_at, done_at, \
    octet_length(payload)::bigint AS payload_bytes FROM onceward.outbox";
const SHOWN_WHERE: &str = "message_id > $1 AND ($2::text IS NULL OR sink = $2) \
    AND ($3::bigint IS NULL OR created_at <= (SELECT onceward.micros($6)) - $3) \
    ORDER BY message_id LIMIT $4";

/// The oldest server that is known to do: 13.
pub(super) const OLDEST_SERVER: u32 = 13_00_00;

/// Why a store cannot be had in a database. Nothing is changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PgConnectError {
    /// The address cannot be read.
    #[error("the store's URL cannot be read")]
    Url(#[source] sqlx::Error),
    /// The schema's name cannot be used.
    #[error(
        "`{0}` cannot be the name of a schema: letters, digits and `_`, at most 63, no digit first"
    )]
    Schema(String),
    /// The server is too old.
    #[error("the server is PostgreSQL {0}; 13 or later is needed")]
    Old(String),
    /// Statements of one function would not see what was committed between them.
    #[error(
        "new transactions are `{0}` here; let default_transaction_isolation be `read committed` for \
         the role or the database"
    )]
    Isolation(String),
    /// Written by a newer version, and not for this one.
    #[error(
        "schema {schema} has version {found}, which does not let in those who know no more than \
         {known}; use a newer onceward"
    )]
    Newer {
        /// The schema.
        schema: String,
        /// The version it has.
        found: u32,
        /// The newest version that is known here.
        known: u32,
    },
    /// The schema is not there, or older than this version, and must not be changed.
    #[error("schema {schema} has version {found} of {known}; run with migrations allowed once")]
    NotMigrated {
        /// The schema.
        schema: String,
        /// The version it has; 0 when it is not there.
        found: u32,
        /// The version that is needed.
        known: u32,
    },
    /// A migration would shut out older processes that may be at work.
    #[error(
        "the migration `{migration}` of schema {schema} shuts out older processes: stop them, and run \
         `onceward migrate up`"
    )]
    Breaking {
        /// The schema.
        schema: String,
        /// The migration.
        migration: &'static str,
    },
    /// Another build has made the schema: a migration had the same number there, and another text.
    #[error(
        "the migration `{migration}` of schema {schema} was applied in another text than this version has \
         for it, perhaps before the first release; nothing was changed; use the onceward that made the \
         schema, or a new schema"
    )]
    Changed {
        /// The schema.
        schema: String,
        /// The first such migration.
        migration: &'static str,
    },
    /// Between us and the server, statements that were prepared are forgotten, or taken for those of
    /// others.
    #[error(
        "a pool in transaction mode that does not keep prepared statements is in the way; PgBouncer \
         1.21 or later does, with max_prepared_statements, and so does a pool in session mode"
    )]
    ForgetfulPool,
    /// The server said no.
    #[error("the database cannot be used")]
    Server(#[from] sqlx::Error),
}

/// The statements of one schema.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) reserve: Arc<str>,
    pub(super) reserve_one: Arc<str>,
    pub(super) reserve_within: Arc<str>,
    pub(super) renew: Arc<str>,
    pub(super) complete_all: Arc<str>,
    pub(super) give_up: Arc<str>,
    pub(super) complete_one: Arc<str>,
    pub(super) complete_within: Arc<str>,
    pub(super) both: Arc<str>,
    pub(super) load: Arc<str>,
    pub(super) change: Arc<str>,
    pub(super) remember: Arc<str>,
    pub(super) step: Arc<str>,
    pub(super) step_within: Arc<str>,
    pub(super) steps: Arc<str>,
    pub(super) resumable: Arc<str>,
    pub(super) due_unknown: Arc<str>,
    pub(super) stage: Arc<str>,
    pub(super) stage_within: Arc<str>,
    pub(super) settled: Arc<str>,
    pub(super) claim_messages: Arc<str>,
    pub(super) give_up_message: Arc<str>,
    pub(super) settle_message: Arc<str>,
    pub(super) open_messages: Arc<str>,
    pub(super) done_messages: Arc<str>,
    pub(super) show_open_messages: Arc<str>,
    pub(super) show_messages: Arc<str>,
    pub(super) show_message: Arc<str>,
    pub(super) redrive: Arc<str>,
    pub(super) discard: Arc<str>,
    pub(super) purge_done: Arc<str>,
    pub(super) backlog: Arc<str>,
    pub(super) audit: Arc<str>,
    pub(super) list: Arc<str>,
    pub(super) moment: Arc<str>,
    pub(super) audit_log: Arc<str>,
    pub(super) stats: Arc<str>,
    pub(super) sweep: Arc<str>,
    pub(super) reap: Arc<str>,
    pub(super) purge_audit: Arc<str>,
    pub(super) ping: Arc<str>,
    pub(super) check_identity: Arc<str>,
    pub(super) accept_identity: Arc<str>,
    pub(super) scope_keys: Arc<str>,
    pub(super) drop_scope_keys: Arc<str>,
    pub(super) beat: Arc<str>,
    pub(super) acknowledge_regression: Arc<str>,
    pub(super) note_provider_id: Arc<str>,
    pub(super) by_provider_id: Arc<str>,
    pub(super) provider_ids: Arc<str>,
}

impl Statements {
    pub(super) fn of(schema: &str) -> Self {
        let named = |sql: &str| Arc::from(in_schema(sql, schema));
        let reserve_one = format!("onceward.reserve_one({})", parameters(1, 15));
        let complete_one = format!("onceward.complete_one({})", parameters(1, 10));
        let step = format!("onceward.step({})", parameters(1, 8));
        let stage = format!("onceward.stage_message({})", parameters(1, 11));
        Statements {
            reserve: named(&format!("SELECT * FROM onceward.reserve({})", parameters(1, 19))),
            reserve_one: named(&format!("SELECT * FROM {reserve_one}")),
            reserve_within: named(&format!(
                "SELECT r.*, d.durable, \
                 (SELECT value FROM onceward.meta WHERE name = 'name') AS store \
                 FROM (SELECT {DURABLE} AS durable OFFSET 0) d \
                 LEFT JOIN LATERAL (SELECT * FROM {reserve_one} WHERE d.durable OFFSET 0) r ON true"
            )),
            renew: named(
                "SELECT r.attempt FROM onceward.renew($1, $2, $3, $4, $5, $6) AS r (attempt)",
            ),
            complete_all: named(&format!(
                "SELECT onceward.complete_all({}) AS applied",
                parameters(1, 10)
            )),
            give_up: named(&format!("SELECT onceward.give_up({}) AS applied", parameters(1, 8))),
            complete_one: named(&format!("SELECT {complete_one} AS attempt")),
            complete_within: named(&if_durable(&complete_one, "attempt")),
            both: named(&format!(
                "SELECT r.*, w.applied \
                 FROM (SELECT onceward.complete_all({}) AS applied OFFSET 0) w \
                 LEFT JOIN onceward.reserve({}) r ON true",
                parameters(1, 10),
                parameters(11, 29)
            )),
            load: named("SELECT * FROM onceward.load($1, $2, $3)"),
            change: named(
                "SELECT onceward.change($1, $2, $3::jsonb, $4::jsonb, $5, $6, $7, $8::jsonb, $9, $10)",
            ),
            remember: named(
                "SELECT onceward.remember(\
                 jsonb_populate_record(NULL::onceward.audit_records, $1::jsonb), \
                 $1::jsonb ->> 'reply_schema', $2, $3)",
            ),
            step: named(&format!("SELECT {step}")),
            step_within: named(&if_durable(&step, "verdict")),
            steps: named(
                "SELECT s.name, s.result FROM onceward.steps s \
                 WHERE s.record_id = (SELECT r.record_id FROM onceward.records r \
                 WHERE r.scope = $1 AND r.key = $2 AND r.generation = $3) \
                 AND s.generation = $3 ORDER BY s.step_id",
            ),
            // The list of leases is short, and says when to look; the record says what is true.
            resumable: named(
                "SELECT r.*, q.request \
                 FROM onceward.resumable(onceward.micros($1), $2, $3, $4) AS d (record_id, position) \
                 CROSS JOIN LATERAL (SELECT * FROM onceward.records r \
                 WHERE r.record_id = d.record_id OFFSET 0) r \
                 LEFT JOIN LATERAL (SELECT * FROM onceward.requests q \
                 WHERE q.record_id = r.record_id OFFSET 0) q ON true \
                 ORDER BY d.position",
            ),
            due_unknown: named(
                "SELECT r.* \
                 FROM onceward.due_unknown(onceward.micros($1), $2, $3, $4) AS d (record_id, position) \
                 CROSS JOIN LATERAL (SELECT * FROM onceward.records r \
                 WHERE r.record_id = d.record_id AND r.state = 'unknown' OFFSET 0) r \
                 ORDER BY d.position",
            ),
            stage: named(&format!("SELECT {stage}")),
            stage_within: named(&if_durable(&stage, "verdict")),
            settled: named("SELECT * FROM onceward.settled($1, $2, $3)"),
            claim_messages: named("SELECT * FROM onceward.claim_messages($1, $2, $3, $4, $5)"),
            give_up_message: named(
                "UPDATE onceward.outbox SET state = 'dead', last_error = 'it cannot be read' \
                 WHERE message_id = $1 AND attempt = $2 AND state = 'delivering'",
            ),
            settle_message: named(
                "SELECT onceward.settle_message($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            ),
            // The condition is that of an index.
            open_messages: named(
                "SELECT * FROM onceward.outbox WHERE state = $1 AND state <> 'done' \
                 AND message_id > $2 ORDER BY message_id LIMIT $3",
            ),
            done_messages: named(
                "SELECT * FROM onceward.outbox WHERE state = $1 AND message_id > $2 \
                 ORDER BY message_id LIMIT $3",
            ),
            // In one state other than done, by its index.
            show_open_messages: named(&format!(
                "{SHOWN} WHERE state = $5 AND state <> 'done' AND {SHOWN_WHERE}"
            )),
            show_messages: named(&format!(
                "{SHOWN} WHERE ($5::text IS NULL OR state = $5) AND {SHOWN_WHERE}"
            )),
            show_message: named(&format!("{SHOWN} WHERE message_id = $1")),
            redrive: named("SELECT * FROM onceward.redrive($1, $2, $3, $4)"),
            discard: named("SELECT * FROM onceward.discard($1, $2, $3, $4)"),
            purge_done: named("SELECT * FROM onceward.purge_done($1, $2, $3)"),
            backlog: named(
                "WITH RECURSIVE sinks (name) AS (\
                 (SELECT o.sink FROM onceward.outbox o WHERE o.state = 'ready' AND NOT o.held \
                 ORDER BY o.sink LIMIT 1) UNION ALL \
                 SELECT (SELECT o.sink FROM onceward.outbox o WHERE o.state = 'ready' \
                 AND NOT o.held AND o.sink > s.name ORDER BY o.sink LIMIT 1) \
                 FROM sinks s WHERE s.name IS NOT NULL) \
                 SELECT (SELECT count(*) FROM (SELECT FROM onceward.outbox o \
                 WHERE o.state = 'dead' LIMIT $1) d), \
                 (SELECT min((SELECT o.next_at FROM onceward.outbox o WHERE o.sink = s.name \
                 AND o.state = 'ready' AND NOT o.held ORDER BY o.next_at LIMIT 1)) FROM sinks s)",
            ),
            audit: named(
                "SELECT at, generation, event, attempt, fence, reason, reply_status, \
                 reply_headers, reply_schema, reply_body FROM onceward.audit_records \
                 WHERE scope = $1 AND key = $2 ORDER BY audit_id",
            ),
            list: named("SELECT * FROM onceward.list($1, $2::jsonb)"),
            moment: named("SELECT onceward.moment($1, $2, $3, $4)"),
            audit_log: named("SELECT * FROM onceward.audit_log($1::jsonb)"),
            stats: named("SELECT * FROM onceward.stats($1, $2)"),
            sweep: named(
                "SELECT s.scope, s.key, s.state, s.attempt, r.route, s.next_check, s.next_lease \
                 FROM onceward.sweep($1, $2, $3, $4) s \
                 LEFT JOIN LATERAL (SELECT r.route FROM onceward.records r \
                 WHERE r.scope = s.scope AND r.key = s.key OFFSET 0) r ON true",
            ),
            reap: named("SELECT * FROM onceward.reap($1, $2)"),
            // The time is asked for once: a condition that asks again for each row has no index.
            purge_audit: named(
                "WITH purged AS (DELETE FROM onceward.audit_records a WHERE a.audit_id = ANY (ARRAY( \
                 SELECT d.audit_id FROM onceward.audit_records d \
                 WHERE d.at <= (SELECT onceward.micros($1) - $2) \
                 AND NOT EXISTS (SELECT FROM onceward.records r WHERE r.scope = d.scope \
                 AND r.key = d.key AND r.generation = d.generation OFFSET 0) \
                 ORDER BY d.at LIMIT $3 FOR UPDATE SKIP LOCKED)) RETURNING 1) \
                 SELECT count(*) FROM purged",
            ),
            ping: named("DELETE FROM onceward.meta WHERE name = 'ping'"),
            // Writes also when it finds one: a mere look would not see one that is on its way.
            check_identity: named(
                "INSERT INTO onceward.meta (name, value) VALUES ('identity', $1) \
                 ON CONFLICT (name) DO UPDATE SET value = meta.value RETURNING value = $1",
            ),
            accept_identity: named(
                "INSERT INTO onceward.meta (name, value) VALUES ('identity', $1) \
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            ),
            scope_keys: named(
                "SELECT key_id, wrapped_by, wrapped FROM onceward.keys_of($1, $2, $3, $4)",
            ),
            drop_scope_keys: named("SELECT onceward.drop_keys_of($1, $2, $3)"),
            beat: named(
                "SELECT * FROM onceward.beat($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
            ),
            acknowledge_regression: named("SELECT * FROM onceward.acknowledge_regression($1, $2)"),
            note_provider_id: named(
                "SELECT onceward.note_provider_id($1, $2, $3, $4, $5, $6, $7, $8)",
            ),
            by_provider_id: named("SELECT * FROM onceward.by_provider_id($1, $2)"),
            provider_ids: named("SELECT * FROM onceward.provider_ids_of($1, $2)"),
        }
    }
}

/// Whether the transaction's COMMIT will wait for the disk.
const DURABLE: &str = "current_setting('synchronous_commit') <> 'off'";

/// Calls a function only if the transaction will be on the disk when it is committed, and says so.
fn if_durable(call: &str, name: &str) -> String {
    format!("SELECT CASE WHEN {DURABLE} THEN {call} END AS {name}, {DURABLE} AS durable")
}

/// `$2, $3, $4` from 2 to 4.
fn parameters(first: usize, last: usize) -> String {
    let names: Vec<String> = (first..=last).map(|number| format!("${number}")).collect();
    names.join(", ")
}

/// The same SQL for a schema of this name.
pub(super) fn in_schema(sql: &str, schema: &str) -> String {
    sql.replace("onceward.", &format!("\"{schema}\"."))
}

pub(super) async fn connect(options: &PgOptions) -> Result<PgConnection, sqlx::Error> {
    let connect = PgConnectOptions::from_str(&options.url)?;
    let connect = connect.application_name("onceward").disable_statement_logging();
    // Whoever listens there may be silent for ever.
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
    timeout(CONNECT_TIME_MAX, connect.connect()).await.map_err(late)?
}

/// Whether the options make sense.
pub(super) fn readable(options: &PgOptions) -> Result<PgConnectOptions, PgConnectError> {
    let schema = &options.schema;
    let name_is_good = schema.len() <= 63
        && schema.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
        && schema.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !name_is_good {
        return Err(PgConnectError::Schema(schema.to_string()));
    }
    PgConnectOptions::from_str(&options.url).map_err(PgConnectError::Url)
}

/// Connects once, and sees to it that the schema is there and of this version. Returns the name that
/// the store has, which no other one has.
pub(super) async fn prepare(options: &PgOptions) -> Result<Arc<str>, PgConnectError> {
    readable(options)?;
    let mut connection = connect(options).await?;
    if forgets_statements(&mut connection, options).await? {
        return Err(PgConnectError::ForgetfulPool);
    }
    let isolation: String =
        sqlx::query_scalar("SHOW default_transaction_isolation").fetch_one(&mut connection).await?;
    let checked = match old_server(&mut connection).await? {
        Some(version) => Err(PgConnectError::Old(version)),
        None if isolation != "read committed" => Err(PgConnectError::Isolation(isolation)),
        None => match migrate::at_start(&mut connection, options).await {
            Ok(()) => Ok(name_of(&mut connection, options).await?),
            Err(error) => Err(error),
        },
    };
    // The connection is not used again, and with it ends whatever was begun on it.
    let _ = connection.close().await;
    checked
}

/// Whether a statement that was prepared in one transaction is unknown in the next, since that one
/// runs on another connection of the server.
pub(super) async fn forgets_statements(
    connection: &mut PgConnection,
    options: &PgOptions,
) -> Result<bool, sqlx::Error> {
    let who = || sqlx::query_scalar::<_, i32>("SELECT pg_backend_pid()");
    let first = who().fetch_one(&mut *connection).await;
    if let Err(error) = first {
        return if is_about_statements(&error) { Ok(true) } else { Err(error) };
    }
    // Takes the server's connection that was just given back, if there is a pool that shares it.
    let mut other = connect(options).await?;
    sqlx::raw_sql("BEGIN").execute(&mut other).await?;
    let again = who().fetch_one(&mut *connection).await;
    // With the connection ends its transaction.
    let _ = other.close().await;
    match again {
        Ok(_) => Ok(false),
        Err(error) if is_about_statements(&error) => Ok(true),
        Err(error) => Err(error),
    }
}

/// No such prepared statement, or one too many.
fn is_about_statements(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("26000" | "42P05"))
}

async fn name_of(
    connection: &mut PgConnection,
    options: &PgOptions,
) -> Result<Arc<str>, sqlx::Error> {
    let sql = in_schema("SELECT value FROM onceward.meta WHERE name = 'name'", &options.schema);
    let name: String = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await?;
    Ok(name.into())
}

async fn old_server(connection: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
    let number = sqlx::query_scalar("SELECT current_setting('server_version_num')::integer");
    let number: i32 = number.fetch_one(&mut *connection).await?;
    if u32::try_from(number).unwrap_or(0) >= OLDEST_SERVER {
        return Ok(None);
    }
    let version = sqlx::query_scalar("SELECT current_setting('server_version')");
    Ok(Some(version.fetch_one(connection).await?))
}

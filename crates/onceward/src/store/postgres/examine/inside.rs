//! Our schema: whether all of it is there and may be used, and what its rows say.

use super::{Finding, Look, Looked, Standing, objects};
use crate::clock::Timestamp;

/// Rows that wait to be vacuumed away: from here on, and in this proportion, they are worth knowing.
const DEAD_ROWS_MANY: &str = "n_dead_tup > 100000 AND n_dead_tup > 2 * n_live_tup";

impl Look<'_> {
    /// Whether this role may do what the store does.
    pub(super) async fn permissions(&mut self, standing: Option<Standing>) -> Looked {
        const NAME: &str = "permissions";
        let schema = &self.options.schema;
        if standing == Some(Standing::Absent) {
            let may = self
                .one(format!(
                    "SELECT coalesce((SELECT has_schema_privilege(n.oid, 'CREATE') \
                     FROM pg_catalog.pg_namespace n WHERE n.nspname = '{schema}'), \
                     has_database_privilege(current_database(), 'CREATE'))::text"
                ))
                .await?;
            return Ok(vec![if may == "true" {
                Finding::ok(NAME, "may make the schema")
            } else {
                Finding::broken(
                    NAME,
                    "may not make the schema",
                    "run `onceward migrate up` as a role that may, or grant CREATE on the database",
                )
            }]);
        }
        let missing = self.one(missing_rights(schema)).await?;
        if !missing.is_empty() {
            return Ok(vec![Finding::broken(
                NAME,
                format!("missing: {missing}"),
                "grant them to the role that the store connects as",
            )]);
        }
        let owns = self
            .one(format!(
                "SELECT (count(*) = 0)::text FROM pg_catalog.pg_class c \
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                 WHERE n.nspname = '{schema}' AND c.relkind = 'r' \
                 AND NOT pg_has_role(c.relowner, 'USAGE')"
            ))
            .await?;
        Ok(vec![match (&*owns, standing) {
            ("true", _) => Finding::ok(NAME, "all that the store needs, and owns its tables"),
            (_, Some(Standing::Behind)) => Finding::broken(
                NAME,
                "may use the tables but does not own them, and migrations are pending",
                "run `onceward migrate up` as their owner",
            ),
            _ => Finding::ok(NAME, "all that the store needs"),
        }])
    }

    /// Whether what the migrations make is there.
    pub(super) async fn objects(&mut self) -> Looked {
        const NAME: &str = "tables, indexes and functions";
        let there = self.rows(objects::there(&self.options.schema)).await?;
        let there =
            objects::named(there.into_iter().map(|row| row.into_iter().flatten().collect()));
        let expected = objects::expected();
        let missing: Vec<&str> = expected.difference(&there).map(String::as_str).collect();
        Ok(vec![if missing.is_empty() {
            Finding::ok(NAME, format!("all {} that the migrations make", expected.len()))
        } else {
            Finding::broken(
                NAME,
                format!("missing or not valid: {}", missing.join(", ")),
                "restore them from the migrations: without them keys may run twice, or lists are read \
                 as a whole",
            )
        }])
    }

    /// Whether vacuuming comes after.
    pub(super) async fn dead_rows(&mut self) -> Looked {
        const NAME: &str = "dead rows";
        let tables = self
            .one(format!(
                "SELECT string_agg(format('%s (%s dead, %s live)', relname, n_dead_tup, n_live_tup), \
                 ', ') FROM pg_stat_user_tables WHERE schemaname = '{}' AND {DEAD_ROWS_MANY}",
                self.options.schema
            ))
            .await?;
        Ok(vec![if tables.is_empty() {
            Finding::ok(NAME, "few")
        } else {
            Finding::note(
                NAME,
                tables,
                "look for transactions that stay open, and let autovacuum run more often",
            )
        }])
    }

    pub(super) async fn identity(&mut self) -> Looked {
        let identity =
            self.rows(self.ours("SELECT value FROM onceward.meta WHERE name = 'identity'")).await?;
        let identity = identity.into_iter().flatten().flatten().next();
        Ok(vec![Finding::identity(identity.as_deref())])
    }

    pub(super) async fn canary(&mut self) -> Looked {
        let found = self.rows(self.ours("SELECT found::text FROM onceward.regressions")).await?;
        let found = found.into_iter().flatten().flatten().next();
        let found = found.and_then(|found| found.parse().ok()).map(Timestamp::from_micros);
        let alive = self
            .one(self.ours(
                "SELECT count(*)::text FROM onceward.beats \
                 WHERE at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 10000000",
            ))
            .await?;
        Ok(vec![Finding::canary(found, alive.parse().unwrap_or(0))])
    }
}

/// What of the rights that the store needs this role does not have, as one text.
fn missing_rights(schema: &str) -> String {
    format!(
        "WITH ours AS (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = '{schema}'), \
         missing (what) AS (\
         SELECT 'USAGE on schema {schema}' FROM ours WHERE NOT has_schema_privilege(oid, 'USAGE') \
         UNION ALL SELECT r || ' on ' || c.relname FROM ours \
         JOIN pg_catalog.pg_class c ON c.relnamespace = ours.oid AND c.relkind = 'r' \
         CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) r \
         WHERE (c.relname <> 'migrations' OR r = 'SELECT') AND NOT has_table_privilege(c.oid, r) \
         UNION ALL SELECT 'EXECUTE on ' || p.proname FROM ours \
         JOIN pg_catalog.pg_proc p ON p.pronamespace = ours.oid \
         WHERE NOT has_function_privilege(p.oid, 'EXECUTE')) \
         SELECT string_agg(what, ', ' ORDER BY what) FROM missing"
    )
}

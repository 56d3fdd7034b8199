//! The server, and what it lets us do.

use sqlx::postgres::PgConnectOptions;

use super::{Finding, Look, Looked};
use crate::store::postgres::open::OLDEST_SERVER;

impl Look<'_> {
    pub(super) async fn version(&mut self) -> Looked {
        const NAME: &str = "server version";
        let version = self.one("SELECT current_setting('server_version')").await?;
        let number = self.one("SELECT current_setting('server_version_num')").await?;
        Ok(vec![if number.parse().unwrap_or(0) >= OLDEST_SERVER {
            Finding::ok(NAME, format!("PostgreSQL {version}"))
        } else {
            Finding::broken(NAME, format!("PostgreSQL {version}"), "use 13 or later")
        }])
    }

    pub(super) async fn primary(&mut self) -> Looked {
        const NAME: &str = "primary";
        let row = self
            .row("SELECT pg_is_in_recovery()::text, current_setting('transaction_read_only')")
            .await?;
        Ok(vec![match [row[0].as_deref(), row[1].as_deref()] {
            [Some("false"), Some("off")] => Finding::ok(NAME, "the primary, writable"),
            [Some("false"), _] => Finding::broken(
                NAME,
                "transactions are read-only here",
                "let default_transaction_read_only be off for the role and the database",
            ),
            _ => Finding::broken(NAME, "a standby, which only reads", "use the primary's address"),
        }])
    }

    pub(super) async fn isolation(&mut self) -> Looked {
        const NAME: &str = "isolation";
        let isolation = self.setting("default_transaction_isolation").await?;
        Ok(vec![if isolation == "read committed" {
            Finding::ok(NAME, isolation)
        } else {
            Finding::broken(
                NAME,
                isolation,
                "let default_transaction_isolation be `read committed` for the role or the database",
            )
        }])
    }

    pub(super) async fn transport(&mut self) -> Looked {
        const NAME: &str = "transport";
        if is_near(&self.address) {
            return Ok(vec![Finding::ok(NAME, "stays on this machine")]);
        }
        let ssl = self
            .one("SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl")
            .await
            .unwrap_or_default();
        Ok(vec![if ssl.is_empty() {
            Finding::note(
                NAME,
                "not encrypted as far as the server knows",
                "add ?sslmode=verify-full to the address, unless the network is yours alone",
            )
        } else {
            Finding::ok(NAME, ssl)
        }])
    }

    /// Whether the connections of one process fit into what is allowed.
    pub(super) async fn connections(&mut self) -> Looked {
        const NAME: &str = "connections";
        let need: i64 =
            self.options.connections.iter().map(|count| i64::try_from(*count).unwrap_or(0)).sum();
        // Who may not see other sessions sees their databases and roles.
        let sql = "SELECT (current_setting('max_connections')::integer \
             - current_setting('superuser_reserved_connections')::integer)::text, \
             (SELECT count(*)::text FROM pg_stat_activity WHERE datid IS NOT NULL), \
             (SELECT datconnlimit::text FROM pg_database WHERE datname = current_database()), \
             (SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database()), \
             (SELECT rolconnlimit::text FROM pg_roles WHERE rolname = current_user), \
             (SELECT count(*)::text FROM pg_stat_activity WHERE usename = current_user)";
        let row = self.row(sql).await?;
        let number = |column: usize| -> i64 {
            row.get(column).and_then(|text| text.as_deref()?.parse().ok()).unwrap_or(-1)
        };
        let limits = [("the server", 0), ("the database", 2), ("the role", 4)];
        let limits = limits.map(|(whose, at)| (whose, number(at), number(at + 1)));
        // -1 is no limit. One of those that are in use is this look.
        let limits = limits.into_iter().filter(|(_, limit, _)| *limit >= 0);
        let tightest = limits.min_by_key(|(_, limit, used)| limit - used);
        let Some((whose, limit, used)) = tightest else {
            return Ok(vec![Finding::ok(NAME, format!("no limit; a process opens {need}"))]);
        };
        let found = format!("{whose} allows {limit}, {used} are in use; a process opens {need}");
        Ok(vec![if limit < need {
            Finding::broken(NAME, found, "allow more connections, or open fewer")
        } else if limit - used + 1 < need {
            Finding::note(NAME, found, "free or allow some before another process starts")
        } else {
            Finding::ok(NAME, found)
        }])
    }

    pub(super) async fn autovacuum(&mut self) -> Looked {
        const NAME: &str = "autovacuum";
        let off = ["autovacuum", "track_counts"];
        for name in off {
            if self.setting(name).await? != "on" {
                return Ok(vec![Finding::note(
                    NAME,
                    format!("{name} is off"),
                    "switch it on: without it tables and indexes only grow",
                )]);
            }
        }
        let tables = self
            .one(format!(
                "SELECT string_agg(c.relname, ', ' ORDER BY c.relname) FROM pg_catalog.pg_class c \
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                 CROSS JOIN LATERAL unnest(c.reloptions) o \
                 WHERE n.nspname = '{}' AND o IN ('autovacuum_enabled=false', \
                 'autovacuum_enabled=off', 'autovacuum_enabled=no', 'autovacuum_enabled=0')",
                self.options.schema
            ))
            .await?;
        Ok(vec![if tables.is_empty() {
            Finding::ok(NAME, "on")
        } else {
            Finding::note(
                NAME,
                format!("off for {tables}"),
                "reset autovacuum_enabled of these tables: without it they only grow",
            )
        }])
    }
}

/// Whether the address does not leave the machine.
fn is_near(address: &PgConnectOptions) -> bool {
    let host = address.get_host();
    address.get_socket().is_some()
        || host.starts_with('/')
        || host == "localhost"
        || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

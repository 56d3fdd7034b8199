//! Connecting, and what is refused.

use std::{collections::HashMap, io, str::FromStr as _, sync::Arc};

use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, MySqlConnection, Row as _,
    mysql::MySqlConnectOptions,
};
use tokio::time::timeout;

use super::{MySqlOptions, link::CONNECT_TIME_MAX, migrate, sql::with_prefix};

/// A batch and its largest element have to fit into one packet.
pub(super) const PACKET_MIN: u64 = 8 << 20;

/// Why a store cannot be had in a database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MySqlConnectError {
    /// The address cannot be read.
    #[error("the store's URL cannot be read")]
    Url(#[source] sqlx::Error),
    /// The address names no database.
    #[error("the store's URL names no database")]
    NoDatabase,
    /// The prefix cannot be used.
    #[error(
        "`{0}` cannot be the prefix of tables: lower-case letters, digits and `_`, at most 40, no digit first"
    )]
    Prefix(String),
    /// The server is too old.
    #[error("the server is {0}; MySQL 8.0.16 or MariaDB 10.6 or later is needed")]
    Old(String),
    /// One reply would not fit into what may be sent at once.
    #[error("max_allowed_packet is {0} here; 8388608 or more is needed")]
    SmallPackets(u64),
    /// Other servers take writes to the same tables.
    #[error(
        "{0}: other servers take writes too, and what is decided on one of them is not locked on the others; use a server with one primary"
    )]
    ManyPrimaries(&'static str),
    /// Written by a newer version, and not for this one.
    #[error(
        "tables {prefix}* have version {found}, and this version knows {known}; use a newer onceward"
    )]
    Newer {
        /// What their names begin with.
        prefix: String,
        /// The version they have.
        found: u32,
        /// The newest version that is known here.
        known: u32,
    },
    /// The tables are not there, or older than this version, and must not be changed.
    #[error("tables {prefix}* have version {found} of {known}; run with migrations allowed once")]
    NotMigrated {
        /// What their names begin with.
        prefix: String,
        /// The version they have; 0 when they are not there.
        found: u32,
        /// The version that is needed.
        known: u32,
    },
    /// A migration shuts out older processes, which may be at work.
    #[error(
        "the migration `{migration}` of tables {prefix}* shuts out older processes: stop them, and run \
         `onceward migrate up`"
    )]
    Breaking {
        /// What their names begin with.
        prefix: String,
        /// The migration.
        migration: &'static str,
    },
    /// Another build has made the tables: a migration had the same number there, and another text.
    #[error(
        "the migration `{migration}` of tables {prefix}* was applied in another text than this version has \
         for it, perhaps before the first release; nothing was changed; use the onceward that made them, \
         or new tables"
    )]
    Changed {
        /// What their names begin with.
        prefix: String,
        /// The first such migration.
        migration: &'static str,
    },
    /// Another process migrates for too long.
    #[error("another process is at the tables for too long")]
    Busy,
    /// The server said no.
    #[error("the database cannot be used")]
    Server(#[from] sqlx::Error),
}

/// What holds on our connections, whatever the server's defaults are. Waiting for a lock is bounded by
/// the least that both servers know; rows are asked for without waiting anyway.
const SETTINGS: &str = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
    innodb_lock_wait_timeout = 1, autocommit = 1; \
    SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

pub(super) async fn connect(options: &MySqlOptions) -> Result<MySqlConnection, sqlx::Error> {
    let connect = MySqlConnectOptions::from_str(&options.url)?.disable_statement_logging();
    // Whoever listens there may be silent for ever.
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
    let connected = async {
        let mut connection = connect.connect().await?;
        sqlx::raw_sql(SETTINGS).execute(&mut connection).await?;
        Ok(connection)
    };
    timeout(CONNECT_TIME_MAX, connected).await.map_err(late)?
}

/// What is known of a store whose tables are there.
pub(super) struct Prepared {
    /// No other store has it.
    pub(super) name: Arc<str>,
    /// The server may end transactions that lock what is newer than their snapshot.
    pub(super) has_snapshots: bool,
}

/// Whether a store can be there, as far as its address tells.
pub(super) fn readable(options: &MySqlOptions) -> Result<(), MySqlConnectError> {
    let prefix = &*options.prefix;
    let prefix_is_good = prefix.len() <= 40
        && prefix.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
        && prefix.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !prefix_is_good {
        return Err(MySqlConnectError::Prefix(prefix.to_owned()));
    }
    let url = MySqlConnectOptions::from_str(&options.url).map_err(MySqlConnectError::Url)?;
    if url.get_database().is_none_or(str::is_empty) {
        return Err(MySqlConnectError::NoDatabase);
    }
    Ok(())
}

/// Connects once, and sees to it that the tables are there and of this version.
pub(super) async fn prepare(options: &MySqlOptions) -> Result<Prepared, MySqlConnectError> {
    readable(options)?;
    let mut connection = connect(options).await?;
    let prepared = async {
        is_good_server(&mut connection).await?;
        migrate::at_start(&mut connection, options).await?;
        let name = name_of(&mut connection, &options.prefix).await?;
        Ok(Prepared { name, has_snapshots: has_snapshots(&mut connection).await? })
    };
    let prepared = prepared.await;
    // The connection is not used again, and with it ends whatever was begun on it.
    let _ = connection.close().await;
    prepared
}

async fn has_snapshots(connection: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
    let asked = "SHOW VARIABLES LIKE 'innodb\\_snapshot\\_isolation'";
    Ok(sqlx::raw_sql(asked).fetch_optional(connection).await?.is_some())
}

pub(super) async fn is_good_server(
    connection: &mut MySqlConnection,
) -> Result<(), MySqlConnectError> {
    let asked = "SELECT CAST(VERSION() AS CHAR), CAST(@@max_allowed_packet AS UNSIGNED)";
    let row = sqlx::query(asked).fetch_one(&mut *connection).await?;
    let (version, packet): (String, u64) = (row.try_get(0)?, row.try_get(1)?);
    if !is_new_enough(&version) {
        return Err(MySqlConnectError::Old(version));
    }
    if packet < PACKET_MIN {
        return Err(MySqlConnectError::SmallPackets(packet));
    }
    match many_primaries(connection).await? {
        Some(kind) => Err(MySqlConnectError::ManyPrimaries(kind)),
        None => Ok(()),
    }
}

/// What makes this server one of many that take writes. Each locks rows for itself, and when they
/// commit they compare only the rows that were changed: what was decided by a row that was only locked
/// may have been decided elsewhere at the same time.
pub(super) async fn many_primaries(
    connection: &mut MySqlConnection,
) -> Result<Option<&'static str>, sqlx::Error> {
    // A server knows only those of the kind that it is.
    let asked = "SHOW GLOBAL VARIABLES WHERE variable_name IN ('wsrep_on', \
        'wsrep_cluster_address', 'group_replication_group_name', \
        'group_replication_single_primary_mode')";
    let mut settings = HashMap::new();
    for row in sqlx::raw_sql(asked).fetch_all(connection).await? {
        let [name, value] = [row.try_get_unchecked(0)?, row.try_get_unchecked(1)?];
        settings.insert(name, value);
    }
    Ok(kind_of_cluster(&settings))
}

fn kind_of_cluster(settings: &HashMap<String, String>) -> Option<&'static str> {
    let is = |name: &str, value: &str| {
        settings.get(name).is_some_and(|set| set.eq_ignore_ascii_case(value))
    };
    let is_set = |name: &str| settings.get(name).is_some_and(|set| !set.is_empty());
    if is("wsrep_on", "ON") && is_set("wsrep_cluster_address") {
        return Some("this is a Galera cluster");
    }
    let many = is("group_replication_single_primary_mode", "OFF");
    (many && is_set("group_replication_group_name"))
        .then_some("this is group replication with many primaries")
}

/// MariaDB may put `5.5.5-` before its version, for old clients.
pub(super) fn is_new_enough(version: &str) -> bool {
    let is_mariadb = version.contains("MariaDB");
    let version = version.strip_prefix("5.5.5-").filter(|_| is_mariadb).unwrap_or(version);
    let mut numbers = version.split(['.', '-', '+']).map_while(|part| part.parse::<u32>().ok());
    let mut number = || numbers.next().unwrap_or(0);
    let oldest = if is_mariadb { [10, 6, 0] } else { [8, 0, 16] };
    [number(), number(), number()] >= oldest
}

async fn name_of(connection: &mut MySqlConnection, prefix: &str) -> Result<Arc<str>, sqlx::Error> {
    let name = with_prefix("SELECT value FROM onceward_meta WHERE name = 'name'", prefix);
    let row = sqlx::query(AssertSqlSafe(name)).fetch_one(connection).await?;
    let name: Vec<u8> = row.try_get_unchecked(0)?;
    Ok(String::from_utf8_lossy(&name).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_are_too_old_are_told_from_those_that_do() {
        for good in [
            "8.0.16",
            "8.4.2-log",
            "9.7.4",
            "10.6.0-MariaDB",
            "5.5.5-10.11.19-MariaDB-0+deb12u1",
            "11.4.2-MariaDB",
        ] {
            assert!(is_new_enough(good), "{good}");
        }
        for old in ["8.0.15", "5.7.44", "10.5.99-MariaDB", "5.5.5-10.3.1-MariaDB", "nonsense"] {
            assert!(!is_new_enough(old), "{old}");
        }
    }

    #[test]
    fn a_server_beside_which_others_take_writes_is_told_from_one_primary() {
        let kind = |settings: &[(&str, &str)]| {
            let owned = settings.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            kind_of_cluster(&owned.collect())
        };
        let mode = "group_replication_single_primary_mode";
        let group = ("group_replication_group_name", "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa");
        for many in [
            &[("wsrep_on", "ON"), ("wsrep_cluster_address", "gcomm://")][..],
            &[(mode, "OFF"), group],
        ] {
            assert!(kind(many).is_some(), "{many:?}");
        }
        for one in [
            &[][..],
            &[("wsrep_on", "OFF"), ("wsrep_cluster_address", "gcomm://")],
            &[("wsrep_on", "ON"), ("wsrep_cluster_address", "")],
            &[(mode, "ON"), group],
            &[(mode, "OFF"), ("group_replication_group_name", "")],
        ] {
            assert_eq!(kind(one), None, "{one:?}");
        }
    }
}

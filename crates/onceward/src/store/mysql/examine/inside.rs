//! Our tables: whether all of them are there with their indexes, and whether this user may use them.

use std::collections::BTreeSet;

use sqlx::{AssertSqlSafe, MySqlConnection, mysql::MySqlDatabaseError};

use super::super::{migrate::MIGRATIONS, sql::with_prefix};
use crate::store::site::{Finding, Standing};

/// The errors by which a server says that something is not allowed.
const NOT_ALLOWED: [u16; 5] = [1044, 1142, 1143, 1227, 1370];

/// Whether this user may do what the store does. Nothing is done for that: whoever wants to know how a
/// statement would be carried out needs the rights that it takes.
pub(super) async fn permissions(
    look: &mut MySqlConnection,
    prefix: &str,
    standing: Standing,
) -> Finding {
    const NAME: &str = "permissions";
    let found = match standing {
        Standing::Absent => may_create(look).await,
        _ => missing_rights(look, prefix).await.map(|missing| match missing.is_empty() {
            true => Finding::ok(NAME, "all that the store needs"),
            false => Finding::broken(
                NAME,
                format!("missing: {}", missing.join(", ")),
                "grant them to the user that the store connects as",
            ),
        }),
    };
    found.unwrap_or_else(|error| Finding::failed(NAME, error.to_string()))
}

async fn may_create(look: &mut MySqlConnection) -> Result<Finding, sqlx::Error> {
    const NAME: &str = "permissions";
    let granted: i64 = sqlx::query_scalar(
        "SELECT COUNT(*) FROM (SELECT grantee FROM information_schema.user_privileges \
         WHERE privilege_type = 'CREATE' UNION ALL \
         SELECT grantee FROM information_schema.schema_privileges \
         WHERE privilege_type = 'CREATE' AND DATABASE() LIKE table_schema) AS granted \
         WHERE grantee = CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), '''')",
    )
    .fetch_one(&mut *look)
    .await?;
    if granted > 0 {
        return Ok(Finding::ok(NAME, "may make the tables"));
    }
    let role = "SELECT CAST(COALESCE(CURRENT_ROLE(), 'NONE') AS CHAR)";
    let role: String = sqlx::query_scalar(role).fetch_one(look).await?;
    let advice = "run `onceward migrate up` as a user who may, or grant CREATE on the database";
    Ok(match &*role {
        "NONE" => Finding::broken(NAME, "may not make the tables", advice),
        _ => Finding::note(NAME, format!("by the role {role}, which was not looked into"), advice),
    })
}

/// What is missing, as `DELETE on onceward_steps`.
async fn missing_rights(
    look: &mut MySqlConnection,
    prefix: &str,
) -> Result<Vec<String>, sqlx::Error> {
    let mut missing = Vec::new();
    let mut tables: BTreeSet<_> = expected(prefix).into_iter().map(|index| index.table).collect();
    // Made before any migration.
    tables.insert(format!("{prefix}meta"));
    for table in tables {
        let column: Option<String> = sqlx::query_scalar(
            "SELECT CAST(column_name AS CHAR) FROM information_schema.columns \
             WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position LIMIT 1",
        )
        .bind(&table)
        .fetch_optional(&mut *look)
        .await?;
        // A table of which nobody sees a column is not there, or is not this user's.
        let Some(column) = column else {
            missing.push(format!("all on {table}"));
            continue;
        };
        for (right, sql) in [
            ("SELECT", format!("SELECT `{column}` FROM {table} WHERE 1 = 0")),
            ("INSERT", format!("INSERT INTO {table} (`{column}`) VALUES (NULL)")),
            ("UPDATE", format!("UPDATE {table} SET `{column}` = `{column}` WHERE 1 = 0")),
            ("DELETE", format!("DELETE FROM {table} WHERE 1 = 0")),
        ] {
            let explained = sqlx::raw_sql(AssertSqlSafe(format!("EXPLAIN {sql}")));
            match explained.execute(&mut *look).await {
                Err(error) if is_not_allowed(&error) => missing.push(format!("{right} on {table}")),
                Err(sqlx::Error::Database(_)) | Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(missing)
}

fn is_not_allowed(error: &sqlx::Error) -> bool {
    let said = error.as_database_error().and_then(|it| it.try_downcast_ref::<MySqlDatabaseError>());
    said.is_some_and(|said| NOT_ALLOWED.contains(&said.number()))
}

/// Whether the indexes that the migrations make are there, as they made them.
pub(super) async fn indexes(look: &mut MySqlConnection, prefix: &str) -> Finding {
    const NAME: &str = "indexes";
    let there: Result<Vec<(String, String, i64, String)>, _> = sqlx::query_as(
        "SELECT CAST(table_name AS CHAR), CAST(index_name AS CHAR), CAST(MAX(non_unique) AS SIGNED), \
         CAST(GROUP_CONCAT(column_name ORDER BY seq_in_index) AS CHAR) \
         FROM information_schema.statistics WHERE table_schema = DATABASE() \
         GROUP BY table_name, index_name",
    )
    .fetch_all(look)
    .await;
    let there: BTreeSet<Index> = match there {
        Ok(there) => there.into_iter().map(Index::read).collect(),
        Err(error) => return Finding::failed(NAME, error.to_string()),
    };
    let expected = expected(prefix);
    let missing: Vec<String> = expected.difference(&there).map(Index::name).collect();
    match missing.is_empty() {
        true => Finding::ok(NAME, format!("all {} that the migrations make", expected.len())),
        false => Finding::broken(
            NAME,
            format!("missing or changed: {}", missing.join(", ")),
            "restore them from the migrations: without them keys may run twice, or tables are read as \
             a whole",
        ),
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Index {
    table: String,
    index: String,
    unique: bool,
    columns: String,
}

impl Index {
    fn read((table, index, non_unique, columns): (String, String, i64, String)) -> Self {
        Index { table, index, unique: non_unique == 0, columns }
    }

    fn name(&self) -> String {
        format!("{}.{}", self.table, self.index)
    }
}

/// What the migrations say, line by line.
fn expected(prefix: &str) -> BTreeSet<Index> {
    let mut found = BTreeSet::new();
    let mut table = String::new();
    for line in MIGRATIONS.iter().flat_map(|migration| migration.sql.lines()).map(str::trim) {
        if let Some(made) = line.strip_prefix("CREATE TABLE IF NOT EXISTS ") {
            table = with_prefix(made.split([' ', '(']).next().unwrap_or_default(), prefix);
        }
        let (unique, key) = match (line.strip_prefix("UNIQUE KEY "), line.strip_prefix("KEY ")) {
            (Some(key), _) => (true, key),
            (None, Some(key)) => (false, key),
            (None, None) => {
                if let Some((column, _)) =
                    line.split_once(' ').filter(|_| line.contains("PRIMARY KEY"))
                {
                    let (index, columns) = ("PRIMARY".to_owned(), column.to_owned());
                    found.insert(Index { table: table.clone(), index, unique: true, columns });
                }
                continue;
            }
        };
        let Some((index, columns)) = key.split_once(" (") else { continue };
        let columns = columns.split(')').next().unwrap_or_default();
        let columns = columns.chars().filter(|c| !matches!(c, '`' | ' ')).collect();
        found.insert(Index { table: table.clone(), index: index.to_owned(), unique, columns });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_migrations_tell_which_indexes_there_are() {
        let expected = expected("mine_");
        let index = |table: &str, index: &str, unique, columns: &str| Index {
            table: table.into(),
            index: index.into(),
            unique,
            columns: columns.into(),
        };
        for known in [
            index("mine_records", "record_key", true, "scope,key"),
            index("mine_records", "record_due", false, "state,due_at"),
            index("mine_records", "PRIMARY", true, "record_id"),
            index("mine_outbox", "message_key", true, "derived_key"),
            index("mine_aggregates", "PRIMARY", true, "aggregate"),
        ] {
            assert!(expected.contains(&known), "{known:?} in {expected:?}");
        }
        let lines = MIGRATIONS.iter().flat_map(|migration| migration.sql.lines());
        let keys = lines.filter(|line| line.contains(" KEY")).count();
        assert_eq!(expected.len(), keys, "each line that makes one is read");
    }
}

//! What the migrations make, read from their text, and what is there, read from the catalogue.

use std::collections::BTreeSet;

use crate::store::postgres::migrate::{BEGINNING, MIGRATIONS};

/// The names of all that a schema of this version has.
pub(super) fn expected() -> BTreeSet<String> {
    let mut expected = BTreeSet::new();
    for sql in std::iter::once(BEGINNING).chain(MIGRATIONS.iter().map(|migration| migration.sql)) {
        for statement in plain(sql).split(';') {
            read(statement, &mut expected);
        }
    }
    expected
}

/// Rows of a kind and a name each, and of tables with how many constraints of which kind they have.
pub(super) fn named(rows: impl Iterator<Item = Vec<String>>) -> BTreeSet<String> {
    let names = rows.filter_map(|row| match <[String; 3]>::try_from(row) {
        Ok([kind, name, count]) => {
            let count = count.parse().unwrap_or(0);
            Some((1..=count).map(move |number: u32| numbered(&kind, number, &name)))
        }
        Err(_) => None,
    });
    names.flatten().collect()
}

/// What is there, as rows for [`named`]. What is switched off or not valid is not there.
pub(super) fn there(schema: &str) -> String {
    format!(
        "WITH ours AS (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = '{schema}') \
         SELECT CASE c.relkind WHEN 'r' THEN 'TABLE' ELSE 'INDEX' END, c.relname::text, '1' \
         FROM ours JOIN pg_catalog.pg_class c ON c.relnamespace = ours.oid \
         LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid \
         WHERE c.relkind = 'r' OR (i.indisvalid AND i.indisready) \
         UNION ALL SELECT DISTINCT 'FUNCTION', p.proname::text, '1' \
         FROM ours JOIN pg_catalog.pg_proc p ON p.pronamespace = ours.oid \
         UNION ALL SELECT CASE t.typtype WHEN 'd' THEN 'DOMAIN' ELSE 'TYPE' END, t.typname::text, '1' \
         FROM ours JOIN pg_catalog.pg_type t ON t.typnamespace = ours.oid \
         LEFT JOIN pg_catalog.pg_class c ON c.oid = t.typrelid \
         WHERE t.typtype = 'd' OR c.relkind = 'c' \
         UNION ALL SELECT 'TRIGGER', g.tgname::text, '1' \
         FROM ours JOIN pg_catalog.pg_class c ON c.relnamespace = ours.oid \
         JOIN pg_catalog.pg_trigger g ON g.tgrelid = c.oid \
         WHERE NOT g.tgisinternal AND g.tgenabled <> 'D' \
         UNION ALL SELECT CASE k.contype WHEN 'p' THEN 'PRIMARY KEY' WHEN 'u' THEN 'UNIQUE' \
         ELSE 'CHECK' END, c.relname::text, count(*)::text \
         FROM ours JOIN pg_catalog.pg_class c ON c.relnamespace = ours.oid \
         JOIN pg_catalog.pg_constraint k ON k.conrelid = c.oid \
         WHERE k.contype IN ('p', 'u', 'c') AND k.convalidated GROUP BY k.contype, c.relname"
    )
}

/// Without comments and bodies of functions.
fn plain(sql: &str) -> String {
    let lines = sql.lines().map(|line| line.split("--").next().unwrap_or_default());
    let text = lines.collect::<Vec<_>>().join("\n");
    text.split("$$").step_by(2).collect()
}

/// Adds what a statement makes, and takes away what it drops.
fn read(statement: &str, names: &mut BTreeSet<String>) {
    let mut words = statement.split_whitespace().filter(|word| {
        !matches!(*word, "UNIQUE" | "OR" | "REPLACE" | "IF" | "NOT" | "EXISTS" | "CONCURRENTLY")
    });
    let (Some(verb), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else {
        return;
    };
    let name = name.split('(').next().unwrap_or_default();
    let name = name.strip_prefix("onceward.").unwrap_or(name);
    match (verb, kind) {
        ("CREATE", "TABLE" | "INDEX" | "FUNCTION" | "DOMAIN" | "TYPE" | "TRIGGER") => {
            names.insert(numbered(kind, 1, name));
        }
        ("DROP", _) => {
            names.remove(&numbered(kind, 1, name));
        }
        _ => return,
    }
    if (verb, kind) == ("CREATE", "TABLE") {
        for kind in ["PRIMARY KEY", "UNIQUE", "CHECK"] {
            let count = statement.matches(kind).count();
            names.extend((1..).take(count).map(|number| numbered(kind, number, name)));
        }
    }
}

/// A name of one thing: `index records_reap`, or `check 2 of records`.
fn numbered(kind: &str, number: u32, name: &str) -> String {
    let kind = kind.to_lowercase();
    match &*kind {
        "primary key" | "unique" | "check" => format!("{kind} {number} of {name}"),
        _ => format!("{kind} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_is_read_as_what_it_makes_and_drops() {
        let mut names = BTreeSet::new();
        let sql = "
            -- CREATE TABLE onceward.comment (
            CREATE TABLE onceward.one (id bigint PRIMARY KEY, name text CHECK (name <> ''),
                UNIQUE (name), CHECK (id > 0));
            CREATE UNIQUE INDEX one_name ON onceward.one (name);
            CREATE INDEX gone ON onceward.one (id);
            CREATE OR REPLACE FUNCTION onceward.do(a text) RETURNS void LANGUAGE sql AS $$
                CREATE TABLE inside (a text); $$;
            DROP INDEX IF EXISTS onceward.gone;";
        for statement in plain(sql).split(';') {
            read(statement, &mut names);
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "check 1 of one",
                "check 2 of one",
                "function do",
                "index one_name",
                "primary key 1 of one",
                "table one",
                "unique 1 of one",
            ]
        );
    }
}

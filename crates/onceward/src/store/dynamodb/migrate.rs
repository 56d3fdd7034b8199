//! Bringing the table to the version of this release, and who may use one of another version.

use aws_sdk_dynamodb::types::{Put as PutWrite, TransactWriteItem};

use super::{
    DynamoOpenError, Inner,
    call::{damaged, pause},
    item::{Item, Put as _, Reader, key, number},
    step::{Committed, LOOKS_MAX, keeps_changing},
};
use crate::store::{
    StoreError,
    site::{By, Migration, Schema, Standing, Step, breaking, since},
};

/// Migrations in order: the table says how many of them it has. What each of them changes is up to the
/// code that writes items; what is written down is that it may rely on it.
pub(super) const MIGRATIONS: &[Migration] = &[Migration {
    name: "table",
    about: "creates the table and its two indexes, and writes down the version of its items and who may \
            use them",
    sql: "",
    breaks: false,
}];

/// Under which name the table remembers who may use it.
const SINCE: &str = "compatible_since";

/// What the table says of itself.
pub(super) fn schema_key() -> Item {
    key("meta", "schema")
}

pub(super) fn schema_of(
    item: Option<&Item>,
    migrations: &'static [Migration],
) -> Result<Schema, StoreError> {
    let Some(item) = item else { return Ok(Schema::new(0, None, migrations)) };
    let read = Reader(item);
    let found = read.number("version").map_err(damaged)?;
    let since = read.optional_number(SINCE).map_err(damaged)?;
    Ok(Schema::new(found, since, migrations))
}

impl Inner {
    /// Sees to it that the table can be used by these migrations. Returns what it says of itself then, and
    /// what was done.
    pub(super) async fn bring_up(
        &self,
        described: Option<Item>,
        migrations: &'static [Migration],
        by: By,
    ) -> Result<(Item, Vec<Step>), DynamoOpenError> {
        let unavailable = DynamoOpenError::Unavailable;
        let mut described = described;
        for tries in 0..LOOKS_MAX {
            let have = schema_of(described.as_ref(), migrations).map_err(unavailable)?;
            let done = self.is_done(&have, migrations, by)?;
            let item = match described {
                Some(item) if done => return Ok((item, Vec::new())),
                Some(item) => item,
                None => schema_key().with("shards", number(i64::from(self.shards))),
            };
            let item =
                item.with("version", number(have.known)).with(SINCE, number(since(migrations)));
            let write = self.schema_write(item.clone(), have.found);
            match self.transact(vec![write]).await.map_err(unavailable)? {
                Committed::Done => return Ok((item, have.pending)),
                Committed::Changed(_) => pause(tries).await,
            }
            described = self.schema().await.map_err(unavailable)?;
        }
        Err(unavailable(keeps_changing()))
    }

    /// Whether nothing has to be done, if anything may be done here at all.
    fn is_done(
        &self,
        have: &Schema,
        migrations: &'static [Migration],
        by: By,
    ) -> Result<bool, DynamoOpenError> {
        let table = self.table.clone();
        match have.standing() {
            Standing::Current | Standing::Ahead => Ok(true),
            Standing::Absent | Standing::Behind => match breaking(have.found, migrations) {
                Some(migration) if by == By::Start => {
                    Err(DynamoOpenError::Breaking { table, migration: migration.name })
                }
                _ => Ok(false),
            },
            // No text was applied that could be another one.
            Standing::Incompatible | Standing::Changed => {
                Err(DynamoOpenError::Newer { table, found: have.found, known: have.known })
            }
        }
    }

    /// Over what is still of the version that was looked at, or where there was none.
    fn schema_write(&self, item: Item, found: u32) -> TransactWriteItem {
        let put = PutWrite::builder().table_name(&self.table).set_item(Some(item));
        let put = match found {
            0 => put.condition_expression("attribute_not_exists(pk)"),
            found => put
                .condition_expression("#version = :found")
                .expression_attribute_names("#version", "version")
                .expression_attribute_values(":found", number(found)),
        };
        let put = put.build().unwrap_or_else(|_| unreachable!("a table and an item"));
        TransactWriteItem::builder().put(put).build()
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::types::AttributeValue;
    use onceward_testbed::DynamoDb;

    use super::*;
    use crate::{
        store::{DynamoOptions, DynamoStore, Reservation, Store as _, Write, Written},
        testing::samples::{ask, reply},
    };

    /// A table of its own.
    fn options() -> DynamoOptions {
        let table = format!("migrate_{:016x}", rand::random::<u64>());
        DynamoOptions::new(table).endpoint(DynamoDb::shared().endpoint()).region("local").shards(2)
    }

    /// The migrations of a later release.
    fn later(more: &[Migration]) -> &'static [Migration] {
        [MIGRATIONS, more].concat().leak()
    }

    async fn migrate(
        options: &DynamoOptions,
        migrations: &'static [Migration],
        by: By,
    ) -> Result<usize, DynamoOpenError> {
        let opened = DynamoStore::open_by(options.clone(), migrations, by).await;
        opened.map(|(_, applied)| applied.len())
    }

    /// The version of the table, and from which one on it may be used.
    async fn versions(options: &DynamoOptions) -> (u32, Option<u32>) {
        let item = options.inner().await.schema().await.expect("an answer");
        let schema = schema_of(item.as_ref(), MIGRATIONS).expect("it is readable");
        (schema.found, schema.since)
    }

    /// A request from its reserve to its reply.
    async fn works(store: &DynamoStore, key: &str) {
        let Ok(Reservation::Granted { lease, .. }) = store.reserve(ask(key)).await else {
            panic!("not granted")
        };
        let written = store.write(&lease, Write::Complete(reply("done"))).await;
        assert!(matches!(written, Ok(Written::Applied)), "{written:?}");
    }

    const ADDS: Migration = Migration { name: "adds", about: "", sql: "", breaks: false };
    const BREAKS: Migration = Migration { name: "breaks", about: "", sql: "", breaks: true };

    #[tokio::test]
    async fn old_and_new_processes_work_side_by_side_until_a_migration_breaks() {
        let options = options();
        let old = DynamoStore::open(options.clone()).await.expect("a store");
        assert_eq!(versions(&options).await, (1, Some(1)));
        works(&old, "before").await;

        let next = later(&[ADDS]);
        assert_eq!(migrate(&options, next, By::Start).await.expect("added"), 1);
        assert_eq!(migrate(&options, next, By::Start).await.expect("there"), 0, "once");
        assert_eq!(versions(&options).await, (2, Some(1)));
        works(&old, "running").await;
        let more = options.clone().shards(9);
        let started = DynamoStore::open(more).await.expect("an old one starts");
        assert_eq!(started.0.shards, 2, "and finds what is there");
        works(&started, "started").await;
        assert_eq!(versions(&options).await, (2, Some(1)), "nothing was taken back");

        let after = later(&[ADDS, BREAKS]);
        let refused =
            migrate(&options, after, By::Start).await.expect_err("old ones may be at work");
        assert!(matches!(refused, DynamoOpenError::Breaking { migration: "breaks", .. }));
        DynamoStore::open(options.clone()).await.expect("it is as it was");
        assert_eq!(migrate(&options, after, By::Hand).await.expect("asked for"), 1);
        let refused = DynamoStore::open(options.clone()).await.expect_err("shut out");
        assert!(matches!(refused, DynamoOpenError::Newer { found: 3, known: 1, .. }), "{refused}");
        let fresh = self::options();
        let made = migrate(&fresh, after, By::Start).await.expect("nobody is at work there");
        assert_eq!((made, versions(&fresh).await), (3, (3, Some(3))));
    }

    #[tokio::test]
    async fn a_table_from_before_it_said_who_may_use_it_is_used_by_those_who_know_all_of_it() {
        let options = options();
        DynamoStore::open(options.clone()).await.expect("a store");
        let inner = options.inner().await;
        let set = async |version: &str| {
            let update = inner.client.update_item().table_name(&inner.table);
            let update = update.set_key(Some(schema_key()));
            let update = update
                .update_expression("SET #version = :to REMOVE compatible_since")
                .expression_attribute_names("#version", "version")
                .expression_attribute_values(":to", AttributeValue::N(version.to_owned()));
            update.send().await.expect("changed");
        };
        set("1").await;
        let store = DynamoStore::open(options.clone()).await.expect("it is known");
        assert_eq!(versions(&options).await, (1, None));
        works(&store, "known").await;
        // Whoever brings it up says so.
        assert_eq!(migrate(&options, later(&[ADDS]), By::Start).await.expect("added"), 1);
        assert_eq!(versions(&options).await, (2, Some(1)));

        set("2").await;
        let refused = DynamoStore::open(options.clone()).await.expect_err("it does not say");
        assert!(matches!(refused, DynamoOpenError::Newer { found: 2, known: 1, .. }), "{refused}");
    }
}

//! Bringing the layout to the version of this release, and who may use one of another version.

use redis::Value;

use super::{RedisConnectError, RedisStore, client::Client, error::unavailable, value::bytes};
use crate::store::{
    StoreError,
    site::{By, Migration, Schema, Standing, Step, breaking, since},
};

/// Migrations in order: the layout says how many of them it has. What each of them changes is up to the
/// scripts; what is written down is that they may rely on it.
pub(super) const MIGRATIONS: &[Migration] = &[Migration {
    name: "layout",
    about: "writes down the version of the keys, over how many buckets they are spread, and who may use them",
    sql: "",
    breaks: false,
}];

/// How often the layout is looked at again that others keep changing.
const LOOKS_MAX: u32 = 20;

/// Replaces the layout if it is what was looked at.
const SWAP: &str = "#!lua flags=allow-oom\n\
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end\n\
    redis.call('SET', KEYS[1], ARGV[2])\n\
    return 1";

/// What the store says of its layout: `VERSION BUCKETS SINCE`. One from before the last of them was kept
/// has two, and a later version may have more.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    text: String,
    version: u32,
    buckets: Option<u16>,
    since: Option<u32>,
}

impl Kept {
    /// One of a later version may be like this only as far as its version: then it must not be used.
    fn read(text: String) -> Result<Kept, RedisConnectError> {
        let mut parts = text.split(' ');
        let version = parts.next().and_then(|version| version.parse().ok());
        let buckets = parts.next().and_then(|buckets| buckets.parse().ok()).filter(|it| *it > 0);
        let since = parts.next().and_then(|since| since.parse().ok());
        match version {
            Some(version) => Ok(Kept { text, version, buckets, since }),
            None => Err(RedisConnectError::Layout { found: text }),
        }
    }
}

fn key_of(client: &Client) -> Vec<u8> {
    client.layout.key(0, "layout", b"")
}

async fn kept(client: &Client) -> Result<Option<Kept>, RedisConnectError> {
    let mut get = redis::cmd("GET");
    get.arg(key_of(client));
    match client.command(0, &get).await? {
        Value::Nil => Ok(None),
        found => Kept::read(String::from_utf8_lossy(&bytes(found)?).into_owned()).map(Some),
    }
}

/// What the store says of itself.
pub(super) async fn schema(client: &Client) -> Result<Schema, RedisConnectError> {
    Ok(schema_of(kept(client).await?.as_ref(), MIGRATIONS))
}

fn schema_of(kept: Option<&Kept>, migrations: &'static [Migration]) -> Schema {
    match kept {
        None => Schema::new(0, None, migrations),
        Some(kept) => Schema::new(kept.version, kept.since, migrations),
    }
}

/// Whether nothing has to be done, if anything may be done here at all.
fn is_done(
    have: &Schema,
    migrations: &'static [Migration],
    by: By,
) -> Result<bool, RedisConnectError> {
    match have.standing() {
        Standing::Current | Standing::Ahead => Ok(true),
        Standing::Absent | Standing::Behind => match breaking(have.found, migrations) {
            Some(migration) if by == By::Start => {
                Err(RedisConnectError::Breaking { migration: migration.name })
            }
            _ => Ok(false),
        },
        // No text was applied that could be another one.
        Standing::Incompatible | Standing::Changed => {
            Err(RedisConnectError::Newer { found: have.found, known: have.known })
        }
    }
}

impl RedisStore {
    /// Sees to it that the layout can be used by these migrations. Returns over how many buckets the records
    /// are spread, and what was done.
    pub(super) async fn bring_up(
        &self,
        migrations: &'static [Migration],
        by: By,
    ) -> Result<(u16, Vec<Step>), RedisConnectError> {
        for _ in 0..LOOKS_MAX {
            let kept = kept(&self.client).await?;
            let have = schema_of(kept.as_ref(), migrations);
            let done = is_done(&have, migrations, by)?;
            let buckets = match &kept {
                None => self.client.layout.buckets,
                Some(kept) => kept
                    .buckets
                    .ok_or_else(|| RedisConnectError::Layout { found: kept.text.clone() })?,
            };
            if done {
                return Ok((buckets, Vec::new()));
            }
            let wanted = format!("{} {buckets} {}", have.known, since(migrations));
            if self.replace_layout(kept, &wanted).await? {
                return Ok((buckets, have.pending));
            }
        }
        Err(unavailable("others keep changing the layout").into())
    }

    /// Whether it was still what was looked at.
    async fn replace_layout(&self, kept: Option<Kept>, wanted: &str) -> Result<bool, StoreError> {
        let key = key_of(&self.client);
        let Some(kept) = kept else {
            self.note_what_was_evicted_before().await?;
            let mut agree = redis::cmd("SET");
            agree.arg(&key).arg(wanted).arg("NX").arg("GET");
            return Ok(self.client.command(0, &agree).await? == Value::Nil);
        };
        let args = [kept.text.into_bytes(), wanted.as_bytes().to_vec()];
        let told = self.client.run(0, SWAP, &[key], &args).await?;
        Ok(told == Value::Int(1))
    }
}

#[cfg(test)]
mod tests {
    use onceward_testbed::Redis;

    use super::*;
    use crate::{
        store::{RedisOptions, Reservation, Store as _, Write, Written},
        testing::samples::{ask, reply},
    };

    /// Under a prefix of its own.
    fn options() -> RedisOptions {
        let prefix = format!("migrate_{:016x}", rand::random::<u64>());
        RedisOptions::best_effort(Redis::shared().url()).prefix(prefix).buckets(3)
    }

    /// What is kept of the layout.
    fn layout(options: &RedisOptions) -> String {
        Redis::shared().cli(&["GET", &format!("{{{}:0}}layout", options.prefix)])
    }

    /// The migrations of a later release.
    fn later(more: &[Migration]) -> &'static [Migration] {
        [MIGRATIONS, more].concat().leak()
    }

    async fn migrate(
        options: &RedisOptions,
        migrations: &'static [Migration],
        by: By,
    ) -> Result<usize, RedisConnectError> {
        let connected = RedisStore::connect_by(options.clone(), migrations, by).await;
        connected.map(|(_, applied)| applied.len())
    }

    /// A request from its reserve to its reply.
    async fn works(store: &RedisStore, key: &str) {
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
        let old = RedisStore::connect(options.clone()).await.expect("a store");
        assert_eq!(layout(&options), "1 3 1");
        works(&old, "before").await;

        let next = later(&[ADDS]);
        assert_eq!(migrate(&options, next, By::Start).await.expect("added"), 1);
        assert_eq!(migrate(&options, next, By::Start).await.expect("there"), 0, "once");
        assert_eq!(layout(&options), "2 3 1");
        works(&old, "running").await;
        let more = options.clone().buckets(64);
        let started = RedisStore::connect(more).await.expect("an old one starts");
        assert_eq!(started.client.layout.buckets, 3, "and finds what is there");
        works(&started, "started").await;
        assert_eq!(layout(&options), "2 3 1", "nothing was taken back");

        let after = later(&[ADDS, BREAKS]);
        let refused =
            migrate(&options, after, By::Start).await.expect_err("old ones may be at work");
        assert!(matches!(refused, RedisConnectError::Breaking { migration: "breaks" }));
        RedisStore::connect(options.clone()).await.expect("it is as it was");
        assert_eq!(migrate(&options, after, By::Hand).await.expect("asked for"), 1);
        let refused = RedisStore::connect(options.clone()).await.expect_err("shut out");
        assert!(matches!(refused, RedisConnectError::Newer { found: 3, known: 1 }), "{refused}");
        let fresh = options.clone().prefix(format!("{}_fresh", options.prefix));
        let made = migrate(&fresh, after, By::Start).await.expect("nobody is at work there");
        assert_eq!((made, &*layout(&fresh)), (3, "3 3 3"));
    }

    #[tokio::test]
    async fn a_layout_from_before_it_said_who_may_use_it_is_used_by_those_who_know_all_of_it() {
        let options = options();
        let set = |layout: &str| {
            Redis::shared().cli(&["SET", &format!("{{{}:0}}layout", options.prefix), layout])
        };
        set("1 7");
        let store = RedisStore::connect(options.clone()).await.expect("it is known");
        assert_eq!((store.client.layout.buckets, &*layout(&options)), (7, "1 7"));
        works(&store, "known").await;
        // Whoever brings it up says so.
        assert_eq!(migrate(&options, later(&[ADDS]), By::Start).await.expect("added"), 1);
        assert_eq!(layout(&options), "2 7 1");

        set("2 7");
        let refused = RedisStore::connect(options.clone()).await.expect_err("it does not say");
        assert!(matches!(refused, RedisConnectError::Newer { found: 2, known: 1 }), "{refused}");
        for unreadable in ["", "x 7 1", "1", "1 0 1", "1 x 1"] {
            set(unreadable);
            let refused = RedisStore::connect(options.clone()).await.expect_err("it is none");
            assert!(matches!(refused, RedisConnectError::Layout { .. }), "{unreadable}");
        }
    }
}

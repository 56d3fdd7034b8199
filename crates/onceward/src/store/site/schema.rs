use std::{collections::BTreeMap, fmt::Write as _};

use sha2::{Digest as _, Sha256};

/// One step of a schema: its place in the list is the version that it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
    /// The statements, in the store's own language.
    pub sql: &'static str,
    /// Whether processes that do not know it must not use the schema any more. Such a migration takes
    /// away, or gives another name to, what they call, so that those that run fail instead of
    /// doing something else.
    pub breaks: bool,
}

impl Migration {
    /// What tells its statements from any others: SHA-256 of their lines, in hexadecimal digits. How lines
    /// end depends on where the sources were checked out.
    pub fn checksum(&self) -> String {
        let mut digest = Sha256::new();
        for line in self.sql.lines() {
            digest.update(line);
            digest.update(b"\n");
        }
        let mut text = String::with_capacity(64);
        for byte in digest.finalize() {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

/// One migration, as it is or was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The version that it makes.
    pub version: u32,
    /// What it is.
    pub migration: &'static Migration,
}

/// The schema of a store, seen from this version.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Schema {
    /// The version it has; 0 when there is none.
    pub found: u32,
    /// The newest version that is known here.
    pub known: u32,
    /// Whoever knows at least this version may use it. `None` if the schema does not say: then only
    /// those who know all of it.
    pub since: Option<u32>,
    /// What is left to do.
    pub pending: Vec<Step>,
    /// The first migration that was applied in another text than this version has for it.
    pub changed: Option<Step>,
}

/// What a schema is to this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not there yet.
    Absent,
    /// There are migrations to apply.
    Behind,
    /// The one that is known.
    Current,
    /// Newer, and this version may use it.
    Ahead,
    /// Newer, and this version must not use it.
    Incompatible,
    /// Made by other migrations than those that are known here, under the same numbers: this version must
    /// not use it.
    Changed,
}

impl Standing {
    /// Its name in answers.
    pub fn name(self) -> &'static str {
        match self {
            Standing::Absent => "absent",
            Standing::Behind => "behind",
            Standing::Current => "current",
            Standing::Ahead => "ahead",
            Standing::Incompatible => "incompatible",
            Standing::Changed => "changed",
        }
    }
}

impl Schema {
    /// One of this version, and that says to be used from that one on.
    pub fn new(found: u32, since: Option<u32>, migrations: &'static [Migration]) -> Self {
        let steps = (1..).zip(migrations).map(|(version, migration)| Step { version, migration });
        Schema {
            found,
            known: u32::try_from(migrations.len()).unwrap_or(u32::MAX),
            since,
            pending: steps.filter(|step| step.version > found).collect(),
            changed: None,
        }
    }

    /// The same, with what was applied compared with what is known: by the checksums that the schema keeps,
    /// of each version one. A version without a checksum was applied before they were kept.
    #[must_use]
    pub fn compared(
        mut self,
        kept: &BTreeMap<u32, String>,
        migrations: &'static [Migration],
    ) -> Self {
        let mut steps =
            (1..).zip(migrations).map(|(version, migration)| Step { version, migration });
        self.changed = steps.find(|step| {
            step.version <= self.found
                && kept.get(&step.version) != Some(&step.migration.checksum())
        });
        self
    }

    /// What it is to this version.
    pub fn standing(&self) -> Standing {
        let may_use = self.since.is_some_and(|since| since <= self.known);
        match self.found {
            found if found > self.known && !may_use => Standing::Incompatible,
            _ if self.changed.is_some() => Standing::Changed,
            found if found == self.known => Standing::Current,
            0 => Standing::Absent,
            found if found < self.known => Standing::Behind,
            _ => Standing::Ahead,
        }
    }
}

/// Under which name the schema remembers the checksum of the migration that makes this version.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) fn checksum_name(version: u32) -> String {
    format!("{CHECKSUM_OF}{version}")
}

/// What those names begin with.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) const CHECKSUM_OF: &str = "migration ";

/// The checksums by version, of names and values that the schema remembers.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) fn checksums(
    remembered: impl IntoIterator<Item = (String, String)>,
) -> BTreeMap<u32, String> {
    let read = |(name, checksum): (String, String)| {
        Some((name.strip_prefix(CHECKSUM_OF)?.parse().ok()?, checksum))
    };
    remembered.into_iter().filter_map(read).collect()
}

/// Who asks for migrations.
#[cfg(any(
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis",
    feature = "dynamodb"
))]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// A process that starts, maybe beside older ones.
    Start,
    /// A person, who was told what it does.
    Hand,
}

/// Who knows at least this version may use a schema that these migrations have made.
#[cfg(any(
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis",
    feature = "dynamodb"
))]
pub(crate) fn since(migrations: &[Migration]) -> u32 {
    let last = (1..).zip(migrations).filter(|(_, migration)| migration.breaks).last();
    last.map_or(1, |(version, _)| version)
}

/// The first migration after this version that shuts out processes which may be at work. Nobody is at
/// work on a schema that is not there.
#[cfg(any(
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis",
    feature = "dynamodb"
))]
pub(crate) fn breaking(found: u32, migrations: &[Migration]) -> Option<&Migration> {
    let pending = (1..).zip(migrations).filter(|(version, _)| found > 0 && *version > found);
    pending.map(|(_, migration)| migration).find(|migration| migration.breaks)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn migration(breaks: bool) -> Migration {
        Migration { name: "some", about: "", sql: "", breaks }
    }

    /// Versions 2 and 4 shut older ones out.
    const MIGRATIONS: [Migration; 5] =
        [migration(false), migration(true), migration(false), migration(true), migration(false)];

    #[test]
    fn an_older_version_uses_a_newer_schema_that_says_so_and_no_other() {
        let standing = |found, since| Schema::new(found, since, &MIGRATIONS[..3]).standing();
        assert_eq!(standing(0, None), Standing::Absent);
        assert_eq!(standing(2, Some(2)), Standing::Behind);
        assert_eq!(standing(3, None), Standing::Current, "one from before it was written down");
        assert_eq!(standing(4, Some(3)), Standing::Ahead);
        assert_eq!(standing(4, Some(4)), Standing::Incompatible);
        assert_eq!(standing(4, None), Standing::Incompatible, "it does not say");
        assert_eq!(Schema::new(0, None, &[]).standing(), Standing::Current, "nothing to have");
    }

    #[test]
    fn what_is_left_to_do_is_what_comes_after_the_version_that_is_there() {
        let versions = |found| {
            let schema = Schema::new(found, None, &MIGRATIONS);
            schema.pending.iter().map(|step| step.version).collect::<Vec<_>>()
        };
        assert_eq!(versions(0), [1, 2, 3, 4, 5]);
        assert_eq!(versions(3), [4, 5]);
        assert!(versions(5).is_empty() && versions(9).is_empty());
    }

    #[test]
    fn what_was_applied_in_another_text_is_not_what_is_known_here() {
        const ONE: Migration =
            Migration { sql: "CREATE TABLE one (a text);\n", ..migration(false) };
        const TWO: Migration =
            Migration { sql: "CREATE TABLE two (a text);\n", ..migration(false) };
        static KNOWN: [Migration; 2] = [ONE, TWO];
        let seen = |found, since, kept: &[(u32, &Migration)]| {
            let kept = kept.iter().map(|(version, it)| (*version, it.checksum())).collect();
            let schema = Schema::new(found, since, &KNOWN).compared(&kept, &KNOWN);
            (schema.standing(), schema.changed.map(|step| step.version))
        };
        assert_eq!(seen(0, None, &[]), (Standing::Absent, None));
        assert_eq!(seen(1, None, &[(1, &ONE)]), (Standing::Behind, None));
        assert_eq!(seen(2, None, &[(1, &ONE), (2, &TWO)]), (Standing::Current, None));
        assert_eq!(seen(3, Some(1), &[(1, &ONE), (2, &TWO), (3, &ONE)]), (Standing::Ahead, None));

        assert_eq!(seen(2, None, &[(1, &ONE), (2, &ONE)]), (Standing::Changed, Some(2)));
        assert_eq!(seen(1, None, &[(1, &TWO)]), (Standing::Changed, Some(1)));
        assert_eq!(seen(2, None, &[]), (Standing::Changed, Some(1)), "none was kept");
        assert_eq!(seen(3, Some(1), &[(1, &ONE), (3, &TWO)]), (Standing::Changed, Some(2)));
        assert_eq!(seen(3, Some(3), &[(1, &TWO)]), (Standing::Incompatible, Some(1)));

        let elsewhere = Migration { sql: "CREATE TABLE one (a text);\r\n", ..ONE };
        assert_eq!(ONE.checksum(), elsewhere.checksum(), "how lines end does not matter");
        assert_ne!(ONE.checksum(), TWO.checksum());
    }

    #[cfg(any(
        feature = "sqlite",
        feature = "postgres",
        feature = "mysql",
        feature = "redis",
        feature = "dynamodb"
    ))]
    #[test]
    fn the_last_migration_that_breaks_says_who_may_use_the_schema() {
        let sinces: Vec<u32> = (0..=5).map(|count| since(&MIGRATIONS[..count])).collect();
        assert_eq!(sinces, [1, 1, 2, 2, 4, 4]);
        let breaks = |found| breaking(found, &MIGRATIONS).is_some();
        assert!(!breaks(0), "nobody is at work there");
        assert!(breaks(1) && breaks(2) && breaks(3));
        assert!(!breaks(4) && !breaks(5));
    }
}

#![cfg(any(
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis",
    feature = "dynamodb"
))]

use super::{Finding, Schema, Standing};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::clock::Timestamp;

impl Finding {
    /// The version of a schema.
    pub(crate) fn schema(schema: &Schema) -> Self {
        const NAME: &str = "schema";
        let found = format!("version {}, and this onceward knows {}", schema.found, schema.known);
        match schema.standing() {
            Standing::Changed => {
                let name = schema.changed.map_or("", |step| step.migration.name);
                let advice = "another build has made it, perhaps one from before the first release: use \
                              that one, or start with a new schema";
                let found =
                    format!("{found}; `{name}` was applied in another text than it has here");
                Finding::broken(NAME, found, advice)
            }
            Standing::Current => Finding::ok(NAME, found),
            Standing::Absent => Finding::note(
                NAME,
                "not there yet",
                "`onceward migrate up` makes it, and so does the first start",
            ),
            Standing::Behind => Finding::note(
                NAME,
                found,
                "`onceward migrate plan` shows what is pending; `onceward migrate up` applies it, and \
                 so does the next start",
            ),
            Standing::Ahead => Finding::note(
                NAME,
                format!("{found}, which may use it"),
                "finish the rollout of the newer onceward",
            ),
            Standing::Incompatible => Finding::broken(
                NAME,
                format!("{found}, which must not use it"),
                "use the newer onceward",
            ),
        }
    }
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
impl Finding {
    /// The digest of the settings that the store was written under.
    pub(crate) fn identity(digest: Option<&str>) -> Self {
        const NAME: &str = "identity";
        match digest {
            Some(digest) => {
                let begin: String = digest.chars().take(12).collect();
                Finding::ok(NAME, format!("{begin}... is remembered"))
            }
            None => Finding::ok(NAME, "none is remembered; the first start sets it"),
        }
    }

    /// Whether a loss was found that nobody has acknowledged, and how many processes are at work.
    pub(crate) fn canary(found: Option<Timestamp>, alive: u64) -> Self {
        const NAME: &str = "canary";
        match found {
            None => Finding::ok(NAME, format!("no loss was found; {alive} process(es) beat")),
            Some(at) => Finding::broken(
                NAME,
                format!(
                    "the store has lost what it acknowledged, found {}",
                    httpdate::fmt_http_date(at.to_system_time())
                ),
                "`onceward store status` tells more; keys are refused until `onceward store \
                 acknowledge`",
            ),
        }
    }
}

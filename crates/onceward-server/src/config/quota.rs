//! `[quota]`: what one scope may ask for.

use anyhow::{Result, bail, ensure};
use onceward::{Limits, Rate};
use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuotaFile {
    /// New keys of a scope per second; more are 429. Not limited by default.
    #[schemars(range(min = 1))]
    pub(crate) creations_per_second: Option<u32>,
    /// New keys of a scope at once. As many as per second by default.
    #[schemars(range(min = 1))]
    pub(crate) burst: Option<u32>,
    /// Records of a scope in progress at a time in this gateway. Not limited by default.
    #[schemars(range(min = 1))]
    pub(crate) active: Option<u32>,
    /// Requests of a scope with a key per second, replays among them. Not limited by default.
    #[schemars(range(min = 1))]
    pub(crate) lookups_per_second: Option<u32>,
}

pub(super) fn quota(file: &QuotaFile) -> Result<Limits> {
    for (key, given) in [
        ("creations_per_second", file.creations_per_second),
        ("burst", file.burst),
        ("active", file.active),
        ("lookups_per_second", file.lookups_per_second),
    ] {
        ensure!(given != Some(0), "quota.{key} must be at least 1; leave it out for no limit");
    }
    let creations = match (file.creations_per_second, file.burst) {
        (Some(per_second), Some(burst)) => Some(Rate::per_second(per_second).burst(burst)),
        (Some(per_second), None) => Some(Rate::per_second(per_second)),
        (None, None) => None,
        (None, Some(_)) => bail!("quota.burst has a meaning only with creations_per_second"),
    };
    Ok(Limits {
        creations,
        active: file.active,
        lookups: file.lookups_per_second.map(Rate::per_second),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota_of(toml: &str) -> Result<Limits> {
        quota(&toml::from_str(toml).expect("TOML"))
    }

    #[test]
    fn nothing_is_limited_unless_it_is_said() {
        assert_eq!(quota_of("").expect("valid"), Limits::OFF);
        let limits = quota_of("creations_per_second = 5\nactive = 3\nlookups_per_second = 50");
        let limits = limits.expect("valid");
        assert_eq!(limits.creations.map(Rate::parts), Some((5, 5)));
        assert_eq!(limits.active, Some(3));
        assert_eq!(limits.lookups.map(Rate::parts), Some((50, 50)));
        let limits = quota_of("creations_per_second = 5\nburst = 20").expect("valid");
        assert_eq!(limits.creations.map(Rate::parts), Some((5, 20)));
    }

    #[test]
    fn limits_under_which_nothing_could_run_are_refused() {
        for toml in
            ["creations_per_second = 0", "active = 0", "lookups_per_second = 0", "burst = 5"]
        {
            let error = quota_of(toml).expect_err(toml).to_string();
            assert!(error.starts_with("quota."), "{error}");
        }
    }
}

//! `[workers]`: what is done though no client comes, and how often.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use onceward::worker::{Reaper, Surveyor, Sweeper};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{duration, secret::Text};
use crate::cli::{Only, ServeArgs};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkersFile {
    /// How often attempts are looked for whose lease ran out. 30s by default, `1s` to `1h`.
    pub(crate) sweep_every: Option<Text>,
    /// How often what is past its retention is dropped. 5m by default, `1s` to `24h`.
    pub(crate) reap_every: Option<Text>,
    /// How often the gauges of the store are read. 15s by default, `1s` to `1h`.
    pub(crate) survey_every: Option<Text>,
    /// How long audit records are kept. 365d by default, never under `1d`.
    pub(crate) audit_retention: Option<Text>,
    /// How long delivered messages of the outbox are kept. 7d by default, never under `1h`.
    pub(crate) message_retention: Option<Text>,
}

/// Which workers run in this process, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Workers {
    /// What this process does.
    pub(crate) role: Role,
    pub(crate) sweep_every: Duration,
    pub(crate) reap_every: Duration,
    pub(crate) survey_every: Duration,
    pub(crate) audit_retention: Duration,
    pub(crate) message_retention: Duration,
}

/// What one process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Serves clients, and runs the workers.
    All,
    /// Serves clients. The workers run elsewhere.
    Gateway,
    /// Runs the workers. Clients are served elsewhere.
    Worker,
}

impl Role {
    fn of(args: &ServeArgs) -> Role {
        match (args.only, args.no_workers) {
            (Some(Only::Worker), _) => Role::Worker,
            (None, true) => Role::Gateway,
            (None, false) => Role::All,
        }
    }

    pub(crate) fn serves(self) -> bool {
        self != Role::Worker
    }

    pub(crate) fn works(self) -> bool {
        self != Role::Gateway
    }
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
const FOR_EVER: Duration = Duration::MAX;

pub(super) fn workers(args: &ServeArgs, file: &WorkersFile) -> Result<Workers> {
    Ok(Workers {
        role: Role::of(args),
        sweep_every: within("sweep_every", &file.sweep_every, Sweeper::EVERY, SECOND, HOUR)?,
        reap_every: within("reap_every", &file.reap_every, Reaper::EVERY, SECOND, DAY)?,
        survey_every: within("survey_every", &file.survey_every, Surveyor::EVERY, SECOND, HOUR)?,
        audit_retention: within(
            "audit_retention",
            &file.audit_retention,
            Reaper::AUDIT_RETENTION,
            DAY,
            FOR_EVER,
        )?,
        message_retention: within(
            "message_retention",
            &file.message_retention,
            DAY * 7,
            HOUR,
            FOR_EVER,
        )?,
    })
}

fn within(
    key: &str,
    given: &Option<Text>,
    default: Duration,
    least: Duration,
    most: Duration,
) -> Result<Duration> {
    let Some(text) = given else { return Ok(default) };
    let given = duration::parse(text.as_str()).with_context(|| format!("workers.{key}"))?;
    ensure!(given >= least, "workers.{key} must be at least {}s", least.as_secs());
    ensure!(given <= most, "workers.{key} must be at most {}s", most.as_secs());
    Ok(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(toml: &str) -> Result<Workers> {
        workers(&ServeArgs::default(), &toml::from_str(toml).expect("TOML"))
    }

    #[test]
    fn workers_have_defaults_and_other_times_are_read() {
        let defaults = read("").expect("valid");
        assert_eq!((defaults.sweep_every, defaults.reap_every), (SECOND * 30, SECOND * 300));
        assert_eq!((defaults.audit_retention, defaults.role), (DAY * 365, Role::All));
        let other = read("sweep_every = \"2s\"\nreap_every = \"1h\"\naudit_retention = \"30d\"");
        let other = other.expect("valid");
        assert_eq!((other.sweep_every, other.reap_every), (SECOND * 2, HOUR));
        assert_eq!(other.audit_retention, DAY * 30);
    }

    #[test]
    fn times_that_would_harm_are_refused_and_named() {
        for (toml, key) in [
            ("sweep_every = \"0s\"", "sweep_every"),
            ("sweep_every = \"2h\"", "sweep_every"),
            ("reap_every = \"999ms\"", "reap_every"),
            ("survey_every = \"soon\"", "survey_every"),
            ("audit_retention = \"1h\"", "audit_retention"),
            ("message_retention = \"1m\"", "message_retention"),
        ] {
            let error = format!("{:#}", read(toml).expect_err(toml));
            assert!(error.starts_with(&format!("workers.{key}")), "{error}");
        }
    }

    #[test]
    fn a_process_serves_or_works_or_does_both() {
        let role = |only, no_workers| {
            let role = Role::of(&ServeArgs { only, no_workers, ..ServeArgs::default() });
            (role.serves(), role.works())
        };
        assert_eq!(role(None, false), (true, true));
        assert_eq!(role(None, true), (true, false));
        assert_eq!(role(Some(Only::Worker), false), (false, true));
    }
}

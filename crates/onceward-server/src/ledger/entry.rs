//! What stands on each side: entries of ours, charges of the provider.

use serde::{Deserialize, Serialize};

use super::Amount;

/// What we know of one operation or message. As a line of JSON it is what `ledger export` writes and
/// `--ours` reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// The handle of the record, or of the record that staged the message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) record: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) scope: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) key: String,
    #[serde(default = "first")]
    pub(crate) generation: u32,
    #[serde(default)]
    pub(crate) source: Source,
    #[serde(default)]
    pub(crate) state: Standing,
    /// The status that was replied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    /// What the provider calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) provider_id: Option<String>,
    /// The id was noted while the operation ran: what came of it, its state says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) noted: bool,
    /// The idempotency key that the provider saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sent_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) amount: Option<Amount>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) currency: Option<String>,
    /// When the attempt began that acted, or the message was delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<String>,
}

fn first() -> u32 {
    1
}

/// Where an entry comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    #[default]
    Operation,
    Message,
}

/// The state of a record or of a message, by its stored name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Standing {
    Pending,
    InProgress,
    #[default]
    Completed,
    FailedRetryable,
    Unknown,
    Expired,
    Ready,
    Delivering,
    Done,
    Dead,
}

impl Standing {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Standing::Pending => "pending",
            Standing::InProgress => "in_progress",
            Standing::Completed => "completed",
            Standing::FailedRetryable => "failed_retryable",
            Standing::Unknown => "unknown",
            Standing::Expired => "expired",
            Standing::Ready => "ready",
            Standing::Delivering => "delivering",
            Standing::Done => "done",
            Standing::Dead => "dead",
        }
    }
}

/// What we would say if we were asked whether there is a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// There is one.
    Charged,
    /// There is none: it was refused, or not executed.
    NotCharged,
    /// Nobody knows yet.
    Open,
    /// We have forgotten.
    Forgotten,
}

impl Entry {
    pub(crate) fn claim(&self) -> Claim {
        match self.state {
            Standing::Completed | Standing::Done if self.provider_id.is_some() && !self.noted => {
                Claim::Charged
            }
            Standing::Completed if self.status.is_some_and(|status| status >= 300) => {
                Claim::NotCharged
            }
            Standing::Completed | Standing::Done => Claim::Charged,
            Standing::FailedRetryable => Claim::NotCharged,
            Standing::Expired => Claim::Forgotten,
            Standing::Pending
            | Standing::InProgress
            | Standing::Unknown
            | Standing::Ready
            | Standing::Delivering
            | Standing::Dead => Claim::Open,
        }
    }

    /// Which use of which key it belongs to. An operation and its own message are one.
    pub(super) fn generation(&self) -> (&str, &str, &str, u32) {
        (&self.record, &self.scope, &self.key, self.generation)
    }
}

/// One row of the provider's export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Charge {
    /// Where it stands in the export, from 1.
    pub(crate) line: u64,
    pub(crate) id: String,
    /// The idempotency key that came with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) amount: Option<Amount>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) currency: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<String>,
}

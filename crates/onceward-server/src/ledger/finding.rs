//! What is told of a comparison.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Charge, Entry};

/// What is wrong, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// The provider has more charges under a key than we have operations.
    DoubleCharge,
    /// The provider has a charge of which we say that there is none: a retry would charge again.
    Contradicted,
    /// The provider has a charge whose outcome we do not know yet.
    Unsettled,
    /// The provider has a charge that nobody here knows of.
    MissingHere,
    /// Both have it, with another amount or currency.
    DifferentAmount,
    /// We have a charge that the provider does not have.
    MissingThere,
    /// Several operations of ours claim the same charge.
    RepeatedHere,
    /// The export has the same id more than once.
    RepeatedThere,
    /// We say that there is a charge, and have no id or no amount to compare.
    IncompleteHere,
    /// We do not know yet whether there is a charge, and the export does not tell.
    Open,
}

impl Kind {
    /// All of them.
    pub(crate) const ALL: [Kind; 10] = [
        Kind::DoubleCharge,
        Kind::Contradicted,
        Kind::Unsettled,
        Kind::MissingHere,
        Kind::DifferentAmount,
        Kind::MissingThere,
        Kind::RepeatedHere,
        Kind::RepeatedThere,
        Kind::IncompleteHere,
        Kind::Open,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::DoubleCharge => "double_charge",
            Kind::Contradicted => "contradicted",
            Kind::Unsettled => "unsettled",
            Kind::MissingHere => "missing_here",
            Kind::DifferentAmount => "different_amount",
            Kind::MissingThere => "missing_there",
            Kind::RepeatedHere => "repeated_here",
            Kind::RepeatedThere => "repeated_there",
            Kind::IncompleteHere => "incomplete_here",
            Kind::Open => "open",
        }
    }

    /// What it means and what to do, in one sentence each.
    pub(crate) const fn advice(self) -> &'static str {
        match self {
            Kind::DoubleCharge => {
                "Charged more than once under one key. Refund what is too much, and find who sent \
                 it past the gateway or under a key that the provider had forgotten."
            }
            Kind::Contradicted => {
                "Charged there, and here it counts as not executed: the next retry charges again. \
                 Stop that retry, then correct the record."
            }
            Kind::Unsettled => {
                "Charged there, and open here. Resolve it as completed (`onceward keys resolve`), \
                 with the export as evidence."
            }
            Kind::MissingHere => {
                "Charged there, and nobody here knows of it: it did not come through Onceward, or \
                 its record is gone."
            }
            Kind::DifferentAmount => "The amounts or currencies differ. Ask whose is right.",
            Kind::MissingThere => {
                "We told a client of a charge that the provider does not have. Look it up there by \
                 its id; the export may end too early."
            }
            Kind::RepeatedHere => {
                "Several operations claim one charge: somebody was told of a charge that is not \
                 theirs."
            }
            Kind::RepeatedThere => "The export has this id more than once. The first row counted.",
            Kind::IncompleteHere => {
                "Charged by our account, without an id or an amount to compare. Is the JSON pointer \
                 right, or is the record about something else (--filter)?"
            }
            Kind::Open => "Not known yet here, and not told by the export.",
        }
    }

    /// Whether the two sides disagree because of it. What is open is told and does not count.
    pub(crate) const fn is_difference(self) -> bool {
        !matches!(self, Kind::Open)
    }
}

/// One thing that is to be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    #[serde(rename = "finding")]
    pub(crate) kind: Kind,
    /// The charges of the provider that it is about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) theirs: Vec<Charge>,
    /// What we know of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) ours: Vec<Entry>,
}

/// How many of what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Summary {
    /// Nothing was found that is a difference.
    pub(crate) agree: bool,
    /// Rows of the export that were compared.
    pub(crate) charges: u64,
    /// Rows of the export that `--where` left out.
    pub(crate) left_out: u64,
    /// Our operations and messages.
    pub(crate) entries: u64,
    /// Charges that both sides have under the same id.
    pub(crate) matched: u64,
    /// Charges that both sides have under the same key, where we have no id.
    pub(crate) matched_by_key: u64,
    /// Matched, and one side tells no amount.
    pub(crate) amounts_not_compared: u64,
    /// On one side only, and outside the period: the other side's window ends before it.
    pub(crate) outside: u64,
    /// Entries of ours that are no charge, and that nobody contradicts.
    pub(crate) no_charge: u64,
    /// Entries of ours whose retention is over, and of which only the key is left.
    pub(crate) forgotten: u64,
    /// How many of each kind; all kinds are there.
    pub(crate) findings: BTreeMap<Kind, u64>,
}

impl Summary {
    /// Before anything was compared.
    pub(super) fn empty() -> Summary {
        let findings = Kind::ALL.into_iter().map(|kind| (kind, 0)).collect();
        Summary { findings, ..Summary::default() }
    }

    /// How many differences there are.
    pub(crate) fn differences(&self) -> u64 {
        let differences = self.findings.iter().filter(|(kind, _)| kind.is_difference());
        differences.map(|(_, count)| count).sum()
    }
}

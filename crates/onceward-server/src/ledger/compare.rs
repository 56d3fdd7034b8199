//! The comparison itself: what a group of entries and charges means. No files and no clock.
//!
//! First all that share a provider id are looked at together, then all that share a key.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::{Charge, Claim, Entry, Finding, Kind, Summary, entry::Source};

/// An entry of ours, on its way through the comparison.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ours {
    pub(super) entry: Entry,
    /// Within the period.
    pub(super) inside: bool,
    /// The provider has its id.
    pub(super) matched: bool,
}

/// A charge of theirs, likewise.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Theirs {
    pub(super) charge: Charge,
    pub(super) inside: bool,
    /// We have its id.
    pub(super) matched: bool,
}

/// All that share an id or a key, each side in the order in which it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    pub(super) ours: Vec<Ours>,
    pub(super) theirs: Vec<Theirs>,
}

impl Group {
    fn is_inside(&self) -> bool {
        self.ours.iter().any(|ours| ours.inside) || self.theirs.iter().any(|theirs| theirs.inside)
    }

    /// How many uses of keys there are among ours.
    fn operations(&self) -> usize {
        let mut seen: Vec<_> = self.ours.iter().map(|ours| ours.entry.generation()).collect();
        seen.sort_unstable();
        seen.dedup();
        seen.len()
    }

    fn finding(&self, kind: Kind) -> Finding {
        Finding {
            kind,
            theirs: self.theirs.iter().map(|theirs| theirs.charge.clone()).collect(),
            ours: self.ours.iter().map(|ours| ours.entry.clone()).collect(),
        }
    }
}

/// Takes a finding.
pub(super) type Tell<'t> = dyn FnMut(&Finding) -> Result<()> + 't;

/// Where findings go, and what is counted beside them.
pub(super) struct Told<'t> {
    pub(super) summary: Summary,
    pub(super) tell: Box<Tell<'t>>,
}

impl Told<'_> {
    fn say(&mut self, finding: &Finding) -> Result<()> {
        *self.summary.findings.entry(finding.kind).or_default() += 1;
        (self.tell)(finding)
    }

    /// Says it if it is within the period.
    fn say_inside(&mut self, inside: bool, finding: &Finding) -> Result<()> {
        if inside {
            return self.say(finding);
        }
        self.summary.outside += 1;
        Ok(())
    }
}

/// Looks at all that share a provider id. What is returned may have more to tell by its keys.
pub(super) fn by_id(mut group: Group, told: &mut Told<'_>) -> Result<Group> {
    let inside = group.is_inside();
    if group.theirs.len() > 1 && inside {
        told.say(&group.finding(Kind::RepeatedThere))?;
    }
    group.theirs.truncate(1);
    if group.operations() > 1 && inside {
        told.say(&group.finding(Kind::RepeatedHere))?;
    }
    let Some(theirs) = group.theirs.first_mut() else {
        // What was noted of an operation that is open, or did not charge, need not be there.
        let charged = group.ours.iter().filter(|ours| ours.entry.claim() == Claim::Charged);
        let charged = Group { ours: charged.cloned().collect(), theirs: Vec::new() };
        if !charged.ours.is_empty() {
            told.say_inside(charged.is_inside(), &charged.finding(Kind::MissingThere))?;
        }
        return Ok(group);
    };
    if group.ours.is_empty() {
        if theirs.charge.key.is_none() {
            told.say_inside(inside, &group.finding(Kind::MissingHere))?;
        }
        return Ok(group);
    }
    theirs.matched = true;
    let mut agree = false;
    for ours in &mut group.ours {
        ours.matched = true;
        let kind = match ours.entry.claim() {
            Claim::Charged | Claim::Forgotten => {
                agree = true;
                amounts(ours, theirs, told)?;
                continue;
            }
            Claim::Open => Kind::Unsettled,
            Claim::NotCharged => Kind::Contradicted,
        };
        let both = Group { ours: vec![ours.clone()], theirs: vec![theirs.clone()] };
        told.say_inside(both.is_inside(), &both.finding(kind))?;
    }
    told.summary.matched += u64::from(agree);
    Ok(group)
}

/// Looks at all that share a key, after their ids were.
pub(super) fn by_key(mut group: Group, told: &mut Told<'_>) -> Result<()> {
    // In the order of the export, whichever part they were in.
    group.theirs.sort_by_key(|theirs| theirs.charge.line);
    if group.theirs.len() > group.operations().max(1) {
        return told.say_inside(group.is_inside(), &group.finding(Kind::DoubleCharge));
    }
    for theirs in std::mem::take(&mut group.theirs) {
        if !theirs.matched {
            unmatched(theirs, &mut group.ours, told)?;
        }
    }
    group.ours.iter().filter(|ours| !ours.matched).try_for_each(|ours| left(ours, told))
}

/// A charge whose id we do not have: what do we know by its key?
fn unmatched(theirs: Theirs, ours: &mut Vec<Ours>, told: &mut Told<'_>) -> Result<()> {
    // What explains it best first. Two scopes may use one key.
    let known = ours.iter().enumerate().filter(|(_, ours)| !ours.matched);
    let best = known.min_by_key(|(_, ours)| (explains(&ours.entry), &ours.entry.provider_id));
    let best = best.map(|(index, _)| index);
    let Some(ours) = best.map(|index| ours.remove(index)) else {
        let alone = Group { ours: Vec::new(), theirs: vec![theirs] };
        return told.say_inside(alone.is_inside(), &alone.finding(Kind::MissingHere));
    };
    let kind = match ours.entry.claim() {
        Claim::Charged if ours.entry.provider_id.is_some() => Kind::MissingHere,
        Claim::Charged | Claim::Forgotten => {
            told.summary.matched_by_key += 1;
            return amounts(&ours, &theirs, told);
        }
        Claim::Open => Kind::Unsettled,
        Claim::NotCharged => Kind::Contradicted,
    };
    let both = Group { ours: vec![ours], theirs: vec![theirs] };
    told.say_inside(both.is_inside(), &both.finding(kind))
}

fn explains(entry: &Entry) -> u8 {
    match entry.claim() {
        Claim::Charged if entry.provider_id.is_none() => 0,
        Claim::Forgotten => 1,
        Claim::Open => 2,
        Claim::NotCharged => 3,
        Claim::Charged => 4,
    }
}

/// An entry of which the export says nothing.
pub(super) fn left(ours: &Ours, told: &mut Told<'_>) -> Result<()> {
    let alone = || Group { ours: vec![ours.clone()], theirs: Vec::new() };
    match ours.entry.claim() {
        // What has an id was told by it.
        Claim::Charged if ours.entry.provider_id.is_some() => Ok(()),
        Claim::Charged => told.say_inside(ours.inside, &alone().finding(Kind::IncompleteHere)),
        Claim::Open => told.say_inside(ours.inside, &alone().finding(Kind::Open)),
        Claim::NotCharged => {
            told.summary.no_charge += 1;
            Ok(())
        }
        Claim::Forgotten => {
            told.summary.forgotten += 1;
            Ok(())
        }
    }
}

fn amounts(ours: &Ours, theirs: &Theirs, told: &mut Told<'_>) -> Result<()> {
    let inside = ours.inside || theirs.inside;
    let finding = |kind| Finding {
        kind,
        theirs: vec![theirs.charge.clone()],
        ours: vec![ours.entry.clone()],
    };
    let differ = match (&ours.entry.currency, &theirs.charge.currency) {
        (Some(our), Some(their)) => !our.eq_ignore_ascii_case(their),
        _ => false,
    };
    let differ = match (ours.entry.amount, theirs.charge.amount) {
        (Some(our), Some(their)) => differ || our != their,
        (None, None) => differ,
        (our, _) => {
            told.summary.amounts_not_compared += 1;
            // A message need not carry what is charged, and what was forgotten cannot.
            let should_have_one = ours.entry.source == Source::Operation
                && ours.entry.claim() == Claim::Charged
                && our.is_none();
            if should_have_one && !differ && inside {
                return told.say(&finding(Kind::IncompleteHere));
            }
            differ
        }
    };
    if differ && inside {
        return told.say(&finding(Kind::DifferentAmount));
    }
    Ok(())
}

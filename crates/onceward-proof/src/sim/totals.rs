//! What a set of runs has met: runs that met too little have proved too little.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::{Run, faults};
use crate::history::{Cause, Stand, What};

/// What a set of runs has met.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Runs.
    pub runs: u64,
    /// Things that happened, each of them judged.
    pub events: u64,
    /// Requests of clients.
    pub requests: u64,
    /// Their answers, by outcome.
    pub answers: BTreeMap<String, u64>,
    /// Calls of upstream.
    pub calls: u64,
    /// Effects.
    pub effects: u64,
    /// Faults, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Transitions of records.
    pub arrows: BTreeMap<String, u64>,
    /// Meetings, by name.
    pub met: BTreeMap<&'static str, u64>,
    /// Messages that were committed.
    pub messages: u64,
    /// Keys of which a store lost something, as its declared class allows.
    pub excused: u64,
    /// Time that passed in the worlds.
    pub simulated: Duration,
}

/// Every arrow that a full set of runs must have taken.
pub const ARROWS: [&str; 34] = [
    "none -> in_progress by reserve",
    "in_progress -> in_progress by reserve",
    "in_progress -> in_progress by renew",
    "in_progress -> completed by complete",
    "in_progress -> failed_retryable by release",
    "in_progress -> failed_retryable by sweep",
    "in_progress -> unknown by mark_unknown",
    "in_progress -> unknown by sweep",
    "in_progress -> unknown by reserve",
    "failed_retryable -> in_progress by reserve",
    "failed_retryable -> expired by reap",
    "unknown -> completed by complete",
    "unknown -> completed by resolve",
    "unknown -> failed_retryable by resolve",
    "completed -> expired by reap",
    "completed -> expired by resolve",
    "completed -> in_progress by reserve",
    "completed -> none by reap",
    "expired -> in_progress by reserve",
    "expired -> none by reap",
    "none -> pending by reserve",
    "completed -> pending by reserve",
    "expired -> pending by reserve",
    "pending -> in_progress by claim",
    "in_progress -> in_progress by claim",
    "in_progress -> pending by release",
    "in_progress -> pending by sweep",
    "unknown -> pending by resolve",
    "pending -> completed by resolve",
    "in_progress -> in_progress by intend",
    "in_progress -> in_progress by save",
    "in_progress -> in_progress by withdraw",
    "in_progress -> in_progress by release",
    "unknown -> in_progress by resolve",
];

/// Every meeting that a full set of runs must have seen: two who come to a record at the same time, in
/// both orders where there are two, and what comes of it.
pub const MEETINGS: [&str; 19] = [
    "sweeper_then_renewal",
    "renewal_then_sweeper",
    "sweeper_then_completion",
    "completion_then_sweeper",
    "two_sweepers",
    "reaper_then_reserve",
    "reserve_then_reaper",
    "two_workers",
    "resumed_after_a_step",
    "step_repeated_under_its_key",
    "two_relays",
    "ambiguous_delivery_repeated",
    "dead_letter_discarded",
    "dead_letter_redriven",
    "two_reconcilers",
    "late_owner_is_asked_about",
    "reconciler_then_late_owner",
    "unknown_becomes_dead_letter",
    "unknown_dead_letter_redriven",
];

impl Totals {
    /// Counts a run.
    pub fn add(&mut self, run: &Run) {
        self.runs += 1;
        self.events += run.history.len() as u64;
        self.excused += run.excused as u64;
        self.simulated += run.simulated();
        for (kind, count) in &run.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        for (meeting, count) in &run.met {
            *self.met.entry(meeting).or_default() += count;
        }
        for event in &run.history {
            match &event.what {
                What::Staged { .. } => self.messages += 1,
                What::Asked { .. } => self.requests += 1,
                What::Called { .. } => self.calls += 1,
                What::Acted { .. } => self.effects += 1,
                What::Answered { answer, .. } => {
                    let outcome = answer.outcome().unwrap_or("none");
                    count(&mut self.answers, outcome);
                }
                What::GaveUp { .. } => count(&mut self.answers, "none: gave up"),
                What::Moved { from, to, cause, .. } => {
                    count(&mut self.arrows, &arrow(from.as_ref(), to.as_ref(), cause));
                }
                _ => {}
            }
        }
    }

    /// Counts what another set has met.
    pub fn merge(&mut self, other: Totals) {
        self.runs += other.runs;
        self.events += other.events;
        self.requests += other.requests;
        self.calls += other.calls;
        self.effects += other.effects;
        self.excused += other.excused;
        self.simulated += other.simulated;
        self.messages += other.messages;
        for (meeting, count) in other.met {
            *self.met.entry(meeting).or_default() += count;
        }
        for (kind, count) in other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        for (outcome, count) in other.answers {
            *self.answers.entry(outcome).or_default() += count;
        }
        for (arrow, count) in other.arrows {
            *self.arrows.entry(arrow).or_default() += count;
        }
    }

    fn answered(&self, outcome: &str) -> u64 {
        self.answers.get(outcome).copied().unwrap_or_default()
    }

    /// What these runs did not meet often enough: each fault, arrow and meeting `at_least` times, and a
    /// reply for at least every fourth request: many come while an outcome is unknown.
    pub fn missing(&self, at_least: u64) -> Vec<String> {
        let few = |name: &str, count: u64| {
            (count < at_least).then(|| format!("{name}: {count} times, {at_least} are asked for"))
        };
        let faults = faults::kinds().into_iter();
        let faults =
            faults.filter_map(|kind| few(kind, self.faults.get(kind).copied().unwrap_or_default()));
        let arrows = ARROWS.iter();
        let arrows = arrows
            .filter_map(|arrow| few(arrow, self.arrows.get(*arrow).copied().unwrap_or_default()));
        // They take two who come at the same time.
        let rarely = at_least.div_ceil(10);
        let met = |name: &str| self.met.get(name).copied().unwrap_or_default();
        let meetings = MEETINGS.iter().filter(|name| met(name) < rarely);
        let meetings =
            meetings.map(|name| format!("{name}: {} times, {rarely} are asked for", met(name)));
        let replies = self.answered("executed") + self.answered("replayed");
        let success = format!("{replies} replies to {} requests", self.requests);
        let success = (replies * 4 < self.requests || replies == 0).then_some(success);
        faults.chain(arrows).chain(meetings).chain(success).collect()
    }
}

fn count(counts: &mut BTreeMap<String, u64>, name: &str) {
    match counts.get_mut(name) {
        Some(count) => *count += 1,
        None => drop(counts.insert(name.to_owned(), 1)),
    }
}

fn arrow(from: Option<&Stand>, to: Option<&Stand>, cause: &Cause) -> String {
    let state = |stand: Option<&Stand>| stand.map_or("none", |stand| &*stand.state).to_owned();
    let by = match cause {
        Cause::Reserve { .. } => "reserve",
        Cause::Claim { .. } => "claim",
        Cause::Write { write, .. } => write,
        Cause::Sweep { .. } => "sweep",
        Cause::Reap { .. } => "reap",
        Cause::Resolve { .. } => "resolve",
        Cause::Lost => "loss",
    };
    format!("{} -> {} by {by}", state(from), state(to))
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.simulated.as_secs_f64() / 86_400.0;
        writeln!(f, "runs              {:>12}", self.runs)?;
        writeln!(f, "events judged     {:>12}", self.events)?;
        writeln!(f, "simulated time    {days:>12.1} days")?;
        writeln!(f, "requests          {:>12}", self.requests)?;
        writeln!(f, "calls of upstream {:>12}", self.calls)?;
        writeln!(f, "effects           {:>12}", self.effects)?;
        writeln!(f, "messages          {:>12}", self.messages)?;
        writeln!(f, "faults            {:>12}", self.faults.values().sum::<u64>())?;
        writeln!(f, "keys excused      {:>12}", self.excused)?;
        table(f, "answers", self.answers.iter().map(|(name, count)| (&**name, *count)))?;
        table(f, "faults", self.faults.iter().map(|(name, count)| (*name, *count)))?;
        table(f, "meetings", self.met.iter().map(|(name, count)| (*name, *count)))?;
        table(f, "arrows", self.arrows.iter().map(|(name, count)| (&**name, *count)))
    }
}

fn table<'a>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    rows: impl Iterator<Item = (&'a str, u64)>,
) -> fmt::Result {
    writeln!(f, "{title}")?;
    for (name, count) in rows {
        writeln!(f, "  {name:<44}{count:>10}")?;
    }
    Ok(())
}

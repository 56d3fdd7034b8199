//! What came of a run.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    fs::File,
    io::BufWriter,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use onceward_testbed::Break;

use super::{
    fleet::{Blow, Moment, fault_kind},
    left::{self, Edge},
    turn::{KillAt, Turn},
};
use crate::{
    check::Violation,
    history::{self, Answer, Event, RequestNo, Subject, What},
};

/// Of the twelve calls between two kills of a server, at least so many act. Upstream declines a sixth.
const EFFECTS_PER_CRASH: usize = 6;

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// The seed of its plan.
    pub seed: u64,
    /// What happened.
    pub history: Vec<Event>,
    /// What must not have happened.
    pub violations: Vec<Violation>,
    /// How often what happened.
    pub counts: Counts,
}

/// How often what happened.
#[derive(Debug, Default)]
pub struct Counts {
    /// Requests of clients.
    pub requests: usize,
    /// Whole answers that clients received.
    pub answers: usize,
    /// Of these, first replies.
    pub replies: usize,
    /// Replays.
    pub replays: usize,
    /// 409: another one is at work.
    pub conflicts: usize,
    /// 422: something else was asked before.
    pub mismatches: usize,
    /// Answers that nobody knows the outcome.
    pub unknowns: usize,
    /// Replies to what was unknown before: upstream was late, or the gateway.
    pub late_replies: usize,
    /// Calls that upstream got.
    pub calls: usize,
    /// Of these, not the first about their subject.
    pub reruns: usize,
    /// Times that upstream acted.
    pub effects: usize,
    /// Faults, by their kind.
    pub faults: BTreeMap<String, usize>,
    /// Requests that a kill left behind, by where they were.
    pub left: BTreeMap<&'static str, usize>,
    /// How long it all took.
    pub time: Duration,
}

impl Counts {
    pub(super) fn of(history: &[Event]) -> Counts {
        let mut counts = Counts { left: left::edges(history), ..Counts::default() };
        let mut called: HashSet<&Subject> = HashSet::new();
        let mut asked: HashMap<RequestNo, &Subject> = HashMap::new();
        let mut unknown: HashSet<&Subject> = HashSet::new();
        for event in history {
            match &event.what {
                What::Asked { request, subject, .. } => {
                    counts.requests += 1;
                    asked.insert(*request, subject);
                }
                What::Answered { request, answer } => {
                    counts.answered(answer);
                    let Some(subject) = asked.get(request).copied() else { continue };
                    if answer.outcome() == Some("unknown") {
                        unknown.insert(subject);
                    } else if matches!(answer.outcome(), Some("executed" | "replayed")) {
                        counts.late_replies += usize::from(unknown.remove(subject));
                    }
                }
                What::Called { subject, .. } => {
                    counts.calls += 1;
                    counts.reruns += usize::from(!called.insert(subject));
                }
                What::Acted { .. } => counts.effects += 1,
                What::Fault { kind, .. } => *counts.faults.entry(kind.clone()).or_default() += 1,
                _ => {}
            }
            counts.time = event.time();
        }
        counts
    }

    fn answered(&mut self, answer: &Answer) {
        self.answers += 1;
        match (answer.outcome(), answer.code().as_deref()) {
            (_, Some("idempotency_outcome_unknown")) => self.unknowns += 1,
            (_, Some("idempotency_key_in_progress")) => self.conflicts += 1,
            (_, Some("idempotency_key_reused_with_different_payload")) => self.mismatches += 1,
            (Some("executed"), None) if answer.status == 201 => self.replies += 1,
            (Some("replayed"), None) => self.replays += 1,
            _ => {}
        }
    }

    /// What was to happen in a run of so many rounds, and did not: such a run passes for want of
    /// trying.
    pub fn lacks(&self, rounds: usize) -> Vec<String> {
        let mut lacks = Vec::new();
        let mut needs = |what: &str, count: usize, least: usize| {
            if count < least {
                lacks.push(format!("{what}: {count} of at least {least}"));
            }
        };
        needs("replies", self.replies, rounds);
        needs("replays", self.replays, rounds);
        needs("effects", self.effects, rounds);
        needs("conflicts", self.conflicts, 1);
        needs("mismatches", self.mismatches, 1);
        needs("unknowns", self.unknowns, 1);
        needs("late replies", self.late_replies, 1);
        needs("reruns", self.reruns, 1);
        let of_processes = Moment::ALL.iter().flat_map(|moment| {
            [Blow::Kill, Blow::Stop(Duration::ZERO)].map(|blow| fault_kind(blow, *moment))
        });
        let breaks = Break::ALL.map(Break::name).into_iter().chain(["delay", "slices"]);
        let of_connections =
            breaks.flat_map(|kind| ["client", "upstream"].map(|border| format!("{border}_{kind}")));
        for kind in of_processes.chain(of_connections) {
            needs(&kind, self.faults.get(&kind).copied().unwrap_or(0), 1);
        }
        lacks
    }

    /// The same for a run in which a server was to be killed so often under load: what clients got done
    /// between two kills.
    pub fn lacks_crashes(&self, crashes: usize) -> Vec<String> {
        let of_clients = [("replies", self.replies), ("replays", self.replays)];
        let few = of_clients.into_iter().filter(|(_, count)| *count < crashes);
        let few = few.map(|(what, count)| format!("{what}: {count} of at least {crashes}"));
        self.lacks_effects(crashes).into_iter().chain(few).collect()
    }

    /// The same where clients may be told of a loss and stop.
    pub fn lacks_effects(&self, crashes: usize) -> Vec<String> {
        let least = EFFECTS_PER_CRASH * crashes;
        let few = (self.effects < least)
            .then(|| format!("effects: {} of at least {least}", self.effects));
        few.into_iter().collect()
    }

    /// The same for a run in which processes were to be killed so often at each edge.
    pub fn lacks_kills(&self, per_edge: usize) -> Vec<String> {
        let kills = Turn::EDGES.map(|at| fault_kind(Blow::Kill, at.moment));
        let mut needs: BTreeMap<&str, usize> = BTreeMap::new();
        kills.iter().for_each(|kind| *needs.entry(kind).or_default() += per_edge);
        let counted = |kind: &str| self.faults.get(kind).copied().unwrap_or(0);
        let kills = needs.into_iter().map(|(kind, least)| (kind, counted(kind), least));
        let left = |edge: Edge| self.left.get(edge.name()).copied().unwrap_or(0);
        // A kill that is aimed at an edge leaves a request there, at the least.
        let aimed = Turn::EDGES.iter().filter_map(|KillAt { leaves, .. }| *leaves);
        let aimed = aimed.map(|edge| (edge.name(), left(edge), per_edge));
        let rounds = per_edge * Turn::EDGES.len();
        let others = [
            (Edge::Unreserved.name(), left(Edge::Unreserved), per_edge / 2),
            ("replies", self.replies, rounds),
            ("replays", self.replays, rounds),
            ("effects", self.effects, rounds),
            ("conflicts", self.conflicts, 1),
            ("unknowns", self.unknowns, per_edge),
        ];
        let all = kills.chain(aimed).chain(others).filter(|(_, count, least)| count < least);
        all.map(|(what, count, least)| format!("{what}: {count} of at least {least}")).collect()
    }
}

impl Report {
    /// Whether nothing is wrong. If something is, the history is written down and the error says
    /// where it is and how to judge it again.
    ///
    /// # Errors
    /// When an invariant is violated, or the history cannot be written.
    pub fn verdict(&self) -> Result<()> {
        if self.violations.is_empty() {
            return Ok(());
        }
        let path = std::env::temp_dir().join(format!("onceward-torture-{}.jsonl", self.seed));
        self.keep(&path)?;
        let first: Vec<String> = self.violations.iter().take(10).map(ToString::to_string).collect();
        bail!(
            "{} violations\n{}\nthe history is in {path}; judge it again with\n  \
             onceward-proof check {path}\nrun the same plan again with --seed {}",
            self.violations.len(),
            first.join("\n"),
            self.seed,
            path = path.display(),
        )
    }

    /// Writes the history to a file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&self, path: &Path) -> Result<()> {
        let write = || history::write(&self.history, BufWriter::new(File::create(path)?));
        write().with_context(|| format!("{} cannot be written", PathBuf::from(path).display()))
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.time.as_secs_f64();
        let counts = [
            ("requests", self.requests),
            ("answers", self.answers),
            ("replies", self.replies),
            ("replays", self.replays),
            ("conflicts", self.conflicts),
            ("mismatches", self.mismatches),
            ("unknowns", self.unknowns),
            ("late replies", self.late_replies),
            ("calls", self.calls),
            ("reruns", self.reruns),
            ("effects", self.effects),
        ];
        let faults = self.faults.iter().map(|(kind, count)| (kind.as_str(), *count));
        let left = self.left.iter().map(|(edge, count)| (*edge, *count));
        for (what, count) in counts.into_iter().chain(left).chain(faults) {
            writeln!(f, "{what:<20} {count:>8}")?;
        }
        writeln!(f, "{:<20} {seconds:>8.1}", "seconds")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_in_which_too_little_happened_is_told_from_one_that_passed() {
        let mut counts = Counts::of(&[]);
        let lacks = counts.lacks(16);
        for kind in ["replies", "unknowns", "reruns", "kill_acted", "stop_replied", "client_reset"]
        {
            assert!(lacks.iter().any(|lack| lack.starts_with(kind)), "{kind}: {lacks:?}");
        }
        for kind in lacks.iter().filter_map(|lack| lack.split(':').next()) {
            counts.faults.insert(kind.to_owned(), 1);
        }
        let enough = [&mut counts.replies, &mut counts.replays, &mut counts.effects];
        enough.into_iter().for_each(|count| *count = 16);
        counts.conflicts = 1;
        counts.mismatches = 1;
        counts.unknowns = 1;
        counts.late_replies = 1;
        assert_eq!(counts.lacks(16), ["reruns: 0 of at least 1"]);
        let lacks = counts.lacks_kills(2);
        assert!(lacks.contains(&"kill_asked: 1 of at least 6".to_owned()), "{lacks:?}");
        assert!(lacks.contains(&"kill_acted: 1 of at least 2".to_owned()), "{lacks:?}");
        assert_eq!(counts.lacks_kills(0), Vec::<String>::new());
    }

    #[test]
    fn kills_that_met_no_edge_are_not_taken_for_kills_at_each() {
        let mut counts = Counts::of(&[]);
        [&mut counts.replies, &mut counts.replays, &mut counts.effects, &mut counts.unknowns]
            .into_iter()
            .for_each(|count| *count = 100);
        counts.conflicts = 1;
        for moment in Moment::ALL {
            counts.faults.insert(fault_kind(Blow::Kill, moment), 100);
        }
        let missing = |counts: &Counts| -> Vec<String> {
            let lacks = counts.lacks_kills(3).into_iter();
            lacks.map(|lack| lack.split(':').next().unwrap_or_default().to_owned()).collect()
        };
        let all = Edge::ALL.map(Edge::name);
        let mut found = missing(&counts);
        found.sort();
        let mut expected = all;
        expected.sort_unstable();
        assert_eq!(found, expected);
        for edge in all {
            counts.left.insert(edge, 3);
        }
        assert_eq!(missing(&counts), Vec::<String>::new());
        counts.left.insert(Edge::Completed.name(), 2);
        assert_eq!(counts.lacks_kills(3), ["left_completed: 2 of at least 3"]);
    }
}

//! Seeded random runs: the same operations on a store and on the model, compared after every step,
//! and made as short as possible when they differ.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use super::{Harness, harness::as_told, samples};
use crate::{
    clock::Timestamp,
    record::{AttemptId, Effects, Fence, Inquiry, Lease, RecordId},
    store::{Advance, Ask, Claim, Mode, Proof, Resolution, Resolve, Which, Write},
};

mod generate;

pub use generate::Seed;

/// Where a key lives: scopes and keys are few, so that operations meet.
const PLACES: [(&str, &str); 3] =
    [("tenant-1", "key-1"), ("tenant-1", "key-2"), ("tenant-2", "key-1")];

/// One operation of a run. Means something after any other operation, so that a failing run can be
/// made shorter by leaving operations out.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Operation {
    Reserve {
        place: usize,
        attempt: u8,
        fingerprint: u8,
        mode: Mode,
        runs_again: bool,
        effects: Effects,
        /// The body of the request that is to be kept.
        request: Option<&'static str>,
    },
    Claim {
        place: usize,
        attempt: u8,
        effects: Effects,
    },
    /// By the lease that the attempt was last granted at that place, or by one that nobody has.
    Write {
        place: usize,
        attempt: u8,
        write: Write,
    },
    /// By the same lease as a write.
    Advance {
        place: usize,
        attempt: u8,
        advance: Advance,
    },
    /// Of the record as it stands, or as it does not.
    Resolve {
        place: usize,
        stale: bool,
        resolution: Decided,
    },
    Sweep {
        limit: u32,
    },
    Reap,
    Forward(Duration),
    Back(Duration),
}

/// A resolution whose times count from the operation's own.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decided {
    Complete(&'static str),
    Executed { attempt: u8, body: &'static str },
    Release,
    ReleaseAfterProbes { first_ago: Duration, second_ago: Duration },
    Void,
    Ask,
    AskStale,
    Absent { apart: Duration },
    AbsentStale,
    DeadLetter,
    Redrive,
}

/// A run in which a store and the model differ, with as few operations as could be found.
#[derive(Debug)]
pub struct Disagreement {
    seed: Seed,
    script: Vec<Operation>,
    difference: String,
}

impl Disagreement {
    /// How many operations it takes.
    pub fn len(&self) -> usize {
        self.script.len()
    }

    /// Whether it takes none at all.
    pub fn is_empty(&self) -> bool {
        self.script.is_empty()
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "store and model differ; ONCEWARD_SEED={} shows it again", self.seed)?;
        for (number, operation) in self.script.iter().enumerate() {
            writeln!(f, "{:>4}. {operation}", number + 1)?;
        }
        write!(f, "      {}", self.difference)
    }
}

impl std::error::Error for Disagreement {}

/// How many sequences the suite runs: 50, or as many as `ONCEWARD_RUNS` says.
///
/// # Panics
/// When `ONCEWARD_RUNS` is not a number.
pub(super) fn sequences() -> u64 {
    match std::env::var("ONCEWARD_RUNS") {
        Ok(runs) => runs.trim().parse().expect("ONCEWARD_RUNS is a number"),
        Err(_) => 50,
    }
}

/// Runs random operations, one sequence per fresh store.
///
/// # Errors
/// With the shortest run found in which store and model differ.
///
/// # Cancel safety
/// May be dropped; nothing was proven then.
pub async fn run(
    on: &Harness,
    seed: Seed,
    sequences: u64,
    operations: usize,
) -> Result<(), Disagreement> {
    for sequence in 0..sequences {
        let seed = seed.plus(sequence);
        let script = generate::script(seed, operations);
        if let Err((step, difference)) = replay(on, &script).await {
            return Err(shrink(on, seed, script, step, difference).await);
        }
    }
    Ok(())
}

/// Leaves out operations, halves first and single ones last, as long as a difference remains.
async fn shrink(
    on: &Harness,
    seed: Seed,
    mut script: Vec<Operation>,
    failed_at: usize,
    mut difference: String,
) -> Disagreement {
    script.truncate(failed_at + 1);
    let mut chunk = script.len().div_ceil(2);
    loop {
        let mut at = 0;
        let mut shorter_found = false;
        while at < script.len() {
            let mut shorter = script.clone();
            shorter.drain(at..script.len().min(at + chunk));
            match replay(on, &shorter).await {
                Ok(()) => at += chunk,
                Err((step, still_different)) => {
                    shorter.truncate(step + 1);
                    script = shorter;
                    difference = still_different;
                    shorter_found = true;
                }
            }
        }
        if chunk == 1 && !shorter_found {
            return Disagreement { seed, script, difference };
        }
        chunk = chunk.div_ceil(2);
    }
}

/// Runs a script on a fresh store and a fresh model. On a difference, says at which step.
async fn replay(on: &Harness, script: &[Operation]) -> Result<(), (usize, String)> {
    let on = on.another().await;
    let mut leases = BTreeMap::new();
    for (step, operation) in script.iter().enumerate() {
        let outcome = match operation.run(&on, &mut leases).await {
            Ok(()) => agree(&on).await,
            different => different,
        };
        outcome.map_err(|difference| (step, difference))?;
    }
    Ok(())
}

type Leases = BTreeMap<(usize, u8), Lease>;

fn same<T: PartialEq + fmt::Debug>(what: &str, store: &T, model: &T) -> Result<(), String> {
    if store == model {
        return Ok(());
    }
    Err(format!("{what}\n      store: {store:?}\n      model: {model:?}"))
}

/// Whether store and model hold the same everywhere.
async fn agree(on: &Harness) -> Result<(), String> {
    for place in 0..PLACES.len() {
        let id = place_id(place);
        let held = on.store.load(&id).await.map_err(|error| format!("load failed: {error}"))?;
        let expected = on.model().load(&id, on.now());
        same(&format!("the record at {} differs", at(place)), &held, &expected)?;
        let held = on.store.audit(&id).await.map_err(|error| format!("audit failed: {error}"))?;
        let agreed = on.model().agrees_on_audit(&id, &held);
        agreed.map_err(|expected| {
            let what = format!("the audit records at {} differ", at(place));
            format!("{what}\n      store: {held:?}\n      model: {expected}")
        })?;
        for generation in 1..4 {
            let held = on.store.steps(&id, generation).await.map_err(failed)?;
            let expected = on.model().steps(&id, generation);
            same(&format!("the steps at {} differ", at(place)), &held, &expected)?;
        }
    }
    let held = on.store.due_unknown(RESUMABLE_MAX, Vec::new()).await.map_err(failed)?;
    let agreed = on.model().agrees_on_due_unknown(&held, RESUMABLE_MAX, on.now());
    agreed.map_err(|expected| {
        format!("what is to be asked about differs\n      store: {held:?}\n      model: {expected}")
    })?;
    for which in [Which::All, Which::Accepted] {
        let held = on.store.resumable(which, RESUMABLE_MAX).await.map_err(failed)?;
        let agreed = on.model().agrees_on_resumable(&held, which, RESUMABLE_MAX, on.now());
        agreed.map_err(|expected| {
            format!("what waits differs\n      store: {held:?}\n      model: {expected}")
        })?;
    }
    Ok(())
}

/// Fewer than there are places, so that the limit counts too.
const RESUMABLE_MAX: u32 = 2;

impl Operation {
    async fn run(&self, on: &Harness, leases: &mut Leases) -> Result<(), String> {
        let now = on.now();
        match self {
            Operation::Reserve { place, attempt, .. } => {
                let ask = self.ask().unwrap_or_else(|| unreachable!("a reserve asks"));
                let answer = on.store.reserve(ask.clone()).await.map_err(failed)?;
                let expected = as_told(&answer, on.model().reserve(&ask, now));
                same("reserve answers differently", &answer, &expected)?;
                remember(leases, *place, *attempt, answer);
            }
            Operation::Claim { place, attempt, effects } => {
                let id = place_id(*place);
                let claim = Claim {
                    id,
                    attempt: attempt_id(*attempt),
                    lease: samples::LEASE,
                    max_execution: samples::MAX_EXECUTION,
                    effects: *effects,
                    fence: None,
                };
                let answer = on.store.claim(claim.clone()).await.map_err(failed)?;
                let expected = on.model().claim(&claim, now);
                same("claim answers differently", &answer, &expected)?;
                remember(leases, *place, *attempt, answer);
            }
            Operation::Write { place, attempt, write } => {
                let nobody = unheld(*place, *attempt, now);
                let lease = leases.get(&(*place, *attempt)).unwrap_or(&nobody);
                let answer = on.store.write(lease, write.clone()).await.map_err(failed)?;
                let expected = on.model().write(lease, write.clone(), now);
                same("write answers differently", &answer, &expected)?;
            }
            Operation::Advance { place, attempt, advance } => {
                let nobody = unheld(*place, *attempt, now);
                let lease = leases.get(&(*place, *attempt)).unwrap_or(&nobody);
                let answer = on.store.advance(lease, advance.clone()).await.map_err(failed)?;
                let expected = on.model().advance(lease, advance.clone());
                same("advance answers differently", &answer, &expected)?;
            }
            Operation::Resolve { place, stale, resolution } => {
                let resolve = decided(on, *place, *stale, resolution);
                let answer = on.store.resolve(resolve.clone()).await.map_err(failed)?;
                let expected = on.model().resolve(resolve, now);
                same("resolve answers differently", &answer, &expected)?;
            }
            Operation::Sweep { limit } => {
                let swept = on.store.sweep(*limit).await.map_err(failed)?;
                on.model().sweep_as(&swept, *limit, now)?;
            }
            Operation::Reap => {
                let reaped = on.store.reap(1_000).await.map_err(failed)?;
                let expected = on.model().reap(now);
                same("reap answers differently", &reaped, &expected)?;
            }
            Operation::Forward(by) => on.clock.advance(*by),
            Operation::Back(by) => {
                let by = i64::try_from(by.as_micros()).unwrap_or(0);
                on.clock.set(Timestamp::from_micros(now.as_micros() - by));
            }
        }
        Ok(())
    }

    fn ask(&self) -> Option<Ask> {
        let Operation::Reserve { place, attempt, fingerprint, mode, runs_again, effects, request } =
            self
        else {
            return None;
        };
        Some(Ask {
            id: place_id(*place),
            attempt: attempt_id(*attempt),
            fingerprint: samples::fingerprint(*fingerprint),
            mode: *mode,
            expired_runs_again: *runs_again,
            effects: *effects,
            request: request.map(|body| Arc::new(samples::request(body))),
            ..samples::ask("unused")
        })
    }
}

fn failed(error: crate::store::StoreError) -> String {
    format!("the store failed: {error}")
}

fn remember(leases: &mut Leases, place: usize, attempt: u8, answer: crate::store::Reservation) {
    if let crate::store::Reservation::Granted { lease, .. } = answer {
        leases.insert((place, attempt), lease);
    }
}

fn unheld(place: usize, attempt: u8, now: Timestamp) -> Lease {
    Lease {
        id: place_id(place),
        attempt: attempt_id(attempt),
        fence: Fence::from_stored(7),
        generation: 1,
        attempt_number: 1,
        until: now,
    }
}

fn decided(on: &Harness, place: usize, stale: bool, resolution: &Decided) -> Resolve {
    let now = on.now();
    let ago = |duration: &Duration| {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(0);
        Timestamp::from_micros(now.as_micros() - micros)
    };
    let id = place_id(place);
    let seen = on.model().load(&id, now).map_or((1, 7), |it| (it.generation, it.fence.number()));
    let inquiry = on.model().load(&id, now).map_or(Inquiry::default(), |it| it.inquiry);
    let Inquiry { probes, asked_at, .. } = inquiry;
    let asked = asked_at.unwrap_or(now);
    let resolution = match resolution {
        Decided::Complete(body) => Resolution::Complete(samples::reply(*body)),
        Decided::Executed { attempt, body } => {
            Resolution::Executed { attempt: attempt_id(*attempt), reply: samples::reply(*body) }
        }
        Decided::Release => Resolution::Release(Proof::Authoritative),
        Decided::ReleaseAfterProbes { first_ago, second_ago } => {
            Resolution::Release(Proof::TwoProbes { first: ago(first_ago), second: ago(second_ago) })
        }
        Decided::Void => Resolution::Void,
        Decided::Ask => Resolution::Ask { probes },
        Decided::AskStale => Resolution::Ask { probes: probes + 1 },
        Decided::Absent { apart } => Resolution::Absent { asked_at: asked, apart: *apart },
        Decided::AbsentStale => {
            let asked_at = Timestamp::from_micros(asked.as_micros() - 1);
            Resolution::Absent { asked_at, apart: Duration::MAX }
        }
        Decided::DeadLetter => Resolution::DeadLetter { asked_at },
        Decided::Redrive => Resolution::Redrive,
    };
    Resolve {
        id,
        generation: seen.0,
        fence: Fence::from_stored(seen.1 - i64::from(stale)),
        resolution,
        reason: "a random decision".into(),
    }
}

fn place_id(place: usize) -> RecordId {
    let (scope, key) = PLACES[place % PLACES.len()];
    samples::id(scope, key)
}

fn attempt_id(attempt: u8) -> AttemptId {
    AttemptId::from_bytes([attempt; 16])
}

fn at(place: usize) -> String {
    let (scope, key) = PLACES[place % PLACES.len()];
    format!("{scope}/{key}")
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Reserve {
                place,
                attempt,
                fingerprint,
                mode,
                runs_again,
                effects,
                request,
            } => {
                let at = at(*place);
                write!(f, "reserve {at} attempt {attempt} request {fingerprint} {mode:?}")?;
                write!(f, " {}", effects.name())?;
                if let Some(body) = request {
                    write!(f, " keeping {body:?}")?;
                }
                if *runs_again { f.write_str(", expired runs again") } else { Ok(()) }
            }
            Operation::Claim { place, attempt, effects } => {
                write!(f, "claim   {} attempt {attempt} {}", at(*place), effects.name())
            }
            Operation::Write { place, attempt, write } => {
                write!(f, "write   {} attempt {attempt} ", at(*place))?;
                match write {
                    Write::Renew(by) => write!(f, "renew by {by:?}"),
                    Write::Complete(reply) => write!(f, "complete {:?}", reply.body_bytes()),
                    Write::Release(why) => write!(f, "release {why:?}"),
                    Write::MarkUnknown(why) => write!(f, "mark unknown {why:?}"),
                }
            }
            Operation::Advance { place, attempt, advance } => {
                write!(f, "advance {} attempt {attempt} {advance:?}", at(*place))
            }
            Operation::Resolve { place, stale, resolution } => {
                let stale = if *stale { " with an old fence" } else { "" };
                write!(f, "resolve {} {resolution:?}{stale}", at(*place))
            }
            Operation::Sweep { limit } => write!(f, "sweep   at most {limit}"),
            Operation::Reap => f.write_str("reap"),
            Operation::Forward(by) => write!(f, "clock   forward by {by:?}"),
            Operation::Back(by) => write!(f, "clock   back by {by:?}"),
        }
    }
}

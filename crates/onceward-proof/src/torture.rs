//! Torture: real processes on a real store, with everything around them broken on purpose.
//!
//! ```text
//! clients -> proxy -> gateway 0 --> proxy -> upstream -> ledger
//!         \> proxy -> gateway 1 -/
//! ```
//!
//! Clients, proxies and upstream live in this process and write one history under one lock. Gateways
//! are `onceward serve`, killed and stopped at random moments and at chosen ones. Upstream writes an
//! effect to its ledger, synced, before it answers; the ledger has to agree with the history. When
//! the rounds are over, everything is started again, every key is asked for once more, and the judge
//! reads what happened.
//!
//! The plan comes from a seed. What the system's scheduler makes of it does not.

use std::{
    collections::HashSet,
    net::TcpListener,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool, atomic::Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use onceward_testbed::{CutProxy, OnFault};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::runtime::Runtime;

use crate::{
    check::{self, Violation},
    history::{CallNo, Event, What},
};

mod charge; // what is asked for
mod client; // those who ask
mod fates; // which connections break
mod fleet; // all gateways, and the blows that they get
mod gateway; // one process
mod http; // messages as bytes
mod left; // where requests were when their process was killed
mod ledger; // what was really done
mod record; // the history
mod report; // what came of it
mod turn; // when which blow falls
mod upstream; // those who act

pub use report::{Counts, Report};

use client::Clients;
use fates::Fates;
use fleet::Fleet;
use gateway::Starting;
use ledger::Ledger;
use record::Recorder;
use turn::Turn;
use upstream::Upstream;

/// Upstream has this long to end the calls that are still open.
const OPEN_CALLS_MAX: Duration = Duration::from_secs(30);

/// How many calls come to upstream before the server of the store is killed.
const CALLS_BETWEEN_CRASHES: CallNo = 12;

/// They come within this, or the run proves nothing.
const CALLS_MAX: Duration = Duration::from_secs(120);

/// What is to be done to whom.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The `onceward` binary.
    pub binary: PathBuf,
    /// Where it keeps its records.
    pub store: Store,
    /// The Redis that is a cache in front of it, if there is one.
    pub cache: Option<String>,
    /// How many processes serve at once, on the same store.
    pub processes: usize,
    /// How many clients ask at once.
    pub clients: usize,
    /// How often a process is killed or stopped.
    pub rounds: usize,
    /// Which blows there are.
    pub blows: Blows,
    /// What happens to the store's own server.
    pub crash: Option<Crash>,
    /// The store may lose what it has acknowledged. That it says so is then an answer for good.
    pub may_lose: bool,
    /// What everything random is drawn from.
    pub seed: u64,
    /// Upstream does some calls twice, as if a balancer had sent them again: a defect that the judge
    /// must find.
    pub upstream_resends: bool,
}

/// Which blows processes get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blows {
    /// Kills and stops, at every moment, and quiet times between them.
    Mixed,
    /// Kills only, at each edge equally often, one soon after the other.
    Kills,
    /// None. It is the store's own server that is killed.
    None,
}

/// Kills the server of the store, and starts it again. Called once in each round.
#[derive(Clone)]
pub struct Crash(Arc<dyn Fn() + Send + Sync>);

impl Crash {
    /// By whoever started it.
    pub fn by(crash: impl Fn() + Send + Sync + 'static) -> Crash {
        Crash(Arc::new(crash))
    }
}

impl std::fmt::Debug for Crash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Crash")
    }
}

/// What a killed server is called among the faults.
pub const STORE_KILLED: &str = "kill_store";

/// Where records are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// In a file that all processes share.
    File,
    /// In the database of this URL, which all processes share.
    At(String),
    /// In each process: forgotten with it, which the judge must find.
    Memory,
}

impl Plan {
    /// Two processes on one file, for so many rounds.
    pub fn new(binary: impl Into<PathBuf>, rounds: usize, seed: u64) -> Plan {
        Plan {
            binary: binary.into(),
            store: Store::File,
            cache: None,
            processes: 2,
            clients: 24,
            rounds,
            blows: Blows::Mixed,
            crash: None,
            may_lose: false,
            seed,
            upstream_resends: false,
        }
    }

    /// The same, killed so often at each edge.
    pub fn kills(binary: impl Into<PathBuf>, per_edge: usize, seed: u64) -> Plan {
        let rounds = per_edge * Turn::EDGES.len();
        Plan { blows: Blows::Kills, clients: 12, ..Plan::new(binary, rounds, seed) }
    }

    /// The same, with the server of the store killed so often under load.
    pub fn crashes(binary: impl Into<PathBuf>, rounds: usize, crash: Crash, seed: u64) -> Plan {
        let crash = Some(crash);
        Plan { blows: Blows::None, crash, clients: 12, ..Plan::new(binary, rounds, seed) }
    }
}

/// Runs a plan, and judges what happened.
///
/// # Errors
/// When the run itself failed, so that there is nothing to judge: a gateway that does not start or
/// ends by itself, a ledger that does not agree with the history.
pub fn run(plan: &Plan) -> Result<Report> {
    let folder = tempfile::tempdir().context("a temporary folder")?;
    let runtime = Runtime::new().context("a runtime for the proxies")?;
    let world = World::build(plan, folder.path(), &runtime)?;
    let lived = world.live(plan);
    // Connections that are still held open end with their proxies.
    runtime.shutdown_background();
    let (history, unfinished) = lived?;
    if let Some(trouble) = world.record.trouble_so_far() {
        bail!("the run proves nothing: {trouble}");
    }
    world.compare_with_ledger(&history)?;
    let mut violations = check::judge(&history);
    violations.extend(unfinished);
    let counts = Counts::of(&history);
    Ok(Report { seed: plan.seed, history, violations, counts })
}

struct World {
    record: Arc<Recorder>,
    ledger: Arc<Ledger>,
    fleet: Arc<Fleet>,
    upstream: Arc<Upstream>,
    clients: Clients,
    proxies: Vec<CutProxy>,
}

impl Drop for World {
    /// Threads hold on to the fleet for longer, but no process outlives a run that failed.
    fn drop(&mut self) {
        let _ = self.fleet.kill_all();
    }
}

impl World {
    fn build(plan: &Plan, folder: &Path, runtime: &Runtime) -> Result<World> {
        let record = Arc::new(Recorder::begin());
        let ledger = Arc::new(Ledger::create(&folder.join("ledger"))?);
        let store = match &plan.store {
            Store::File => format!("file:{}", folder.join("onceward.db").display()),
            Store::At(url) => url.clone(),
            Store::Memory => "memory:".to_owned(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").context("a port for upstream")?;
        let proxy = |border: &'static str, number: usize, fates: Fates| {
            let record = Arc::clone(&record);
            let on_fault: OnFault = Arc::new(move |kind, detail| {
                record.fault(&format!("{border}_{kind}"), &format!("proxy {number}, {detail}"));
            });
            let fates = move |connection| fates.of(connection);
            CutProxy::with_fates(runtime.handle(), fates, on_fault).context("a proxy")
        };
        let mut proxies = Vec::new();
        let mut slots = Vec::new();
        for number in 0..plan.processes {
            let seed = plan.seed.rotate_left(8) ^ number as u64;
            let fates = Fates { seed, one_in: 5, bytes_max: 900 };
            let before = proxy("client", number, fates)?;
            // These connections live longer than one request.
            let fates = Fates { seed: !seed, one_in: 2, bytes_max: 1500 };
            let behind = proxy("upstream", number, fates)?;
            behind.lead_to(Some(listener.local_addr()?));
            slots.push([before.clone(), behind.clone()]);
            proxies.extend([before, behind]);
        }
        let starting = Starting::new(&plan.binary, store, plan.cache.as_deref(), folder)?;
        let fleet = Fleet::new(starting, Arc::clone(&record), slots);
        let upstream = Arc::new(Upstream {
            seed: plan.seed,
            record: Arc::clone(&record),
            ledger: Arc::clone(&ledger),
            fleet: Arc::clone(&fleet),
            calm: AtomicBool::new(false),
            resends: plan.upstream_resends,
        });
        upstream.serve(listener);
        let clients = Clients::new(Arc::clone(&record), Arc::clone(&fleet), plan.may_lose);
        Ok(World { record, ledger, fleet, upstream, clients, proxies })
    }

    /// From the first start to the end. With what did not come to its end.
    fn live(&self, plan: &Plan) -> Result<(Vec<Event>, Vec<Violation>)> {
        self.fleet.start_missing()?;
        let tortured = thread::scope(|scope| {
            for client in 0..plan.clients as u64 {
                let seed = plan.seed ^ (client + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                scope.spawn(move || self.clients.run(seed));
            }
            let tortured = self.torture(plan);
            self.clients.calm();
            tortured
        });
        tortured?;
        self.fleet.kill_all()?;
        self.proxies.iter().for_each(CutProxy::be_honest);
        self.upstream.calm.store(true, SeqCst);
        self.fleet.start_missing()?;
        self.record.calm();
        let unfinished = thread::scope(|scope| {
            let shares = (0..plan.clients)
                .map(|share| scope.spawn(move || self.clients.ask_all_again(share, plan.clients)));
            let shares: Vec<_> = shares.collect();
            let ended: thread::Result<Vec<_>> =
                shares.into_iter().map(thread::ScopedJoinHandle::join).collect();
            ended.map_err(|_| anyhow!("a client panicked"))
        });
        let unfinished = unfinished?.into_iter().flatten().collect();
        let give_up = Instant::now() + OPEN_CALLS_MAX;
        while !self.record.no_open_calls() {
            ensure!(Instant::now() < give_up, "upstream does not come to an end");
            thread::sleep(Duration::from_millis(10));
        }
        self.fleet.kill_all()?;
        Ok((self.record.end(), unfinished))
    }

    /// Kills and stops processes, and starts others.
    fn torture(&self, plan: &Plan) -> Result<()> {
        let mut random = StdRng::seed_from_u64(plan.seed);
        let mut said = Instant::now();
        let (turns, pauses): (Box<dyn Iterator<Item = Turn>>, _) = match plan.blows {
            Blows::Mixed => (Box::new(Turn::shuffled(plan.seed)), [250, 150]),
            Blows::Kills => (Box::new(Turn::kills(plan.seed)), [10, 40]),
            Blows::None => (Box::new(std::iter::repeat(Turn::Quiet(Duration::ZERO))), [2, 2]),
        };
        for (round, turn) in turns.take(plan.rounds).enumerate() {
            let mut pause =
                |most| thread::sleep(Duration::from_millis(random.random_range(1..most)));
            pause(pauses[0]);
            self.fleet.start_missing()?;
            pause(pauses[1]);
            match turn {
                Turn::Quiet(time) => thread::sleep(time),
                Turn::Strike { strike, then } => {
                    let slot = random.random_range(0..plan.processes);
                    let struck = || self.fleet.strike(slot, strike);
                    // Each kill counts. A moment may not come while everybody waits for a lease.
                    let all = plan.blows == Blows::Kills;
                    if !struck() && all && !struck() {
                        bail!("no process came to this moment: {strike:?}");
                    }
                    thread::sleep(then);
                }
            }
            if let Some(Crash(crash)) = &plan.crash {
                self.wait_for_calls()?;
                self.record.fault(STORE_KILLED, &format!("round {round}"));
                crash();
            }
            if said.elapsed() > Duration::from_secs(10) {
                said = Instant::now();
                let (requests, calls) = self.record.progress();
                eprintln!("round {round} of {}: {requests} requests, {calls} calls", plan.rounds);
            }
            if let Some(trouble) = self.record.trouble_so_far() {
                bail!("the run proves nothing: {trouble}");
            }
        }
        Ok(())
    }

    /// Until there is load again: a server that nobody uses is easily killed.
    fn wait_for_calls(&self) -> Result<()> {
        let give_up = Instant::now() + CALLS_MAX;
        let (_, before) = self.record.progress();
        while self.record.progress().1 < before + CALLS_BETWEEN_CRASHES {
            // Nobody calls any more who knows that something was lost.
            if self.clients.was_told_of_a_loss() {
                break;
            }
            ensure!(Instant::now() < give_up, "no load came before the server was to be killed");
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The ledger is a file of its own: what it says and what was recorded have to be the same.
    fn compare_with_ledger(&self, history: &[Event]) -> Result<()> {
        let acted = history.iter().filter_map(|event| match event.what {
            What::Acted { call } => Some(call),
            _ => None,
        });
        let acted: HashSet<_> = acted.collect();
        let calls = history.iter().filter_map(|event| match &event.what {
            What::Called { call, subject, .. } => Some((*call, subject.clone())),
            _ => None,
        });
        let recorded: HashSet<_> = calls.filter(|(call, _)| acted.contains(call)).collect();
        let ledger = self.ledger.read()?;
        let lines = ledger.len();
        let written: HashSet<_> = ledger.into_iter().collect();
        ensure!(
            written == recorded && lines == written.len(),
            "the ledger has {lines} effects, the history {}",
            recorded.len()
        );
        Ok(())
    }
}

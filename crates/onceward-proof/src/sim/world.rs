//! The world: what all parts of a run share, and the record of what happens in it.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use onceward::{
    Engine, Scope, ScopeRule, Settings,
    clock::{Clock, Timestamp},
    record::{AttemptId, Record, RecordId},
};
use tokio::{sync::Notify, time::Instant};

use super::{
    bugs::Bug,
    choices::Choices,
    network::NodeStore,
    node::{Gate, Life},
    options::{Options, SECOND},
    outbox::Outbox,
    store::Records,
    upstream::Ledger,
};
use crate::{
    check::{Judge, Violation},
    history::{Event, Open, Stand, Subject, What},
};

/// What all parts of a run share.
pub(super) struct World {
    pub(super) options: Options,
    pub(super) bug: Option<Bug>,
    pub(super) records: Mutex<Records>,
    pub(super) ledger: Mutex<Ledger>,
    pub(super) outbox: Option<Outbox>,
    began: Instant,
    /// How wrong the store's clock is, in microseconds.
    skew: Arc<AtomicI64>,
    choices: Mutex<Choices>,
    chronicle: Mutex<Chronicle>,
    nodes: Mutex<Vec<Arc<Node>>>,
    is_calm: AtomicBool,
    requests: AtomicU64,
    failed: Notify,
}

/// One process.
pub(super) struct Node {
    pub(super) gate: Arc<Gate>,
    /// It was asked to end.
    pub(super) is_closed: AtomicBool,
    pub(super) engine: Arc<Engine>,
}

/// What was recorded, and what the judge thinks of it.
struct Chronicle {
    history: Vec<Event>,
    judge: Judge,
    violation: Option<Violation>,
    faults: BTreeMap<&'static str, u64>,
    met: BTreeMap<&'static str, u64>,
    attempts: HashMap<AttemptId, Named>,
    fingerprints: HashMap<[u8; 32], String>,
    tenants: HashMap<Scope, String>,
}

/// An attempt, and until when it may act as far as it was told.
struct Named {
    name: String,
    may_act_until: Option<Instant>,
}

/// What a run leaves behind.
pub(super) struct Remains {
    pub(super) history: Vec<Event>,
    pub(super) judge: Judge,
    pub(super) violation: Option<Violation>,
    pub(super) faults: BTreeMap<&'static str, u64>,
    pub(super) met: BTreeMap<&'static str, u64>,
    pub(super) choices: Choices,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

/// A lock of a world is never held across an await, and a world has one thread.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(super) fn new(options: Options, choices: Choices, bug: Option<Bug>) -> Arc<Self> {
        let tenants = (0..options.tenants).map(|number| {
            let tenant = tenant(number);
            (Scope::of_credential(credential(&tenant).as_bytes()), tenant)
        });
        let chronicle = Chronicle {
            history: Vec::new(),
            judge: Judge::new(),
            violation: None,
            faults: BTreeMap::new(),
            met: BTreeMap::new(),
            attempts: HashMap::new(),
            fingerprints: HashMap::new(),
            tenants: tenants.collect(),
        };
        let (began, skew) = (Instant::now(), Arc::new(AtomicI64::new(0)));
        let clock = Arc::new(StoreClock { began, skew: Arc::clone(&skew) });
        let world = Arc::new(World {
            bug,
            records: Mutex::default(),
            ledger: Mutex::default(),
            outbox: options.messages.then(|| Outbox::new(clock)),
            skew,
            began,
            choices: Mutex::new(choices),
            chronicle: Mutex::new(chronicle),
            nodes: Mutex::default(),
            is_calm: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            failed: Notify::new(),
            options,
        });
        let durable = world.options.durable;
        world.record(What::World { routes: world.options.rules(), durable });
        for number in 0..world.options.nodes {
            let node = world.start(number);
            lock(&world.nodes).push(node);
        }
        world
    }

    // -- What happens

    pub(super) fn record(&self, what: What) {
        let at = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let mut chronicle = lock(&self.chronicle);
        if chronicle.violation.is_some() {
            return;
        }
        let event = Event { at, what };
        if let Err(violation) = chronicle.judge.observe(&event) {
            chronicle.violation = Some(violation);
            self.failed.notify_one();
        }
        chronicle.history.push(event);
    }

    /// Something is broken on purpose.
    pub(super) fn fault(&self, kind: &'static str, detail: impl Into<String>) {
        *lock(&self.chronicle).faults.entry(kind).or_default() += 1;
        self.record(What::Fault { kind: kind.into(), detail: detail.into() });
    }

    /// Two things met that seldom do: see [`super::totals::MEETINGS`].
    pub(super) fn met(&self, meeting: &'static str) {
        *lock(&self.chronicle).met.entry(meeting).or_default() += 1;
    }

    /// Something that must not happen, which the history alone does not show.
    pub(super) fn violate(&self, violation: Violation) {
        let mut chronicle = lock(&self.chronicle);
        chronicle.violation.get_or_insert(violation);
        self.failed.notify_one();
    }

    /// Comes back when the judge has found something.
    pub(super) async fn failed(&self) {
        self.failed.notified().await;
    }

    pub(super) fn next_request(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    // -- Names

    pub(super) fn attempt_name(&self, attempt: AttemptId) -> String {
        lock(&self.chronicle).named(attempt).name.clone()
    }

    pub(super) fn subject(&self, id: &RecordId) -> Subject {
        let chronicle = lock(&self.chronicle);
        let tenant = chronicle.tenants.get(&id.scope).cloned();
        Subject { tenant: tenant.unwrap_or_default(), key: id.key.as_str().to_owned() }
    }

    pub(super) fn stand(&self, record: &Record) -> Stand {
        let mut chronicle = lock(&self.chronicle);
        let count = chronicle.fingerprints.len();
        let fingerprint = chronicle
            .fingerprints
            .entry(*record.fingerprint.digest())
            .or_insert_with(|| format!("f{}", count + 1))
            .clone();
        let reply = record.reply.as_ref().map(|reply| {
            let body = String::from_utf8_lossy(&reply.body_bytes()).into_owned();
            format!("{} {} headers {body}", reply.status.as_u16(), reply.headers.len())
        });
        Stand {
            state: record.state.name().to_owned(),
            generation: record.generation,
            attempt: chronicle.named(record.attempt).name.clone(),
            fence: record.fence.number(),
            fingerprint,
            lease_until: record.lease_until.as_micros(),
            expires_at: record.expires_at.as_micros(),
            purge_at: record.purge_at().as_micros(),
            effects: record.effects.name().to_owned(),
            reply,
            open: open(record),
        }
    }

    // -- What an attempt was told about its lease

    pub(super) fn told(&self, attempt: AttemptId, until: Instant) {
        lock(&self.chronicle).named(attempt).may_act_until = Some(until);
    }

    /// What is left of an attempt's lease, in microseconds, if it was told that it has one.
    pub(super) fn lease_left(&self, attempt: AttemptId) -> Option<i64> {
        let until = lock(&self.chronicle).named(attempt).may_act_until?;
        let now = Instant::now();
        let left = until.saturating_duration_since(now).as_micros();
        let over = now.saturating_duration_since(until).as_micros();
        Some(i64::try_from(left).unwrap_or(i64::MAX) - i64::try_from(over).unwrap_or(i64::MAX))
    }

    // -- Choices

    pub(super) fn number(&self, of: u32) -> u32 {
        lock(&self.choices).number(of)
    }

    /// Which of these faults happens: the first, once the world is calm. `often` says how much
    /// more often than usual it is another one.
    pub(super) fn pick<T: Copy>(
        &self,
        faults: &[(T, &'static str)],
        often: u32,
    ) -> (T, &'static str) {
        let count = u32::try_from(faults.len()).unwrap_or(1);
        let in_10_000 = self.options.faults.saturating_mul(often).min(10_000);
        let chosen = match self.is_calm() {
            true => 0,
            false => lock(&self.choices).fault(count, in_10_000),
        };
        *faults.get(chosen as usize).unwrap_or_else(|| unreachable!("chosen below the count"))
    }

    /// How long something that is late is late.
    pub(super) fn delay(&self) -> Duration {
        const DELAYS: [u64; 5] = [4_000, 5, 500, 12_000, 34_000];
        let chosen = self.number(5) as usize;
        Duration::from_millis(DELAYS.get(chosen).copied().unwrap_or_default())
    }

    pub(super) fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::Relaxed)
    }

    pub(super) fn calm_down(&self) {
        self.is_calm.store(true, Ordering::Relaxed);
        self.record(What::Calm);
    }

    // -- Nodes

    pub(super) fn node(&self, number: u32) -> Arc<Node> {
        let nodes = lock(&self.nodes);
        let node = nodes.get(number as usize % nodes.len().max(1));
        Arc::clone(node.unwrap_or_else(|| unreachable!("a world has nodes")))
    }

    fn start(self: &Arc<Self>, number: u32) -> Arc<Node> {
        let gate = Gate::new();
        // Clocks of processes are wrong. It must not matter.
        let skew = [0, 7_200_000_000, -3_600_000_000][number as usize % 3];
        let frozen = (self.bug == Some(Bug::DeadlineNotChecked)).then(Instant::now);
        let clock: Arc<dyn Clock> = Arc::new(NodeClock { began: self.began, skew, frozen });
        let scope = match self.bug {
            Some(Bug::OneScopeForAll) => ScopeRule::custom("authorization", |_| {
                Ok(Scope::of_credential(credential(&tenant(0)).as_bytes()))
            }),
            _ => ScopeRule::authorization(),
        };
        let store = NodeStore::new(Arc::clone(self), number, Arc::clone(&gate), skew);
        let store = Arc::new(store);
        let store_deadline = self.options.store_deadline;
        let settings = Settings { scope, clock, store_deadline, ..Settings::default() };
        let policies = self.options.policies(self.bug);
        let engine = Arc::new(Engine::new(Arc::clone(&store) as _, policies, settings));
        let node = Arc::new(Node { gate, is_closed: AtomicBool::new(false), engine });
        super::workers::start_on(self, number, &node, &store);
        node
    }

    /// Kills a process, and starts it again after a while. `gate` tells which incarnation is meant:
    /// one that is gone already is left alone.
    pub(super) fn crash(self: &Arc<Self>, number: u32, gate: &Arc<Gate>) {
        if gate.life() == Life::Dead {
            return;
        }
        gate.set(Life::Dead);
        if number >= self.options.nodes {
            return;
        }
        let world = Arc::clone(self);
        let down = SECOND / 10 + self.delay();
        tokio::spawn(async move {
            tokio::time::sleep(down).await;
            world.replace(number);
        });
    }

    /// Starts a process anew where one has ended.
    pub(super) fn replace(self: &Arc<Self>, number: u32) {
        let node = self.start(number);
        let mut nodes = lock(&self.nodes);
        if let Some(slot) = nodes.get_mut(number as usize) {
            *slot = node;
        }
    }

    /// A process stands still, and goes on after a while.
    pub(super) fn pause(&self, gate: &Arc<Gate>, duration: Duration) {
        gate.set(Life::Paused);
        let gate = Arc::clone(gate);
        tokio::spawn(async move {
            tokio::time::sleep(duration).await;
            gate.set(Life::Running);
        });
    }

    /// Ends the world. Engines know their store and the store knows the world: without this nothing
    /// of it would ever be freed.
    pub(super) fn end(&self) -> Remains {
        let nodes = std::mem::take(&mut *lock(&self.nodes));
        nodes.iter().for_each(|node| node.gate.set(Life::Dead));
        let mut chronicle = lock(&self.chronicle);
        Remains {
            history: std::mem::take(&mut chronicle.history),
            judge: std::mem::take(&mut chronicle.judge),
            violation: chronicle.violation.take(),
            faults: std::mem::take(&mut chronicle.faults),
            met: std::mem::take(&mut chronicle.met),
            choices: std::mem::replace(&mut lock(&self.choices), Choices::from_list(Vec::new())),
        }
    }
}

impl Chronicle {
    /// Attempt ids are random: they are named in the order in which they appear.
    fn named(&mut self, attempt: AttemptId) -> &mut Named {
        let count = self.attempts.len();
        self.attempts
            .entry(attempt)
            .or_insert_with(|| Named { name: format!("a{}", count + 1), may_act_until: None })
    }
}

fn open(record: &Record) -> Open {
    let progress = &record.progress;
    Open {
        queued_until: record.queued_until.map(Timestamp::as_micros),
        recovery_point: progress.recovery_point.as_deref().map(str::to_owned),
        effect: progress.open_effect.as_ref().map(|effect| effect.name.to_string()),
        must_not_go_on: progress.must_not_go_on(),
        reconcile_after: record.reconcile_after.map(Timestamp::as_micros),
    }
}

/// The wall clock of a process, which is wrong by some constant.
#[derive(Debug)]
struct NodeClock {
    began: Instant,
    skew: i64,
    frozen: Option<Instant>,
}

impl Clock for NodeClock {
    fn now(&self) -> Timestamp {
        since(self.began, self.skew)
    }

    fn monotonic(&self) -> Instant {
        self.frozen.unwrap_or_else(Instant::now)
    }
}

/// The time of a clock that is wrong by `skew` microseconds.
fn since(began: Instant, skew: i64) -> Timestamp {
    const START: i64 = 1_000_000_000_000_000;
    let elapsed = i64::try_from(began.elapsed().as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(START + elapsed + skew)
}

impl World {
    /// The store's own clock, which decides.
    pub(super) fn store_now(&self) -> Timestamp {
        since(self.began, self.skew.load(Ordering::Relaxed))
    }

    /// The store's clock jumps.
    pub(super) fn jump(&self, micros: i64) {
        self.skew.fetch_add(micros, Ordering::Relaxed);
    }
}

/// The store's own clock.
#[derive(Debug)]
struct StoreClock {
    began: Instant,
    skew: Arc<AtomicI64>,
}

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        since(self.began, self.skew.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Instant {
        Instant::now()
    }
}

/// The name of a tenant, which everything made for it carries.
pub(super) fn tenant(number: u32) -> String {
    format!("tenant-{}", ["aardvark", "buffalo", "cormorant"][number as usize % 3])
}

/// What a tenant shows to be let in.
pub(super) fn credential(tenant: &str) -> String {
    format!("Bearer secret-of-{tenant}")
}

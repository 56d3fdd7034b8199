//! Operations in steps under random faults, cuts and takeovers, from a seed. Whom they call keeps the
//! ledger that is the truth.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use onceward::{
    Effect, EffectError, Effects, Engine, MemoryStore, Operation, Policy, Scope, ScopeRule,
    Settings, StepError, Store,
    engine::{Captured, Execution, Handler},
    record::{AuditRecord, Lease, ProviderId, ProviderNote, Record, RecordId, SavedStep, State},
    store::{
        Advance, Advanced, Ask, Beat, Claim, Identity, IdentityCheck, Noted, Pulse, Reaped,
        Regression, Reservation, Resolve, Resolved, Resumable, ScopeKey, StoreFuture, Swept, Which,
        Write, Written,
        list::{AuditPage, AuditQuery, Page, Query, Stats},
    },
    testing::{Fault, FaultyStore, Seed, StoreCall},
};
use tokio::{sync::oneshot, time::sleep};

use crate::service::TestClock;

const STEPS: usize = 3;
const SEEDS: u64 = 400;

/// Small, and the same everywhere.
#[derive(Clone)]
struct Choices(Arc<Mutex<u64>>);

impl Choices {
    fn new(seed: u64) -> Self {
        Choices(Arc::new(Mutex::new(seed)))
    }

    /// A number below `n`.
    fn below(&self, n: u64) -> u64 {
        let mut state = self.0.lock().expect("not poisoned");
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % n
    }
}

/// Whom the operation calls.
#[derive(Default)]
struct Ledger {
    /// How often it acted for each key.
    acted: BTreeMap<String, u32>,
    /// The keys that each step was called with.
    keys: BTreeMap<usize, Vec<String>>,
}

#[derive(Clone)]
struct World {
    choices: Choices,
    ledger: Arc<Mutex<Ledger>>,
    idempotent: [bool; STEPS],
    calm: Arc<AtomicBool>,
}

impl World {
    fn is_calm(&self) -> bool {
        self.calm.load(Ordering::SeqCst)
    }

    /// One call: it may act or not, and its answer may come or not.
    async fn call(&self, step: usize, key: String) -> Result<u64, EffectError<&'static str>> {
        let luck = if self.is_calm() { 0 } else { self.choices.below(10) };
        sleep(Duration::from_millis(1 + self.choices.below(50))).await;
        let acts = !matches!(luck, 7 | 8);
        {
            let mut ledger = self.ledger.lock().expect("not poisoned");
            ledger.keys.entry(step).or_default().push(key.clone());
            if acts {
                *ledger.acted.entry(key).or_default() += 1;
            }
        }
        match luck {
            5 => Err("lost")?,
            6 => std::panic::resume_unwind(Box::new("in the middle of a call")),
            7 => Err(EffectError::NotExecuted("refused")),
            8 => Err("lost before it came")?,
            9 => {
                // Long enough for somebody else to take over.
                sleep(Duration::from_secs(90)).await;
                Ok(step as u64)
            }
            _ => Ok(step as u64),
        }
    }

    async fn handle(&self, operation: Operation) -> Response<Bytes> {
        let mut results = Vec::new();
        for step in 0..STEPS {
            let name = format!("step-{step}");
            let effect = match self.idempotent[step] {
                true => Effect::idempotent(&name),
                false => Effect::not_idempotent(&name),
            };
            match operation.effect(effect, async |key| self.call(step, key).await).await {
                Ok(result) => results.push(result),
                // Now and then a handler hides what it must not hide.
                Err(StepError::Ambiguous(_) | StepError::LeaseLost)
                    if self.choices.below(3) == 0 =>
                {
                    return Response::new(Bytes::from("fine"));
                }
                Err(_) => return failed(),
            }
        }
        match !self.is_calm() && self.choices.below(4) == 0 {
            true => failed(),
            false => Response::new(Bytes::from(format!("{results:?}"))),
        }
    }
}

fn failed() -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}

impl Handler for World {
    type Rest = std::convert::Infallible;

    async fn run(self, operation: Operation) -> Execution<Self::Rest> {
        let (parts, body) = self.handle(operation).await.into_parts();
        Execution::Answered(parts, Captured::Whole(body))
    }
}

fn request() -> Request<Bytes> {
    let request = Request::post("/orders").header("idempotency-key", "order-0000000000000001");
    request.body(Bytes::from_static(b"tea")).expect("a request")
}

type Answer = Response<Captured<std::convert::Infallible>>;

/// A client's request, in a task that can be cut off.
fn send(
    engine: &Arc<Engine>,
    world: &World,
) -> (tokio::task::JoinHandle<()>, oneshot::Receiver<Answer>) {
    let (parts, body) = request().into_parts();
    let policy = Arc::clone(engine.policy_for(&parts).expect("a policy"));
    let admitted = engine.admit(&parts, &policy).expect("anybody may").expect("it has a key");
    let (sender, answer) = oneshot::channel();
    let asked = engine.ask(admitted, &parts, &body);
    let run = Arc::clone(engine).run(asked, world.clone(), sender);
    (tokio::spawn(run), answer)
}

/// One world from a seed. What went wrong in it, if anything did.
async fn run(seed: u64, bug: Option<Bug>) -> Result<State, String> {
    let choices = Choices::new(seed);
    let idempotent = std::array::from_fn(|_| choices.below(2) == 0);
    let world = World {
        choices: choices.clone(),
        ledger: Arc::default(),
        idempotent,
        calm: Arc::default(),
    };
    let clock = TestClock::new();
    let memory = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
    let broken: Arc<dyn Store> = Arc::new(Broken { inner: memory.clone(), bug });
    let faults = (choices.clone(), Arc::clone(&world.calm));
    let store = FaultyStore::new(broken, move |call, _| {
        let quiet = faults.1.load(Ordering::SeqCst) || call == StoreCall::CheckIdentity;
        match if quiet { 9 } else { faults.0.below(30) } {
            0 => Fault::Refused,
            1 => Fault::LostBefore,
            2 => Fault::LostAfter,
            3 => Fault::HangsAfter,
            _ => Fault::None,
        }
    });
    let policy = Policy::required().effects(Effects::Phased).expect("allowed");
    let settings = Settings {
        scope: ScopeRule::anonymous(),
        clock: Arc::new(clock.clone()),
        ..Settings::default()
    };
    let engine = Arc::new(Engine::new(Arc::new(store), policy.into(), settings));
    let mut answers = Vec::new();
    let mut waiting = Vec::new();
    for _ in 0..1 + choices.below(6) {
        let (task, answer) = send(&engine, &world);
        waiting.push(answer);
        sleep(Duration::from_millis(choices.below(200))).await;
        match choices.below(4) {
            0 => task.abort(),
            // Its lease is over, and it works on.
            1 => clock.advance(Duration::from_secs(61)),
            2 => {
                task.abort();
                clock.advance(Duration::from_secs(61));
            }
            _ => sleep(Duration::from_secs(choices.below(120))).await,
        }
    }
    world.calm.store(true, Ordering::SeqCst);
    sleep(Duration::from_secs(400)).await;
    for answer in &mut waiting {
        answers.extend(answer.try_recv().ok());
    }
    for _ in 0..8 {
        // A worker and a client take turns.
        let resume = {
            let world = world.clone();
            move |_, operation| resumed(world.clone(), operation)
        };
        engine.resume_once(4, resume).await.expect("calm");
        let (_, answer) = send(&engine, &world);
        answers.push(answer.await.expect("calm"));
        clock.advance(Duration::from_secs(61));
    }
    judge(&world, answers)
}

async fn resumed(world: World, operation: Operation) -> Response<Bytes> {
    world.handle(operation).await
}

/// What is true whatever happened.
fn judge(world: &World, answers: Vec<Answer>) -> Result<State, String> {
    let ledger = world.ledger.lock().expect("not poisoned");
    for (step, keys) in &ledger.keys {
        if keys.iter().any(|key| key != &keys[0]) {
            return Err(format!("step {step} was called with several keys"));
        }
        let acted = ledger.acted.get(&keys[0]).copied().unwrap_or_default();
        if !world.idempotent[*step] && acted > 1 {
            return Err(format!("step {step} is not idempotent and acted {acted} times"));
        }
    }
    let outcome = |answer: &Answer| {
        let outcome = answer.headers().get("onceward-outcome").map(|it| it.to_str().expect("text"));
        outcome.unwrap_or_default().to_owned()
    };
    let told: Vec<(String, Bytes)> = answers
        .into_iter()
        .map(|answer| {
            let outcome = outcome(&answer);
            let Captured::Whole(body) = answer.into_body();
            (outcome, body)
        })
        .collect();
    let done = |it: &&(String, Bytes)| ["executed", "replayed"].contains(&&*it.0);
    if let Some((_, other)) = told.iter().filter(done).find(|(_, body)| body != "[0, 1, 2]") {
        return Err(format!("a client was told that it is done: {other:?}"));
    }
    if told.iter().any(|it| done(&it)) {
        let unpaid = (0..STEPS).find(|step| {
            let key = ledger.keys.get(step).and_then(|keys| keys.first());
            key.and_then(|key| ledger.acted.get(key)).is_none()
        });
        if let Some(step) = unpaid {
            return Err(format!("done, and step {step} never acted"));
        }
    }
    match told.last().map(|(outcome, _)| &**outcome) {
        Some("replayed" | "executed") => Ok(State::Completed),
        Some("unknown") if world.idempotent != [true; STEPS] => Ok(State::Unknown),
        other => Err(format!("in the end: {other:?}")),
    }
}

fn play(seed: u64, bug: Option<Bug>) -> Result<State, String> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(run(seed, bug))
}

#[test]
fn no_seed_does_a_step_twice_or_tells_of_what_was_not_done() {
    let first = Seed::from_environment();
    println!("ONCEWARD_SEED={first}");
    let first: u64 = first.to_string().parse().expect("a number");
    let (mut completed, mut unknown) = (0, 0);
    for seed in (0..SEEDS).map(|number| first.wrapping_add(number)) {
        match play(seed, None) {
            Ok(State::Completed) => completed += 1,
            Ok(_) => unknown += 1,
            Err(wrong) => panic!("seed {seed}: {wrong}"),
        }
    }
    // Both ends are common, or the worlds are not what they should be.
    assert!(completed > SEEDS / 10 && unknown > SEEDS / 10, "{completed}, {unknown}");
}

/// What a store, or an engine, could do wrong.
#[derive(Clone, Copy, Debug)]
enum Bug {
    /// Saved results are not found again.
    ForgetsSteps,
    /// Every effect is taken for an idempotent one.
    AllIdempotent,
    /// The intent is acknowledged and not written.
    LosesIntent,
    /// What may have acted is taken for what has not.
    UnknownIsNotExecuted,
    /// An attempt that was superseded is told that all is well.
    SupersededGoesOn,
    /// A result is acknowledged and not written.
    LosesResult,
}

#[test]
fn every_bug_made_on_purpose_is_found_within_the_seeds() {
    for bug in [
        Bug::ForgetsSteps,
        Bug::AllIdempotent,
        Bug::LosesIntent,
        Bug::UnknownIsNotExecuted,
        Bug::SupersededGoesOn,
        Bug::LosesResult,
    ] {
        let found = (0..SEEDS).find_map(|seed| Some((seed, play(seed, Some(bug)).err()?)));
        let (seed, wrong) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: seed {seed}, {wrong}");
    }
}

/// A store with a bug.
#[derive(Debug)]
struct Broken {
    inner: Arc<MemoryStore>,
    bug: Option<Bug>,
}

impl Store for Broken {
    fn reserve(&self, ask: Ask) -> StoreFuture<'_, Reservation> {
        self.inner.reserve(ask)
    }

    fn claim(&self, claim: Claim) -> StoreFuture<'_, Reservation> {
        self.inner.claim(claim)
    }

    fn write<'a>(&'a self, lease: &'a Lease, write: Write) -> StoreFuture<'a, Written> {
        Box::pin(async move {
            let write = match (self.bug, write) {
                (Some(Bug::UnknownIsNotExecuted), Write::MarkUnknown(why)) => {
                    let record = self.inner.load(&lease.id).await?;
                    let open = record.and_then(|record| record.progress.open_effect);
                    if let Some(open) = open {
                        let withdraw = Advance::Withdraw { name: open.name };
                        let _ = self.inner.advance(lease, withdraw).await?;
                    }
                    Write::Release(why)
                }
                (_, write) => write,
            };
            self.inner.write(lease, write).await
        })
    }

    fn advance<'a>(&'a self, lease: &'a Lease, advance: Advance) -> StoreFuture<'a, Advanced> {
        Box::pin(async move {
            let advance = match (self.bug, advance) {
                (Some(Bug::LosesIntent), Advance::Intend { .. }) => return Ok(Advanced::Applied),
                (Some(Bug::LosesResult), Advance::Save { name, .. }) => {
                    let _ = self.inner.advance(lease, Advance::Withdraw { name }).await?;
                    return Ok(Advanced::Applied);
                }
                (Some(Bug::AllIdempotent), Advance::Intend { name, .. }) => {
                    Advance::Intend { name, idempotent: true }
                }
                (_, advance) => advance,
            };
            let advanced = self.inner.advance(lease, advance).await?;
            Ok(match (self.bug, advanced) {
                (Some(Bug::SupersededGoesOn), Advanced::Superseded(_)) => Advanced::Applied,
                (_, advanced) => advanced,
            })
        })
    }

    fn steps<'a>(&'a self, id: &'a RecordId, generation: u32) -> StoreFuture<'a, Vec<SavedStep>> {
        match self.bug {
            Some(Bug::ForgetsSteps) => Box::pin(async { Ok(Vec::new()) }),
            _ => self.inner.steps(id, generation),
        }
    }

    fn resumable(&self, which: Which, limit: u32) -> StoreFuture<'_, Vec<Resumable>> {
        self.inner.resumable(which, limit)
    }

    fn due_unknown(&self, limit: u32, except: Vec<Arc<str>>) -> StoreFuture<'_, Vec<Record>> {
        self.inner.due_unknown(limit, except)
    }

    fn note_provider_id<'a>(&'a self, lease: &'a Lease, id: ProviderId) -> StoreFuture<'a, Noted> {
        self.inner.note_provider_id(lease, id)
    }

    fn by_provider_id<'a>(&'a self, id: &'a ProviderId) -> StoreFuture<'a, Option<ProviderNote>> {
        self.inner.by_provider_id(id)
    }

    fn provider_ids(&self, of: Vec<RecordId>) -> StoreFuture<'_, Vec<ProviderNote>> {
        self.inner.provider_ids(of)
    }

    fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved> {
        self.inner.resolve(resolve)
    }

    fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>> {
        self.inner.load(id)
    }

    fn audit<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>> {
        self.inner.audit(id)
    }

    fn list_records(&self, query: Query) -> StoreFuture<'_, Page> {
        self.inner.list_records(query)
    }

    fn audit_log(&self, query: AuditQuery) -> StoreFuture<'_, AuditPage> {
        self.inner.audit_log(query)
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        self.inner.stats()
    }

    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
        self.inner.sweep(limit)
    }

    fn reap(&self, limit: u32) -> StoreFuture<'_, Reaped> {
        self.inner.reap(limit)
    }

    fn purge_audit(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, u32> {
        self.inner.purge_audit(older_than, limit)
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        self.inner.ping()
    }

    fn check_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, IdentityCheck> {
        self.inner.check_identity(identity)
    }

    fn accept_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, ()> {
        self.inner.accept_identity(identity)
    }

    fn scope_keys<'a>(
        &'a self,
        scope: &'a Scope,
        proposed: Option<ScopeKey>,
    ) -> StoreFuture<'a, Vec<ScopeKey>> {
        self.inner.scope_keys(scope, proposed)
    }

    fn drop_scope_keys<'a>(&'a self, scope: &'a Scope, reason: &'a str) -> StoreFuture<'a, u32> {
        self.inner.drop_scope_keys(scope, reason)
    }

    fn beat(&self, beat: Beat) -> StoreFuture<'_, Pulse> {
        self.inner.beat(beat)
    }

    fn acknowledge_regression<'a>(
        &'a self,
        reason: &'a str,
    ) -> StoreFuture<'a, Option<Regression>> {
        self.inner.acknowledge_regression(reason)
    }
}

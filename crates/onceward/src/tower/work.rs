//! The worker: a bounded number of operations at once, each in a task of its own.

use std::{
    collections::{HashMap, HashSet},
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::Request;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};
use tracing::{info, warn};

use crate::{
    engine::{Engine, Handler, Ready, Resumed},
    observe,
    policy::Policy,
    record::RecordId,
    store::{StoreError, Which},
};

/// Goes on with operations that wait for a worker, at most `at_once` of them at a time: phased ones that
/// were cut off, and those that were accepted for later. Looks for them every so often, and at once when
/// this process has accepted something. One that takes long is in nobody's way, and one that takes longer
/// than its policy allows does not count any more. One that is where it was after an attempt is left alone
/// for longer and longer, up to a minute. Many processes may do this on one store. What an attempt left behind that vanished is judged by the sweeper
/// (`onceward::worker::Sweeper`), and found here after it.
///
/// Runs until it is dropped; after the engine was told to drain it finds nothing more to do.
///
/// # Cancel safety
/// May be dropped: the operations at work run on.
pub async fn work<H, F>(
    engine: Arc<Engine>,
    which: Which,
    every: Duration,
    at_once: u32,
    handler: F,
) where
    H: Handler,
    F: Fn(Request<Bytes>, &Policy) -> H + Send + Sync + 'static,
{
    let spawn = |task| drop(tokio::spawn(task));
    work_in(engine, which, every, at_once, handler, spawn).await;
}

/// An operation at work.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The same as [`work`], for whoever wants to spawn the tasks of the operations himself: a simulation
/// ends them together with the process that they belong to.
///
/// # Cancel safety
/// As [`work`].
pub async fn work_in<H, F>(
    engine: Arc<Engine>,
    which: Which,
    every: Duration,
    at_once: u32,
    handler: F,
    spawn: impl Fn(Task) + Send,
) where
    H: Handler,
    F: Fn(Request<Bytes>, &Policy) -> H + Send + Sync + 'static,
{
    let handler = Arc::new(handler);
    let at_once = at_once.max(1) as usize;
    let (ended, mut ends) = mpsc::unbounded_channel();
    // With the pause after which it may be gone on with again.
    let mut at_work: HashMap<RecordId, Option<Duration>> = HashMap::new();
    // Those whose attempt has ended, and that may be where they were: until when they are left alone.
    let mut resting: HashMap<RecordId, Instant> = HashMap::new();
    let (mut left, mut told) = (0, HashSet::new());
    let mut failures = 0_u32;
    observe::worker_begins(NAME, every);
    if engine.starts(NAME) {
        observe::worker_was_there(NAME, engine.now());
    }
    loop {
        let next_look = Instant::now() + every;
        let not_before = Instant::now() + PAUSE_LEAST;
        resting.retain(|_, until| *until > Instant::now());
        // What is at work may still be listed, and what rests or cannot be gone on with always is.
        let passed_over = at_work.len() + resting.len() + left;
        let listed = at_once.saturating_add(passed_over).min(LISTED_MAX);
        let mut more = at_work.len() >= at_once;
        if more {
            // It need not look, and does not stand still.
            observe::worker_was_there(NAME, engine.now());
        } else {
            match look(&engine, listed, which, &mut told).await {
                Ok((ready, resumed)) => {
                    failures = 0;
                    observe::worker_was_there(NAME, engine.now());
                    let was_left = std::mem::replace(&mut left, resumed.left as usize);
                    let given_up = resumed.given_up as usize;
                    // A full list: there may be more behind it.
                    more = ready.len() + left + given_up >= listed;
                    let mut taken = 0;
                    for ready in ready {
                        let (id, pause) = (ready.id(), ready.pause());
                        let rests = pause.is_some() && resting.contains_key(id);
                        if rests || at_work.contains_key(id) {
                            continue;
                        }
                        if at_work.len() >= at_once {
                            more = true;
                            break;
                        }
                        at_work.insert(id.clone(), pause);
                        taken += 1;
                        let mut end = End::new(ready.id(), &ended);
                        let (engine, handler) = (Arc::clone(&engine), Arc::clone(&handler));
                        let patience = ready.patience();
                        spawn(Box::pin(async move {
                            let mut going_on = pin!(engine.go_on(ready, &*handler));
                            let ended = timeout(patience, &mut going_on).await;
                            // If it has not: its attempt is over, whenever its handler ends. Somebody
                            // may have to go on with it, and others want its place.
                            end.moved = *ended.as_ref().unwrap_or(&true);
                            drop(end);
                            if ended.is_err() {
                                warn!("a handler does not end");
                                going_on.await;
                            }
                        }));
                    }
                    if taken + given_up > 0 || left != was_left {
                        info!(taken, left, given_up, "operations without a client");
                    }
                    if more && taken == 0 && given_up > 0 {
                        sleep_until(not_before).await;
                        continue;
                    }
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    observe::worker_failed(NAME, failures);
                    warn!(%error, "operations that wait could not be looked for");
                }
            }
        }
        // Until it is worth looking again. Where nothing came of anything, the next look would find the
        // same, and read all of it.
        let mut any_moved = false;
        loop {
            tokio::select! {
                // What has ended makes room before more is looked for.
                biased;
                Some((id, moved)) = ends.recv() => {
                    let pause = at_work.remove(&id).flatten();
                    any_moved |= moved;
                    if let (true, Some(pause)) = (moved, pause) {
                        resting.insert(id, Instant::now() + pause);
                    }
                    if more && any_moved && at_work.len() <= at_once / 2 {
                        break;
                    }
                }
                () = engine.accepted(), if at_work.len() < at_once => break,
                () = sleep_until(next_look) => break,
            }
        }
        sleep_until(not_before).await;
    }
}

/// As it is called in metrics.
const NAME: &str = "dispatcher";

/// Between two looks, should everything end at once without having been done.
const PAUSE_LEAST: Duration = Duration::from_millis(5);

/// More are not read at a time, with their requests.
const LISTED_MAX: usize = 1000;

/// One look, which must not be the end of all looks, whatever a store does.
async fn look(
    engine: &Engine,
    listed: usize,
    which: Which,
    told: &mut HashSet<RecordId>,
) -> Result<(Vec<Ready>, Resumed), StoreError> {
    let ready = engine.ready(u32::try_from(listed).unwrap_or(u32::MAX), which, told);
    AssertUnwindSafe(ready).catch_unwind().await.unwrap_or_else(|_| Err(StoreError::panicked()))
}

/// Tells that an operation has ended, however it did, and whether it is still where it was.
struct End {
    id: RecordId,
    moved: bool,
    to: mpsc::UnboundedSender<(RecordId, bool)>,
}

impl End {
    fn new(id: &RecordId, to: &mpsc::UnboundedSender<(RecordId, bool)>) -> Self {
        End { id: id.clone(), moved: false, to: to.clone() }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // The worker may be gone.
        let _ = self.to.send((self.id.clone(), self.moved));
    }
}

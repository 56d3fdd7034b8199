//! The worker: a bounded number of operations at once, each in a task of its own.

use std::{
    collections::HashSet,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};
use tracing::{info, warn};

use crate::{
    engine::{Engine, Handler, Resumed, Which},
    policy::Policy,
    record::RecordId,
};

/// Goes on with operations that wait for a worker, at most `at_once` of them at a time: phased ones that
/// were cut off, and those that were accepted for later. Looks for them every so often, and at once when
/// this process has accepted something. One that takes long is in nobody's way, and one that takes longer
/// than its policy allows does not count any more. Many processes may do
/// this on one store. What an attempt left behind that vanished is judged by the sweeper
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
    let mut at_work: HashSet<RecordId> = HashSet::new();
    let mut left = 0;
    loop {
        let next_look = Instant::now() + every;
        let not_before = Instant::now() + PAUSE_LEAST;
        // What is at work may still be listed, and what cannot be gone on with always is.
        let listed = at_once.saturating_add(at_work.len()).saturating_add(left).min(LISTED_MAX);
        let mut more = at_work.len() >= at_once;
        if !more {
            match engine.ready(u32::try_from(listed).unwrap_or(u32::MAX), which).await {
                Ok((ready, resumed)) => {
                    left = resumed.left as usize;
                    let given_up = resumed.given_up as usize;
                    // A full list: there may be more behind it.
                    more = ready.len() + left + given_up >= listed;
                    let mut taken = 0;
                    for ready in ready {
                        if at_work.len() >= at_once {
                            more = true;
                            break;
                        }
                        if !at_work.insert(ready.id().clone()) {
                            continue;
                        }
                        taken += 1;
                        let end = End(ready.id().clone(), ended.clone());
                        let (engine, handler) = (Arc::clone(&engine), Arc::clone(&handler));
                        let patience = ready.patience();
                        spawn(Box::pin(async move {
                            let mut going_on = pin!(engine.go_on(ready, &*handler));
                            if timeout(patience, &mut going_on).await.is_err() {
                                // Its attempt is over, whenever its handler ends: somebody may have
                                // to go on with it, and others want its place.
                                warn!("a handler does not end");
                                drop(end);
                                going_on.await;
                            }
                        }));
                    }
                    let Resumed { left, given_up, .. } = resumed;
                    if taken + left + given_up > 0 {
                        info!(taken, left, given_up, "operations without a client");
                    }
                    if more && taken == 0 && given_up > 0 {
                        sleep_until(not_before).await;
                        continue;
                    }
                }
                Err(error) => warn!(%error, "operations that wait could not be looked for"),
            }
        }
        // Until it is worth looking again.
        loop {
            tokio::select! {
                // What has ended makes room before more is looked for.
                biased;
                Some(id) = ends.recv() => {
                    at_work.remove(&id);
                    if more && at_work.len() <= at_once / 2 {
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

/// Between two looks, should everything end at once without having been done.
const PAUSE_LEAST: Duration = Duration::from_millis(5);

/// More are not read at a time, with their requests.
const LISTED_MAX: usize = 1000;

/// Tells that an operation has ended, however it did.
struct End(RecordId, mpsc::UnboundedSender<RecordId>);

impl Drop for End {
    fn drop(&mut self) {
        // The worker may be gone.
        let _ = self.1.send(self.0.clone());
    }
}

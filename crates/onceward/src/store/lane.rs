//! Natural batching: whoever finds all connections free goes at once; while one is busy, the next
//! batch gathers, and goes beside it when it is large enough.
//!
//! The worker that sends a batch gathers the next one meanwhile, and sends it itself if it is done
//! first: one request after the other wakes no second worker.

use std::{future::pending, panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::{
    sync::{Mutex, mpsc, oneshot, watch},
    time::timeout,
};
use tracing::error;

use super::{StoreError, StoreErrorKind};

#[cfg(test)]
mod tests;

pub(super) type Sender<A> = oneshot::Sender<Result<A, StoreError>>;

/// A batch holds about this many bytes at most.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// How long a small batch waits for others that are on their way, at most.
const GATHER_TIME_MAX: Duration = Duration::from_millis(5);

/// How many elements may stand in line before callers wait for a place.
const LINE_MAX: usize = 4096;

/// What a worker has of its own: a connection that is made anew when it broke.
pub(super) trait Linked: Send + 'static {
    /// Nobody knows what state the connection is in: whoever needs one makes it anew.
    fn give_up(&mut self);

    /// Ends the connection in an orderly way.
    fn close(&mut self) -> impl Future<Output = ()> + Send;
}

/// What can stand in line.
pub(super) trait Element: Send + Sized + 'static {
    /// What it is sent on.
    type Link: Linked;

    /// The name of the store, for errors.
    const STORE: &'static str;

    /// A batch holds at most this many, so that none of them waits for too many others.
    const BATCH_MAX: usize;

    /// A batch goes beside others that are on their way when it holds as many as this.
    const BATCH_EAGER: usize;

    /// How large it is, roughly.
    fn bytes(&self) -> usize;

    /// Whether nobody waits for its answer any more: such a one need not be sent.
    fn is_abandoned(&self) -> bool;

    /// Sends a batch and answers each of its elements.
    fn run(batch: Vec<Self>, link: &mut Self::Link) -> impl Future<Output = ()> + Send;
}

/// A line of elements before a few connections.
#[derive(Debug)]
pub(super) struct Lane<E> {
    line: mpsc::Sender<E>,
    /// Ends with the last worker.
    workers: watch::Receiver<()>,
}

impl<E> Clone for Lane<E> {
    fn clone(&self) -> Self {
        Lane { line: self.line.clone(), workers: self.workers.clone() }
    }
}

impl<E: Element> Lane<E> {
    /// A lane with a worker for each of these connections.
    pub(super) fn start(links: Vec<E::Link>, closing: &watch::Receiver<bool>) -> Self {
        let (line, elements) = mpsc::channel(LINE_MAX);
        let (alive, workers) = watch::channel(());
        let head = Arc::new(Mutex::new(Head { elements, gathered: Batch::default() }));
        let alive = Arc::new(alive);
        for link in links {
            let worker = Worker { head: Arc::clone(&head), closing: closing.clone() };
            tokio::spawn(worker.run(link, Arc::clone(&alive)));
        }
        Lane { line, workers }
    }

    /// Puts an element in line and waits for its answer. Once it stands in line it is sent, unless
    /// its caller has gone before that.
    pub(super) async fn ask<A>(
        &self,
        element: impl FnOnce(Sender<A>) -> E,
    ) -> Result<A, StoreError> {
        let (sender, mut answer) = oneshot::channel();
        if self.line.send(element(sender)).await.is_err() {
            return Err(StoreError::new(StoreErrorKind::Unavailable, E::STORE, "it is closed"));
        }
        // Work that came into the line while the workers ended may stay there for ever.
        let answered = tokio::select! {
            biased;
            answered = &mut answer => answered.ok(),
            () = self.ended() => answer.try_recv().ok(),
        };
        answered.unwrap_or_else(|| Err(unanswered(E::STORE)))
    }

    /// Puts an element in line whose sender somebody else waits for.
    pub(super) async fn hand_over(&self, element: E) {
        // If the lane has ended, dropping the element tells its caller.
        let _ = self.line.send(element).await;
    }

    /// Waits until nobody works here any more.
    pub(super) async fn ended(&self) {
        let mut workers = self.workers.clone();
        while workers.changed().await.is_ok() {}
    }
}

struct Worker<E> {
    head: Arc<Mutex<Head<E>>>,
    closing: watch::Receiver<bool>,
}

/// The head of the line. One worker has it, and gathers there what goes next.
struct Head<E> {
    elements: mpsc::Receiver<E>,
    gathered: Batch<E>,
}

/// Elements that go together.
struct Batch<E> {
    elements: Vec<E>,
    bytes: usize,
}

impl<E> Default for Batch<E> {
    fn default() -> Self {
        Batch { elements: Vec::new(), bytes: 0 }
    }
}

impl<E: Element> Batch<E> {
    fn push(&mut self, element: E) {
        if !element.is_abandoned() {
            self.bytes += element.bytes();
            self.elements.push(element);
        }
    }

    fn is_full(&self) -> bool {
        self.elements.len() >= E::BATCH_MAX || self.bytes >= BATCH_BYTES_MAX
    }

    /// Takes what stands in line, as far as there is room.
    fn take(&mut self, line: &mut mpsc::Receiver<E>) {
        while !self.is_full() {
            let Ok(element) = line.try_recv() else { break };
            self.push(element);
        }
    }
}

impl<E: Element> Worker<E> {
    async fn run(mut self, mut link: E::Link, alive: Arc<watch::Sender<()>>) {
        let mut held = None;
        loop {
            let mut head = match held.take() {
                Some(head) => head,
                None => self.head.lock().await,
            };
            let Some(batch) = head.next(&mut self.closing).await else { break };
            let sent = {
                let sending = AssertUnwindSafe(E::run(batch, &mut link));
                let mut sending = pin!(sending.catch_unwind());
                tokio::select! {
                    biased;
                    sent = &mut sending => {
                        held = Some(head);
                        sent
                    }
                    () = head.gather() => {
                        // For whoever is free, now or first.
                        drop(head);
                        sending.await
                    }
                }
            };
            // Those whose answers went with it are told so, and ask again. The next batch must go.
            if sent.is_err() {
                error!(store = E::STORE, "a batch panicked: this is a bug");
                link.give_up();
            }
        }
        link.close().await;
        drop(alive);
    }
}

impl<E: Element> Head<E> {
    /// What was gathered and what stands in line now; waits until something does. `None` when the store
    /// is closed and the line is empty.
    async fn next(&mut self, closing: &mut watch::Receiver<bool>) -> Option<Vec<E>> {
        while self.gathered.elements.is_empty() {
            let first = tokio::select! {
                biased;
                first = self.elements.recv() => first,
                () = until_closing(closing) => {
                    self.elements.close();
                    self.elements.recv().await
                }
            };
            self.gathered.push(first?);
        }
        self.gathered.take(&mut self.elements);
        Some(std::mem::take(&mut self.gathered).elements)
    }

    /// Gathers until there is enough to go beside what is on its way, or until it has waited long enough.
    /// Small batches beside each other cost more than one after the other.
    ///
    /// # Cancel safety
    /// May be dropped: what was gathered stays.
    async fn gather(&mut self) {
        while self.gathered.elements.is_empty() {
            match self.elements.recv().await {
                Some(element) => self.gathered.push(element),
                None => return pending().await,
            }
        }
        self.gathered.take(&mut self.elements);
        let Head { elements, gathered } = self;
        let more = async {
            while gathered.elements.len() < E::BATCH_EAGER && !gathered.is_full() {
                let Some(element) = elements.recv().await else { return pending().await };
                gathered.push(element);
                gathered.take(elements);
            }
        };
        // Late is as good as enough.
        let _ = timeout(GATHER_TIME_MAX, more).await;
    }
}

async fn until_closing(closing: &mut watch::Receiver<bool>) {
    // The store that is gone closes too.
    let _ = closing.wait_for(|closing| *closing).await;
}

/// It stood in line, and nobody answered it: the lane was closed, or its batch panicked.
fn unanswered(store: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Ambiguous, store, "no answer: it was closed, or it panicked")
}

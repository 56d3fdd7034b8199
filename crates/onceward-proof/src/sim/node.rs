//! A node: one process with its engine. It can be killed, stopped for a while, and asked to end.
//!
//! Everything that runs on a node runs inside [`Gate::guard`]. A killed node drops its tasks where
//! they stand, which is at an await; a paused one does not poll them while time goes on.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Running,
    Paused,
    Dead,
}

/// What all tasks of one process share.
#[derive(Debug)]
pub(super) struct Gate(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    life: Life,
    /// Those to wake at the next change; they have to come again after it.
    waiting: Vec<Waker>,
    changes: u64,
}

impl Gate {
    pub(super) fn new() -> Arc<Self> {
        let inner = Inner { life: Life::Running, waiting: Vec::new(), changes: 0 };
        Arc::new(Gate(Mutex::new(inner)))
    }

    pub(super) fn life(&self) -> Life {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).life
    }

    /// How often the process was paused, resumed or killed.
    pub(super) fn changes(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).changes
    }

    /// Pauses, resumes or kills. A dead process stays dead.
    pub(super) fn set(&self, life: Life) {
        let wakers = {
            let mut gate = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if gate.life != Life::Dead {
                gate.life = life;
            }
            gate.changes += 1;
            std::mem::take(&mut gate.waiting)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// A task of this process.
    pub(super) fn guard<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        task: F,
    ) -> Guarded {
        Guarded { gate: Arc::clone(self), task: Some(Box::pin(task)), seen: None }
    }

    /// Comes back while the process runs, and never once it is dead.
    pub(super) async fn alive(self: &Arc<Self>) {
        if self.life() == Life::Running {
            return;
        }
        self.guard(std::future::ready(())).await;
        if self.life() == Life::Dead {
            std::future::pending::<()>().await;
        }
    }

    /// A running task may be waiting for something else when its process is paused or killed, so
    /// that it asks to be woken by the next change, once.
    fn look(&self, waker: &Waker, seen: &mut Option<u64>) -> Life {
        let mut gate = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen != Some(gate.changes) {
            *seen = Some(gate.changes);
            gate.waiting.push(waker.clone());
        }
        gate.life
    }
}

/// A task that lives as long as its process.
pub(super) struct Guarded {
    gate: Arc<Gate>,
    task: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    seen: Option<u64>,
}

impl Future for Guarded {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        match this.gate.look(context.waker(), &mut this.seen) {
            Life::Paused => return Poll::Pending,
            Life::Dead => this.task = None,
            Life::Running => {}
        }
        let Some(task) = &mut this.task else { return Poll::Ready(()) };
        task.as_mut().poll(context)
    }
}

//! Stopping: no new work, a time for what runs, then a clear word about the rest.

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Takes work.
    Open,
    /// Takes none, and lets what runs come to its end.
    Draining,
    /// What still runs is to be marked unknown.
    Over,
}

#[derive(Debug)]
pub(super) struct Drain {
    phase: watch::Sender<Phase>,
    running: watch::Sender<usize>,
}

impl Default for Drain {
    fn default() -> Self {
        Drain { phase: watch::Sender::new(Phase::Open), running: watch::Sender::new(0) }
    }
}

/// One request that runs.
pub(super) struct Running(watch::Sender<usize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

impl Drain {
    pub(super) fn enter(&self) -> Running {
        self.running.send_modify(|running| *running += 1);
        Running(self.running.clone())
    }

    pub(super) fn is_open(&self) -> bool {
        *self.phase.borrow() == Phase::Open
    }

    pub(super) fn is_over(&self) -> bool {
        *self.phase.borrow() == Phase::Over
    }

    /// Comes back when what runs has to end now.
    pub(super) async fn over(&self) {
        let mut phase = self.phase.subscribe();
        // The sender lives as long as we do, so that waiting cannot fail.
        let _ = phase.wait_for(|phase| *phase == Phase::Over).await;
    }

    /// Sleeps, but not past the end.
    pub(super) async fn pause(&self, duration: Duration) {
        tokio::select! {
            biased;
            () = self.over() => {}
            () = sleep(duration) => {}
        }
    }

    pub(super) async fn close(&self, at_most: Duration, last_words: Duration) {
        self.phase.send_modify(|phase| *phase = (*phase).max(Phase::Draining));
        let mut running = self.running.subscribe();
        let _ = timeout(at_most, running.wait_for(|running| *running == 0)).await;
        self.phase.send_modify(|phase| *phase = Phase::Over);
        let _ = timeout(last_words, running.wait_for(|running| *running == 0)).await;
    }
}

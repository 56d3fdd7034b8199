use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use super::LONGEST;

/// Where one side waits until the other lets it go on.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    waiting: usize,
    open: bool,
}

impl Gate {
    /// Waits here until the gate is open, which may be after all that a test does.
    pub(crate) fn pass(&self) {
        self.0.0.lock().expect("lock").waiting += 1;
        self.0.1.notify_all();
        self.until(LONGEST * 5, |state| state.open);
    }

    /// Waits until that many have come to the gate.
    pub(crate) fn reached_by(&self, count: usize) {
        self.until(LONGEST, |state| state.waiting >= count);
    }

    pub(crate) fn open(&self) {
        self.0.0.lock().expect("lock").open = true;
        self.0.1.notify_all();
    }

    fn until(&self, at_most: Duration, condition: impl Fn(&State) -> bool) {
        let state = self.0.0.lock().expect("lock");
        let waited = self.0.1.wait_timeout_while(state, at_most, |state| !condition(state));
        assert!(!waited.expect("lock").1.timed_out(), "nobody came in time");
    }
}

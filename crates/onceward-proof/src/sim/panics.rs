//! A runtime keeps the panics of its tasks to itself. Those that nobody meant must be seen.

use std::{cell::Cell, panic, sync::Once};

thread_local! {
    static SEEN: Cell<u64> = const { Cell::new(0) };
}

/// Counts panics from now on, each on its own thread. The panic of a handler that a fault asks for is
/// resumed, not raised, and is not among them.
pub(super) fn watch() {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            SEEN.set(SEEN.get() + 1);
            before(info);
        }));
    });
}

/// How many panics this thread has seen.
pub(super) fn seen() -> u64 {
    SEEN.get()
}

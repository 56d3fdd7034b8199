//! How many requests are under way on a connection that they share, and which of them upstream may still
//! be sent.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
};

use futures_util::task::AtomicWaker;

use super::uploading::Upload;

/// Requests that are under way on one connection; the next one gets another.
const STREAMS_MAX: usize = 100;

/// The streams of one connection.
///
/// hyper takes more requests than upstream allows, and lets them wait without a word. A request that
/// waits there is taken for sent, and would be sent whenever there is room for it, long after everybody
/// has given it up: nothing takes it back but the end of its connection.
///
/// So none is begun for which there is no room, by a count that is never lower than that of h2: a place is
/// taken before a request is begun, and left when its answer has ended and the last of its bytes is
/// written. But upstream may allow fewer at any time, also between the look at the count and the sending.
/// A request that was given up and may not have been sent ends its connection (`see`).
#[derive(Default)]
pub(super) struct Streams {
    /// How many upstream allows; none once the connection has ended, or should.
    allowed: AtomicUsize,
    under_way: AtomicUsize,
    /// Of these, whose rest upstream leaves lying.
    lying: AtomicUsize,
    takes_no_more: AtomicBool,
    should_end: AtomicBool,
    /// How many requests were handed to hyper; and as many of the first of them have left it.
    begun: AtomicU64,
    sent: AtomicU64,
    /// Requests that were given up and may not have left it. None once the connection has ended.
    doubtful: Mutex<Option<Vec<Doubtful>>>,
    /// Of whoever polls the connection.
    task: AtomicWaker,
}

/// It keeps its place until it is known what becomes of it.
struct Doubtful {
    number: u64,
    _upload: Arc<Upload>,
}

impl Streams {
    pub(super) fn new(allowed: usize) -> Arc<Self> {
        let doubtful = Mutex::new(Some(Vec::new()));
        Arc::new(Streams { allowed: allowed.into(), doubtful, ..Streams::default() })
    }

    /// A place for one more, if there is room.
    pub(super) fn place(self: &Arc<Self>) -> Option<Place> {
        if self.takes_no_more.load(Ordering::Relaxed) {
            return None;
        }
        let max = STREAMS_MAX.min(self.allowed.load(Ordering::Acquire));
        let one_more = |under_way| (under_way < max).then_some(under_way + 1);
        let taken = self.under_way.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        taken.is_ok().then(|| Place { streams: Arc::clone(self), lies: AtomicBool::new(false) })
    }

    pub(super) fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Acquire) > 0
    }

    /// Whether nobody should use it any more.
    pub(super) fn takes_no_more(&self) -> bool {
        self.takes_no_more.load(Ordering::Relaxed)
    }

    /// What is known before the connection is polled.
    pub(super) fn look(&self, task: &Waker) -> Look {
        self.task.register(task);
        let begun = self.begun.load(Ordering::Acquire);
        let under_way = self.under_way.load(Ordering::Acquire);
        let doubtful = self.doubtful().as_mut().map(mem::take).unwrap_or_default();
        Look { begun, under_way, doubtful }
    }

    /// What is known after it was polled, with all that was begun before. Tells whether it may be polled
    /// again: not if that could send a request that was given up before.
    pub(super) fn see(&self, look: Look, allowed: usize, is_stuck: bool) -> bool {
        self.allow(allowed);
        // h2 sends whatever there is room for, unless what it has sent before is not taken.
        if !is_stuck && look.under_way <= allowed {
            self.sent.store(look.begun, Ordering::Release);
        }
        let is_sent = |doubtful: &Doubtful| doubtful.number <= self.sent.load(Ordering::Acquire);
        look.doubtful.iter().all(is_sent) && !self.should_end.load(Ordering::Acquire)
    }

    pub(super) fn allow(&self, streams: usize) {
        self.allowed.store(streams, Ordering::Release);
    }

    /// The connection has ended.
    pub(super) fn end(&self) {
        self.allow(0);
        // Whatever was in doubt was sent by now, or never will be. Not dropped under the lock.
        let doubtful = self.doubtful().take();
        drop(doubtful);
    }

    fn doubtful(&self) -> MutexGuard<'_, Option<Vec<Doubtful>>> {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was begun before a connection was polled, what of it had not ended, and what was given up.
pub(super) struct Look {
    begun: u64,
    under_way: usize,
    doubtful: Vec<Doubtful>,
}

/// The place of one request, until it and its answer have ended.
pub(super) struct Place {
    streams: Arc<Streams>,
    lies: AtomicBool,
}

impl Place {
    /// Nobody waits for the rest of it, and upstream does not take it: no others may come.
    pub(super) fn leave_lying(&self) {
        self.lies.store(true, Ordering::Release);
        self.streams.lying.fetch_add(1, Ordering::AcqRel);
        self.streams.takes_no_more.store(true, Ordering::Release);
    }

    /// Ends the connection if nothing else is under way there.
    pub(super) fn ends_what_lies(&self) -> bool {
        let streams = &self.streams;
        let is_over =
            streams.under_way.load(Ordering::Acquire) <= streams.lying.load(Ordering::Acquire);
        if is_over {
            streams.should_end.store(true, Ordering::Release);
            streams.task.wake();
        }
        is_over
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if *self.lies.get_mut() {
            self.streams.lying.fetch_sub(1, Ordering::AcqRel);
        }
        self.streams.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A request that hyper was given on a connection of many. If this is dropped before there was an answer,
/// the request was given up.
pub(super) struct Begun {
    number: u64,
    upload: Option<Arc<Upload>>,
}

impl Begun {
    /// To be called once hyper has it: what was begun before a poll is in that poll.
    pub(super) fn new(upload: &Arc<Upload>) -> Self {
        let begun = upload.place().map(|place| place.streams.begun.fetch_add(1, Ordering::AcqRel));
        Begun { number: begun.map_or(0, |before| before + 1), upload: Some(Arc::clone(upload)) }
    }

    /// Upstream has answered, or hyper has given it back.
    pub(super) fn decided(mut self) {
        self.upload = None;
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let Some(upload) = self.upload.take() else { return };
        let Some(place) = upload.place() else { return };
        let streams = Arc::clone(&place.streams);
        if self.number <= streams.sent.load(Ordering::Acquire) {
            return;
        }
        if let Some(doubtful) = &mut *streams.doubtful() {
            doubtful.push(Doubtful { number: self.number, _upload: upload });
        }
        streams.task.wake();
    }
}

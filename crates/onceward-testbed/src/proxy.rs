use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener as StdListener},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use tokio::{
    net::TcpListener,
    runtime::{Builder, Handle},
    sync::{oneshot, watch},
    time::sleep,
};

use self::connection::connection;

mod connection; // one of them, both ways
mod replacer; // other bytes than were sent

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It works.
    Honest,
    /// It breaks once so many bytes have passed that way.
    Breaks(Break, Way, usize),
    /// Everything takes longer, by this much for each piece.
    Delays(Duration),
    /// Everything arrives byte by byte.
    Slices,
}

/// How a connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Both sides see an orderly end.
    Cut,
    /// Both sides see a reset.
    Reset,
    /// The receiver sees an orderly end, the other way goes on.
    Fin,
    /// Nothing arrives any more, either way; both sides think that they are connected.
    Blackhole,
    /// The sender sees an end; the receiver thinks that it is connected.
    HalfOpen,
}

impl Break {
    /// All of them.
    pub const ALL: [Break; 5] =
        [Break::Cut, Break::Reset, Break::Fin, Break::Blackhole, Break::HalfOpen];

    /// Its name in a record of faults.
    pub fn name(self) -> &'static str {
        match self {
            Break::Cut => "cut",
            Break::Reset => "reset",
            Break::Fin => "fin",
            Break::Blackhole => "blackhole",
            Break::HalfOpen => "half_open",
        }
    }
}

/// A direction through a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the one who connected.
    There,
    /// To the one who connected.
    Back,
}

/// Hears of each fault: its kind, and where.
pub type OnFault = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// How PostgreSQL says that a statement and its commit are done.
pub const READY_FOR_QUERY: &[u8] = b"Z\0\0\0\x05";

/// A TCP proxy that breaks connections on purpose: by their number, or at a moment.
///
/// It listens on one address, and leads to another one, which may change.
#[derive(Clone)]
pub struct CutProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Dropped with the last clone, which ends the proxy's own thread if it has one.
    _life: Arc<Option<oneshot::Sender<()>>>,
}

struct Shared {
    target: RwLock<Option<SocketAddr>>,
    honest: AtomicBool,
    muted: AtomicBool,
    delay: Mutex<Duration>,
    trap: Mutex<Option<Trap>>,
    /// What clients send, and what arrives instead.
    replaced: Mutex<Vec<(Vec<u8>, Vec<u8>)>>,
    replacements: AtomicU64,
    /// How often a trap has sprung.
    sprung: AtomicU64,
    /// How many connections lead to the target.
    open: AtomicU64,
    /// Changes when all connections are to be cut.
    cuts: watch::Sender<()>,
    fates: Box<dyn Fn(u64) -> Fate + Send + Sync>,
    on_fault: OnFault,
}

/// Waits for a client that sends these bytes.
struct Trap {
    pattern: Vec<u8>,
    then: Then,
}

/// What becomes of the connection.
#[derive(Clone)]
enum Then {
    /// It is cut before they are passed on.
    Cut,
    /// They are passed on, these are awaited in the answer, of which the client gets nothing, and it is cut.
    CutAfter(Vec<u8>),
    /// This is their answer. They are not passed on, and all else is.
    Answer(Vec<u8>),
}

impl CutProxy {
    /// A proxy before `target` that works until told otherwise, on a thread of its own: a test
    /// that blocks does not block it.
    ///
    /// # Panics
    ///
    /// If there is no free port or thread.
    pub fn start(target: SocketAddr) -> CutProxy {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (life, end) = oneshot::channel::<()>();
        let proxy = CutProxy::listen(
            runtime.handle(),
            Box::new(|_| Fate::Honest),
            Arc::new(|_, _| {}),
            Some(life),
        )
        .expect("a free port");
        proxy.lead_to(Some(target));
        thread::spawn(move || {
            // Nothing is ever sent; this ends when the other end is dropped.
            let _ = runtime.block_on(end);
        });
        proxy
    }

    /// A proxy that leads nowhere yet. `fates` says what becomes of each connection, by its
    /// number.
    ///
    /// # Errors
    ///
    /// If there is no free port.
    pub fn with_fates(
        runtime: &Handle,
        fates: impl Fn(u64) -> Fate + Send + Sync + 'static,
        on_fault: OnFault,
    ) -> io::Result<CutProxy> {
        CutProxy::listen(runtime, Box::new(fates), on_fault, None)
    }

    fn listen(
        runtime: &Handle,
        fates: Box<dyn Fn(u64) -> Fate + Send + Sync>,
        on_fault: OnFault,
        life: Option<oneshot::Sender<()>>,
    ) -> io::Result<CutProxy> {
        let shared = Arc::new(Shared {
            target: RwLock::default(),
            honest: AtomicBool::new(false),
            muted: AtomicBool::new(false),
            delay: Mutex::default(),
            trap: Mutex::default(),
            replaced: Mutex::default(),
            replacements: AtomicU64::new(0),
            sprung: AtomicU64::new(0),
            open: AtomicU64::new(0),
            cuts: watch::Sender::new(()),
            fates,
            on_fault,
        });
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        runtime.spawn(accept(listener, Arc::clone(&shared)));
        Ok(CutProxy { address, shared, _life: Arc::new(life) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where connections go from now on; `None` for nowhere: they are closed at once. Those that
    /// exist go on.
    pub fn lead_to(&self, target: Option<SocketAddr>) {
        *self.shared.target.write().unwrap_or_else(PoisonError::into_inner) = target;
    }

    /// Breaks no further connections by their fates.
    pub fn be_honest(&self) {
        self.shared.honest.store(true, SeqCst);
    }

    /// Ends all connections now. New ones work, also after [`CutProxy::mute`].
    pub fn cut(&self) {
        self.shared.cuts.send_replace(());
        self.shared.muted.store(false, SeqCst);
    }

    /// From now on no answer arrives, on old and new connections; requests still do. What has
    /// lost a part of its answers is of no use any more: [`CutProxy::cut`] is the way back.
    pub fn mute(&self) {
        self.shared.muted.store(true, SeqCst);
    }

    /// Holds every piece up by this much from now on, either way.
    pub fn delay(&self, time: Duration) {
        *lock(&self.shared.delay) = time;
    }

    /// Cuts the next connection whose client sends `pattern`, before the server sees that.
    pub fn cut_before(&self, pattern: &[u8]) {
        *lock(&self.shared.trap) = Some(Trap { pattern: pattern.to_owned(), then: Then::Cut });
    }

    /// Cuts the next connection whose client sends `pattern`, after the server has answered: the
    /// pattern arrives there, and what comes back is swallowed until it held `until`. So a client
    /// does not learn that its `COMMIT` was done.
    ///
    /// [`READY_FOR_QUERY`] fits PostgreSQL; nothing at all means the first bytes of any answer.
    pub fn cut_after(&self, pattern: &[u8], until: &[u8]) {
        let (pattern, then) = (pattern.to_owned(), Then::CutAfter(until.to_owned()));
        *lock(&self.shared.trap) = Some(Trap { pattern, then });
    }

    /// Answers the next piece from a client in which `pattern` is in the place of the server, which does not
    /// see it.
    pub fn answer(&self, pattern: &[u8], answer: &[u8]) {
        let (pattern, then) = (pattern.to_owned(), Then::Answer(answer.to_owned()));
        *lock(&self.shared.trap) = Some(Trap { pattern, then });
    }

    /// From now on something else arrives wherever a client sends `from`, as if the client had a bug.
    /// What ends with the beginning of `from` is held up until more comes.
    ///
    /// # Panics
    ///
    /// If they are not of the same length, since protocols count bytes.
    pub fn replace(&self, from: &[u8], to: &[u8]) {
        assert!(!from.is_empty() && from.len() == to.len(), "{} and {}", from.len(), to.len());
        lock(&self.shared.replaced).push((from.to_owned(), to.to_owned()));
    }

    /// How often something else arrived.
    pub fn replacements(&self) -> u64 {
        self.shared.replacements.load(SeqCst)
    }

    /// How often [`CutProxy::cut_before`] and [`CutProxy::cut_after`] have cut a connection, and
    /// [`CutProxy::answer`] has answered.
    pub fn sprung(&self) -> u64 {
        self.shared.sprung.load(SeqCst)
    }

    /// How many connections it holds to the target. What came over one that is gone may still be at
    /// work there.
    pub fn open(&self) -> u64 {
        self.shared.open.load(SeqCst)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut number = 0;
    loop {
        // An accept may fail for want of descriptors, which is over soon.
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        tokio::spawn(connection(Arc::clone(&shared), number, stream));
        number += 1;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

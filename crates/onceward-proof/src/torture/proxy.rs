//! A TCP proxy that breaks connections on purpose: at every border between two processes.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::Handle,
    time::{sleep, timeout},
};

/// A connection that leads nowhere is kept open this long.
const NOWHERE: Duration = Duration::from_secs(6);

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
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
pub(super) enum Break {
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
    pub(super) const ALL: [Break; 5] =
        [Break::Cut, Break::Reset, Break::Fin, Break::Blackhole, Break::HalfOpen];

    pub(super) fn name(self) -> &'static str {
        match self {
            Break::Cut => "cut",
            Break::Reset => "reset",
            Break::Fin => "fin",
            Break::Blackhole => "blackhole",
            Break::HalfOpen => "half_open",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the one who connected.
    There,
    /// To the one who connected.
    Back,
}

/// Which fates the connections of a proxy have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fates {
    pub(super) seed: u64,
    /// One connection in so many is bad.
    pub(super) one_in: u64,
    /// Those that break do so before so many bytes have passed.
    pub(super) bytes_max: usize,
}

impl Fates {
    /// The fate of a connection, by its number. Each kind has its turn.
    pub(super) fn of(self, connection: u64) -> Fate {
        if !connection.is_multiple_of(self.one_in) {
            return Fate::Honest;
        }
        let own = connection.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = StdRng::seed_from_u64(self.seed ^ own);
        let way = if random.random() { Way::There } else { Way::Back };
        let after = random.random_range(0..self.bytes_max);
        let turn = usize::try_from(connection / self.one_in).unwrap_or(0);
        match turn % (Break::ALL.len() + 2) {
            0 => Fate::Delays(Duration::from_millis(random.random_range(1..200))),
            1 => Fate::Slices,
            turn => Fate::Breaks(Break::ALL[turn - 2], way, after),
        }
    }
}

/// Hears of each fault: its kind, and where.
pub(super) type OnFault = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// One listening proxy in front of one address, which may change.
#[derive(Clone)]
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: RwLock<Option<SocketAddr>>,
    honest: AtomicBool,
    fates: Box<dyn Fn(u64) -> Fate + Send + Sync>,
    on_fault: OnFault,
}

impl Proxy {
    /// Listens. `fates` says what becomes of each connection, by its number.
    pub(super) fn start(
        runtime: &Handle,
        fates: impl Fn(u64) -> Fate + Send + Sync + 'static,
        on_fault: OnFault,
    ) -> io::Result<Proxy> {
        let shared = Arc::new(Shared {
            target: RwLock::default(),
            honest: AtomicBool::new(false),
            fates: Box::new(fates),
            on_fault,
        });
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let proxy = Proxy { address: listener.local_addr()?, shared: Arc::clone(&shared) };
        runtime.spawn(async move {
            let mut number = 0;
            loop {
                // An accept may fail for want of descriptors, which is over soon.
                let Ok((stream, _)) = listener.accept().await else {
                    sleep(Duration::from_millis(10)).await;
                    continue;
                };
                tokio::spawn(Arc::clone(&shared).connection(number, stream));
                number += 1;
            }
        });
        Ok(proxy)
    }

    /// Where connections go from now on; `None` for nowhere: they are closed at once.
    pub(super) fn lead_to(&self, target: Option<SocketAddr>) {
        *self.shared.target.write().unwrap_or_else(PoisonError::into_inner) = target;
    }

    /// Breaks no further connections.
    pub(super) fn be_honest(&self) {
        self.shared.honest.store(true, SeqCst);
    }
}

/// Why a connection does not go on.
enum Stopped {
    ByItself,
    Struck(Break, Way),
}

impl From<io::Error> for Stopped {
    fn from(_: io::Error) -> Self {
        Stopped::ByItself
    }
}

impl Shared {
    async fn connection(self: Arc<Self>, number: u64, mut near: TcpStream) {
        let target = *self.target.read().unwrap_or_else(PoisonError::into_inner);
        let Some(target) = target else { return };
        let Ok(mut far) = TcpStream::connect(target).await else { return };
        let (Ok(()), Ok(())) = (near.set_nodelay(true), far.set_nodelay(true)) else { return };
        let honest = self.honest.load(SeqCst);
        let fate = if honest { Fate::Honest } else { (self.fates)(number) };
        match fate {
            Fate::Delays(_) => (self.on_fault)("delay", &format!("connection {number}, {fate:?}")),
            Fate::Slices => (self.on_fault)("slices", &format!("connection {number}")),
            Fate::Honest | Fate::Breaks(..) => {}
        }
        let passed = {
            let ((near_read, near_write), (far_read, far_write)) = (near.split(), far.split());
            tokio::try_join!(
                self.pump(near_read, far_write, Way::There, fate),
                self.pump(far_read, near_write, Way::Back, fate),
            )
        };
        let Err(Stopped::Struck(kind, way)) = passed else { return };
        (self.on_fault)(kind.name(), &format!("connection {number}, {fate:?}"));
        match kind {
            Break::Cut | Break::Fin => {}
            Break::Reset => {
                let _ = (near.set_zero_linger(), far.set_zero_linger());
            }
            Break::Blackhole => {
                let _ = timeout(NOWHERE, async { tokio::join!(swallow(near), swallow(far)) }).await;
            }
            Break::HalfOpen => {
                let (sender, receiver) = if way == Way::There { (near, far) } else { (far, near) };
                drop(sender);
                let _ = timeout(NOWHERE, swallow(receiver)).await;
            }
        }
    }

    /// Passes bytes on until their end, or until the fate of the connection strikes.
    async fn pump(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        way: Way,
        fate: Fate,
    ) -> Result<(), Stopped> {
        let strike = match fate {
            Fate::Breaks(kind, struck, after) if struck == way => Some((kind, after)),
            _ => None,
        };
        let mut left = strike.map_or(usize::MAX, |(_, after)| after);
        let mut buffer = [0; 4096];
        loop {
            let read = from.read(&mut buffer).await?;
            if read == 0 {
                to.shutdown().await?;
                return Ok(());
            }
            let passed = &buffer[..read.min(left)];
            match fate {
                Fate::Delays(time) => {
                    sleep(time).await;
                    to.write_all(passed).await?;
                }
                Fate::Slices => {
                    for byte in passed {
                        to.write_all(&[*byte]).await?;
                    }
                }
                Fate::Honest | Fate::Breaks(..) => to.write_all(passed).await?,
            }
            left -= passed.len();
            match strike {
                Some((Break::Fin, _)) if left == 0 => {
                    (self.on_fault)(Break::Fin.name(), &format!("{fate:?}"));
                    to.shutdown().await?;
                    swallow(from).await;
                    return Ok(());
                }
                Some((kind, _)) if left == 0 => return Err(Stopped::Struck(kind, way)),
                _ => {}
            }
        }
    }
}

/// Reads to the end, for nobody.
async fn swallow(mut from: impl AsyncRead + Unpin) {
    let mut buffer = [0; 4096];
    while from.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}

#[cfg(test)]
mod tests;

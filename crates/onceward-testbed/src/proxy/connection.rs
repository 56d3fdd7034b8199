use std::{
    io,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::SeqCst},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    sync::Notify,
    time::{sleep, timeout},
};

use super::{Break, Fate, Shared, Then, Trap, Way, lock, replacer::Replacer};

/// A connection that leads nowhere is kept open this long.
const NOWHERE: Duration = Duration::from_secs(6);

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

/// Passes everything on between a client and the target, as far as the fate allows.
pub(super) async fn connection(shared: Arc<Shared>, number: u64, mut near: TcpStream) {
    let mut cuts = shared.cuts.subscribe();
    let target = *shared.target.read().unwrap_or_else(PoisonError::into_inner);
    let Some(target) = target else { return };
    // Counted before the target can know of it, and no more before either side can see its end.
    let counted = Counted::new(&shared);
    let Ok(mut far) = TcpStream::connect(target).await else { return };
    let _counted = counted;
    let (Ok(()), Ok(())) = (near.set_nodelay(true), far.set_nodelay(true)) else { return };
    let honest = shared.honest.load(SeqCst);
    let fate = if honest { Fate::Honest } else { (shared.fates)(number) };
    match fate {
        Fate::Delays(_) => (shared.on_fault)("delay", &format!("connection {number}, {fate:?}")),
        Fate::Slices => (shared.on_fault)("slices", &format!("connection {number}")),
        Fate::Honest | Fate::Breaks(..) => {}
    }
    let link = Link {
        shared: &shared,
        fate,
        awaited: Mutex::default(),
        own: Mutex::default(),
        has_own: Notify::new(),
    };
    let passed = {
        let ((near_read, near_write), (far_read, far_write)) = (near.split(), far.split());
        let both = async {
            tokio::try_join!(
                link.pump(near_read, far_write, Way::There),
                link.pump(far_read, near_write, Way::Back),
            )
        };
        tokio::select! {
            passed = both => passed,
            _ = cuts.changed() => return,
        }
    };
    let Err(Stopped::Struck(kind, way)) = passed else { return };
    (shared.on_fault)(kind.name(), &format!("connection {number}, {fate:?}"));
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

/// One of [`Shared::open`].
struct Counted<'a>(&'a Shared);

impl<'a> Counted<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.open.fetch_add(1, SeqCst);
        Counted(shared)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, SeqCst);
    }
}

/// What both ways of a connection share.
struct Link<'a> {
    shared: &'a Shared,
    fate: Fate,
    /// Once a trap has sprung: what the answer must hold before the cut.
    awaited: Mutex<Option<Vec<u8>>>,
    /// What the client is answered in the place of the server.
    own: Mutex<Vec<u8>>,
    has_own: Notify,
}

impl Link<'_> {
    /// Passes bytes on until their end, or until the fate of the connection strikes.
    async fn pump(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        way: Way,
    ) -> Result<(), Stopped> {
        let strike = match self.fate {
            Fate::Breaks(kind, struck, after) if struck == way => Some((kind, after)),
            _ => None,
        };
        let mut left = strike.map_or(usize::MAX, |(_, after)| after);
        let mut seen = Seen::default();
        let mut buffer = [0; 4096];
        let mut replacer = Replacer::default();
        loop {
            let read = tokio::select! {
                read = from.read(&mut buffer) => read?,
                () = self.has_own.notified(), if way == Way::Back => {
                    let own = std::mem::take(&mut *lock(&self.own));
                    to.write_all(&own).await?;
                    continue;
                }
            };
            if read == 0 {
                to.shutdown().await?;
                return Ok(());
            }
            let replaced = self.replace(&buffer[..read], way, &mut replacer);
            let passed = replaced.as_deref().unwrap_or(&buffer[..read]);
            let passed = &passed[..passed.len().min(left)];
            self.delay().await;
            let arrives = match way {
                Way::There => self.asks(passed, &mut seen)?,
                Way::Back => self.answers(passed, &mut seen)?,
            };
            if !arrives {
                continue;
            }
            if self.fate == Fate::Slices {
                for byte in passed {
                    to.write_all(&[*byte]).await?;
                }
            } else {
                to.write_all(passed).await?;
            }
            left -= passed.len();
            match strike {
                Some((Break::Fin, _)) if left == 0 => {
                    (self.shared.on_fault)(Break::Fin.name(), &format!("{:?}", self.fate));
                    to.shutdown().await?;
                    swallow(from).await;
                    return Ok(());
                }
                Some((kind, _)) if left == 0 => return Err(Stopped::Struck(kind, way)),
                _ => {}
            }
        }
    }

    async fn delay(&self) {
        let by_fate = if let Fate::Delays(time) = self.fate { time } else { Duration::ZERO };
        let time = by_fate.max(*lock(&self.shared.delay));
        if !time.is_zero() {
            sleep(time).await;
        }
    }

    /// What arrives of a piece, if something is replaced on this way.
    fn replace(&self, piece: &[u8], way: Way, replacer: &mut Replacer) -> Option<Vec<u8>> {
        let pairs = lock(&self.shared.replaced);
        if pairs.is_empty() || way == Way::Back {
            return None;
        }
        let (passed, count) = replacer.pass(piece, &pairs);
        self.shared.replacements.fetch_add(count, SeqCst);
        Some(passed)
    }

    /// Whether a piece from the client may go on, or that the connection is to be cut.
    fn asks(&self, piece: &[u8], seen: &mut Seen) -> Result<bool, Stopped> {
        let mut trap = lock(&self.shared.trap);
        let Some(Trap { pattern, then }) = &*trap else { return Ok(true) };
        if !seen.holds(piece, pattern) {
            return Ok(true);
        }
        let then = then.clone();
        *trap = None;
        match then {
            Then::Cut => {
                self.shared.sprung.fetch_add(1, SeqCst);
                Err(Stopped::Struck(Break::Cut, Way::There))
            }
            // Before the piece goes on: its answer may be quick.
            Then::CutAfter(until) => {
                *lock(&self.awaited) = Some(until);
                Ok(true)
            }
            Then::Answer(own) => {
                self.shared.sprung.fetch_add(1, SeqCst);
                *lock(&self.own) = own;
                self.has_own.notify_one();
                Ok(false)
            }
        }
    }

    /// Whether a piece from the server may go on, or that the connection is to be cut.
    fn answers(&self, piece: &[u8], seen: &mut Seen) -> Result<bool, Stopped> {
        let awaited = lock(&self.awaited);
        let Some(until) = &*awaited else {
            return Ok(!self.shared.muted.load(SeqCst));
        };
        if !seen.holds(piece, until) {
            return Ok(false);
        }
        self.shared.sprung.fetch_add(1, SeqCst);
        Err(Stopped::Struck(Break::Cut, Way::Back))
    }
}

/// The end of what came before: a pattern may arrive in pieces.
#[derive(Default)]
struct Seen(Vec<u8>);

impl Seen {
    /// Whether the pattern is there, now that this piece has arrived.
    fn holds(&mut self, piece: &[u8], pattern: &[u8]) -> bool {
        self.0.extend_from_slice(piece);
        let found =
            pattern.is_empty() || self.0.windows(pattern.len()).any(|bytes| bytes == pattern);
        let kept = self.0.len().min(pattern.len().saturating_sub(1));
        self.0.drain(..self.0.len() - kept);
        found
    }
}

/// Reads to the end, for nobody.
async fn swallow(mut from: impl AsyncRead + Unpin) {
    let mut buffer = [0; 4096];
    while from.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}

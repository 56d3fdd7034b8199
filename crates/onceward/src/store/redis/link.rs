//! A connection to one server, made anew when it broke. Calls of many tasks share it: those that come
//! while others are on their way are sent together.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, RedisError, RedisResult, Value,
    aio::MultiplexedConnection,
};

use super::{
    error::{Remedy, remedy},
    evictions::Evictions,
    script::{SOURCES, Script},
};

/// How long a connection may take to be made.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);

/// How long an answer may take. The call is then made again on another connection.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(3);

/// How many calls may be on their way at once. The others wait here, not in a queue of the server.
const IN_FLIGHT_MAX: usize = 1024;

/// What a call is made of.
pub(super) struct Call {
    pub(super) script: Script,
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) args: Vec<Vec<u8>>,
}

/// The way to one server.
pub(super) struct Link {
    pub(super) address: String,
    client: Client,
    open: Mutex<Option<Open>>,
    /// Held by the one that connects.
    connecting: tokio::sync::Mutex<()>,
    /// Counts connections of all links, before anything is asked on them.
    epoch: Arc<AtomicU64>,
}

/// A connection that is open, as far as is known.
#[derive(Clone)]
pub(super) struct Open {
    connection: MultiplexedConnection,
    /// The server process at its other end.
    pub(super) run: Arc<str>,
    pub(super) number: u64,
    /// How many keys it had evicted when that was last heard of, if it tells.
    pub(super) evicted: Option<Arc<AtomicU64>>,
}

/// Why there is no answer.
pub(super) enum Failed {
    /// There is no connection: nothing was sent.
    NotSent(RedisError),
    /// The server refused, or no answer was read.
    Sent(RedisError),
}

/// The digests of the scripts, by which every server knows them.
static DIGESTS: OnceLock<Vec<String>> = OnceLock::new();

impl Link {
    pub(super) fn new(info: ConnectionInfo, epoch: Arc<AtomicU64>) -> RedisResult<Self> {
        Ok(Link {
            address: info.addr().to_string(),
            client: Client::open(info)?,
            open: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            epoch,
        })
    }

    /// `first` says what its arguments begin with, by the connection.
    pub(super) async fn call(
        &self,
        call: &Call,
        first: impl FnOnce(&Open) -> Vec<Vec<u8>>,
    ) -> Result<Value, Failed> {
        let mut open = self.open().await.map_err(Failed::NotSent)?;
        let digest = DIGESTS.get().and_then(|digests| digests.get(call.script as usize));
        let mut command = redis::cmd("EVALSHA");
        command.arg(digest.map_or("", String::as_str));
        command.arg(call.keys.len()).arg(&call.keys).arg(first(&open)).arg(&call.args);
        self.send(&mut open, &command).await
    }

    pub(super) async fn command(&self, command: &Cmd) -> Result<Value, Failed> {
        let mut open = self.open().await.map_err(Failed::NotSent)?;
        self.send(&mut open, command).await
    }

    async fn send(&self, open: &mut Open, command: &Cmd) -> Result<Value, Failed> {
        let answer = open.connection.send_packed_command(command).await;
        let answer = answer.and_then(|answer| answer.extract_error());
        answer.map_err(|error| {
            if error.code().is_none() {
                self.give_up(open.number);
            }
            Failed::Sent(error)
        })
    }

    /// The next call makes another connection, unless somebody has.
    fn give_up(&self, number: u64) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).take_if(|it| it.number == number);
    }

    /// As above, whichever it is.
    pub(super) fn close(&self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// The server has told over this connection that it has evicted keys: it is as if it were another one.
    pub(super) fn has_evicted(&self, number: u64, evicted: u64) {
        let open = self.current().filter(|open| open.number == number);
        let Some(known) = open.and_then(|open| open.evicted) else { return };
        if known.load(Ordering::SeqCst) != evicted {
            // Before any call may pass by the new number.
            self.epoch.fetch_add(1, Ordering::SeqCst);
            known.store(evicted, Ordering::SeqCst);
        }
    }

    fn current(&self) -> Option<Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) async fn open(&self) -> RedisResult<Open> {
        if let Some(open) = self.current() {
            return Ok(open);
        }
        let _one = self.connecting.lock().await;
        if let Some(open) = self.current() {
            return Ok(open);
        }
        let open = self.connect().await?;
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(open.clone());
        Ok(open)
    }

    async fn connect(&self) -> RedisResult<Open> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIME_MAX))
            .set_response_timeout(Some(ANSWER_TIME_MAX))
            .set_concurrency_limit(IN_FLIGHT_MAX);
        let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connecting.await?;
        // Counted before anything is asked: it may be another server, or the same with less in it.
        let number = self.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        load_all(&mut connection).await?;
        // No more than is looked for: over a long way each part of an answer takes its time.
        let mut info = redis::cmd("INFO");
        let info: RedisResult<String> =
            info.arg("server").arg("stats").query_async(&mut connection).await;
        let info = match info {
            Ok(info) => info,
            // Not every service tells. It is then taken for the same one.
            Err(error) if remedy(&error) == Remedy::Refused => String::new(),
            // Whether it tells is not known. Evictions would go unnoticed as long as the connection lives.
            Err(error) => return Err(error),
        };
        let run = field(&info, "run_id").unwrap_or("-").into();
        let evicted = Evictions::read(&info).map(|it| Arc::new(AtomicU64::new(it.count)));
        Ok(Open { connection, run, number, evicted })
    }

    /// The server has forgotten them.
    pub(super) async fn load_again(&self) -> Result<(), Failed> {
        let mut open = self.open().await.map_err(Failed::NotSent)?;
        load_all(&mut open.connection).await.map_err(Failed::Sent)
    }
}

async fn load_all(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    let mut load = redis::pipe();
    for source in SOURCES {
        load.cmd("SCRIPT").arg("LOAD").arg(source);
    }
    let digests: Vec<String> = load.query_async(connection).await?;
    DIGESTS.get_or_init(|| digests);
    Ok(())
}

/// A line of what INFO says.
pub(super) fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    info.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))
}

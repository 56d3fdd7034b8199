//! The load: keep-alive connections of HTTP/1.1, each with one request under way, all on one
//! thread. Requests are built once, only their keys change; of a response only what must be
//! checked is read.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use rand::seq::IndexedRandom as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use crate::{
    machine::{Interference, Snapshot, worked_for},
    postgres::BODY,
    report::Workload,
};

/// What a stalled service gets on top of its time, before the run is given up.
const PATIENCE: Duration = Duration::from_secs(30);

const KEY_LENGTH: usize = 32;

/// A key, as clients make them: random, so that they are spread all over an index.
#[derive(Clone, Copy)]
pub(crate) struct Key([u8; KEY_LENGTH]);

/// A key that was answered, and the body of its first answer.
pub(crate) struct Answered {
    key: Key,
    body: Box<[u8]>,
}

/// Which keys to send.
#[derive(Clone)]
pub(crate) enum Keys {
    /// A new one with every request.
    New,
    /// Those of a set, at random; every body must be that of the first answer.
    Same(Arc<[Answered]>),
    /// Those of a set, at random, to a service that does not know keys.
    Ignored(Arc<[Answered]>),
}

/// How much, and for how long.
#[derive(Clone, Copy)]
pub(crate) struct Load<'a> {
    pub(crate) connections: usize,
    pub(crate) warm_up: Duration,
    pub(crate) time: Duration,
    /// The processes that belong to the benchmark, with their descendants.
    pub(crate) processes: &'a [u32],
    /// The process whose work is measured, if it is one.
    pub(crate) contestant: Option<u32>,
}

/// Where to, and what but for the key.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) address: SocketAddr,
    pub(crate) path: &'a str,
    /// Who asks.
    pub(crate) credential: &'a str,
    /// Headers that a service needs beside those of all, as lines with their ends.
    pub(crate) headers: &'a str,
    pub(crate) body: &'a [u8],
}

impl Target<'static> {
    /// What every service of ours serves.
    pub(crate) fn payments(address: SocketAddr) -> Self {
        let (path, credential) = ("/payments", "sk_bench_4242");
        Target { address, path, credential, headers: "", body: BODY.as_bytes() }
    }
}

/// What the load is for.
pub(crate) struct Service<'a> {
    pub(crate) target: Target<'a>,
    /// Whether a key sent again gets the first answer.
    pub(crate) replays: bool,
    /// How many completed keys the replays choose from.
    pub(crate) keys: usize,
}

/// What came of it.
pub(crate) struct Figures {
    /// What others did meanwhile.
    pub(crate) interference: Interference,
    /// How long the processors worked for the contestant, in seconds, while requests were counted.
    pub(crate) worked: Option<f64>,
    /// How many requests were answered, warm-up included.
    pub(crate) answered: u64,
    /// How long each request took, in nanoseconds, sorted.
    pub(crate) latencies: Vec<u64>,
    /// The last answer of each connection, warm-up included.
    pub(crate) last: Vec<Answered>,
}

impl Figures {
    /// The latency that `share` of the requests do not exceed, in microseconds.
    pub(crate) fn percentile_us(&self, share: f64) -> f64 {
        percentile_us(&self.latencies, share)
    }
}

/// Of sorted nanoseconds.
pub(crate) fn percentile_us(sorted: &[u64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).map_or(f64::NAN, |nanos| *nanos as f64 / 1e3)
}

impl Load<'_> {
    /// One workload: for replays the keys come first. `settle` is called just before what is measured.
    pub(crate) async fn workload(
        &self,
        workload: Workload,
        service: &Service<'_>,
        settle: impl AsyncFnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Figures> {
        let Service { target, replays, keys } = *service;
        let keys = match workload {
            Workload::First => Keys::New,
            Workload::Replay => {
                // Preloading is no measurement, and need not take as long with one connection.
                let preload = Load { connections: self.connections.max(16), ..*self };
                let answered = Arc::from(preload.preload(target, keys).await?);
                if replays { Keys::Same(answered) } else { Keys::Ignored(answered) }
            }
        };
        settle().await?;
        let figures = self.run(target, keys).await?;
        if replays {
            // What was answered must have been kept, or it was no work.
            check(target, &figures.last).await?;
        }
        Ok(figures)
    }

    /// Sends requests for a time. What was answered within it is counted, after the warm-up.
    pub(crate) async fn run(&self, target: Target<'_>, keys: Keys) -> anyhow::Result<Figures> {
        let mut connections = Vec::new();
        for _ in 0..self.connections {
            connections.push(Connection::open(target).await?);
        }
        let before = Snapshot::take(self.processes)?;
        let from = Instant::now() + self.warm_up;
        let until = from + self.time;
        let worked = self.contestant.map(|id| tokio::spawn(worked_between(id, from, until)));
        let mut tasks = JoinSet::new();
        for connection in connections {
            tasks.spawn(send(connection, keys.clone(), from, until));
        }
        let (mut latencies, mut last, mut answered) = (Vec::new(), Vec::new(), 0);
        let all = async {
            while let Some(one) = tasks.join_next().await {
                let one = one??;
                latencies.extend(one.latencies);
                last.extend(one.last);
                answered += one.answered;
            }
            anyhow::Ok(())
        };
        let patience = self.warm_up + self.time + PATIENCE;
        tokio::time::timeout(patience, all).await.context("it stalled")??;
        let interference = Snapshot::take(self.processes)?.since(before);
        ensure!(!latencies.is_empty(), "nothing was answered within the time");
        latencies.sort_unstable();
        let worked = match worked {
            Some(worked) => Some(worked.await??),
            None => None,
        };
        Ok(Figures { interference, worked, answered, latencies, last })
    }

    /// Has `count` new keys answered.
    pub(crate) async fn preload(
        &self,
        target: Target<'_>,
        count: usize,
    ) -> anyhow::Result<Vec<Answered>> {
        let mut tasks = JoinSet::new();
        let connections = self.connections.clamp(1, count.max(1));
        for index in 0..connections {
            let mut connection = Connection::open(target).await?;
            let share = count / connections + usize::from(index < count % connections);
            tasks.spawn(async move {
                let mut answered = Vec::with_capacity(share);
                for _ in 0..share {
                    let key = Key::random();
                    let body = connection.post(key).await?.into();
                    answered.push(Answered { key, body });
                }
                anyhow::Ok(answered)
            });
        }
        let mut answered = Vec::with_capacity(count);
        while let Some(some) = tasks.join_next().await {
            answered.extend(some??);
        }
        Ok(answered)
    }
}

/// How long the processors work for a process between two times, in seconds.
async fn worked_between(process: u32, from: Instant, until: Instant) -> anyhow::Result<f64> {
    tokio::time::sleep_until(from.into()).await;
    let before = worked_for(process)?;
    tokio::time::sleep_until(until.into()).await;
    Ok(worked_for(process)? - before)
}

/// Sends each key again: the bodies must be those of the first answers.
async fn check(target: Target<'_>, answered: &[Answered]) -> anyhow::Result<()> {
    let mut connection = Connection::open(target).await?;
    for first in answered {
        first.compare(connection.post(first.key).await?)?;
    }
    Ok(())
}

/// What came of one connection.
struct Sent {
    answered: u64,
    latencies: Vec<u64>,
    last: Option<Answered>,
}

/// One connection's part: a request after the other.
async fn send(
    mut connection: Connection,
    keys: Keys,
    from: Instant,
    until: Instant,
) -> anyhow::Result<Sent> {
    let mut latencies = Vec::with_capacity(1 << 16);
    let mut count = 0;
    let mut last = None;
    let mut begun = Instant::now();
    while begun < until {
        match &keys {
            Keys::New => {
                let key = Key::random();
                connection.post(key).await?;
                last = Some(key);
            }
            Keys::Same(set) => {
                let first = set.choose(&mut rand::rng()).context("no keys to send again")?;
                first.compare(connection.post(first.key).await?)?;
            }
            Keys::Ignored(set) => {
                let first = set.choose(&mut rand::rng()).context("no keys to send again")?;
                connection.post(first.key).await?;
            }
        }
        let answered = Instant::now();
        count += 1;
        if answered >= from && answered <= until {
            latencies.push(u64::try_from((answered - begun).as_nanos()).unwrap_or(u64::MAX));
        }
        begun = answered;
    }
    let last = last.map(|key| Answered { key, body: connection.body().into() });
    Ok(Sent { answered: count, latencies, last })
}

impl Key {
    fn random() -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let number: u128 = rand::random();
        Key(std::array::from_fn(|digit| DIGITS[(number >> (4 * digit)) as usize & 15]))
    }
}

impl Answered {
    /// The same answer under another key.
    pub(crate) fn under(&self, key: &str) -> anyhow::Result<Self> {
        let key = key.as_bytes().try_into().context("a key of another length")?;
        Ok(Answered { key: Key(key), body: self.body.clone() })
    }

    fn compare(&self, body: &[u8]) -> anyhow::Result<()> {
        if *self.body == *body {
            return Ok(());
        }
        let (first, again) = (String::from_utf8_lossy(&self.body), String::from_utf8_lossy(body));
        bail!("a replay differs from the first answer:\n{first}\n{again}")
    }
}

/// One connection, its request, and the last response.
struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    key_at: usize,
    response: Vec<u8>,
    filled: usize,
    body_at: usize,
}

impl Connection {
    async fn open(target: Target<'_>) -> anyhow::Result<Self> {
        let Target { address, path, credential, headers, body } = target;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut request = format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {credential}\r\n\
             {headers}Content-Type: application/json\r\nContent-Length: {}\r\nIdempotency-Key: ",
            body.len()
        )
        .into_bytes();
        let key_at = request.len();
        request.extend_from_slice(&[b'0'; KEY_LENGTH]);
        request.extend_from_slice(b"\r\n\r\n");
        request.extend_from_slice(body);
        Ok(Connection { stream, request, key_at, response: vec![0; 4096], filled: 0, body_at: 0 })
    }

    /// Sends the request with this key. Returns the body of its answer, which must be a success.
    async fn post(&mut self, key: Key) -> anyhow::Result<&[u8]> {
        self.request[self.key_at..self.key_at + KEY_LENGTH].copy_from_slice(&key.0);
        self.stream.write_all(&self.request).await?;
        self.filled = 0;
        let (status, body_at, end) = loop {
            if self.filled == self.response.len() {
                bail!("a response is longer than {} bytes", self.filled);
            }
            let read = self.stream.read(&mut self.response[self.filled..]).await?;
            ensure!(read > 0, "the service closed the connection");
            self.filled += read;
            if let Some(head) = Head::parse(&self.response[..self.filled])? {
                let end = head.length + head.content_length;
                if self.filled >= end {
                    break (head.status, head.length, end);
                }
            }
        };
        ensure!(self.filled == end, "bytes after the end of a response");
        self.body_at = body_at;
        if !(200..300).contains(&status) {
            bail!("status {status}: {}", String::from_utf8_lossy(self.body()));
        }
        Ok(self.body())
    }

    fn body(&self) -> &[u8] {
        &self.response[self.body_at..self.filled]
    }
}

/// What must be known of a response's head.
#[derive(Debug, PartialEq)]
struct Head {
    status: u16,
    length: usize,
    content_length: usize,
}

impl Head {
    /// `None` while the head is not complete.
    fn parse(bytes: &[u8]) -> anyhow::Result<Option<Self>> {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            return Ok(None);
        };
        let head = std::str::from_utf8(&bytes[..end]).context("a head that is not text")?;
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 "));
        let status = status.and_then(|rest| rest.get(..3)).context("not a status line")?;
        let content_length = lines
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .context("a response without Content-Length")?;
        Ok(Some(Head {
            status: status.parse()?,
            length: end + 4,
            content_length: content_length.1.trim().parse()?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_once_it_is_complete() {
        let response = b"HTTP/1.1 201 Created\r\ncontent-type: text/plain\r\n\
            Content-Length: 2\r\n\r\nok";
        let head = Head::parse(response).expect("well formed");
        assert_eq!(head, Some(Head { status: 201, length: response.len() - 2, content_length: 2 }));
        let part = Head::parse(&response[..response.len() - 3]).expect("nothing wrong so far");
        assert_eq!(part, None);
    }

    #[test]
    fn a_head_without_a_length_is_refused() {
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert!(Head::parse(chunked).is_err());
    }

    #[test]
    fn a_replay_is_the_first_answer_byte_for_byte() {
        let first = Answered { key: Key::random(), body: Box::from(*b"paid 1") };
        assert!(first.compare(b"paid 1").is_ok());
        assert!(first.compare(b"paid 2").is_err());
    }

    #[test]
    fn a_percentile_is_a_latency_that_was_seen() {
        let latencies = (1..=100).map(|micros| micros * 1000).collect();
        let interference = Interference { foreign: 0.0, steal: 0.0 };
        let figures =
            Figures { interference, worked: None, answered: 100, latencies, last: Vec::new() };
        assert_eq!(figures.percentile_us(0.5), 50.0);
        assert_eq!(figures.percentile_us(0.99), 99.0);
    }
}

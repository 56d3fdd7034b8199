//! The service behind the gateways. It acts, on disk, before it answers; and it answers badly in
//! every way.

use std::{
    io::{BufReader, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use rand::{Rng, RngExt as _, SeedableRng as _, rngs::StdRng};

use super::{
    charge::Charge,
    fleet::{Fleet, Moment},
    http::{self, Message},
    ledger::Ledger,
    record::Recorder,
};
use crate::history::{CallNo, Subject, UpstreamAnswer};

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Acts and answers.
    Acts,
    /// Does nothing and says so for good: 402.
    Declines,
    /// Does nothing, with a status that lets it run again.
    Refuses(u16),
    /// Does nothing, fails, and says that it did nothing.
    FailsUnacted,
    /// Acts, fails, and says that it may have acted.
    FailsUnsure,
    /// Acts, with the status of somebody who does not know.
    ActsAndFails(u16),
    /// Acts and answers late: about when the gateway gives up.
    ActsLate(Duration),
    /// Acts and says nothing.
    ActsAndIsSilent,
    /// Acts and breaks off within its answer.
    ActsAndBreaksOff,
    /// Acts and claims a longer body than it sends.
    ClaimsMore,
    /// Acts and claims a shorter body than it sends. What is left over looks like an answer.
    ClaimsLess,
}

impl Manner {
    fn of(random: &mut impl Rng) -> Manner {
        match random.random_range(0..1000) {
            0..50 => Manner::Declines,
            50..150 => Manner::Refuses([503, 429, 408][random.random_range(0..3)]),
            150..170 => Manner::FailsUnacted,
            170..190 => Manner::FailsUnsure,
            190..210 => Manner::ActsAndFails(if random.random() { 502 } else { 504 }),
            210..260 => Manner::ActsLate(Duration::from_millis(random.random_range(900..2100))),
            260..265 => Manner::ActsAndIsSilent,
            265..275 => Manner::ActsAndBreaksOff,
            275..285 => Manner::ClaimsMore,
            285..300 => Manner::ClaimsLess,
            _ => Manner::Acts,
        }
    }

    fn acts(self) -> bool {
        !matches!(self, Manner::Declines | Manner::Refuses(_) | Manner::FailsUnacted)
    }

    fn status(self) -> u16 {
        match self {
            Manner::Declines => 402,
            Manner::Refuses(status) | Manner::ActsAndFails(status) => status,
            Manner::FailsUnacted | Manner::FailsUnsure => 500,
            _ => 201,
        }
    }

    fn executed(self) -> Option<&'static str> {
        match self {
            Manner::FailsUnacted => Some("no"),
            Manner::FailsUnsure => Some("maybe"),
            _ => None,
        }
    }
}

pub(super) struct Upstream {
    pub(super) seed: u64,
    pub(super) record: Arc<Recorder>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) fleet: Arc<Fleet>,
    /// Every call is honest and answered from now on.
    pub(super) calm: AtomicBool,
    /// Some calls are done twice, as if a balancer had sent them again: a defect to be found.
    pub(super) resends: bool,
}

/// Whether a connection is used again.
#[derive(PartialEq, Eq)]
enum Then {
    GoesOn,
    Ends,
}

impl Upstream {
    /// Serves in threads that end with their connections.
    pub(super) fn serve(self: &Arc<Self>, listener: TcpListener) {
        let upstream = Arc::clone(self);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), upstream) = (stream, Arc::clone(&upstream)) else { continue };
                thread::spawn(move || upstream.connection(stream));
            }
        });
    }

    fn connection(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let mut reader = BufReader::new(stream);
        // A request that breaks off is none.
        while let Ok(Some(request)) = Message::read(&mut reader) {
            match self.call(&request, reader.get_mut()) {
                Ok(Then::GoesOn) => {}
                Ok(Then::Ends) => return,
                Err(error) => return self.record.trouble(format!("upstream: {error:#}")),
            }
        }
    }

    fn call(&self, request: &Message, stream: &mut TcpStream) -> Result<Then> {
        let (subject, charge) = Charge::read(request).context("a call that nobody asked for")?;
        let slot = request.line.strip_prefix("POST /").and_then(|path| path.split('/').next());
        let slot: usize = slot.and_then(|slot| slot.parse().ok()).context("a call from nowhere")?;
        let attempt: u64 = request.number("onceward-attempt").unwrap_or(1);
        let mut random = StdRng::seed_from_u64(self.seed_of(&subject, attempt));
        let call = self.record.called(&subject, &charge.asks());
        self.fleet.at(Moment::Called, slot, &subject);
        let drawn = Manner::of(&mut random);
        let manner = if self.is_calm() { Manner::Acts } else { drawn };
        if manner.acts() {
            self.act(call, &subject)?;
            self.fleet.at(Moment::Acted, slot, &subject);
        }
        if self.resends && call.is_multiple_of(4) {
            let again = self.record.called(&subject, &charge.asks());
            self.act(again, &subject)?;
            self.record.replied(again, None);
        }
        Ok(self.answer((call, slot), manner, &subject, stream, &mut random))
    }

    fn act(&self, call: CallNo, subject: &Subject) -> Result<()> {
        self.record.acted(call);
        self.ledger.append(call, subject)
    }

    /// Sends what there is to be sent. It is recorded first, since others may be faster.
    fn answer(
        &self,
        (call, slot): (CallNo, usize),
        manner: Manner,
        subject: &Subject,
        stream: &mut TcpStream,
        random: &mut impl Rng,
    ) -> Then {
        let answer = answer(call, manner, subject, random);
        let status_line = format!("HTTP/1.1 {} Status", answer.status);
        let mut bytes = http::bytes(&status_line, &answer.headers, &in_transit(&answer));
        let (answer, then) = match manner {
            Manner::ActsAndIsSilent => {
                self.wait(Duration::from_secs(4));
                bytes.clear();
                (None, Then::Ends)
            }
            Manner::ActsAndBreaksOff => {
                bytes.truncate(random.random_range(0..bytes.len()));
                (None, Then::Ends)
            }
            Manner::ClaimsMore => {
                bytes.truncate(bytes.len() - 1);
                (None, Then::Ends)
            }
            Manner::ClaimsLess => {
                // What counts is what was claimed; the forged answer after it is for nobody.
                bytes.extend(http::bytes("HTTP/1.1 201 Status", &answer.headers, &answer.body));
                (Some(answer), Then::GoesOn)
            }
            Manner::ActsLate(time) => {
                self.wait(time);
                (Some(answer), Then::GoesOn)
            }
            _ => (Some(answer), Then::GoesOn),
        };
        self.record.replied(call, answer);
        self.fleet.at(Moment::Replied, slot, subject);
        let written = stream.write_all(&bytes).is_ok();
        if then == Then::Ends || !written {
            let _ = stream.shutdown(Shutdown::Both);
            return Then::Ends;
        }
        // A connection may end while the next request is on its way.
        if random.random_ratio(1, 6) && !self.is_calm() {
            thread::sleep(Duration::from_millis(random.random_range(0..15)));
            return Then::Ends;
        }
        Then::GoesOn
    }

    /// Waits; shorter when calm comes.
    fn wait(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end && !self.is_calm() {
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn is_calm(&self) -> bool {
        self.calm.load(SeqCst)
    }

    /// The same for the same attempt on the same key, in whatever order calls come.
    fn seed_of(&self, subject: &Subject, attempt: u64) -> u64 {
        let words = subject.tenant.bytes().chain(subject.key.bytes());
        let hash = words.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        self.seed ^ hash ^ attempt.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// An answer that is like no other: marked with its call and its tenant, with a repeated header and
/// with one that must not be replayed.
fn answer(
    call: CallNo,
    manner: Manner,
    subject: &Subject,
    random: &mut impl Rng,
) -> UpstreamAnswer {
    let tenant = &subject.tenant;
    let padding = "x".repeat(random.random_range(0..1500));
    let body = format!("{{\"tenant\":\"{tenant}\",\"call\":{call},\"padding\":\"{padding}\"}}");
    let mut headers = vec![
        ("content-type", "application/json".to_owned()),
        ("x-note", format!("call {call}")),
        ("set-cookie", format!("session={tenant}-{call}")),
        ("x-note", format!("for {tenant}")),
    ];
    if let Some(word) = manner.executed() {
        headers.push(("onceward-executed", word.to_owned()));
    }
    // Lies are about lengths; others come in chunks, too.
    let whole = matches!(manner, Manner::ClaimsMore | Manner::ClaimsLess) || random.random();
    headers.push(match whole {
        true => ("content-length", body.len().to_string()),
        false => ("transfer-encoding", "chunked".to_owned()),
    });
    let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let executed = manner.executed().map(str::to_owned);
    UpstreamAnswer { status: manner.status(), executed, headers, body }
}

/// The body as it is sent.
fn in_transit(answer: &UpstreamAnswer) -> String {
    let body = &answer.body;
    let chunked = answer.headers.iter().any(|(name, _)| name == "transfer-encoding");
    if !chunked {
        return body.clone();
    }
    let (first, second) = body.split_at(body.len() / 2);
    format!("{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n", first.len(), second.len())
}

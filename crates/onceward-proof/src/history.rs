//! What happened: written by the simulator and by the torture of real processes alike, read by the
//! judge.
//!
//! A history is a file of JSON lines, one event each, in the order in which they happened. The first
//! is [`What::World`]. Everything in it is data of the proof itself, so that keys and bodies may be
//! shown.

use std::{
    io::{self, BufRead, Write},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// The number of a request of a client. Retries are requests of their own.
pub type RequestNo = u64;

/// The number of a call that upstream got, or of a handler that ran.
pub type CallNo = u64;

/// The number of a message of an outbox.
pub type MessageNo = u64;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Event {
    /// When, in microseconds since the beginning of the world.
    pub at: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// A key within its tenant: what a record is kept for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Subject {
    /// Who asks. Also the mark that everything made for this tenant carries, so that a leak shows.
    pub tenant: String,
    /// The idempotency key.
    pub key: String,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "most events of a simulated world are moves")]
pub enum What {
    /// The rules of this world.
    World {
        /// One for each route.
        routes: Vec<Rules>,
        /// Whether the store keeps what it acknowledged. `false` is the declared class of stores
        /// that may lose their last commits: see [`Cause::Lost`].
        durable: bool,
    },
    /// A client sent a request.
    Asked {
        /// Which.
        request: RequestNo,
        /// About what.
        #[serde(flatten)]
        subject: Subject,
        /// Which route of [`What::World`] it falls under.
        route: String,
        /// What is asked: two requests ask the same when these words are equal, however their bytes
        /// are written.
        asks: String,
    },
    /// The client received a whole answer.
    Answered {
        /// To which request.
        request: RequestNo,
        /// What it received.
        answer: Answer,
    },
    /// The client hung up, or its connection broke: it will never know what became of this request,
    /// which may go on all the same.
    GaveUp {
        /// Which request.
        request: RequestNo,
    },
    /// An attempt called upstream. From here on it may act.
    Called {
        /// Which call.
        call: CallNo,
        /// About what, as upstream sees it.
        #[serde(flatten)]
        subject: Subject,
        /// What is asked.
        asks: String,
        /// By which attempt; known in simulated worlds only.
        holder: Option<Holder>,
    },
    /// Upstream did the work: the effect is there for good. At most once in a call.
    Acted {
        /// In which call.
        call: CallNo,
    },
    /// Upstream's side of a call is over. What it sent may still get lost on its way.
    Replied {
        /// Which call.
        call: CallNo,
        /// The answer; `None` when it broke off or never came.
        answer: Option<UpstreamAnswer>,
    },
    /// The store changed a record; known in simulated worlds only.
    Moved {
        /// Which record.
        #[serde(flatten)]
        subject: Subject,
        /// As it was; `None` for absent.
        from: Option<Stand>,
        /// As it is now; `None` for gone.
        to: Option<Stand>,
        /// Why.
        cause: Cause,
    },
    /// The call was one step of an operation; told right after it.
    Step {
        /// Which call.
        call: CallNo,
        /// The name of the step.
        name: String,
        /// The key that went with it.
        key: String,
    },
    /// The store remembered something about a record; known in simulated worlds only.
    Noted {
        /// Which record.
        #[serde(flatten)]
        subject: Subject,
        /// Which event.
        note: String,
        /// The attempt it is about.
        attempt: String,
        /// The fence of that attempt.
        fence: i64,
        /// Of an incident: what was told, and by whom.
        #[serde(default)]
        told: String,
    },
    /// A message was committed with the reply of an operation.
    Staged {
        /// Which message. Numbers grow in the order of staging.
        message: MessageNo,
        /// By which operation.
        #[serde(flatten)]
        subject: Subject,
        /// What it is about: messages of one aggregate are delivered in order.
        aggregate: String,
        /// How often a delivery of it may be begun before somebody must look at it.
        tries_max: u32,
    },
    /// A relay begins to deliver a message.
    Delivers {
        /// Which.
        message: MessageNo,
        /// The key that goes with it.
        key: String,
    },
    /// The receiver acted on a message. One that knows keys does so once for each.
    Received {
        /// Which.
        message: MessageNo,
    },
    /// The outbox moved a message on.
    Settled {
        /// Which.
        message: MessageNo,
        /// Where to.
        end: Settled,
    },
    /// A process was killed, and the store was asked right afterwards about a key whose only request was
    /// there; known in real worlds only.
    Left {
        /// Which record.
        #[serde(flatten)]
        subject: Subject,
        /// The stored name of its state; `None` for absent.
        state: Option<String>,
    },
    /// Something was broken on purpose.
    Fault {
        /// Which kind, a stable word.
        kind: String,
        /// Where and how, for people.
        detail: String,
    },
    /// From here on nothing is broken any more, and everything must come to its end.
    Calm,
    /// By now nobody can be at work any more who began so many microseconds ago.
    Rested {
        /// How long ago.
        within: u64,
    },
    /// By now every message is delivered, but for dead letters and what they hold.
    Relayed,
    /// The world is over: whatever was to end has ended.
    End,
}

/// How the outbox moved a message on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settled {
    /// It is delivered.
    Done,
    /// It is to be delivered again.
    Retry,
    /// A dead letter.
    Dead,
    /// Somebody made a dead letter ready again.
    Redriven,
    /// Somebody deleted a dead letter.
    Discarded,
}

/// What the judge must know about a route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rules {
    /// Its name.
    pub route: String,
    /// Whether its work acts on the world at all. If not, it may run as often as it likes.
    pub acts: bool,
    /// The statuses of upstream after which the same request may run again, whatever upstream did:
    /// declared so by the route's policy.
    pub rerunnable: Vec<u16>,
    /// Whether an expired key runs again, as the next generation.
    pub expired_runs_again: bool,
    /// Response headers of upstream that are kept with a reply and must come back with every replay.
    pub kept_headers: Vec<String>,
    /// Whether work goes on though no client comes: it was accepted for later, or is made in steps.
    #[serde(default)]
    pub goes_on: bool,
}

/// The attempt that made a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// A name for its id.
    pub attempt: String,
    /// The fence of its grant.
    pub fence: i64,
    /// The generation of the record.
    pub generation: u32,
    /// Which attempt of this generation it is.
    pub attempt_number: u32,
    /// How much of its lease was left when it called, by the monotonic clock of its node, counted
    /// from the moment it sent the last reserve or renewal that was acknowledged. In microseconds;
    /// negative when it was over.
    pub lease_left: i64,
}

/// What upstream answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UpstreamAnswer {
    /// The status.
    pub status: u16,
    /// Its word in `Onceward-Executed`, if it said one.
    pub executed: Option<String>,
    /// The headers, in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

/// What a client received.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers, in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The word of `Onceward-Outcome`.
    pub fn outcome(&self) -> Option<&str> {
        self.header("onceward-outcome")
    }

    /// The generation the answer belongs to.
    pub fn generation(&self) -> u32 {
        let said = self.header("idempotency-generation");
        said.and_then(|number| number.parse().ok()).unwrap_or(1)
    }

    /// The `code` of the problem document, if it is one.
    pub fn code(&self) -> Option<String> {
        let kind = self.header("content-type")?;
        let problem = kind.starts_with("application/problem+json").then_some(&self.body)?;
        let problem: serde_json::Value = serde_json::from_str(problem).ok()?;
        Some(problem.get("code")?.as_str()?.to_owned())
    }
}

/// A record as it stands in the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stand {
    /// The stored name of its state.
    pub state: String,
    /// The generation.
    pub generation: u32,
    /// A name for the id of the last attempt that was granted.
    pub attempt: String,
    /// The fence of that grant.
    pub fence: i64,
    /// A name for its fingerprint: equal when and only when the fingerprints are.
    pub fingerprint: String,
    /// When its lease ends or ended, by the store's clock, in microseconds.
    pub lease_until: i64,
    /// When its retention ends, by the store's clock, in microseconds. Counts in terminal states.
    pub expires_at: i64,
    /// When its tombstone goes too, by the store's clock, in microseconds.
    pub purge_at: i64,
    /// Its declared effects.
    pub effects: String,
    /// A digest of the stored reply: status, headers and body.
    pub reply: Option<String>,
    /// What is still to come.
    #[serde(default)]
    pub open: Open,
}

/// What is still to come of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Open {
    /// Until when it may wait to be begun, if it was accepted for later.
    pub queued_until: Option<i64>,
    /// The last step that was saved.
    pub recovery_point: Option<String>,
    /// The step that may have acted and has no result.
    pub effect: Option<String>,
    /// That step must not be made again.
    pub must_not_go_on: bool,
    /// From when on somebody should find out what became of it.
    pub reconcile_after: Option<i64>,
}

impl Open {
    /// Whether steps were made, or may have been.
    pub fn has_progress(&self) -> bool {
        self.recovery_point.is_some() || self.effect.is_some()
    }
}

/// Why a record changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Cause {
    /// A reserve of this attempt, at this time of the store.
    Reserve {
        /// A name for the attempt's id.
        attempt: String,
        /// The store's clock, in microseconds.
        now: i64,
    },
    /// A write of this attempt.
    Write {
        /// `renew`, `complete`, `release`, `mark_unknown`, or of a step `intend`, `save`, `withdraw`.
        write: String,
        /// A name for the attempt's id.
        attempt: String,
        /// The fence it holds.
        fence: i64,
    },
    /// A claim of this attempt, by a worker that had looked at this fence, at this time of the store.
    Claim {
        /// A name for the attempt's id.
        attempt: String,
        /// The fence of the record that was looked at.
        fence: i64,
        /// The store's clock, in microseconds.
        now: i64,
    },
    /// The sweeper, at this time of the store.
    Sweep {
        /// The store's clock, in microseconds.
        now: i64,
    },
    /// The reaper, at this time of the store.
    Reap {
        /// The store's clock, in microseconds.
        now: i64,
    },
    /// A reconciler or an operator.
    Resolve {
        /// `complete`, `executed`, `release`, `void`, `give_up`; `ask`, `absent`, `dead_letter`, `redrive`.
        resolution: String,
        /// What a release rests on: `authoritative`, or `two_probes`.
        proof: Option<String>,
        /// The fence of the record that was looked at.
        fence: i64,
        /// The store's clock, in microseconds.
        now: i64,
    },
    /// The store lost commits that it had acknowledged: only where that is its declared class.
    Lost,
}

/// Writes a history as JSON lines.
///
/// # Errors
/// When the writer fails.
pub fn write(history: &[Event], mut to: impl Write) -> io::Result<()> {
    for event in history {
        serde_json::to_writer(&mut to, event)?;
        to.write_all(b"\n")?;
    }
    to.flush()
}

/// Reads a history of JSON lines.
///
/// # Errors
/// When the reader fails, or a line is not an event.
pub fn read(from: impl BufRead) -> io::Result<Vec<Event>> {
    from.lines().map(|line| serde_json::from_str(&line?).map_err(io::Error::from)).collect()
}

impl Event {
    /// When, as a duration since the beginning.
    pub fn time(&self) -> Duration {
        Duration::from_micros(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_read_as_it_was_written() {
        let subject = Subject { tenant: "acme".into(), key: "key-1".into() };
        let holder = Holder {
            attempt: "a1".into(),
            fence: 7,
            generation: 1,
            attempt_number: 1,
            lease_left: -3,
        };
        let events = [
            What::World { routes: Vec::new(), durable: true },
            What::Called { call: 1, subject, asks: "pay 10".into(), holder: Some(holder) },
            What::Acted { call: 1 },
            What::Replied { call: 1, answer: None },
            What::End,
        ];
        let history: Vec<Event> =
            events.into_iter().zip(1..).map(|(what, at)| Event { at, what }).collect();
        let mut written = Vec::new();
        write(&history, &mut written).expect("written");
        assert_eq!(written.iter().filter(|byte| **byte == b'\n').count(), history.len());
        assert_eq!(read(&*written).expect("read"), history);
        assert!(read(&b"{}"[..]).is_err());
    }
}

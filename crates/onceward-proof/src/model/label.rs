//! What steps are called, for people.

use std::fmt;

use super::state::Message;

#[derive(Clone, Copy, Debug)]
pub(super) enum Label {
    Asks(usize),
    Looks(usize),
    AsksAgain(usize),
    GivesUp(usize),
    Answered(usize, Message),
    Arrives(usize, Message),
    Renews(usize),
    SendsRenewal(usize),
    Calls(usize),
    NeverCalls(usize),
    UpstreamAnswers(usize),
    UpstreamFails(usize),
    NoAnswer(usize),
    TakesTooLong(usize),
    Dies(usize),
    Acts(usize),
    NeverActs(usize),
    Tick,
    Sweeps,
    Reaps,
    ProbeFinds,
    ProbeFindsNothing,
    Resolves,
    DropsVerdict,
    OperatorCompletes,
    OperatorReleases,
    Voids,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let a = |slot: &usize| ["A", "B", "C"].get(*slot).copied().unwrap_or("?");
        match self {
            Label::Asks(slot) => write!(f, "{} sends its reserve", a(slot)),
            Label::Looks(slot) => write!(f, "{} looks without taking", a(slot)),
            Label::AsksAgain(slot) => write!(f, "{} sends its reserve again", a(slot)),
            Label::GivesUp(slot) => write!(f, "{} gives up waiting for its reserve", a(slot)),
            Label::Answered(slot, message) => {
                write!(f, "{}'s {message} reaches the store and is answered", a(slot))
            }
            Label::Arrives(slot, message) => {
                write!(f, "a copy of {}'s {message} reaches the store, unanswered", a(slot))
            }
            Label::Renews(slot) => write!(f, "{} renews its lease and is answered", a(slot)),
            Label::SendsRenewal(slot) => write!(f, "{} sends a renewal, unanswered", a(slot)),
            Label::Calls(slot) => write!(f, "{} looks at its deadline and calls upstream", a(slot)),
            Label::NeverCalls(slot) => write!(f, "{} ends without calling upstream", a(slot)),
            Label::UpstreamAnswers(slot) => write!(f, "upstream's answer reaches {}", a(slot)),
            Label::UpstreamFails(slot) => {
                write!(f, "upstream answers {} with a re-runnable status", a(slot))
            }
            Label::NoAnswer(slot) => write!(f, "{} gets no full answer from upstream", a(slot)),
            Label::TakesTooLong(slot) => write!(f, "{} takes longer than it may", a(slot)),
            Label::Dies(slot) => write!(f, "{} dies", a(slot)),
            Label::Acts(slot) => write!(f, "upstream acts on {}'s call", a(slot)),
            Label::NeverActs(slot) => write!(f, "{}'s call is lost before it acts", a(slot)),
            Label::Tick => f.write_str("time passes"),
            Label::Sweeps => f.write_str("the sweeper comes"),
            Label::Reaps => f.write_str("the reaper comes"),
            Label::ProbeFinds => f.write_str("a probe finds the effect"),
            Label::ProbeFindsNothing => f.write_str("a probe finds nothing"),
            Label::Resolves => f.write_str("the reconciler's word reaches the store"),
            Label::DropsVerdict => f.write_str("the reconciler forgets what it knew"),
            Label::OperatorCompletes => f.write_str("an operator resolves: completed"),
            Label::OperatorReleases => f.write_str("an operator resolves: not executed"),
            Label::Voids => f.write_str("an operator voids the record"),
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Message::Reserve => "reserve",
            Message::Renew => "renewal",
            Message::Complete => "completion",
            Message::Release => "release",
            Message::MarkUnknown => "mark unknown",
            Message::GiveBack => "resolution of its own attempt",
        })
    }
}

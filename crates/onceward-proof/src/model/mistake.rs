//! Errors that can be made on purpose: each must be found, or the model would not find it in the
//! real rules either.

use onceward::record::Effects;

use super::{
    state::Role,
    world::{PLAIN, RASH, RETENTION, World},
};

macro_rules! mistakes {
    ($($name:ident: $text:literal,)*) => {
        /// An error in the rules, the protocol or a worker.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mistake {
            $(#[doc = $text] $name,)*
        }

        impl Mistake {
            /// All of them.
            pub const ALL: [Mistake; [$($text),*].len()] = [$(Mistake::$name),*];

            /// In words.
            pub const fn text(self) -> &'static str {
                match self { $(Mistake::$name => $text,)* }
            }
        }
    };
}

mistakes! {
    FenceNotCompared: "a write is not guarded by the fence",
    AttemptNotCompared: "a reserve does not compare the attempt",
    SweepsLiveLeases: "the sweeper has no condition",
    LeaseOverIsRetryable: "a lease that is over means not executed",
    NewAttemptForEachCall: "a repeated reserve has a new attempt id",
    NoDeadlineCheck: "no look at the deadline before the call",
    RunsWhenStoreIsSilent: "a reserve that is not answered runs all the same",
    LostAnswerIsFailure: "no full answer means not executed",
    DropReleases: "an attempt that dies releases its lease",
    OneEarlyProbe: "one probe is believed, at any time",
    ProbesNotApart: "two probes at once are believed",
    CompletesAfterRelease: "a completion is applied after a release",
    ReplyAfterReleaseIsEvidence: "the reply of what was released by mistake is only evidence",
    ReapsWhatIsNotTerminal: "the reaper takes what is not terminal",
    FenceRestarts: "the fence starts again after a purge",
    MismatchNotChecked: "the fingerprint is not compared",
    LaterUseIsTrusted: "a superseded attempt is told of another request",
    NeverSwept: "there is no sweeper",
}

impl Mistake {
    /// A small world in which it shows.
    pub fn world(self) -> World {
        match self {
            Mistake::OneEarlyProbe | Mistake::ProbesNotApart => World {
                name: "reconciler",
                comers: &[(Role::Request, 1)],
                reconciler: true,
                ..PLAIN
            },
            Mistake::CompletesAfterRelease => {
                World { name: "no effects", effects: Effects::None, ..PLAIN }
            }
            Mistake::ReplyAfterReleaseIsEvidence => RASH,
            Mistake::ReapsWhatIsNotTerminal | Mistake::FenceRestarts => {
                World { name: "retention", ..RETENTION }
            }
            Mistake::MismatchNotChecked => World {
                name: "two fingerprints",
                comers: &[(Role::Request, 1), (Role::Request, 2)],
                ..PLAIN
            },
            Mistake::LaterUseIsTrusted => World {
                name: "two fingerprints, purged",
                comers: &[(Role::Request, 1), (Role::Request, 2)],
                tombstone: 0,
                ..RETENTION
            },
            _ => PLAIN,
        }
    }
}

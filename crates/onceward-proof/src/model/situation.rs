//! What must have come up somewhere in the worlds: a model that never gets into trouble proves
//! nothing about trouble.

use std::ops::BitOrAssign;

/// A set of situations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen(u64);

impl Seen {
    /// Whether the situation came up.
    pub fn has(self, situation: Situation) -> bool {
        self.0 & bit(situation) != 0
    }

    /// The situations that did not come up.
    pub fn missing(self) -> Vec<Situation> {
        Situation::ALL.into_iter().filter(|situation| !self.has(*situation)).collect()
    }

    pub(super) fn add(&mut self, situation: Situation) {
        self.0 |= bit(situation);
    }
}

impl BitOrAssign for Seen {
    fn bitor_assign(&mut self, other: Seen) {
        self.0 |= other.0;
    }
}

fn bit(situation: Situation) -> u64 {
    1 << (situation as u32)
}

macro_rules! situations {
    ($($name:ident: $text:literal,)*) => {
        /// An arrow of the state drawing, or something worth being sure that it was met.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Situation {
            $(#[doc = $text] $name,)*
        }

        impl Situation {
            /// All of them.
            pub const ALL: [Situation; [$($text),*].len()] = [$(Situation::$name),*];

            /// In words.
            pub const fn text(self) -> &'static str {
                match self { $(Situation::$name => $text,)* }
            }
        }
    };
}

situations! {
    Reserved: "(none) -> in_progress by reserve",
    Accepted: "(none) -> pending by accept",
    AcceptedAgain: "failed_retryable -> pending by accept",
    Claimed: "pending -> in_progress by claim",
    Completed: "in_progress -> completed",
    QueuedAgain: "in_progress -> pending by release, of accepted work",
    Released: "in_progress -> failed_retryable by release",
    MarkedUnknown: "in_progress -> unknown by mark unknown",
    LeaseOverUnknown: "lease over -> unknown, by the sweeper",
    LeaseOverFoundByReserve: "lease over -> unknown, by a reserve that found it",
    LeaseOverRetryable: "lease over -> failed_retryable",
    LeaseOverTaken: "lease over -> in_progress again, in one reserve",
    PhasedResumed: "a phased operation resumed by the next reserve",
    ReservedAgain: "failed_retryable -> in_progress by reserve",
    LateCompletion: "unknown -> completed by the very attempt",
    CompletedAfterRelease: "failed_retryable -> completed by the very attempt, after a rash release",
    FoundCompleted: "unknown -> completed by the reconciler",
    FoundNotExecuted: "unknown -> failed_retryable by two probes",
    OperatorCompleted: "unknown -> completed by an operator",
    OperatorReleased: "unknown -> failed_retryable by an operator",
    CompletedExpired: "completed -> expired, retention over",
    RetryableExpired: "failed_retryable -> expired, retention over",
    Voided: "completed -> expired, voided",
    Purged: "expired -> (none), purged",
    ExpiredRunsAgain: "expired -> in_progress, the next generation",
    VoidRunsAgain: "void tombstone -> in_progress whatever the policy",
    NewAfterPurge: "a purged key taken again",
    TwoGrants: "two grants of one generation",
    Regranted: "a reserve repeated after a lost answer is granted again",
    GrantedToNobody: "a late copy of a reserve is granted with nobody left to run",
    SupersededCompletion: "a completion that comes after another grant",
    SupersededByResolve: "a completion that comes after a resolution",
    LeaseOverBeforeCall: "a lease that is over before upstream is called",
    ActedAfterDeath: "upstream acts after its attempt died",
    ActedWhenUnknown: "upstream acts while the record is unknown",
    GivenBack: "an attempt that never called resolves its unknown outcome",
    Withdrawn: "a reserve that was not answered in time is released",
    ProbeMissed: "a probe misses an effect that is there",
    ProofTooEarly: "proof that came too early is refused",
    Mismatch: "another request under the same key is refused",
    Replayed: "a retry gets the stored reply",
    ToldUnknown: "a retry is told that the outcome is unknown",
    RerunAfterEffect: "a second effect after a status declared re-runnable",
    OwnLeaseOver: "a repeated reserve finds its own lease over",
}

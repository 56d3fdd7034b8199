//! Deliberate bugs: mistakes that stores, engines, gateways and workers make, each of which the
//! simulation must find.
//!
//! They sit at the seams of the simulated world: in its store, its upstream, its clients' end of the
//! connection, its clocks and policies. The library itself knows nothing of them.

mod outside; // at upstream, at the client, at the reconciler
mod store; // at the store and on the way to it
mod work; // where workers come to it

pub(super) use outside::{answer, believes_one_probe, detached, execution, sends_again};
pub(super) use store::{reap, reserve, resolve, write};
pub(super) use work::{advance, claim, claim_messages, key_of_step, steps, sweep};

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $bug:ident => $name:literal,)+) => {
        /// A deliberate bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Bug {
            $($(#[doc = $doc])+ $bug,)+
        }

        impl Bug {
            /// All bugs.
            pub const ALL: &[Bug] = &[$(Bug::$bug),+];

            /// The name on the command line and in tables.
            pub const fn name(self) -> &'static str {
                match self { $(Bug::$bug => $name,)+ }
            }

            /// What is wrong, in a sentence.
            pub const fn description(self) -> &'static str {
                match self { $(Bug::$bug => concat!($($doc),+).trim_ascii(),)+ }
            }

            /// The bug of that name.
            pub fn from_name(name: &str) -> Option<Bug> {
                Bug::ALL.iter().copied().find(|bug| bug.name() == name)
            }
        }
    };
}

bugs! {
    // The store.
    /// A write is guarded by the key only, not by attempt and fence.
    WriteByKeyOnly => "write-by-key-only",
    /// A reserve looks first and writes later.
    LookThenReserve => "look-then-reserve",
    /// A reserve decides on a replica that is a second behind.
    ReserveOnReplica => "reserve-on-replica",
    /// The sweeper looks first and writes later, without its condition.
    SweepWithoutCondition => "sweep-without-condition",
    /// The sweeper takes a lease for over that has a second to go.
    SweepTooEarly => "sweep-too-early",
    /// A lease that ran out makes the record free, whatever it may have done.
    LeaseOverIsRetryable => "lease-over-is-retryable",
    /// Lease and retention are one time-to-live: the record vanishes with its lease.
    LeaseIsTimeToLive => "lease-is-time-to-live",
    /// An unknown record runs again.
    UnknownRunsAgain => "unknown-runs-again",
    /// Renewals are acknowledged and not written.
    RenewalNotWritten => "renewal-not-written",
    /// A completion is acknowledged although its commit failed.
    CommitErrorIgnored => "commit-error-ignored",
    /// Expiry is judged by the clock of the process that asks.
    ExpiryByCallersClock => "expiry-by-callers-clock",
    /// An expired key runs again under its old generation.
    GenerationNotCounted => "generation-not-counted",
    /// A new grant takes the fence of the one before.
    FenceReused => "fence-reused",
    /// A completed record is completed again.
    CompletionOverwrites => "completion-overwrites",
    /// A completion is taken for a record that was given back.
    CompletionAfterRelease => "completion-after-release",
    /// The reaper removes what is old, whatever its state.
    ReaperIgnoresState => "reaper-ignores-state",
    /// The reaper keeps no tombstone.
    NoTombstone => "no-tombstone",
    /// Another request may take over a key that is free to run again.
    MismatchTakesOver => "mismatch-takes-over",
    /// The fingerprint is not compared.
    MismatchIgnored => "mismatch-ignored",
    /// Of repeated headers the last one is stored.
    RepeatedHeadersLost => "repeated-headers-lost",
    /// A stored body is cut at 20 bytes.
    BodyCut => "body-cut",
    /// A tombstone is replayed as if it were a reply.
    TombstoneReplayed => "tombstone-replayed",
    /// A resolution is applied to whatever the record is by now.
    ResolvedByKeyOnly => "resolved-by-key-only",
    // The engine's side of the store.
    /// While the store fails, requests run all the same.
    FailsOpen => "fails-open",
    /// A repeated reserve comes with a new attempt.
    NewAttemptOnRepeat => "new-attempt-on-repeat",
    /// A completion whose answer was lost is taken for failed, and the record given back.
    LostCompletionReleases => "lost-completion-releases",
    /// The client is answered while the completion is still on its way.
    AnswersBeforeCompletion => "answers-before-completion",
    /// Nobody looks at the deadline before the work is dispatched.
    DeadlineNotChecked => "deadline-not-checked",
    /// What may have acted is given back: when the process stops.
    StopReleases => "stop-releases",
    /// What may have acted is given back: when it took too long.
    TimeoutReleases => "timeout-releases",
    /// What may have acted is given back: when its handler panicked.
    PanicReleases => "panic-releases",
    /// A client that hangs up cancels its request, which gives the record back.
    HangUpReleases => "hang-up-releases",
    // Policies and scopes.
    /// All tenants share one scope.
    OneScopeForAll => "one-scope-for-all",
    /// The fingerprint is made of raw bytes, so that the same request written anew is another one.
    FingerprintOfRawBytes => "fingerprint-of-raw-bytes",
    /// Every 5xx is stored, also where a retry should run.
    EveryServerErrorIsStored => "every-server-error-is-stored",
    /// Every 5xx is taken for not executed, also where effects are external.
    EveryServerErrorIsRetried => "every-server-error-is-retried",
    // Upstream, clients, workers.
    /// A call whose connection broke is sent again.
    CallSentAgain => "call-sent-again",
    /// A call without a full answer is taken for never sent.
    CutIsNeverSent => "cut-is-never-sent",
    /// Half an answer is stored as a whole one.
    HalfAnswerStored => "half-answer-stored",
    /// A replay sets the first caller's cookie.
    CookieReplayed => "cookie-replayed",
    /// A 409 does not say when to come back.
    NoRetryAfter => "no-retry-after",
    /// A replay does not say that it is one.
    ReplayNotMarked => "replay-not-marked",
    /// One early probe that finds nothing is believed.
    OneProbeBelieved => "one-probe-believed",
    /// Whoever asks what became of an unknown outcome may, also while somebody else asks.
    AskedWithoutCondition => "asked-without-condition",
    /// A dead letter that is redriven stays one.
    RedriveNotWritten => "redrive-not-written",
    /// A release is never delivered: what is known not to have acted stays in progress for ever.
    LeaseNeverEnds => "lease-never-ends",
    // The sweeper and the reaper.
    /// The sweeper lets run again what may have acted.
    SweepMakesRetryable => "sweep-makes-retryable",
    /// The sweeper notes what it looks at before it knows that it is the one to move it.
    SweepNotesFirst => "sweep-notes-first",
    /// The sweeper makes a record unknown and tells nobody to find out.
    SweepWithoutTicket => "sweep-without-ticket",
    /// The sweeper never comes: what no client asks for stays in progress.
    SweeperSleeps => "sweeper-sleeps",
    /// The reaper goes by the clock of the process that it runs in.
    ReapByCallersClock => "reap-by-callers-clock",
    /// The reaper removes what is unknown.
    ReapsWhatIsUnknown => "reaps-what-is-unknown",
    // Accepted work.
    /// A worker claims whatever the record is by now.
    ClaimWithoutFence => "claim-without-fence",
    /// A worker claims what another one is at.
    ClaimTakesOver => "claim-takes-over",
    /// Accepted work that did not act is given back to a client who was promised that it would be done.
    QueuedIsReleased => "queued-is-released",
    /// Accepted work is given up before its time.
    GivenUpTooEarly => "given-up-too-early",
    /// Work is accepted, and what was asked is not kept.
    AcceptedNotKept => "accepted-not-kept",
    // Work in steps.
    /// The result of a step is acknowledged and not saved.
    StepNotSaved => "step-not-saved",
    /// Whoever goes on does not know which steps were made.
    StepsForgotten => "steps-forgotten",
    /// An effect without a result is made again, also where it acts each time.
    OpenEffectRepeated => "open-effect-repeated",
    /// Every attempt makes a step under a key of its own.
    KeyOfAttempt => "key-of-attempt",
    // The outbox.
    /// A message is marked as delivered before it is.
    MarkedBeforeSent => "marked-before-sent",
    /// Every delivery of a message has a key of its own.
    KeyOfDelivery => "key-of-delivery",
    /// Messages of one aggregate are delivered in any order.
    OrderNotKept => "order-not-kept",
    /// What stands behind a dead letter is delivered.
    DeadLetterPassed => "dead-letter-passed",
    /// A delivery that may have acted is repeated, also where the receiver knows no keys.
    AmbiguousDeliveryRepeated => "ambiguous-delivery-repeated",
    /// A message is tried again for ever.
    NoDeadLetters => "no-dead-letters",
}

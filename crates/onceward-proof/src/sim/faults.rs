//! The faults, by name. A set of runs in which one of them never happened has proved too little.

use std::time::Duration;

use super::options::SECOND;

/// What can happen to a call of the store and its answer. The first is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreFault {
    None,
    /// An error, and the call had no effect.
    Refused,
    /// No effect, and an error that leaves it open.
    LostBefore,
    /// It took effect, and an error that leaves it open.
    LostAfter,
    /// No effect, and no answer ever.
    SilentBefore,
    /// It took effect, and no answer ever.
    SilentAfter,
    /// An error now, and it takes effect much later.
    Late,
    /// It takes effect late, and is answered then.
    SlowThere,
    /// It takes effect at once and is answered late.
    SlowBack,
    /// It is delivered twice, the second time later.
    Twice,
    /// The process dies before it is sent.
    CrashBefore,
    /// The process dies when it took effect, before the answer arrives.
    CrashAfter,
    /// The process stands still before it is sent.
    PauseBefore,
    /// The process stands still when it took effect, and gets the answer when it goes on.
    PauseAfter,
}

impl StoreFault {
    pub(super) const ALL: [(StoreFault, &'static str); 14] = [
        (StoreFault::None, "none"),
        (StoreFault::Refused, "store_refused"),
        (StoreFault::LostBefore, "store_lost_before"),
        (StoreFault::LostAfter, "store_lost_after"),
        (StoreFault::SilentBefore, "store_silent_before"),
        (StoreFault::SilentAfter, "store_silent_after"),
        (StoreFault::Late, "store_late"),
        (StoreFault::SlowThere, "store_slow_there"),
        (StoreFault::SlowBack, "store_slow_back"),
        (StoreFault::Twice, "store_twice"),
        (StoreFault::CrashBefore, "crash_before_store"),
        (StoreFault::CrashAfter, "crash_after_store"),
        (StoreFault::PauseBefore, "pause_before_store"),
        (StoreFault::PauseAfter, "pause_after_store"),
    ];
}

/// What upstream and the way to it can do. The first is: it acts, and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpstreamFault {
    None,
    /// The connection is refused: nothing was sent.
    NeverSent,
    /// Cut before upstream had it.
    LostBefore,
    /// Never answered; upstream never had it.
    SilentBefore,
    /// It acted, and its answer was cut off.
    LostAfter,
    /// It acted, and never answered.
    SilentAfter,
    /// Given up now, and it acts later.
    ActsLate,
    /// It acts and answers, after longer than a lease.
    Slow,
    /// It acts and answers, after longer than an attempt may take.
    VerySlow,
    /// 503, and did nothing.
    Busy,
    /// 500, after it acted.
    FailsAfterActing,
    /// 429, and did nothing.
    Limits,
    /// A final 422, and did nothing.
    Declines,
    /// It acted; somebody in between says 502.
    BadGateway,
    /// It did nothing; somebody in between says 504.
    GatewayTimeout,
    /// 500 and its word that it did nothing.
    SaysNo,
    /// 200 and its word that it may have acted.
    SaysMaybe,
    /// It acts and answers with more than is stored.
    Large,
    /// It acts, and the handler panics.
    Panics,
    /// The process dies before the call arrives; upstream never had it.
    CrashBefore,
    /// The process dies when upstream acted.
    CrashAfter,
    /// The process stands still when upstream acted, for longer than its lease.
    PauseAfter,
}

impl UpstreamFault {
    pub(super) const ALL: [(UpstreamFault, &'static str); 22] = [
        (UpstreamFault::None, "none"),
        (UpstreamFault::NeverSent, "upstream_never_sent"),
        (UpstreamFault::LostBefore, "upstream_lost_before"),
        (UpstreamFault::SilentBefore, "upstream_silent_before"),
        (UpstreamFault::LostAfter, "upstream_lost_after"),
        (UpstreamFault::SilentAfter, "upstream_silent_after"),
        (UpstreamFault::ActsLate, "upstream_acts_late"),
        (UpstreamFault::Slow, "upstream_slow"),
        (UpstreamFault::VerySlow, "upstream_very_slow"),
        (UpstreamFault::Busy, "upstream_busy"),
        (UpstreamFault::FailsAfterActing, "upstream_fails_after_acting"),
        (UpstreamFault::Limits, "upstream_limits"),
        (UpstreamFault::Declines, "upstream_declines"),
        (UpstreamFault::BadGateway, "upstream_bad_gateway"),
        (UpstreamFault::GatewayTimeout, "upstream_gateway_timeout"),
        (UpstreamFault::SaysNo, "upstream_says_no"),
        (UpstreamFault::SaysMaybe, "upstream_says_maybe"),
        (UpstreamFault::Large, "upstream_large"),
        (UpstreamFault::Panics, "handler_panics"),
        (UpstreamFault::CrashBefore, "crash_before_upstream"),
        (UpstreamFault::CrashAfter, "crash_after_upstream"),
        (UpstreamFault::PauseAfter, "pause_after_upstream"),
    ];
}

/// What a client and the way to it can do. The first is: it asks, and waits for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientFault {
    None,
    /// It hangs up soon after it asked.
    HangsUp,
    /// The answer is lost on its way.
    AnswerLost,
    /// The request is on its way for long, and overtaken by later ones.
    Delayed,
    /// The request arrives twice.
    Twice,
}

impl ClientFault {
    pub(super) const ALL: [(ClientFault, &'static str); 5] = [
        (ClientFault::None, "none"),
        (ClientFault::HangsUp, "client_hangs_up"),
        (ClientFault::AnswerLost, "client_answer_lost"),
        (ClientFault::Delayed, "client_delayed"),
        (ClientFault::Twice, "client_twice"),
    ];
}

/// What a receiver of messages and the way to it can do. The first is: it acts, and says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SinkFault {
    None,
    /// The connection is refused: nothing was sent.
    NotDelivered,
    /// It asks to be left alone for a while.
    Later,
    /// It will never take this message.
    Refuses,
    /// Cut before the receiver had it.
    LostBefore,
    /// It acted, and its answer was cut off.
    LostAfter,
    /// It acted, and never answered.
    SilentAfter,
    /// Given up now, and it acts later.
    ActsLate,
    /// It acts, and the sink panics.
    Panics,
    /// The process dies before the message is sent.
    CrashBefore,
    /// The process dies when the receiver acted.
    CrashAfter,
    /// The process stands still before it sends, for longer than it holds the message.
    PauseBefore,
}

impl SinkFault {
    pub(super) const ALL: [(SinkFault, &'static str); 12] = [
        (SinkFault::None, "none"),
        (SinkFault::NotDelivered, "sink_not_delivered"),
        (SinkFault::Later, "sink_later"),
        (SinkFault::Refuses, "sink_refuses"),
        (SinkFault::LostBefore, "sink_lost_before"),
        (SinkFault::LostAfter, "sink_lost_after"),
        (SinkFault::SilentAfter, "sink_silent_after"),
        (SinkFault::ActsLate, "sink_acts_late"),
        (SinkFault::Panics, "sink_panics"),
        (SinkFault::CrashBefore, "crash_before_sink"),
        (SinkFault::CrashAfter, "crash_after_sink"),
        (SinkFault::PauseBefore, "pause_before_sink"),
    ];
}

/// What upstream's ledger and the way to it can do when it is asked. The first is: it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeFault {
    None,
    /// Nobody can be asked.
    Lost,
    /// Never answered.
    Silent,
    /// It is asked late, and answers in time.
    Slow,
    /// Who asks panics.
    Panics,
    /// The process dies while it asks.
    Crash,
}

impl ProbeFault {
    pub(super) const ALL: [(ProbeFault, &'static str); 6] = [
        (ProbeFault::None, "none"),
        (ProbeFault::Lost, "probe_lost"),
        (ProbeFault::Silent, "probe_silent"),
        (ProbeFault::Slow, "probe_slow"),
        (ProbeFault::Panics, "probe_panics"),
        (ProbeFault::Crash, "crash_at_probe"),
    ];
}

/// What happens to a world by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// A process is killed, and started again later.
    Crash,
    /// A process stands still for longer than its leases, and goes on.
    Pause,
    /// A process is asked to end, and started again.
    Stop,
    /// The store's clock jumps forward by less than a lease.
    ClockForward,
    /// The store's clock jumps over a retention.
    ClockFarForward,
    /// The store's clock jumps back.
    ClockBack,
    /// The store is away for a while.
    StoreDown,
    /// The store restarts, and forgets its last commits where that is its declared class.
    StoreRestart,
    /// An operator withdraws a stored reply.
    Void,
}

impl Disturbance {
    pub(super) const ALL: [(Disturbance, &'static str); 9] = [
        (Disturbance::Crash, "crash"),
        (Disturbance::Pause, "pause"),
        (Disturbance::Stop, "stop"),
        (Disturbance::ClockForward, "clock_forward"),
        (Disturbance::ClockFarForward, "clock_far_forward"),
        (Disturbance::ClockBack, "clock_back"),
        (Disturbance::StoreDown, "store_down"),
        (Disturbance::StoreRestart, "store_restart"),
        (Disturbance::Void, "operator_voids"),
    ];

    /// What happens where a key is soon used again.
    pub(super) const HASTY: [(Disturbance, &'static str); 4] = [
        (Disturbance::Pause, "pause"),
        (Disturbance::ClockFarForward, "clock_far_forward"),
        (Disturbance::ClockForward, "clock_forward"),
        (Disturbance::Void, "operator_voids"),
    ];
}

/// The store forgot commits that it had acknowledged.
pub(super) const STORE_LOSES: &str = "store_loses_commits";

/// All kinds, each of which a full run must have met.
pub fn kinds() -> Vec<&'static str> {
    let store = StoreFault::ALL.iter().map(|(_, name)| *name);
    let upstream = UpstreamFault::ALL.iter().map(|(_, name)| *name);
    let client = ClientFault::ALL.iter().map(|(_, name)| *name);
    let others = Disturbance::ALL.iter().map(|(_, name)| *name).chain([STORE_LOSES]);
    let probe = ProbeFault::ALL.iter().map(|(_, name)| *name);
    let sink = SinkFault::ALL.iter().map(|(_, name)| *name);
    store
        .chain(upstream)
        .chain(client)
        .chain(sink)
        .chain(probe)
        .chain(others)
        .filter(|name| *name != "none")
        .collect()
}

/// How long a message is on its way when nothing happens to it.
pub(super) const ON_ITS_WAY: Duration = Duration::from_millis(1);

/// Longer than any lease of any world.
pub(super) const PAST_EVERY_LEASE: Duration = SECOND.saturating_mul(35);

//! The worlds, and the mistakes that can be made in them.

use onceward::record::Effects;

use super::state::{ATTEMPTS, Attempt, Role, State, Ticks};

/// How long things need to settle: one tick is [`onceward::machine::SETTLE`].
pub(super) const SETTLE: Ticks = 1;

/// What can happen, and how long things take.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// Its name.
    pub name: &'static str,
    /// Who comes, and what they ask.
    pub(super) comers: &'static [(Role, u8)],
    /// What the route declares.
    pub(super) effects: Effects,
    pub(super) lease: Ticks,
    pub(super) max_execution: Ticks,
    /// From rest to tombstone; `None` for never.
    pub(super) retention: Option<Ticks>,
    pub(super) tombstone: Ticks,
    pub(super) expired_runs_again: bool,
    /// Whether leases are renewed.
    pub(super) renews: bool,
    /// Whether a copy of a reserve may arrive when its attempt no longer waits for it.
    pub(super) late_reserves: bool,
    /// Whether copies of writes may arrive when their attempt is done or dead.
    pub(super) late_writes: bool,
    /// Whether a reconciler probes upstream.
    pub(super) reconciler: bool,
    /// Whether an operator who knows the truth resolves and voids.
    pub(super) operator: bool,
    /// Whether that operator also says that nothing was executed without knowing it.
    pub(super) rash: bool,
}

const REQUEST: (Role, u8) = (Role::Request, 1);
const OTHER_REQUEST: (Role, u8) = (Role::Request, 2);

/// Two requests on a route that calls somebody else, for ever.
pub(super) const PLAIN: World = World {
    name: "two requests",
    comers: &[REQUEST, REQUEST],
    effects: Effects::External,
    lease: 1,
    max_execution: 1,
    retention: None,
    tombstone: 0,
    expired_runs_again: false,
    renews: true,
    late_reserves: true,
    late_writes: true,
    reconciler: false,
    operator: false,
    rash: false,
};

/// The key lives and dies: retention, tombstone, purge, void.
pub(super) const RETENTION: World = World {
    retention: Some(1),
    tombstone: 1,
    expired_runs_again: true,
    operator: true,
    renews: false,
    late_reserves: false,
    late_writes: false,
    ..PLAIN
};

/// An operator releases what is unknown, on no more than a word.
pub(super) const RASH: World = World {
    name: "a rash operator",
    operator: true,
    rash: true,
    renews: false,
    late_reserves: false,
    ..PLAIN
};

/// Small worlds: together they see everything, in a moment even without optimisation.
pub const SMALL: &[World] = &[
    World { name: "two requests", renews: false, ..PLAIN },
    World { name: "one request that renews", comers: &[REQUEST], reconciler: true, ..PLAIN },
    World { name: "no effects", effects: Effects::None, renews: false, ..PLAIN },
    World {
        name: "phased",
        effects: Effects::Phased,
        renews: false,
        late_reserves: false,
        ..PLAIN
    },
    World {
        name: "a status declared re-runnable",
        effects: Effects::Undeclared,
        renews: false,
        late_reserves: false,
        late_writes: false,
        ..PLAIN
    },
    World {
        name: "accepted for later",
        comers: &[(Role::Accepts, 1), (Role::Claims, 1)],
        renews: false,
        ..PLAIN
    },
    World {
        name: "a route that became queued",
        comers: &[REQUEST, (Role::Accepts, 1)],
        renews: false,
        late_writes: false,
        ..PLAIN
    },
    RASH,
    World {
        name: "one key that lives and dies",
        expired_runs_again: false,
        comers: &[REQUEST],
        reconciler: true,
        ..RETENTION
    },
    World {
        name: "two fingerprints, no tombstone",
        comers: &[REQUEST, OTHER_REQUEST],
        expired_runs_again: false,
        tombstone: 0,
        ..RETENTION
    },
    World { name: "two requests, an expired key runs again", operator: false, ..RETENTION },
    World {
        name: "two requests, a reply is withdrawn",
        expired_runs_again: false,
        retention: None,
        ..RETENTION
    },
];

/// Larger worlds.
pub const LARGE: &[World] = &[
    World { name: "two requests that renew", ..PLAIN },
    World { name: "two requests, longer times", lease: 2, max_execution: 2, ..PLAIN },
    World { name: "two requests, re-runnable status", effects: Effects::Undeclared, ..PLAIN },
    World { name: "two requests, no effects", effects: Effects::None, ..PLAIN },
    World { name: "two requests, phased", effects: Effects::Phased, ..PLAIN },
    World { name: "two requests, reconciler", reconciler: true, late_reserves: false, ..PLAIN },
    World { name: "two requests, operator", operator: true, ..PLAIN },
    World {
        name: "two workers claim",
        comers: &[(Role::Accepts, 1), (Role::Claims, 1), (Role::Claims, 1)],
        renews: false,
        late_writes: false,
        ..PLAIN
    },
    World {
        name: "one request, everything at once",
        comers: &[REQUEST],
        reconciler: true,
        renews: true,
        late_reserves: true,
        late_writes: true,
        ..RETENTION
    },
    World { name: "retention, expired is 410", expired_runs_again: false, ..RETENTION },
    World { name: "retention, late writes", late_writes: true, ..RETENTION },
    World { name: "retention, late reserves", late_reserves: true, ..RETENTION },
    World {
        name: "two fingerprints",
        comers: &[REQUEST, OTHER_REQUEST],
        expired_runs_again: false,
        late_writes: true,
        ..RETENTION
    },
    World {
        name: "two fingerprints, no tombstone, late",
        comers: &[REQUEST, OTHER_REQUEST],
        tombstone: 0,
        late_writes: true,
        ..RETENTION
    },
    World { name: "three requests", late_writes: true, ..THREE },
    World {
        name: "three requests, no effects",
        effects: Effects::None,
        late_writes: true,
        ..THREE
    },
    World { name: "three requests, re-runnable status", effects: Effects::Undeclared, ..THREE },
    World {
        name: "three requests, two fingerprints",
        comers: &[REQUEST, REQUEST, OTHER_REQUEST],
        late_writes: true,
        ..THREE
    },
];

const THREE: World = World {
    comers: &[REQUEST, REQUEST, REQUEST],
    renews: false,
    late_reserves: false,
    late_writes: false,
    ..PLAIN
};

impl World {
    pub(super) fn start(&self) -> State {
        let comer = |slot: usize| self.comers.get(slot).copied().unwrap_or((Role::Absent, 0));
        let attempts: [Attempt; ATTEMPTS] = std::array::from_fn(|slot| {
            let (role, asks) = comer(slot);
            Attempt::new(role, asks)
        });
        State {
            record: None,
            attempts,
            reconciler: super::state::Reconciler::Idle,
            uses: 0,
            fence_max: None,
        }
    }

    /// Whether work on this route does something to the world.
    pub(super) fn acts(&self) -> bool {
        matches!(self.effects, Effects::External | Effects::Undeclared)
    }

    /// Below this, the end of a lease makes no difference any more.
    pub(super) fn lease_floor(&self) -> Ticks {
        if self.reconciler { -(self.max_execution + SETTLE + super::state::PROBE_KEPT) } else { 0 }
    }
}

//! What a world is like: how many take part, under which policies, how much breaks.

use std::time::Duration;

use onceward::{
    Effects, InFlight, Policy, Queued, Recipe, Routes,
    policy::{Presence, ServerErrors},
};

use super::bugs::Bug;
use super::choices::Choices;
use crate::history::Rules;

/// A second.
pub(super) const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// How long every route keeps its replies.
pub(super) const RETENTION: Duration = HOUR;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// What a world is like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Processes.
    pub nodes: u32,
    /// Callers whose data must never mix.
    pub tenants: u32,
    /// Keys of each tenant.
    pub keys: u32,
    /// Clients at a time.
    pub clients: u32,
    /// Operations of each client, one after the other. Each is one request and its retries.
    pub operations: u32,
    /// Different things that are asked under one key: more than one is misuse.
    pub bodies: u32,
    /// Policies; key number n belongs to the route number n modulo their count.
    pub routes: Vec<RouteOptions>,
    /// How long an engine repeats a store call.
    pub store_deadline: Duration,
    /// Whether the store keeps what it acknowledged.
    pub durable: bool,
    /// How often a message meets a fault, in 10,000.
    pub faults: u32,
    /// How often nodes, clocks and the store itself are disturbed in a run, at most.
    pub disturbances: u32,
    /// Whether the store's clock jumps and operators intervene while attempts stand still, so that a
    /// key is used again before its last attempt is over.
    pub hasty: bool,
    /// The pause between two sweeps.
    pub sweep_every: Duration,
    /// The pause between two runs of the reaper.
    pub reap_every: Duration,
    /// Whether replies are committed with messages, which a relay on every node delivers.
    pub messages: bool,
}

/// What a route is like.
#[derive(Clone, Debug)]
pub struct RouteOptions {
    /// What its work can do to the world.
    pub effects: Effects,
    /// What a 5xx of its handler means.
    pub server_errors: ServerErrors,
    /// What a retry gets while an attempt is at work.
    pub in_flight: InFlight,
    /// Whether an expired key runs again.
    pub expired_runs_again: bool,
    /// How long an attempt may be silent.
    pub lease: Duration,
    /// How long an attempt may take.
    pub max_execution: Duration,
    /// How long a tombstone is kept.
    pub tombstone: Duration,
    /// How long requests may wait, if they are accepted now and executed later.
    pub queued: Option<Duration>,
    /// Whether the last step of work in steps may be made again.
    pub last_step_repeats: bool,
}

/// How long after a call upstream may act at the latest, where the store's clock may jump. Together
/// with the longest lease it stays under the time that must pass between two probes by the clock of who
/// asks: what a request needs longer on its way than that, no probe can see.
const LATEST_ACT: Duration = Duration::from_secs(85);

/// The same where no clock jumps: a second probe comes two minutes after everything that an attempt
/// may do, less a moment. Not reckoned from what the machine says that it waits for.
const LATEST_ACT_AFTER_ALL: Duration = Duration::from_secs(119);

impl Options {
    /// A world drawn from a seed.
    pub fn drawn(choices: &mut Choices) -> Self {
        let routes = 1 + choices.number(2);
        Options {
            nodes: 1 + choices.number(3),
            tenants: 1 + choices.number(2),
            keys: 1 + choices.number(3),
            clients: 1 + choices.number(5),
            operations: 1 + choices.number(7),
            bodies: 1 + choices.number(2),
            routes: (0..routes).map(|_| RouteOptions::drawn(choices)).collect(),
            store_deadline: *one_of(choices, &[SECOND, SECOND / 10, SECOND * 5]),
            durable: choices.number(8) != 7,
            faults: *one_of(choices, &[0, 300, 1_000, 2_500]),
            disturbances: choices.number(8),
            hasty: choices.number(6) == 5,
            sweep_every: *one_of(choices, &[SECOND * 30, SECOND * 5]),
            reap_every: *one_of(choices, &[SECOND * 60, SECOND * 20]),
            messages: choices.number(8) == 7,
        }
        .consistent()
    }

    /// The smallest world in which two can meet: two clients with one operation each, two nodes,
    /// one key. Faults are chosen by whoever explores it.
    pub fn smallest(route: RouteOptions) -> Self {
        Options {
            nodes: 2,
            tenants: 1,
            keys: 1,
            clients: 2,
            operations: 1,
            bodies: 1,
            routes: vec![route],
            store_deadline: SECOND,
            durable: true,
            faults: 10_000,
            disturbances: 0,
            hasty: false,
            sweep_every: SECOND * 30,
            reap_every: SECOND * 60,
            messages: false,
        }
    }

    /// A store that forgets its last commits forgets messages with them, which nobody could miss.
    fn consistent(mut self) -> Self {
        self.messages &= self.durable;
        self
    }

    /// Whether some work goes on though no client comes.
    pub(super) fn has_work(&self) -> bool {
        self.routes.iter().any(RouteOptions::goes_on)
    }

    /// The longest that an attempt can be at work without anybody seeing to it, and some more.
    pub(super) fn at_work_max(&self) -> Duration {
        let longest = self.routes.iter().map(|route| route.lease + route.max_execution).max();
        longest.unwrap_or_default() + self.sweep_every * 2 + self.store_deadline * 4 + SECOND * 20
    }

    /// What the judge must know.
    pub(super) fn rules(&self) -> Vec<Rules> {
        (0..).zip(&self.routes).map(|(number, route)| route.rules(number)).collect()
    }

    /// What an engine must know.
    pub(super) fn policies(&self, bug: Option<Bug>) -> Routes {
        (0..).zip(&self.routes).fold(Routes::only(), |routes, (number, route)| {
            let pattern = format!("POST {}", path(number));
            let policy = route.policy(bug);
            routes.route(&pattern, policy).unwrap_or_else(|_| unreachable!("a valid pattern"))
        })
    }

    /// How long after a call upstream may act, on a route with this `max_execution`.
    pub(super) fn latest_act(&self, max_execution: Duration) -> Duration {
        match self.disturbances {
            0 => max_execution + LATEST_ACT_AFTER_ALL,
            _ => LATEST_ACT,
        }
    }

    pub(super) fn keeps_no_tombstones(&self) -> bool {
        self.routes.iter().any(|route| route.tombstone.is_zero())
    }

    pub(super) fn route_of_key(&self, key: u32) -> u32 {
        key % u32::try_from(self.routes.len()).unwrap_or(1)
    }
}

/// The path of a route.
pub(super) fn path(route: u32) -> String {
    format!("/route-{route}")
}

impl RouteOptions {
    /// A route that says nothing beyond what it must.
    pub fn plain(effects: Effects) -> Self {
        RouteOptions {
            effects,
            server_errors: ServerErrors::ByEffects,
            in_flight: InFlight::Conflict,
            expired_runs_again: false,
            lease: SECOND * 3,
            max_execution: SECOND * 10,
            tombstone: DAY * 30,
            queued: None,
            last_step_repeats: false,
        }
    }

    /// Whether it goes on though no client comes.
    pub(super) fn goes_on(&self) -> bool {
        self.queued.is_some() || self.effects == Effects::Phased
    }

    fn drawn(choices: &mut Choices) -> Self {
        use ServerErrors::{ByEffects, Retry, Store, Unknown};
        let in_flight = [InFlight::Conflict, InFlight::Wait(SECOND * 3), InFlight::Accepted];
        let effects = *one_of(
            choices,
            &[
                Effects::Undeclared,
                Effects::External,
                Effects::External,
                Effects::None,
                Effects::Phased,
            ],
        );
        let server_errors = *one_of(choices, &[ByEffects, ByEffects, Retry, Store, Unknown]);
        // What a handler in steps answers when a step failed is no reply.
        let in_steps = effects == Effects::Phased;
        RouteOptions {
            effects,
            server_errors: if in_steps { ByEffects } else { server_errors },
            in_flight: *one_of(choices, &in_flight),
            expired_runs_again: choices.number(2) == 1,
            lease: *one_of(choices, &[SECOND * 3, SECOND, SECOND * 10, SECOND * 30]),
            max_execution: *one_of(choices, &[SECOND * 10, SECOND * 2, SECOND * 40]),
            tombstone: *one_of(choices, &[DAY * 30, HOUR, Duration::ZERO]),
            queued: match choices.number(5) {
                4 => Some(*one_of(choices, &[SECOND * 20, SECOND * 120, DAY])),
                _ => None,
            },
            last_step_repeats: choices.number(2) == 1,
        }
    }

    fn policy(&self, bug: Option<Bug>) -> Policy {
        let recipe = match bug {
            Some(Bug::FingerprintOfRawBytes) => Recipe::raw(),
            _ => Recipe::canonical(),
        };
        let server_errors = match bug {
            Some(Bug::EveryServerErrorIsStored) => ServerErrors::Store,
            Some(Bug::EveryServerErrorIsRetried) => ServerErrors::Retry,
            _ => self.server_errors,
        };
        let policy = Policy::required()
            .presence(Presence::Required)
            .fingerprint(recipe)
            .server_errors(server_errors)
            .in_flight(self.in_flight)
            .expired_runs_again(self.expired_runs_again)
            .tombstone(self.tombstone)
            .effects(self.effects)
            .and_then(|policy| policy.lease(self.lease))
            .and_then(|policy| policy.max_execution(self.max_execution))
            .and_then(|policy| policy.retention(RETENTION));
        let policy = policy.and_then(|policy| match self.queued {
            Some(within) => policy.queued(Queued::within(within)?),
            None => Ok(policy),
        });
        policy.unwrap_or_else(|bad| unreachable!("{bad}"))
    }

    fn rules(&self, number: u32) -> Rules {
        let mut rerunnable = vec![401, 403, 408, 425, 429];
        let retried = match (self.server_errors, self.effects) {
            (ServerErrors::Retry, _) => true,
            // It would be run again without anybody asking.
            (ServerErrors::ByEffects, Effects::Undeclared) => self.queued.is_none(),
            (ServerErrors::ByEffects, effects) => effects != Effects::External,
            (ServerErrors::Store | ServerErrors::Unknown, _) => false,
        };
        match self.effects {
            // What a 500 of a step means is up to its handler.
            Effects::Phased => rerunnable.push(503),
            _ if retried => rerunnable.extend([500, 503]),
            _ => {}
        }
        Rules {
            route: path(number),
            acts: self.effects != Effects::None,
            rerunnable,
            expired_runs_again: self.expired_runs_again,
            kept_headers: vec!["content-type".into(), "etag".into(), "x-note".into()],
            goes_on: self.goes_on(),
        }
    }
}

fn one_of<'a, T>(choices: &mut Choices, options: &'a [T]) -> &'a T {
    let count = u32::try_from(options.len()).unwrap_or(1);
    let chosen = choices.number(count) as usize;
    options.get(chosen).unwrap_or_else(|| unreachable!("chosen below the count"))
}

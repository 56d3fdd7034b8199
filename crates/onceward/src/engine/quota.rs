//! How much one caller may ask for: keys and lookups per second, and records in progress.
//!
//! Each process counts for itself, in memory: no row is written for it. What is counted is bounded:
//! of more scopes than [`SCOPES_MAX`] those are forgotten that have used the least, and never one
//! with an attempt at work. A scope that is forgotten begins with its whole quota again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::scope::Scope;

/// How many scopes are remembered.
const SCOPES_MAX: usize = 100_000;

/// When a place is free among the active records cannot be told: attempts take what they take.
const ACTIVE_RETRY_AFTER: Duration = Duration::from_secs(1);

/// What each scope may ask of this process. Nothing is limited by default.
///
/// A caller over `creations` or `active` still gets replays, conflicts and mismatches; a new key is
/// answered 429. A caller over `lookups` is answered 429 whatever it asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// New keys. Only a key that was really created counts; a replay never does.
    pub creations: Option<Rate>,
    /// Records that are in progress in this process at a time.
    pub active: Option<u32>,
    /// Requests with a key, replays among them, and questions about an operation's state.
    pub lookups: Option<Rate>,
}

impl Limits {
    /// No limits.
    pub const OFF: Limits = Limits { creations: None, active: None, lookups: None };
}

/// So many per second, and so many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    per_second: u32,
    burst: u32,
}

impl Rate {
    /// So many per second, and as many at once. At least one.
    pub fn per_second(per_second: u32) -> Self {
        let per_second = per_second.max(1);
        Rate { per_second, burst: per_second }
    }

    /// The same with so many at once. At least one.
    #[must_use]
    pub fn burst(self, burst: u32) -> Self {
        Rate { burst: burst.max(1), ..self }
    }

    /// How many per second, and how many at once.
    pub fn parts(self) -> (u32, u32) {
        (self.per_second, self.burst)
    }

    /// The time in which one more comes.
    fn interval(self) -> Duration {
        Duration::from_secs(1) / self.per_second
    }
}

/// A limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exceeded {
    /// Which one, as in [`Limits`].
    pub(super) limit: &'static str,
    /// When it makes sense to come back.
    pub(super) retry_after: Duration,
}

/// Tokens that come back with time: all of them are there from `full_at` on.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    full_at: Instant,
}

impl Bucket {
    /// Takes one, or says how long until there is one.
    fn take(&mut self, rate: Rate, now: Instant) -> Result<(), Duration> {
        let full_at = self.full_at.max(now) + rate.interval();
        let ahead = full_at - now;
        match ahead.checked_sub(rate.interval() * rate.burst) {
            Some(missing) if !missing.is_zero() => Err(missing),
            _ => {
                self.full_at = full_at;
                Ok(())
            }
        }
    }

    fn give_back(&mut self, rate: Rate) {
        self.full_at = self.full_at.checked_sub(rate.interval()).unwrap_or(self.full_at);
    }
}

#[derive(Debug)]
struct Usage {
    creations: Bucket,
    lookups: Bucket,
    active: u32,
}

impl Usage {
    /// When it will be as if it had never asked.
    fn forgotten_at(&self) -> Instant {
        self.creations.full_at.max(self.lookups.full_at)
    }
}

/// What the scopes of this process have used.
#[derive(Debug)]
pub(super) struct Quota {
    scopes: Mutex<HashMap<Scope, Usage>>,
    scopes_max: usize,
}

impl Default for Quota {
    fn default() -> Self {
        Quota { scopes: Mutex::default(), scopes_max: SCOPES_MAX }
    }
}

/// The right to create a key, and a place among the active records for as long as it lives.
#[derive(Debug)]
#[must_use]
pub(super) struct Place {
    quota: Arc<Quota>,
    scope: Scope,
    /// Where a token is to be given back, as long as no key was created for it.
    unused: Option<Rate>,
}

impl Quota {
    /// One more lookup of this scope.
    pub(super) fn look(
        &self,
        limits: &Limits,
        scope: &Scope,
        now: Instant,
    ) -> Result<(), Exceeded> {
        let Some(rate) = limits.lookups else { return Ok(()) };
        let taken = self.with(scope, now, |usage| usage.lookups.take(rate, now));
        taken.map_err(|retry_after| Exceeded { limit: "lookups", retry_after })
    }

    /// A place for one more key of this scope; none is needed where nothing is limited. To be asked
    /// for right before the store is: replays give it back, and must not have it for long.
    pub(super) fn place(
        self: &Arc<Self>,
        limits: &Limits,
        scope: &Scope,
        now: Instant,
    ) -> Result<Option<Place>, Exceeded> {
        if limits.creations.is_none() && limits.active.is_none() {
            return Ok(None);
        }
        self.with(scope, now, |usage| {
            if limits.active.is_some_and(|most| usage.active >= most) {
                return Err(Exceeded { limit: "active", retry_after: ACTIVE_RETRY_AFTER });
            }
            if let Some(rate) = limits.creations {
                let taken = usage.creations.take(rate, now);
                taken.map_err(|retry_after| Exceeded { limit: "creations", retry_after })?;
            }
            usage.active += 1;
            Ok(())
        })?;
        let (quota, scope) = (Arc::clone(self), scope.clone());
        Ok(Some(Place { quota, scope, unused: limits.creations }))
    }

    fn with<T>(&self, scope: &Scope, now: Instant, change: impl FnOnce(&mut Usage) -> T) -> T {
        let mut scopes = self.scopes();
        if let Some(usage) = scopes.get_mut(scope) {
            return change(usage);
        }
        if scopes.len() >= self.scopes_max {
            make_room(&mut scopes, self.scopes_max - self.scopes_max / 8, now);
        }
        let full = Bucket { full_at: now };
        let fresh = Usage { creations: full, lookups: full, active: 0 };
        change(scopes.entry(scope.clone()).or_insert(fresh))
    }

    fn scopes(&self) -> MutexGuard<'_, HashMap<Scope, Usage>> {
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets those whose quota is whole, then those who used the least, until no more than so many are
/// left. An eighth of room at a time, so that going through all of them pays.
fn make_room(scopes: &mut HashMap<Scope, Usage>, leave: usize, now: Instant) {
    scopes.retain(|_, usage| usage.active > 0 || usage.forgotten_at() > now);
    let Some(too_many) = scopes.len().checked_sub(leave + 1) else { return };
    let idle = scopes.values().filter(|usage| usage.active == 0);
    let mut times: Vec<Instant> = idle.map(Usage::forgotten_at).collect();
    if times.is_empty() {
        return;
    }
    let last = too_many.min(times.len() - 1);
    let (_, until, _) = times.select_nth_unstable(last);
    let mut to_go = last + 1;
    scopes.retain(|_, usage| {
        let stays = to_go == 0 || usage.active > 0 || usage.forgotten_at() > *until;
        to_go -= usize::from(!stays);
        stays
    });
}

impl Place {
    /// The store granted a record. `created`: there was none before; otherwise the token is given
    /// back, and only the place is kept.
    pub(super) fn granted(&mut self, created: bool) {
        let unused = self.unused.take();
        if let (Some(rate), false) = (unused, created) {
            self.change(|usage| usage.creations.give_back(rate));
        }
    }

    fn change(&self, change: impl FnOnce(&mut Usage)) {
        if let Some(usage) = self.quota.scopes().get_mut(&self.scope) {
            change(usage);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let unused = self.unused.take();
        self.change(|usage| {
            usage.active = usage.active.saturating_sub(1);
            if let Some(rate) = unused {
                usage.creations.give_back(rate);
            }
        });
    }
}

#[cfg(test)]
mod tests;

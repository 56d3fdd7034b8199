//! Which scopes send the same keys again and again: a client with a bug, or somebody who replays what
//! he recorded. Counted for a minute at a time, for a bounded number of scopes.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::Engine;
use crate::{rejection::Code, scope::Scope};

/// How long is counted at a time.
const WINDOW: Duration = Duration::from_secs(60);

/// So many scopes are told apart in a window; all others are counted together.
const SCOPES_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Tenants(Mutex<Windows>);

#[derive(Debug, Default)]
struct Windows {
    begun: Option<Instant>,
    now: Window,
    last: Window,
}

#[derive(Debug, Default)]
struct Window {
    scopes: HashMap<Scope, Counts>,
    others: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    requests: u64,
    duplicates: u64,
}

/// What a scope asked for in the last full minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeTraffic {
    /// The digest of the scope, as it is logged; without one, all scopes that are not listed.
    pub scope: Option<String>,
    /// Its requests with a key.
    pub requests: u64,
    /// Those of them whose key was known already: replays, conflicts, mismatches, unknown outcomes.
    pub duplicates: u64,
}

impl Tenants {
    /// Whoever was granted the key is no duplicate, whatever became of it.
    pub(super) fn note(&self, scope: &Scope, granted: bool, outcome: &str, now: Instant) {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows.turn(now);
        let window = &mut windows.now;
        let counts = match window.scopes.len() < SCOPES_MAX || window.scopes.contains_key(scope) {
            true => window.scopes.entry(scope.clone()).or_default(),
            false => &mut window.others,
        };
        counts.requests += 1;
        counts.duplicates += u64::from(!granted && is_duplicate(outcome));
    }

    fn top(&self, most: usize, now: Instant) -> Vec<ScopeTraffic> {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows.turn(now);
        let mut scopes: Vec<(&Scope, Counts)> =
            windows.last.scopes.iter().map(|(scope, counts)| (scope, *counts)).collect();
        scopes.sort_by_key(|(scope, counts)| {
            (std::cmp::Reverse((counts.duplicates, counts.requests)), scope.as_str())
        });
        let mut others = windows.last.others;
        for (_, counts) in scopes.iter().skip(most) {
            others.requests += counts.requests;
            others.duplicates += counts.duplicates;
        }
        let listed = scopes.into_iter().take(most).map(|(scope, counts)| (Some(scope), counts));
        let all = listed.chain([(None, others)]);
        all.map(|(scope, Counts { requests, duplicates })| ScopeTraffic {
            scope: scope.map(Scope::digest),
            requests,
            duplicates,
        })
        .collect()
    }
}

impl Windows {
    fn turn(&mut self, now: Instant) {
        let begun = *self.begun.get_or_insert(now);
        let passed = now.saturating_duration_since(begun);
        if passed < WINDOW {
            return;
        }
        let full = std::mem::take(&mut self.now);
        // After a longer silence the last full minute is one of silence.
        self.last = if passed < WINDOW * 2 { full } else { Window::default() };
        self.begun = Some(now);
    }
}

fn is_duplicate(outcome: &str) -> bool {
    let refused = [Code::KeyInProgress, Code::OutcomeUnknown, Code::Mismatch, Code::KeyExpired];
    outcome == "replayed" || refused.iter().any(|code| code.outcome() == outcome)
}

impl Engine {
    /// What the scopes with the most duplicates asked this process for in the last full minute, at most
    /// so many of them, and all others together.
    pub fn scope_traffic(&self, most: usize) -> Vec<ScopeTraffic> {
        self.tenants.top(most, self.clock.monotonic())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(number: usize) -> Scope {
        Scope::new(format!("account {number}")).expect("a scope")
    }

    fn told(traffic: &ScopeTraffic) -> (Option<&str>, u64, u64) {
        (traffic.scope.as_deref(), traffic.requests, traffic.duplicates)
    }

    #[test]
    fn the_scopes_with_the_most_duplicates_are_told_and_the_rest_together() {
        let (tenants, begun) = (Tenants::default(), Instant::now());
        for number in 0..5 {
            tenants.note(&scope(number), true, "executed", begun);
            for _ in 0..number {
                tenants.note(&scope(number), false, "replayed", begun);
            }
        }
        let nothing_yet = tenants.top(2, begun);
        assert_eq!(nothing_yet.iter().map(told).collect::<Vec<_>>(), [(None, 0, 0)]);
        let top = tenants.top(2, begun + WINDOW);
        let (fourth, third) = (scope(4).digest(), scope(3).digest());
        let expected = [(Some(&*fourth), 5, 4), (Some(&*third), 4, 3), (None, 6, 3)];
        assert_eq!(top.iter().map(told).collect::<Vec<_>>(), expected);
        let silent = tenants.top(2, begun + WINDOW * 3);
        assert_eq!(silent.iter().map(told).collect::<Vec<_>>(), [(None, 0, 0)]);
    }

    #[test]
    fn no_more_scopes_are_remembered_than_a_bound_and_all_are_counted() {
        let (tenants, begun) = (Tenants::default(), Instant::now());
        for number in 0..SCOPES_MAX + 7 {
            tenants.note(&scope(number), false, "replayed", begun);
        }
        let top = tenants.top(3, begun + WINDOW);
        assert_eq!(top.len(), 4);
        assert_eq!(top.iter().map(|one| one.requests).sum::<u64>(), SCOPES_MAX as u64 + 7);
        assert_eq!(
            top.last().map(told),
            Some((None, SCOPES_MAX as u64 + 4, SCOPES_MAX as u64 + 4))
        );
    }

    #[test]
    fn what_met_a_known_key_is_a_duplicate_and_a_first_request_is_not() {
        for (outcome, duplicate) in [
            ("replayed", true),
            ("conflict", true),
            ("unknown", true),
            ("executed", false),
            ("accepted", false),
            ("none", false),
        ] {
            assert_eq!(is_duplicate(outcome), duplicate, "{outcome}");
        }
    }
}

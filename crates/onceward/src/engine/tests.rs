use http::{HeaderMap, HeaderValue};

use super::*;
use crate::{
    key::Key,
    policy::InFlight,
    reply::{ONCEWARD_EXECUTED, ReplyBody},
    scope::Scope,
    store::MemoryStore,
};

mod classified;
#[cfg(feature = "testing")]
mod waiting;
mod unsent;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn id(key: &str) -> RecordId {
    RecordId { scope: Scope::new("acme").expect("a scope"), key: Key::new(key).expect("a key") }
}

#[test]
fn there_is_a_bound_on_waiters_and_a_place_is_given_back() {
    let waiters = Waiters::default();
    let places: Vec<_> = std::iter::from_fn(|| waiters.enter(&id("a"), seconds(1))).collect();
    assert_eq!(places.len(), 10_000);
    assert!(waiters.enter(&id("b"), seconds(1)).is_none(), "for other records too");
    drop(places);
    assert!(waiters.enter(&id("b"), seconds(1)).is_some());
    assert!(waiters.enter(&id("b"), Duration::ZERO).is_none());
}

#[test]
fn a_preference_overrules_the_policy_and_is_capped() {
    let asked = |values: &[&'static str], in_flight| {
        let values = values.iter().map(|value| HeaderValue::from_static(value));
        let prefer = http::HeaderName::from_static("prefer");
        let headers: HeaderMap = values.map(|value| (prefer.clone(), value)).collect();
        wait::asked_for(&headers, &Policy::required().in_flight(in_flight))
    };
    let wait = InFlight::Wait(seconds(2));
    assert_eq!(asked(&[], InFlight::Conflict), None);
    assert_eq!(asked(&[], wait), Some(seconds(2)));
    assert_eq!(asked(&["return=minimal", "wait=5"], wait), Some(seconds(5)));
    assert_eq!(asked(&["wait=\"5\""], InFlight::Accepted), Some(seconds(5)));
    assert_eq!(asked(&["respond-async; wait = 7"], wait), Some(seconds(7)));
    assert_eq!(asked(&["wait=99999999999"], wait), Some(seconds(10)));
    assert_eq!(asked(&["wait=0"], wait), Some(Duration::ZERO));
    for nonsense in ["wait", "wait=", "wait=-1", "wait=1.5", "await=3", "wait=99999999999999999999"]
    {
        assert_eq!(asked(&[nonsense], wait), Some(seconds(2)), "{nonsense}");
    }
}

#[test]
fn the_identity_depends_on_what_makes_a_key_what_it_is() {
    let identity = |scope, policy: Policy| {
        let settings = Settings { scope, ..Settings::default() };
        Engine::new(Arc::new(MemoryStore::new()), policy.into(), settings).identity()
    };
    let first = identity(ScopeRule::authorization(), Policy::required());
    assert_eq!(identity(ScopeRule::authorization(), Policy::optional()), first);
    assert_ne!(identity(ScopeRule::anonymous(), Policy::required()), first);
}

#[tokio::test]
async fn engines_of_one_service_under_other_settings_wake_each_other_and_drain_together() {
    let engine =
        Engine::new(Arc::new(MemoryStore::new()), Policy::required().into(), Settings::default());
    let apart =
        Engine::new(Arc::new(MemoryStore::new()), Policy::required().into(), Settings::default());
    let later = engine.under(Policy::optional().into(), Settings::default());
    assert_eq!(
        later.routes.policies().next().map(|policy| policy.presence),
        Some(Presence::Optional)
    );
    let waiter = engine.waiters.enter(&id("a"), seconds(5)).expect("a place");
    let woken = waiter.listen();
    later.waiters.wake(&id("a"));
    assert!(tokio::time::timeout(seconds(1), woken).await.is_ok());
    later.drain(Duration::ZERO).await;
    assert!(!engine.drain.is_open() && !later.drain.is_open());
    assert!(apart.drain.is_open());
}

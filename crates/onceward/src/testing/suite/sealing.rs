//! The data keys of scopes: what sealing stands on.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    record::AuditEvent,
    scope::Scope,
    store::{SCOPE_WIDE, ScopeKey},
    testing::{Harness, samples::id},
};

fn scope(name: &str) -> Scope {
    Scope::new(name).expect("a scope")
}

fn proposed(number: u8, wrapped_by: &str) -> ScopeKey {
    let wrapped = Some(Bytes::from(vec![number; 72]));
    ScopeKey { id: [number; 16], wrapped_by: wrapped_by.into(), wrapped }
}

async fn keys(on: &Harness, of: &Scope, proposed: Option<ScopeKey>) -> Vec<ScopeKey> {
    on.store.scope_keys(of, proposed).await.expect("the data keys")
}

/// Whoever comes first; the others are told which it is.
pub async fn the_first_data_key_of_a_scope_stands(on: Harness) {
    let acme = scope("acme");
    assert_eq!(keys(&on, &acme, None).await, []);
    let first = [proposed(1, "2026")];
    assert_eq!(keys(&on, &acme, Some(proposed(1, "2026"))).await, first);
    assert_eq!(keys(&on, &acme, Some(proposed(2, "2026"))).await, first);
    assert_eq!(keys(&on, &acme, Some(proposed(1, "2026"))).await, first, "repeated");
    assert_eq!(keys(&on, &acme, None).await, first);
}

/// Beside those that are there.
pub async fn a_key_that_wraps_anew_adds_a_data_key(on: Harness) {
    let acme = scope("acme");
    let (old, new) = (proposed(1, "2026"), proposed(2, "2027"));
    keys(&on, &acme, Some(old.clone())).await;
    assert_eq!(keys(&on, &acme, Some(new.clone())).await, [old.clone(), new.clone()]);
    assert_eq!(keys(&on, &acme, Some(proposed(3, "2026"))).await, [old.clone(), new.clone()]);
    assert_eq!(keys(&on, &acme, None).await, [old, new]);
}

/// The next one stands beside it.
pub async fn of_a_dropped_data_key_only_its_id_is_left(on: Harness) {
    let acme = scope("acme");
    assert_eq!(on.store.drop_scope_keys(&acme, "none").await.expect("answered"), 0);
    keys(&on, &acme, Some(proposed(1, "2026"))).await;
    keys(&on, &acme, Some(proposed(2, "2027"))).await;
    assert_eq!(on.store.drop_scope_keys(&acme, "asked for").await.expect("answered"), 2);
    let dropped = |number, by| ScopeKey { wrapped: None, ..proposed(number, by) };
    let gone = [dropped(1, "2026"), dropped(2, "2027")];
    assert_eq!(keys(&on, &acme, None).await, gone);
    assert_eq!(on.store.drop_scope_keys(&acme, "again").await.expect("answered"), 0);
    let next = proposed(3, "2027");
    let [first, second] = gone;
    assert_eq!(keys(&on, &acme, Some(next.clone())).await, [first, second, next]);
}

/// With its reason, once for each key.
pub async fn dropping_data_keys_is_remembered(on: Harness) {
    let acme = scope("acme");
    keys(&on, &acme, Some(proposed(1, "2026"))).await;
    on.store.drop_scope_keys(&acme, "anna: asked for").await.expect("answered");
    on.store.drop_scope_keys(&acme, "anna: again").await.expect("answered");
    let remembered = on.store.audit(&id("acme", SCOPE_WIDE)).await.expect("audit records");
    let [erased] = &remembered[..] else { panic!("{remembered:?}") };
    assert_eq!((erased.event, &*erased.reason), (AuditEvent::Erased, "anna: asked for"));
    assert_eq!((erased.at, erased.attempt.as_bytes()), (on.now(), &[1; 16]));
}

/// Neither when they are made nor when they are dropped.
pub async fn scopes_do_not_share_data_keys(on: Harness) {
    let (acme, evil) = (scope("acme"), scope("Acme"));
    keys(&on, &acme, Some(proposed(1, "2026"))).await;
    assert_eq!(keys(&on, &evil, None).await, []);
    keys(&on, &evil, Some(proposed(2, "2026"))).await;
    on.store.drop_scope_keys(&evil, "asked for").await.expect("answered");
    assert_eq!(keys(&on, &acme, None).await, [proposed(1, "2026")]);
}

/// And each of them is told the same.
pub async fn of_50_concurrent_proposals_exactly_one_stands(on: Harness) {
    let proposals = (1..=50_u8).map(|number| {
        let store = Arc::clone(&on.store);
        tokio::spawn(async move {
            let told = store.scope_keys(&scope("acme"), Some(proposed(number, "2026"))).await;
            told.expect("the data keys")
        })
    });
    let proposals: Vec<_> = proposals.collect();
    let stands = {
        let mut told = Vec::new();
        for proposal in proposals {
            told.push(proposal.await.expect("not cancelled"));
        }
        let first = told.first().expect("one of 50").clone();
        assert!(told.iter().all(|other| *other == first), "{told:?}");
        first
    };
    assert_eq!(stands.len(), 1);
    assert_eq!(keys(&on, &scope("acme"), None).await, stands);
}

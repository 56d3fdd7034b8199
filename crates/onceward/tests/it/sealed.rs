//! A sealed store: what the store inside it sees, and what does not open.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use onceward::{
    KeyRing, MemoryStore, Reply, RingKey, Scope, SealedStore, Store,
    record::{AuditEvent, Lease, Record, RecordId},
    reply::ReplyBody,
    store::{
        Advance, Ask, Reservation, Resolution, Resolve, StoreErrorKind, Which, Write, Written,
    },
    testing::{
        Fault, FaultyStore, StoreCall,
        samples::{ask, id, phased, reply, request, retry},
    },
};

const SECRET: &str = "a reply that nobody else may read";

fn ring(ids: &[&str]) -> KeyRing {
    // The secret of a key is made of its name, so that the same name is the same key.
    let key = |id: &&str| RingKey::new(*id, [id.as_bytes()[0]; 32]);
    KeyRing::new(ids.iter().map(key)).expect("a ring")
}

struct Sealed {
    inner: Arc<MemoryStore>,
    store: SealedStore,
}

fn sealed() -> Sealed {
    let inner = Arc::new(MemoryStore::new());
    let store = SealedStore::new(Arc::clone(&inner) as _, ring(&["a"]));
    Sealed { inner, store }
}

async fn grant(store: &dyn Store, ask: &Ask) -> Lease {
    match store.reserve(ask.clone()).await.expect("reserved") {
        Reservation::Granted { lease, .. } => lease,
        other => panic!("{other:?}"),
    }
}

async fn complete(store: &dyn Store, ask: &Ask, reply: Reply) {
    let lease = grant(store, ask).await;
    let written = store.write(&lease, Write::Complete(reply)).await.expect("written");
    assert_eq!(written, Written::Applied);
}

async fn loaded(store: &dyn Store, id: &RecordId) -> Record {
    store.load(id).await.expect("loaded").expect("a record")
}

async fn stored(store: &dyn Store, id: &RecordId) -> Reply {
    loaded(store, id).await.reply.expect("a reply")
}

/// Why it does not open.
async fn unopened(store: &dyn Store, id: &RecordId) -> String {
    let error = store.load(id).await.expect_err("it does not open");
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
    error.to_string()
}

#[tokio::test]
async fn the_store_inside_sees_the_status_and_nothing_else_of_a_reply() {
    let Sealed { inner, store } = sealed();
    let told = Reply { schema_version: Some("v2".into()), ..reply(SECRET) };
    let told = told.with_header(
        http::HeaderName::from_static("x-secret"),
        http::HeaderValue::from_static("secret-header"),
    );
    complete(&store, &ask("order-1"), told.clone()).await;
    let kept = stored(&*inner, &ask("order-1").id).await;
    assert!(kept.is_sealed() && kept.status == told.status && kept.schema_version.is_none());
    let seen = format!("{:?} {:?}", kept.headers, kept.body_bytes());
    assert!(!seen.contains("secret-header") && !seen.contains("nobody else"), "{seen}");
    assert_eq!(stored(&store, &ask("order-1").id).await, told);
}

#[tokio::test]
async fn steps_and_requests_are_sealed_too() {
    let Sealed { inner, store } = sealed();
    let with_request = Ask {
        request: Some(Arc::new(request(SECRET))),
        lease: Duration::ZERO,
        ..phased("order-1")
    };
    let lease = grant(&store, &with_request).await;
    let save = Advance::Save { name: "book".into(), result: SECRET.into() };
    let _ = store.advance(&lease, save).await.expect("saved");
    let inside = inner.steps(&lease.id, 1).await.expect("steps");
    let waiting = inner.resumable(Which::All, 10).await.expect("those that wait");
    let seen = format!("{inside:?} {waiting:?}");
    assert!(!seen.contains("nobody else"), "{seen}");
    let steps = store.steps(&lease.id, 1).await.expect("steps");
    assert_eq!(steps[0].result, SECRET);
    let waiting = store.resumable(Which::All, 10).await.expect("those that wait");
    assert_eq!(waiting[0].request, Some(request(SECRET)));
}

#[tokio::test]
async fn what_was_stored_before_sealing_stays_readable() {
    let Sealed { inner, store } = sealed();
    complete(&*inner, &ask("order-1"), reply("plain")).await;
    assert_eq!(stored(&store, &ask("order-1").id).await, reply("plain"));
}

#[tokio::test]
async fn a_reply_that_was_moved_does_not_open() {
    let Sealed { inner, store } = sealed();
    let first = ask("order-1");
    complete(&store, &first, reply(SECRET)).await;
    let moved = stored(&*inner, &first.id).await;
    // To another key, to another scope that has data keys and to one that has none.
    let evil = Ask { id: id("evil", "order-1"), ..ask("order-1") };
    complete(&store, &Ask { id: id("evil", "other"), ..ask("other") }, reply("x")).await;
    let nobody = Ask { id: id("nobody", "order-1"), ..ask("order-1") };
    for elsewhere in [&ask("order-2"), &evil, &nobody] {
        complete(&*inner, elsewhere, moved.clone()).await;
        let why = unopened(&store, &elsewhere.id).await;
        assert!(why.contains("moved here"), "{why}");
        let again = store.reserve(retry(elsewhere)).await;
        assert!(again.is_err(), "never granted, never empty: {again:?}");
    }
    let forged = Reply { status: StatusCode::ACCEPTED, ..moved };
    complete(&*inner, &ask("order-3"), forged).await;
    unopened(&store, &ask("order-3").id).await;
    assert_eq!(stored(&store, &first.id).await, reply(SECRET), "in its own place it does");
}

#[tokio::test]
async fn the_reply_of_an_earlier_fence_does_not_open_in_a_later_one() {
    let Sealed { inner, store } = sealed();
    let vanishing =
        Ask { lease: Duration::ZERO, effects: onceward::Effects::None, ..ask("order-1") };
    let first = grant(&store, &vanishing).await;
    let second = grant(&store, &retry(&vanishing)).await;
    // The late result of the first attempt is evidence.
    let late = store.write(&first, Write::Complete(reply(SECRET))).await.expect("answered");
    assert!(matches!(late, Written::Superseded(Some(_))), "{late:?}");
    let evidence = inner.audit(&first.id).await.expect("audit records");
    let evidence = evidence.into_iter().find(|it| it.event == AuditEvent::SupersededResult);
    let moved = evidence.and_then(|it| it.reply).expect("a reply");
    let opened = store.audit(&first.id).await.expect("audit records");
    assert!(opened.iter().any(|it| it.reply == Some(reply(SECRET))), "{opened:?}");
    let _ = inner.write(&second, Write::Complete(moved)).await.expect("written");
    unopened(&store, &first.id).await;
}

#[tokio::test]
async fn a_resolved_reply_opens_under_the_fence_that_the_resolution_made() {
    let Sealed { inner, store } = sealed();
    let lease = grant(&store, &ask("order-1")).await;
    let _ = store.write(&lease, Write::MarkUnknown("reset".into())).await.expect("written");
    let resolve = Resolve {
        id: lease.id.clone(),
        generation: 1,
        fence: lease.fence,
        resolution: Resolution::Complete(reply(SECRET)),
        reason: "ticket 7".into(),
    };
    let _ = store.resolve(resolve).await.expect("resolved");
    assert_eq!(stored(&store, &lease.id).await, reply(SECRET));
    assert!(stored(&*inner, &lease.id).await.is_sealed());
    // What the attempt itself comes with later is evidence, and not the reply.
    let _ = store.write(&lease, Write::Complete(reply("late"))).await.expect("answered");
    let audit = store.audit(&lease.id).await.expect("audit records");
    let told: Vec<_> = audit.iter().filter_map(|it| it.reply.clone()).collect();
    assert_eq!(told, [reply(SECRET), reply("late")]);
}

#[tokio::test]
async fn a_ring_is_rotated_and_an_old_key_is_missed_only_by_what_it_sealed() {
    let Sealed { inner, store } = sealed();
    complete(&store, &ask("old"), reply(SECRET)).await;
    store.set_ring(ring(&["b", "a"]));
    assert_eq!(stored(&store, &ask("old").id).await, reply(SECRET));
    complete(&store, &ask("new"), reply(SECRET)).await;
    store.set_ring(ring(&["b"]));
    let why = unopened(&store, &ask("old").id).await;
    assert!(why.contains("ring key `a` is not in the key ring"), "{why}");
    assert_eq!(stored(&store, &ask("new").id).await, reply(SECRET));
    complete(&store, &ask("newer"), reply(SECRET)).await;
    // A process that is behind does not know the new key yet.
    let behind = SealedStore::new(inner, ring(&["a"]));
    assert_eq!(stored(&behind, &ask("old").id).await, reply(SECRET));
    unopened(&behind, &ask("new").id).await;
}

#[tokio::test]
async fn another_secret_under_the_same_name_grants_nothing() {
    let Sealed { inner, store } = sealed();
    complete(&store, &ask("order-1"), reply(SECRET)).await;
    let wrong = KeyRing::new([RingKey::new("a", [9; 32])]).expect("a ring");
    let wrong = SealedStore::new(Arc::clone(&inner) as _, wrong);
    let error = wrong.reserve(ask("order-2")).await.expect_err("refused").to_string();
    assert!(error.contains("another secret"), "{error}");
    assert_eq!(inner.load(&ask("order-2").id).await.expect("loaded"), None);
    unopened(&wrong, &ask("order-1").id).await;
}

#[tokio::test(start_paused = true)]
async fn an_erased_scope_keeps_its_outcomes_and_loses_its_replies() {
    let Sealed { inner, store } = sealed();
    let elsewhere = SealedStore::new(Arc::clone(&inner) as _, ring(&["a"]));
    let (acme, evil) = (ask("order-1"), Ask { id: id("evil", "order-1"), ..ask("order-1") });
    complete(&store, &acme, reply(SECRET)).await;
    complete(&store, &evil, reply(SECRET)).await;
    assert_eq!(stored(&elsewhere, &acme.id).await, reply(SECRET));
    let dropped = store.drop_scope_keys(&acme.id.scope, "asked for").await.expect("dropped");
    assert_eq!(dropped, 1);
    let erased = Reply { body: ReplyBody::NotStored, ..reply("") }.status_only();
    assert_eq!(stored(&store, &acme.id).await, erased);
    assert!(matches!(
        store.reserve(retry(&acme)).await.expect("answered"),
        Reservation::Occupied { .. }
    ));
    assert_eq!(stored(&store, &evil.id).await, reply(SECRET), "another scope is not touched");
    complete(&store, &ask("order-2"), reply(SECRET)).await;
    assert_eq!(stored(&store, &ask("order-2").id).await, reply(SECRET), "the scope goes on");
    // Another process notices when what it remembers is too old.
    assert_eq!(stored(&elsewhere, &acme.id).await, reply(SECRET));
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(stored(&elsewhere, &acme.id).await, erased);
    assert_eq!(stored(&elsewhere, &ask("order-2").id).await, reply(SECRET));
}

#[tokio::test]
async fn nothing_is_granted_while_there_is_no_data_key_to_be_had() {
    let inner = Arc::new(MemoryStore::new());
    for (fault, kind) in [
        (Fault::Refused, StoreErrorKind::Unavailable),
        (Fault::LostAfter, StoreErrorKind::Ambiguous),
    ] {
        let faulty = FaultyStore::new(Arc::clone(&inner) as _, move |call, number| {
            if call == StoreCall::ScopeKeys && number == 0 { fault } else { Fault::None }
        });
        let store = SealedStore::new(Arc::new(faulty), ring(&["a"]));
        let failed = store.reserve(ask("order-1")).await.expect_err("no data key");
        assert_eq!(failed.kind(), kind);
        assert_eq!(inner.load(&ask("order-1").id).await.expect("loaded"), None);
        let elsewhere = Ask { id: id(&format!("{kind:?}"), "order-1"), ..ask("order-1") };
        let _ = grant(&store, &elsewhere).await;
    }
}

#[tokio::test]
async fn scopes_have_data_keys_of_their_own() {
    let Sealed { inner, store } = sealed();
    for scope in ["acme", "evil"] {
        complete(&store, &Ask { id: id(scope, "k"), ..ask("k") }, reply("x")).await;
    }
    let keys = async |scope: &str| {
        let scope = Scope::new(scope).expect("a scope");
        inner.scope_keys(&scope, None).await.expect("data keys")
    };
    let (acme, evil) = (keys("acme").await, keys("evil").await);
    assert_eq!((acme.len(), evil.len()), (1, 1));
    assert_ne!(acme[0].id, evil[0].id);
}

//! What is put in comes out: byte for byte, field for field.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

use crate::{
    fingerprint::Fingerprint,
    record::{AuditEvent, Effects, Fence, Inquiry, Progress, Record, State},
    reply::{Reply, ReplyBody},
    scope::Scope,
    store::{Ask, Identity, IdentityCheck, Proof, Resolution, Write, Written},
    testing::{
        Harness,
        samples::{LEASE, ask, id, reply, retry},
    },
};

async fn round_trip(on: &Harness, key: &str, reply: Reply) {
    let ask = ask(key);
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::Complete(reply.clone())).await, Written::Applied);
    let loaded = on.record(&ask.id).await.reply.expect("a reply");
    assert!(loaded == reply, "load returns the reply that was stored");
    let replayed = on.occupied(&retry(&ask)).await.reply.expect("a reply");
    assert!(replayed == reply, "reserve returns the reply that was stored");
    let again = on.write(&lease, Write::Complete(self::reply("other"))).await;
    assert!(again == Written::AlreadyMine(Some(reply)), "write returns the reply that was stored");
}

/// Bytes that look random to any compressor, without a random generator.
fn incompressible(len: usize) -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// Every byte that a key may hold.
pub async fn keys_with_every_allowed_byte_round_trip(on: Harness) {
    for byte in 0x20..=0x7e_u8 {
        let ask = ask(&format!("{}{}", char::from(byte), char::from(byte)));
        on.occupy(&ask).await;
        assert_eq!(on.record(&ask.id).await.id, ask.id, "{byte:#x}");
    }
    let all: String = (0x20..=0x7e_u8).map(char::from).collect();
    let ask = ask(&all);
    on.occupy(&ask).await;
    assert_eq!(on.record(&ask.id).await.id.key.as_str(), all);
}

/// The longest key and the longest scope.
pub async fn the_longest_key_and_scope_round_trip(on: Harness) {
    let (scope, key) = ("s".repeat(Scope::LEN_MAX), "k".repeat(255));
    let longest = Ask { id: id(&scope, &key), ..ask("unused") };
    // Different in the last byte only.
    let (mut scope_2, mut key_2) = (scope.clone(), key.clone());
    scope_2.replace_range(254.., "t");
    key_2.replace_range(254.., "l");
    for other in [id(&scope, &key_2), id(&scope_2, &key)] {
        on.occupy(&Ask { id: other, ..retry(&longest) }).await;
    }
    on.occupy(&longest).await;
    assert_eq!(on.record(&longest.id).await.id, longest.id);
}

/// Scopes are text of any language, compared byte for byte.
pub async fn scopes_of_any_language_round_trip(on: Harness) {
    // The two spellings of one accented letter are two scopes: nobody normalises.
    for scope in ["\u{e9}", "e\u{301}", "\u{1f600}", "a'b\"c\\d%e_f", "\u{65e5}\u{672c}", "NULL"] {
        let ask = Ask { id: id(scope, "key"), ..ask("unused") };
        on.occupy(&ask).await;
        assert_eq!(on.record(&ask.id).await.id.scope.as_str(), scope);
    }
}

/// An empty body is a body.
pub async fn an_empty_reply_round_trips(on: Harness) {
    let empty = Reply {
        status: StatusCode::NO_CONTENT,
        headers: vec![],
        body: ReplyBody::Stored(Bytes::new()),
        schema_version: None,
    };
    round_trip(&on, "key", empty).await;
}

/// A mebibyte that no compressor makes smaller, or as much as the store keeps.
pub async fn a_reply_of_a_mebibyte_round_trips(on: Harness) {
    let len = (1 << 20).min(on.store.reply_cap());
    round_trip(&on, "key", reply(incompressible(len))).await;
}

/// Bodies that a compressor makes tiny, of sizes around its thresholds.
pub async fn highly_compressible_replies_round_trip(on: Harness) {
    for len in [1, 63, 64, 255, 256, 1_023, 1_024, 4_096, 65_537, 1 << 20] {
        let len = len.min(on.store.reply_cap());
        round_trip(&on, &format!("key-{len}"), reply(vec![b'a'; len])).await;
    }
}

/// Every byte, and what looks like the beginning of a compressed body, a text or a NULL.
pub async fn binary_replies_round_trip(on: Harness) {
    let all: Vec<u8> = (0..=255).collect();
    let zstd_magic = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00];
    let gzip_magic = vec![0x1f, 0x8b, 0x08];
    for (number, body) in
        [all, zstd_magic, gzip_magic, vec![0], b"NULL".to_vec(), vec![0xff]].into_iter().enumerate()
    {
        round_trip(&on, &format!("key-{number}"), reply(body)).await;
    }
}

/// Headers come back in their order, repeated ones too, not grouped by name.
pub async fn header_order_and_repeated_headers_survive(on: Harness) {
    let header = |name: &'static str, value: &'static str| {
        (HeaderName::from_static(name), HeaderValue::from_static(value))
    };
    let headers = vec![
        header("x-b", "1"),
        header("link", "<b>"),
        header("x-a", ""),
        header("link", "<a>"),
        header("x-b", "1"),
        header("link", "<b>"),
    ];
    round_trip(&on, "key", Reply { headers, ..reply("done") }).await;
}

/// Header values are bytes, not text.
pub async fn header_values_that_are_not_ascii_survive(on: Harness) {
    let all: Vec<u8> = (0x20..=0xff).filter(|byte| *byte != 0x7f).collect();
    let value = |bytes: &[u8]| HeaderValue::from_bytes(bytes).expect("a header value");
    let name = HeaderName::from_static("x-bytes");
    let headers = vec![
        (name.clone(), value(&all)),
        (name.clone(), value(b"\xff\xfe")),
        (name.clone(), value("\u{e9}".as_bytes())),
        (name, value(b"a, b; \"c\" \t d")),
    ];
    round_trip(&on, "key", Reply { headers, ..reply("done") }).await;
}

/// Many and long headers.
pub async fn many_and_long_headers_survive(on: Harness) {
    let headers = (0..100)
        .map(|number| {
            let name = format!("x-header-{number}").parse().expect("a header name");
            (name, HeaderValue::from_str(&"v".repeat(number * 10)).expect("a header value"))
        })
        .collect();
    round_trip(&on, "key", Reply { headers, ..reply("done") }).await;
}

/// Every status that HTTP can carry.
pub async fn every_kind_of_status_survives(on: Harness) {
    for status in [200, 201, 204, 302, 400, 402, 404, 409, 422, 500, 503, 599, 999] {
        let status = StatusCode::from_u16(status).expect("a status");
        round_trip(&on, &format!("key-{status}"), Reply { status, ..reply("done") }).await;
    }
}

/// That a body was not kept is not the same as an empty body.
pub async fn a_reply_whose_body_was_not_stored_survives(on: Harness) {
    round_trip(&on, "key", Reply { body: ReplyBody::NotStored, ..reply("") }).await;
    round_trip(&on, "empty", reply("")).await;
}

/// The schema version, none, and an empty one.
pub async fn the_schema_version_survives(on: Harness) {
    for (number, version) in
        [None, Some(""), Some("2026-05-01"), Some("v\u{e9}")].iter().enumerate()
    {
        let schema_version = version.map(Into::into);
        let reply = Reply { schema_version, ..reply("done") };
        round_trip(&on, &format!("key-{number}"), reply).await;
    }
}

/// Every field of a record, in every state, each with a value of its own.
pub async fn every_field_of_a_record_survives(on: Harness) {
    let second = Duration::from_secs(1);
    let unusual = Ask {
        id: id("a scope", "a key"),
        fingerprint: Fingerprint::from_stored(7, std::array::from_fn(|at| at as u8)),
        lease: second * 11 + Duration::from_micros(1),
        max_execution: second * 12 + Duration::from_micros(2),
        retention: second * 13 + Duration::from_micros(3),
        tombstone: second * 14 + Duration::from_micros(4),
        effects: Effects::Undeclared,
        route: "a route/\u{e9}".into(),
        method: "PATCH".into(),
        path: "/a/path%20'\"".into(),
        ..ask("unused")
    };
    on.clock.advance(Duration::from_micros(5));
    let created = on.now();
    let lease = on.grant(&unusual).await;
    let expected = Record {
        id: unusual.id.clone(),
        fingerprint: unusual.fingerprint,
        generation: 1,
        state: State::InProgress,
        attempt: unusual.attempt,
        fence: lease.fence,
        attempts: 1,
        effects: Effects::Undeclared,
        route: unusual.route.clone(),
        method: unusual.method.clone(),
        path: unusual.path.clone(),
        created_at: created,
        started_at: created,
        lease_until: created.plus(unusual.lease),
        max_execution: unusual.max_execution,
        finished_at: None,
        expires_at: created.plus(unusual.retention),
        retention: unusual.retention,
        tombstone: unusual.tombstone,
        reply: None,
        last_error: None,
        reconcile_after: None,
        inquiry: Inquiry::default(),
        void: false,
        progress: Progress::default(),
        queued_until: None,
    };
    assert_eq!(on.record(&unusual.id).await, expected);

    on.clock.advance(second);
    let unknown = Write::MarkUnknown("an 'error' \u{e9}".into());
    assert_eq!(on.write(&lease, unknown).await, Written::Applied);
    let expected = Record {
        state: State::Unknown,
        last_error: Some("an 'error' \u{e9}".into()),
        reconcile_after: Some(on.now()),
        ..expected
    };
    assert_eq!(on.record(&unusual.id).await, expected);

    on.clock.advance(second);
    on.resolved(&unusual.id, Resolution::Complete(reply("found"))).await;
    let expected = Record {
        state: State::Completed,
        reply: Some(reply("found")),
        last_error: None,
        reconcile_after: None,
        finished_at: Some(on.now()),
        expires_at: on.now().plus(unusual.retention),
        fence: Fence::next(Some(expected.fence), on.now()),
        ..expected
    };
    assert_eq!(on.record(&unusual.id).await, expected);

    on.resolved(&unusual.id, Resolution::Void).await;
    let expected = Record {
        state: State::Expired,
        reply: Some(reply("found").status_only()),
        expires_at: on.now(),
        void: true,
        ..expected
    };
    assert_eq!(on.record(&unusual.id).await, expected);
}

/// Audit records keep their order, their words and their replies.
pub async fn audit_records_survive_in_order_and_with_their_reply(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    on.clock.advance(LEASE);
    assert_eq!(on.sweep(10).await.len(), 1);
    // All at one time: the order is that of the calls, not of the clock.
    on.resolved(&ask.id, Resolution::Release(Proof::Authoritative)).await;
    let second = on.grant(&retry(&ask)).await;
    let evidence = Reply { body: ReplyBody::Stored(incompressible(5_000)), ..reply("") };
    let late = on.write(&lease, Write::Complete(evidence.clone())).await;
    assert!(matches!(late, Written::Superseded(_)), "{late:?}");
    assert_eq!(on.write(&second, Write::Complete(reply("second"))).await, Written::Applied);
    on.resolved(&ask.id, Resolution::Void).await;
    let audit = on.audit(&ask.id).await;
    let events: Vec<_> = audit.iter().map(|audit| audit.event).collect();
    let expected = [
        AuditEvent::LeaseExpired,
        AuditEvent::Released,
        AuditEvent::SupersededResult,
        AuditEvent::Voided,
    ];
    assert_eq!(events, expected);
    assert_eq!(audit[2].reply, Some(evidence));
    assert_eq!((&*audit[1].reason, audit[1].at), ("ticket 7", on.now()));
    assert_eq!((audit[2].attempt, audit[3].attempt), (lease.attempt, second.attempt));
    assert_eq!(on.audit(&id("tenant", "other")).await, [], "others have their own");
}

/// Loading changes nothing, however often and in whatever state.
pub async fn loading_changes_nothing(on: Harness) {
    let ask = Ask { effects: Effects::None, ..ask("key") };
    let lease = on.grant(&ask).await;
    on.clock.advance(LEASE);
    for _ in 0..3 {
        assert_eq!(on.record(&ask.id).await.state, State::InProgress);
    }
    assert_eq!(on.write(&lease, Write::Renew(LEASE)).await, Written::Applied);
}

/// The identity settings of the first use are those of the store.
pub async fn the_first_identity_is_remembered_and_another_is_noticed(on: Harness) {
    let (first, other) =
        (Identity::new("authorization", "lenient", []), Identity::new("header", "lenient", []));
    let check = async |identity| on.store.check_identity(identity).await.expect("an answer");
    assert_eq!(check(&first).await, IdentityCheck::Same);
    assert_eq!(check(&other).await, IdentityCheck::Different);
    assert_eq!(check(&other).await, IdentityCheck::Different, "asking is not accepting");
    assert_eq!(check(&first).await, IdentityCheck::Same);
}

/// An operator may change it, and then the old one is the other one.
pub async fn an_accepted_identity_replaces_the_first(on: Harness) {
    let (first, other) =
        (Identity::new("authorization", "lenient", []), Identity::new("header", "lenient", []));
    let check = async |identity| on.store.check_identity(identity).await.expect("an answer");
    assert_eq!(check(&first).await, IdentityCheck::Same);
    for _ in 0..2 {
        on.store.accept_identity(&other).await.expect("accepted");
        assert_eq!(check(&other).await, IdentityCheck::Same);
        assert_eq!(check(&first).await, IdentityCheck::Different);
    }
}

/// A store that was never used takes an accepted identity as its first.
pub async fn an_identity_can_be_accepted_first(on: Harness) {
    let (first, other) = (Identity::new("a", "b", [[1; 8]]), Identity::new("a", "b", []));
    on.store.accept_identity(&first).await.expect("accepted");
    let check = async |identity| on.store.check_identity(identity).await.expect("an answer");
    assert_eq!(check(&other).await, IdentityCheck::Different);
    assert_eq!(check(&first).await, IdentityCheck::Same);
}

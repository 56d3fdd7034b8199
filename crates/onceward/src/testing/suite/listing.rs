//! What operators ask for: lists, counts, and what was remembered.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    clock::Timestamp,
    record::{AuditEvent, Effects, RecordId, State},
    reply::ReplyBody,
    store::{
        Ask, Mode, Proof, Reservation, Resolution, Write, Written,
        list::{AuditQuery, KeyFilter, Order, Query, Sort, Span},
    },
    testing::{
        Harness,
        samples::{LEASE, RETENTION, TOMBSTONE, ask, id, intend, phased, reply, retry, save},
    },
};

const MINUTE: Duration = Duration::from_secs(60);

async fn write(on: &Harness, ask: &Ask, write: Write) {
    let lease = on.grant(ask).await;
    assert_eq!(on.write(&lease, write).await, Written::Applied);
}

/// One record in each state, a minute apart, and two in another scope and on another route.
async fn populate(on: &Harness) {
    let accepted = Ask { mode: Mode::Accept, ..ask("a-pending") };
    assert!(matches!(on.reserve(&accepted).await, Reservation::Accepted { .. }));
    on.clock.advance(MINUTE);
    let long = Ask { lease: RETENTION, ..ask("a-in_progress") };
    on.occupy(&long).await;
    on.clock.advance(MINUTE);
    write(on, &ask("a-unknown"), Write::MarkUnknown("reset".into())).await;
    on.clock.advance(MINUTE);
    write(on, &ask("b-completed"), Write::Complete(reply("done"))).await;
    on.clock.advance(MINUTE);
    write(on, &ask("b-retryable"), Write::Release("not_sent".into())).await;
    on.clock.advance(MINUTE);
    write(on, &ask("b-void"), Write::Complete(reply("wrong"))).await;
    on.resolved(&ask("b-void").id, Resolution::Void).await;
    on.clock.advance(MINUTE);
    let elsewhere = Ask { id: id("tenant 2", "a-unknown"), ..ask("a-unknown") };
    write(on, &elsewhere, Write::Complete(reply("done"))).await;
    let harmless =
        Ask { id: id("tenant 2", "c"), effects: Effects::None, route: "search".into(), ..ask("c") };
    write(on, &harmless, Write::Complete(reply("done"))).await;
}

async fn keys(on: &Harness, query: Query) -> Vec<String> {
    let page = on.list(Query { limit: 100, ..query }).await;
    assert_eq!(page.next, None);
    page.records.iter().map(|record| record.id.key.as_str().to_owned()).collect()
}

/// Without conditions all records come, the latest first, and none of them with what was replied.
pub async fn a_list_has_every_record_and_no_reply_but_its_status(on: Harness) {
    assert_eq!(keys(&on, Query::default()).await, [""; 0]);
    populate(&on).await;
    let listed = keys(&on, Query::default()).await;
    let expected = [
        "c",
        "a-unknown",
        "b-void",
        "b-retryable",
        "b-completed",
        "a-unknown",
        "a-in_progress",
        "a-pending",
    ];
    assert_eq!(listed, expected);
    let page = on.list(Query { limit: 100, ..Query::default() }).await;
    let replies: Vec<_> = page.records.iter().filter_map(|it| it.reply.as_ref()).collect();
    assert_eq!(replies.len(), 4);
    for reply in replies {
        assert_eq!((&reply.body, reply.headers.len()), (&ReplyBody::NotStored, 0));
        assert_eq!(reply.status, 201);
    }
}

/// Each condition leaves those that it is about.
pub async fn each_condition_of_a_list_leaves_what_it_is_about(on: Harness) {
    populate(&on).await;
    let all = Query::default;
    let prefix = |text: &str| Some(KeyFilter::Prefix(text.into()));
    let start = on.list(Query { order: Order::Ascending, limit: 1, ..all() }).await;
    let start = start.records.first().expect("a record").created_at;
    let minute = |number: u32| Some(start.plus(MINUTE * number));
    let conditions: [(Query, &[&str]); 13] = [
        (Query { scope: Some(id("tenant 2", "x").scope), ..all() }, &["c", "a-unknown"]),
        (Query { scope: Some(id("nobody", "x").scope), ..all() }, &[]),
        (
            Query { key: Some(KeyFilter::Exact(id("x", "a-unknown").key)), ..all() },
            &["a-unknown"; 2],
        ),
        (Query { key: prefix("b-"), ..all() }, &["b-void", "b-retryable", "b-completed"]),
        (Query { key: prefix("a-p"), ..all() }, &["a-pending"]),
        (Query { key: prefix("A-p"), ..all() }, &[]),
        (Query { key: prefix("%"), ..all() }, &[]),
        (Query { route: Some("search".into()), ..all() }, &["c"]),
        (Query { effects: Some(Effects::None), ..all() }, &["c"]),
        (
            Query { created: Span { from: minute(1), before: minute(3) }, ..all() },
            &["a-unknown", "a-in_progress"],
        ),
        (
            Query { finished: Span { from: minute(4), before: minute(5) }, ..all() },
            &["b-retryable"],
        ),
        (Query { older_than: Some(MINUTE * 5), ..all() }, &["a-in_progress", "a-pending"]),
        (
            Query { key: prefix("a-"), scope: Some(id("tenant", "x").scope), ..all() },
            &["a-unknown", "a-in_progress", "a-pending"],
        ),
    ];
    for (query, expected) in conditions {
        assert_eq!(keys(&on, query.clone()).await, expected, "{query:?}");
    }
    let far = Query { older_than: Some(Duration::from_secs(u64::MAX)), ..all() };
    assert_eq!(keys(&on, far).await, [""; 0]);
}

/// A list knows a record by the state in which it would be loaded, swept, reaped or not.
pub async fn a_list_tells_states_as_they_would_be_loaded(on: Harness) {
    populate(&on).await;
    let states = |states: &[State]| Query { states: states.to_vec(), ..Query::default() };
    let tenant = |query| Query { scope: Some(id("tenant", "x").scope), ..query };
    for (state, expected) in [
        (State::Pending, "a-pending"),
        (State::InProgress, "a-in_progress"),
        (State::Unknown, "a-unknown"),
        (State::Completed, "b-completed"),
        (State::FailedRetryable, "b-retryable"),
        (State::Expired, "b-void"),
    ] {
        assert_eq!(keys(&on, tenant(states(&[state]))).await, [expected]);
    }
    let open = tenant(states(&[State::Unknown, State::Pending]));
    assert_eq!(keys(&on, open).await, ["a-unknown", "a-pending"]);
    on.clock.advance(RETENTION);
    let expired = tenant(states(&[State::Expired]));
    assert_eq!(keys(&on, expired.clone()).await, ["b-void", "b-retryable", "b-completed"]);
    assert_eq!(keys(&on, states(&[State::Completed])).await, [""; 0]);
    on.reap(100).await;
    assert_eq!(keys(&on, expired.clone()).await, ["b-void", "b-retryable", "b-completed"]);
    on.clock.advance(TOMBSTONE);
    assert_eq!(keys(&on, expired).await, [""; 0]);
    let left = ["a-unknown", "a-in_progress", "a-pending"];
    assert_eq!(keys(&on, Query::default()).await, left, "what is open stays");
}

/// All pages together are the list, in either order, by either time, also where times are equal.
pub async fn pages_of_a_list_hold_each_record_once(on: Harness) {
    for number in 0..12_u32 {
        let route = if number % 2 == 0 { "even" } else { "odd" };
        let scope = if number % 3 == 0 { "x" } else { "y" };
        let one = Ask {
            id: id(scope, &format!("key-{number:02}")),
            retention: RETENTION * (1 + (number * 5) % 7),
            route: route.into(),
            ..ask("key")
        };
        write(&on, &one, Write::Complete(reply("done"))).await;
        // Four at a time.
        if number % 4 == 3 {
            on.clock.advance(MINUTE);
        }
    }
    for (sort, order) in [
        (Sort::CreatedAt, Order::Ascending),
        (Sort::CreatedAt, Order::Descending),
        (Sort::ExpiresAt, Order::Ascending),
        (Sort::ExpiresAt, Order::Descending),
    ] {
        let whole = Query { sort, order, limit: 100, ..Query::default() };
        let all = on.list(whole.clone()).await.records;
        let time = |record: &crate::record::Record| match sort {
            Sort::CreatedAt => record.created_at,
            Sort::ExpiresAt => record.expires_at,
        };
        let times: Vec<Timestamp> = all.iter().map(time).collect();
        match order {
            Order::Ascending => assert!(times.is_sorted(), "{times:?}"),
            Order::Descending => assert!(times.iter().rev().is_sorted(), "{times:?}"),
        }
        for limit in [1, 5, 12] {
            let mut query = Query { limit, ..whole.clone() };
            let mut paged = Vec::new();
            loop {
                let page = on.list(query.clone()).await;
                assert!(page.records.len() <= limit as usize);
                paged.extend(page.records);
                let Some(next) = page.next else { break };
                // As it comes back from a client.
                query.after = Some(next.to_string().parse().expect("a cursor"));
            }
            assert_eq!(paged, all, "{sort:?} {order:?} by {limit}");
        }
    }
}

/// What comes and goes between two pages neither repeats nor hides what stays.
pub async fn a_list_that_changes_between_pages_shows_what_stays_once(on: Harness) {
    let mut expected = BTreeSet::new();
    for number in 0..6 {
        let one = ask(&format!("key-{number}"));
        write(&on, &one, Write::Complete(reply("done"))).await;
        expected.insert(one.id);
        on.clock.advance(MINUTE);
    }
    let query = Query { limit: 2, ..Query::default() };
    let first = on.list(query.clone()).await;
    // One comes before the cursor; the last one of the page goes to another state.
    on.occupy(&ask("new")).await;
    on.resolved(&ask("key-4").id, Resolution::Void).await;
    let mut seen: Vec<RecordId> = first.records.into_iter().map(|record| record.id).collect();
    let mut after = first.next;
    while after.is_some() {
        let page = on.list(Query { after, ..query.clone() }).await;
        seen.extend(page.records.into_iter().map(|record| record.id));
        after = page.next;
    }
    assert_eq!(seen.len(), expected.len());
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), expected);
}

/// A page is never larger than is allowed, nor empty because nothing was asked for.
pub async fn the_size_of_a_page_is_bounded(on: Harness) {
    for number in 0..3 {
        on.occupy(&ask(&format!("key-{number}"))).await;
    }
    let sized = |limit| Query { limit, ..Query::default() };
    assert_eq!(on.list(sized(0)).await.records.len(), 1);
    assert_eq!(on.list(sized(u32::MAX)).await.records.len(), 3);
}

/// Every field of a record is in the list, also of a phased one that waits.
pub async fn a_list_tells_all_of_a_record(on: Harness) {
    let ask = phased("key");
    let lease = on.grant(&ask).await;
    on.stepped(&lease, save("book", "1")).await;
    on.stepped(&lease, intend("charge", false)).await;
    assert_eq!(on.write(&lease, Write::Release("gone".into())).await, Written::Applied);
    let page = on.list(Query { limit: 1, ..Query::default() }).await;
    assert_eq!(page.records, [on.record(&ask.id).await]);
    assert!(!page.records.iter().any(|record| record.progress.is_none()));
}

/// Counts are those of the records as they would be loaded, and what is open has an age.
pub async fn counts_agree_with_the_records(on: Harness) {
    let none = on.stats().await;
    assert_eq!((none.oldest_unknown, none.oldest_in_progress), (None, None));
    populate(&on).await;
    let stats = on.stats().await;
    let counts = State::ALL.map(|state| stats.of(state).records);
    assert_eq!(counts, [1, 1, 3, 1, 1, 1]);
    assert!(!State::ALL.iter().any(|state| stats.of(*state).estimated), "few are counted");
    let unknown = on.record(&ask("a-unknown").id).await;
    assert_eq!(stats.oldest_unknown, Some(unknown.created_at));
    on.clock.advance(RETENTION);
    let stats = on.stats().await;
    assert_eq!(State::ALL.map(|state| stats.of(state).records), [1, 1, 0, 0, 1, 5]);
    on.clock.advance(TOMBSTONE);
    let stats = on.stats().await;
    assert_eq!(State::ALL.map(|state| stats.of(state).records), [1, 1, 0, 0, 1, 0]);
}

/// What was decided about any record can be read, the latest first, in pages.
pub async fn the_audit_log_tells_of_all_records_in_pages(on: Harness) {
    for number in 0..4 {
        let one = ask(&format!("key-{number}"));
        write(&on, &one, Write::MarkUnknown("reset".into())).await;
        on.resolved(&one.id, Resolution::Complete(reply("found"))).await;
        // Two at the same time.
        if number % 2 == 1 {
            on.clock.advance(LEASE);
        }
        on.resolved(&one.id, Resolution::Void).await;
    }
    let elsewhere = Ask { id: id("tenant 2", "key"), ..retry(&ask("key")) };
    write(&on, &elsewhere, Write::MarkUnknown("reset".into())).await;
    on.resolved(&elsewhere.id, Resolution::Release(Proof::Authoritative)).await;
    let all = on.audit_log(AuditQuery { limit: 100, ..AuditQuery::default() }).await;
    assert_eq!((all.records.len(), &all.next), (9, &None));
    assert!(all.records.iter().rev().map(|audit| audit.at).is_sorted());
    let evidence = all.records.iter().filter_map(|audit| audit.reply.as_ref());
    assert!(evidence.clone().count() == 4 && evidence.clone().all(|it| it.headers.is_empty()));
    for limit in [1, 2, 9] {
        let mut query = AuditQuery { limit, ..AuditQuery::default() };
        let mut paged = Vec::new();
        loop {
            let page = on.audit_log(query.clone()).await;
            paged.extend(page.records);
            let Some(next) = page.next else { break };
            query.after = Some(next.to_string().parse().expect("a cursor"));
        }
        assert_eq!(paged, all.records, "by {limit}");
    }
    let count = async |query: AuditQuery| {
        on.audit_log(AuditQuery { limit: 100, ..query }).await.records.len()
    };
    let event = Some(AuditEvent::Voided);
    assert_eq!(count(AuditQuery { event, ..AuditQuery::default() }).await, 4);
    let scope = Some(elsewhere.id.scope.clone());
    assert_eq!(count(AuditQuery { scope, ..AuditQuery::default() }).await, 1);
    let at = Span { from: Some(on.now()), before: None };
    assert_eq!(count(AuditQuery { at, ..AuditQuery::default() }).await, 2);
}

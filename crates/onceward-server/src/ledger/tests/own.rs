use std::{future::Future, time::Duration};

use http::StatusCode;
use onceward::{
    Effects, Key, Message, OutboxStore, Reply, Scope, SqliteOptions, SqliteStore, Store as _,
    fingerprint::Fingerprint,
    operation::derived_key,
    outbox::{Settlement, Staged},
    record::{AttemptId, Lease, RecordId},
    store::{Ask, Mode, Noted, Reservation, Write, Written, list::Query},
};

use super::super::{Claim, Entry, Pointers, Reading};

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test);
}

async fn begin(store: &SqliteStore, key: &str, route: &str) -> Lease {
    let second = Duration::from_secs(1);
    let ask = Ask {
        id: RecordId {
            scope: Scope::new("acme").expect("valid"),
            key: Key::new(key).expect("valid"),
        },
        fingerprint: Fingerprint::from_stored(1, [1; 32]),
        attempt: AttemptId::random(),
        mode: Mode::Execute,
        lease: second * 60,
        max_execution: second * 60,
        retention: second * 3600,
        tombstone: second * 3600,
        expired_runs_again: false,
        effects: Effects::External,
        route: route.into(),
        method: "POST".into(),
        path: "/charges".into(),
        request: None,
        queued_for: Duration::ZERO,
    };
    match store.reserve(ask).await.expect("answered") {
        Reservation::Granted { lease, .. } => lease,
        other => panic!("{other:?}"),
    }
}

async fn complete(store: &SqliteStore, key: &str, status: u16, body: &str) {
    let lease = begin(store, key, "charges").await;
    let reply = Reply::new(StatusCode::from_u16(status).expect("a status"), body.to_owned());
    let written = store.write(&lease, Write::Complete(reply)).await.expect("answered");
    assert_eq!(written, Written::Applied);
}

async fn read(store: &SqliteStore, reading: &Reading) -> Vec<Entry> {
    let mut entries = Vec::new();
    let read = reading.read(store, Some(store), |entry, _| {
        entries.push(entry);
        Ok(())
    });
    read.await.expect("read");
    entries
}

fn pointers(id: Option<&str>) -> Pointers {
    let pointer = |text: &str| text.parse().expect("a pointer");
    Pointers {
        id: id.map(pointer),
        amount: Some(pointer("/amount")),
        currency: Some(pointer("/in")),
    }
}

#[test]
fn operations_are_read_page_by_page_with_what_their_replies_tell() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(SqliteOptions::new(folder.path().join("x.db"))).await;
        let store = store.expect("opened");
        // More than a page.
        for number in 0..1005 {
            let body = format!("{{\"id\":\"c{number}\",\"amount\":{number},\"in\":\"EUR\"}}");
            complete(&store, &format!("order-{number:04}"), 201, &body).await;
        }
        complete(&store, "refused", 402, "{\"id\":\"never\"}").await;
        complete(&store, "text", 200, "charged").await;
        let unknown = begin(&store, "unknown", "charges").await;
        let written = store.write(&unknown, Write::MarkUnknown("gone".into())).await;
        assert_eq!(written.expect("answered"), Written::Applied);
        let _ = begin(&store, "elsewhere", "customers").await;
        let query = Query { route: Some("charges".into()), ..Query::default() };
        let reading =
            Reading { query, replies: pointers(Some("/id")), minor_units: 2, ..Reading::default() };
        let read_all = read(&store, &reading).await;
        assert_eq!(read_all.len(), 1008);
        let of = |key: &str| read_all.iter().find(|entry| entry.key == key).expect(key);
        let one = of("order-0105");
        assert_eq!(one.provider_id.as_deref(), Some("c105"));
        assert_eq!(one.amount, Some("1.05".parse().expect("an amount")));
        assert_eq!(
            (one.currency.as_deref(), one.sent_key.as_deref()),
            (Some("EUR"), Some("order-0105"))
        );
        assert_eq!(one.claim(), Claim::Charged);
        assert_eq!((of("refused").claim(), &of("refused").provider_id), (Claim::NotCharged, &None));
        assert_eq!((of("text").claim(), &of("text").provider_id), (Claim::Charged, &None));
        assert_eq!(of("unknown").claim(), Claim::Open);
        // A service that charges in an effect sends the key of that effect.
        let reading = Reading { effect: Some("charge".to_owned()), ..reading };
        let read_all = read(&store, &reading).await;
        let one = read_all.iter().find(|entry| entry.key == "unknown").expect("it is there");
        assert_eq!(one.sent_key, Some(derived_key(&unknown.id, 1, "charge")));
        store.close().await;
    });
}

#[test]
fn ids_that_were_noted_are_read_where_a_reply_tells_none() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(SqliteOptions::new(folder.path().join("x.db"))).await;
        let store = store.expect("opened");
        let noted = async |key: &str, ids: &[&str], body: Option<&str>| {
            let lease = begin(&store, key, "charges").await;
            for id in ids {
                let id = id.parse().expect("a provider id");
                let noted = store.note_provider_id(&lease, id).await.expect("answered");
                assert_eq!(noted, Noted::Applied);
            }
            let end = match body {
                Some(body) => Write::Complete(Reply::new(StatusCode::CREATED, body.to_owned())),
                None => Write::MarkUnknown("gone".into()),
            };
            assert_eq!(store.write(&lease, end).await.expect("answered"), Written::Applied);
        };
        noted("told", &["bank c1"], Some("{\"id\":\"r1\"}")).await;
        noted("silent", &["bank c2", "dhl 17", "bank c3"], Some("charged")).await;
        noted("unknown", &["bank c4"], None).await;
        noted("nameless", &[], None).await;
        let ids = async |provider: Option<&str>, id: Option<&str>| {
            let provider = provider.map(str::to_owned);
            let reading = Reading { replies: pointers(id), provider, ..Reading::default() };
            let mut ids: Vec<_> = read(&store, &reading)
                .await
                .into_iter()
                .map(|it| (it.key, it.provider_id.unwrap_or_default(), it.noted))
                .collect();
            ids.sort_unstable();
            ids
        };
        let all = |entries: &[(&str, &str, bool)]| {
            let own = |(key, id, noted): &(&str, &str, bool)| {
                ((*key).to_owned(), (*id).to_owned(), *noted)
            };
            entries.iter().map(own).collect::<Vec<_>>()
        };
        let (nameless, unknown) = (("nameless", "", false), ("unknown", "c4", true));
        let silent = [("silent", "c2", true), ("silent", "c3", true)];
        assert_eq!(
            ids(Some("bank"), None).await,
            all(&[nameless, silent[0], silent[1], ("told", "c1", true), unknown])
        );
        assert_eq!(
            ids(Some("bank"), Some("/id")).await,
            all(&[nameless, silent[0], silent[1], ("told", "r1", false), unknown])
        );
        assert_eq!(ids(Some("ups"), None).await.iter().filter(|it| it.2).count(), 0);
        assert!(ids(None, None).await.is_empty(), "nothing was asked for");
        store.close().await;
    });
}

#[test]
fn messages_of_chosen_sinks_are_read_with_the_provider_ids_of_their_deliveries() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(SqliteOptions::new(folder.path().join("x.db"))).await;
        let store = store.expect("opened");
        let lease = begin(&store, "order-1", "orders").await;
        for (name, sink) in [("charge", "bank"), ("later", "bank"), ("receipt", "mail")] {
            let payload = "{\"amount\":\"10.50\",\"in\":\"EUR\"}";
            let staged = store.stage(&lease, Message::new(name, sink, payload)).await;
            assert_eq!(staged.expect("answered"), Staged::Applied);
        }
        let attempt = AttemptId::random();
        let minute = Duration::from_secs(60);
        let claimed = OutboxStore::claim(&store, 1, &["bank"], minute, attempt).await;
        let claimed = claimed.expect("answered").remove(0);
        let done = Settlement::Done { provider_id: Some("p1".into()) };
        let settled = store.settle(claimed.message_id, attempt, claimed.fence, done).await;
        assert!(settled.expect("answered"));
        let reading = Reading {
            sinks: vec!["bank".to_owned()],
            payloads: pointers(None),
            ..Reading::default()
        };
        let mut read_all = read(&store, &reading).await;
        read_all.sort_by_key(|entry| entry.provider_id.is_none());
        assert_eq!(read_all.len(), 2, "neither the operation nor the mail");
        let told = |entry: &Entry| (entry.provider_id.clone(), entry.claim(), entry.key.clone());
        let key = "order-1".to_owned();
        assert_eq!(told(&read_all[0]), (Some("p1".to_owned()), Claim::Charged, key.clone()));
        assert_eq!(told(&read_all[1]), (None, Claim::Open, key));
        assert_eq!(read_all[0].sent_key.as_deref(), Some(&*claimed.derived_key));
        assert_eq!(read_all[0].amount, Some("10.5".parse().expect("an amount")));
        store.close().await;
    });
}

//! A reply that cannot be stored is not acknowledged, whoever sends it to the functions.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use onceward::{
    Store as _,
    record::{Lease, State},
    reply::ReplyBody,
    testing::samples::ask,
};

use crate::postgres_home::{Home, one, refusal, run};

/// By which a reply is stored with these headers: alone, in a batch, and by what the machine decided.
const WAYS: [fn(&Lease, &str) -> String; 3] = [alone, in_a_batch, decided];

fn alone(lease: &Lease, headers: &str) -> String {
    let Lease { id, attempt, fence, .. } = lease;
    let (scope, key, fence) = (id.scope.as_str(), id.key.as_str(), fence.number());
    format!(
        "SELECT complete_one(NULL, '{scope}', '{key}', '{attempt}', {fence}, 200::smallint, {headers}, \
         NULL, 'done', NULL)::text"
    )
}

fn in_a_batch(lease: &Lease, headers: &str) -> String {
    let Lease { id, attempt, fence, .. } = lease;
    let (scope, key, fence) = (id.scope.as_str(), id.key.as_str(), fence.number());
    format!(
        "SELECT complete_all(NULL, ARRAY['{scope}'], ARRAY['{key}'], ARRAY['{attempt}']::uuid[], \
         ARRAY[{fence}]::bigint[], ARRAY[200]::smallint[], ARRAY[{headers}]::bytea[], \
         ARRAY[NULL]::text[], ARRAY['done']::bytea[], false)::text"
    )
}

fn decided(lease: &Lease, headers: &str) -> String {
    let key = lease.id.key.as_str();
    format!(
        "SELECT change(r.scope, r.key, to_jsonb(r), to_jsonb(r) || jsonb_build_object('state', \
         'completed', 'reply_status', 200, 'finished_at', r.created_at), {headers}, 'done', NULL, \
         NULL, NULL, NULL)::text FROM records r WHERE r.key = '{key}'"
    )
}

#[tokio::test]
async fn a_reply_whose_headers_are_null_is_refused_and_its_record_stays_as_it_is() {
    const NOT_NULL_VIOLATION: &str = "23502";
    let home = Home::new().await;
    let mut connection = home.connection().await;
    for (number, way) in WAYS.into_iter().enumerate() {
        let lease = home.grant(&ask(&format!("null-headers-{number}"))).await;
        let refused = refusal(&mut connection, &way(&lease, "NULL")).await;
        assert_eq!(refused, NOT_NULL_VIOLATION, "way {number}");
        let record = home.store.load(&lease.id).await.expect("load answers").expect("a record");
        assert_eq!((record.state, record.reply), (State::InProgress, None), "way {number}");
    }
}

/// The twin.
#[tokio::test]
async fn a_reply_without_any_headers_is_stored() {
    let home = Home::new().await;
    let mut connection = home.connection().await;
    for (number, way) in WAYS.into_iter().enumerate() {
        let lease = home.grant(&ask(&format!("no-headers-{number}"))).await;
        let stored: Option<String> = one(&mut connection, &way(&lease, r"'\x01'")).await;
        assert!(stored.is_some(), "way {number}");
        let record = home.store.load(&lease.id).await.expect("load answers").expect("a record");
        assert_eq!(record.state, State::Completed, "way {number}");
        assert_eq!(record.reply.expect("a reply").headers.len(), 0, "way {number}");
    }
}

/// The contract says that there are none.
#[tokio::test]
async fn a_reply_of_the_contract_whose_headers_and_body_are_null_is_stored_with_none() {
    let home = Home::new().await;
    let mut connection = home.connection().await;
    let lease = home.grant(&ask("null-contract-0001")).await;
    let parts = [lease.id.scope.as_str(), lease.id.key.as_str()];
    let [scope, key] = parts.map(|part| URL_SAFE_NO_PAD.encode(part));
    let (attempt, fence) = (lease.attempt, lease.fence.number());
    let complete =
        format!("SELECT complete('v1.{scope}.{key}', '{attempt}', {fence}, 200, NULL, NULL)");
    run(&mut connection, &complete).await;
    let record = home.store.load(&lease.id).await.expect("load answers").expect("a record");
    assert_eq!(record.state, State::Completed);
    let reply = record.reply.expect("a reply");
    assert_eq!((reply.headers.len(), reply.body), (0, ReplyBody::Stored(Bytes::new())));
}

//! A table of DynamoDB, as `onceward doctor` and `onceward migrate` see it.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use onceward_testbed::DynamoDb;

use crate::{
    doctor_stores::{doctor, is_made_once, on},
    migrate::write_table_version,
    support::{Act, Seen, Upstream, binary, response, send},
};

#[test]
fn a_table_of_dynamodb_is_created_by_hand_and_examined_without_being_made() {
    let store = DynamoDb::shared().url("examined");
    let (code, told) = doctor(&store, "durable");
    assert_eq!((code, told["schema"].as_str()), (Some(0), "note"), "{told:?}");
    is_made_once(&store);
    let (code, told) = doctor(&store, "durable");
    assert_eq!(code, Some(0), "{told:?}");
    for name in ["table", "indexes", "clock skew", "schema"] {
        assert_eq!(told[name], "ok", "{name}");
    }
    assert_eq!(told["deletion protection"], "note");
}

/// What a service does beside what it is asked.
#[derive(Clone, Copy, Default)]
struct Moods {
    /// Denies calls that have all of these words.
    denied: &'static str,
    /// What it tells of backups, which the emulator does not know.
    recovery: &'static str,
    /// By how many seconds its date is ahead of this machine's.
    ahead: i64,
}

/// A service in front of the emulator.
fn service_that(moods: &Arc<Mutex<Moods>>) -> Upstream {
    const JSON: &str = "Content-Type: application/x-amz-json-1.0\r\n";
    let (real, moods) = (DynamoDb::shared().address(), Arc::clone(moods));
    Upstream::start(move |_, seen: &Seen| {
        let target = seen.header("x-amz-target").expect("a target").to_owned();
        let body = String::from_utf8_lossy(&seen.body).into_owned();
        let Moods { denied, recovery, ahead } = *moods.lock().expect("lock");
        let call = format!("{target} {body}");
        if !denied.is_empty() && denied.split(' ').all(|part| call.contains(part)) {
            let said = r#"{"__type":"com.amazon.coral.service#AccessDeniedException"}"#;
            return Act::Send(response(400, JSON, said));
        }
        if target.ends_with("DescribeContinuousBackups") && !recovery.is_empty() {
            let said = format!(
                r#"{{"ContinuousBackupsDescription":{{"ContinuousBackupsStatus":"ENABLED","PointInTimeRecoveryDescription":{{"PointInTimeRecoveryStatus":"{recovery}"}}}}}}"#
            );
            return Act::Send(response(200, JSON, &said));
        }
        let of_ours = |(name, _): &&(String, String)| name != "content-length";
        let line = |(name, value): &(String, String)| format!("{name}: {value}\r\n");
        let headers: String = seen.headers.iter().filter(of_ours).map(line).collect();
        let length = body.len();
        let request = format!("{}\r\n{headers}Content-Length: {length}\r\n\r\n{body}", seen.line);
        let answer = send(real, &request).expect("an answer");
        let ours = ["content-length", "transfer-encoding", "connection", "date"];
        let kept = answer.headers.iter().filter(|(name, _)| !ours.contains(&name.as_str()));
        let headers: String = kept.map(line).collect();
        let headers = format!("{headers}Date: {}\r\n", date(ahead));
        Act::Send(response(answer.status, &headers, answer.text()))
    })
}

fn date(ahead: i64) -> String {
    let (now, by) = (SystemTime::now(), Duration::from_secs(ahead.unsigned_abs()));
    httpdate::fmt_http_date(if ahead < 0 { now - by } else { now + by })
}

/// A table of the emulator through that service.
fn through(service: &Upstream, table: &str) -> String {
    format!("dynamodb://{table}?endpoint=http://{}&region=local", service.address)
}

#[test]
fn a_role_of_dynamodb_that_is_denied_a_call_and_a_table_without_recovery_are_noticed() {
    let moods = Arc::default();
    let service = service_that(&moods);
    let store = through(&service, "rights");
    is_made_once(&store);
    let safe = (Some(0), "ok".to_owned());
    for denied in [
        "BatchGetItem",
        ".PutItem",
        "UpdateItem",
        ".DeleteItem",
        "TransactWriteItems ConditionCheck",
        "Query \"permissions\"",
        "Query by_due",
        "Query by_listed",
    ] {
        *moods.lock().expect("lock") = Moods::default();
        assert_eq!(on(&store, "permissions"), safe, "{denied}");
        *moods.lock().expect("lock") = Moods { denied, ..Moods::default() };
        assert_eq!(on(&store, "permissions"), (Some(2), "unsafe".into()), "{denied}");
    }
    for (recovery, verdict) in [("ENABLED", "ok"), ("DISABLED", "note"), ("", "note")] {
        *moods.lock().expect("lock") = Moods { recovery, ..Moods::default() };
        assert_eq!(on(&store, "point-in-time recovery"), (Some(0), verdict.into()));
    }
}

#[test]
fn a_clock_that_is_far_from_that_of_dynamodb_is_unsafe() {
    let moods = Arc::default();
    let service = service_that(&moods);
    let store = through(&service, "clocks");
    is_made_once(&store);
    for (ahead, expected) in
        [(0, (Some(0), "ok")), (60, (Some(2), "unsafe")), (-60, (Some(2), "unsafe"))]
    {
        *moods.lock().expect("lock") = Moods { ahead, ..Moods::default() };
        let (code, verdict) = on(&store, "clock skew");
        assert_eq!((code, &*verdict), expected, "{ahead} s");
    }
}

#[test]
fn a_table_of_dynamodb_whose_items_do_not_let_this_version_in_is_unsafe() {
    let store = DynamoDb::shared().url("versions");
    is_made_once(&store);
    for (version, since, code, verdict) in [
        (1, None, 0, "ok"),
        (2, Some(1), 0, "note"),
        (2, Some(2), 2, "unsafe"),
        (2, None, 2, "unsafe"),
        (1, Some(1), 0, "ok"),
    ] {
        write_table_version("versions", version, since);
        let told = on(&store, "schema");
        assert_eq!(told, (Some(code), verdict.into()), "{version} since {since:?}");
    }
}

#[test]
fn a_table_of_dynamodb_without_an_index_is_unsafe_and_the_index_is_named() {
    const KEYS: &str = r#""KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"}], "BillingMode": "PAY_PER_REQUEST""#;
    const BY_DUE: &str = r#", "GlobalSecondaryIndexes": [{"IndexName": "by_due",
        "Projection": {"ProjectionType": "KEYS_ONLY"},
        "KeySchema": [{"AttributeName": "due", "KeyType": "HASH"},
        {"AttributeName": "due_at", "KeyType": "RANGE"}]}]"#;
    let attributes = |names: &[(&str, &str)]| {
        let one = |(name, kind): &(&str, &str)| {
            format!(r#"{{"AttributeName": "{name}", "AttributeType": "{kind}"}}"#)
        };
        names.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let names = [("pk", "S"), ("sk", "S"), ("due", "S"), ("due_at", "N")];
    for (table, count, indexes, missing) in [
        ("no-index", 2, "", "missing or not active: by_due, by_listed"),
        ("one-index", 4, BY_DUE, "missing or not active: by_listed"),
    ] {
        let definitions = attributes(&names[..count]);
        let create = format!(
            r#"{{"TableName": "{table}", "AttributeDefinitions": [{definitions}], {KEYS}{indexes}}}"#
        );
        let said = DynamoDb::shared().call("CreateTable", &create);
        assert!(said.starts_with("HTTP/1.1 200"), "{said}");
        let store = DynamoDb::shared().url(table);
        assert_eq!(on(&store, "indexes"), (Some(2), "unsafe".into()), "{table}");
        let told = binary().args(["doctor", "--store", &store]).output().expect("it runs");
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(told.contains(missing), "{told}");
    }
}

//! Provider ids through the layer: told by handlers, found by whoever has the provider's word.

use std::{convert::Infallible, io, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use onceward::{
    Effects, Policy, ProviderId, Store as _,
    operation::NoteError,
    record::{AuditEvent, ProviderNote, State},
    testing::{Fault, StoreCall},
};
use tokio::{sync::mpsc, time::Instant};

use crate::service::{FOR_EVER, Faults, Run, Service, says};

const KEY: &str = "order-0000000000000001";
const OTHER: &str = "order-0000000000000002";

fn named(text: &str) -> ProviderId {
    text.parse().expect("a provider id")
}

async fn whose(service: &Service, text: &str) -> Option<ProviderNote> {
    service.memory.by_provider_id(&named(text)).await.expect("memory answers")
}

fn external() -> Policy {
    Policy::required().effects(Effects::External).expect("allowed")
}

/// A handler that is at work with its provider's id noted, and never ends by itself.
#[tokio::test(start_paused = true)]
async fn a_provider_id_that_a_handler_notes_is_found_before_the_handler_ends() {
    let (noted, mut is_noted) = mpsc::unbounded_channel();
    let service = Service::new(external(), move |run: Run| {
        let noted = noted.clone();
        async move {
            let operation = run.operation();
            operation.note_provider_id(named("bank ch_1")).await.expect("noted");
            operation.note_provider_id(named("bank ch_1")).await.expect("noted before");
            noted.send(()).expect("somebody waits");
            std::future::pending::<Infallible>().await;
        }
    });
    let client = service.spawn_charge(KEY);
    is_noted.recv().await.expect("noted");
    let note = whose(&service, "bank ch_1").await.expect("found");
    let record = service.record(KEY).await.expect("a record");
    assert_eq!(
        (record.state, note.record, note.attempt),
        (State::InProgress, record.id, record.attempt)
    );
    assert_eq!(whose(&service, "ch_1").await, None, "of another provider");
    // The attempt comes to no end that anybody knows, and is still found.
    assert_eq!(client.await.expect("an answer").says(), says(504, "outcome_unknown"));
    assert_eq!(service.record(KEY).await.expect("a record").state, State::Unknown);
    assert!(whose(&service, "bank ch_1").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn provider_ids_in_the_head_of_an_answer_are_noted_and_nobody_else_sees_them() {
    let service = Service::new(external(), |_| async {
        let ids = [("onceward-provider-id", "ch_1"), ("onceward-provider-id", "dhl 17")];
        let mut answer = http::Response::builder().status(201);
        for (name, id) in ids.into_iter().chain([("onceward-provider-id", "no id at all")]) {
            answer = answer.header(name, id);
        }
        answer.body(Body::from("charged")).expect("a response")
    });
    let (first, retry) = (service.charge(KEY).await, service.charge(KEY).await);
    assert_eq!((first.says(), retry.says()), (says(201, "executed"), says(201, "replayed")));
    for answer in [&first, &retry] {
        assert!(!answer.headers.contains_key("onceward-provider-id"), "{answer:?}");
    }
    let record = service.record(KEY).await.expect("a record");
    let notes = service.memory.provider_ids(vec![record.id]).await.expect("memory answers");
    let ids: Vec<String> = notes.iter().map(|note| note.id.to_string()).collect();
    assert_eq!(ids, ["ch_1", "dhl 17"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_breaks_off_leaves_its_provider_id_with_the_unknown_outcome() {
    let service = Service::new(external(), |_| async {
        let parts = [Ok(Bytes::from("half")), Err(io::Error::other("cut off"))];
        let body = Body::from_stream(stream::iter(parts));
        (StatusCode::CREATED, [("onceward-provider-id", "ch_1")], body)
    });
    assert_eq!(service.charge(KEY).await.says(), says(502, "outcome_unknown"));
    let record = service.record(KEY).await.expect("a record");
    assert_eq!(record.state, State::Unknown);
    assert_eq!(whose(&service, "ch_1").await.expect("found").record, record.id);
}

#[tokio::test(start_paused = true)]
async fn a_provider_id_of_two_operations_stays_with_the_first_and_is_an_incident() {
    let (told, mut heard) = mpsc::unbounded_channel();
    let service = Service::new(external(), move |run: Run| {
        let told = told.clone();
        async move {
            let noted = run.operation().note_provider_id(named("ch_1")).await;
            told.send(noted).expect("somebody waits");
            "charged"
        }
    });
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
    assert!(heard.recv().await.expect("told").is_ok());
    // The handler is told, and decides what it answers.
    assert_eq!(service.charge(OTHER).await.says(), says(200, "executed"));
    assert!(matches!(heard.recv().await, Some(Err(NoteError::Taken))));
    let first = service.record(KEY).await.expect("a record");
    assert_eq!(whose(&service, "ch_1").await.expect("found").record, first.id);
    let events = async |key| -> Vec<AuditEvent> {
        service.audit(key).await.iter().map(|audit| audit.event).collect()
    };
    assert_eq!((events(KEY).await, events(OTHER).await), (vec![], vec![AuditEvent::Incident]));
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_a_note_is_asked_for_again_and_a_store_that_refuses_is_told() {
    for (fault, times, is_noted) in [
        (Fault::LostAfter, 1, true),
        (Fault::LostBefore, 1, true),
        (Fault::HangsBefore, FOR_EVER, false),
        (Fault::Refused, FOR_EVER, false),
    ] {
        let faults = Faults::default();
        faults.fail(StoreCall::NoteProviderId, fault, times);
        let service = Service::on(
            |memory| faults.on(memory),
            external(),
            |run: Run| async move {
                match run.operation().note_provider_id(named("ch_1")).await {
                    Ok(()) => "noted",
                    Err(NoteError::Store(_)) => "not acknowledged",
                    Err(_) => "something else",
                }
            },
        );
        let answer = service.charge(KEY).await;
        let expected = if is_noted { "noted" } else { "not acknowledged" };
        assert_eq!((answer.says(), answer.text()), (says(200, "executed"), expected), "{fault:?}");
        assert_eq!(whose(&service, "ch_1").await.is_some(), is_noted, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_slow_to_note_an_id_holds_up_no_reply_and_has_it_later() {
    let faults = Faults::default();
    faults.fail(StoreCall::NoteProviderId, Fault::Refused, 10);
    let service = Service::on(
        |memory| faults.on(memory),
        external(),
        |_| async { ([("onceward-provider-id", "ch_1")], "charged") },
    );
    let begun = Instant::now();
    let answer = service.charge(KEY).await;
    assert_eq!((answer.says(), answer.text()), (says(200, "executed"), "charged"));
    assert!(begun.elapsed() < Duration::from_millis(1_100), "{:?}", begun.elapsed());
    assert_eq!(whose(&service, "ch_1").await, None);
    faults.heal();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(whose(&service, "ch_1").await.is_some());
}

//! What can be seen from outside: counters and a histogram. Logs are in `tests/logs.rs`.

use std::{sync::Arc, time::Duration};

use axum::{body::Body, response::IntoResponse as _};
use http::StatusCode;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use onceward::{
    Effects, InFlight, KeyRules, Limits, MemoryStore, Policy, Rate, Reply, Routes, Settings,
    Store as _,
    key::Emails,
    observe::{COUNTERS, OPERATION_DURATION},
    store::{Ask, Proof, Reservation, Resolution, Resolve, Resolved, Write, Written},
    testing::{Fault, StoreCall, samples::ask},
    worker::{Finding, Probe, ProbeFuture, Reconciler, Unknown},
};

use crate::service::{FOR_EVER, Faults, Run, Service, keyed, pass, says};

const KEY: &str = "order-raw-key-in-plain-text";

/// Runs a story with a recorder of its own and returns what it has seen.
fn observed<F: Future<Output = ()>>(story: impl FnOnce(PrometheusHandle) -> F) -> PrometheusHandle {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().expect("a runtime");
    metrics::with_local_recorder(&recorder, || runtime.block_on(story(handle.clone())));
    handle
}

/// The value of a counter, over all routes.
fn count(handle: &PrometheusHandle, name: &str) -> u64 {
    let rendered = handle.render();
    let lines = rendered.lines().filter(|line| !line.starts_with('#'));
    let values = lines.filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (series, _) = series.split_once('{').unwrap_or((series, ""));
        (series == name).then(|| value.parse::<u64>().expect("a number"))
    });
    values.sum()
}

fn counts(handle: &PrometheusHandle) -> Vec<(String, u64)> {
    let short = |name: &str| name.replace("api_idempotency_", "").replace("_total", "");
    let counted = COUNTERS.iter().map(|(name, _)| (short(name), count(handle, name)));
    counted.filter(|(_, count)| *count > 0).collect()
}

fn counted(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

fn other(key: &str) -> http::Request<Body> {
    keyed(key).body(Body::from("other")).expect("a request")
}

#[test]
fn the_twelve_counters_are_there_at_zero_from_the_start() {
    let handle = observed(|handle| async move {
        let _service = Service::new(Policy::required(), |_| async { "charged" });
        let rendered = handle.render();
        for (name, _) in COUNTERS {
            let at_zero = format!("\n{name}{{route=\"default\"}} 0\n");
            assert!(rendered.contains(&at_zero), "{name}:\n{rendered}");
        }
    });
    assert_eq!((counts(&handle), COUNTERS.len()), (vec![], 12));
}

#[test]
fn first_requests_replays_conflicts_and_mismatches_are_counted() {
    let handle = observed(|_| async {
        let service = Service::new(Policy::required(), |run: Run| async move {
            if run.number == 2 {
                pass(Duration::from_secs(5)).await;
            }
            "charged"
        });
        service.charge(KEY).await;
        service.charge(KEY).await;
        service.charge(KEY).await;
        service.send(other(KEY)).await;
        let slow = service.spawn_charge("order-that-takes-longer");
        pass(Duration::from_secs(1)).await;
        service.charge("order-that-takes-longer").await;
        slow.await.expect("answered");
    });
    let expected = [
        ("reserve_created", 2),
        ("reserve_replay", 2),
        ("reserve_in_progress", 1),
        ("reserve_key_misuse", 1),
    ];
    assert_eq!(counts(&handle), counted(&expected));
    let by_route = "\napi_idempotency_reserve_in_progress_total{route=\"default\"} 1\n";
    assert!(handle.render().contains(by_route), "{}", handle.render());
}

#[test]
fn an_email_address_as_key_is_counted_also_where_it_is_refused() {
    for (emails, status) in [(Emails::Count, 200), (Emails::Reject, 400)] {
        let handle = observed(|_| async {
            let key_rules = KeyRules { emails, ..KeyRules::default() };
            let settings = Settings { key_rules, ..Settings::default() };
            let policy = Policy::required();
            let service =
                Service::with_settings(|memory| memory, policy, settings, |_| async { "" });
            let answer = service.charge("someone.else@example.com").await;
            assert_eq!((answer.status, service.runs()), (status, u32::from(status == 200)));
            assert!(!answer.text().contains("someone"), "{}", answer.text());
            assert_eq!(service.charge(KEY).await.status, 200);
        });
        assert_eq!(count(&handle, "onceward_key_email_total"), 1, "{emails:?}");
    }
}

#[test]
fn a_waiter_is_counted_once_however_often_it_looks() {
    let handle = observed(|_| async {
        let policy = Policy::required().in_flight(InFlight::Wait(Duration::from_secs(10)));
        let service = Service::new(policy, |_| async {
            pass(Duration::from_secs(5)).await;
            "charged"
        });
        let slow = service.spawn_charge(KEY);
        pass(Duration::from_secs(1)).await;
        assert_eq!(service.charge(KEY).await.outcome(), "replayed");
        slow.await.expect("answered");
    });
    assert_eq!(counts(&handle), counted(&[("reserve_created", 1), ("reserve_replay", 1)]));
}

#[test]
fn reruns_unknown_outcomes_and_leases_that_ran_out_are_counted() {
    let handle = observed(|_| async {
        let faults = Faults::default();
        let service = Service::on(
            |memory| faults.on(memory),
            Policy::required(),
            |run: Run| async move {
                match run.number {
                    1 => StatusCode::TOO_MANY_REQUESTS.into_response(),
                    3 => StatusCode::BAD_GATEWAY.into_response(),
                    4 => std::future::pending().await,
                    _ => "charged".into_response(),
                }
            },
        );
        service.charge(KEY).await;
        service.charge(KEY).await;
        service.charge("order-that-is-lost").await;
        service.charge("order-that-is-lost").await;
        // An attempt that cannot renew, as one whose process is gone.
        faults.fail(StoreCall::Renew, Fault::HangsBefore, FOR_EVER);
        let _gone = service.spawn_charge("order-that-vanished");
        pass(Duration::from_millis(61_500)).await;
        service.charge("order-that-vanished").await;
        service.charge("order-that-vanished").await;
    });
    let expected = [
        ("reserve_created", 3),
        ("reserve_failed_retry", 1),
        ("reserve_unknown", 3),
        ("store_error", 2),
        ("zombie_key", 1),
        ("reconcile_scheduled", 2),
    ];
    assert_eq!(counts(&handle), counted(&expected));
}

#[test]
fn the_other_counters_count_emails_fenced_writes_and_reused_keys() {
    let handle = observed(|_| async {
        let policy = Policy::required().effects(Effects::None).expect("allowed");
        let faults = Faults::default();
        faults.fail(StoreCall::Renew, Fault::Refused, FOR_EVER);
        let service = Service::on(
            |memory| faults.on(memory),
            policy.expired_runs_again(true),
            |run: Run| async move {
                if run.number == 1 {
                    pass(Duration::from_secs(90)).await;
                }
                "charged"
            },
        );
        let first = service.spawn_charge("someone.else@example.com");
        pass(Duration::from_secs(61)).await;
        service.charge("someone.else@example.com").await;
        first.await.expect("answered");
        service.clock.advance(Duration::from_secs(25 * 3600));
        service.charge("someone.else@example.com").await;
    });
    assert_eq!(count(&handle, "onceward_key_email_total"), 3);
    assert_eq!(count(&handle, "onceward_fenced_write_total"), 1);
    assert_eq!(count(&handle, "onceward_expired_run_again_total"), 1);
}

#[test]
fn a_late_owner_that_contradicts_what_was_resolved_is_counted_as_an_incident() {
    for (status, incidents) in [(StatusCode::PAYMENT_REQUIRED, 1), (StatusCode::CREATED, 0)] {
        let handle = observed(|_| async {
            let faults = Faults::default();
            faults.fail(StoreCall::Renew, Fault::Refused, FOR_EVER);
            let service = Service::on(
                |memory| faults.on(memory),
                Policy::required(),
                |_: Run| async move {
                    pass(Duration::from_secs(90)).await;
                    "charged"
                },
            );
            let slow = service.spawn_charge(KEY);
            pass(Duration::from_secs(61)).await;
            service.charge(KEY).await;
            let record = service.record(KEY).await.expect("a record");
            let resolve = Resolve {
                id: record.id,
                generation: record.generation,
                fence: record.fence,
                resolution: Resolution::Complete(Reply::new(status, "found")),
                reason: "the ledger".into(),
            };
            let resolved = service.memory.resolve(resolve).await.expect("memory answers");
            assert!(matches!(resolved, Resolved::Applied(_)), "{resolved:?}");
            slow.await.expect("answered");
            pass(Duration::from_secs(60)).await;
        });
        assert_eq!(count(&handle, "onceward_incident_total"), incidents, "{status}");
    }
}

/// Knows what the key says.
#[derive(Debug)]
struct ByKey;

impl Probe for ByKey {
    fn ask<'a>(&'a self, unknown: &'a Unknown) -> ProbeFuture<'a> {
        let finding = match unknown.id.key.as_str() {
            "charged" => Finding::Completed(Reply::new(StatusCode::CREATED, "charged")),
            "absent" => Finding::NotExecuted { authoritative: true },
            _ => Finding::StillUnknown,
        };
        Box::pin(std::future::ready(finding))
    }
}

#[test]
fn unknown_outcomes_that_were_resolved_or_given_up_on_are_counted_by_route() {
    let handle = observed(|handle| async move {
        let store = Arc::new(MemoryStore::new());
        for (key, route) in [("charged", "pay"), ("absent", "refund"), ("silent", "pay")] {
            let asked = Ask { route: route.into(), ..ask(key) };
            let reserved = store.reserve(asked).await.expect("memory answers");
            let Reservation::Granted { lease, .. } = reserved else { panic!("{reserved:?}") };
            let lost = store.write(&lease, Write::MarkUnknown("reset".into())).await;
            assert_eq!(lost.expect("memory answers"), Written::Applied);
        }
        let counted = |name: &str, route: &str| {
            let line = format!("api_idempotency_reconcile_{name}_total{{route=\"{route}\"}} 1");
            handle.render().lines().any(|there| there == line)
        };
        let asked = Reconciler::new(store.clone(), ByKey).run_once(10).await;
        assert_eq!((asked.completed, asked.released, asked.still_unknown), (1, 1, 1));
        assert!(counted("resolved", "pay") && counted("resolved", "refund"));
        // One that learned nothing is neither.
        assert_eq!(count(&handle, "api_idempotency_reconcile_failed_total"), 0);
        // Its time comes again, and it is the last one.
        let redriven = store.load(&ask("silent").id).await.expect("memory answers");
        let record = redriven.expect("a record");
        let redrive = Resolve {
            id: record.id,
            generation: record.generation,
            fence: record.fence,
            resolution: Resolution::Redrive,
            reason: "the bank is back".into(),
        };
        let redriven = store.resolve(redrive).await.expect("memory answers");
        assert!(matches!(redriven, Resolved::Applied(_)), "{redriven:?}");
        let last = Reconciler::new(store.clone(), ByKey).probes_max(1).run_once(10).await;
        assert_eq!(last.dead, 1);
        assert!(counted("failed", "pay"));
    });
    assert_eq!(counts(&handle), counted(&[("reconcile_resolved", 2), ("reconcile_failed", 1)]));
}

#[test]
fn what_an_operator_or_a_message_resolves_is_counted_once_and_what_is_refused_is_not() {
    let handle = observed(|_| async {
        let store = MemoryStore::new();
        let lease = match store.reserve(ask("key")).await.expect("memory answers") {
            Reservation::Granted { lease, .. } => lease,
            other => panic!("{other:?}"),
        };
        let lost = store.write(&lease, Write::MarkUnknown("reset".into())).await;
        assert_eq!(lost.expect("memory answers"), Written::Applied);
        let told = |reply: Reply| Resolve {
            id: lease.id.clone(),
            generation: lease.generation,
            fence: lease.fence,
            resolution: Resolution::Executed { attempt: lease.attempt, reply },
            reason: "the provider".into(),
        };
        let (created, declined) = (StatusCode::CREATED, StatusCode::PAYMENT_REQUIRED);
        for (status, is_incident) in [(created, false), (created, false), (declined, true)] {
            let told = told(Reply::new(status, "told"));
            let answer = store.resolve(told.clone()).await.expect("memory answers");
            assert_eq!(onceward::observe::resolved(&told, &answer), is_incident, "{answer:?}");
        }
    });
    assert_eq!(counts(&handle), counted(&[("reconcile_resolved", 1)]));
    assert_eq!(count(&handle, "onceward_incident_total"), 1);
}

#[test]
fn an_owner_that_completes_after_it_was_released_is_counted_as_an_incident_and_a_retry_replays() {
    let handle = observed(|_| async {
        let faults = Faults::default();
        faults.fail(StoreCall::Renew, Fault::Refused, FOR_EVER);
        let service = Service::on(
            |memory| faults.on(memory),
            Policy::required(),
            |_: Run| async move {
                pass(Duration::from_secs(90)).await;
                "charged"
            },
        );
        let slow = service.spawn_charge(KEY);
        pass(Duration::from_secs(61)).await;
        assert_eq!(service.charge(KEY).await.says(), says(409, "outcome_unknown"));
        let record = service.record(KEY).await.expect("a record");
        let resolve = Resolve {
            id: record.id,
            generation: record.generation,
            fence: record.fence,
            resolution: Resolution::Release(Proof::Authoritative),
            reason: "the provider".into(),
        };
        let resolved = service.memory.resolve(resolve).await.expect("memory answers");
        assert!(matches!(resolved, Resolved::Applied(_)), "{resolved:?}");
        assert_eq!(slow.await.expect("answered").says(), says(200, "executed"));
        assert_eq!(service.charge(KEY).await.says(), says(200, "replayed"));
        assert_eq!(service.runs(), 1);
    });
    assert_eq!(count(&handle, "onceward_incident_total"), 1);
}

#[test]
fn how_long_handlers_take_is_seen_per_route() {
    let handle = observed(|_| async {
        let routes = Routes::with_default(Policy::required())
            .route("POST /charges", Policy::required())
            .expect("a pattern");
        let service = Service::new(routes, |_| async {
            pass(Duration::from_secs(3)).await;
            "charged"
        });
        service.charge(KEY).await;
        service.charge(KEY).await;
        let elsewhere = keyed("order-of-another-route").uri("/else").body(Body::empty());
        service.send(elsewhere.expect("a request")).await;
    });
    let rendered = handle.render();
    for (route, count) in [("POST /charges", 1), ("default", 1)] {
        let line = format!("{OPERATION_DURATION}_count{{route=\"{route}\"}} {count}");
        assert!(rendered.contains(&line), "{line}:\n{rendered}");
        let line = format!("{OPERATION_DURATION}_sum{{route=\"{route}\"}} 3");
        assert!(rendered.contains(&line), "{line}:\n{rendered}");
    }
    assert!(!rendered.contains(KEY), "no key in a label");
}

#[test]
fn the_state_of_the_breaker_and_what_was_limited_can_be_seen() {
    observed(|handle| async move {
        let faults = Faults::default();
        let limits = Limits { creations: Some(Rate::per_second(1)), ..Limits::OFF };
        let settings = Settings { limits, ..Settings::default() };
        let service = Service::with_settings(
            |memory| faults.on(memory),
            Policy::required(),
            settings,
            |_| async { "charged" },
        );
        let seen = |line: &str| {
            let rendered = handle.render();
            assert!(rendered.lines().any(|given| given == line), "{line} in\n{rendered}");
        };
        seen("onceward_breaker_open 0");
        for limit in ["creations", "active", "lookups"] {
            let counter = "onceward_rate_limited_total{route=\"default\",limit=";
            seen(&format!("{counter}\"{limit}\"}} 0"));
        }
        service.charge("order-of-the-first").await;
        service.charge("order-of-the-second").await;
        seen("onceward_rate_limited_total{route=\"default\",limit=\"creations\"} 1");
        faults.fail(StoreCall::Reserve, Fault::Refused, FOR_EVER);
        for _ in 0..3 {
            service.charge(KEY).await;
        }
        seen("onceward_breaker_open 1");
        seen("onceward_breaker_opened_total 1");
        faults.heal();
        pass(Duration::from_secs(1)).await;
        service.charge(KEY).await;
        seen("onceward_breaker_open 0");
        seen("onceward_breaker_opened_total 1");
    });
}

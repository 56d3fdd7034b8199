//! Every state with every event. A dot is a missing arrow: refused, and nothing changes.

use super::*;

/// What an event does to a record: the state it writes, `removed`, or a dot.
fn outcome(event: &str, found: Option<&Record>) -> String {
    let (event, now) = match event.split_once(" @ ") {
        None => (event, at(20)),
        Some((event, "lease end")) => (event, at(LEASE)),
        Some((event, "retention end")) => (event, at(RESTED + RETENTION)),
        Some((event, "purge")) => (event, at(RESTED + RETENTION + TOMBSTONE)),
        Some((_, when)) => panic!("no such time: {when}"),
    };
    let own = found.map(lease);
    let stranger = Lease { attempt: B, ..lease(found.unwrap_or(&record_in(State::InProgress))) };
    let written = |lease: Option<Lease>, what: Write| match lease {
        Some(lease) => change(write(found, &lease, what, now)),
        None => Change::Keep,
    };
    let reserved = |ask: Ask| change(reserve(found, &ask, now));
    let resolved = |resolution: Resolution, fence: i64| {
        let seen = found.cloned().unwrap_or_else(|| record_in(State::Unknown));
        let fence = Fence::from_stored(seen.fence.number() + fence);
        let generation = seen.generation;
        let reason = "ticket 7".into();
        change(resolve(found, Resolve { id: seen.id, generation, fence, resolution, reason }, now))
    };
    let change = match event {
        "reserve" => reserved(retry()),
        "reserve, expired runs again" => reserved(Ask { expired_runs_again: true, ..retry() }),
        "reserve, other request" => reserved(another_request()),
        "reserve, only to look" => reserved(Ask { mode: Mode::LookupOnly, ..retry() }),
        "reserve, for later" => reserved(Ask { mode: Mode::Accept, ..retry() }),
        "claim" => change(claim(found, &wanted(), now)),
        "renew" => written(own, Write::Renew(Duration::from_secs(LEASE))),
        "complete" => written(own, Write::Complete(reply("done"))),
        "release" => written(own, Write::Release("not_sent".into())),
        "mark unknown" => written(own, Write::MarkUnknown("timeout".into())),
        "renew by another" => written(Some(stranger), Write::Renew(Duration::from_secs(LEASE))),
        "complete by another" => written(Some(stranger), Write::Complete(reply("stolen"))),
        "release by another" => written(Some(stranger), Write::Release("not_sent".into())),
        "mark unknown by another" => written(Some(stranger), Write::MarkUnknown("gone".into())),
        "resolve: complete" => resolved(Resolution::Complete(reply("found")), 0),
        "resolve: release" => resolved(Resolution::Release(Proof::Authoritative), 0),
        "resolve: void" => resolved(Resolution::Void, 0),
        "resolve an old fence: complete" => resolved(Resolution::Complete(reply("found")), -1),
        "resolve an old fence: release" => resolved(Resolution::Release(Proof::Authoritative), -1),
        "resolve an old fence: void" => resolved(Resolution::Void, -1),
        "sweep" => found.map_or(Change::Keep, |record| change(sweep(record, now))),
        "reap" => found.map_or(Change::Keep, |record| reap(record, now)),
        _ => panic!("no such event: {event}"),
    };
    match change {
        Change::Keep => ".".into(),
        Change::Remove => "removed".into(),
        Change::Put(record) => record.state.name().into(),
    }
}

fn change<A>(step: Step<A>) -> Change {
    step.change
}

/// The first column of states is "no record"; the others are in the order of the header.
fn check(table: &str) {
    let mut lines = table.lines().map(str::trim).filter(|line| !line.is_empty());
    let header = lines.next().expect("a header");
    let states: Vec<&str> = header.split_whitespace().skip(1).collect();
    assert_eq!(states.len(), State::ALL.len() + 1, "a column for each state, and for none");
    let mut rows = 0;
    for line in lines {
        let (event, expected) = line.split_once('|').expect("a bar after the event");
        let expected: Vec<&str> = expected.split_whitespace().collect();
        assert_eq!(expected.len(), states.len(), "{event}: an outcome for each state");
        for (state, expected) in states.iter().zip(expected) {
            let found = State::from_name(state).map(record_in);
            let found_before = found.clone();
            let outcome = outcome(event.trim(), found.as_ref());
            assert_eq!(outcome, expected, "{state} --{}-->", event.trim());
            assert_eq!(found, found_before);
        }
        rows += 1;
    }
    assert!(rows > 0, "a table without rows shows nothing");
}

#[test]
fn every_state_with_every_event_while_both_clocks_run() {
    check(
        "event                        none         pending      in_progress       completed  failed_retryable  unknown           expired
         reserve                    | in_progress  .            .                 .          in_progress       .                 .
         reserve, other request     | in_progress  .            .                 .          .                 .                 .
         reserve, only to look      | .            .            .                 .          .                 .                 .
         reserve, for later         | pending      .            .                 .          pending           .                 .
         claim                      | .            in_progress  .                 .          .                 .                 .
         renew                      | .            .            in_progress       .          .                 .                 .
         complete                   | .            .            completed         .          .                 completed         .
         release                    | .            .            failed_retryable  .          .                 .                 .
         mark unknown               | .            .            unknown           .          .                 .                 .
         renew by another           | .            .            .                 .          .                 .                 .
         complete by another        | .            .            .                 .          .                 .                 .
         release by another         | .            .            .                 .          .                 .                 .
         mark unknown by another    | .            .            .                 .          .                 .                 .
         resolve: complete          | .            completed    .                 .          .                 completed         .
         resolve: release           | .            .            .                 .          .                 failed_retryable  .
         resolve: void              | .            .            .                 expired    .                 .                 .
         resolve an old fence: complete | .        .            .                 .          .                 .                 .
         resolve an old fence: release  | .        .            .                 .          .                 .                 .
         resolve an old fence: void     | .        .            .                 .          .                 .                 .
         sweep                      | .            .            .                 .          .                 .                 .
         reap                       | .            .            .                 .          .                 .                 .",
    );
}

#[test]
fn every_state_with_every_event_when_the_lease_is_over() {
    check(
        "event                                none         pending      in_progress       completed  failed_retryable  unknown           expired
         reserve @ lease end                | in_progress  .            unknown           .          in_progress       .                 .
         reserve, other request @ lease end | in_progress  .            .                 .          .                 .                 .
         reserve, only to look @ lease end  | .            .            .                 .          .                 .                 .
         reserve, for later @ lease end     | pending      .            unknown           .          pending           .                 .
         claim @ lease end                  | .            in_progress  .                 .          .                 .                 .
         renew @ lease end                  | .            .            in_progress       .          .                 .                 .
         complete @ lease end               | .            .            completed         .          .                 completed         .
         release @ lease end                | .            .            failed_retryable  .          .                 .                 .
         mark unknown @ lease end           | .            .            unknown           .          .                 .                 .
         complete by another @ lease end    | .            .            .                 .          .                 .                 .
         resolve: complete @ lease end      | .            completed    completed         .          .                 completed         .
         resolve: release @ lease end       | .            .            failed_retryable  .          .                 failed_retryable  .
         resolve: void @ lease end          | .            .            .                 expired    .                 .                 .
         resolve an old fence: complete @ lease end | .    .            .                 .          .                 .                 .
         sweep @ lease end                  | .            .            unknown           .          .                 .                 .
         reap @ lease end                   | .            .            .                 .          .                 .                 .",
    );
}

#[test]
fn every_state_with_every_event_when_retention_is_over() {
    check(
        "event                                        none         pending      in_progress  completed    failed_retryable  unknown  expired
         reserve @ retention end                    | in_progress  .            unknown      .            in_progress       .        .
         reserve, other request @ retention end     | in_progress  .            .            .            in_progress       .        .
         reserve, expired runs again @ retention end| in_progress  .            unknown      in_progress  in_progress       .        in_progress
         reserve, only to look @ retention end      | .            .            .            .            .                 .        .
         reserve, for later @ retention end         | pending      .            unknown      .            pending           .        .
         claim @ retention end                      | .            in_progress  .            .            .                 .        .
         resolve: void @ retention end              | .            .            .            .            .                 .        .
         reap @ retention end                       | .            .            .            expired      expired           .        .",
    );
}

#[test]
fn every_state_with_every_event_when_the_tombstone_goes() {
    check(
        "event                              none         pending      in_progress  completed    failed_retryable  unknown  expired
         reserve @ purge                  | in_progress  .            unknown      in_progress  in_progress       .        in_progress
         reserve, other request @ purge   | in_progress  .            .            in_progress  in_progress       .        in_progress
         reserve, only to look @ purge    | .            .            .            .            .                 .        .
         reserve, for later @ purge       | pending      .            unknown      pending      pending           .        pending
         claim @ purge                    | .            in_progress  .            .            .                 .        .
         resolve: void @ purge            | .            .            .            .            .                 .        .
         reap @ purge                     | .            .            .            removed      removed           .        removed",
    );
}

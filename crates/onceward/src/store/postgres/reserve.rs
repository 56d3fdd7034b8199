//! Reserves, many in one call.

use std::collections::HashMap;

use sqlx::postgres::PgRow;

use super::{
    batch::{Sent, for_each, send},
    link::{Call, Caller, Link, call},
    look::Look,
    row::{BadRow, FoundRow, damaged, micros, uuid},
};
use crate::{
    clock::Timestamp,
    record::{AttemptId, Fence, Lease, Record},
    store::{Ask, Found, Mode, Reservation, StoreError, lane::Sender, request::encode_request},
};

/// How often those are asked for again that others made between the two halves of a reserve.
const ROUNDS_MAX: u32 = 3;

/// A reserve that stands in line.
pub(super) struct Reserve {
    pub(super) ask: Ask,
    pub(super) sender: Sender<Reservation>,
}

impl Reserve {
    pub(super) fn bytes(&self) -> usize {
        512 + self.ask.request.as_ref().map_or(0, |request| request.body.len())
    }

    /// Sends them until each is answered, or is for somebody who looks closer. `lost` says that they
    /// were sent before, and no answer came.
    pub(super) async fn send_all(mut batch: Vec<Self>, mut lost: bool, link: &mut Link) {
        for _ in 0..ROUNDS_MAX {
            if batch.is_empty() {
                return;
            }
            let sent = send(link, &mut lost, |link| {
                bind_reserves(call(&link.statements().reserve), link, &asks(&batch), None)
            })
            .await;
            batch = match sent {
                Sent::Answered(rows) => Self::answer_all(batch, &rows, lost, link).await,
                Sent::Locked | Sent::Refused => break,
                Sent::Failed(error) => return Self::fail_all(batch, &error),
            };
        }
        for element in batch {
            element.look_closer(None, lost, link).await;
        }
    }

    pub(super) fn fail_all(batch: Vec<Self>, error: &StoreError) {
        for element in batch {
            let _ = element.sender.send(Err(for_each(error)));
        }
    }
}

pub(super) fn asks(batch: &[Reserve]) -> Vec<&Ask> {
    batch.iter().map(|element| &element.ask).collect()
}

/// What a row says about one element.
pub(super) enum Answer {
    Now(Reservation),
    Look(Box<Record>, Timestamp),
    Later,
    Bad(BadRow),
}

pub(super) fn read_answer(row: &FoundRow<'_>, ask: &Ask) -> Answer {
    let read = || match row.verdict() {
        "taken" if ask.mode == Mode::Accept => {
            Ok(Answer::Now(Reservation::Accepted { found: Found::Absent }))
        }
        "taken" => {
            let now = row.now()?;
            let lease = Lease {
                id: ask.id.clone(),
                attempt: ask.attempt,
                fence: Fence::from_stored(now.as_micros().max(1)),
                generation: 1,
                attempt_number: 1,
                until: now.plus(ask.lease),
            };
            Ok(Answer::Now(Reservation::Granted { lease, found: Found::Absent }))
        }
        "occupied" => {
            let record = Box::new(row.record(&ask.id)?);
            Ok(Answer::Now(Reservation::Occupied { record, lease_ran_out: false }))
        }
        "later" => Ok(Answer::Later),
        _ => Ok(Answer::Look(Box::new(row.record(&ask.id)?), row.now()?)),
    };
    read().unwrap_or_else(Answer::Bad)
}

impl Reserve {
    /// Answers what the rows answer, and returns the rest: somebody made those just now.
    pub(super) async fn answer_all(
        batch: Vec<Self>,
        rows: &[PgRow],
        lost: bool,
        link: &mut Link,
    ) -> Vec<Self> {
        let (taken, found): (Vec<_>, Vec<_>) =
            rows.iter().map(FoundRow).partition(|row| row.verdict() == "taken");
        let all = taken.iter().find(|row| row.attempt().is_err());
        link.mostly_new = all.is_some() || taken.len() * 2 >= batch.len();
        let mut taken: HashMap<(AttemptId, &str, &str), &FoundRow<'_>> = taken
            .iter()
            .filter_map(|row| Some(((row.attempt().ok()?, row.scope()?, row.key()?), row)))
            .collect();
        // An attempt that asks twice takes it once, and finds it then. A look takes nothing.
        let granted = batch.iter().map(|element| {
            let ask = &element.ask;
            let place = (ask.attempt, ask.id.scope.as_str(), ask.id.key.as_str());
            let row = match all {
                None if ask.mode != Mode::LookupOnly => taken.remove(&place)?,
                all => all?,
            };
            Some(read_answer(row, ask))
        });
        let mut answers: Vec<Option<Answer>> = granted.collect();
        for row in &found {
            let place = row.position().and_then(|at| Some((answers.get_mut(at)?, batch.get(at)?)));
            if let Some((answer @ None, element)) = place {
                *answer = Some(read_answer(row, &element.ask));
            }
        }
        let mut rest = Vec::new();
        let last = answers.iter().rev().find_map(|answer| match answer {
            Some(Answer::Now(Reservation::Granted { lease, .. })) => Some(lease),
            _ => None,
        });
        if let Some(lease) = last {
            link.acknowledged(lease, false);
        }
        for (element, answer) in batch.into_iter().zip(answers) {
            match answer {
                Some(Answer::Now(reservation)) => {
                    // The caller may be gone. What was done is done all the same.
                    let _ = element.sender.send(Ok(reservation));
                }
                Some(Answer::Look(record, now)) => {
                    element.look_closer(Some((record, now)), lost, link).await;
                }
                Some(Answer::Bad(bad)) => {
                    let _ = element.sender.send(Err(damaged(bad)));
                }
                None if element.ask.mode == Mode::LookupOnly => {
                    let _ = element.sender.send(Ok(Reservation::Free));
                }
                None | Some(Answer::Later) => rest.push(element),
            }
        }
        rest
    }

    async fn look_closer(
        self,
        seen: Option<(Box<Record>, Timestamp)>,
        may_have_happened: bool,
        link: &Link,
    ) {
        let Reserve { ask, sender } = self;
        link.look_closer(Look::Reserve { ask, seen, may_have_happened, sender }).await;
    }
}

/// `patience` is for one that is alone: how long it waits for transactions that are on their way.
pub(super) fn bind_reserves(
    call: Call<'static>,
    link: &impl Caller,
    batch: &[&Ask],
    patience: Option<&str>,
) -> Call<'static> {
    fn column<'a, T>(batch: &[&'a Ask], value: impl Fn(&'a Ask) -> T) -> Vec<T> {
        batch.iter().map(|ask| value(ask)).collect()
    }
    let any_request = batch.iter().any(|ask| ask.request.is_some());
    let requests =
        any_request.then(|| column(batch, |ask| ask.request.as_deref().map(encode_request)));
    let (numbers, classes) = classes(batch);
    call.bind(link.now())
        .bind(column(batch, |ask| ask.id.scope.as_str()))
        .bind(column(batch, |ask| ask.id.key.as_str()))
        .bind(column(batch, |ask| &ask.fingerprint.digest()[..]))
        .bind(column(batch, |ask| uuid(ask.attempt)))
        .bind(column(batch, |ask| &*ask.path))
        .bind(numbers)
        .bind(column(&classes, |ask| i32::from(ask.fingerprint.recipe())))
        .bind(column(&classes, |ask| match ask.mode {
            Mode::Execute => "execute",
            Mode::Accept => "accept",
            Mode::LookupOnly => "look",
        }))
        .bind(column(&classes, |ask| micros(ask.lease)))
        .bind(column(&classes, |ask| micros(ask.max_execution)))
        .bind(column(&classes, |ask| micros(ask.retention)))
        .bind(column(&classes, |ask| micros(ask.tombstone)))
        .bind(column(&classes, |ask| ask.effects.name()))
        .bind(column(&classes, |ask| &*ask.route))
        .bind(column(&classes, |ask| &*ask.method))
        .bind(column(&classes, |ask| micros(ask.queued_for)))
        .bind(requests)
        .bind(patience.map(str::to_owned))
        .bind(link.mostly_new())
}

/// The number of each one's class, from 1, and one of each class.
fn classes<'a>(batch: &[&'a Ask]) -> (Vec<i32>, Vec<&'a Ask>) {
    let mut classes: Vec<&Ask> = Vec::new();
    let numbers = batch.iter().map(|ask| {
        let same = classes.iter().position(|class| is_like(class, ask));
        let index = same.unwrap_or_else(|| {
            classes.push(ask);
            classes.len() - 1
        });
        i32::try_from(index + 1).unwrap_or(i32::MAX)
    });
    (numbers.collect(), classes)
}

/// Whether two requests are of one class: all is the same that is given once.
fn is_like(one: &Ask, other: &Ask) -> bool {
    one.fingerprint.recipe() == other.fingerprint.recipe()
        && one.mode == other.mode
        && one.lease == other.lease
        && one.max_execution == other.max_execution
        && one.retention == other.retention
        && one.tombstone == other.tombstone
        && one.effects == other.effects
        && one.queued_for == other.queued_for
        && one.route == other.route
        && one.method == other.method
}

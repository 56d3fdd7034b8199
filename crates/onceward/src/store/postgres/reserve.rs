//! Reserves, many in one call.

use std::collections::HashMap;

use sqlx::postgres::PgRow;

use super::{
    batch::{Sent, for_each, send},
    lane::Sender,
    link::{Call, Caller, Link, call},
    look::Look,
    row::{BadRow, FoundRow, damaged, micros, uuid},
};
use crate::{
    clock::Timestamp,
    record::{AttemptId, Lease, Record},
    store::{Ask, Found, Mode, Reservation, StoreError, request::encode_request},
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
    Bad(BadRow),
}

pub(super) fn read_answer(row: &FoundRow<'_>, ask: &Ask) -> Answer {
    let read = || match row.verdict() {
        "taken" if ask.mode == Mode::Accept => {
            Ok(Answer::Now(Reservation::Accepted { found: Found::Absent }))
        }
        "taken" => {
            let lease = Lease {
                id: ask.id.clone(),
                attempt: ask.attempt,
                fence: row.fence()?,
                generation: 1,
                attempt_number: 1,
                until: row.lease_until()?,
            };
            Ok(Answer::Now(Reservation::Granted { lease, found: Found::Absent }))
        }
        "occupied" => {
            let record = Box::new(row.record(&ask.id)?);
            Ok(Answer::Now(Reservation::Occupied { record, lease_ran_out: false }))
        }
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
        let mut answers: Vec<Option<Answer>> = Vec::new();
        answers.resize_with(batch.len(), || None);
        let by_attempt: HashMap<AttemptId, usize> =
            batch.iter().enumerate().rev().map(|(index, e)| (e.ask.attempt, index)).collect();
        for row in rows {
            let row = FoundRow(row);
            let index = match row.verdict() {
                "later" => None,
                "taken" => row.attempt().ok().and_then(|attempt| by_attempt.get(&attempt).copied()),
                _ => row.position(),
            };
            let place = index.and_then(|index| Some((answers.get_mut(index)?, batch.get(index)?)));
            if let Some((answer @ None, element)) = place {
                *answer = Some(read_answer(&row, &element.ask));
            }
        }
        let is_new = |row: &&PgRow| FoundRow(row).verdict() == "taken";
        link.mostly_new = rows.iter().filter(is_new).count() * 2 >= batch.len();
        let mut rest = Vec::new();
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
                None => rest.push(element),
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
    call.bind(link.now())
        .bind(column(batch, |ask| ask.id.scope.as_str()))
        .bind(column(batch, |ask| ask.id.key.as_str()))
        .bind(column(batch, |ask| i32::from(ask.fingerprint.recipe())))
        .bind(column(batch, |ask| &ask.fingerprint.digest()[..]))
        .bind(column(batch, |ask| uuid(ask.attempt)))
        .bind(column(batch, |ask| match ask.mode {
            Mode::Execute => "execute",
            Mode::Accept => "accept",
            Mode::LookupOnly => "look",
        }))
        .bind(column(batch, |ask| micros(ask.lease)))
        .bind(column(batch, |ask| micros(ask.max_execution)))
        .bind(column(batch, |ask| micros(ask.retention)))
        .bind(column(batch, |ask| micros(ask.tombstone)))
        .bind(column(batch, |ask| ask.effects.name()))
        .bind(column(batch, |ask| &*ask.route))
        .bind(column(batch, |ask| &*ask.method))
        .bind(column(batch, |ask| &*ask.path))
        .bind(requests)
        .bind(patience.map(str::to_owned))
        .bind(link.mostly_new())
}

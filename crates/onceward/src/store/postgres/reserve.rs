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
    record::{AttemptId, Fence, Lease, Record, RecordId},
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

    /// Sends them, each class by itself.
    pub(super) async fn send_all(batch: Vec<Self>, lost: bool, link: &mut Link) {
        for class in classes(batch) {
            Self::send_class(class, lost, link).await;
        }
    }

    /// Sends those of one class until each is answered, or is for somebody who looks closer. `lost` says
    /// that they were sent before, and no answer came.
    pub(super) async fn send_class(mut batch: Vec<Self>, mut lost: bool, link: &mut Link) {
        let mut seconds = take_seconds(&mut batch);
        for _ in 0..ROUNDS_MAX {
            if batch.is_empty() {
                // The records that they are for are there now.
                batch = std::mem::take(&mut seconds);
            }
            if batch.is_empty() {
                return;
            }
            let sent = send(link, &mut lost, |link| match &batch[..] {
                [one] if link.mostly_new && is_plain(&one.ask) => {
                    bind_reserve(call(&link.statements().reserve_one), link, &one.ask, None)
                }
                _ => bind_reserves(call(&link.statements().reserve), link, &batch),
            })
            .await;
            batch = match sent {
                Sent::Answered(rows) => Self::answer_all(batch, &rows, lost, link).await,
                Sent::Locked | Sent::Refused => break,
                Sent::Failed(error) => {
                    Self::fail_all(batch, &error);
                    return Self::fail_all(seconds, &error);
                }
            };
        }
        for element in batch.into_iter().chain(seconds) {
            element.look_closer(None, lost, link).await;
        }
    }

    pub(super) fn fail_all(batch: Vec<Self>, error: &StoreError) {
        for element in batch {
            let _ = element.sender.send(Err(for_each(error)));
        }
    }
}

/// Takes those out that are for the same record as another: a record that is not there can be made only
/// once in a call. What stays is in the order of records.
pub(super) fn take_seconds(batch: &mut Vec<Reserve>) -> Vec<Reserve> {
    // In one order everywhere, so that batches cannot wait for each other in a circle.
    batch.sort_by(|a, b| a.ask.id.cmp(&b.ask.id));
    let mut last: Option<RecordId> = None;
    let is_second = |element: &mut Reserve| {
        let is_second = last.as_ref() == Some(&element.ask.id);
        last = Some(element.ask.id.clone());
        is_second
    };
    batch.extract_if(.., is_second).collect()
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
        "replay" => Ok(Answer::Now(Reservation::Completed(Box::new(row.completed()?)))),
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
            rows.iter().map(FoundRow::new).partition(|row| row.verdict() == "taken");
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

/// Whether it begins its work at once, and leaves no request.
pub(super) fn is_plain(ask: &Ask) -> bool {
    ask.mode == Mode::Execute && ask.request.is_none()
}

/// One that is alone and plain. `patience` is how long it waits for transactions that are on their way.
pub(super) fn bind_reserve(
    call: Call<'static>,
    link: &impl Caller,
    ask: &Ask,
    patience: Option<&'static str>,
) -> Call<'static> {
    call.bind(link.now())
        .bind(ask.id.scope.as_str().to_owned())
        .bind(ask.id.key.as_str().to_owned())
        .bind(ask.fingerprint.digest().to_vec())
        .bind(uuid(ask.attempt))
        .bind(ask.path.to_string())
        .bind(i32::from(ask.fingerprint.recipe()))
        .bind(micros(ask.lease))
        .bind(micros(ask.max_execution))
        .bind(micros(ask.retention))
        .bind(micros(ask.tombstone))
        .bind(ask.effects.name())
        .bind(ask.route.to_string())
        .bind(ask.method.to_string())
        .bind(patience)
}

/// All of one class.
pub(super) fn bind_reserves(
    call: Call<'static>,
    link: &impl Caller,
    batch: &[Reserve],
) -> Call<'static> {
    fn column<'a, T>(batch: &'a [Reserve], value: impl Fn(&'a Ask) -> T) -> Vec<T> {
        batch.iter().map(|element| value(&element.ask)).collect()
    }
    let any_request = batch.iter().any(|element| element.ask.request.is_some());
    let requests =
        any_request.then(|| column(batch, |ask| ask.request.as_deref().map(encode_request)));
    let class = batch.first().map(|element| &element.ask);
    let accepts = class.is_some_and(|ask| ask.mode == Mode::Accept);
    call.bind(link.now())
        .bind(column(batch, |ask| ask.id.scope.as_str()))
        .bind(column(batch, |ask| ask.id.key.as_str()))
        .bind(column(batch, |ask| &ask.fingerprint.digest()[..]))
        .bind(column(batch, |ask| uuid(ask.attempt)))
        .bind(column(batch, |ask| &*ask.route))
        .bind(column(batch, |ask| &*ask.method))
        .bind(column(batch, |ask| &*ask.path))
        .bind(class.map(|ask| ask.mode != Mode::LookupOnly))
        .bind(class.map(|ask| i32::from(ask.fingerprint.recipe())))
        // What waits to be begun may be begun at once.
        .bind(class.map(|ask| if accepts { 0 } else { micros(ask.lease) }))
        .bind(class.map(|ask| micros(ask.max_execution)))
        .bind(class.map(|ask| micros(ask.retention)))
        .bind(class.map(|ask| micros(ask.tombstone)))
        .bind(class.map(|ask| ask.effects.name()))
        .bind(class.filter(|_| accepts).map(|ask| micros(ask.queued_for)))
        .bind(requests)
        .bind(None::<&str>)
        .bind(link.mostly_new())
}

/// Those that go the same way together: what is the same for all is given once.
pub(super) fn classes(batch: Vec<Reserve>) -> Vec<Vec<Reserve>> {
    let mut classes: Vec<Vec<Reserve>> = Vec::new();
    for element in batch {
        let is_mine = |class: &&mut Vec<Reserve>| {
            class.first().is_some_and(|first| is_like(&first.ask, &element.ask))
        };
        match classes.iter_mut().find(is_mine) {
            Some(class) => class.push(element),
            None => classes.push(vec![element]),
        }
    }
    classes
}

fn is_like(one: &Ask, other: &Ask) -> bool {
    one.fingerprint.recipe() == other.fingerprint.recipe()
        && one.mode == other.mode
        && one.lease == other.lease
        && one.max_execution == other.max_execution
        && one.retention == other.retention
        && one.tombstone == other.tombstone
        && one.effects == other.effects
        && one.queued_for == other.queued_for
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::testing::samples::{ask, id};

    fn reserve(scope: &str, key: &str) -> Reserve {
        Reserve { ask: Ask { id: id(scope, key), ..ask(key) }, sender: oneshot::channel().0 }
    }

    fn keys(batch: &[Reserve]) -> Vec<&str> {
        batch.iter().map(|element| element.ask.id.key.as_str()).collect()
    }

    #[test]
    fn reserves_go_in_the_order_of_records_each_of_which_is_there_once() {
        let come = [("b", "3"), ("b", "1"), ("b", "2"), ("b", "1"), ("a", "9"), ("b", "3")];
        let mut batch = Vec::from(come.map(|(scope, key)| reserve(scope, key)));
        let [first, second] = [1, 3].map(|place| batch[place].ask.attempt);
        let seconds = take_seconds(&mut batch);
        assert_eq!(keys(&batch), ["9", "1", "2", "3"]);
        assert_eq!(keys(&seconds), ["1", "3"]);
        // Whoever came first goes first.
        assert_eq!((batch[1].ask.attempt, seconds[0].ask.attempt), (first, second));
    }
}

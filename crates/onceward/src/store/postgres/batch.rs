//! Reserves and writes, many in one call.

use std::collections::{HashMap, HashSet};

use sqlx::postgres::PgRow;
use tracing::warn;

use super::{
    error::{Remedy, TRIES_MAX, answer_lost, pause, remedy},
    lane::{Element, Sender},
    link::{Call, Caller, Link, Lost, call},
    look::Look,
    row::{BadRow, FoundRow, micros, reply_parts, uuid},
};
use crate::{
    clock::Timestamp,
    record::{AttemptId, Lease, Record, RecordId},
    store::{
        Ask, Found, Mode, Reservation, StoreError, StoreErrorKind, Write, Written,
        request::encode_request,
    },
};

/// How often those are asked for again that others made between the two halves of a reserve.
const ROUNDS_MAX: u32 = 3;

/// A reserve that stands in line.
pub(super) struct Reserve {
    pub(super) ask: Ask,
    pub(super) sender: Sender<Reservation>,
}

/// A write that stands in line.
pub(super) struct GuardedWrite {
    pub(super) lease: Lease,
    pub(super) write: Write,
    pub(super) sender: Sender<Written>,
}

/// What came of sending a batch.
enum Sent {
    Answered(Vec<PgRow>),
    /// Each element has to go by itself. An earlier try may have been carried out.
    OneByOne {
        may_have_happened: bool,
    },
    Failed(StoreError),
}

/// Sends the same call until it is answered, or until there is no point.
async fn send(link: &mut Link, bind: impl Fn(&Link) -> Call<'static>) -> Sent {
    let mut may_have_happened = false;
    for tries in 1.. {
        let lost = match link.fetch(bind(link)).await {
            Ok(rows) => return Sent::Answered(rows),
            Err(lost) => lost,
        };
        let again = match &lost {
            Lost::NotSent(_) => false,
            Lost::NoAnswer => false,
            Lost::Failed(error) => match remedy(error) {
                Remedy::Reconnect | Remedy::Again => tries < TRIES_MAX,
                Remedy::Locked => return Sent::OneByOne { may_have_happened },
                Remedy::Refused => {
                    // One by one, most will come through: a defect of ours would go unnoticed.
                    warn!(%error, "the server refused a batch");
                    return Sent::OneByOne { may_have_happened };
                }
            },
        };
        let error = lost.store_error();
        may_have_happened |= error.kind() == StoreErrorKind::Ambiguous;
        if !again {
            return Sent::Failed(if may_have_happened { answer_lost(error) } else { error });
        }
        if !matches!(&lost, Lost::Failed(error) if remedy(error) == Remedy::Reconnect) {
            pause().await;
        }
    }
    unreachable!("the loop ends by itself")
}

/// The same error for each of several callers.
fn for_each(error: &StoreError) -> StoreError {
    let source = std::error::Error::source(error).map(ToString::to_string);
    StoreError::new(error.kind(), super::error::STORE, error.to_string())
        .with_source(source.unwrap_or_default())
}

impl Element for Reserve {
    const BATCH_MAX: usize = 256;

    fn bytes(&self) -> usize {
        512 + self.ask.request.as_ref().map_or(0, |request| request.body.len())
    }

    fn is_abandoned(&self) -> bool {
        self.sender.is_closed()
    }

    async fn run(mut batch: Vec<Self>, link: &mut Link) {
        // In one order everywhere, so that batches cannot wait for each other in a circle.
        batch.sort_unstable_by(|a, b| a.ask.id.cmp(&b.ask.id));
        let mut lost = false;
        for _ in 0..ROUNDS_MAX {
            let asks: Vec<&Ask> = batch.iter().map(|element| &element.ask).collect();
            batch = match send(link, |link| {
                bind_reserves(call(&link.statements().reserve), link, &asks, None)
            })
            .await
            {
                Sent::Answered(rows) => Self::answer_all(batch, &rows, link).await,
                Sent::OneByOne { may_have_happened } => {
                    lost = may_have_happened;
                    break;
                }
                Sent::Failed(error) => {
                    return batch.into_iter().for_each(|element| {
                        let _ = element.sender.send(Err(for_each(&error)));
                    });
                }
            };
            if batch.is_empty() {
                return;
            }
        }
        for element in batch {
            element.look_closer(None, lost, link).await;
        }
    }
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
    async fn answer_all(batch: Vec<Self>, rows: &[PgRow], link: &Link) -> Vec<Self> {
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
            if let Some((answer, element)) = place {
                *answer = Some(read_answer(&row, &element.ask));
            }
        }
        let mut rest = Vec::new();
        for (element, answer) in batch.into_iter().zip(answers) {
            match answer {
                Some(Answer::Now(reservation)) => {
                    // The caller may be gone. What was done is done all the same.
                    let _ = element.sender.send(Ok(reservation));
                }
                Some(Answer::Look(record, now)) => {
                    element.look_closer(Some((record, now)), false, link).await;
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

pub(super) fn damaged(bad: BadRow) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, super::error::STORE, "a record is damaged")
        .with_source(bad)
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
}

impl Element for GuardedWrite {
    const BATCH_MAX: usize = 256;

    fn bytes(&self) -> usize {
        let reply = match &self.write {
            Write::Complete(reply) => reply.body_bytes().len(),
            _ => 0,
        };
        512 + reply
    }

    fn is_abandoned(&self) -> bool {
        self.sender.is_closed()
    }

    async fn run(mut batch: Vec<Self>, link: &mut Link) {
        batch.sort_by(|a, b| a.lease.id.cmp(&b.lease.id));
        // Two writes to one record cannot be in one statement. The second is looked at after it.
        let (mut firsts, mut renewals, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
        let mut last: Option<RecordId> = None;
        for element in batch {
            if last.as_ref() == Some(&element.lease.id) {
                seconds.push(element);
                continue;
            }
            last = Some(element.lease.id.clone());
            match element.write {
                Write::Renew(_) => renewals.push(element),
                _ => firsts.push(element),
            }
        }
        if !firsts.is_empty() {
            let sent = send(link, |link| bind_writes(link, &guards(&firsts), None)).await;
            Self::answer_all(firsts, sent, link).await;
        }
        if !renewals.is_empty() {
            let sent = send(link, |link| bind_renewals(link, &guards(&renewals))).await;
            Self::answer_all(renewals, sent, link).await;
        }
        for element in seconds {
            element.look_closer(false, link).await;
        }
    }
}

/// A write with what guards it.
type Guarded<'a> = (&'a Lease, &'a Write);

fn guards(batch: &[GuardedWrite]) -> Vec<Guarded<'_>> {
    batch.iter().map(|element| (&element.lease, &element.write)).collect()
}

fn read_attempt(row: &PgRow) -> Option<AttemptId> {
    use sqlx::Row as _;
    let attempt: sqlx::types::Uuid = row.try_get(0).ok()?;
    Some(AttemptId::from_bytes(attempt.into_bytes()))
}

impl GuardedWrite {
    async fn answer_all(batch: Vec<Self>, sent: Sent, link: &Link) {
        let (applied, lost): (HashSet<AttemptId>, bool) = match sent {
            Sent::Answered(rows) => (rows.iter().filter_map(read_attempt).collect(), false),
            Sent::OneByOne { may_have_happened } => (HashSet::new(), may_have_happened),
            Sent::Failed(error) => {
                return batch.into_iter().for_each(|element| {
                    let _ = element.sender.send(Err(for_each(&error)));
                });
            }
        };
        for element in batch {
            if applied.contains(&element.lease.attempt) {
                let _ = element.sender.send(Ok(Written::Applied));
            } else {
                element.look_closer(lost, link).await;
            }
        }
    }

    async fn look_closer(self, may_have_happened: bool, link: &Link) {
        let GuardedWrite { lease, write, sender } = self;
        link.look_closer(Look::Write { lease, write, may_have_happened, sender }).await;
    }
}

fn column<'a, T>(batch: &[Guarded<'a>], value: impl Fn(Guarded<'a>) -> T) -> Vec<T> {
    batch.iter().map(|guarded| value(*guarded)).collect()
}

fn bind_guards(call: Call<'static>, link: &impl Caller, batch: &[Guarded<'_>]) -> Call<'static> {
    call.bind(link.now())
        .bind(column(batch, |(lease, _)| lease.id.scope.as_str()))
        .bind(column(batch, |(lease, _)| lease.id.key.as_str()))
        .bind(column(batch, |(lease, _)| uuid(lease.attempt)))
        .bind(column(batch, |(lease, _)| lease.fence.number()))
}

fn bind_renewals(link: &impl Caller, batch: &[Guarded<'_>]) -> Call<'static> {
    bind_guards(call(&link.statements().renew), link, batch).bind(column(batch, |(_, write)| {
        match write {
            Write::Renew(by) => micros(*by),
            _ => 0,
        }
    }))
}

/// `patience` as for [`bind_reserves`].
pub(super) fn bind_writes(
    link: &impl Caller,
    batch: &[Guarded<'_>],
    patience: Option<&str>,
) -> Call<'static> {
    let replies = column(batch, |(_, write)| match write {
        Write::Complete(reply) => Some(reply_parts(reply)),
        _ => None,
    });
    let statuses: Vec<_> = replies.iter().map(|r| r.as_ref().map(|reply| reply.0)).collect();
    let headers: Vec<_> = replies.iter().map(|r| r.as_ref().map(|reply| &reply.1[..])).collect();
    let schemas: Vec<_> = replies.iter().map(|r| r.as_ref().and_then(|reply| reply.2)).collect();
    let bodies: Vec<_> = replies.iter().map(|r| r.as_ref().and_then(|reply| reply.3)).collect();
    bind_guards(call(&link.statements().write), link, batch)
        .bind(column(batch, |(_, write)| match write {
            Write::Complete(_) => "complete",
            Write::Release(_) => "release",
            Write::MarkUnknown(_) | Write::Renew(_) => "unknown",
        }))
        .bind(column(batch, |(_, write)| match write {
            Write::Release(why) | Write::MarkUnknown(why) => Some(&**why),
            Write::Complete(_) | Write::Renew(_) => None,
        }))
        .bind(statuses)
        .bind(headers)
        .bind(schemas)
        .bind(bodies)
        .bind(patience.map(str::to_owned))
}

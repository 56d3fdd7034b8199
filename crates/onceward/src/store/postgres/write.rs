//! What attempts write to records that they hold, many in one call.

use std::collections::HashSet;

use sqlx::postgres::PgRow;

use super::{
    batch::{Sent, for_each, send},
    link::{Call, Caller, Link, call},
    look::Look,
    row::{micros, reply_parts, uuid},
};
use crate::{
    record::{AttemptId, Lease, RecordId},
    reply::Reply,
    store::{StoreError, Write, Written, lane::Sender},
};

/// A write that stands in line.
pub(super) struct GuardedWrite {
    pub(super) lease: Lease,
    pub(super) write: Write,
    pub(super) sender: Sender<Written>,
}

/// A batch of writes by how they are sent.
#[derive(Default)]
pub(super) struct Writes {
    /// At most one for each record.
    pub(super) completes: Vec<GuardedWrite>,
    /// What ends attempts otherwise.
    pub(super) others: Vec<GuardedWrite>,
    pub(super) renewals: Vec<GuardedWrite>,
    /// Two writes to one record cannot be in one statement: these are looked at after the others.
    pub(super) seconds: Vec<GuardedWrite>,
}

impl Writes {
    pub(super) fn of(mut batch: Vec<GuardedWrite>) -> Self {
        batch.sort_by(|a, b| a.lease.id.cmp(&b.lease.id));
        let mut writes = Writes::default();
        let mut last: Option<RecordId> = None;
        let mut attempts = HashSet::new();
        for element in batch {
            // Answers are told apart by the attempt.
            let is_first = attempts.insert(element.lease.attempt);
            if last.as_ref() == Some(&element.lease.id) || !is_first {
                writes.seconds.push(element);
                continue;
            }
            last = Some(element.lease.id.clone());
            match element.write {
                Write::Renew(_) => writes.renewals.push(element),
                Write::Complete(_) => writes.completes.push(element),
                Write::Release(_) | Write::MarkUnknown(_) => writes.others.push(element),
            }
        }
        writes
    }

    pub(super) async fn send_all(self, link: &mut Link) {
        GuardedWrite::send_all(self.completes, false, link).await;
        GuardedWrite::send_all(self.others, false, link).await;
        if !self.renewals.is_empty() {
            let mut lost = false;
            let sent = send(link, &mut lost, |link| bind_renewals(link, &self.renewals)).await;
            GuardedWrite::answer(self.renewals, sent, attempts, lost, link).await;
        }
        for element in self.seconds {
            element.look_closer(false, link).await;
        }
    }
}

/// The attempts whose write was applied.
pub(super) fn attempts(rows: &[PgRow]) -> HashSet<AttemptId> {
    use sqlx::Row as _;
    let attempt = |row: &PgRow| row.try_get("attempt").ok().map(sqlx::types::Uuid::into_bytes);
    rows.iter().filter_map(attempt).map(AttemptId::from_bytes).collect()
}

/// The same where they stand in the first row, one after the other.
pub(super) fn attempts_in_one(rows: &[PgRow]) -> HashSet<AttemptId> {
    use sqlx::Row as _;
    let rows = rows.first().map(std::slice::from_ref).unwrap_or_default();
    let all = |row| PgRow::try_get::<&[u8], _>(row, "applied").unwrap_or_default();
    let (chunks, _): (Vec<&[[u8; 16]]>, Vec<_>) =
        rows.iter().map(all).map(<[u8]>::as_chunks).unzip();
    chunks.into_iter().flatten().copied().map(AttemptId::from_bytes).collect()
}

impl GuardedWrite {
    pub(super) fn bytes(&self) -> usize {
        let reply = match &self.write {
            Write::Complete(reply) => reply.body_bytes().len(),
            _ => 0,
        };
        512 + reply
    }

    /// Sends completes, or what ends attempts otherwise. `lost` says that they were sent before, and no
    /// answer came.
    pub(super) async fn send_all(batch: Vec<Self>, mut lost: bool, link: &mut Link) {
        if batch.is_empty() {
            return;
        }
        if let [GuardedWrite { lease, write: Write::Complete(reply), .. }] = &batch[..] {
            let bind = |link: &Link| {
                bind_complete(call(&link.statements().complete_one), link, lease, reply, None)
            };
            let sent = send(link, &mut lost, bind).await;
            match sent {
                Sent::Locked => Self::send_unlocked(batch, lost, link).await,
                sent => Self::answer(batch, sent, attempts, lost, link).await,
            }
            return;
        }
        let bind = |link: &Link| bind_endings(link, &guards(&batch), Locked::InTheWay);
        match send(link, &mut lost, bind).await {
            Sent::Locked => Self::send_unlocked(batch, lost, link).await,
            sent => Self::answer(batch, sent, attempts_in_one, lost, link).await,
        }
    }

    /// The same without those that are locked: one of them must not stall strangers.
    pub(super) async fn send_unlocked(batch: Vec<Self>, mut lost: bool, link: &mut Link) {
        let bind = |link: &Link| bind_endings(link, &guards(&batch), Locked::Skipped);
        let sent = send(link, &mut lost, bind).await;
        Self::answer(batch, sent, attempts_in_one, lost, link).await;
    }

    async fn answer(
        batch: Vec<Self>,
        sent: Sent,
        applied: impl Fn(&[PgRow]) -> HashSet<AttemptId>,
        lost: bool,
        link: &Link,
    ) {
        match sent {
            Sent::Answered(rows) => Self::answer_all(batch, &applied(&rows), lost, link).await,
            Sent::Locked | Sent::Refused => {
                Self::answer_all(batch, &HashSet::new(), lost, link).await
            }
            Sent::Failed(error) => Self::fail_all(batch, &error),
        }
    }

    /// Answers those that were applied, and has the others looked at.
    pub(super) async fn answer_all(
        batch: Vec<Self>,
        applied: &HashSet<AttemptId>,
        lost: bool,
        link: &Link,
    ) {
        let is_witness = |element: &&Self| {
            matches!(element.write, Write::Complete(_)) && applied.contains(&element.lease.attempt)
        };
        if let Some(GuardedWrite { lease, .. }) = batch.iter().rev().find(is_witness) {
            link.acknowledged(lease, true);
        }
        for element in batch {
            if applied.contains(&element.lease.attempt) {
                // The caller may be gone. What was done is done all the same.
                let _ = element.sender.send(Ok(Written::Applied));
            } else {
                element.look_closer(lost, link).await;
            }
        }
    }

    pub(super) fn fail_all(batch: Vec<Self>, error: &StoreError) {
        for element in batch {
            let _ = element.sender.send(Err(for_each(error)));
        }
    }

    async fn look_closer(self, may_have_happened: bool, link: &Link) {
        let GuardedWrite { lease, write, sender } = self;
        link.look_closer(Look::Write { lease, write, may_have_happened, sender }).await;
    }
}

/// A write with what guards it.
type Guarded<'a> = (&'a Lease, &'a Write);

pub(super) fn guards(batch: &[GuardedWrite]) -> Vec<Guarded<'_>> {
    batch.iter().map(|element| (&element.lease, &element.write)).collect()
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

fn bind_renewals(link: &impl Caller, batch: &[GuardedWrite]) -> Call<'static> {
    let batch = &guards(batch);
    bind_guards(call(&link.statements().renew), link, batch).bind(column(batch, |(_, write)| {
        match write {
            Write::Renew(by) => micros(*by),
            _ => 0,
        }
    }))
}

/// What becomes of a record that is locked.
pub(super) enum Locked {
    /// All wait for it, for a moment.
    InTheWay,
    /// It is left out.
    Skipped,
}

/// One reply that is alone. `patience` is how long it waits for whoever has the record locked.
pub(super) fn bind_complete(
    call: Call<'static>,
    link: &impl Caller,
    lease: &Lease,
    reply: &Reply,
    patience: Option<&'static str>,
) -> Call<'static> {
    let (status, headers, schema_version, body) = reply_parts(reply);
    call.bind(link.now())
        .bind(lease.id.scope.as_str().to_owned())
        .bind(lease.id.key.as_str().to_owned())
        .bind(uuid(lease.attempt))
        .bind(lease.fence.number())
        .bind(status)
        .bind(headers)
        .bind(schema_version.map(str::to_owned))
        .bind(body.map(<[u8]>::to_vec))
        .bind(patience)
}

/// All of them completes, or none.
fn bind_endings(link: &impl Caller, batch: &[Guarded<'_>], locked: Locked) -> Call<'static> {
    match batch {
        [(_, Write::Complete(_)), ..] => {
            bind_completes(call(&link.statements().complete_all), link, batch, locked)
        }
        _ => bind_others(link, batch, locked),
    }
}

pub(super) fn bind_completes(
    call: Call<'static>,
    link: &impl Caller,
    batch: &[Guarded<'_>],
    locked: Locked,
) -> Call<'static> {
    let replies = column(batch, |(_, write)| match write {
        Write::Complete(reply) => Some(reply_parts(reply)),
        _ => None,
    });
    let statuses: Vec<_> = replies.iter().map(|r| r.as_ref().map(|reply| reply.0)).collect();
    let headers: Vec<_> = replies.iter().map(|r| r.as_ref().map(|reply| &reply.1[..])).collect();
    let schemas: Vec<_> = replies.iter().map(|r| r.as_ref().and_then(|reply| reply.2)).collect();
    let bodies: Vec<_> = replies.iter().map(|r| r.as_ref().and_then(|reply| reply.3)).collect();
    bind_guards(call, link, batch)
        .bind(statuses)
        .bind(headers)
        .bind(schemas)
        .bind(bodies)
        .bind(matches!(locked, Locked::Skipped))
}

fn bind_others(link: &impl Caller, batch: &[Guarded<'_>], locked: Locked) -> Call<'static> {
    bind_guards(call(&link.statements().give_up), link, batch)
        .bind(column(batch, |(_, write)| match write {
            Write::Release(_) => "release",
            _ => "unknown",
        }))
        .bind(column(batch, |(_, write)| match write {
            Write::Release(why) | Write::MarkUnknown(why) => Some(&**why),
            Write::Complete(_) | Write::Renew(_) => None,
        }))
        .bind(matches!(locked, Locked::Skipped))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::{
        clock::Timestamp,
        record::Fence,
        testing::samples::{id, reply},
    };

    fn write(key: &str, write: Write) -> GuardedWrite {
        let lease = Lease {
            id: id("tenant", key),
            attempt: AttemptId::random(),
            fence: Fence::from_stored(7),
            generation: 1,
            attempt_number: 1,
            until: Timestamp::NEVER,
        };
        GuardedWrite { lease, write, sender: oneshot::channel().0 }
    }

    fn keys(batch: &[GuardedWrite]) -> Vec<&str> {
        batch.iter().map(|element| element.lease.id.key.as_str()).collect()
    }

    #[test]
    fn writes_of_each_kind_go_in_the_order_of_records() {
        let complete = || Write::Complete(reply("done"));
        let renew = || Write::Renew(Duration::from_secs(60));
        let writes = Writes::of(vec![
            write("5", renew()),
            write("8", Write::Release("declined".into())),
            write("3", complete()),
            write("1", complete()),
            write("4", renew()),
            write("7", Write::MarkUnknown("reset".into())),
            write("3", renew()),
            write("2", complete()),
        ]);
        assert_eq!(keys(&writes.completes), ["1", "2", "3"]);
        assert_eq!(keys(&writes.others), ["7", "8"]);
        assert_eq!(keys(&writes.renewals), ["4", "5"]);
        assert_eq!(keys(&writes.seconds), ["3"]);
    }
}

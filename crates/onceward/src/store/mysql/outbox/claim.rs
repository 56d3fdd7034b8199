//! Messages are claimed for delivery: those whose lease ran out, then those that are due, oldest first,
//! and of an aggregate only the head.
//!
//! A claim must pass over a hundred thousand messages behind one dead letter without looking at each.
//! So the first claim that meets a message which is behind another one marks it as held, and those are
//! not looked at. It locks the message and then one that is before it; whoever ends that one locks it
//! too, and takes the mark away afterwards. What cannot be locked at once is left as it is: a mark that
//! is missing costs a second look and no order.

use std::{collections::BTreeMap, time::Duration};

use sqlx::{Row as _, mysql::MySqlRow};

use super::{
    super::{
        link::Link,
        row::Values as _,
        session::{Session, Statement},
        sql::{Query, places},
    },
    COLUMNS,
};
use crate::{
    clock::Timestamp,
    outbox::Claimed,
    record::AttemptId,
    store::{StoreError, message_row::read_message},
};

/// So many messages are looked at in one transaction, at most, and the rest in another one.
const LOOKS_MAX: usize = 1000;

/// So many messages are looked at by one statement, at most, unless more are asked for.
const PAGE_MAX: usize = 500;

pub(super) struct Claim {
    pub(super) limit: u32,
    pub(super) sinks: Vec<String>,
    pub(super) lease: Duration,
    pub(super) attempt: AttemptId,
}

/// How far a claim has looked.
#[derive(Clone, Copy, Default)]
struct Place {
    sink: usize,
    /// The last message of the sink that was looked at: when it was due, and its number.
    last: Option<(i64, i64)>,
    /// How many messages were looked at.
    looks: usize,
}

/// One transaction of a claim.
struct Look {
    claim: Claim,
    from: Place,
}

enum Looked {
    /// This is all there is.
    Claimed(Vec<Claimed>),
    /// Nothing was taken so far, and there is more to look at.
    Further(Place),
}

/// A message that may be claimed.
struct Due {
    id: i64,
    next_at: i64,
    has_aggregate: bool,
}

impl Claim {
    /// Looks on until something is taken. That a message is held stays written, whatever becomes of
    /// the looks after that: each is a transaction of its own, and a short one.
    pub(super) async fn make(self, link: &mut Link) -> Result<Vec<Claimed>, StoreError> {
        if self.limit == 0 {
            return Ok(Vec::new());
        }
        let mut look = Look { claim: self, from: Place::default() };
        loop {
            match link.state(&look).await? {
                Looked::Claimed(claimed) => return Ok(claimed),
                Looked::Further(place) => look.from = place,
            }
        }
    }

    fn room(&self, taken: &[i64]) -> usize {
        (self.limit as usize).saturating_sub(taken.len())
    }

    /// What was begun for a sink and not ended. It is the head of its aggregate.
    async fn begun(
        &self,
        session: &mut Session<'_>,
        sink: &str,
        taken: &mut Vec<i64>,
        now: Timestamp,
    ) -> sqlx::Result<()> {
        let begun = session
            .statements
            .named(
                "SELECT message_id FROM onceward_outbox FORCE INDEX (message_delivering) \
                 WHERE state = 'delivering' AND sink = ? AND lease_until <= ? \
                 ORDER BY lease_until, message_id LIMIT ? FOR UPDATE SKIP LOCKED",
            )
            .word(sink)
            .integer(now.as_micros())
            .integer(self.room(taken) as i64);
        for row in begun.fetch_all(&mut *session.connection).await? {
            taken.push(row.try_get(0)?);
        }
        Ok(())
    }

    /// Takes these, which are locked.
    async fn take(
        &self,
        session: &mut Session<'_>,
        taken: &[i64],
        now: Timestamp,
    ) -> sqlx::Result<()> {
        let take = format!(
            "UPDATE onceward_outbox SET attempts = attempts + 1, \
             ambiguous = IF(ambiguous = 1 OR state = 'delivering', 1, 0), \
             state = 'delivering', attempt = ?, fence = GREATEST(fence + 1, ?), \
             lease_until = ? WHERE message_id IN ({})",
            places(taken.len())
        );
        let take = session
            .statements
            .named(&take)
            .bytes(self.attempt.as_bytes())
            .integer(now.as_micros())
            .integer(now.plus(self.lease).as_micros());
        with_ids(take, taken).execute(&mut *session.connection).await.map(drop)
    }

    async fn mine(&self, session: &mut Session<'_>, now: Timestamp) -> sqlx::Result<Vec<MySqlRow>> {
        // Also locked: a repeated call waits for the one whose answer was lost.
        let mine = session
            .statements
            .named(&format!(
                "SELECT {COLUMNS} FROM onceward_outbox FORCE INDEX (message_claim) \
                 WHERE attempt = ? AND state = 'delivering' AND lease_until > ? \
                 ORDER BY message_id FOR UPDATE"
            ))
            .bytes(self.attempt.as_bytes())
            .integer(now.as_micros());
        mine.fetch_all(&mut *session.connection).await
    }
}

impl Statement for Look {
    type Answer = Looked;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Looked> {
        let now = session.now().await?;
        let mut rows = self.claim.mine(session, now).await?;
        if rows.is_empty() {
            let mut place = self.from;
            let taken = self.look(session, &mut place, now).await?;
            if taken.is_empty() {
                return Ok(match place.sink < self.claim.sinks.len() {
                    true => Looked::Further(place),
                    false => Looked::Claimed(Vec::new()),
                });
            }
            self.claim.take(session, &taken, now).await?;
            rows = self.claim.mine(session, now).await?;
        }
        let mut claimed = Vec::with_capacity(rows.len());
        for row in &rows {
            match read_message(row) {
                Ok(message) => claimed.push(message.into()),
                // It would be claimed for ever. As a dead letter it stands in nobody's way.
                Err(_) => {
                    let give_up = "UPDATE onceward_outbox SET state = 'dead', \
                        last_error = 'it cannot be read' WHERE message_id = ?";
                    let give_up = session.statements.named(give_up);
                    let give_up = give_up.integer(row.try_get::<i64, _>("message_id")?);
                    give_up.execute(&mut *session.connection).await?;
                }
            }
        }
        Ok(Looked::Claimed(claimed))
    }
}

impl Look {
    /// What can be claimed, locked, until there is no room for more. Goes no further in this
    /// transaction when a page was in vain.
    async fn look(
        &self,
        session: &mut Session<'_>,
        place: &mut Place,
        now: Timestamp,
    ) -> sqlx::Result<Vec<i64>> {
        let claim = &self.claim;
        let mut taken = Vec::new();
        while let Some(sink) = claim.sinks.get(place.sink) {
            // What was begun comes first: it has waited for its lease already.
            if place.last.is_none() {
                claim.begun(session, sink, &mut taken, now).await?;
            }
            let room = claim.room(&taken);
            if room == 0 || place.looks - self.from.looks >= LOOKS_MAX {
                return Ok(taken);
            }
            // No more than there is room for, so that others find the rest; many, if most are held.
            let size = room.max(place.looks.min(PAGE_MAX));
            let due = page(session, sink, place.last, size, now).await?;
            let Some(end) = due.last() else {
                *place = Place { sink: place.sink + 1, last: None, looks: place.looks };
                continue;
            };
            place.last = Some((end.next_at, end.id));
            place.looks += due.len();
            taken.extend(heads(session, &due).await?.into_iter().take(room));
            if taken.is_empty() {
                return Ok(taken);
            }
        }
        Ok(taken)
    }
}

/// What is due for a sink after the last that was looked at, locked.
async fn page(
    session: &mut Session<'_>,
    sink: &str,
    last: Option<(i64, i64)>,
    size: usize,
    now: Timestamp,
) -> sqlx::Result<Vec<Due>> {
    let (next_at, id) = last.unwrap_or((i64::MIN, 0));
    let due = session
        .statements
        .named(
            "SELECT message_id, next_at, aggregate IS NOT NULL FROM onceward_outbox \
             FORCE INDEX (message_ready) WHERE state = 'ready' AND held = 0 AND sink = ? \
             AND next_at <= ? AND (next_at > ? OR next_at = ? AND message_id > ?) \
             ORDER BY next_at, message_id LIMIT ? FOR UPDATE SKIP LOCKED",
        )
        .word(sink)
        .integer(now.as_micros())
        .integer(next_at)
        .integer(next_at)
        .integer(id)
        .integer(size as i64);
    let rows = due.fetch_all(&mut *session.connection).await?;
    let read = |row: &MySqlRow| {
        let has_aggregate = row.try_get_unchecked::<i64, _>(2)? != 0;
        Ok(Due { id: row.try_get(0)?, next_at: row.try_get(1)?, has_aggregate })
    };
    rows.iter().map(read).collect()
}

/// Those of these before which there is nothing in their aggregate; then there never is. The others
/// are held, until what is before them has ended: for that this has to be locked.
async fn heads(session: &mut Session<'_>, due: &[Due]) -> sqlx::Result<Vec<i64>> {
    let ordered: Vec<i64> = due.iter().filter(|it| it.has_aggregate).map(|it| it.id).collect();
    let behind = before(session, &ordered).await?;
    let mut firsts: Vec<i64> = behind.values().copied().collect();
    firsts.sort_unstable();
    firsts.dedup();
    let firsts = locked(session, &firsts).await?;
    let held = behind.iter().filter(|(_, first)| firsts.contains(first)).map(|(id, _)| *id);
    let held: Vec<i64> = held.collect();
    if !held.is_empty() {
        let hold = "UPDATE onceward_outbox SET held = 1 WHERE message_id IN ";
        let hold = session.statements.named(&format!("{hold}({})", places(held.len())));
        with_ids(hold, &held).execute(&mut *session.connection).await?;
    }
    Ok(due.iter().map(|it| it.id).filter(|id| !behind.contains_key(id)).collect())
}

/// What comes first in the aggregate of each of these that are not the first themselves.
async fn before(session: &mut Session<'_>, ids: &[i64]) -> sqlx::Result<BTreeMap<i64, i64>> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    // A new statement, which sees what was done until the messages were locked.
    let before = format!(
        "SELECT o.message_id, (SELECT e.message_id FROM onceward_outbox e \
         FORCE INDEX (message_order) WHERE e.open_aggregate = o.aggregate \
         AND e.message_id < o.message_id ORDER BY e.message_id LIMIT 1) \
         FROM onceward_outbox o FORCE INDEX (PRIMARY) WHERE o.message_id IN ({})",
        places(ids.len())
    );
    let before = with_ids(session.statements.named(&before), ids);
    let mut found = BTreeMap::new();
    for row in before.fetch_all(&mut *session.connection).await? {
        if let Some(first) = row.try_get::<Option<i64>, _>(1)? {
            found.insert(row.try_get(0)?, first);
        }
    }
    Ok(found)
}

/// Those of these that are not done, locked; without those that others have locked.
async fn locked(session: &mut Session<'_>, ids: &[i64]) -> sqlx::Result<Vec<i64>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let lock = format!(
        "SELECT message_id FROM onceward_outbox FORCE INDEX (PRIMARY) \
         WHERE message_id IN ({}) AND state <> 'done' FOR UPDATE SKIP LOCKED",
        places(ids.len())
    );
    let lock = with_ids(session.statements.named(&lock), ids);
    let rows = lock.fetch_all(&mut *session.connection).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// A statement that is about so many is not prepared for the next one.
fn with_ids(query: Query<'static>, ids: &[i64]) -> Query<'static> {
    ids.iter().fold(query, |query, id| query.integer(*id)).persistent(false)
}

//! A message is staged: in the transaction of whoever has its record.

use sqlx::Row as _;

use super::super::{
    error::{damaged, is_duplicate},
    row::{Values as _, bind_id},
    session::{Lock, Session, Statement},
};
use crate::{
    clock::Timestamp,
    outbox::{Message, Owner, Staged},
    record::{Record, State},
};

/// Stages a message within the transaction that is open, whose record is locked.
///
/// The record must be in progress under this attempt and fence. If it is not, nothing is staged, and
/// the transaction must not commit.
pub(in super::super) async fn stage_in(
    session: &mut Session<'_>,
    record: Option<&Record>,
    owner: &Owner,
    message: &Message,
    now: Timestamp,
) -> sqlx::Result<Staged> {
    if let Some(refusal) = message.refusal() {
        return Ok(Staged::Refused(refusal));
    }
    let owned = record.filter(|record| {
        record.generation == owner.generation
            && record.state == State::InProgress
            && record.attempt == owner.attempt
            && record.fence == owner.fence
    });
    let Some(record) = owned else { return Ok(Staged::Superseded) };
    if let Some(aggregate) = &message.aggregate {
        lock_aggregate(session, aggregate).await?;
    }
    let derived_key = owner.derived_key(&message.name);
    // Nobody deletes it as long as this record is in progress.
    let before = session
        .statements
        .named("SELECT message_id, record_created_at FROM onceward_outbox WHERE derived_key = ?");
    let before = before.word(&derived_key).fetch_optional(&mut *session.connection).await?;
    if let Some(before) = before {
        if before.try_get::<i64, _>("record_created_at")? == record.created_at.as_micros() {
            return Ok(Staged::AlreadyMine);
        }
        // The record was purged and made again, so that the key is new. The message of its former use
        // is in the way of the new one only as long as it is not delivered.
        let forget = session
            .statements
            .named("DELETE FROM onceward_outbox WHERE message_id = ? AND state = 'done'")
            .integer(before.try_get::<i64, _>("message_id")?);
        forget.execute(&mut *session.connection).await?;
    }
    let stage = session.statements.named(
        "INSERT INTO onceward_outbox (scope, `key`, generation, record_created_at, name, \
         derived_key, sink, aggregate, content_type, payload, state, held, attempts, ambiguous, \
         next_at, fence, created_at) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'ready', 0, 0, 0, ?, 0, ?)",
    );
    let stage = bind_id(stage, &record.id)
        .integer(i64::from(record.generation))
        .integer(record.created_at.as_micros())
        .word(&message.name)
        .word(&derived_key)
        .word(&message.sink)
        .text(message.aggregate.as_deref().map(str::to_owned))
        .word(&message.content_type)
        .bytes(&message.payload)
        .integer(now.as_micros())
        .integer(now.as_micros());
    match stage.execute(&mut *session.connection).await {
        Ok(_) => Ok(Staged::Applied),
        Err(error) if is_duplicate(&error) => in_the_way(session, record, &derived_key).await,
        Err(error) => Err(error),
    }
}

/// Until the end of the transaction, so that ids grow in the order of commits. Inserted only if it is
/// not there: an insert of what is there would lock the gap before it, too.
async fn lock_aggregate(session: &mut Session<'_>, aggregate: &str) -> sqlx::Result<()> {
    let seen = "SELECT aggregate FROM onceward_aggregates WHERE aggregate = ?";
    let look = session.statements.named(seen).word(aggregate);
    if look.fetch_optional(&mut *session.connection).await?.is_some() {
        let lock = session.statements.named(&format!("{seen} FOR UPDATE")).word(aggregate);
        if lock.fetch_optional(&mut *session.connection).await?.is_some() {
            return Ok(());
        }
    }
    let make = session.statements.named(
        "INSERT INTO onceward_aggregates (aggregate) VALUES (?) \
         ON DUPLICATE KEY UPDATE aggregate = VALUES(aggregate)",
    );
    make.word(aggregate).execute(&mut *session.connection).await.map(drop)
}

/// What is there already, as it was committed last: the transaction may not see it, or see what is gone.
async fn in_the_way(
    session: &mut Session<'_>,
    record: &Record,
    derived_key: &str,
) -> sqlx::Result<Staged> {
    let there = session.statements.named(
        "SELECT record_created_at FROM onceward_outbox WHERE derived_key = ? LOCK IN SHARE MODE",
    );
    let there = there.word(derived_key).fetch_one(&mut *session.connection).await?;
    Ok(match there.try_get::<i64, _>(0)? == record.created_at.as_micros() {
        true => Staged::AlreadyMine,
        false => Staged::Refused("a message of a former use of the key is not delivered yet"),
    })
}

pub(super) struct Stage(pub(super) Owner, pub(super) Message);

impl Statement for Stage {
    type Answer = Staged;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Staged> {
        let Stage(owner, message) = self;
        let ids = [owner.id.clone()];
        let (mut found, now) = session.load(&ids, Lock::Rows).await?;
        let record = found.remove(&owner.id).map(|found| found.record).transpose();
        let record = record.map_err(|()| sqlx::Error::Decode(damaged().into()))?;
        stage_in(session, record.as_ref(), owner, message, now).await
    }
}

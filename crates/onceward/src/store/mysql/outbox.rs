//! The outbox: staged in the user's transaction or in one of our own, everything else on connections
//! of our own.

use std::time::Duration;

use sqlx::{Row as _, mysql::MySqlRow};

use super::{
    MySqlStore,
    error::{damaged, unreadable},
    row::{BadRow, Columns, Values as _, bind_id},
    session::{Lock, Session, Statement},
    sql::places,
};
use crate::{
    clock::Timestamp,
    outbox::{
        Backlog, Claimed, DEAD_LETTERS_MAX, DeadLetter, ListedMessage, Message, MessageId,
        MessageQuery, MessageState, OutboxStore, Owner, Settlement, Staged, StoredMessage,
    },
    record::{AttemptId, AuditEvent, AuditRecord, Fence, Lease, Record, RecordId, State},
    store::{StoreFuture, message_row::read_message},
};

/// The columns of a message, in the order of `read_message`.
const COLUMNS: &str = "scope, `key`, generation, name, derived_key, sink, aggregate, content_type, \
    payload, state, attempts, ambiguous, next_at, lease_until, attempt, fence, provider_id, \
    last_error, created_at, done_at, message_id";

/// The same without the payload, and how long that is.
const LISTED: &str = "scope, `key`, generation, name, derived_key, sink, aggregate, content_type, \
    '' AS payload, state, attempts, ambiguous, next_at, lease_until, attempt, fence, provider_id, \
    last_error, created_at, done_at, message_id, \
    CAST(OCTET_LENGTH(payload) AS SIGNED) AS payload_bytes";

/// The operation that staged a message is over and will not stage it again.
const OPERATION_IS_OVER: &str = "NOT EXISTS (SELECT 1 FROM onceward_records r \
    WHERE r.scope = o.scope AND r.`key` = o.`key` AND r.generation = o.generation \
    AND r.created_at = o.record_created_at AND r.state NOT IN ('completed', 'expired'))";

/// So many messages are looked at for one claim, at most.
const LOOKS_MAX: usize = 5000;

/// Stages a message within the transaction that is open, whose record is locked.
///
/// The record must be in progress under this attempt and fence. If it is not, nothing is staged, and
/// the transaction must not commit.
pub(super) async fn stage_in(
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
        // Until the end of the transaction, so that ids grow in the order of commits.
        let lock = session.statements.named(
            "INSERT INTO onceward_aggregates (aggregate) VALUES (?) \
             ON DUPLICATE KEY UPDATE aggregate = VALUES(aggregate)",
        );
        lock.word(aggregate).execute(&mut *session.connection).await?;
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
        if forget.execute(&mut *session.connection).await?.rows_affected() == 0 {
            return Ok(Staged::Refused(
                "a message of a former use of the key is not delivered yet",
            ));
        }
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
    stage.execute(&mut *session.connection).await?;
    Ok(Staged::Applied)
}

struct Stage(Owner, Message);

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

struct Claim {
    limit: u32,
    sinks: Vec<String>,
    lease: Duration,
    attempt: AttemptId,
}

/// A message that may be claimed.
struct Due {
    id: i64,
    next_at: i64,
    aggregate: Option<Vec<u8>>,
}

impl Claim {
    /// What is due for one sink, and has nothing of its aggregate before it.
    async fn due(
        &self,
        session: &mut Session<'_>,
        sink: &str,
        taken: &mut Vec<i64>,
        looks: &mut usize,
        now: Timestamp,
    ) -> sqlx::Result<()> {
        let room = |taken: &Vec<i64>| (self.limit as usize).saturating_sub(taken.len());
        // What was begun comes first: it has waited for its lease already. It is the head.
        let begun = session
            .statements
            .named(
                "SELECT message_id FROM onceward_outbox FORCE INDEX (message_delivering) \
                 WHERE state = 'delivering' AND sink = ? AND lease_until <= ? \
                 ORDER BY lease_until, message_id LIMIT ? FOR UPDATE SKIP LOCKED",
            )
            .word(sink)
            .integer(now.as_micros())
            .integer(room(taken) as i64);
        for row in begun.fetch_all(&mut *session.connection).await? {
            taken.push(row.try_get(0)?);
        }
        let mut last = (i64::MIN, 0);
        while room(taken) > 0 && *looks < LOOKS_MAX {
            // No more than there is room for, so that others find the rest; many, if most are held.
            let page = room(taken).max((*looks).min(500));
            let due = session
                .statements
                .named(
                    "SELECT message_id, next_at, aggregate FROM onceward_outbox \
                     FORCE INDEX (message_ready) WHERE state = 'ready' AND held = 0 AND sink = ? \
                     AND next_at <= ? AND (next_at > ? OR next_at = ? AND message_id > ?) \
                     ORDER BY next_at, message_id LIMIT ? FOR UPDATE SKIP LOCKED",
                )
                .word(sink)
                .integer(now.as_micros())
                .integer(last.0)
                .integer(last.0)
                .integer(last.1)
                .integer(page as i64);
            let rows = due.fetch_all(&mut *session.connection).await?;
            let read = |row: &MySqlRow| {
                Ok(Due {
                    id: row.try_get(0)?,
                    next_at: row.try_get(1)?,
                    aggregate: row.try_get_unchecked(2)?,
                })
            };
            let due: Vec<Due> = rows.iter().map(read).collect::<sqlx::Result<_>>()?;
            let Some(end) = due.last() else { return Ok(()) };
            last = (end.next_at, end.id);
            *looks += due.len();
            for one in due {
                if self.is_head(session, &one).await? && room(taken) > 0 {
                    taken.push(one.id);
                }
            }
        }
        Ok(())
    }

    /// Whether nothing is before it in its aggregate; then nothing ever is. Else it is held, until what
    /// is before it has ended: for that this has to be locked.
    async fn is_head(&self, session: &mut Session<'_>, due: &Due) -> sqlx::Result<bool> {
        let Some(aggregate) = &due.aggregate else { return Ok(true) };
        let before = "SELECT message_id FROM onceward_outbox FORCE INDEX (message_order) \
            WHERE open_aggregate = ? AND message_id < ? ORDER BY message_id LIMIT 1";
        let ask = session.statements.named(before).bytes(aggregate).integer(due.id);
        let Some(row) = ask.fetch_optional(&mut *session.connection).await? else {
            return Ok(true);
        };
        let before: i64 = row.try_get(0)?;
        let lock = session
            .statements
            .named(
                "SELECT message_id FROM onceward_outbox \
                 WHERE message_id = ? AND state <> 'done' FOR UPDATE SKIP LOCKED",
            )
            .integer(before);
        if lock.fetch_optional(&mut *session.connection).await?.is_some() {
            let hold = "UPDATE onceward_outbox SET held = 1 WHERE message_id = ?";
            let hold = session.statements.named(hold).integer(due.id);
            hold.execute(&mut *session.connection).await?;
        }
        Ok(false)
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

impl Statement for Claim {
    type Answer = Vec<Claimed>;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Vec<Claimed>> {
        let now = session.now().await?;
        let mut rows = self.mine(session, now).await?;
        if rows.is_empty() {
            let (mut taken, mut looks) = (Vec::new(), 0);
            for sink in &self.sinks {
                self.due(session, sink, &mut taken, &mut looks, now).await?;
            }
            if !taken.is_empty() {
                let claim = format!(
                    "UPDATE onceward_outbox SET attempts = attempts + 1, \
                     ambiguous = IF(ambiguous = 1 OR state = 'delivering', 1, 0), \
                     state = 'delivering', attempt = ?, fence = GREATEST(fence + 1, ?), \
                     lease_until = ? WHERE message_id IN ({})",
                    places(taken.len())
                );
                let claim = session
                    .statements
                    .named(&claim)
                    .bytes(self.attempt.as_bytes())
                    .integer(now.as_micros())
                    .integer(now.plus(self.lease).as_micros());
                let claim = taken.iter().fold(claim, |query, id| query.integer(*id));
                claim.persistent(false).execute(&mut *session.connection).await?;
                rows = self.mine(session, now).await?;
            }
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
        Ok(claimed)
    }
}

struct Settle {
    id: MessageId,
    attempt: AttemptId,
    fence: Fence,
    settlement: Settlement,
}

impl Statement for Settle {
    type Answer = bool;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<bool> {
        let mine = session
            .statements
            .named(
                "SELECT state, aggregate FROM onceward_outbox \
                 WHERE message_id = ? AND attempt = ? AND fence = ? FOR UPDATE",
            )
            .integer(self.id.number())
            .bytes(self.attempt.as_bytes())
            .integer(self.fence.number());
        let Some(row) = mine.fetch_optional(&mut *session.connection).await? else {
            return Ok(false);
        };
        let mut columns = Columns { row: &row, next: 0 };
        let state = columns.text("state").map_err(unreadable)?;
        if state != "delivering" {
            return Ok(state == self.settlement.state().name());
        }
        let now = session.now().await?;
        let settle = match &self.settlement {
            Settlement::Done { provider_id } => session
                .statements
                .named(
                    "UPDATE onceward_outbox SET state = 'done', done_at = ?, provider_id = ?, \
                     last_error = NULL, ambiguous = 0 WHERE message_id = ?",
                )
                .integer(now.as_micros())
                .text(provider_id.as_deref().map(str::to_owned)),
            Settlement::Retry { after, ambiguous, why } => session
                .statements
                .named(
                    "UPDATE onceward_outbox SET state = 'ready', next_at = ?, \
                     ambiguous = GREATEST(ambiguous, ?), last_error = ? WHERE message_id = ?",
                )
                .integer(now.plus(*after).as_micros())
                .integer(i64::from(*ambiguous))
                .word(why),
            Settlement::Dead { why } => session
                .statements
                .named(
                    "UPDATE onceward_outbox SET state = 'dead', last_error = ? \
                     WHERE message_id = ?",
                )
                .word(why),
        };
        settle.integer(self.id.number()).execute(&mut *session.connection).await?;
        let aggregate = columns.blob_or_null("aggregate").map_err(unreadable)?;
        if let (Settlement::Done { .. }, Some(aggregate)) = (&self.settlement, aggregate) {
            let_go(session, aggregate).await?;
        }
        Ok(true)
    }
}

/// The next of an aggregate is held no more. For whoever has locked and ended the one before.
async fn let_go(session: &mut Session<'_>, aggregate: &[u8]) -> sqlx::Result<()> {
    let next = "SELECT message_id FROM onceward_outbox FORCE INDEX (message_order) \
        WHERE open_aggregate = ? ORDER BY message_id LIMIT 1";
    let next = session.statements.named(next).bytes(aggregate);
    let Some(next) = next.fetch_optional(&mut *session.connection).await? else { return Ok(()) };
    let free = session
        .statements
        .named("UPDATE onceward_outbox SET held = 0 WHERE message_id = ? AND held = 1")
        .integer(next.try_get::<i64, _>(0)?);
    free.execute(&mut *session.connection).await.map(drop)
}

struct List {
    state: MessageState,
    after: Option<MessageId>,
    limit: u32,
}

impl Statement for List {
    type Answer = Vec<StoredMessage>;
    const READS: bool = true;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Vec<StoredMessage>> {
        let list = session
            .statements
            .named(&format!(
                "SELECT {COLUMNS} FROM onceward_outbox WHERE state = ? AND message_id > ? \
                 ORDER BY message_id LIMIT ?"
            ))
            .word(self.state.name())
            .integer(self.after.map_or(i64::MIN, MessageId::number))
            .integer(i64::from(self.limit));
        let rows = list.fetch_all(&mut *session.connection).await?;
        rows.iter().map(|row| read_message(row).map_err(|bad| unread(row, bad))).collect()
    }
}

struct Show(MessageQuery);

impl Statement for Show {
    type Answer = Vec<ListedMessage>;
    const READS: bool = true;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Vec<ListedMessage>> {
        let MessageQuery { state, sink, older_than, after, limit } = &self.0;
        let now = session.now().await?;
        let before = older_than.map_or(i64::MAX, |age| micros_before(now, age));
        let mut sql = format!(
            "SELECT {LISTED} FROM onceward_outbox WHERE message_id > ? AND created_at <= ?"
        );
        if state.is_some() {
            sql.push_str(" AND state = ?");
        }
        if sink.is_some() {
            sql.push_str(" AND sink = ?");
        }
        sql.push_str(" ORDER BY message_id LIMIT ?");
        let mut show = session
            .statements
            .named(&sql)
            .integer(after.map_or(i64::MIN, MessageId::number))
            .integer(before);
        if let Some(state) = state {
            show = show.word(state.name());
        }
        if let Some(sink) = sink {
            show = show.word(sink);
        }
        let rows = show.integer(i64::from(*limit)).fetch_all(&mut *session.connection).await?;
        rows.iter().map(read_listed).collect()
    }
}

struct ShowOne(MessageId);

impl Statement for ShowOne {
    type Answer = Option<ListedMessage>;
    const READS: bool = true;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Option<ListedMessage>> {
        let one = format!("SELECT {LISTED} FROM onceward_outbox WHERE message_id = ?");
        let one = session.statements.named(&one).integer(self.0.number());
        one.fetch_optional(&mut *session.connection).await?.as_ref().map(read_listed).transpose()
    }
}

fn micros_before(now: Timestamp, age: Duration) -> i64 {
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    now.as_micros().saturating_sub(age)
}

/// What a person decides about dead letters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Decision {
    Redrive,
    Discard,
}

/// What a person decided about exactly these dead letters: remembered, and done.
struct Decide {
    decision: Decision,
    letters: Vec<DeadLetter>,
    reason: String,
}

impl Decide {
    /// Whether it was applied: the letter is still what was looked at.
    async fn one(
        &self,
        session: &mut Session<'_>,
        letter: &DeadLetter,
        now: Timestamp,
    ) -> sqlx::Result<bool> {
        let over = match self.decision {
            Decision::Redrive => "1",
            Decision::Discard => OPERATION_IS_OVER,
        };
        let dead = session
            .statements
            .named(&format!(
                "SELECT o.scope, o.`key`, o.generation, o.attempt, o.name, o.aggregate \
                 FROM onceward_outbox o WHERE o.message_id = ? AND o.fence = ? \
                 AND o.state = 'dead' AND {over} FOR UPDATE"
            ))
            .integer(letter.message_id.number())
            .integer(letter.fence.number());
        let Some(row) = dead.fetch_optional(&mut *session.connection).await? else {
            return Ok(false);
        };
        let (audit, aggregate) = self.audit(&row, letter, now).map_err(unreadable)?;
        session.remember(&audit, letter.message_id.number()).await?;
        let act = match self.decision {
            // The claim is forgotten: whoever made it can settle nothing any more.
            Decision::Redrive => session
                .statements
                .named(
                    "UPDATE onceward_outbox SET state = 'ready', attempts = 0, ambiguous = 0, \
                     next_at = ?, attempt = NULL, lease_until = NULL WHERE message_id = ?",
                )
                .integer(now.as_micros()),
            Decision::Discard => {
                session.statements.named("DELETE FROM onceward_outbox WHERE message_id = ?")
            }
        };
        act.integer(letter.message_id.number()).execute(&mut *session.connection).await?;
        if let Some(aggregate) = aggregate.filter(|_| self.decision == Decision::Discard) {
            let_go(session, aggregate).await?;
        }
        Ok(true)
    }

    /// Who decided and why, and about which message; and its aggregate.
    fn audit<'r>(
        &self,
        row: &'r MySqlRow,
        letter: &DeadLetter,
        now: Timestamp,
    ) -> Result<(AuditRecord, Option<&'r [u8]>), BadRow> {
        let mut columns = Columns { row, next: 0 };
        let id: RecordId = columns.id()?;
        // A generation that nobody could read would make the audit record unreadable too.
        let generation = u32::try_from(columns.integer("generation")?).unwrap_or(u32::MAX);
        let attempt = columns.optional_bytes("attempt")?.unwrap_or_default();
        let name = columns.text("name")?;
        let audit = AuditRecord {
            at: now,
            id,
            generation,
            event: match self.decision {
                Decision::Redrive => AuditEvent::MessageRedriven,
                Decision::Discard => AuditEvent::MessageDiscarded,
            },
            attempt: AttemptId::from_bytes(attempt),
            fence: letter.fence,
            reason: format!("{} (message {}, {name})", self.reason, letter.message_id.number())
                .into(),
            reply: None,
        };
        Ok((audit, columns.blob_or_null("aggregate")?))
    }
}

impl Statement for Decide {
    type Answer = Vec<MessageId>;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Vec<MessageId>> {
        let now = session.now().await?;
        let mut letters = self.letters.clone();
        // In one order everywhere, so that two who decide cannot wait for each other in a circle.
        letters.sort_unstable_by_key(|letter| letter.message_id);
        let mut applied = Vec::new();
        for letter in &letters {
            if self.one(session, letter, now).await? {
                applied.push(letter.message_id);
            }
        }
        Ok(applied)
    }
}

struct PurgeDone {
    older_than: Duration,
    limit: u32,
}

impl Statement for PurgeDone {
    type Answer = Vec<MessageId>;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Vec<MessageId>> {
        let before = micros_before(session.now().await?, self.older_than);
        let done = session
            .statements
            .named(&format!(
                "SELECT o.message_id, o.aggregate FROM onceward_outbox o \
                 FORCE INDEX (message_done) WHERE o.state = 'done' AND o.done_at <= ? \
                 AND {OPERATION_IS_OVER} ORDER BY o.done_at LIMIT ? FOR UPDATE SKIP LOCKED"
            ))
            .integer(before)
            .integer(i64::from(self.limit));
        let mut purged = Vec::new();
        for row in done.fetch_all(&mut *session.connection).await? {
            let id: i64 = row.try_get(0)?;
            let purge = "DELETE FROM onceward_outbox WHERE message_id = ?";
            let purge = session.statements.named(purge).integer(id);
            purge.execute(&mut *session.connection).await?;
            purged.push(MessageId::from_stored(id));
            if let Some(aggregate) = row.try_get_unchecked::<Option<Vec<u8>>, _>(1)? {
                forget_aggregate(session, &aggregate).await?;
            }
        }
        purged.sort_unstable();
        Ok(purged)
    }
}

/// An aggregate without messages needs no row, unless somebody stages one just now.
async fn forget_aggregate(session: &mut Session<'_>, aggregate: &[u8]) -> sqlx::Result<()> {
    let lock = "SELECT aggregate FROM onceward_aggregates WHERE aggregate = ? \
        FOR UPDATE SKIP LOCKED";
    let lock = session.statements.named(lock).bytes(aggregate);
    if lock.fetch_optional(&mut *session.connection).await?.is_none() {
        return Ok(());
    }
    let forget = session.statements.named(
        "DELETE FROM onceward_aggregates WHERE aggregate = ? AND NOT EXISTS (\
         SELECT 1 FROM onceward_outbox o WHERE o.open_aggregate = ?)",
    );
    forget.bytes(aggregate).bytes(aggregate).execute(&mut *session.connection).await.map(drop)
}

/// How much waits.
struct CountBacklog;

impl Statement for CountBacklog {
    type Answer = Backlog;
    const READS: bool = true;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Backlog> {
        let dead = "SELECT COUNT(*) FROM (SELECT 1 FROM onceward_outbox \
            WHERE state = 'dead' LIMIT ?) AS dead";
        let dead = session.statements.named(dead).bind(DEAD_LETTERS_MAX);
        let dead: i64 = dead.fetch_one(&mut *session.connection).await?.try_get(0)?;
        // One row for each sink, by the index.
        let due = "SELECT MIN(first) FROM (SELECT MIN(next_at) AS first FROM onceward_outbox \
            FORCE INDEX (message_ready) WHERE state = 'ready' AND held = 0 GROUP BY sink) AS due";
        let due = session.statements.named(due).fetch_one(&mut *session.connection).await?;
        let due_at: Option<i64> = due.try_get(0)?;
        let dead_letters = u32::try_from(dead).unwrap_or(u32::MAX);
        Ok(Backlog { dead_letters, due_at: due_at.map(Timestamp::from_micros) })
    }
}

fn read_listed(row: &MySqlRow) -> sqlx::Result<ListedMessage> {
    let stored = read_message(row).map_err(|bad| unread(row, bad))?;
    let bytes: i64 = row.try_get("payload_bytes")?;
    Ok(ListedMessage { stored, payload_bytes: bytes.unsigned_abs() })
}

/// A row that is not what we wrote. Says which, so that somebody can look at it.
fn unread(row: &MySqlRow, bad: BadRow) -> sqlx::Error {
    let id: i64 = row.try_get("message_id").unwrap_or(-1);
    sqlx::Error::Decode(format!("message {id}: {bad}").into())
}

impl OutboxStore for MySqlStore {
    fn stage<'a>(&'a self, lease: &'a Lease, message: Message) -> StoreFuture<'a, Staged> {
        self.state(Stage(lease.into(), message))
    }

    fn claim<'a>(
        &'a self,
        limit: u32,
        sinks: &'a [&'a str],
        lease: Duration,
        attempt: AttemptId,
    ) -> StoreFuture<'a, Vec<Claimed>> {
        let sinks = sinks.iter().map(|sink| (*sink).to_owned()).collect();
        self.state(Claim { limit, sinks, lease, attempt })
    }

    fn settle<'a>(
        &'a self,
        id: MessageId,
        attempt: AttemptId,
        fence: Fence,
        settlement: Settlement,
    ) -> StoreFuture<'a, bool> {
        self.state(Settle { id, attempt, fence, settlement })
    }

    fn list(
        &self,
        state: MessageState,
        after: Option<MessageId>,
        limit: u32,
    ) -> StoreFuture<'_, Vec<StoredMessage>> {
        self.state(List { state, after, limit })
    }

    fn list_messages(&self, query: MessageQuery) -> StoreFuture<'_, Vec<ListedMessage>> {
        self.state(Show(query))
    }

    fn load_message(&self, id: MessageId) -> StoreFuture<'_, Option<ListedMessage>> {
        self.state(ShowOne(id))
    }

    fn redrive<'a>(
        &'a self,
        letters: &'a [DeadLetter],
        reason: &'a str,
    ) -> StoreFuture<'a, Vec<MessageId>> {
        let (letters, reason) = (letters.to_vec(), reason.to_owned());
        self.state(Decide { decision: Decision::Redrive, letters, reason })
    }

    fn discard<'a>(
        &'a self,
        letters: &'a [DeadLetter],
        reason: &'a str,
    ) -> StoreFuture<'a, Vec<MessageId>> {
        let (letters, reason) = (letters.to_vec(), reason.to_owned());
        self.state(Decide { decision: Decision::Discard, letters, reason })
    }

    fn purge_done(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, Vec<MessageId>> {
        self.state(PurgeDone { older_than, limit })
    }

    fn backlog(&self) -> StoreFuture<'_, Backlog> {
        self.state(CountBacklog)
    }
}

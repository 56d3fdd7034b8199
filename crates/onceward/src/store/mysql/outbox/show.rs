//! What people and workers may know of the messages.

use sqlx::{Row as _, mysql::MySqlRow};

use super::{
    super::{
        row::{BadRow, Values as _},
        session::{Session, Statement},
    },
    COLUMNS, micros_before,
};
use crate::{
    clock::Timestamp,
    outbox::{
        Backlog, DEAD_LETTERS_MAX, ListedMessage, MessageId, MessageQuery, MessageState,
        StoredMessage,
    },
    store::message_row::read_message,
};

/// The same without the payload, and how long that is.
const LISTED: &str = "scope, `key`, generation, name, derived_key, sink, aggregate, content_type, \
    '' AS payload, state, attempts, ambiguous, next_at, lease_until, attempt, fence, provider_id, \
    last_error, created_at, done_at, message_id, \
    CAST(OCTET_LENGTH(payload) AS SIGNED) AS payload_bytes";

pub(super) struct List {
    pub(super) state: MessageState,
    pub(super) after: Option<MessageId>,
    pub(super) limit: u32,
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

pub(super) struct Show(pub(super) MessageQuery);

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

pub(super) struct ShowOne(pub(super) MessageId);

impl Statement for ShowOne {
    type Answer = Option<ListedMessage>;
    const READS: bool = true;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Option<ListedMessage>> {
        let one = format!("SELECT {LISTED} FROM onceward_outbox WHERE message_id = ?");
        let one = session.statements.named(&one).integer(self.0.number());
        one.fetch_optional(&mut *session.connection).await?.as_ref().map(read_listed).transpose()
    }
}

/// How much waits.
pub(super) struct CountBacklog;

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

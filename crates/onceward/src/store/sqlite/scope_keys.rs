//! The data keys of scopes.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use super::{
    SqliteStore,
    changes::Changes,
    statement::Statement,
    writer::{Outcome, Work, Writer, before},
};
use crate::{
    clock::Timestamp,
    record::AuditRecord,
    scope::Scope,
    store::{ScopeKey, StoreError},
};

const KEYS: &str = "SELECT key_id, wrapped_by, wrapped FROM onceward_scope_keys WHERE scope = ? ORDER BY scope_key_id";
const PROPOSE: &str = "INSERT INTO onceward_scope_keys (scope, key_id, wrapped_by, wrapped) \
    VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING";
const DROP: &str = "UPDATE onceward_scope_keys SET wrapped = NULL \
    WHERE scope = ? AND wrapped IS NOT NULL RETURNING key_id";

impl SqliteStore {
    /// A key that stands is read without the write lock: a transaction of the user's may hold it
    /// while it waits for this very answer.
    pub(super) async fn keys_of(
        &self,
        scope: &Scope,
        proposed: Option<ScopeKey>,
    ) -> Result<Vec<ScopeKey>, StoreError> {
        let read = scope.clone();
        let known = self.ask(move |sender| Work::ScopeKeys(read, sender)).await?;
        match proposed {
            Some(proposed) if !known.iter().any(|key| is_of(key, &proposed)) => {
                self.state(Propose(scope.clone(), proposed)).await
            }
            _ => Ok(known),
        }
    }

    pub(super) async fn drop_keys_of(
        &self,
        scope: &Scope,
        reason: &str,
    ) -> Result<u32, StoreError> {
        let dropped = self.state(Drop(scope.clone(), reason.into())).await?;
        // The log still has the page as it was. If somebody reads just now, it goes a little later.
        if let Err(error) = self.ask(Work::Checkpoint).await {
            tracing::warn!(%error, "dropped keys may stay in the log of the file for a while");
        }
        Ok(dropped)
    }
}

fn is_of(key: &ScopeKey, proposed: &ScopeKey) -> bool {
    key.stands() && key.wrapped_by == proposed.wrapped_by
}

impl Writer {
    pub(super) async fn scope_keys(&mut self, scope: &Scope) -> Outcome<Vec<ScopeKey>> {
        keys(self.connection().await?, scope).await.map_err(before)
    }

    pub(super) async fn checkpoint(&mut self) -> Outcome<()> {
        let checkpoint = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)");
        match checkpoint.execute(self.connection().await?).await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.roll_back(before(error)).await),
        }
    }
}

async fn keys(
    connection: &mut SqliteConnection,
    scope: &Scope,
) -> Result<Vec<ScopeKey>, sqlx::Error> {
    let rows = sqlx::query(KEYS).bind(scope.as_str().to_owned()).fetch_all(connection).await?;
    rows.iter().map(read).collect()
}

fn read(row: &SqliteRow) -> Result<ScopeKey, sqlx::Error> {
    let wrapped: Option<Vec<u8>> = row.try_get("wrapped")?;
    Ok(ScopeKey {
        id: read_id(row)?,
        wrapped_by: row.try_get::<String, _>("wrapped_by")?.into(),
        wrapped: wrapped.map(Bytes::from),
    })
}

fn read_id(row: &SqliteRow) -> Result<[u8; 16], sqlx::Error> {
    let id: &[u8] = row.try_get("key_id")?;
    id.try_into().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

struct Propose(Scope, ScopeKey);

impl Statement for Propose {
    type Answer = Vec<ScopeKey>;

    fn run<'c>(
        &'c self,
        connection: &'c mut SqliteConnection,
        _now: Timestamp,
    ) -> BoxFuture<'c, Result<Vec<ScopeKey>, sqlx::Error>> {
        Box::pin(async move {
            let Propose(scope, proposed) = self;
            let propose = sqlx::query(PROPOSE)
                .bind(scope.as_str().to_owned())
                .bind(proposed.id.to_vec())
                .bind(proposed.wrapped_by.to_string())
                .bind(proposed.wrapped.as_ref().map(|wrapped| wrapped.to_vec()));
            propose.execute(&mut *connection).await?;
            keys(connection, scope).await
        })
    }
}

struct Drop(Scope, Box<str>);

impl Statement for Drop {
    type Answer = u32;

    fn run<'c>(
        &'c self,
        connection: &'c mut SqliteConnection,
        now: Timestamp,
    ) -> BoxFuture<'c, Result<u32, sqlx::Error>> {
        Box::pin(async move {
            let Drop(scope, reason) = self;
            // What is overwritten must not stay behind in the page.
            sqlx::query("PRAGMA secure_delete = ON").execute(&mut *connection).await?;
            let drop = sqlx::query(DROP).bind(scope.as_str().to_owned());
            let dropped = drop.fetch_all(&mut *connection).await?;
            sqlx::query("PRAGMA secure_delete = OFF").execute(&mut *connection).await?;
            let audits: Result<Vec<AuditRecord>, sqlx::Error> = dropped
                .iter()
                .map(|row| Ok(AuditRecord::erased(scope.clone(), read_id(row)?, reason, now)))
                .collect();
            let audits = audits?;
            Changes { audits: &audits, ..Changes::default() }.write(connection).await?;
            Ok(u32::try_from(audits.len()).unwrap_or(u32::MAX))
        })
    }
}

//! The data keys of scopes.

use sqlx::mysql::MySqlRow;

use super::{
    error::unreadable,
    row::{BadRow, Columns, Values as _},
    session::{Session, Statement},
};
use crate::{record::AuditRecord, scope::Scope, store::ScopeKey};

/// The keys of a scope, and one more if none of them stands that is wrapped by the same key.
pub(super) struct KeysOf(pub(super) Scope, pub(super) Option<ScopeKey>);

impl Statement for KeysOf {
    type Answer = Vec<ScopeKey>;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Vec<ScopeKey>> {
        let KeysOf(scope, proposed) = self;
        let known = keys(session, scope).await?;
        let is_of = |key: &ScopeKey, proposed: &ScopeKey| {
            key.stands() && key.wrapped_by == proposed.wrapped_by
        };
        let Some(proposed) = proposed.as_ref().filter(|it| !known.iter().any(|key| is_of(key, it)))
        else {
            return Ok(known);
        };
        let propose = session.statements.named(
            "INSERT INTO onceward_scope_keys (scope, key_id, wrapped_by, wrapped) \
             VALUES (?, ?, ?, ?) ON DUPLICATE KEY UPDATE scope_key_id = scope_key_id",
        );
        let propose = propose
            .word(scope.as_str())
            .bytes(&proposed.id)
            .word(&proposed.wrapped_by)
            .blob(proposed.wrapped.as_ref().map(|wrapped| wrapped.to_vec()));
        propose.execute(&mut *session.connection).await?;
        keys(session, scope).await
    }
}

async fn keys(session: &mut Session<'_>, scope: &Scope) -> sqlx::Result<Vec<ScopeKey>> {
    let keys = session.statements.named(
        "SELECT key_id, wrapped_by, wrapped FROM onceward_scope_keys \
         WHERE scope = ? ORDER BY scope_key_id",
    );
    let rows = keys.word(scope.as_str()).fetch_all(&mut *session.connection).await?;
    rows.iter().map(|row| read(row).map_err(unreadable)).collect()
}

fn read(row: &MySqlRow) -> Result<ScopeKey, BadRow> {
    let mut columns = Columns { row, next: 0 };
    Ok(ScopeKey {
        id: columns.bytes("key_id")?,
        wrapped_by: columns.text("wrapped_by")?.into(),
        wrapped: columns.blob_or_null("wrapped")?.map(|wrapped| wrapped.to_vec().into()),
    })
}

/// Forgets the keys that a scope has.
pub(super) struct DropKeysOf(pub(super) Scope, pub(super) Box<str>);

impl Statement for DropKeysOf {
    type Answer = u32;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<u32> {
        let DropKeysOf(scope, reason) = self;
        let standing = session.statements.named(
            "SELECT key_id, wrapped_by, wrapped FROM onceward_scope_keys \
             WHERE scope = ? AND wrapped IS NOT NULL ORDER BY scope_key_id FOR UPDATE",
        );
        let rows = standing.word(scope.as_str()).fetch_all(&mut *session.connection).await?;
        let forget = session.statements.named(
            "UPDATE onceward_scope_keys SET wrapped = NULL WHERE scope = ? AND wrapped IS NOT NULL",
        );
        forget.word(scope.as_str()).execute(&mut *session.connection).await?;
        let now = session.now().await?;
        for row in &rows {
            let key = read(row).map_err(unreadable)?;
            let audit = AuditRecord::erased(scope.clone(), key.id, reason, now);
            session.remember(&audit, 0).await?;
        }
        Ok(u32::try_from(rows.len()).unwrap_or(u32::MAX))
    }
}

//! What a handler needs to complete its operation by itself, in whatever transaction.

use super::Operation;
use crate::{
    phase::{Failure, Misuse},
    record::Effects,
    reply::Reply,
    store::Database,
};

impl Operation {
    /// The database, if this operation may be completed in a transaction of it.
    pub(crate) fn may_complete(&self) -> Result<Database, Failure> {
        if !matches!(self.context().policy.effects, Effects::Local | Effects::Phased) {
            return Err(Misuse::NotDeclared.into());
        }
        if self.account().open_effect.is_some() {
            return Err(Misuse::EffectIsOpen.into());
        }
        self.database()
    }

    pub(crate) fn database(&self) -> Result<Database, Failure> {
        self.context().store.database().ok_or_else(|| Misuse::NoTransactions.into())
    }

    /// As the engine would keep it.
    pub(crate) fn as_kept(&self, reply: Reply) -> Reply {
        let policy = &self.context().policy;
        let mut reply = reply.within(policy.reply_cap().min(self.context().store.reply_cap()));
        if reply.schema_version.is_none() {
            reply.schema_version = policy.schema_version.as_deref().map(Into::into);
        }
        reply
    }
}

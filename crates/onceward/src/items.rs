//! In the user's own `TransactWriteItems`: the reply is stored together with the user's items, or
//! neither is.

use std::{collections::HashMap, sync::Arc, time::Duration};

use aws_sdk_dynamodb::{
    Client,
    error::SdkError,
    operation::transact_write_items::TransactWriteItemsError,
    types::{AttributeValue, CancellationReason, TransactWriteItem},
};
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::{
    operation::Operation,
    phase::{Failure, Misuse},
    record::{AttemptId, Lease},
    reply::Reply,
    store::{Database, DynamoDatabase, StoreError, StoreErrorKind},
};

/// Between two tries to commit.
const PAUSE: Duration = Duration::from_millis(50);

/// Why a transaction did not complete its operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ItemsError {
    /// The lease was over by this process's own clock: nothing was done.
    #[error("the lease of this attempt is over")]
    LeaseOver,
    /// Another attempt has the record, or it was decided about: nothing was written.
    #[error("this attempt has lost its record")]
    LeaseLost,
    /// A bug of the handler: nothing was written.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The service refused the transaction: a condition of the user's own items did not hold, or they
    /// are not as it wants them. Nothing was written.
    #[error("the transaction was refused")]
    Refused(#[source] Box<TransactWriteItemsError>),
    /// Nothing was written.
    #[error("the transaction was not committed")]
    Store(#[source] StoreError),
    /// Whether it was committed is not known here. The engine finds out when the handler has ended.
    #[error("it is not known whether the transaction was committed")]
    NotAcknowledged(#[source] StoreError),
}

impl From<Failure> for ItemsError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::LeaseOver => ItemsError::LeaseOver,
            Failure::LeaseLost => ItemsError::LeaseLost,
            Failure::Misuse(misuse) => ItemsError::Misuse(misuse),
            Failure::Store(error) => ItemsError::Store(error),
        }
    }
}

impl Operation {
    /// The write that completes this operation with a reply, for a `TransactWriteItems` of the
    /// handler's own: the reply is stored if and only if that is committed. For routes declared
    /// `local` or `phased`, on a [`DynamoStore`](crate::DynamoStore).
    ///
    /// Its condition is the attempt and the fence: if this attempt has lost its record, the whole
    /// transaction is cancelled. Send it with a `ClientRequestToken`, so that the SDK may repeat it.
    /// When the handler has ended, the engine asks the store what is true: if it was committed, the
    /// client gets these bytes, whatever the handler answered.
    ///
    /// # Errors
    /// When the lease is over, or the operation cannot be completed so.
    ///
    /// # Cancel safety
    /// May be dropped: it writes nothing.
    pub async fn completing_item(&self, reply: Reply) -> Result<TransactWriteItem, ItemsError> {
        let (database, lease) = self.table()?;
        self.item(&database, &lease, reply).await
    }

    /// Writes the user's items and the reply in one transaction.
    ///
    /// # Errors
    /// When it was refused, or could not be committed in time. Nothing was written then, but for
    /// [`ItemsError::NotAcknowledged`].
    ///
    /// # Cancel safety
    /// May be dropped: it was then committed as a whole or not at all.
    pub async fn transact(
        &self,
        client: &Client,
        mut items: Vec<TransactWriteItem>,
        reply: Reply,
    ) -> Result<Reply, ItemsError> {
        let (database, lease) = self.table()?;
        items.insert(0, self.item(&database, &lease, reply.clone()).await?);
        // The same for every try, by which the service knows what it has done already.
        let token = AttemptId::random().to_string();
        let give_up = Instant::now() + self.context().store_deadline;
        let mut may_have_happened = false;
        loop {
            let call = client.transact_write_items().client_request_token(&token);
            let error = match call.set_transact_items(Some(items.clone())).send().await {
                Ok(_) => return Ok(reply),
                Err(error) => error,
            };
            let again = match &error {
                SdkError::ServiceError(said) => match refused(said.err()) {
                    // Done by an earlier try, whose token the service has forgotten.
                    Refused::First(Some(found))
                        if DynamoDatabase::is_completed_by(found, &lease) =>
                    {
                        return Ok(reply);
                    }
                    Refused::First(_) => return Err(self.lost().into()),
                    Refused::Other => {
                        return Err(ItemsError::Refused(Box::new(error.into_service_error())));
                    }
                    Refused::Busy => true,
                    Refused::Unclear => {
                        may_have_happened = true;
                        true
                    }
                },
                SdkError::ConstructionFailure(_) => false,
                _ => {
                    may_have_happened = true;
                    true
                }
            };
            if !again || Instant::now() + PAUSE >= give_up {
                let kind = match may_have_happened {
                    true => StoreErrorKind::Ambiguous,
                    false => StoreErrorKind::Unavailable,
                };
                let store = StoreError::new(kind, "dynamodb", "a transaction").with_source(error);
                return Err(match may_have_happened {
                    true => ItemsError::NotAcknowledged(store),
                    false => ItemsError::Store(store),
                });
            }
            warn!("a transaction of the user's is sent again, with the same token");
            sleep(PAUSE).await;
        }
    }

    fn table(&self) -> Result<(Database, Arc<Lease>), ItemsError> {
        let database = self.may_complete()?;
        if !self.may_act() {
            return Err(ItemsError::LeaseOver);
        }
        Ok((database, self.lease().ok_or(ItemsError::LeaseOver)?))
    }

    async fn item(
        &self,
        database: &Database,
        lease: &Lease,
        reply: Reply,
    ) -> Result<TransactWriteItem, ItemsError> {
        let reply = self.as_kept(reply);
        let item = match database {
            Database::Dynamo(table) => table.completing(lease, reply),
            #[cfg(feature = "encryption")]
            Database::Sealed(sealed) => {
                let Database::Dynamo(table) = &*sealed.inner else {
                    return Err(Misuse::NoTransactions.into());
                };
                let reply = sealed.seals.seal_reply(lease.into(), &reply).await;
                table.completing(lease, reply.map_err(ItemsError::Store)?)
            }
            #[allow(unreachable_patterns, reason = "where there is no other store")]
            _ => return Err(Misuse::NoTransactions.into()),
        };
        // From here on only the store knows.
        self.account().completed = true;
        Ok(item)
    }
}

/// Why the service did not commit.
enum Refused<'e> {
    /// The condition of the first item did not hold. With what was found there.
    First(Option<&'e HashMap<String, AttributeValue>>),
    /// Something about the other items.
    Other,
    /// Another transaction was in the way, or there was too much to do.
    Busy,
    /// The service failed, and what it did is not known.
    Unclear,
}

fn refused(error: &TransactWriteItemsError) -> Refused<'_> {
    use TransactWriteItemsError as Error;
    match error {
        Error::TransactionCanceledException(cancelled) => {
            let reasons = cancelled.cancellation_reasons();
            let is = |reason: &CancellationReason, code| reason.code() == Some(code);
            let failed = |reason: &CancellationReason| is(reason, "ConditionalCheckFailed");
            if let Some(first) = reasons.first().filter(|reason| failed(reason)) {
                return Refused::First(first.item());
            }
            let passes = ["None", "TransactionConflict", "ThrottlingError"];
            let passes = |it: &CancellationReason| {
                passes.iter().any(|code| is(it, code)) || is(it, "ProvisionedThroughputExceeded")
            };
            if reasons.iter().all(passes) { Refused::Busy } else { Refused::Other }
        }
        Error::ProvisionedThroughputExceededException(_)
        | Error::RequestLimitExceeded(_)
        | Error::TransactionInProgressException(_) => Refused::Busy,
        Error::InternalServerError(_) => Refused::Unclear,
        other => match other.meta().code() {
            Some("ThrottlingException" | "Throttling") => Refused::Busy,
            Some("ServiceUnavailable" | "InternalFailure") | None => Refused::Unclear,
            Some(_) => Refused::Other,
        },
    }
}

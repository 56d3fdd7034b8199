//! Calls: how many at a time, which are repeated, and what their errors mean.
//!
//! The SDK repeats nothing here. It cannot know which call may be repeated: an answer that was lost
//! is a question, and it is the engine that asks it again, with the same attempt.

use std::{
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};

use super::{STORE, item::BadItem};
use crate::store::{StoreError, StoreErrorKind};

/// How long a call that was throttled is repeated.
const PATIENCE: Duration = Duration::from_secs(2);

/// The first pause, and the longest one. Each is a random part of twice the one before.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_LONGEST: Duration = Duration::from_millis(400);

/// What is shared by all calls of a store.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    /// So that a burst does not open a connection for each of its requests.
    at_once: Arc<Semaphore>,
    /// Counts what may have led to another server, or to another table of the same name.
    epoch: Arc<AtomicU64>,
}

/// What a failed call means.
pub(super) enum Failed<E> {
    /// The service's own answer, by which the caller goes on.
    Said(Box<E>),
    Store(StoreError),
}

/// What an error of the service means.
enum Meaning {
    /// Nothing was done, and the same call may be made again after a pause.
    Again,
    /// Nothing was done.
    Refused,
    /// The service failed while it worked on it.
    MayHaveHappened,
}

/// Whether a call changes something, so that one whose answer was lost may have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
}

impl Calls {
    pub(super) fn new(at_once: usize) -> Self {
        Calls { at_once: Arc::new(Semaphore::new(at_once.max(1))), epoch: Arc::default() }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// What comes next may be answered by another server, or from another table.
    pub(super) fn count_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Makes a call, and makes it again as long as it is throttled and there is time.
    ///
    /// # Cancel safety
    /// May be dropped: the call was then made or not.
    pub(super) async fn make<T, E, F>(
        &self,
        kind: Kind,
        mut send: impl FnMut() -> F,
    ) -> Result<T, Failed<E>>
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
        F: Future<Output = Result<T, SdkError<E>>>,
    {
        let begun = Instant::now();
        let mut pause = PAUSE_FIRST;
        loop {
            let one = self.at_once.acquire().await;
            let answer = send().await;
            drop(one);
            let error = match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let again = match &error {
                SdkError::ServiceError(said) => {
                    match meaning(said.err().code(), said.raw().status().as_u16()) {
                        Some(Meaning::Again) => true,
                        Some(_) => false,
                        None => return Err(self.said(kind, error)),
                    }
                }
                // Nothing was changed: another connection may do better.
                _ => kind == Kind::Read,
            };
            if !again || begun.elapsed() + pause > PATIENCE {
                return Err(Failed::Store(self.store_error(kind, error)));
            }
            if !matches!(error, SdkError::ServiceError(_)) {
                // The next answer may come from another server.
                self.count_epoch();
            }
            sleep(pause.mul_f64(rand::random_range(0.0..1.0))).await;
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }

    fn said<E>(&self, kind: Kind, error: SdkError<E>) -> Failed<E>
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        match error {
            SdkError::ServiceError(said) => Failed::Said(Box::new(said.into_err())),
            other => Failed::Store(self.store_error(kind, other)),
        }
    }

    fn store_error<E>(&self, kind: Kind, error: SdkError<E>) -> StoreError
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let (may_have_happened, context) = match &error {
            SdkError::ConstructionFailure(_) => (false, "a call could not be made".to_owned()),
            SdkError::ServiceError(said) => {
                let code = said.err().code().unwrap_or("an error without a code");
                if code == "ResourceNotFoundException" {
                    self.count_epoch();
                }
                let meant = meaning(said.err().code(), said.raw().status().as_u16());
                let unsure = matches!(meant, Some(Meaning::MayHaveHappened));
                (unsure, format!("the service says {code}"))
            }
            _ => {
                self.count_epoch();
                let lost = !is_unsent(&error);
                (lost, if lost { "no answer" } else { "no connection" }.to_owned())
            }
        };
        let kind = match kind {
            Kind::Write if may_have_happened => StoreErrorKind::Ambiguous,
            Kind::Read | Kind::Write => StoreErrorKind::Unavailable,
        };
        StoreError::new(kind, STORE, context).with_source(error)
    }
}

/// `None` for what the caller decides by.
fn meaning(code: Option<&str>, status: u16) -> Option<Meaning> {
    match code {
        Some(
            "ConditionalCheckFailedException"
            | "TransactionCanceledException"
            | "ResourceInUseException",
        ) => None,
        Some(
            "ProvisionedThroughputExceededException"
            | "ThrottlingException"
            | "Throttling"
            | "RequestLimitExceeded"
            | "TransactionConflictException"
            | "TransactionInProgressException"
            | "LimitExceededException",
        ) => Some(Meaning::Again),
        // Also from whoever stands in between, and does not speak the service's language.
        _ if status >= 500 => Some(Meaning::MayHaveHappened),
        _ => Some(Meaning::Refused),
    }
}

/// Whether nobody took the connection, so that nothing was sent.
fn is_unsent(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.kind() == io::ErrorKind::ConnectionRefused;
        }
        cause = error.source();
    }
    false
}

impl<E: std::error::Error + Send + Sync + 'static> Failed<E> {
    /// The error, of a call of which nothing else is expected.
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Failed::Store(error) => error,
            Failed::Said(said) => {
                StoreError::new(StoreErrorKind::Unavailable, STORE, "the service refuses")
                    .with_source(said)
            }
        }
    }
}

pub(super) fn damaged(bad: BadItem) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, STORE, "an item is damaged").with_source(bad)
}

/// A short pause before something is tried again that others were faster with.
pub(super) async fn pause(tries: u32) {
    let longest = (PAUSE_FIRST / 8 * (1 << tries.min(6))).min(PAUSE_LONGEST / 4);
    sleep(longest.mul_f64(rand::random_range(0.0..1.0))).await;
}

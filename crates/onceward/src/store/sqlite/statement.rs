//! Work that is statements of its own and not a step on a record. What stands in line together
//! shares a transaction, as steps do.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use sqlx::SqliteConnection;
use tokio::sync::oneshot;

use super::{
    SqliteStore,
    error::{self, Moment, STORE},
    writer::{Failure, Outcome, Work, Writer},
};
use crate::{
    clock::Timestamp,
    store::{StoreError, StoreErrorKind, StoreFuture},
};

/// Something to be done within a transaction. Runs again when its batch has to be split up.
pub(super) trait Statement: Send + Sync + 'static {
    type Answer: Send;

    fn run<'c>(
        &'c self,
        connection: &'c mut SqliteConnection,
        now: Timestamp,
    ) -> BoxFuture<'c, Result<Self::Answer, sqlx::Error>>;
}

/// A statement as it stands in line.
pub(super) trait PendingStatement: Send {
    fn run<'c>(
        &'c mut self,
        connection: &'c mut SqliteConnection,
        now: Timestamp,
    ) -> BoxFuture<'c, Result<(), sqlx::Error>>;
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

struct Pending<S: Statement> {
    statement: S,
    answer: Option<S::Answer>,
    sender: oneshot::Sender<Result<S::Answer, StoreError>>,
}

impl<S: Statement> PendingStatement for Pending<S> {
    fn run<'c>(
        &'c mut self,
        connection: &'c mut SqliteConnection,
        now: Timestamp,
    ) -> BoxFuture<'c, Result<(), sqlx::Error>> {
        Box::pin(async move {
            self.answer = Some(self.statement.run(connection, now).await?);
            Ok(())
        })
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let no_answer = || StoreError::new(StoreErrorKind::Ambiguous, STORE, "not run");
        let Pending { answer, sender, .. } = *self;
        // The caller may be gone. It is done all the same.
        let _ = sender.send(committed.and_then(|()| answer.ok_or_else(no_answer)));
    }
}

impl SqliteStore {
    pub(super) fn state<S: Statement>(&self, statement: S) -> StoreFuture<'_, S::Answer> {
        self.ask(move |sender| {
            Work::Statement(Box::new(Pending { statement, answer: None, sender }))
        })
    }
}

impl Writer {
    pub(super) async fn statements(&mut self, mut pending: Vec<Box<dyn PendingStatement>>) {
        if pending.is_empty() {
            return;
        }
        let failure = match self.transaction(&mut pending).await {
            Ok(()) => return pending.into_iter().for_each(|one| one.answer(Ok(()))),
            Err(failure) => failure,
        };
        // One that cannot be written must not fail the rest: each goes alone.
        if pending.len() == 1 || !error::may_be_about_one_element(&failure.error) {
            return pending.into_iter().for_each(|one| one.answer(Err(failure.for_each())));
        }
        for one in pending {
            let mut single = vec![one];
            let done = self.transaction(&mut single).await;
            let done = done.map_err(|failure| failure.for_each());
            single.into_iter().zip([done]).for_each(|(one, done)| one.answer(done));
        }
    }

    async fn transaction(&mut self, pending: &mut [Box<dyn PendingStatement>]) -> Outcome<()> {
        let clock = Arc::clone(&self.options.clock);
        let connection = self.connection().await?;
        let mut moment = Moment::Before;
        let done = async {
            sqlx::query("BEGIN IMMEDIATE").execute(&mut *connection).await?;
            // Read under the lock: whoever waits for it must not write with the time it came.
            let now = clock.now();
            for one in pending {
                one.run(connection, now).await?;
            }
            moment = Moment::Commit;
            sqlx::query("COMMIT").execute(connection).await
        };
        match done.await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.roll_back(Failure { error, moment }).await),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SqliteOptions, store::Store as _};

    /// Writes something, and panics before it is committed if it is to.
    struct Writes {
        name: &'static str,
        panics: bool,
    }

    impl Statement for Writes {
        type Answer = ();

        fn run<'c>(
            &'c self,
            connection: &'c mut SqliteConnection,
            _now: Timestamp,
        ) -> BoxFuture<'c, Result<(), sqlx::Error>> {
            Box::pin(async move {
                let insert = "INSERT INTO onceward_meta (name, value) VALUES (?, '')";
                sqlx::query(insert).bind(self.name).execute(&mut *connection).await?;
                assert!(!self.panics, "as it was told to");
                Ok(())
            })
        }
    }

    #[tokio::test]
    async fn after_a_panic_in_a_batch_its_callers_are_told_and_the_file_is_used_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("store.db");
        let store = SqliteStore::open(SqliteOptions::new(&path)).await.expect("a store");
        for round in ["first", "second"] {
            let (panics, beside) = tokio::join!(
                store.state(Writes { name: "panics", panics: true }),
                store.state(Writes { name: "beside", panics: false })
            );
            for answer in [panics, beside] {
                let error = answer.expect_err("its batch panicked");
                assert_eq!(error.kind(), StoreErrorKind::Ambiguous, "{error}");
            }
            // Neither a lock nor half of the batch is left behind.
            store.ping().await.expect("the writer goes on");
            store.state(Writes { name: round, panics: false }).await.expect("written");
        }
        let meta = "SELECT group_concat(name) FROM onceward_meta WHERE value = ''";
        let mut options = SqliteOptions::new(&path);
        let mut file = super::super::open::open(&mut options).await.expect("the file");
        let names: String = sqlx::query_scalar(meta).fetch_one(&mut file).await.expect("names");
        assert_eq!(names, "first,second");
    }
}

//! Writing the log back into the file, on a connection of its own: whoever commits does not wait for
//! it, as he would if SQLite did it at every thousandth page.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use sqlx::{Connection as _, SqliteConnection};
use tokio::{sync::mpsc, task::JoinHandle};

use super::{SqliteOptions, error, open, writer::Writer};

/// It is written back from so many pages on, about.
const PAGES: usize = 1000;

/// What a record takes of it, but for a large reply: its page and those of its indexes.
const PAGES_OF_A_RECORD: usize = 3;
const PAGE_BYTES: usize = 4096;

/// As far as it can be written without waiting for anybody.
const WRITE_BACK: &str = "PRAGMA wal_checkpoint(PASSIVE)";

/// How far the log is.
pub(super) struct Log {
    /// About how many have come since it was asked to be written back.
    pages: usize,
    due: mpsc::Sender<()>,
    came: Arc<Came>,
    task: JoinHandle<()>,
}

/// What came of it.
#[derive(Default)]
struct Came {
    written_back: AtomicBool,
    sync_failed: AtomicBool,
}

impl Log {
    /// Of this file: another one may come to have its name.
    pub(super) fn new(options: &SqliteOptions, file: Option<(u64, u64)>) -> Self {
        let (due, line) = mpsc::channel(1);
        let came = Arc::new(Came::default());
        let task = tokio::spawn(write_back(options.clone(), file, line, Arc::clone(&came)));
        Log { pages: 0, due, came, task }
    }

    /// Takes note of a record that was written to it.
    pub(super) fn note(&mut self, reply_bytes: usize) {
        self.pages += PAGES_OF_A_RECORD + reply_bytes / PAGE_BYTES;
    }

    /// Ends it: whoever closes the file after it is the last one.
    pub(super) async fn close(self) {
        drop(self.due);
        // If it has failed, its connection is closed all the same.
        let _ = self.task.await;
    }
}

async fn write_back(
    options: SqliteOptions,
    file: Option<(u64, u64)>,
    mut line: mpsc::Receiver<()>,
    came: Arc<Came>,
) {
    let mut connection: Option<SqliteConnection> = None;
    while line.recv().await.is_some() {
        if connection.is_none() && open::file_at(&options.path) == file {
            // If it cannot be opened, SQLite writes the log back in some commit, when it is large.
            connection = open::connect(&options, &options.path, false).await.ok();
        }
        let Some(open) = &mut connection else { continue };
        match sqlx::query(WRITE_BACK).fetch_all(open).await {
            Ok(_) => came.written_back.store(true, Ordering::Release),
            Err(error) => {
                came.sync_failed.fetch_or(error::is_failed_sync(&error), Ordering::AcqRel);
                connection = None;
            }
        }
    }
    if let Some(connection) = connection {
        let _ = connection.close().await;
    }
}

impl Writer {
    /// Has the log written back from time to time. What came into it meanwhile is written back here,
    /// and it begins anew: it would else grow for as long as requests come.
    pub(super) async fn tend_log(&mut self) {
        if self.log.came.sync_failed.load(Ordering::Acquire) {
            self.poison();
        }
        if self.log.came.written_back.swap(false, Ordering::AcqRel) {
            if let Some(connection) = self.open_connection() {
                // If somebody else is at it, it is for the next time.
                if let Err(error) = sqlx::query(WRITE_BACK).fetch_all(connection).await
                    && error::is_failed_sync(&error)
                {
                    self.poison();
                }
            }
        } else if self.log.pages >= PAGES && self.log.due.try_send(()).is_ok() {
            self.log.pages = 0;
        }
    }
}

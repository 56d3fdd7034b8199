//! What SQLite's errors mean to a caller.

use crate::store::{StoreError, StoreErrorKind};

pub(super) const STORE: &str = "file";

/// When in a transaction an error came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Before COMMIT was sent: nothing happened.
    Before,
    /// In answer to COMMIT.
    Commit,
}

/// SQLite's primary result codes that we tell apart.
mod code {
    pub(super) const ERROR: u32 = 1;
    pub(super) const BUSY: u32 = 5;
    pub(super) const CORRUPT: u32 = 11;
    pub(super) const FULL: u32 = 13;
    pub(super) const TOO_BIG: u32 = 18;
    pub(super) const CONSTRAINT: u32 = 19;
    pub(super) const MISMATCH: u32 = 20;
    pub(super) const NOT_A_DATABASE: u32 = 26;
    /// Extended: an fsync failed.
    pub(super) const IOERR_FSYNC: u32 = 1034;
    pub(super) const IOERR_DIR_FSYNC: u32 = 1290;
    /// Extended: the index of the log cannot grow, for want of room.
    pub(super) const IOERR_SHMSIZE: u32 = 4874;
}

/// The extended result code, if it was SQLite that failed.
pub(super) fn extended_code(error: &sqlx::Error) -> Option<u32> {
    error.as_database_error()?.code()?.parse().ok()
}

pub(super) fn is_damage(error: &sqlx::Error) -> bool {
    let code = extended_code(error).map(|code| code & 0xff);
    matches!(code, Some(code::CORRUPT | code::NOT_A_DATABASE))
}

pub(super) fn is_no_database(error: &sqlx::Error) -> bool {
    extended_code(error).map(|code| code & 0xff) == Some(code::NOT_A_DATABASE)
}

pub(super) fn is_full(error: &sqlx::Error) -> bool {
    let code = extended_code(error);
    code.map(|code| code & 0xff) == Some(code::FULL) || code == Some(code::IOERR_SHMSIZE)
}

/// Whether SQLite did not take the statement.
pub(super) fn is_refusal(error: &sqlx::Error) -> bool {
    extended_code(error) == Some(code::ERROR)
}

/// Whether somebody else has the file for longer than one waits.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    extended_code(error).map(|code| code & 0xff) == Some(code::BUSY)
}

/// Whether the error may be about one element of a batch only, so that the others can do without it.
pub(super) fn may_be_about_one_element(error: &sqlx::Error) -> bool {
    let primary = extended_code(error).map(|code| code & 0xff);
    // Where one large reply does not fit any more, small ones may: so it is with a full disk.
    matches!(primary, Some(code::TOO_BIG | code::CONSTRAINT | code::MISMATCH | code::FULL))
}

/// Whether an fsync failed: what the kernel then still holds is not known, and a second fsync may
/// succeed without having written anything.
pub(super) fn is_failed_sync(error: &sqlx::Error) -> bool {
    matches!(extended_code(error), Some(code::IOERR_FSYNC | code::IOERR_DIR_FSYNC))
}

pub(super) fn meaning(error: &sqlx::Error, moment: Moment) -> (StoreErrorKind, &'static str) {
    let primary = extended_code(error).map(|code| code & 0xff);
    match (primary, moment) {
        (Some(code::CORRUPT | code::NOT_A_DATABASE), _) => {
            (StoreErrorKind::Corrupt, "the file is damaged")
        }
        // A commit that is refused for these is known not to have happened.
        (Some(code::FULL), _) => (StoreErrorKind::Unavailable, "the disk or the file is full"),
        (Some(code::BUSY), _) => {
            (StoreErrorKind::Unavailable, "another process holds the file for too long")
        }
        // So is a statement that SQLite refused, also when it would have committed by itself.
        _ if may_be_about_one_element(error) => {
            (StoreErrorKind::Unavailable, "a record cannot be written")
        }
        (_, Moment::Before) => (StoreErrorKind::Unavailable, "the file cannot be used"),
        (_, Moment::Commit) => (StoreErrorKind::Ambiguous, "a commit was not acknowledged"),
    }
}

pub(super) fn store_error(error: sqlx::Error, moment: Moment) -> StoreError {
    let (kind, context) = meaning(&error, moment);
    StoreError::new(kind, STORE, context).with_source(error)
}

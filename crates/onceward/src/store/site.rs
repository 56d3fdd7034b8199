//! A store before it is opened: whether it can be relied on, and which schema it has.
//!
//! Each store says so for itself, in `store/<name>/examine.rs`; commands only print it.

use std::{error::Error, fmt, future::Future, pin::Pin};

mod finding; // what was found, and what to think of it
mod kept; // what every store keeps about itself
mod schema; // versions, and who may use which
mod skew; // how far the clock of a server is from ours

pub use finding::{Class, Finding, Verdict};
#[cfg(any(
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis",
    feature = "dynamodb"
))]
pub(crate) use schema::{By, breaking, since};
pub use schema::{Migration, Schema, Standing, Step};
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) use schema::{checksum_name, checksums};
#[cfg(any(feature = "postgres", feature = "mysql", feature = "redis"))]
pub(crate) use skew::{ASKED, Asked, skew};

/// Why a store could not be looked at, without the password that its address may hold.
pub type SiteError = Box<dyn Error + Send + Sync>;

/// What a site's method returns: boxed, so that stores are chosen at run time.
pub type SiteFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, SiteError>> + Send + 'a>>;

/// Where a store is, or will be.
///
/// # Cancel safety
///
/// Every future may be dropped at any await. A migration then happened as a whole or not at all.
pub trait Site: fmt::Debug + Send + Sync {
    /// Looks whether the store can be relied on. Writes nothing, and makes nothing that is not there.
    ///
    /// # Errors
    /// When it cannot be reached, or is not a store of ours.
    fn examine(&self) -> SiteFuture<'_, Vec<Finding>>;

    /// Which schema is there. Writes nothing.
    ///
    /// # Errors
    /// As [`examine`](Self::examine).
    fn schema(&self) -> SiteFuture<'_, Schema>;

    /// Brings the schema to this version, under a lock, and tells what was done: nothing, if somebody
    /// else has done it meanwhile. Unlike an opening, it also takes steps that shut older processes out.
    ///
    /// # Errors
    /// As [`examine`](Self::examine), and when the schema must not be used by this version.
    fn migrate(&self) -> SiteFuture<'_, Vec<Step>>;
}

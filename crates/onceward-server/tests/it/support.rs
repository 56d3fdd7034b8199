//! Starting the binary, talking to it, and upstreams that do as they are told.

mod admin;
mod client;
pub(crate) mod frames;
mod gate;
mod gateway;
mod home;
mod schema;
pub(crate) mod tls;
mod upstream;

pub(crate) use admin::{ALICE, TOKEN, admin, document, get, raw, refusal, until_not_ready};
pub(crate) use client::{Answer, Connection, post, request, send};
pub(crate) use gate::Gate;
pub(crate) use gateway::{Gateway, binary, memory_of};
pub(crate) use home::{Home, change_file};
pub(crate) use schema::violation;
pub(crate) use upstream::{Act, Seen, Upstream, nowhere, ok, response};

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// Each of these cases on each store, as a test of its own: `on_file::CASE`.
macro_rules! on_each_store {
    ($($case:ident),+ $(,)?) => {
        crate::support::cases!(on_memory, memory, $($case),+);
        crate::support::cases!(on_file, file, $($case),+);
        crate::support::cases!(on_postgres, postgres, $($case),+);
    };
}

/// The same for cases in which a store outlives a gateway, or has several.
macro_rules! on_each_durable_store {
    ($($case:ident),+ $(,)?) => {
        crate::support::cases!(on_durable_file, file, $($case),+);
        crate::support::cases!(on_durable_postgres, postgres, $($case),+);
    };
}

macro_rules! cases {
    ($module:ident, $store:ident, $($case:ident),+) => {
        mod $module {
            $(#[test]
            fn $case() {
                super::$case(&crate::support::Home::$store());
            })+
        }
    };
}

pub(crate) use {cases, on_each_durable_store, on_each_store};

/// Nothing in these tests takes longer than this.
pub(crate) const LONGEST: Duration = Duration::from_secs(20);

/// Looks again and again until it is so.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + LONGEST;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < give_up, "{what} did not happen in time");
        sleep(Duration::from_millis(10));
    }
}

/// A temporary folder on a disk, which the usual place for them need not be.
pub(crate) fn folder_on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("temporary folder")
}

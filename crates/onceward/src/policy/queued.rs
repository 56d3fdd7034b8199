//! Execution that is queued: accepted now, done later.

use std::{sync::Arc, time::Duration};

use http::HeaderName;

use super::{BadPolicy, DAY, SECOND, within};

/// How requests wait that are accepted for later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    pub(crate) within: Duration,
    headers: Arc<[HeaderName]>,
}

/// The headers of a request that are kept with it, unless others are listed: what says how its body is
/// to be read and its answer written, and where it comes from. No credentials.
pub const KEPT_HEADERS: [&str; 15] = [
    "host",
    "content-type",
    "content-encoding",
    "content-language",
    "accept",
    "accept-language",
    "user-agent",
    "traceparent",
    "tracestate",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
    "x-request-id",
];

/// Kept in any case: it is what the record is about.
const KEY: HeaderName = HeaderName::from_static("idempotency-key");

impl Queued {
    /// A request that could not be executed within this time of being accepted is given up: its client
    /// is told so, with 504 `idempotency_not_executed`.
    ///
    /// # Errors
    /// Under one second, or over 30 days.
    pub fn within(time: Duration) -> Result<Self, BadPolicy> {
        let time = within(SECOND..=DAY * 30, time, BadPolicy::QueuedFor)?;
        Ok(Queued { within: time, ..Queued::default() })
    }

    /// The same with another list of headers that are kept with a request and sent with it later.
    /// Whoever lists a credential has it stored.
    #[must_use]
    pub fn headers(mut self, headers: impl IntoIterator<Item = HeaderName>) -> Self {
        self.headers = headers.into_iter().collect();
        self
    }

    /// How long a request may wait.
    pub fn time(&self) -> Duration {
        self.within
    }

    /// The headers that are kept, in the order in which they were listed.
    pub fn kept(&self) -> &[HeaderName] {
        &self.headers
    }

    pub(crate) fn keeps(&self, header: &HeaderName) -> bool {
        *header == KEY || self.headers.contains(header)
    }
}

impl Default for Queued {
    /// A day, and the usual headers.
    fn default() -> Self {
        let headers = KEPT_HEADERS.into_iter().map(HeaderName::from_static).collect();
        Queued { within: DAY, headers }
    }
}

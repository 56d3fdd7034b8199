//! How far this machine's clock is from the service's, by the `Date` of its answers.
//!
//! The service has no clock that a condition could ask, so that ours decides whether a lease is over.
//! One that is far off would end the leases of others early, and so it decides nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};

use aws_sdk_dynamodb::config::{
    ConfigBag, Intercept, RuntimeComponents,
    interceptors::BeforeDeserializationInterceptorContextRef,
};

use super::{ANSWER_TIME_MAX, STORE};
use crate::store::{StoreError, StoreErrorKind};

/// From here on a clock decides nothing. Far under the shortest lease that is of use, and far over
/// what a machine with a time service shows.
const SKEW_MAX: Duration = Duration::from_secs(10);

/// By how many milliseconds our clock is ahead of the service's, at least; behind it if negative.
#[derive(Clone, Debug, Default)]
pub(super) struct Skew(Arc<AtomicI64>);

impl Skew {
    /// By how much the clock is off, at least, and whether it is ahead.
    pub(super) fn at_least(&self) -> (Duration, bool) {
        let millis = self.0.load(Ordering::Relaxed);
        (Duration::from_millis(millis.unsigned_abs()), millis > 0)
    }

    /// Whether the clock may decide about leases and retention.
    ///
    /// # Errors
    /// When it is off by too much.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let (off, ahead) = self.at_least();
        if off <= SKEW_MAX {
            return Ok(());
        }
        let way = if ahead { "ahead of" } else { "behind" };
        let context = format!("this machine's clock is {} s {way} the service's", off.as_secs());
        Err(StoreError::new(StoreErrorKind::Unavailable, STORE, context))
    }

    fn measure(&self, date: SystemTime, received: SystemTime) {
        let behind = date.duration_since(received).unwrap_or_default();
        // The date is cut to a second, and was written at most this long ago.
        let latest = date + Duration::from_secs(1) + ANSWER_TIME_MAX;
        let ahead = received.duration_since(latest).unwrap_or_default();
        let millis = |it: Duration| i64::try_from(it.as_millis()).unwrap_or(i64::MAX);
        self.0.store(millis(ahead) - millis(behind), Ordering::Relaxed);
    }
}

impl Intercept for Skew {
    fn name(&self) -> &'static str {
        "Skew"
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let date = context.response().headers().get("date");
        if let Some(date) = date.and_then(|date| httpdate::parse_http_date(date).ok()) {
            self.measure(date, SystemTime::now());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn measured(received_after: i64) -> Skew {
        let date = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let second = Duration::from_secs(received_after.unsigned_abs());
        let received = if received_after < 0 { date - second } else { date + second };
        let skew = Skew::default();
        skew.measure(date, received);
        skew
    }

    #[test]
    fn what_an_answer_may_have_taken_is_not_taken_for_skew() {
        for seconds in [-10, 0, 1, 4, 14] {
            assert!(measured(seconds).check().is_ok(), "{seconds}");
        }
        assert_eq!(measured(4).at_least().0, Duration::ZERO);
    }

    #[test]
    fn a_clock_that_is_far_off_decides_nothing() {
        assert_eq!(measured(-11).at_least(), (Duration::from_secs(11), false));
        assert_eq!(measured(15).at_least(), (Duration::from_secs(11), true));
        for seconds in [-11, 15] {
            let error = measured(seconds).check().expect_err("refused");
            assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        }
    }
}

//! Which answers promise something to an attempt.

use crate::store::{Advanced, Reservation, Resolved, Written};

/// An answer to a step on a record.
pub(super) trait Promise {
    /// Whether it says that what was asked for stands. If that was written by an earlier call whose answer
    /// was lost, nothing was acknowledged of it yet, and its loss would not be noticed: so it is counted
    /// again before this is said.
    fn is_promise(&self) -> bool;
}

impl Promise for Reservation {
    fn is_promise(&self) -> bool {
        matches!(self, Reservation::Granted { .. } | Reservation::Accepted { .. })
    }
}

impl Promise for Written {
    fn is_promise(&self) -> bool {
        !matches!(self, Written::Superseded(_))
    }
}

impl Promise for Advanced {
    fn is_promise(&self) -> bool {
        matches!(self, Advanced::Applied | Advanced::AlreadyMine)
    }
}

impl Promise for Resolved {
    fn is_promise(&self) -> bool {
        matches!(self, Resolved::Applied(_))
    }
}

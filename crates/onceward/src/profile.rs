//! Profiles: named sets of rules, so that an API follows one known flavour and does not invent a
//! third.

use http::StatusCode;

/// A named set of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Modelled on the IETF draft for the `Idempotency-Key` header: a key is required, a mismatch is
    /// 422, an expired key is told apart from a new one.
    Ietf,
    /// Behaves like Stripe's first API version: a key is optional, a mismatch is 400, errors of the
    /// server are stored too, an expired key is a new request.
    Stripe,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Profile; 2] = [Profile::Ietf, Profile::Stripe];

    /// The name in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Profile::Ietf => "ietf",
            Profile::Stripe => "stripe",
        }
    }

    /// The profile of that name.
    pub fn from_name(name: &str) -> Option<Profile> {
        Profile::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// The status of a reused key with another payload.
    pub const fn mismatch_status(self) -> StatusCode {
        match self {
            Profile::Ietf => StatusCode::UNPROCESSABLE_ENTITY,
            Profile::Stripe => StatusCode::BAD_REQUEST,
        }
    }
}

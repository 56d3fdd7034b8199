//! Policies: the rules for a route, and which route a request belongs to.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use http::{Method, StatusCode};

use crate::{fingerprint::Recipe, profile::Profile, record::Effects};

mod queued;
mod route;
pub use queued::{KEPT_HEADERS, Queued};
pub use route::{BadPattern, Pattern, Routes};

/// The rules for a route. Start with [`Policy::required`], [`Policy::optional`] or
/// [`Policy::of_profile`].
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) name: Arc<str>,
    pub(crate) profile: Profile,
    pub(crate) presence: Presence,
    pub(crate) methods: Methods,
    pub(crate) effects: Effects,
    pub(crate) single: bool,
    pub(crate) queued: Option<Queued>,
    pub(crate) in_flight: InFlight,
    pub(crate) server_errors: ServerErrors,
    pub(crate) expired_runs_again: bool,
    pub(crate) lease: Duration,
    pub(crate) max_execution: Duration,
    pub(crate) retention: Duration,
    pub(crate) tombstone: Duration,
    pub(crate) recipe: Recipe,
    pub(crate) request_bytes_max: usize,
    pub(crate) reply_bytes_max: usize,
    pub(crate) schema_version: Option<Arc<str>>,
}

/// Whether a key has to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// A request without one is refused with 400.
    Required,
    /// A request without one runs unprotected.
    Optional,
}

/// Which methods a policy protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Methods {
    /// POST and PATCH. Others need no key, and a key on them is ignored.
    Unsafe,
    /// PUT and DELETE too.
    UnsafeAndIdempotent,
}

impl Methods {
    pub(crate) fn contains(self, method: &Method) -> bool {
        match self {
            Methods::Unsafe => matches!(*method, Method::POST | Method::PATCH),
            Methods::UnsafeAndIdempotent => {
                matches!(*method, Method::POST | Method::PATCH | Method::PUT | Method::DELETE)
            }
        }
    }
}

/// What a retry gets while the first attempt is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// 409 and advice when to come back.
    Conflict,
    /// It waits for the reply, at most this long; then 409.
    Wait(Duration),
    /// 202 and the address of the operation's status.
    Accepted,
}

/// What a handler's own 5xx means, other than 502 and 504.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerErrors {
    /// Unknown where effects are external; a phased operation goes on at its recovery point; else a
    /// retry runs fresh.
    ByEffects,
    /// A retry runs fresh.
    Retry,
    /// It is stored and replayed like any other reply.
    Store,
    /// Unknown.
    Unknown,
}

/// What was set in a [`Policy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rules<'a> {
    /// See [`Policy::named`].
    pub name: &'a str,
    /// See [`Policy::of_profile`].
    pub profile: Profile,
    /// See [`Policy::presence`].
    pub presence: Presence,
    /// See [`Policy::effects`].
    pub effects: Effects,
    /// See [`Policy::queued`].
    pub queued: Option<&'a Queued>,
    /// See [`Policy::in_flight`].
    pub in_flight: InFlight,
    /// See [`Policy::server_errors`].
    pub server_errors: ServerErrors,
    /// See [`Policy::expired_runs_again`].
    pub expired_runs_again: bool,
    /// See [`Policy::lease`].
    pub lease: Duration,
    /// See [`Policy::max_execution`].
    pub max_execution: Duration,
    /// See [`Policy::retention`].
    pub retention: Duration,
    /// See [`Policy::tombstone`].
    pub tombstone: Duration,
    /// See [`Policy::schema_version`].
    pub schema_version: Option<&'a str>,
}

/// A setting that would break a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPolicy {
    /// Too short for any client's retries, or longer than a record may be kept.
    #[error("retention must be between one hour and 400 days")]
    Retention,
    /// Too short to be held, or so long that a crash would block its key for hours.
    #[error("a lease must be between one second and one hour")]
    Lease,
    /// Too short for anything to run, or longer than anybody waits.
    #[error("max_execution must be between one second and 24 hours")]
    MaxExecution,
    /// What is reserved and completed in one transaction can have no effects outside of it.
    #[error("a `single` policy is for effects `local` only, not `{0}`")]
    SingleIsLocal(&'static str),
    /// What is reserved in the handler's own transaction cannot be accepted before.
    #[error("a `single` policy cannot be queued")]
    SingleIsInline,
    /// Over before anything could be begun, or longer than anybody remembers what was asked.
    #[error("accepted requests may wait between one second and 30 days")]
    QueuedFor,
}

impl Policy {
    /// A request must carry a key. The rules of the profile `ietf`.
    pub fn required() -> Self {
        Policy {
            name: "default".into(),
            profile: Profile::Ietf,
            presence: Presence::Required,
            methods: Methods::Unsafe,
            effects: Effects::Undeclared,
            single: false,
            queued: None,
            in_flight: InFlight::Conflict,
            server_errors: ServerErrors::ByEffects,
            expired_runs_again: false,
            lease: SECOND * 60,
            max_execution: SECOND * 300,
            retention: DAY,
            tombstone: DAY * 30,
            recipe: Recipe::canonical(),
            request_bytes_max: 1 << 20,
            reply_bytes_max: 1 << 20,
            schema_version: None,
        }
    }

    /// A request may carry a key, and runs unprotected without one.
    pub fn optional() -> Self {
        Policy { presence: Presence::Optional, ..Self::required() }
    }

    /// The rules of a profile.
    pub fn of_profile(profile: Profile) -> Self {
        match profile {
            Profile::Ietf => Self::required(),
            Profile::Stripe => Policy {
                profile,
                server_errors: ServerErrors::Store,
                expired_runs_again: true,
                ..Self::optional()
            },
        }
    }

    /// Names the policy in metrics, logs and records. [`Routes`] names policies by their pattern.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// Whether a key has to be there.
    #[must_use]
    pub fn presence(mut self, presence: Presence) -> Self {
        self.presence = presence;
        self
    }

    /// Which methods are protected.
    #[must_use]
    pub fn methods(mut self, methods: Methods) -> Self {
        self.methods = methods;
        self
    }

    /// Declares what the work can do to the world.
    ///
    /// A handler of a `local` route completes with [`crate::Operation::complete_in`] or
    /// [`crate::Operation::transaction`]; one of a `phased` route does everything in
    /// [`crate::Operation::phase`] and [`crate::Operation::effect`].
    ///
    /// # Errors
    /// For anything but `local` on a [`Policy::single`] policy.
    pub fn effects(mut self, effects: Effects) -> Result<Self, BadPolicy> {
        if self.single && effects != Effects::Local {
            return Err(BadPolicy::SingleIsLocal(effects.name()));
        }
        self.effects = effects;
        Ok(self)
    }

    /// Reserve, work and reply in one commit, for purely local work: declares effects `local`. The
    /// handler has to use [`crate::Operation::transaction`], and a duplicate waits for the first
    /// one's transaction as long as the database lets it, then gets 409. It is not queued.
    #[must_use]
    pub fn single(mut self) -> Self {
        self.effects = Effects::Local;
        self.queued = None;
        self.single = true;
        self
    }

    /// Requests are answered 202 as soon as they are stored, and executed later, until they are done or
    /// their time is over. That needs a worker: [`crate::Resumer`].
    ///
    /// # Errors
    /// On a [`Policy::single`] policy.
    pub fn queued(mut self, queued: Queued) -> Result<Self, BadPolicy> {
        if self.single {
            return Err(BadPolicy::SingleIsInline);
        }
        self.queued = Some(queued);
        Ok(self)
    }

    /// What a retry gets while the first attempt is at work. A wait is at most 10 seconds.
    #[must_use]
    pub fn in_flight(mut self, in_flight: InFlight) -> Self {
        self.in_flight = match in_flight {
            InFlight::Wait(at_most) => InFlight::Wait(at_most.min(InFlight::WAIT_MAX)),
            other => other,
        };
        self
    }

    /// What a handler's own 5xx means.
    #[must_use]
    pub fn server_errors(mut self, server_errors: ServerErrors) -> Self {
        self.server_errors = server_errors;
        self
    }

    /// Whether an expired key runs again, as the next generation, instead of being refused.
    #[must_use]
    pub fn expired_runs_again(mut self, runs_again: bool) -> Self {
        self.expired_runs_again = runs_again;
        self
    }

    /// How long an attempt may be silent. It is renewed every third of this while the handler runs.
    ///
    /// # Errors
    /// Under one second, or over one hour.
    pub fn lease(mut self, lease: Duration) -> Result<Self, BadPolicy> {
        self.lease = within(SECOND..=HOUR, lease, BadPolicy::Lease)?;
        Ok(self)
    }

    /// How long a handler may take before its outcome is called unknown.
    ///
    /// # Errors
    /// Under one second, or over 24 hours.
    pub fn max_execution(mut self, max: Duration) -> Result<Self, BadPolicy> {
        self.max_execution = within(SECOND..=DAY, max, BadPolicy::MaxExecution)?;
        Ok(self)
    }

    /// How long a reply is kept, from completion. Must outlast the longest retries of any client.
    ///
    /// # Errors
    /// Under one hour, or over 400 days.
    pub fn retention(mut self, retention: Duration) -> Result<Self, BadPolicy> {
        self.retention = within(HOUR..=DAY * 400, retention, BadPolicy::Retention)?;
        Ok(self)
    }

    /// How long a tombstone tells an expired key from a new one. Zero for none.
    #[must_use]
    pub fn tombstone(mut self, tombstone: Duration) -> Self {
        self.tombstone = tombstone;
        self
    }

    /// What of a request goes into its fingerprint.
    #[must_use]
    pub fn fingerprint(mut self, recipe: Recipe) -> Self {
        self.recipe = recipe;
        self
    }

    /// The largest request body that is taken.
    #[must_use]
    pub fn request_bytes_max(mut self, bytes: usize) -> Self {
        self.request_bytes_max = bytes;
        self
    }

    /// The largest reply body that is kept. A larger one is passed on, and retries are told that it
    /// was not kept.
    #[must_use]
    pub fn reply_bytes_max(mut self, bytes: usize) -> Self {
        self.reply_bytes_max = bytes;
        self
    }

    /// The schema version of replies, stored with them and handed back on replay.
    #[must_use]
    pub fn schema_version(mut self, version: &str) -> Self {
        self.schema_version = Some(version.into());
        self
    }

    /// What was set, to be shown.
    pub fn rules(&self) -> Rules<'_> {
        Rules {
            name: &self.name,
            profile: self.profile,
            presence: self.presence,
            effects: self.effects,
            queued: self.queued.as_ref(),
            in_flight: self.in_flight,
            server_errors: self.server_errors,
            expired_runs_again: self.expired_runs_again,
            lease: self.lease,
            max_execution: self.max_execution,
            retention: self.retention,
            tombstone: self.tombstone,
            schema_version: self.schema_version.as_deref(),
        }
    }

    /// The largest request body that is taken.
    pub fn request_cap(&self) -> usize {
        self.request_bytes_max
    }

    /// The largest reply body that is kept.
    pub fn reply_cap(&self) -> usize {
        self.reply_bytes_max
    }

    /// What the handler's answer with this status means.
    pub fn meaning_of(&self, status: StatusCode) -> Meaning {
        match status.as_u16() {
            // The caller was not let in, or is to come back: nothing was done, and the answer may
            // be another one next time.
            401 | 403 | 408 | 425 | 429 => Meaning::NotExecuted,
            // Somebody between us and the work does not know what became of it. Of phased work the
            // record knows, whoever else does not.
            502 | 504 if self.effects != Effects::Phased => Meaning::Unknown,
            // Not an answer, but a change of protocol or a word on the way to one.
            100..=199 => Meaning::Unknown,
            500..=599 => match (self.server_errors, self.effects) {
                (ServerErrors::Store, _) => Meaning::Final,
                (ServerErrors::Unknown, _) | (ServerErrors::ByEffects, Effects::External) => {
                    Meaning::Unknown
                }
                // It would be run again without anybody asking, and its client told in the end that
                // it was not executed: for that a failure has to be declared to be harmless.
                (ServerErrors::ByEffects, Effects::Undeclared) if self.queued.is_some() => {
                    Meaning::Unknown
                }
                (ServerErrors::Retry | ServerErrors::ByEffects, _) => Meaning::NotExecuted,
            },
            _ => Meaning::Final,
        }
    }
}

impl InFlight {
    /// No request waits longer.
    pub const WAIT_MAX: Duration = Duration::from_secs(10);
}

/// What an answer says about the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// It is the reply, for good.
    Final,
    /// Nothing was done that a fresh run would double.
    NotExecuted,
    /// It may have been done.
    Unknown,
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn within(
    bounds: RangeInclusive<Duration>,
    value: Duration,
    error: BadPolicy,
) -> Result<Duration, BadPolicy> {
    if bounds.contains(&value) { Ok(value) } else { Err(error) }
}

#[cfg(test)]
mod tests;

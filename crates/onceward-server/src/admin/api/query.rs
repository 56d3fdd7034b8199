//! What can be asked for in a list, as parameters and as a filter of a plan.

use std::time::Duration;

use onceward::{
    Effects, Key, ProviderId, Scope,
    clock::Timestamp,
    outbox::{MessageId, MessageQuery, MessageState},
    record::{AuditEvent, InvalidProviderId, State},
    store::list::{AuditQuery, KeyFilter, Order, PAGE_MAX, Query, Sort, Span},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{super::time, Problem};
use crate::config::duration;

const LIMIT: u32 = 100;

/// Which records. All conditions hold at once.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Filter {
    /// In this scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    pub(crate) scope: Option<String>,
    /// With exactly this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255, pattern = r"^[ -~]+$")]
    pub(crate) key: Option<String>,
    /// With a key that begins so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255, pattern = r"^[ -~]+$")]
    pub(crate) key_prefix: Option<String>,
    /// In one of these states, separated by commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        pattern = r"^(pending|in_progress|completed|failed_retryable|unknown|expired)(,(pending|in_progress|completed|failed_retryable|unknown|expired))*$"
    )]
    pub(crate) state: Option<String>,
    /// Reserved under the policy of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    pub(crate) route: Option<String>,
    /// Declared to have these effects.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = r"^(undeclared|external|phased|local|none)$")]
    pub(crate) effects: Option<String>,
    /// Created at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub(crate) created_from: Option<String>,
    /// Created before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub(crate) created_before: Option<String>,
    /// Come to rest at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub(crate) finished_from: Option<String>,
    /// Come to rest before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub(crate) finished_before: Option<String>,
    /// Created at least so long ago, as in `90s`, `15m`, `2h` or `7d`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = r"^[0-9]{1,6}(s|m|h|d)$")]
    pub(crate) older_than: Option<String>,
    /// `true` for dead letters only: unknown outcomes on which the reconciler has given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = r"^true$")]
    pub(crate) dead: Option<String>,
}

/// Which dead letters of the outbox. All conditions hold at once.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MessageFilter {
    /// For this sink.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    pub(crate) sink: Option<String>,
    /// Staged at least so long ago, as in `90s`, `15m`, `2h` or `7d`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = r"^[0-9]{1,6}(s|m|h|d)$")]
    pub(crate) older_than: Option<String>,
    /// `true`, which says that all of them are meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = r"^true$")]
    pub(crate) dead: Option<String>,
}

impl MessageFilter {
    /// The question to the outbox. Without any condition it would be about everything by mistake.
    pub(crate) fn query(&self) -> Result<MessageQuery, Problem> {
        if self.sink.is_none() && self.older_than.is_none() && self.dead.is_none() {
            return Err(Problem::invalid("A plan needs at least one condition in `messages`."));
        }
        if self.dead.as_deref().is_some_and(|dead| dead != "true") {
            return Err(Problem::invalid("`dead` is true, or not given."));
        }
        Ok(MessageQuery {
            state: Some(MessageState::Dead),
            sink: self.sink.as_deref().map(sink).transpose()?,
            older_than: self.older_than.as_deref().map(age).transpose()?,
            after: None,
            limit: PAGE_MAX,
        })
    }
}

/// The names of a filter's members, which are parameters of lists too.
pub(super) const FILTER: [&str; 12] = [
    "scope",
    "key",
    "key_prefix",
    "state",
    "route",
    "effects",
    "created_from",
    "created_before",
    "finished_from",
    "finished_before",
    "older_than",
    "dead",
];

impl Filter {
    /// The question to the store.
    pub(crate) fn query(&self) -> Result<Query, Problem> {
        let key = match (&self.key, &self.key_prefix) {
            (Some(_), Some(_)) => {
                return Err(Problem::invalid("key and key_prefix exclude each other."));
            }
            (Some(key), None) => {
                let key = Key::new(key.as_str());
                Some(KeyFilter::Exact(key.map_err(|error| bad("key", &error))?))
            }
            (None, Some(prefix)) => {
                // What begins a key is one itself.
                let prefix =
                    Key::new(prefix.as_str()).map_err(|error| bad("key_prefix", &error))?;
                Some(KeyFilter::Prefix(prefix.as_str().into()))
            }
            (None, None) => None,
        };
        let scope = self.scope.as_deref().map(|scope| {
            Scope::new(scope).map_err(|_| Problem::invalid("`scope` is not the name of a scope."))
        });
        Ok(Query {
            scope: scope.transpose()?,
            key,
            states: self.state.as_deref().map_or(Ok(Vec::new()), states)?,
            route: self.route.as_deref().map(route).transpose()?,
            effects: self
                .effects
                .as_deref()
                .map(|name| one_of("effects", name, Effects::from_name))
                .transpose()?,
            created: span(&self.created_from, &self.created_before)?,
            finished: span(&self.finished_from, &self.finished_before)?,
            older_than: self.older_than.as_deref().map(age).transpose()?,
            dead_letters: match self.dead.as_deref() {
                None => false,
                Some("true") => true,
                Some(_) => return Err(Problem::invalid("`dead` is true, or not given.")),
            },
            ..Query::default()
        })
    }
}

fn bad(name: &str, why: &dyn std::fmt::Display) -> Problem {
    Problem::invalid(format!("`{name}`: {why}."))
}

fn states(text: &str) -> Result<Vec<State>, Problem> {
    text.split(',').map(|name| one_of("state", name, State::from_name)).collect()
}

fn route(text: &str) -> Result<Box<str>, Problem> {
    if text.is_empty() || text.chars().any(char::is_control) || text.len() > 255 {
        return Err(Problem::invalid("`route` is not the name of a policy."));
    }
    Ok(text.into())
}

fn sink(text: &str) -> Result<Box<str>, Problem> {
    if text.is_empty() || text.chars().any(char::is_control) || text.len() > 255 {
        return Err(Problem::invalid("`sink` is not the name of a sink."));
    }
    Ok(text.into())
}

fn age(text: &str) -> Result<Duration, Problem> {
    duration::parse(text).map_err(|error| bad("older_than", &error))
}

fn one_of<T>(name: &str, text: &str, known: impl Fn(&str) -> Option<T>) -> Result<T, Problem> {
    known(text).ok_or_else(|| Problem::invalid(format!("`{name}` has no value `{text}`.")))
}

fn span(from: &Option<String>, before: &Option<String>) -> Result<Span, Problem> {
    Ok(Span { from: moment(from)?, before: moment(before)? })
}

fn moment(text: &Option<String>) -> Result<Option<Timestamp>, Problem> {
    text.as_deref().map(when).transpose()
}

/// A time that a client gave.
pub(super) fn when(text: &str) -> Result<Timestamp, Problem> {
    let wrong =
        || Problem::invalid(format!("`{text}` is not a time such as 2026-01-31T12:00:00Z."));
    time::parse(text).ok_or_else(wrong)
}

/// The parameters of a request, each at most once, and none that is not known.
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    pub(super) fn read(query: Option<&str>, known: &[&str]) -> Result<Parameters, Problem> {
        let mut read: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            if !known.contains(&&*name) {
                return Err(Problem::invalid(format!("There is no parameter `{name}` here.")));
            }
            if read.iter().any(|(given, _)| *given == *name) {
                return Err(Problem::invalid(format!("`{name}` is given twice.")));
            }
            read.push((name.into_owned(), value.into_owned()));
        }
        Ok(Parameters(read))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn filter(&self) -> Filter {
        let of = |name: &str| self.get(name).map(str::to_owned);
        Filter {
            scope: of("scope"),
            key: of("key"),
            key_prefix: of("key_prefix"),
            state: of("state"),
            route: of("route"),
            effects: of("effects"),
            created_from: of("created_from"),
            created_before: of("created_before"),
            finished_from: of("finished_from"),
            finished_before: of("finished_before"),
            older_than: of("older_than"),
            dead: of("dead"),
        }
    }

    /// The question of a list of records.
    pub(super) fn query(&self, filter: Filter) -> Result<Query, Problem> {
        Ok(Query {
            sort: match self.get("sort") {
                None | Some("created_at") => Sort::CreatedAt,
                Some("expires_at") => Sort::ExpiresAt,
                Some(_) => return Err(Problem::invalid("`sort` is created_at or expires_at.")),
            },
            order: match self.get("order") {
                None | Some("descending") => Order::Descending,
                Some("ascending") => Order::Ascending,
                Some(_) => return Err(Problem::invalid("`order` is ascending or descending.")),
            },
            after: self.get("after").map(cursor).transpose()?,
            limit: self.limit()?,
            ..filter.query()?
        })
    }

    /// The provider id by which a record is looked for.
    pub(super) fn provider_id(&self) -> Result<Option<ProviderId>, Problem> {
        let id = self.get("provider_id").map(str::parse).transpose();
        id.map_err(|error: InvalidProviderId| bad("provider_id", &error))
    }

    /// The question of a list of audit records.
    pub(super) fn audit_query(&self) -> Result<AuditQuery, Problem> {
        let text = |name: &str| self.get(name).map(str::to_owned);
        let event = self.get("event");
        let scope = self.get("scope").map(Scope::new).transpose();
        Ok(AuditQuery {
            event: event.map(|name| one_of("event", name, AuditEvent::from_name)).transpose()?,
            scope: scope.map_err(|_| Problem::invalid("`scope` is not the name of a scope."))?,
            at: span(&text("from"), &text("before"))?,
            after: self.get("after").map(cursor).transpose()?,
            limit: self.limit()?,
        })
    }

    /// The question of a list of messages.
    pub(super) fn message_query(&self) -> Result<MessageQuery, Problem> {
        let state = self.get("state");
        let after = self.get("after").map(|text| text.parse().ok().map(MessageId::from_stored));
        let no_page = || Problem::invalid("`after` is `next` of the page before.");
        Ok(MessageQuery {
            state: state.map(|name| one_of("state", name, MessageState::from_name)).transpose()?,
            sink: self.get("sink").map(sink).transpose()?,
            older_than: self.get("older_than").map(age).transpose()?,
            after: after.map(|after| after.ok_or_else(no_page)).transpose()?,
            limit: self.limit()?,
        })
    }

    fn limit(&self) -> Result<u32, Problem> {
        let Some(text) = self.get("limit") else { return Ok(LIMIT) };
        let limit = text.parse().ok().filter(|limit| (1..=PAGE_MAX).contains(limit));
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        limit
            .filter(|_| digits)
            .ok_or_else(|| Problem::invalid(format!("`limit` is a number from 1 to {PAGE_MAX}.")))
    }
}

fn cursor<C: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<C, Problem> {
    text.parse().map_err(|error: C::Err| bad("after", &error))
}

#[cfg(test)]
mod tests;

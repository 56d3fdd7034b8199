//! Which policy a request falls under: method and path patterns, first match wins.

use std::{cmp::Ordering, sync::Arc};

use http::Method;

use super::{Methods, Policy};

/// A method and a path pattern: `POST /v1/charges`, `POST|PATCH /v1/*/items`, `* /v1/**`.
///
/// `*` stands for one segment of the path, `**` at the end for all that follow, also for none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    methods: Option<Vec<Method>>,
    segments: Vec<Box<str>>,
    open_end: bool,
    text: Box<str>,
}

/// The text is not a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a route pattern such as `POST /v1/charges/**`")]
pub struct BadPattern(String);

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// When the text is not `METHOD /path`.
    pub fn parse(text: &str) -> Result<Self, BadPattern> {
        let bad = || BadPattern(text.to_owned());
        let (methods, path) = text.trim().split_once(' ').ok_or_else(bad)?;
        let methods = match methods {
            "*" => None,
            list => Some(
                list.split('|')
                    .map(|name| match name.bytes().all(|byte| byte.is_ascii_uppercase()) {
                        true => name.parse().map_err(|_| bad()),
                        false => Err(bad()),
                    })
                    .collect::<Result<Vec<Method>, _>>()?,
            ),
        };
        let path = path.trim().strip_prefix('/').ok_or_else(bad)?;
        let (path, open_end) = match path.strip_suffix("**") {
            Some("") => ("", true),
            Some(before) => (before.strip_suffix('/').ok_or_else(bad)?, true),
            None => (path, false),
        };
        if path.contains("**") || path.contains('?') {
            return Err(bad());
        }
        let segments = match (path, open_end) {
            ("", true) => Vec::new(),
            _ => path.split('/').map(Into::into).collect(),
        };
        Ok(Pattern { methods, segments, open_end, text: text.trim().into() })
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The methods that it names; none for `*`.
    pub fn methods(&self) -> Option<&[Method]> {
        self.methods.as_deref()
    }

    /// Whether it matches every path that the other one matches, whatever the methods.
    pub fn covers_path_of(&self, other: &Pattern) -> bool {
        let long_enough = match self.open_end {
            true => other.segments.len() >= self.segments.len(),
            false => !other.open_end && other.segments.len() == self.segments.len(),
        };
        let mut pairs = self.segments.iter().zip(&other.segments);
        long_enough && pairs.all(|(own, other)| own == other || is_one(own, other))
    }

    /// Whether a request can match both.
    pub fn overlaps(&self, other: &Pattern) -> bool {
        let methods = match (&self.methods, &other.methods) {
            (Some(own), Some(other)) => own.iter().any(|method| other.contains(method)),
            _ => true,
        };
        let lengths = match self.segments.len().cmp(&other.segments.len()) {
            Ordering::Less => self.open_end,
            Ordering::Equal => true,
            Ordering::Greater => other.open_end,
        };
        let mut pairs = self.segments.iter().zip(&other.segments);
        let same =
            pairs.all(|(own, other)| own == other || is_one(own, other) || is_one(other, own));
        methods && lengths && same
    }

    /// Whether a request of this method and raw path matches.
    pub fn matches(&self, method: &Method, path: &str) -> bool {
        if self.methods.as_ref().is_some_and(|methods| !methods.contains(method)) {
            return false;
        }
        let mut given = path.strip_prefix('/').unwrap_or(path).split('/');
        for expected in &self.segments {
            match given.next() {
                Some(segment) if **expected == *segment => {}
                Some(segment) if is_one(expected, segment) => {}
                _ => return false,
            }
        }
        self.open_end || given.next().is_none()
    }
}

/// Whether this segment of a pattern stands for any one, and that is one.
fn is_one(pattern: &str, segment: &str) -> bool {
    pattern == "*" && !segment.is_empty()
}

/// Policies by route. What no route matches falls under the default policy, so that a path that is
/// written in an unexpected way is still protected.
#[derive(Clone, Debug)]
pub struct Routes {
    routes: Vec<(Pattern, Option<Arc<Policy>>)>,
    default: Option<Arc<Policy>>,
}

impl Routes {
    /// One policy for everything that no route matches.
    pub fn with_default(policy: Policy) -> Self {
        Routes { routes: Vec::new(), default: Some(Arc::new(policy)) }
    }

    /// Nothing is protected but what a route matches.
    pub fn only() -> Self {
        Routes { routes: Vec::new(), default: None }
    }

    /// Adds a route. The first route that matches wins. A pattern that names PUT or DELETE protects
    /// them too, as [`Methods::UnsafeAndIdempotent`] does; `*` does not.
    ///
    /// # Errors
    /// When the pattern is malformed.
    pub fn route(mut self, pattern: &str, policy: Policy) -> Result<Self, BadPattern> {
        let pattern = Pattern::parse(pattern)?;
        let mut policy = policy.named(&pattern.text);
        let named = pattern.methods.iter().flatten();
        if named.into_iter().any(|method| matches!(*method, Method::PUT | Method::DELETE)) {
            policy.methods = Methods::UnsafeAndIdempotent;
        }
        self.routes.push((pattern, Some(Arc::new(policy))));
        Ok(self)
    }

    /// Adds a route that is left alone: not buffered, not stored, no key needed.
    ///
    /// # Errors
    /// When the pattern is malformed.
    pub fn unprotected(mut self, pattern: &str) -> Result<Self, BadPattern> {
        self.routes.push((Pattern::parse(pattern)?, None));
        Ok(self)
    }

    /// The policy of a request, if it has one and its method is protected.
    pub fn policy_for(&self, method: &Method, path: &str) -> Option<&Arc<Policy>> {
        let matching = self.routes.iter().find(|(pattern, _)| pattern.matches(method, path));
        let policy = match matching {
            Some((_, policy)) => policy.as_ref(),
            None => self.default.as_ref(),
        };
        policy.filter(|policy| policy.methods.contains(method))
    }

    /// All policies.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.routes.iter().filter_map(|(_, policy)| policy.as_ref()).chain(&self.default)
    }
}

impl From<Policy> for Routes {
    fn from(policy: Policy) -> Self {
        Routes::with_default(policy)
    }
}

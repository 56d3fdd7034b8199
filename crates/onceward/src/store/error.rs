//! What a failed store call tells its caller.

/// A store call that failed. `Display` does not repeat the source.
#[derive(Debug, thiserror::Error)]
#[error("{store} store: {context}")]
pub struct StoreError {
    kind: StoreErrorKind,
    store: &'static str,
    context: Box<str>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What a caller must know about a failed store call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// Nothing happened: safe to repeat.
    Unavailable,
    /// May have happened: the answer was lost. Repeat it with the same attempt to learn which.
    Ambiguous,
    /// A record cannot be read. Never treated as no record.
    Corrupt,
}

impl StoreError {
    /// An error of the store named `store`.
    pub fn new(kind: StoreErrorKind, store: &'static str, context: impl Into<Box<str>>) -> Self {
        StoreError { kind, store, context: context.into(), source: None }
    }

    /// The same with its cause.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The call panicked: what it did is not known.
    #[cfg(any(feature = "worker", feature = "tower", feature = "testing"))]
    pub(crate) fn panicked() -> Self {
        StoreError::new(StoreErrorKind::Ambiguous, "any", "a call panicked")
    }

    /// What a caller must know about it.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the same call may succeed when it is repeated.
    pub fn may_be_repeated(&self) -> bool {
        self.kind != StoreErrorKind::Corrupt
    }
}

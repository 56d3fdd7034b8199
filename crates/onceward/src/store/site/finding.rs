use std::borrow::Cow;

/// What somebody who declares a store relies on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// What was acknowledged is there after a crash.
    #[default]
    Durable,
    /// It may be lost, and that is known.
    BestEffort,
}

/// What to think of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// It could not be looked at, so that nobody knows.
    Failed,
    /// The store does not do what its class promises.
    Unsafe,
}

impl Verdict {
    /// Its name in answers.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Failed => "failed",
            Verdict::Unsafe => "unsafe",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at.
    pub name: &'static str,
    /// What was found, without secrets.
    pub found: String,
    /// What to think of it.
    pub verdict: Verdict,
    /// What to do, in a sentence; empty if nothing is.
    pub advice: Cow<'static, str>,
    /// Whether it is about what a crash takes with it.
    durability: bool,
}

impl Finding {
    /// As it should be.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::of(name, found.into(), Verdict::Ok, Cow::Borrowed(""))
    }

    /// Worth knowing.
    pub fn note(
        name: &'static str,
        found: impl Into<String>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::of(name, found.into(), Verdict::Note, advice.into())
    }

    /// Does not work, or not as promised, whatever class was declared.
    pub fn broken(
        name: &'static str,
        found: impl Into<String>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::of(name, found.into(), Verdict::Unsafe, advice.into())
    }

    /// Loses what was acknowledged when something crashes: unsafe for what is declared durable.
    pub fn volatile(
        name: &'static str,
        found: impl Into<String>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Finding { durability: true, ..Self::broken(name, found, advice) }
    }

    /// Could not be looked at.
    pub fn failed(name: &'static str, why: impl Into<String>) -> Self {
        let advice = "let this role or process see it, and look again";
        Self::of(name, why.into(), Verdict::Failed, Cow::Borrowed(advice))
    }

    /// The same for a store of this class.
    #[must_use]
    pub fn for_class(mut self, class: Class) -> Self {
        if class == Class::BestEffort && self.durability && self.verdict == Verdict::Unsafe {
            self.verdict = Verdict::Note;
        }
        self
    }

    fn of(name: &'static str, found: String, verdict: Verdict, advice: Cow<'static, str>) -> Self {
        Finding { name, found, verdict, advice, durability: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_declares_best_effort_is_only_told_what_can_be_lost() {
        let verdict = |finding: Finding, class| finding.for_class(class).verdict;
        let volatile = || Finding::volatile("fsync", "off", "switch it on");
        assert_eq!(verdict(volatile(), Class::Durable), Verdict::Unsafe);
        assert_eq!(verdict(volatile(), Class::BestEffort), Verdict::Note);
        let broken = || Finding::broken("indexes", "one is missing", "migrate");
        assert_eq!(verdict(broken(), Class::BestEffort), Verdict::Unsafe);
        assert_eq!(verdict(Finding::ok("fsync", "on"), Class::Durable), Verdict::Ok);
        assert_eq!(verdict(Finding::failed("fsync", "no"), Class::BestEffort), Verdict::Failed);
    }
}

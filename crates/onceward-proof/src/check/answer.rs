//! A client is answered: with the one reply of its key, or with the truth about why not.

use super::{
    Verdict, Violation,
    known::{Call, Known, Request, Source, Story, Use},
    once::may_rerun,
};
use crate::history::{Answer, CallNo, RequestNo, Rules, UpstreamAnswer};

/// Headers that belong to one caller and must not be sent again.
const NEVER_REPLAYED: [&str; 3] = ["set-cookie", "www-authenticate", "access-control-allow-origin"];

pub(super) fn check(known: &Known, number: RequestNo, answer: &Answer) -> Verdict {
    let Some(request) = known.request(number) else { return Ok(()) };
    let story = known.story(request.story);
    let answered = Answered { known, number, request, story, answer };
    answered.check_marks()?;
    match answer.outcome() {
        Some("executed") => answered.check_reply(false),
        Some("replayed") => answered.check_reply(true),
        Some("not_executed" | "suspended") => answered.check_passed_on(),
        outcome => answered.check_refusal(outcome),
    }
}

struct Answered<'a> {
    known: &'a Known,
    number: RequestNo,
    request: &'a Request,
    story: &'a Story,
    answer: &'a Answer,
}

impl Answered<'_> {
    fn wrong(&self, invariant: &'static str, what: &str) -> Verdict {
        let what = format!("the answer to request {} {what}", self.number);
        Err(Violation::of(invariant, &self.story.subject, what))
    }

    /// I5: everything made for a tenant carries its name.
    fn check_marks(&self) -> Verdict {
        let own = &*self.story.subject.tenant;
        let others = self.known.tenants.iter().filter(|mark| !own.contains(&***mark));
        for mark in others {
            let values = self.answer.headers.iter().map(|(_, value)| value);
            if values.chain([&self.answer.body]).any(|text| text.contains(&**mark)) {
                return self.wrong("I5", &format!("carries the mark of {mark}"));
            }
        }
        Ok(())
    }

    /// Our own answers say when to come back, and a mismatch needs something to differ from.
    fn check_refusal(&self, outcome: Option<&str>) -> Verdict {
        let status = self.answer.status;
        if matches!(status, 409 | 503) && self.answer.header("retry-after").is_none() {
            return self.wrong("I8", &format!("is {status} without Retry-After"));
        }
        // Real worlds do not tell what stood behind a tombstone.
        let is_told = self.known.moves && !self.story.lost;
        if outcome == Some("expired") && is_told && !self.story.uses.iter().any(Use::stands) {
            return self.wrong("I8", "says expired, but nothing stands behind its key");
        }
        if outcome == Some("mismatch") && !self.story.was_asked_otherwise(&self.request.asks) {
            return self.wrong("I9", "says mismatch, but nothing else was asked under its key");
        }
        Ok(())
    }

    /// An answer of upstream after which the request may run again, or ours in its place.
    fn check_passed_on(&self) -> Verdict {
        let Some((number, call, upstream)) = self.known.call_with(&self.answer.body) else {
            let kind = self.answer.header("content-type");
            if kind.is_some_and(|kind| kind.starts_with("application/problem+json")) {
                return Ok(());
            }
            return self.wrong("I2", "is passed on, but no call was answered so");
        };
        self.check_source(number, call)?;
        let final_for = |rules: &Rules| rules.acts && !may_rerun(upstream, rules);
        if call.acted && !self.story.lost && self.rules().is_some_and(final_for) {
            return self.wrong("I1", &format!("says not executed, but call {number} acted"));
        }
        Ok(())
    }

    fn check_reply(&self, replayed: bool) -> Verdict {
        match self.known.call_with(&self.answer.body) {
            Some((number, call, upstream)) => {
                self.check_source(number, call)?;
                if self.rules().is_some_and(|rules| may_rerun(upstream, rules)) {
                    return self.wrong("I2", "was stored, though the same request may run again");
                }
                let used = self.story.use_of(call.place);
                self.check_sure(replayed && used.is_some_and(|used| used.resolved), upstream)?;
                self.check_completed(used.map(|used| used.completed))?;
                if !self.story.lost {
                    self.check_same_call(number, call)?;
                    self.check_same_bytes(upstream.status, &upstream.headers)?;
                }
            }
            None => {
                let used = self.story.use_now(self.answer.generation());
                self.check_completed(used.map(|used| used.completed))?;
                match used.map(|used| (used.resolved, &used.reply)) {
                    _ if self.story.lost => {}
                    Some((true, None)) => {}
                    Some((true, Some(Source::Resolved(first))))
                        if first.body == self.answer.body =>
                    {
                        self.check_same_bytes(first.status, &first.headers)?;
                    }
                    Some((true, Some(_))) => {
                        return self.wrong("I2", "differs from an earlier one of its key");
                    }
                    _ => return self.wrong("I2", "is a reply that no call was answered with"),
                }
            }
        }
        self.check_replay_marks(replayed)
    }

    /// I5, I9: the reply of this key, for this request.
    fn check_source(&self, number: CallNo, call: &Call) -> Verdict {
        if call.story != self.request.story {
            let of = &self.known.story(call.story).subject;
            let what = format!("is that of call {number}, made for {}/{}", of.tenant, of.key);
            return self.wrong("I5", &what);
        }
        if call.asks != self.request.asks {
            let (asks, asked) = (&call.asks, &self.request.asks);
            let what = format!("is that of call {number} for \"{asks}\", not for \"{asked}\"");
            return self.wrong("I9", &what);
        }
        Ok(())
    }

    /// I4: what upstream itself is not sure of is unknown, until somebody says how it ended.
    fn check_sure(&self, resolved: bool, upstream: &UpstreamAnswer) -> Verdict {
        let word = upstream.executed.as_deref().unwrap_or_default();
        let maybe = word.trim().eq_ignore_ascii_case("maybe");
        match self.known.moves && maybe && !resolved && !self.story.lost {
            true => self.wrong("I4", "was stored, though upstream was not sure that it acted"),
            false => Ok(()),
        }
    }

    /// R7: nothing is promised before the store has it.
    fn check_completed(&self, completed: Option<bool>) -> Verdict {
        if self.known.moves && completed != Some(true) && !self.story.lost {
            return self.wrong("R7", "came before its record was completed");
        }
        Ok(())
    }

    /// I1, I2: one call stands behind all replies of one use, and a success behind an effect.
    fn check_same_call(&self, number: CallNo, call: &Call) -> Verdict {
        if call.held && call.place.generation != self.answer.generation() {
            let (said, is) = (self.answer.generation(), call.place.generation);
            let what = format!("says generation {said}, but call {number} was of {is}");
            return self.wrong("I11", &what);
        }
        let before = self.story.use_of(call.place).and_then(|used| used.reply.as_ref());
        match before {
            Some(Source::Call(first)) if *first != number => {
                let what = format!("is that of call {number}, an earlier one that of call {first}");
                return self.wrong("I2", &what);
            }
            Some(Source::Resolved(first)) if first.body != self.answer.body => {
                let what = format!("is that of call {number}, an earlier one was resolved");
                return self.wrong("I2", &what);
            }
            // Whoever resolved the outcome may have known the reply before it came.
            Some(_) | None => {}
        }
        let success = (200..300).contains(&self.answer.status);
        if success && !call.acted && self.rules().is_some_and(|rules| rules.acts) {
            return self.wrong("I1", &format!("is a success, but call {number} never acted"));
        }
        Ok(())
    }

    /// I2: status, kept headers and, as the caller found out, body.
    fn check_same_bytes(&self, status: u16, headers: &[(String, String)]) -> Verdict {
        if self.answer.status != status {
            let said = self.answer.status;
            return self.wrong("I2", &format!("has status {said} instead of {status}"));
        }
        let kept = self.rules().map_or(&[][..], |rules| &rules.kept_headers);
        for name in kept {
            if !values(&self.answer.headers, name).eq(values(headers, name)) {
                return self.wrong("I2", &format!("has another {name} than upstream's answer"));
            }
        }
        Ok(())
    }

    fn check_replay_marks(&self, replayed: bool) -> Verdict {
        let marked = self.answer.header("idempotent-replayed") == Some("true");
        if marked != replayed {
            let what = if marked { "is marked" } else { "is not marked" };
            let outcome = self.answer.outcome().unwrap_or_default();
            return self.wrong("I2", &format!("is {outcome} and {what} as a replay"));
        }
        let not_again = NEVER_REPLAYED.iter().find(|name| self.answer.header(name).is_some());
        match not_again {
            Some(name) if replayed => self.wrong("I2", &format!("replays {name}")),
            _ => Ok(()),
        }
    }

    fn rules(&self) -> Option<&Rules> {
        self.known.rules(self.request.rules)
    }
}

fn values<'a>(
    headers: &'a [(String, String)],
    name: &'a str,
) -> impl Iterator<Item = &'a String> + 'a {
    headers.iter().filter(move |(known, _)| known == name).map(|(_, value)| value)
}

//! Where requests were when their process was killed: by what was seen of each, and by what the store
//! said right afterwards.
//!
//! Only of requests that were the first about their key, so that nothing which is found can be another
//! one's.

use std::collections::{BTreeMap, HashMap};

use crate::history::{CallNo, Event, RequestNo, Subject, What};

/// How far a request has come, as seen from outside of the gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Seen {
    /// Nobody was called.
    #[default]
    Nothing,
    /// Upstream got the call.
    Called,
    /// It acted.
    Acted,
    /// It answered.
    Replied,
    /// It did not answer, or broke off.
    BrokeOff,
}

/// Where a request was when its process was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Edge {
    /// Nothing is stored.
    Unreserved,
    /// Reserved, and upstream got nothing.
    Reserved,
    /// Upstream got the call and did not act yet.
    Called,
    /// Upstream acted and did not answer yet.
    Acted,
    /// Upstream answered, and nothing of that is stored.
    Replied,
    /// The reply is stored, and the client got nothing.
    Completed,
}

impl Edge {
    pub(super) const ALL: [Edge; 6] = [
        Edge::Unreserved,
        Edge::Reserved,
        Edge::Called,
        Edge::Acted,
        Edge::Replied,
        Edge::Completed,
    ];

    /// The stable word for what a kill at this edge leaves behind.
    pub(super) fn name(self) -> &'static str {
        match self {
            Edge::Unreserved => "left_unreserved",
            Edge::Reserved => "left_reserved",
            Edge::Called => "left_called",
            Edge::Acted => "left_acted",
            Edge::Replied => "left_replied",
            Edge::Completed => "left_completed",
        }
    }

    /// The edge of a request of which the store knows this state, and of which so much was seen. None
    /// for what is no edge, such as an outcome that is already known to be unknown.
    pub(super) fn of(stored: Option<&str>, seen: Seen) -> Option<Edge> {
        match (stored, seen) {
            (None, Seen::Nothing) => Some(Edge::Unreserved),
            (Some("in_progress"), Seen::Nothing) => Some(Edge::Reserved),
            (Some("in_progress"), Seen::Called) => Some(Edge::Called),
            (Some("in_progress"), Seen::Acted) => Some(Edge::Acted),
            (Some("in_progress"), Seen::Replied) => Some(Edge::Replied),
            (Some("completed"), Seen::Replied) => Some(Edge::Completed),
            _ => None,
        }
    }
}

/// How often a kill left a request at which edge.
pub(super) fn edges(history: &[Event]) -> BTreeMap<&'static str, usize> {
    let mut trails = Trails::default();
    history.iter().for_each(|event| trails.follow(event));
    let mut counts: BTreeMap<_, _> = Edge::ALL.map(|edge| (edge.name(), 0)).into();
    for edge in trails.of.values().filter_map(Trail::edge) {
        *counts.entry(edge.name()).or_default() += 1;
    }
    counts
}

/// What became of the first request about each key.
#[derive(Default)]
struct Trails<'h> {
    of: HashMap<&'h Subject, Trail<'h>>,
    requests: HashMap<RequestNo, &'h Subject>,
    calls: HashMap<CallNo, &'h Subject>,
}

#[derive(Default)]
struct Trail<'h> {
    /// It was asked for again: what comes now may be about that.
    is_over: bool,
    seen: Seen,
    answered: bool,
    /// What the store knew after a kill, and what was seen until then.
    left: Option<(Option<&'h str>, Seen)>,
}

impl<'h> Trails<'h> {
    fn follow(&mut self, event: &'h Event) {
        match &event.what {
            What::Asked { request, subject, .. } => match self.of.get_mut(subject) {
                Some(trail) => trail.is_over = true,
                None => {
                    self.of.insert(subject, Trail::default());
                    self.requests.insert(*request, subject);
                }
            },
            What::Answered { request, .. } => {
                let subject = self.requests.get(request).copied();
                if let Some(trail) = subject.and_then(|subject| self.of.get_mut(subject)) {
                    trail.answered = true;
                }
            }
            What::Called { call, subject, .. } => {
                self.calls.insert(*call, subject);
                self.see(*call, Seen::Called);
            }
            What::Acted { call } => self.see(*call, Seen::Acted),
            What::Replied { call, answer: Some(_) } => self.see(*call, Seen::Replied),
            What::Replied { call, answer: None } => self.see(*call, Seen::BrokeOff),
            What::Left { subject, state } => {
                if let Some(trail) = self.of.get_mut(subject) {
                    trail.left = Some((state.as_deref(), trail.seen));
                }
            }
            _ => {}
        }
    }

    fn see(&mut self, call: CallNo, seen: Seen) {
        let subject = self.calls.get(&call).copied();
        let Some(trail) = subject.and_then(|subject| self.of.get_mut(subject)) else { return };
        if trail.is_over {
            return;
        }
        trail.seen = trail.seen.max(seen);
        // A call that arrives now was on its way when its process was killed.
        if let Some((_, until_then @ Seen::Nothing)) = &mut trail.left {
            *until_then = Seen::Called;
        }
    }
}

impl Trail<'_> {
    /// Whoever got an answer waited for nothing any more.
    fn edge(&self) -> Option<Edge> {
        let (stored, seen) = self.left.filter(|_| !self.answered)?;
        Edge::of(stored, seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Answer, UpstreamAnswer};

    fn subject() -> Subject {
        Subject { tenant: "tenant-ada".to_owned(), key: "key-1".to_owned() }
    }

    fn asked(request: RequestNo) -> What {
        let (route, asks) = ("POST /charges".to_owned(), "charge 1".to_owned());
        What::Asked { request, subject: subject(), route, asks }
    }

    fn called() -> What {
        What::Called { call: 1, subject: subject(), asks: "charge 1".to_owned(), holder: None }
    }

    fn acted() -> What {
        What::Acted { call: 1 }
    }

    fn replied() -> What {
        let (headers, body) = (Vec::new(), String::new());
        let answer = UpstreamAnswer { status: 201, executed: None, headers, body };
        What::Replied { call: 1, answer: Some(answer) }
    }

    fn left(state: Option<&str>) -> What {
        What::Left { subject: subject(), state: state.map(str::to_owned) }
    }

    /// The edges of a history, those that were met.
    fn met(whats: impl IntoIterator<Item = What>) -> Vec<(&'static str, usize)> {
        let history: Vec<Event> = whats.into_iter().map(|what| Event { at: 0, what }).collect();
        edges(&history).into_iter().filter(|(_, count)| *count > 0).collect()
    }

    #[test]
    fn a_kill_is_told_by_what_the_store_says_and_by_what_was_seen_until_then() {
        let running = Some("in_progress");
        let gave_up = || What::GaveUp { request: 1 };
        for (seen, stored, edge) in [
            (vec![], None, "left_unreserved"),
            (vec![], running, "left_reserved"),
            (vec![called()], running, "left_called"),
            (vec![called(), acted()], running, "left_acted"),
            (vec![called(), acted(), replied()], running, "left_replied"),
            (vec![called(), acted(), replied()], Some("completed"), "left_completed"),
        ] {
            let first = seen.iter().cloned();
            let history = [asked(1)].into_iter().chain(first).chain([left(stored), gave_up()]);
            assert_eq!(met(history), [(edge, 1)], "{seen:?}");
        }
        let broke_off = What::Replied { call: 1, answer: None };
        for (seen, stored) in [
            (vec![called(), acted()], Some("unknown")),
            (vec![called(), acted(), broke_off], running),
            (vec![called()], None),
        ] {
            let history = [asked(1)].into_iter().chain(seen).chain([left(stored)]);
            assert_eq!(met(history), [], "no edge");
        }
    }

    #[test]
    fn a_call_that_was_on_its_way_counts_and_what_comes_after_the_kill_does_not() {
        let running = || left(Some("in_progress"));
        assert_eq!(met([asked(1), running(), called(), acted()]), [("left_called", 1)]);
        // This one is of the second request.
        assert_eq!(met([asked(1), running(), asked(2), called()]), [("left_reserved", 1)]);
        assert_eq!(met([asked(1), called(), running(), acted(), replied()]), [("left_called", 1)]);
    }

    #[test]
    fn whoever_got_an_answer_was_not_left_behind() {
        let answer = Answer { status: 201, headers: Vec::new(), body: String::new() };
        let answered = |request| What::Answered { request, answer: answer.clone() };
        let until = || [asked(1), called(), acted(), replied(), left(Some("completed"))];
        assert_eq!(met(until().into_iter().chain([answered(1)])), []);
        // By the second request it was found out.
        let found_out = until().into_iter().chain([asked(2), answered(2)]);
        assert_eq!(met(found_out), [("left_completed", 1)]);
    }
}

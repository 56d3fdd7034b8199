//! What a history says about one key, as far as its clients can see it.

use std::collections::HashMap;

use super::super::known::is_new_use;
use crate::history::{
    Answer, CallNo, Cause, Event, RequestNo, Rules, Stand, Subject, UpstreamAnswer, What,
};

/// Everything about one key.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) subject: &'a Subject,
    asked: Vec<&'a str>,
    pub(super) requests: Vec<Request>,
    pub(super) calls: Vec<Call<'a>>,
    pub(super) marks: Vec<Mark>,
    /// Something tells of a reply without showing it.
    pub(super) has_unseen_replies: bool,
    /// After a reply was gone, the key was used again.
    pub(super) used_again: bool,
    /// Grants of a key that was used before, by attempt, with the place among the marks: those that
    /// were never used are [`Mark::GrantedInVain`].
    grants: Vec<(&'a str, usize)>,
    /// Whether it is known which attempt made which call.
    knows_holders: bool,
    /// An attempt gave the record back. If it was not told that it had, it found later what became of
    /// the record without it.
    pub(super) was_given_back: bool,
    /// Workers go on with it, whatever a client was told of its own attempt.
    pub(super) goes_on: bool,
}

/// What is asked, as a place in a list.
pub(super) type Asks = usize;

#[derive(Debug)]
pub(super) struct Request {
    pub(super) number: RequestNo,
    pub(super) asks: Asks,
    pub(super) acts: bool,
    pub(super) seen: Seen,
}

/// What a client saw. Calls are places in [`View::calls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The reply of a call that was made for this very request.
    Executed(usize),
    /// The stored reply of a call.
    Replayed(usize),
    /// That nothing was executed, in the words of upstream or in ours.
    NotExecuted(Option<usize>),
    /// That another attempt is at work.
    InProgress,
    /// That the outcome is unknown: 409, of whichever attempt.
    Unknown,
    /// That the outcome of its own attempt is unknown: 502 or 504.
    UnknownFirst,
    /// That the key belongs to another request.
    Mismatch,
    /// That the key has expired.
    Expired,
    /// That there is a reply, which was not kept.
    NotStored,
    /// That the store cannot be used: 503.
    Unavailable,
    /// Something that has nothing to do with the record.
    Refused,
    /// Nothing, or nothing that can be understood.
    Nothing,
}

#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) asks: Asks,
    /// The request that it was made for, where that is known.
    pub(super) made_for: Option<usize>,
    /// Whether its answer was ever seen as a reply.
    pub(super) replied_to_client: bool,
    /// Not a call: a reply that somebody who resolved the outcome brought along.
    pub(super) brought: Option<&'a str>,
}

/// What happened, in order. Numbers are places in [`View::requests`] and [`View::calls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Asked(usize),
    Called(usize),
    Replied(usize),
    Answered(usize),
    /// From here on the record may expire.
    Expires,
    /// From here on an unknown outcome may have been resolved as completed.
    ResolvedCompleted,
    /// From here on an unknown outcome may have been resolved as not executed.
    ResolvedReleased,
    /// A reserve that was on its way for so long that its request was over took the key, which had
    /// become free again. Nobody is left to run under it.
    GrantedInVain,
}

/// The views of all keys.
pub(super) fn views(history: &[Event]) -> Vec<View<'_>> {
    let mut reader = Reader::default();
    for event in history {
        reader.read(&event.what);
    }
    reader.views.iter_mut().for_each(View::mark_grants_in_vain);
    reader.views
}

#[derive(Default)]
struct Reader<'a> {
    routes: &'a [Rules],
    views: Vec<View<'a>>,
    by_subject: HashMap<&'a Subject, usize>,
    requests: HashMap<RequestNo, (usize, usize)>,
    calls: HashMap<CallNo, (usize, usize)>,
    by_body: HashMap<&'a str, (usize, usize)>,
}

impl<'a> Reader<'a> {
    fn read(&mut self, what: &'a What) {
        match what {
            What::World { routes, .. } => self.routes = routes,
            What::Asked { request, subject, route, asks } => {
                let rules = self.routes.iter().find(|rules| rules.route == *route);
                let acts = rules.is_none_or(|rules| rules.acts);
                let goes_on = rules.is_some_and(|rules| rules.goes_on);
                let (number, view) = self.view(subject);
                let asks = view.asks(asks);
                let place = view.requests.len();
                view.goes_on |= goes_on;
                view.requests.push(Request { number: *request, asks, acts, seen: Seen::Nothing });
                view.marks.push(Mark::Asked(place));
                self.requests.insert(*request, (number, place));
            }
            What::Called { call, subject, asks, holder } => {
                let (number, view) = self.view(subject);
                if let Some(holder) = holder {
                    view.knows_holders = true;
                    view.grants.retain(|(attempt, _)| *attempt != holder.attempt);
                }
                let asks = view.asks(asks);
                let place = view.calls.len();
                view.calls.push(Call::new(asks));
                view.marks.push(Mark::Called(place));
                self.calls.insert(*call, (number, place));
            }
            What::Replied { call, answer } => self.read_reply(*call, answer.as_ref()),
            What::Answered { request, answer } => self.read_answer(*request, answer),
            What::Moved { subject, from, to, cause } => {
                let (_, view) = self.view(subject);
                view.read_move(from.as_ref(), to.as_ref(), cause);
            }
            _ => {}
        }
    }

    fn view(&mut self, subject: &'a Subject) -> (usize, &mut View<'a>) {
        let place = *self.by_subject.entry(subject).or_insert_with(|| {
            self.views.push(View::new(subject));
            self.views.len() - 1
        });
        (place, &mut self.views[place])
    }

    fn read_reply(&mut self, call: CallNo, answer: Option<&'a UpstreamAnswer>) {
        let (Some((number, place)), Some(answer)) = (self.calls.get(&call).copied(), answer) else {
            return;
        };
        let view = &mut self.views[number];
        view.marks.push(Mark::Replied(place));
        // Whoever resolved the outcome may have known the reply before it came.
        let same = |call: &Call<'_>| call.brought == Some(&answer.body);
        let known = view.calls.iter().position(same).unwrap_or(place);
        self.by_body.insert(&answer.body, (number, known));
    }

    fn read_answer(&mut self, request: RequestNo, answer: &'a Answer) {
        let Some((number, place)) = self.requests.get(&request).copied() else { return };
        let view = &mut self.views[number];
        let of_this_key = |found: &&(usize, usize)| found.0 == number;
        let call = self.by_body.get(&*answer.body).filter(of_this_key).map(|found| found.1);
        // What is said where nothing was executed is the same for every key.
        let brought = |call: &Call<'_>| call.brought == Some(&*answer.body);
        let call = call.or_else(|| view.calls.iter().position(brought));
        let asks = view.requests[place].asks;
        // A reply for something else is I9, not this.
        let call = call.filter(|call| view.calls[*call].asks == asks);
        let seen = match (answer.outcome(), call) {
            (Some("executed"), Some(call)) => {
                view.calls[call].made_for.get_or_insert(place);
                Seen::Executed(call)
            }
            (Some("replayed"), Some(call)) => Seen::Replayed(call),
            (Some("replayed"), None) if view.marks.contains(&Mark::ResolvedCompleted) => {
                view.calls.push(Call { brought: Some(&answer.body), ..Call::new(asks) });
                self.by_body.insert(&answer.body, (number, view.calls.len() - 1));
                Seen::Replayed(view.calls.len() - 1)
            }
            (Some("not_executed"), call) => {
                if let Some(call) = call {
                    view.calls[call].made_for.get_or_insert(place);
                }
                Seen::NotExecuted(call)
            }
            (Some("conflict" | "accepted"), _) => Seen::InProgress,
            (Some("unknown"), _) if answer.status == 409 => Seen::Unknown,
            (Some("unknown"), _) => Seen::UnknownFirst,
            (Some("mismatch"), _) => Seen::Mismatch,
            (Some("expired"), _) => Seen::Expired,
            (Some("reply_not_stored"), _) => Seen::NotStored,
            (Some("unavailable"), _) => Seen::Unavailable,
            (Some("rate_limited" | "refused"), _) => Seen::Refused,
            _ => Seen::Nothing,
        };
        view.requests[place].seen = seen;
        if let Seen::Executed(call) | Seen::Replayed(call) = seen {
            view.calls[call].replied_to_client = true;
        }
        let again = answer.generation() > 1;
        view.used_again |= again;
        view.has_unseen_replies |= again || matches!(seen, Seen::Expired | Seen::NotStored);
        if seen == Seen::Expired || (again && !view.marks.contains(&Mark::Expires)) {
            view.expires_at_any_time();
        }
        view.marks.push(Mark::Answered(place));
    }
}

impl<'a> View<'a> {
    fn new(subject: &'a Subject) -> Self {
        View {
            subject,
            asked: Vec::new(),
            requests: Vec::new(),
            calls: Vec::new(),
            marks: Vec::new(),
            has_unseen_replies: false,
            used_again: false,
            grants: Vec::new(),
            knows_holders: false,
            was_given_back: false,
            goes_on: false,
        }
    }

    fn mark_grants_in_vain(&mut self) {
        if self.knows_holders {
            for (_, place) in std::mem::take(&mut self.grants).into_iter().rev() {
                self.marks.insert(place, Mark::GrantedInVain);
            }
        }
    }

    pub(super) fn all_asks(&self) -> std::ops::Range<Asks> {
        0..self.asked.len()
    }

    fn asks(&mut self, asks: &'a str) -> Asks {
        let known = self.asked.iter().position(|known| *known == asks);
        known.unwrap_or_else(|| {
            self.asked.push(asks);
            self.asked.len() - 1
        })
    }

    /// Whether anything but the attempts themselves may have ended them.
    pub(super) fn was_resolved(&self) -> bool {
        let resolved = [Mark::ResolvedCompleted, Mark::ResolvedReleased];
        self.marks.iter().any(|mark| resolved.contains(mark))
    }

    fn expires_at_any_time(&mut self) {
        if self.marks.first() != Some(&Mark::Expires) {
            self.marks.insert(0, Mark::Expires);
        }
    }

    fn mark_once(&mut self, mark: Mark) {
        if !self.marks.contains(&mark) {
            self.marks.push(mark);
        }
    }

    fn read_move(&mut self, from: Option<&Stand>, to: Option<&'a Stand>, cause: &'a Cause) {
        self.was_given_back |= matches!(cause, Cause::Write { write, .. } if write == "release");
        if let Cause::Resolve { resolution, .. } = cause {
            match &**resolution {
                "complete" | "executed" | "give_up" => self.mark_once(Mark::ResolvedCompleted),
                "release" => self.mark_once(Mark::ResolvedReleased),
                _ => {}
            }
        }
        if let (Cause::Reserve { .. } | Cause::Claim { .. }, Some(to)) = (cause, to) {
            let granted = from.is_none_or(|from| from.attempt != to.attempt);
            let used_before = from.map_or(self.used_again, |from| from.state != "in_progress");
            if granted && used_before && to.state == "in_progress" {
                self.grants.push((&to.attempt, self.marks.len()));
            }
        }
        let Some(from) = from else { return };
        let again = match to {
            None => true,
            Some(to) => is_new_use(from, to, cause) || to.generation != from.generation,
        };
        self.used_again |= again;
        self.has_unseen_replies |= again;
        if again || to.is_some_and(|to| to.state == "expired") {
            self.mark_once(Mark::Expires);
        }
    }
}

impl Call<'_> {
    fn new(asks: Asks) -> Self {
        Call { asks, made_for: None, replied_to_client: false, brought: None }
    }
}

//! What the judge remembers.

use std::collections::HashMap;

use super::outbox::Outbox;

use crate::history::{
    Answer, CallNo, Cause, Event, Holder, RequestNo, Rules, Stand, Subject, UpstreamAnswer, What,
};

/// Everything that was seen so far.
#[derive(Debug, Default)]
pub(super) struct Known {
    world: Option<World>,
    numbers: HashMap<Subject, StoryNo>,
    stories: Vec<Story>,
    requests: HashMap<RequestNo, Request>,
    calls: HashMap<CallNo, Call>,
    by_body: HashMap<String, CallNo>,
    /// Every tenant that asked.
    pub(super) tenants: Vec<String>,
    /// Whether this world tells how its records move.
    pub(super) moves: bool,
    pub(super) calm: bool,
    pub(super) ended: bool,
    pub(super) outbox: Outbox,
}

#[derive(Debug)]
struct World {
    routes: Vec<Rules>,
    durable: bool,
}

pub(super) type StoryNo = usize;

/// What is known about one subject.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) subject: Subject,
    /// The different things that were asked, with the place of their rules.
    asked: Vec<(String, usize)>,
    /// The record as it stands, if a move was seen.
    pub(super) stand: Option<Option<Stand>>,
    /// The highest fence ever granted.
    pub(super) fence: i64,
    /// How often the key became new again, which starts its generations over.
    era: u32,
    grants: Vec<Grant>,
    pub(super) uses: Vec<Use>,
    /// The store lost something of it, in a world where it may.
    pub(super) lost: bool,
    /// Somebody said that it did not act, and nothing has happened to it since.
    pub(super) denied: bool,
    /// Since when the attempt that has the record is at work, in microseconds.
    pub(super) at_work_since: Option<u64>,
    /// What was noted.
    pub(super) notes: Vec<Note>,
}

/// Something that was noted about a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) note: String,
    pub(super) attempt: String,
    pub(super) fence: i64,
    pub(super) told: String,
}

#[derive(Debug)]
struct Grant {
    attempt: String,
    fence: i64,
    place: Place,
}

/// Which use of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    era: u32,
    pub(super) generation: u32,
}

/// One use of a key: a generation of its record.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) place: Place,
    pub(super) completed: bool,
    /// An operator withdrew its reply.
    voided: bool,
    /// A reconciler or an operator said how it ended: the reply may be from elsewhere.
    pub(super) resolved: bool,
    /// Somebody said that it did not act, with proof.
    pub(super) released: bool,
    /// What clients received.
    pub(super) reply: Option<Source>,
    /// The calls that acted.
    pub(super) acted: Vec<CallNo>,
    /// The steps that are saved.
    pub(super) saved: Vec<String>,
    /// The steps that were called, with their keys.
    pub(super) keys: Vec<(String, String)>,
}

/// Where a reply is from.
#[derive(Debug)]
pub(super) enum Source {
    Call(CallNo),
    Resolved(Box<Answer>),
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) story: StoryNo,
    pub(super) asks: String,
    pub(super) rules: usize,
    pub(super) over: bool,
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) story: StoryNo,
    pub(super) asks: String,
    pub(super) place: Place,
    /// Whether [`Self::place`] was said by an attempt.
    pub(super) held: bool,
    pub(super) acted: bool,
    pub(super) end: CallEnd,
    /// Which step of its operation it is, if it is one.
    pub(super) step: Option<String>,
}

#[derive(Debug)]
pub(super) enum CallEnd {
    NotYet,
    BrokeOff,
    Answered(UpstreamAnswer),
}

impl Known {
    pub(super) fn stories(&self) -> impl Iterator<Item = &Story> {
        self.stories.iter()
    }

    pub(super) fn story(&self, number: StoryNo) -> &Story {
        &self.stories[number]
    }

    pub(super) fn story_of(&self, subject: &Subject) -> Option<&Story> {
        self.numbers.get(subject).map(|number| &self.stories[*number])
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = (RequestNo, &Request)> {
        self.requests.iter().map(|(number, request)| (*number, request))
    }

    pub(super) fn request(&self, number: RequestNo) -> Option<&Request> {
        self.requests.get(&number)
    }

    pub(super) fn call(&self, number: CallNo) -> Option<&Call> {
        self.calls.get(&number)
    }

    /// The call that was answered with this body. Upstream gives each its own.
    pub(super) fn call_with(&self, body: &str) -> Option<(CallNo, &Call, &UpstreamAnswer)> {
        let number = *self.by_body.get(body)?;
        let call = self.calls.get(&number)?;
        match &call.end {
            CallEnd::Answered(answer) => Some((number, call, answer)),
            CallEnd::NotYet | CallEnd::BrokeOff => None,
        }
    }

    pub(super) fn rules(&self, place: usize) -> Option<&Rules> {
        self.world.as_ref()?.routes.get(place)
    }

    /// The rules for what this call asks; none for a call that nobody asked for.
    pub(super) fn rules_of(&self, call: &Call) -> Option<&Rules> {
        let asked = &self.stories[call.story].asked;
        let (_, rules) = asked.iter().find(|(asks, _)| *asks == call.asks)?;
        self.rules(*rules)
    }

    /// The rules for a key; none for one that nobody asked about.
    pub(super) fn rules_for(&self, story: &Story) -> Option<&Rules> {
        self.rules(story.asked.first()?.1)
    }

    pub(super) fn has_begun(&self) -> bool {
        self.world.is_some()
    }

    /// Where the rules of a route are found.
    pub(super) fn route(&self, name: &str) -> Option<usize> {
        self.world.as_ref()?.routes.iter().position(|rules| rules.route == name)
    }

    pub(super) fn durable(&self) -> bool {
        self.world.as_ref().is_some_and(|world| world.durable)
    }

    /// Takes an event that was found to be in form.
    pub(super) fn learn(&mut self, event: &Event) {
        match &event.what {
            What::World { routes, durable } => {
                self.world = Some(World { routes: routes.clone(), durable: *durable });
            }
            What::Asked { request, subject, route, asks } => {
                self.learn_request(*request, subject, route, asks);
            }
            What::Answered { request, answer } => self.learn_answer(*request, answer),
            What::GaveUp { request } => self.end_request(*request),
            What::Called { call, subject, asks, holder } => {
                self.learn_call(*call, subject, asks, holder.as_ref());
            }
            What::Acted { call } => self.learn_effect(*call),
            What::Replied { call, answer } => self.learn_reply(*call, answer.as_ref()),
            What::Moved { subject, from, to, cause } => {
                // Real worlds may tell of a loss, though not of what they do.
                self.moves |= !matches!(cause, Cause::Lost);
                let story = self.story_for(subject);
                self.stories[story].learn_move(from.as_ref(), to.as_ref(), cause, event.at);
            }
            What::Step { call, name, key } => self.learn_step(*call, name, key),
            What::Noted { subject, note, attempt, fence, told } => {
                let (note, attempt, told) = (note.clone(), attempt.clone(), told.clone());
                let story = self.story_for(subject);
                self.stories[story].notes.push(Note { note, attempt, fence: *fence, told });
            }
            What::Staged { .. }
            | What::Delivers { .. }
            | What::Received { .. }
            | What::Settled { .. } => self.outbox.learn(&event.what),
            What::Left { .. } | What::Fault { .. } | What::Rested { .. } | What::Relayed => {}
            What::Calm => self.calm = true,
            What::End => self.ended = true,
        }
    }

    fn story_for(&mut self, subject: &Subject) -> StoryNo {
        if let Some(number) = self.numbers.get(subject) {
            return *number;
        }
        let number = self.stories.len();
        self.stories.push(Story {
            subject: subject.clone(),
            asked: Vec::new(),
            stand: None,
            fence: i64::MIN,
            era: 0,
            grants: Vec::new(),
            uses: Vec::new(),
            lost: false,
            denied: false,
            at_work_since: None,
            notes: Vec::new(),
        });
        self.numbers.insert(subject.clone(), number);
        number
    }

    fn learn_request(&mut self, number: RequestNo, subject: &Subject, route: &str, asks: &str) {
        let Some(rules) = self.route(route) else { return };
        if !self.tenants.contains(&subject.tenant) {
            self.tenants.push(subject.tenant.clone());
        }
        let story = self.story_for(subject);
        let asked = &mut self.stories[story].asked;
        if !asked.iter().any(|(known, _)| known == asks) {
            asked.push((asks.to_owned(), rules));
        }
        let request = Request { story, asks: asks.to_owned(), rules, over: false };
        self.requests.insert(number, request);
    }

    fn end_request(&mut self, number: RequestNo) {
        if let Some(request) = self.requests.get_mut(&number) {
            request.over = true;
        }
    }

    fn learn_answer(&mut self, number: RequestNo, answer: &Answer) {
        self.end_request(number);
        if !matches!(answer.outcome(), Some("executed" | "replayed")) {
            return;
        }
        let Some(request) = self.requests.get(&number) else { return };
        let story = request.story;
        let source = self.call_with(&answer.body).map(|(number, call, _)| (number, call.place));
        let story = &mut self.stories[story];
        let (source, place) = match source {
            Some((call, place)) => (Source::Call(call), place),
            None => (
                Source::Resolved(Box::new(answer.clone())),
                Place { era: story.era, generation: answer.generation() },
            ),
        };
        story.use_mut(place).reply.get_or_insert(source);
    }

    fn learn_call(
        &mut self,
        number: CallNo,
        subject: &Subject,
        asks: &str,
        holder: Option<&Holder>,
    ) {
        let story = self.story_for(subject);
        let known = &self.stories[story];
        let here = Place { era: known.era, generation: holder.map_or(1, |held| held.generation) };
        let granted = holder.and_then(|holder| known.grant(holder));
        let call = Call {
            story,
            asks: asks.to_owned(),
            place: granted.unwrap_or(here),
            held: holder.is_some(),
            acted: false,
            end: CallEnd::NotYet,
            step: None,
        };
        self.calls.insert(number, call);
    }

    fn learn_step(&mut self, number: CallNo, name: &str, key: &str) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        call.step = Some(name.to_owned());
        let used = self.stories[call.story].use_mut(call.place);
        if !used.keys.iter().any(|(known, _)| known == name) {
            used.keys.push((name.to_owned(), key.to_owned()));
        }
    }

    fn learn_effect(&mut self, number: CallNo) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        call.acted = true;
        self.stories[call.story].use_mut(call.place).acted.push(number);
    }

    fn learn_reply(&mut self, number: CallNo, answer: Option<&UpstreamAnswer>) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        call.end = match answer {
            None => CallEnd::BrokeOff,
            Some(answer) => {
                self.by_body.insert(answer.body.clone(), number);
                CallEnd::Answered(answer.clone())
            }
        };
    }
}

impl Story {
    /// Whether this was asked for by any request.
    pub(super) fn was_asked(&self, asks: &str) -> bool {
        self.asked.iter().any(|(known, _)| known == asks)
    }

    /// Whether anything else was asked for.
    pub(super) fn was_asked_otherwise(&self, asks: &str) -> bool {
        self.asked.iter().any(|(known, _)| known != asks)
    }

    /// The use of the key that an attempt was granted.
    pub(super) fn grant(&self, holder: &Holder) -> Option<Place> {
        let granted = self.grants.iter().rev().find(|grant| {
            grant.fence == holder.fence
                && grant.attempt == holder.attempt
                && grant.place.generation == holder.generation
        });
        granted.map(|grant| grant.place)
    }

    /// Which grant of its use of the key an attempt has: the first is 1.
    pub(super) fn number_of(&self, holder: &Holder) -> Option<u32> {
        let place = self.grant(holder)?;
        let until = self.grants.iter().take_while(|grant| grant.fence != holder.fence);
        let before = until.filter(|grant| grant.place == place).count();
        u32::try_from(before + 1).ok()
    }

    pub(super) fn use_of(&self, place: Place) -> Option<&Use> {
        self.uses.iter().find(|used| used.place == place)
    }

    /// This generation of the key as it is used now.
    pub(super) fn use_now(&self, generation: u32) -> Option<&Use> {
        self.use_of(Place { era: self.era, generation })
    }

    fn use_mut(&mut self, place: Place) -> &mut Use {
        let found = self.uses.iter().position(|used| used.place == place);
        let found = found.unwrap_or_else(|| {
            self.uses.push(Use {
                place,
                completed: false,
                voided: false,
                resolved: false,
                released: false,
                reply: None,
                acted: Vec::new(),
                saved: Vec::new(),
                keys: Vec::new(),
            });
            self.uses.len() - 1
        });
        &mut self.uses[found]
    }

    fn learn_move(&mut self, from: Option<&Stand>, to: Option<&Stand>, cause: &Cause, at: u64) {
        let lost = matches!(cause, Cause::Lost);
        self.lost |= lost;
        match (from, to) {
            (Some(_), None) => self.era += 1,
            (Some(from), Some(to))
                if is_new_use(from, to, cause) && to.generation <= from.generation =>
            {
                self.era += 1;
            }
            _ => {}
        }
        if lost {
            // The store cannot know what it lost.
            self.fence = i64::MIN;
        }
        if let Some(to) = to {
            self.fence = self.fence.max(to.fence);
            let place = Place { era: self.era, generation: to.generation };
            if matches!(cause, Cause::Resolve { proof: Some(_), .. }) {
                self.use_mut(place).released = true;
            }
            match &*to.state {
                "completed" => {
                    let used = self.use_mut(place);
                    used.completed = true;
                    used.resolved |= matches!(cause, Cause::Resolve { .. });
                }
                "in_progress" => self.learn_work(from, to, cause, place),
                "expired" => self.use_mut(place).voided |= is_void(cause),
                _ => {}
            }
        }
        let at_work = to.is_some_and(|to| to.state == "in_progress");
        let again = from.zip(to).is_some_and(|(from, to)| {
            from.state == to.state && from.attempt == to.attempt && from.fence == to.fence
        });
        self.at_work_since = match (at_work, again) {
            (false, _) => None,
            (true, true) => self.at_work_since.or(Some(at)),
            (true, false) => Some(at),
        };
        let is_free = to.is_some_and(|to| matches!(&*to.state, "failed_retryable" | "pending"));
        self.denied = is_free && matches!(cause, Cause::Resolve { proof: Some(_), .. });
        self.stand = Some(to.cloned());
    }

    /// A record is in progress: it was granted, or a step of it was saved.
    fn learn_work(&mut self, from: Option<&Stand>, to: &Stand, cause: &Cause, place: Place) {
        match cause {
            Cause::Write { write, .. } if write == "save" => {
                let before = from.and_then(|from| from.open.recovery_point.as_ref());
                if let Some(saved) =
                    to.open.recovery_point.as_ref().filter(|it| Some(*it) != before)
                {
                    self.use_mut(place).saved.push(saved.clone());
                }
            }
            // Somebody found out that its last attempt did not act: that is nobody's grant.
            Cause::Resolve { .. } => {}
            _ => self.learn_grant(to, place),
        }
    }

    fn learn_grant(&mut self, to: &Stand, place: Place) {
        let again = self.grants.last().is_some_and(|last| {
            last.fence == to.fence && last.attempt == to.attempt && last.place == place
        });
        if !again {
            self.grants.push(Grant { attempt: to.attempt.clone(), fence: to.fence, place });
        }
    }
}

impl Use {
    /// Whether its reply counts for as long as its tombstone does.
    pub(super) fn stands(&self) -> bool {
        self.completed && !self.voided
    }
}

fn is_void(cause: &Cause) -> bool {
    matches!(cause, Cause::Resolve { resolution, .. } if resolution == "void")
}

/// Whether a move gives the key to a new use, after the one before has ended for good.
pub(super) fn is_new_use(from: &Stand, to: &Stand, cause: &Cause) -> bool {
    let Cause::Reserve { now, .. } = cause else { return false };
    let begins = matches!(&*to.state, "in_progress" | "pending");
    match &*from.state {
        "completed" | "expired" => begins,
        "failed_retryable" => begins && from.expires_at <= *now,
        _ => false,
    }
}

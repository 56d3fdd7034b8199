//! The same question, answered by trying everything: each request by itself, every step in every
//! order, no look taken for granted. It shares no code with the search, and reads histories itself.

use std::collections::HashSet;

use crate::history::{Answer, Cause, Event, Stand, What};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Record<'a> {
    Free(Option<&'a str>),
    Working(usize, usize),
    Unsure(usize, usize),
    Replied(&'a str, Option<&'a str>),
    Gone(&'a str),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World<'a> {
    next: usize,
    record: Record<'a>,
    explained: Vec<bool>,
    begun: Vec<bool>,
}

struct Request<'a> {
    number: u64,
    asks: &'a str,
    asked: usize,
    answered: Option<usize>,
    status: u16,
    outcome: &'a str,
    /// The body of the reply, where it is one.
    body: Option<&'a str>,
}

struct Call<'a> {
    asks: &'a str,
    called: usize,
    replied: Option<usize>,
    body: &'a str,
    made_for: Option<usize>,
    shown: bool,
}

struct Brute<'a> {
    acts: bool,
    requests: Vec<Request<'a>>,
    calls: Vec<Call<'a>>,
    completed_by_hand: Option<usize>,
    released_by_hand: Option<usize>,
    expires: Option<usize>,
    again: bool,
}

/// Whether some order of steps explains this history of one key.
pub(super) fn is_explained(events: &[Event]) -> bool {
    let brute = Brute::read(events);
    let open = vec![false; brute.requests.len()];
    let first = World { next: 0, record: Record::Free(None), explained: open.clone(), begun: open };
    let mut known = HashSet::from([first.clone()]);
    let mut fresh = vec![first];
    while let Some(world) = fresh.pop() {
        if world.next == events.len() {
            return true;
        }
        for next in brute.nexts(&world) {
            if known.insert(next.clone()) {
                fresh.push(next);
            }
        }
    }
    false
}

impl<'a> Brute<'a> {
    fn read(events: &'a [Event]) -> Self {
        let mut brute = Brute {
            acts: true,
            requests: Vec::new(),
            calls: Vec::new(),
            completed_by_hand: None,
            released_by_hand: None,
            expires: None,
            again: false,
        };
        let mut numbers = Vec::new();
        for (at, event) in events.iter().enumerate() {
            match &event.what {
                What::World { routes, .. } => brute.acts = routes[0].acts,
                What::Asked { request, asks, .. } => brute.requests.push(Request {
                    number: *request,
                    asks,
                    asked: at,
                    answered: None,
                    status: 0,
                    outcome: "",
                    body: None,
                }),
                What::Called { call, asks, .. } => {
                    numbers.push(*call);
                    let (replied, made_for) = (None, None);
                    let call = Call { asks, called: at, replied, body: "", made_for, shown: false };
                    brute.calls.push(call);
                }
                What::Replied { call, answer: Some(answer) } => {
                    let place = numbers.iter().position(|number| number == call).expect("called");
                    brute.calls[place].replied = Some(at);
                    brute.calls[place].body = &answer.body;
                }
                What::Answered { request, answer } => {
                    brute.answered(at, *request, answer);
                }
                What::Moved { from: Some(from), to, cause, .. } => {
                    if let Cause::Resolve { resolution, .. } = cause {
                        let first = match &**resolution {
                            "complete" => &mut brute.completed_by_hand,
                            _ => &mut brute.released_by_hand,
                        };
                        first.get_or_insert(at);
                    }
                    if from.state == "completed" && to.as_ref().is_some_and(is_at_work) {
                        brute.again = true;
                        brute.expires.get_or_insert(at);
                    }
                }
                _ => {}
            }
        }
        brute
    }

    fn answered(&mut self, at: usize, number: u64, answer: &'a Answer) {
        let known = |request: &Request<'_>| request.number == number;
        let place = self.requests.iter().position(known).expect("asked");
        let asks = self.requests[place].asks;
        let outcome = answer.outcome().unwrap_or("");
        let mine = |call: &&mut Call<'_>| {
            call.replied.is_some() && call.body == answer.body && call.asks == asks
        };
        let call = self.calls.iter_mut().find(mine);
        let by_hand = self.completed_by_hand.is_some();
        let mut body = None;
        let mut understood = true;
        match (outcome, call) {
            ("executed" | "replayed", Some(call)) => {
                body = Some(&*answer.body);
                call.shown = true;
                if outcome == "executed" {
                    call.made_for.get_or_insert(place);
                }
            }
            ("replayed", None) if by_hand => body = Some(&*answer.body),
            ("executed" | "replayed", None) => understood = false,
            ("not_executed", Some(call)) => {
                body = Some(&*answer.body);
                call.made_for.get_or_insert(place);
            }
            _ => {}
        }
        let request = &mut self.requests[place];
        request.body = body;
        request.status = answer.status;
        if understood {
            request.outcome = outcome;
            request.answered = Some(at);
        }
        if answer.generation() > 1 {
            self.again = true;
            self.expires.get_or_insert(0);
        }
        if outcome == "expired" {
            self.expires = Some(0);
        }
    }

    fn loose(&self) -> bool {
        !self.acts || self.completed_by_hand.is_some() || self.released_by_hand.is_some()
    }

    fn nexts(&self, world: &World<'a>) -> Vec<World<'a>> {
        let mut found = Vec::new();
        found.extend(self.event(world));
        for place in 0..self.requests.len() {
            if self.requests[place].asked < world.next {
                found.extend(self.look(world, place));
                found.extend(self.begin(world, place));
                found.extend(self.end(world, place));
            }
        }
        let moved = self.hidden(world).into_iter();
        found.extend(moved.map(|record| World { record, ..world.clone() }));
        found
    }

    fn is_open(&self, world: &World<'_>, place: usize) -> bool {
        self.requests[place].answered.is_none_or(|at| at >= world.next)
    }

    /// The next event happens, if everything is as it must be by then.
    fn event(&self, world: &World<'a>) -> Option<World<'a>> {
        let at = world.next;
        let unexplained = self.requests.iter().enumerate().any(|(place, request)| {
            let free = matches!(request.outcome, "refused" | "unavailable");
            request.answered == Some(at) && !free && !world.explained[place]
        });
        let too_early = self.calls.iter().any(|call| {
            let Some(place) = call.made_for.filter(|_| call.called == at) else { return false };
            let passed_on = self.requests[place].outcome == "not_executed";
            let begun = matches!(world.record,
                Record::Working(by, _) | Record::Unsure(by, _) if by == place);
            !(begun || passed_on && self.loose())
        });
        (!unexplained && !too_early).then(|| World { next: at + 1, ..world.clone() })
    }

    fn look(&self, world: &World<'a>, place: usize) -> Option<World<'a>> {
        let request = &self.requests[place];
        let bound = self.bound(&world.record);
        let own = bound == Some(request.asks);
        let sees = match request.outcome {
            "replayed" => world.record == Record::Replied(request.asks, request.body),
            "conflict" => {
                let given_back = world.record == Record::Free(Some(request.asks));
                let others = matches!(world.record, Record::Working(by, _) if by != place);
                own && others || given_back && self.loose()
            }
            "unknown" => request.status == 409 && own && matches!(world.record, Record::Unsure(..)),
            "mismatch" => bound.is_some() && !own,
            "expired" => world.record == Record::Gone(request.asks),
            "reply_not_stored" => own && matches!(world.record, Record::Replied(..)),
            "not_executed" if self.loose() && request.body.is_some() => {
                world.record == Record::Free(Some(request.asks)) && self.has_come(world, request)
            }
            "not_executed" => self.loose() && own,
            _ => false,
        };
        let mut next = world.clone();
        next.explained[place] = true;
        (sees && self.is_open(world, place)).then_some(next)
    }

    /// Whether upstream's answer to this request has come.
    fn has_come(&self, world: &World<'_>, request: &Request<'_>) -> bool {
        let call = self.calls.iter().find(|call| Some(call.body) == request.body);
        call.and_then(|call| call.replied).is_none_or(|at| at < world.next)
    }

    fn begin(&self, world: &World<'a>, place: usize) -> Option<World<'a>> {
        let request = &self.requests[place];
        let Record::Free(bound) = world.record else { return None };
        let (begun, explained) = (world.begun[place], world.explained[place]);
        let open = self.is_open(world, place);
        let may = match (request.outcome, request.status) {
            ("executed" | "not_executed" | "expired", _) => open && !explained,
            ("unknown", 409) => open,
            ("unknown", _) => open && !begun,
            ("replayed" | "reply_not_stored" | "conflict", _) => open && self.loose(),
            ("" | "unavailable", _) => !begun,
            _ => false,
        };
        if !may || bound.is_some_and(|bound| bound != request.asks) {
            return None;
        }
        let calls_before = self.calls.iter().filter(|call| call.called < world.next).count();
        let mut next = World { record: Record::Working(place, calls_before), ..world.clone() };
        next.begun[place] = true;
        next.explained[place] |= request.outcome == "unknown";
        Some(next)
    }

    /// A request that was told so ends its own attempt.
    fn end(&self, world: &World<'a>, place: usize) -> Option<World<'a>> {
        let request = &self.requests[place];
        let unsure = match world.record {
            Record::Working(by, _) if by == place => false,
            Record::Unsure(by, _) if by == place => true,
            _ => return None,
        };
        let record = match request.outcome {
            "executed" => Record::Replied(request.asks, request.body),
            "not_executed" if request.body.is_none() || !unsure => Record::Free(Some(request.asks)),
            _ => return None,
        };
        if !self.has_come(world, request) {
            return None;
        }
        let mut next = World { record, ..world.clone() };
        next.explained[place] = true;
        Some(next)
    }

    /// What may happen without anybody being told.
    fn hidden(&self, world: &World<'a>) -> Vec<Record<'a>> {
        let passed = |at: Option<usize>| at.is_some_and(|at| at < world.next || at == 0);
        let expires = passed(self.expires);
        let mut found = Vec::new();
        match world.record {
            Record::Free(Some(_)) if expires && self.again => found.push(Record::Free(None)),
            Record::Replied(asks, _) if expires => found.push(Record::Gone(asks)),
            Record::Gone(_) if self.again => found.push(Record::Free(None)),
            Record::Free(_) | Record::Replied(..) | Record::Gone(_) => {}
            Record::Working(by, since) | Record::Unsure(by, since) => {
                let working = matches!(world.record, Record::Working(..));
                let request = &self.requests[by];
                let (asks, told) = (request.asks, (request.outcome, request.status));
                if working {
                    found.push(Record::Unsure(by, since));
                }
                let silent = matches!(told.0, "" | "unavailable");
                let released = match working {
                    true => !self.acts || silent,
                    false => silent || told == ("unknown", 409) || passed(self.released_by_hand),
                };
                if released {
                    found.push(Record::Free(Some(asks)));
                }
                let alone = matches!(told.0, "" | "unknown" | "expired");
                found.extend(self.replies(world, asks, alone.then_some(since)));
            }
        }
        found
    }

    /// The replies with which an attempt may be completed: by itself, or by hand.
    fn replies(&self, world: &World<'a>, asks: &'a str, since: Option<usize>) -> Vec<Record<'a>> {
        let by_hand = self.completed_by_hand.is_some_and(|at| at < world.next);
        let mut found = Vec::new();
        for (place, call) in self.calls.iter().enumerate() {
            let come = call.replied.is_some_and(|at| at < world.next);
            let own = since.is_some_and(|since| place >= since) && call.made_for.is_none() && come;
            let made = call.called < world.next;
            let told_of = self.again
                || self
                    .requests
                    .iter()
                    .any(|request| matches!(request.outcome, "expired" | "reply_not_stored"));
            if call.asks == asks && (call.shown || told_of) && (own || by_hand && made) {
                found.push(Record::Replied(asks, call.shown.then_some(call.body)));
            }
        }
        let brought = self
            .requests
            .iter()
            .filter(|request| request.outcome == "replayed" && request.asks == asks && by_hand);
        let brought = brought
            .filter_map(|request| request.body)
            .filter(|body| !self.calls.iter().any(|call| call.body == *body));
        found.extend(brought.map(|body| Record::Replied(asks, Some(body))));
        found
    }

    fn bound(&self, record: &Record<'a>) -> Option<&'a str> {
        match record {
            Record::Free(bound) => *bound,
            Record::Working(by, _) | Record::Unsure(by, _) => Some(self.requests[*by].asks),
            Record::Replied(asks, _) | Record::Gone(asks) => Some(asks),
        }
    }
}

fn is_at_work(stand: &Stand) -> bool {
    stand.state == "in_progress"
}

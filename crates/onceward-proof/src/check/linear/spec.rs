//! The record as clients can know it: which steps it can make, and what can be seen of it when.

use super::view::{Asks, Request, Seen, View};

/// How the record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// Free; for one request only, if something was given back before.
    Free(Option<Asks>),
    /// An attempt is at work.
    Running(Owner),
    /// An attempt may have acted.
    Unknown(Owner),
    /// There is the reply of a call. [`UNSEEN`] is one that no client ever got.
    Done(Asks, usize),
    /// There was a reply.
    Expired(Asks),
}

/// A reply that no client ever got.
pub(super) const UNSEEN: usize = usize::MAX;

/// Whose attempt it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub(super) asks: Asks,
    pub(super) acts: bool,
    pub(super) kind: Kind,
    /// How many calls had been made when it began: none of them is its own.
    pub(super) since: usize,
}

/// Attempts that can do the same are not told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Of this request, whose client was told how it ended.
    Of(usize),
    /// Its client was told 409, unknown.
    Told,
    /// Its client was told 502 or 504, unknown, or that the key has expired since.
    Late,
    /// Its client was told nothing.
    Silent,
    /// Its client was told 503.
    Withdrawn,
    /// Its client was told what became of the record without it.
    Overtaken,
    /// The same, for this request: that another attempt is at work.
    Refused(usize),
}

impl Kind {
    /// The attempt of this request; `None` if it can have none.
    pub(super) fn of(place: usize, request: &Request, view: &View<'_>) -> Option<Kind> {
        match request.seen {
            Seen::Executed(_) | Seen::NotExecuted(_) => Some(Kind::Of(place)),
            Seen::Unknown => Some(Kind::Told),
            Seen::UnknownFirst | Seen::Expired => Some(Kind::Late),
            Seen::Nothing => Some(Kind::Silent),
            Seen::Unavailable => Some(Kind::Withdrawn),
            Seen::Replayed(_) | Seen::NotStored => {
                can_be_overtaken(request, view).then_some(Kind::Overtaken)
            }
            // Its own attempt at work is no reason to refuse it.
            Seen::InProgress => can_be_overtaken(request, view).then_some(Kind::Refused(place)),
            Seen::Mismatch | Seen::Refused => None,
        }
    }

    /// Whether a request whose answer is explained does not begin any more.
    pub(super) fn begins_once(self) -> bool {
        matches!(self, Kind::Of(_) | Kind::Late)
    }

    /// Whether it may end after its client was answered, or without an answer, with a reply.
    fn may_complete_unseen(self) -> bool {
        matches!(self, Kind::Told | Kind::Late | Kind::Silent)
    }

    fn is_overtaken(self) -> bool {
        matches!(self, Kind::Overtaken | Kind::Refused(_))
    }

    fn may_release_running(self) -> bool {
        matches!(self, Kind::Silent | Kind::Withdrawn)
    }

    /// What was taken for lost before it was sent gives itself back.
    fn may_release_unknown(self) -> bool {
        matches!(self, Kind::Silent | Kind::Withdrawn | Kind::Told)
    }
}

/// Whether an attempt of this request can have ended without the request being told how.
fn can_be_overtaken(request: &Request, view: &View<'_>) -> bool {
    !request.acts || view.was_resolved() || view.was_given_back
}

/// What has happened so far that steps depend on.
#[derive(Debug)]
pub(super) struct Now {
    /// How many calls were made.
    pub(super) called: usize,
    /// Which of them were answered.
    pub(super) replied: Vec<bool>,
    pub(super) expires: bool,
    pub(super) resolved_completed: bool,
    pub(super) resolved_released: bool,
}

impl Now {
    pub(super) fn new(view: &View<'_>) -> Self {
        Now {
            called: 0,
            replied: vec![false; view.calls.len()],
            expires: false,
            resolved_completed: false,
            resolved_released: false,
        }
    }
}

impl State {
    /// The request that the record is for.
    pub(super) fn bound(self) -> Option<Asks> {
        match self {
            State::Free(bound) => bound,
            State::Running(owner) | State::Unknown(owner) => Some(owner.asks),
            State::Done(asks, _) | State::Expired(asks) => Some(asks),
        }
    }

    pub(super) fn is_free_for(self, asks: Asks) -> bool {
        matches!(self, State::Free(bound) if bound.is_none_or(|bound| bound == asks))
    }

    pub(super) fn owner(self) -> Option<Owner> {
        match self {
            State::Running(owner) | State::Unknown(owner) => Some(owner),
            State::Free(_) | State::Done(..) | State::Expired(_) => None,
        }
    }

    /// Whether a look at this record explains the answer to a request.
    pub(super) fn explains(self, place: usize, view: &View<'_>, now: &Now) -> bool {
        let request = &view.requests[place];
        let asks = request.asks;
        match request.seen {
            Seen::Replayed(call) => self == State::Done(asks, call),
            Seen::InProgress => match self {
                State::Running(owner) => owner.asks == asks && owner.kind != Kind::Refused(place),
                // Its own attempt was ended by others.
                State::Free(bound) => bound == Some(asks) && can_be_overtaken(request, view),
                _ => false,
            },
            Seen::Unknown => matches!(self, State::Unknown(owner) if owner.asks == asks),
            Seen::Mismatch => self.bound().is_some_and(|bound| bound != asks),
            Seen::Expired => self == State::Expired(asks),
            Seen::NotStored => matches!(self, State::Done(bound, _) if bound == asks),
            // Given back by others, who knew as well.
            Seen::NotExecuted(call) => {
                let given_back = match call {
                    Some(_) => self == State::Free(Some(asks)),
                    None => self.bound() == Some(asks),
                };
                given_back
                    && can_be_overtaken(request, view)
                    && call.is_none_or(|call| now.replied[call])
            }
            Seen::Refused | Seen::Unavailable | Seen::Nothing => true,
            Seen::Executed(_) | Seen::UnknownFirst => false,
        }
    }

    /// Every step of the record that no request has to make at a certain time. With the request
    /// whose end it is, if any.
    pub(super) fn steps(
        self,
        view: &View<'_>,
        now: &Now,
        mut to: impl FnMut(State, Option<usize>),
    ) {
        match self {
            State::Free(Some(_)) if now.expires && view.used_again => to(State::Free(None), None),
            State::Free(_) => {}
            State::Running(owner) => {
                self.ends(owner, view, now, &mut to);
                let in_vain = owner.kind.is_overtaken() && view.was_given_back;
                if !owner.acts || in_vain || owner.kind.may_release_running() {
                    to(State::Free(Some(owner.asks)), None);
                }
                // The last is tried first, and this explains most.
                to(State::Unknown(owner), None);
            }
            State::Unknown(owner) => {
                if now.resolved_released || owner.kind.may_release_unknown() {
                    to(State::Free(Some(owner.asks)), None);
                }
                self.ends(owner, view, now, &mut to);
            }
            State::Done(asks, _) if now.expires => to(State::Expired(asks), None),
            State::Done(..) => {}
            State::Expired(_) if view.used_again => to(State::Free(None), None),
            State::Expired(_) => {}
        }
    }

    fn ends(
        self,
        owner: Owner,
        view: &View<'_>,
        now: &Now,
        to: &mut impl FnMut(State, Option<usize>),
    ) {
        let asks = owner.asks;
        if let Kind::Of(place) = owner.kind {
            match view.requests[place].seen {
                Seen::Executed(call) if now.replied[call] => {
                    to(State::Done(asks, call), Some(place));
                }
                Seen::NotExecuted(Some(call))
                    if now.replied[call] && matches!(self, State::Running(_)) =>
                {
                    to(State::Free(Some(asks)), Some(place));
                }
                Seen::NotExecuted(None) => to(State::Free(Some(asks)), Some(place)),
                _ => {}
            }
        }
        let by_itself = owner.kind.may_complete_unseen();
        if !by_itself && !now.resolved_completed {
            return;
        }
        for (number, call) in view.calls.iter().enumerate() {
            if call.asks != asks {
                continue;
            }
            let own = by_itself
                && call.brought.is_none()
                && call.made_for.is_none()
                && number >= owner.since
                && now.replied[number];
            let known = call.brought.is_some() || number < now.called;
            let by_others = now.resolved_completed && known;
            if !own && !by_others {
                continue;
            }
            if call.replied_to_client {
                to(State::Done(asks, number), None);
            } else if view.has_unseen_replies {
                to(State::Done(asks, UNSEEN), None);
            }
        }
    }
}

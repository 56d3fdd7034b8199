//! The judge: reads a history and says what is wrong with it.
//!
//! The same judge sits beside the simulator, after every step, and over the histories of real
//! processes, which know less: there it checks what can be seen.
//!
//! | id | what must hold |
//! | --- | --- |
//! | FORM | the history itself makes sense |
//! | I1 once | one effect for each use of a key, other than those declared re-runnable |
//! | I2 replay | every reply of one use is the same, and is what upstream answered |
//! | I3 fence | fences only grow, and a write without the right fence changes nothing |
//! | I4 unknown | records take the arrows of the state drawing, and no others |
//! | I5 tenant | nothing of one tenant or key reaches another |
//! | I6 durable | what was acknowledged stays |
//! | I7 closed | no call without a grant, no effect without a call |
//! | I8 live | after the faults everything comes to its end; who is to come back is told when |
//! | I9 mismatch | another request under the same key neither runs nor gets its reply |
//! | I10 outbox | each message is received once, in the order of its aggregate, under one key |
//! | I11 ttl | what is kept is kept for its time, and then used again as what it is: a new use |
//! | STEP | a step of an operation that is saved is not made again, and has one key |
//! | AUDIT | what happens to a record is noted once |
//! | R5 | an attempt calls only while its lease lasts |
//! | R7 | no reply before the record is completed |
//! | LIN | what clients saw of a key could have come from one record, step by step |

use std::fmt;

use crate::history::{Event, Subject, What};

mod known; // what the judge remembers
mod form; // FORM: whether an event can follow at all
mod call; // I7, I9, R5: upstream is called
mod answer; // I2, I5, I8, I9, R7: a client is answered
mod record; // I3, I4, I6, I9: a record moves
mod once; // I1: effects are counted
mod live; // I8: nothing is left over
mod step; // STEP: an operation in steps
mod note; // AUDIT: what is remembered
mod outbox; // I10: messages and their receivers
mod linear; // LIN: one record explains all answers

#[cfg(test)]
mod tests;

use known::{Known, Note};

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What is violated: `I1` to `I11`, `R5`, `R7`, `STEP`, `AUDIT`, `LIN`, or `FORM` for a history that
    /// makes no sense.
    pub invariant: &'static str,
    /// Whose record it is about.
    pub subject: Option<Subject>,
    /// A sentence for people, with the numbers of requests and calls.
    pub what: String,
}

impl Violation {
    fn of(invariant: &'static str, subject: &Subject, what: String) -> Self {
        Violation { invariant, subject: Some(subject.clone()), what }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.invariant)?;
        if let Some(Subject { tenant, key }) = &self.subject {
            write!(f, "{tenant}/{key}: ")?;
        }
        f.write_str(&self.what)
    }
}

impl std::error::Error for Violation {}

type Verdict = Result<(), Violation>;

/// Reads a history event by event.
#[derive(Debug, Default)]
pub struct Judge {
    known: Known,
}

impl Judge {
    /// A judge who has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next event. After a violation the judge may go on; an event that makes no sense is
    /// left out.
    ///
    /// # Errors
    /// With the first thing that is wrong with it.
    pub fn observe(&mut self, event: &Event) -> Result<(), Violation> {
        form::check(&self.known, event)?;
        let verdict = match &event.what {
            What::Called { call, subject, asks, holder } => {
                call::check(&self.known, *call, subject, asks, holder.as_ref())
            }
            What::Answered { request, answer } => answer::check(&self.known, *request, answer),
            What::Moved { subject, from, to, cause } => {
                record::check(&self.known, subject, from.as_ref(), to.as_ref(), cause)
            }
            What::Step { call, name, key } => step::check(&self.known, *call, name, key),
            What::Noted { subject, note, attempt, fence, told } => {
                let (note, attempt, told) = (note.clone(), attempt.clone(), told.clone());
                note::check(&self.known, subject, &Note { note, attempt, fence: *fence, told })
            }
            What::Delivers { .. } | What::Received { .. } | What::Settled { .. } => {
                self.known.outbox.check(&event.what)
            }
            What::Rested { within } => live::check_rested(&self.known, event.at, *within),
            What::Relayed => self.known.outbox.check_rested(),
            _ => Ok(()),
        };
        self.known.learn(event);
        verdict.and_then(|()| match &event.what {
            What::Acted { call } | What::Replied { call, .. } => once::check(&self.known, *call),
            What::End => once::check_all(&self.known).into_iter().next().map_or(Ok(()), Err),
            _ => Ok(()),
        })
    }

    /// The checks that need the whole history: to be called once, with what was observed.
    ///
    /// # Errors
    /// With the first thing that is wrong.
    pub fn finish(&self, history: &[Event]) -> Result<(), Violation> {
        self.end(history).next().map_or(Ok(()), Err)
    }

    /// How many subjects are not fully checked any more, because the store lost something of them.
    pub fn exempted(&self) -> usize {
        self.known.stories().filter(|story| story.lost).count()
    }

    fn end<'a>(&'a self, history: &'a [Event]) -> impl Iterator<Item = Violation> + 'a {
        let lost = |subject: &Subject| self.known.story_of(subject).is_some_and(|story| story.lost);
        live::check(&self.known)
            .chain(self.known.end_of_outbox())
            .chain(linear::check(history, lost))
    }
}

/// Everything that is wrong with a finished history.
pub fn judge(history: &[Event]) -> Vec<Violation> {
    let mut judge = Judge::new();
    let mut found: Vec<_> = history.iter().filter_map(|event| judge.observe(event).err()).collect();
    found.extend(judge.end(history));
    found
}

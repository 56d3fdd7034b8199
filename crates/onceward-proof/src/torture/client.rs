//! Clients: they ask, ask again, ask at once, ask for something else, and hang up.

use std::{
    collections::VecDeque,
    io::{self, BufReader, Write as _},
    net::TcpStream,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use rand::{Rng, RngExt as _, SeedableRng as _, rngs::StdRng};

use super::{
    charge::{Charge, TENANTS},
    fleet::{Fleet, Moment},
    http::Message,
    record::Recorder,
};
use crate::{
    check::Violation,
    history::{Answer, Subject},
};

/// A client does not think of more at once.
const OPEN_MAX: usize = 8;

/// After the faults there is an answer for good within this: many times the lease.
const FINAL_MAX: Duration = Duration::from_secs(30);

/// What all clients know together.
pub(super) struct Clients {
    record: Arc<Recorder>,
    fleet: Arc<Fleet>,
    /// What was asked for, each once, in order.
    known: Mutex<Vec<(Subject, Charge)>>,
    calm: AtomicBool,
    /// The store may lose something, and then say so for good.
    may_lose: bool,
    lost: AtomicBool,
}

/// How a request is made.
#[derive(Clone, Copy)]
struct Manner {
    /// To which process.
    slot: usize,
    /// In which of the ways to write the same.
    form: u8,
    /// Waits so long between the first half and the second.
    halfway: Duration,
    /// Waits so long for each piece of the answer.
    patience: Duration,
}

impl Clients {
    pub(super) fn new(record: Arc<Recorder>, fleet: Arc<Fleet>, may_lose: bool) -> Clients {
        let [calm, lost] = [false; 2].map(AtomicBool::new);
        Clients { record, fleet, known: Mutex::default(), calm, may_lose, lost }
    }

    /// Whether somebody was told that the store has lost something.
    pub(super) fn was_told_of_a_loss(&self) -> bool {
        self.lost.load(SeqCst)
    }

    /// Asks until it is calm. What has no answer for good is mostly asked for again.
    pub(super) fn run(&self, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut open: VecDeque<(Subject, Charge)> = VecDeque::new();
        while !self.calm.load(SeqCst) {
            let again = if random.random() { open.pop_front() } else { None };
            let (subject, charge) = again.unwrap_or_else(|| self.choose(&mut random));
            match random.random_range(0..100) {
                // The same from several at once.
                0..5 => thread::scope(|scope| {
                    for _ in 0..random.random_range(2..5) {
                        let manner = self.manner(&mut random);
                        let subject = &subject;
                        scope.spawn(move || self.ask(subject, charge, manner));
                    }
                }),
                // Another request under the same key.
                5..10 => {
                    let other = Charge { amount: charge.amount + 1, ..charge };
                    self.ask(&subject, other, self.manner(&mut random));
                }
                _ => {
                    let answer = self.ask(&subject, charge, self.manner(&mut random));
                    let known = answer.as_ref().is_some_and(is_final);
                    // An unknown outcome may become known.
                    let unknown = answer.is_some_and(|answer| answer.outcome() == Some("unknown"));
                    if !known || unknown && random.random_ratio(4, 5) {
                        open.push_back((subject, charge));
                        open.truncate(OPEN_MAX);
                    }
                }
            }
        }
    }

    /// Ends the load.
    pub(super) fn calm(&self) {
        self.calm.store(true, SeqCst);
    }

    /// Asks each process for everything that was ever asked for, until there is an answer for good,
    /// and says where none came in time. Several share the work: this is one of them.
    pub(super) fn ask_all_again(&self, share: usize, shares: usize) -> Vec<Violation> {
        let known = self.known().clone();
        let mut found = Vec::new();
        for (subject, charge) in known.into_iter().skip(share).step_by(shares) {
            for slot in 0..self.fleet.len() {
                if !self.has_final_answer(&subject, charge, slot) {
                    let what = format!("process {slot} gave no answer for good after the faults");
                    let subject = Some(subject.clone());
                    found.push(Violation { invariant: "I8", subject, what });
                }
            }
        }
        found
    }

    fn has_final_answer(&self, subject: &Subject, charge: Charge, slot: usize) -> bool {
        let give_up = Instant::now() + FINAL_MAX;
        let patience = Duration::from_secs(10);
        let manner = Manner { slot, form: 0, halfway: Duration::ZERO, patience };
        let is_final =
            |answer: Answer| is_final(&answer) || self.may_lose && is_told_of_a_loss(&answer);
        while !self.ask(subject, charge, manner).is_some_and(is_final) {
            if Instant::now() > give_up {
                return false;
            }
            thread::sleep(Duration::from_millis(50));
        }
        true
    }

    /// Something new, or something that was asked for before.
    fn choose(&self, random: &mut impl Rng) -> (Subject, Charge) {
        let mut known = self.known();
        let last = known.len().checked_sub(1);
        if let Some(last) = last.filter(|_| random.random()) {
            // Mostly the latest: those that a fault may have met. Some come very late.
            let far = if random.random_ratio(1, 20) { last } else { last.min(32) };
            return known[last - random.random_range(0..=far)].clone();
        }
        // Tenants use each other's keys, without meaning to.
        let key = match last.filter(|_| random.random_ratio(1, 8)) {
            Some(last) => known[last].0.key.clone(),
            None => format!("key-{:016x}", random.random::<u64>()),
        };
        let tenant = TENANTS[random.random_range(0..TENANTS.len())].to_owned();
        let subject = Subject { tenant, key };
        if let Some(found) = known.iter().rev().take(64).find(|(of, _)| *of == subject) {
            return found.clone();
        }
        let order = u32::try_from(known.len()).unwrap_or(u32::MAX);
        let charge = Charge { amount: random.random_range(1..1000), order };
        known.push((subject.clone(), charge));
        (subject, charge)
    }

    fn manner(&self, random: &mut impl Rng) -> Manner {
        let patience = match random.random_range(0..20) {
            0 => random.random_range(1..50),
            1..10 => random.random_range(200..1000),
            _ => random.random_range(1000..4000),
        };
        let halfway = if random.random_ratio(1, 20) { random.random_range(1..200) } else { 0 };
        Manner {
            slot: random.random_range(0..self.fleet.len()),
            form: random.random_range(0..3),
            halfway: Duration::from_millis(halfway),
            patience: Duration::from_millis(patience),
        }
    }

    /// One request, recorded. `None` when there was no whole answer.
    fn ask(&self, subject: &Subject, charge: Charge, manner: Manner) -> Option<Answer> {
        let request = self.record.asked(subject, &charge.asks(), manner.slot);
        let answer = self.exchange(subject, &charge.request(subject, manner.form), manner).ok();
        self.record.ended(request, answer.as_ref());
        if answer.as_ref().is_some_and(is_told_of_a_loss) {
            self.lost.store(true, SeqCst);
        }
        answer
    }

    fn exchange(&self, subject: &Subject, request: &[u8], manner: Manner) -> io::Result<Answer> {
        let mut stream = TcpStream::connect(self.fleet.entrance(manner.slot).address())?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(manner.patience))?;
        let (first, second) = request.split_at(request.len() / 2);
        if manner.halfway.is_zero() {
            stream.write_all(request)?;
        } else {
            stream.write_all(first)?;
            thread::sleep(manner.halfway);
            stream.write_all(second)?;
        }
        self.fleet.at(Moment::Asked, manner.slot, subject);
        let answer = Message::read(&mut BufReader::new(stream))?;
        let answer = answer.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.fleet.at(Moment::Answered, manner.slot, subject);
        let status = answer.status().ok_or(io::ErrorKind::InvalidData)?;
        Ok(Answer { status, headers: answer.headers, body: answer.body })
    }

    fn known(&self) -> MutexGuard<'_, Vec<(Subject, Charge)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_told_of_a_loss(answer: &Answer) -> bool {
    answer.code().as_deref() == Some("idempotency_store_regressed")
}

/// Whether asking again cannot bring anything else. Nobody resolves unknown outcomes here.
fn is_final(answer: &Answer) -> bool {
    match answer.code().as_deref() {
        Some("idempotency_outcome_unknown") => answer.status == 409,
        Some(code) => code == "idempotency_key_reused_with_different_payload",
        None => matches!(answer.status, 201 | 402),
    }
}

//! Small random histories, judged by the search and by trying everything. `ONCEWARD_SEED` repeats a
//! run, `ONCEWARD_ROUNDS` says how many histories it has.

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use super::{OTHER, PAY, Tale, answer, brute};
use crate::history::{CallNo, Cause, RequestNo, What};

#[test]
fn the_search_agrees_with_trying_everything_on_random_histories() {
    let seed = from_env("ONCEWARD_SEED").unwrap_or_else(rand::random);
    let rounds = from_env("ONCEWARD_ROUNDS").unwrap_or(20_000);
    println!("ONCEWARD_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut explained = 0;
    for number in 0..rounds {
        let tale = Making::new(&mut random).finish();
        let (quick, slow) = (tale.is_explained(), brute::is_explained(&tale.0));
        assert_eq!(quick, slow, "history {number} of seed {seed}: {:#?}", tale.0);
        explained += u64::from(slow);
    }
    println!("{explained} of {rounds} histories are explained");
    assert!((rounds / 5..rounds * 9 / 10).contains(&explained), "{explained}, seed {seed}");
}

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().expect("a number"))
}

/// A history in the making, mostly of what a right record could have said.
struct Making<'a> {
    random: &'a mut StdRng,
    tale: Tale,
    open: Vec<(RequestNo, &'static str)>,
    calls: Vec<(CallNo, &'static str, bool)>,
    requests: RequestNo,
    reply: Option<CallNo>,
}

impl<'a> Making<'a> {
    fn new(random: &'a mut StdRng) -> Self {
        let tale = Tale::on(random.random_bool(0.7));
        Making { random, tale, open: Vec::new(), calls: Vec::new(), requests: 0, reply: None }
    }

    fn finish(mut self) -> Tale {
        for _ in 0..self.random.random_range(5..14) {
            self.tale = self.step();
        }
        self.tale
    }

    fn step(&mut self) -> Tale {
        let tale = std::mem::replace(&mut self.tale, Tale(Vec::new()));
        let asks = if self.random.random_bool(0.8) { PAY } else { OTHER };
        match self.random.random_range(0..100) {
            0..28 if self.requests < 5 => {
                self.requests += 1;
                self.open.push((self.requests, asks));
                tale.asked_for(self.requests, asks)
            }
            28..45 if self.calls.len() < 3 && !self.open.is_empty() => {
                let (_, asks) = self.open[self.random.random_range(0..self.open.len())];
                let call = self.calls.len() as CallNo + 1;
                self.calls.push((call, asks, false));
                tale.called_for(call, asks)
            }
            45..60 => match self.calls.iter_mut().find(|call| !call.2) {
                Some((call, _, replied)) => {
                    *replied = true;
                    tale.replied(*call)
                }
                None => tale,
            },
            60..96 if !self.open.is_empty() => {
                let place = self.random.random_range(0..self.open.len());
                let (request, asks) = self.open.swap_remove(place);
                self.answer(tale, request, asks)
            }
            96 => tale.moved("unknown", "completed", resolve("complete")),
            97 => tale.moved("unknown", "failed_retryable", resolve("release")),
            98 => {
                let cause = Cause::Reserve { attempt: "a".into(), now: 1 };
                tale.moved("completed", "in_progress", cause)
            }
            _ => tale,
        }
    }

    fn answer(&mut self, tale: Tale, request: RequestNo, asks: &str) -> Tale {
        let replied = self.calls.iter().filter(|call| call.2 && call.1 == asks);
        let replied: Vec<CallNo> = replied.map(|call| call.0).collect();
        if !replied.is_empty() && self.random.random_bool(0.6) {
            let any = replied[self.random.random_range(0..replied.len())];
            // Most clients get what others got.
            let call = self.reply.filter(|_| self.random.random_bool(0.8)).unwrap_or(any);
            let outcome = match self.random.random_range(0..10) {
                0..4 if self.reply.is_none() => "executed",
                4 => "executed",
                5 => "not_executed",
                _ => "replayed",
            };
            if outcome != "not_executed" {
                self.reply = Some(call);
            }
            let mut answer = answer(201, outcome, &format!("answer {call}"));
            if self.random.random_bool(0.03) {
                answer.headers.push(("idempotency-generation".into(), "2".into()));
            }
            return tale.then(What::Answered { request, answer });
        }
        match self.random.random_range(0..20) {
            0..3 => tale.told(request, 409, "conflict"),
            3..6 => tale.told(request, 409, "unknown"),
            6..8 => tale.told(request, 504, "unknown"),
            8..10 => tale.told(request, 422, "mismatch"),
            10 => tale.told(request, 410, "expired"),
            11 => tale.told(request, 410, "reply_not_stored"),
            12..14 => tale.told(request, 503, "unavailable"),
            14 => tale.told(request, 502, "not_executed"),
            15 => tale.told(request, 400, "refused"),
            16 => tale.got(request, "replayed", 9),
            _ => tale.then(What::GaveUp { request }),
        }
    }
}

fn resolve(resolution: &str) -> Cause {
    let proof = Some("authoritative".into());
    Cause::Resolve { resolution: resolution.into(), proof, fence: 1, now: 0 }
}

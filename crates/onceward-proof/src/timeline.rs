//! One key's part of a history, as a table for people.

use std::{collections::HashSet, fmt::Write as _};

use crate::history::{
    Answer, CallNo, Cause, Event, Holder, MessageNo, RequestNo, Stand, Subject, What,
};

/// Shows what happened to a key: when, who, what. Faults are shown too, since they may have hit it.
/// ASCII only.
pub fn render(history: &[Event], subject: &Subject) -> String {
    let mut own = Own { subject, requests: HashSet::new(), calls: HashSet::new() };
    let mut table = format!(
        "{}/{}\n{:>14}  {:<12}  what\n",
        plain(&subject.tenant),
        plain(&subject.key),
        "seconds",
        "who"
    );
    for event in history {
        if let Some((who, what)) = own.line(&event.what) {
            let (seconds, micros) = (event.at / 1_000_000, event.at % 1_000_000);
            // Writing to a string does not fail.
            let _ = writeln!(table, "{seconds:>7}.{micros:06}  {who:<12}  {what}");
        }
    }
    table
}

/// What belongs to the key.
struct Own<'a> {
    subject: &'a Subject,
    requests: HashSet<RequestNo>,
    calls: HashSet<CallNo>,
}

impl Own<'_> {
    /// Who did what, if it is about the key or about all.
    fn line(&mut self, what: &What) -> Option<(String, String)> {
        let line = match what {
            What::Asked { request, subject, route, asks } if subject == self.subject => {
                self.requests.insert(*request);
                (client(*request), format!("asks {} on {}", quoted(asks), plain(route)))
            }
            What::Answered { request, answer } if self.requests.contains(request) => {
                (client(*request), format!("gets {}", received(answer)))
            }
            What::GaveUp { request } if self.requests.contains(request) => {
                (client(*request), "gives up".to_owned())
            }
            What::Called { call, subject, asks, holder } if subject == self.subject => {
                self.calls.insert(*call);
                let by = holder.as_ref().map(held).unwrap_or_default();
                (upstream(*call), format!("is asked {}{by}", quoted(asks)))
            }
            What::Acted { call } if self.calls.contains(call) => {
                (upstream(*call), "ACTS".to_owned())
            }
            What::Replied { call, answer } if self.calls.contains(call) => {
                let what = match answer {
                    None => "breaks off".to_owned(),
                    Some(answer) => {
                        let word = answer.executed.as_deref();
                        let word = word.map(|word| format!(" (executed: {})", plain(word)));
                        let word = word.unwrap_or_default();
                        format!("answers {}{word} {}", answer.status, quoted(&answer.body))
                    }
                };
                (upstream(*call), what)
            }
            What::Moved { subject, from, to, cause } if subject == self.subject => {
                let (from, to) = (stand(from.as_ref()), stand(to.as_ref()));
                ("store".to_owned(), format!("{}: {from} -> {to}", by(cause)))
            }
            What::Left { subject, state } if subject == self.subject => {
                let state = plain(state.as_deref().unwrap_or("absent"));
                ("store".to_owned(), format!("after the kill it says: {state}"))
            }
            What::Step { call, name, .. } if self.calls.contains(call) => {
                (upstream(*call), format!("is the step {}", plain(name)))
            }
            What::Noted { subject, note, attempt, fence, .. } if subject == self.subject => {
                let what =
                    format!("notes {} of {} with fence {fence}", plain(note), plain(attempt));
                ("store".to_owned(), what)
            }
            What::Staged { message, subject, aggregate, .. } if subject == self.subject => {
                (outbox(*message), format!("staged for {}", plain(aggregate)))
            }
            // Those of others too: they may be in the way.
            What::Delivers { message, key } => {
                (outbox(*message), format!("is delivered under {}", plain(key)))
            }
            What::Received { message } => (outbox(*message), "the receiver ACTS".to_owned()),
            What::Settled { message, end } => (outbox(*message), format!("{end:?}").to_lowercase()),
            What::Fault { kind, detail } => {
                ("fault".to_owned(), format!("{}: {}", plain(kind), plain(detail)))
            }
            What::Calm => ("world".to_owned(), "calm: nothing is broken any more".to_owned()),
            What::Rested { .. } => ("world".to_owned(), "nobody is at work any more".to_owned()),
            What::Relayed => ("world".to_owned(), "every message has its end".to_owned()),
            What::End => ("world".to_owned(), "end".to_owned()),
            _ => return None,
        };
        Some(line)
    }
}

fn client(request: RequestNo) -> String {
    format!("request {request}")
}

fn upstream(call: CallNo) -> String {
    format!("call {call}")
}

fn outbox(message: MessageNo) -> String {
    format!("message {message}")
}

fn received(answer: &Answer) -> String {
    let outcome = plain(answer.outcome().unwrap_or("without outcome"));
    let what = answer.code().unwrap_or_else(|| quoted(&answer.body));
    let generation = match answer.generation() {
        1 => String::new(),
        number => format!(" (generation {number})"),
    };
    format!("{} {outcome} {}{generation}", answer.status, plain(&what))
}

fn held(holder: &Holder) -> String {
    let Holder { attempt, fence, generation, attempt_number, lease_left } = holder;
    format!(
        " by {} (fence {fence}, generation {generation}, attempt {attempt_number}, lease left \
         {lease_left} us)",
        plain(attempt)
    )
}

fn stand(stand: Option<&Stand>) -> String {
    match stand {
        None => "absent".to_owned(),
        Some(Stand { state, generation, attempt, fence, lease_until, .. }) => {
            let until = match &**state {
                "in_progress" => format!(", lease until {lease_until}"),
                _ => String::new(),
            };
            let (state, attempt) = (plain(state), plain(attempt));
            format!("{state} (generation {generation}, {attempt}, fence {fence}{until})")
        }
    }
}

fn by(cause: &Cause) -> String {
    match cause {
        Cause::Reserve { attempt, now } => format!("reserve of {} at {now}", plain(attempt)),
        Cause::Claim { attempt, now, .. } => format!("claim of {} at {now}", plain(attempt)),
        Cause::Write { write, attempt, fence } => {
            format!("{} of {} with fence {fence}", plain(write), plain(attempt))
        }
        Cause::Sweep { now } => format!("sweep at {now}"),
        Cause::Reap { now } => format!("reap at {now}"),
        Cause::Resolve { resolution, proof, .. } => match proof {
            None => format!("resolve {}", plain(resolution)),
            Some(proof) => format!("resolve {} by {}", plain(resolution), plain(proof)),
        },
        Cause::Lost => "LOST".to_owned(),
    }
}

/// Without anything that a terminal could take for an order.
fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            ' '..='~' => shown.push(letter),
            _ => shown.extend(letter.escape_default()),
        }
    }
    shown
}

/// How much of a text is shown.
const SHOWN: usize = 60;

fn quoted(text: &str) -> String {
    let dots = if text.chars().nth(SHOWN).is_some() { "..." } else { "" };
    let shown: String = text.chars().take(SHOWN).collect();
    format!("\"{}\"{dots}", plain(&shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Open, UpstreamAnswer};

    fn subject(key: &str) -> Subject {
        Subject { tenant: "acme".into(), key: key.into() }
    }

    fn asked(request: RequestNo, key: &str) -> What {
        let (route, asks) = ("pay".into(), "pay 10".into());
        What::Asked { request, subject: subject(key), route, asks }
    }

    fn record(state: &str) -> Stand {
        Stand {
            state: state.into(),
            generation: 1,
            attempt: "a1".into(),
            fence: 7,
            fingerprint: "f".into(),
            lease_until: 60,
            expires_at: 90,
            purge_at: 2000,
            effects: "external".into(),
            reply: None,
            open: Open::default(),
        }
    }

    fn answered(request: RequestNo, status: u16, outcome: &str, body: &str) -> What {
        let kind = if status == 409 { "application/problem+json" } else { "text/plain" };
        let headers =
            vec![("content-type".into(), kind.into()), ("onceward-outcome".into(), outcome.into())];
        What::Answered { request, answer: Answer { status, headers, body: body.into() } }
    }

    fn history() -> Vec<Event> {
        let holder = Holder {
            attempt: "a1".into(),
            fence: 7,
            generation: 1,
            attempt_number: 1,
            lease_left: 59,
        };
        let reply = UpstreamAnswer {
            status: 201,
            executed: Some("maybe".into()),
            headers: Vec::new(),
            body: "paid\n\u{e9}".into(),
        };
        let reserve = Cause::Reserve { attempt: "a1".into(), now: 5 };
        let complete = Cause::Write { write: "complete".into(), attempt: "a1".into(), fence: 7 };
        let (held, done) = (Some(record("in_progress")), Some(record("completed")));
        let moved = |from, to, cause| What::Moved { subject: subject("key-1"), from, to, cause };
        let called = |call, key: &str, holder| What::Called {
            call,
            subject: subject(key),
            asks: "pay 10".into(),
            holder,
        };
        let events = [
            What::World { routes: Vec::new(), durable: true },
            asked(1, "key-1"),
            asked(2, "key-2"),
            moved(None, held.clone(), reserve),
            called(1, "key-1", Some(holder)),
            called(2, "key-2", None),
            What::Acted { call: 1 },
            What::Acted { call: 2 },
            What::Fault { kind: "cut".into(), detail: "store answers are lost".into() },
            What::Replied { call: 1, answer: Some(reply) },
            What::Replied { call: 2, answer: None },
            moved(held, done, complete),
            asked(3, "key-1"),
            answered(3, 409, "conflict", "{\"code\":\"idempotency_key_in_progress\"}"),
            What::GaveUp { request: 2 },
            answered(1, 201, "executed", "paid\n\u{e9}"),
            What::Calm,
            What::End,
        ];
        let times = (0..).map(|number| number * 500_000);
        events.into_iter().zip(times).map(|(what, at)| Event { at, what }).collect()
    }

    #[test]
    fn a_timeline_shows_one_key_and_every_fault() {
        let shown = render(&history(), &subject("key-1"));
        let expected = r#"acme/key-1
       seconds  who           what
      0.500000  request 1     asks "pay 10" on pay
      1.500000  store         reserve of a1 at 5: absent -> in_progress (generation 1, a1, fence 7, lease until 60)
      2.000000  call 1        is asked "pay 10" by a1 (fence 7, generation 1, attempt 1, lease left 59 us)
      3.000000  call 1        ACTS
      4.000000  fault         cut: store answers are lost
      4.500000  call 1        answers 201 (executed: maybe) "paid\n\u{e9}"
      5.500000  store         complete of a1 with fence 7: in_progress (generation 1, a1, fence 7, lease until 60) -> completed (generation 1, a1, fence 7)
      6.000000  request 3     asks "pay 10" on pay
      6.500000  request 3     gets 409 conflict idempotency_key_in_progress
      7.500000  request 1     gets 201 executed "paid\n\u{e9}"
      8.000000  world         calm: nothing is broken any more
      8.500000  world         end
"#;
        assert_eq!(shown, expected, "{shown}");
    }

    #[test]
    fn a_timeline_of_another_key_shows_other_lines() {
        let shown = render(&history(), &subject("key-2"));
        assert!(shown.contains("call 2        breaks off\n"), "{shown}");
        assert!(shown.contains("request 2     gives up\n"), "{shown}");
        assert!(shown.contains("fault         cut"), "{shown}");
        assert!(!shown.contains("store    "), "{shown}");
        assert!(!shown.contains("request 1"), "{shown}");
    }

    #[test]
    fn long_bodies_are_cut() {
        assert_eq!(quoted(&"x".repeat(61)), format!("\"{}\"...", "x".repeat(60)));
        assert_eq!(quoted(&"x".repeat(60)), format!("\"{}\"", "x".repeat(60)));
    }
}

//! How the story is told: plain text, with a little colour where somebody watches.

use std::{
    io::{IsTerminal as _, Write, stdout},
    net::SocketAddr,
};

use super::{bank::Bank, client::CREDENTIAL, story::Story};

pub(super) struct Teller {
    to: Box<dyn Write + Send>,
    colour: bool,
    step: usize,
    checked: usize,
    differed: Vec<String>,
}

impl Teller {
    pub(super) fn new() -> Self {
        let colour = stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Teller::to(Box::new(stdout()), colour)
    }

    fn to(to: Box<dyn Write + Send>, colour: bool) -> Self {
        Teller { to, colour, step: 0, checked: 0, differed: Vec::new() }
    }

    pub(super) fn introduce(&mut self, bank: &Bank, gateway: SocketAddr) {
        self.say(&format!("A bank serves http://{} and charges whoever asks.", bank.address()));
        self.say(&format!("Onceward stands before it on http://{gateway}."));
        self.say("What really happened is in the bank's ledger, and each step is checked there.");
    }

    /// Begins a step.
    pub(super) fn step(&mut self, title: &str) {
        self.step += 1;
        let title = self.coloured(BOLD, &format!("{}. {title}", self.step));
        self.say(&format!("\n{title}"));
    }

    /// Compares what happened with what should have.
    pub(super) fn check(&mut self, what: &str, is_so: bool, found: impl FnOnce() -> String) {
        self.checked += 1;
        if is_so {
            self.say(&format!("   {} {what}", self.coloured(GREEN, "ok ")));
            return;
        }
        let found = found();
        self.say(&format!("   {} {what}; found: {found}", self.coloured(RED, "NOT")));
        self.differed.push(format!("step {}: {what}; found: {found}", self.step));
    }

    /// Says how it went; `true` if all was as it should be.
    pub(super) fn summarise(&mut self) -> bool {
        let Teller { checked, step, .. } = *self;
        if self.differed.is_empty() {
            self.say(&format!("\nAll {checked} checks in {step} steps were as they should be."));
            return true;
        }
        self.say(&format!("\n{} of {checked} checks differed:", self.differed.len()));
        for difference in self.differed.clone() {
            self.say(&format!("  {difference}"));
        }
        false
    }

    /// How to go on by hand.
    pub(super) fn invite(&mut self, story: &Story) {
        self.say("\nBank and gateway go on. Try it yourself. A charge, then its retry:\n");
        let gateway = story.gateway_address();
        let charge = |amount: u32| {
            format!(
                "  curl -i http://{gateway}/charges \\\n    -H 'Authorization: {CREDENTIAL}' \\\n    \
                 -H 'Idempotency-Key: my-own-key-0000001' \\\n    \
                 -H 'Content-Type: application/json' \\\n    \
                 -d '{{\"account\":\"alice\",\"amount\":{amount}}}'\n"
            )
        };
        self.say(&charge(500));
        self.say(&charge(500));
        self.say("The same key for another amount, which is refused:\n");
        self.say(&charge(900));
        self.say("What the bank has done, and what the gateway has counted:\n");
        self.say(&format!("  curl http://{}/ledger", story.bank_address()));
        self.say(&format!("  curl http://{}/metrics", story.admin_address()));
        self.say("\nCtrl-C ends it.");
    }

    /// One who does not listen any more has heard enough: the steps are checked all the same.
    fn say(&mut self, line: &str) {
        let _ = writeln!(self.to, "{line}");
    }

    fn coloured(&self, colour: &str, text: &str) -> String {
        if self.colour { format!("{colour}{text}\x1b[0m") } else { text.to_owned() }
    }
}

const BOLD: &str = "\x1b[1m";
const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use super::*;

    /// Whoever listens.
    #[derive(Clone, Default)]
    struct Listener(Arc<Mutex<Vec<u8>>>);

    impl Write for Listener {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("lock").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Listener {
        fn heard(&self) -> String {
            String::from_utf8(self.0.lock().expect("lock").clone()).expect("text")
        }
    }

    #[test]
    fn a_check_that_fails_is_told_and_the_story_is_not_as_it_should_be() {
        let listener = Listener::default();
        let mut teller = Teller::to(Box::new(listener.clone()), false);
        teller.step("A retry.");
        teller.check("it is a replay", true, || unreachable!("nobody asks"));
        teller.step("Another one.");
        teller.check("the ledger has one charge more", false, || "2 more".to_owned());
        assert!(!teller.summarise());
        let expected = "\n1. A retry.\n   ok  it is a replay\n\n2. Another one.\n   \
                        NOT the ledger has one charge more; found: 2 more\n\n\
                        1 of 2 checks differed:\n  \
                        step 2: the ledger has one charge more; found: 2 more\n";
        assert_eq!(listener.heard(), expected);
    }

    #[test]
    fn a_story_without_a_difference_is_as_it_should_be() {
        let listener = Listener::default();
        let mut teller = Teller::to(Box::new(listener.clone()), true);
        teller.step("A retry.");
        teller.check("it is a replay", true, || unreachable!("nobody asks"));
        assert!(teller.summarise());
        let heard = listener.heard();
        assert!(heard.contains("All 1 checks in 1 steps were as they should be."), "{heard}");
        assert!(!heard.contains("NOT") && heard.contains("\x1b[32mok "), "{heard:?}");
    }
}

//! How the story is told: plain text, with a little colour where somebody watches.

use std::{io::IsTerminal as _, net::SocketAddr};

use super::{bank::Bank, client::CREDENTIAL, story::Story};

pub(super) struct Teller {
    colour: bool,
    step: usize,
    checked: usize,
    differed: Vec<String>,
}

impl Teller {
    pub(super) fn new() -> Self {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Teller { colour, step: 0, checked: 0, differed: Vec::new() }
    }

    pub(super) fn introduce(&self, bank: &Bank, gateway: SocketAddr) {
        println!("A bank serves http://{} and charges whoever asks.", bank.address());
        println!("Onceward stands before it on http://{gateway}.");
        println!("What really happened is in the bank's ledger, and each step is checked there.");
    }

    /// Begins a step.
    pub(super) fn step(&mut self, title: &str) {
        self.step += 1;
        println!("\n{}", self.coloured(BOLD, &format!("{}. {title}", self.step)));
    }

    /// Compares what happened with what should have.
    pub(super) fn check(&mut self, what: &str, is_so: bool, found: impl FnOnce() -> String) {
        self.checked += 1;
        if is_so {
            println!("   {} {what}", self.coloured(GREEN, "ok "));
            return;
        }
        let found = found();
        println!("   {} {what}; found: {found}", self.coloured(RED, "NOT"));
        self.differed.push(format!("step {}: {what}; found: {found}", self.step));
    }

    /// Says how it went; `true` if all was as it should be.
    pub(super) fn summarise(&self) -> bool {
        println!();
        if self.differed.is_empty() {
            println!("All {} checks in {} steps were as they should be.", self.checked, self.step);
            return true;
        }
        println!("{} of {} checks differed:", self.differed.len(), self.checked);
        for difference in &self.differed {
            println!("  {difference}");
        }
        false
    }

    /// How to go on by hand.
    pub(super) fn invite(&self, story: &Story) {
        println!("\nBank and gateway go on. Try it yourself. A charge, then its retry:\n");
        let charge = |amount: u32| {
            println!("  curl -i http://{}/charges \\", story.gateway_address());
            println!("    -H 'Authorization: {CREDENTIAL}' \\");
            println!("    -H 'Idempotency-Key: my-own-key-0000001' \\");
            println!("    -H 'Content-Type: application/json' \\");
            println!("    -d '{{\"account\":\"alice\",\"amount\":{amount}}}'\n");
        };
        charge(500);
        charge(500);
        println!("The same key for another amount, which is refused:\n");
        charge(900);
        println!("What the bank has done, and what the gateway has counted:\n");
        println!("  curl http://{}/ledger", story.bank_address());
        println!("  curl http://{}/metrics", story.admin_address());
        println!("\nCtrl-C ends it.");
    }

    fn coloured(&self, colour: &str, text: &str) -> String {
        if self.colour { format!("{colour}{text}\x1b[0m") } else { text.to_owned() }
    }
}

const BOLD: &str = "\x1b[1m";
const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";

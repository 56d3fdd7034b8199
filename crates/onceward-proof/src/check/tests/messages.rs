//! I10: messages and their receivers.

use super::*;
use crate::history::{MessageNo, Settled};

impl Tale {
    fn staged(self, message: MessageNo, aggregate: &str) -> Self {
        let (subject, aggregate) = (subject("acme"), aggregate.into());
        self.then(What::Staged { message, subject, aggregate, tries_max: 2 })
    }

    fn delivers(self, message: MessageNo, key: &str) -> Self {
        self.then(What::Delivers { message, key: key.into() })
    }

    fn received(self, message: MessageNo) -> Self {
        self.then(What::Received { message })
    }

    fn settled(self, message: MessageNo, end: Settled) -> Self {
        self.then(What::Settled { message, end })
    }

    /// Delivered, received and done.
    fn relayed(self, message: MessageNo) -> Self {
        self.delivers(message, &format!("k{message}"))
            .received(message)
            .settled(message, Settled::Done)
    }
}

fn staged() -> Tale {
    Tale::new().staged(1, "a").staged(2, "a").staged(3, "b")
}

#[test]
fn a_message_is_received_once() {
    staged().relayed(1).passes();
    staged().relayed(1).received(1).violates("I10");
    Tale::new().received(1).violates("I10");
}

#[test]
fn a_message_is_done_when_it_was_received_and_not_before() {
    staged().delivers(1, "k").received(1).settled(1, Settled::Done).passes();
    staged().delivers(1, "k").settled(1, Settled::Done).violates("I10");
}

#[test]
fn every_delivery_of_a_message_has_its_one_key() {
    staged().delivers(1, "k").delivers(1, "k").passes();
    staged().delivers(1, "k").delivers(1, "other").violates("I10");
    staged().delivers(1, "k").delivers(3, "k").violates("I10");
}

#[test]
fn messages_of_an_aggregate_come_in_order_and_behind_their_dead_letter() {
    staged().relayed(1).relayed(2).passes();
    staged().relayed(3).relayed(1).passes();
    staged().delivers(2, "k").violates("I10");
    let dead = || staged().delivers(1, "k1").settled(1, Settled::Dead);
    dead().relayed(3).passes();
    dead().delivers(2, "k2").violates("I10");
    dead().settled(1, Settled::Discarded).relayed(2).passes();
}

#[test]
fn a_message_is_tried_so_often_and_then_somebody_looks_at_it() {
    let twice = || staged().delivers(1, "k").delivers(1, "k");
    twice().passes();
    twice().delivers(1, "k").violates("I10");
    twice().settled(1, Settled::Dead).settled(1, Settled::Redriven).delivers(1, "k").passes();
}

#[test]
fn a_dead_letter_holds_its_own_aggregate_and_no_other() {
    let dead = || staged().delivers(1, "k1").settled(1, Settled::Dead);
    dead().relayed(3).then(What::Relayed).passes();
    dead().then(What::Relayed).violates("I10");
    staged().relayed(1).relayed(3).then(What::Relayed).violates("I10");
}

#[test]
fn at_the_end_every_message_is_delivered() {
    let end = |tale: Tale| tale.then(What::Calm).then(What::End);
    end(staged().relayed(1).relayed(2).relayed(3)).passes();
    end(staged().relayed(1).relayed(2)).violates("I10");
}

//! The steps of the story.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use metrics_exporter_prometheus::PrometheusHandle;

use super::{
    bank::Bank,
    client::{Client, Received},
    teller::Teller,
};
use crate::{config::Config, serve::Running};

pub(super) struct Story {
    bank: Bank,
    gateway: Option<Running>,
    config: Config,
    metrics: PrometheusHandle,
    client: Client,
}

impl Story {
    pub(super) fn new(
        bank: Bank,
        gateway: Running,
        config: Config,
        metrics: PrometheusHandle,
    ) -> Self {
        Story { bank, gateway: Some(gateway), config, metrics, client: Client::new() }
    }

    pub(super) fn gateway_address(&self) -> SocketAddr {
        self.config.listen
    }

    pub(super) fn admin_address(&self) -> SocketAddr {
        self.config.admin
    }

    pub(super) fn bank_address(&self) -> SocketAddr {
        self.bank.address()
    }

    /// All steps, in order. An error means that the story could not be told to its end.
    pub(super) async fn tell(&mut self, teller: &mut Teller) -> Result<()> {
        self.without_a_key(teller).await?;
        let first = self.retry(teller).await?;
        self.hang_up(teller).await?;
        self.two_at_once(teller).await?;
        self.another_amount(teller).await?;
        self.no_key(teller).await?;
        self.restart(teller, &first).await
    }

    pub(super) async fn end(self) {
        if let Some(gateway) = self.gateway {
            gateway.stop().await;
        }
        self.bank.close().await;
    }

    async fn without_a_key(&self, teller: &mut Teller) -> Result<()> {
        teller.step("Without Onceward: an answer is lost, the client asks again, and pays twice.");
        let before = self.bank.charges();
        for _ in 0..2 {
            self.client.charge(self.bank_address(), None, 1200).await?;
        }
        self.check_charges(teller, "the ledger has two charges for one purchase", before, 2);
        Ok(())
    }

    async fn retry(&self, teller: &mut Teller) -> Result<Received> {
        teller.step("With Onceward: the same request under a key, and its retry.");
        let before = self.bank.charges();
        let first = self.charge(FIRST_KEY, 1200).await?;
        check_status(teller, "the first request is executed", &first, "201");
        let retry = self.charge(FIRST_KEY, 1200).await?;
        teller.check("the retry says Idempotent-Replayed: true", retry.is_replay(), || {
            format!("{:?}", retry.headers.get("idempotent-replayed"))
        });
        check_same(teller, "the retry gets the first reply, byte for byte", &retry, &first);
        self.check_charges(teller, "the ledger has one charge more", before, 1);
        Ok(first)
    }

    async fn hang_up(&self, teller: &mut Teller) -> Result<()> {
        teller.step("The client hangs up while the bank is still at work, then asks again.");
        let before = self.bank.charges();
        let arrived = self.bank.arrived();
        self.bank.slow_down();
        let (client, to) = (self.client.clone(), self.gateway_address());
        let first = tokio::spawn(async move { client.charge(to, Some(HANG_UP_KEY), 300).await });
        self.bank.has_seen(arrived + 1).await;
        first.abort();
        let hung_up = first.await.is_err();
        self.bank.go_on();
        teller.check("the client hung up without an answer", hung_up, || "an answer".to_owned());
        let patient = self.client.charge_patiently(to, HANG_UP_KEY, 300);
        let retry = patient.await?;
        check_status(teller, "its retry gets the reply that it missed", &retry, "201");
        teller.check("which is a replay", retry.is_replay(), || "an execution".to_owned());
        self.check_charges(teller, "the ledger has one charge more", before, 1);
        Ok(())
    }

    async fn two_at_once(&self, teller: &mut Teller) -> Result<()> {
        teller.step("A double click: two requests under one key at the same time.");
        let before = self.bank.charges();
        let arrived = self.bank.arrived();
        self.bank.slow_down();
        let (client, to) = (self.client.clone(), self.gateway_address());
        let first = tokio::spawn(async move { client.charge(to, Some(TWICE_KEY), 700).await });
        self.bank.has_seen(arrived + 1).await;
        let second = self.charge(TWICE_KEY, 700).await;
        self.bank.go_on();
        let conflict = "409 idempotency_key_in_progress";
        check_status(teller, "the second is told to come back later", &second?, conflict);
        let first = first.await.context("the first request ended")??;
        check_status(teller, "the first gets its reply", &first, "201");
        self.check_charges(teller, "the ledger has one charge more", before, 1);
        Ok(())
    }

    async fn another_amount(&self, teller: &mut Teller) -> Result<()> {
        teller.step("A programming error: the same key for another amount.");
        let before = self.bank.charges();
        let answer = self.charge(FIRST_KEY, 9900).await?;
        let mismatch = "422 idempotency_key_reused_with_different_payload";
        check_status(teller, "it is refused", &answer, mismatch);
        self.check_charges(teller, "the ledger has no charge more", before, 0);
        Ok(())
    }

    async fn no_key(&self, teller: &mut Teller) -> Result<()> {
        teller.step("A client that forgot its key.");
        let before = self.bank.charges();
        let answer = self.client.charge(self.gateway_address(), None, 1200).await?;
        check_status(teller, "it is refused", &answer, "400 idempotency_key_missing");
        self.check_charges(teller, "the ledger has no charge more", before, 0);
        Ok(())
    }

    async fn restart(&mut self, teller: &mut Teller, first: &Received) -> Result<()> {
        teller.step("The gateway is stopped and started again on the same file.");
        let before = self.bank.charges();
        if let Some(gateway) = self.gateway.take() {
            gateway.stop().await;
        }
        self.gateway = Some(Running::start(&self.config, self.metrics.clone()).await?);
        let retry = self.charge(FIRST_KEY, 1200).await?;
        teller.check("a retry is still a replay", retry.is_replay(), || retry.summary());
        check_same(teller, "of the first reply, byte for byte", &retry, first);
        self.check_charges(teller, "the ledger has no charge more", before, 0);
        Ok(())
    }

    async fn charge(&self, key: &str, amount: u64) -> Result<Received> {
        self.client.charge(self.gateway_address(), Some(key), amount).await
    }

    fn check_charges(&self, teller: &mut Teller, what: &str, before: usize, more: usize) {
        let found = self.bank.charges() - before;
        teller.check(what, found == more, || format!("{found} more"));
    }
}

const FIRST_KEY: &str = "order-1001-4f9c2a7e";
const HANG_UP_KEY: &str = "order-1002-b81d03c5";
const TWICE_KEY: &str = "order-1003-77e2f0aa";

fn check_status(teller: &mut Teller, what: &str, answer: &Received, expected: &str) {
    let found = answer.summary();
    teller.check(&format!("{what}: {expected}"), found == expected, || found.clone());
}

fn check_same(teller: &mut Teller, what: &str, answer: &Received, expected: &Received) {
    teller.check(what, answer.is_same_as(expected), || {
        format!("{} with {} bytes", answer.summary(), answer.body.len())
    });
}

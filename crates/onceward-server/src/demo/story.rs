//! The steps of the story.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use http::{HeaderValue, StatusCode, header::CONTENT_TYPE};
use metrics_exporter_prometheus::PrometheusHandle;
use onceward::{
    Reply,
    store::{Resolution, Resolve, Resolved},
};
use tokio::time::sleep;

use super::{
    bank::Bank,
    client::{CREDENTIAL, Client, Received},
    second::Second,
    teller::Teller,
};
use crate::{config::Config, serve::Running};

pub(super) struct Story {
    bank: Bank,
    gateway: Option<Running>,
    config: Config,
    /// The URL of the store.
    store: String,
    metrics: PrometheusHandle,
    client: Client,
}

impl Story {
    pub(super) fn new(
        bank: Bank,
        gateway: Running,
        config: Config,
        store: String,
        metrics: PrometheusHandle,
    ) -> Self {
        Story { bank, gateway: Some(gateway), config, store, metrics, client: Client::new() }
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
        self.killed(teller).await?;
        self.found_out(teller).await?;
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

    async fn killed(&self, teller: &mut Teller) -> Result<()> {
        teller
            .step("A second gateway on the same file is killed right after the bank has charged.");
        let before = self.bank.charges();
        let second = Second::start(&self.bank, &self.store).await?;
        self.bank.fall_silent();
        let (client, to) = (self.client.clone(), second.address);
        let first = tokio::spawn(async move { client.charge(to, Some(KILLED_KEY), 450).await });
        self.bank.has_charged(before + 1).await;
        second.kill().await?;
        let first = first.await.context("the first request ended")?;
        self.bank.go_on();
        teller.check("the client gets no answer", first.is_err(), || "an answer".to_owned());
        let retry = self.charge(KILLED_KEY, 450).await?;
        let conflict = "409 idempotency_key_in_progress";
        check_status(teller, "its retry is told that somebody is at work", &retry, conflict);
        let retry = self.charge_until_settled(retry).await?;
        let unknown = "409 idempotency_outcome_unknown";
        check_status(teller, "and after the lease that nobody knows", &retry, unknown);
        self.check_charges(teller, "the ledger has one charge more", before, 1);
        Ok(())
    }

    /// Asks again when it is told to, until nobody is at work any more.
    async fn charge_until_settled(&self, mut answer: Received) -> Result<Received> {
        let give_up = Instant::now() + Duration::from_secs(10);
        while answer.summary().ends_with("_in_progress") && Instant::now() < give_up {
            sleep(Duration::from_secs(1)).await;
            answer = self.charge(KILLED_KEY, 450).await?;
        }
        Ok(answer)
    }

    async fn found_out(&self, teller: &mut Teller) -> Result<()> {
        teller.step("Somebody looks into the bank's ledger, and writes down what had happened.");
        let before = self.bank.charges();
        let receipt = self.bank.last_receipt().context("a charge was made")?;
        let resolved = self.resolve(KILLED_KEY, &receipt).await?;
        let applied = matches!(resolved, Resolved::Applied(_));
        teller.check("the record is completed by hand", applied, || format!("{resolved:?}"));
        let retry = self.charge(KILLED_KEY, 450).await?;
        check_status(teller, "the retry gets the reply that nobody got", &retry, "201");
        let is_receipt = retry.is_replay() && retry.body == receipt;
        teller.check("which is the bank's receipt", is_receipt, || format!("{:?}", retry.body));
        self.check_charges(teller, "the ledger has no charge more", before, 0);
        Ok(())
    }

    /// An unknown outcome becomes what the receipt says.
    async fn resolve(&self, key: &str, receipt: &str) -> Result<Resolved> {
        let engine = self.gateway.as_ref().context("a gateway runs")?.engine();
        let request = http::Request::post("/charges")
            .header("authorization", CREDENTIAL)
            .header("idempotency-key", key);
        let (parts, ()) = request.body(())?.into_parts();
        let policy = engine.policy_for(&parts).context("charges are protected")?;
        let admitted = engine.admit(&parts, policy).ok().flatten().context("a key")?;
        let record = engine.store().load(admitted.id()).await?.context("a record")?;
        let json = HeaderValue::from_static("application/json");
        let reply = Reply::new(StatusCode::CREATED, receipt.to_owned());
        let resolve = Resolve {
            id: admitted.id().clone(),
            generation: record.generation,
            fence: record.fence,
            resolution: Resolution::Complete(reply.with_header(CONTENT_TYPE, json)),
            reason: "the demo looked into the bank's ledger".into(),
        };
        Ok(engine.store().resolve(resolve).await?)
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
const KILLED_KEY: &str = "order-1004-c05e91d3";

fn check_status(teller: &mut Teller, what: &str, answer: &Received, expected: &str) {
    let found = answer.summary();
    teller.check(&format!("{what}: {expected}"), found == expected, || found.clone());
}

fn check_same(teller: &mut Teller, what: &str, answer: &Received, expected: &Received) {
    teller.check(what, answer.is_same_as(expected), || {
        format!("{} with {} bytes", answer.summary(), answer.body.len())
    });
}

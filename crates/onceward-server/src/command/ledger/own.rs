//! Where our side is, and what of it is read.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use onceward::{
    KeyRing, LookupKey,
    clock::Timestamp,
    store::list::{Query, Span},
};
use serde_json::{Map, Value};

use crate::{
    admin::api::Filter,
    cli::ServeArgs,
    config::{Config, StoreUrl, duration, store_url},
    ledger::{Entry, Pointer, Pointers, Reading},
    store::OpenStore,
};

#[derive(Debug, Args)]
#[command(next_help_heading = "Our side")]
pub(super) struct OwnArgs {
    /// The configuration of the gateway, which says where the store is and how it is sealed.
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    config: Option<PathBuf>,
    /// The store, if there is no configuration: file:PATH, postgres://... or mysql://...
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Only records of which this holds, as in `keys list`; such as route='POST /v1/charges'.
    #[arg(long, value_name = "NAME=VALUE", value_parser = super::super::keys::condition)]
    filter: Vec<(String, String)>,
    /// Where in our stored replies the provider's id is, such as /id. Without it, and without
    /// --provider, operations are not compared.
    #[arg(long, value_name = "POINTER")]
    id: Option<Pointer>,
    /// The provider whose ids were noted of operations while they ran (Onceward-Provider-Id); `default`
    /// for those that name none. Also of what is unknown or was not executed.
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Where in our stored replies the amount is.
    #[arg(long, value_name = "POINTER")]
    amount: Option<Pointer>,
    /// Where in our stored replies the currency is.
    #[arg(long, value_name = "POINTER")]
    currency: Option<Pointer>,
    /// The provider is called in the effect of this name, and sees its derived key; by default the
    /// provider sees the key of the client.
    #[arg(long, value_name = "NAME")]
    effect: Option<String>,
    /// Messages of the outbox to this sink are compared too. Several may be given.
    #[arg(long, value_name = "NAME")]
    sink: Vec<String>,
    /// Where in the payloads of these messages the amount is.
    #[arg(long, value_name = "POINTER", requires = "sink")]
    message_amount: Option<Pointer>,
    /// Where in the payloads of these messages the currency is.
    #[arg(long, value_name = "POINTER", requires = "sink")]
    message_currency: Option<Pointer>,
    /// Our amounts are whole numbers of the smallest unit, which has this many decimal places.
    #[arg(long, value_name = "PLACES", default_value_t = 0, hide_default_value = true,
        value_parser = clap::value_parser!(u8).range(..=18))]
    our_minor_units: u8,
}

/// Our side, ready to be read.
pub(super) struct Side {
    url: StoreUrl,
    ring: Option<KeyRing>,
    lookup_key: Option<LookupKey>,
    reading: Reading,
}

impl OwnArgs {
    /// What was asked for, checked before anything is opened.
    pub(super) fn side(&self, period: Span, slack: &str) -> Result<Side> {
        let (url, ring, lookup_key) = match (&self.config, &self.store) {
            (Some(path), _) => {
                let serve = ServeArgs { config: Some(path.clone()), ..ServeArgs::default() };
                let config = Config::load(serve)?;
                (config.store, config.privacy.ring, config.privacy.lookup_key)
            }
            (None, Some(url)) => (store_url(Some(url), None)?, None, None),
            (None, None) => bail!("where is our side? give --config or --store (or --ours FILE)"),
        };
        let operations = self.id.is_some() || self.provider.is_some();
        ensure!(
            operations || !self.sink.is_empty(),
            "what of ours is to be compared? give --id, where stored replies tell the provider's id, \
             --provider for ids that were noted, or --sink for messages"
        );
        let of_operations =
            self.amount.is_some() || self.currency.is_some() || self.effect.is_some();
        ensure!(
            operations || !of_operations,
            "--amount, --currency and --effect are of operations: give --id or --provider"
        );
        match &url {
            StoreUrl::Memory => {
                bail!("a memory: store is its process's own; there is nothing to read")
            }
            // Opening it would make one.
            StoreUrl::File(path) => {
                ensure!(path.exists(), "there is no store at {}", path.display());
            }
            StoreUrl::Postgres(_) | StoreUrl::MySql(_) => {}
        }
        let slack = duration::parse(slack).context("--slack")?;
        let reading = Reading {
            query: query(&self.filter, period, slack)?,
            replies: Pointers {
                id: self.id.clone(),
                amount: self.amount.clone(),
                currency: self.currency.clone(),
            },
            provider: self.provider.clone(),
            effect: self.effect.clone(),
            sinks: self.sink.clone(),
            payloads: Pointers {
                id: None,
                amount: self.message_amount.clone(),
                currency: self.message_currency.clone(),
            },
            minor_units: self.our_minor_units,
        };
        Ok(Side { url, ring, lookup_key, reading })
    }
}

impl Side {
    /// Whether operations tell amounts, if there are any.
    pub(super) fn has_amounts(&self) -> bool {
        !self.reading.reads_operations() || self.reading.replies.amount.is_some()
    }

    /// Under what keys are stored, where the provider sees those of clients.
    pub(super) fn lookup_key(&self) -> Option<LookupKey> {
        let derived = self.reading.effect.is_some() || !self.reading.sinks.is_empty();
        self.lookup_key.clone().filter(|_| !derived)
    }

    pub(super) async fn read(
        &self,
        each: impl FnMut(Entry, Timestamp) -> Result<()>,
    ) -> Result<()> {
        let open = OpenStore::open(&self.url, self.ring.as_ref()).await?;
        let outbox = open.outbox();
        let read = self.reading.read(&*open.store, outbox.as_deref(), each).await;
        drop(outbox);
        open.close().await;
        read
    }
}

/// The records of the period, and those around it.
fn query(filter: &[(String, String)], period: Span, slack: Duration) -> Result<Query> {
    let mut members = Map::new();
    for (name, value) in filter {
        let twice = members.insert(name.clone(), Value::String(value.clone())).is_some();
        ensure!(!twice, "--filter {name} is given twice");
    }
    let filter: Filter = serde_json::from_value(members.into()).context("--filter")?;
    let query =
        filter.query().map_err(|problem| anyhow::anyhow!("--filter: {}", problem.detail()))?;
    let micros = i64::try_from(slack.as_micros()).context("--slack")?;
    let moved = |at: Option<Timestamp>, by: i64| {
        at.map(|at| Timestamp::from_micros(at.as_micros().saturating_add(by)))
    };
    let (from, before) = (moved(period.from, -micros), moved(period.before, micros));
    let created =
        Span { from: query.created.from.or(from), before: query.created.before.or(before) };
    Ok(Query { created, ..query })
}

//! Which store is meant, for commands that look at it without opening it.

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use onceward::store::site::{Site, SiteError};

use crate::{
    cli::ServeArgs,
    config::{Config, StoreUrl, store_url},
};

#[derive(Debug, Args)]
pub(super) struct SiteArgs {
    /// The store: file:PATH, postgres://... or memory:.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The configuration of the gateway, which says where the store is. --store overrides it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl SiteArgs {
    /// What it is called in answers, without a password, and where it is.
    pub(super) fn site(&self) -> Result<(String, Box<dyn Site>)> {
        let url = match (&self.config, &self.store) {
            (Some(path), store) => {
                let serve = ServeArgs {
                    config: Some(path.clone()),
                    store: store.clone(),
                    ..ServeArgs::default()
                };
                Config::load(serve)?.store
            }
            (None, Some(url)) => store_url(Some(url), None)?,
            (None, None) => bail!("which store? give --store URL or --config FILE"),
        };
        Ok((name(&url), crate::store::site(&url)))
    }
}

/// As a person would recognise it: what may hold a password is left out.
fn name(url: &StoreUrl) -> String {
    format!("{url:?}")
}

/// Why a site could not be looked at.
pub(super) fn failed(name: &str, error: SiteError) -> anyhow::Error {
    anyhow!(error).context(format!("the store {name}"))
}

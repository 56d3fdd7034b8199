//! `onceward demo`: a bank, a gateway in front of it, and a story in the terminal. Each step is
//! checked against the bank's ledger, which knows nothing of keys.

use std::{net::SocketAddr, pin::pin, process::ExitCode};

use anyhow::{Context as _, Result};
use tokio::net::TcpListener;

use crate::{
    admin,
    cli::{DemoArgs, ServeArgs},
    config::{Config, loopback},
    serve::{Running, stop_signal},
};

mod bank; // a service that charges accounts, once per request it gets
mod client; // what a customer's program would do
mod second; // a gateway that can be killed
mod story; // the steps
mod teller; // how they are told

use bank::Bank;
use story::Story;
use teller::Teller;

/// Tells the story. Ends with 0 only if every step was as it should be.
pub(crate) async fn demo(args: DemoArgs) -> Result<ExitCode> {
    let mut stop = pin!(stop_signal()?);
    let metrics = admin::install_metrics()?;
    let folder = tempfile::tempdir().context("no temporary folder can be made")?;
    let bank = Bank::start(free_near(3000).await?).await?;
    let store = format!("file:{}", folder.path().join("onceward.db").display());
    let serve = ServeArgs {
        upstream: Some(format!("http://{}", bank.address())),
        listen: Some(free_near(8080).await?),
        admin: Some(free_near(8081).await?),
        store: Some(store.clone()),
        ..ServeArgs::default()
    };
    let mut config = Config::load(serve)?;
    let gateway = Running::start(&config, metrics.clone()).await?;
    // A port that the system chose is kept when the gateway starts again.
    config.listen = gateway.address().unwrap_or(config.listen);
    config.admin = gateway.admin_address();
    let mut teller = Teller::new();
    teller.introduce(&bank, config.listen);
    let mut story = Story::new(bank, gateway, config, store, metrics);
    tokio::select! {
        told = story.tell(&mut teller) => told?,
        () = &mut stop => return Ok(ExitCode::FAILURE),
    }
    let as_it_should_be = teller.summarise();
    if !args.no_wait && as_it_should_be {
        teller.invite(&story);
        stop.await;
    }
    story.end().await;
    Ok(ended(as_it_should_be))
}

/// Programs can tell, too, whether a step was not as it should be.
fn ended(as_it_should_be: bool) -> ExitCode {
    if as_it_should_be { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The usual port, or one that the system chooses when the usual one is taken.
async fn free_near(port: u16) -> Result<SocketAddr> {
    for port in [port, 0] {
        if let Ok(listener) = TcpListener::bind(loopback(port)).await {
            return Ok(listener.local_addr()?);
        }
    }
    anyhow::bail!("no free port was found on this machine")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_story_that_is_not_as_it_should_be_ends_with_1() {
        assert_eq!(format!("{:?}", ended(false)), format!("{:?}", ExitCode::from(1)));
        assert_eq!(format!("{:?}", ended(true)), format!("{:?}", ExitCode::from(0)));
    }
}

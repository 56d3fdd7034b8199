//! `onceward serve`: all of it together, until a signal.

use std::{io::Write as _, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use metrics_exporter_prometheus::PrometheusHandle;
use onceward::{
    Engine, Routes, Settings, Store,
    store::{IdentityCheck, StoreError},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};
use tracing::{info, warn};

use crate::{
    admin::{self, Admin, Api},
    cli::ServeArgs,
    config::Config,
    gateway::{Gateway, Rewrite, Upstream},
    listener::Listening,
    store::OpenStore,
    traffic::Traffic,
};

/// What runs has this long to finish once the process was told to stop.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(25);

/// Serves until SIGTERM or SIGINT.
pub(crate) async fn serve(args: ServeArgs) -> Result<()> {
    let config = Config::load(args)?;
    let metrics = admin::install_metrics()?;
    // Before anything is announced: a signal from now on is a wish for a clean end.
    let stop = stop_signal()?;
    let running = Running::start(&config, metrics).await?;
    announce(&running);
    stop.await;
    info!("stopping: finishing what runs");
    running.stop().await;
    info!("stopped");
    Ok(())
}

/// A gateway at work.
pub(crate) struct Running {
    engine: Arc<Engine>,
    store: OpenStore,
    gateway: Listening,
    admin: Admin,
    admin_listening: Listening,
    /// Made at the start, since none was given.
    admin_token: Option<String>,
}

impl Running {
    pub(crate) async fn start(config: &Config, metrics: PrometheusHandle) -> Result<Running> {
        let store = OpenStore::open(&config.store).await?;
        let settings = Settings {
            scope: config.scope.clone(),
            key_rules: config.key_rules.clone(),
            problem_base: config.problem_base.clone(),
            ..Settings::default()
        };
        let routes = Routes::with_default(config.policy.clone());
        let engine = Arc::new(Engine::new(Arc::clone(&store.store), routes, settings));
        check_identity(&engine, &*store.store, config.accept_identity_change).await?;
        let traffic = Traffic::default();
        let gateway = Gateway::new(
            Arc::clone(&engine),
            Upstream::new(config.upstream.clone(), config.max_execution),
            Rewrite::new(config.proxies.clone()),
            traffic.clone(),
            config.max_execution,
        );
        let (access, admin_token) = config.admin_settings.access();
        let api = Api::new(Arc::clone(&store.store), access, traffic);
        let admin = Admin::new(Arc::clone(&store.store), metrics, api);
        let admin_listening = Listening::bind(config.admin, admin.clone()).await?;
        let gateway = Listening::bind(config.listen, gateway).await?;
        info!(
            listen = %gateway.address,
            admin = %admin_listening.address,
            upstream = %config.upstream,
            scope = config.scope.name(),
            "serving"
        );
        Ok(Running { engine, store, gateway, admin, admin_listening, admin_token })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.gateway.address
    }

    pub(crate) fn admin_address(&self) -> SocketAddr {
        self.admin_listening.address
    }

    /// Takes nothing new, finishes what runs, and closes the store.
    pub(crate) async fn stop(self) {
        self.admin.drain();
        let Running { engine, store, gateway, admin, admin_listening, .. } = self;
        tokio::join!(gateway.stop(DRAIN_TIME_MAX), engine.drain(DRAIN_TIME_MAX));
        admin_listening.stop(Duration::from_secs(1)).await;
        drop((engine, admin));
        store.close().await;
    }
}

/// A store that another process holds, or that is only just coming up, has this long at the start.
const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// Repeats a call of the store until it is answered, or for as long as it makes sense.
async fn patiently<T>(mut call: impl AsyncFnMut() -> Result<T, StoreError>) -> Result<T> {
    let give_up = Instant::now() + STORE_PATIENCE;
    loop {
        match call().await {
            Ok(answer) => return Ok(answer),
            Err(error) if error.may_be_repeated() && Instant::now() < give_up => {
                warn!(%error, "the store does not answer yet");
                sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Under other identity settings every key would look new, and everything would run again.
async fn check_identity(engine: &Engine, store: &dyn Store, accept_change: bool) -> Result<()> {
    let identity = engine.identity();
    let checked = patiently(async || store.check_identity(&identity).await).await;
    match checked.context("the store cannot be read")? {
        IdentityCheck::Same => Ok(()),
        IdentityCheck::Different if accept_change => {
            warn!("the identity settings of the store were changed: keys of before look new");
            let accepted = patiently(async || store.accept_identity(&identity).await).await;
            accepted.context("the store cannot be written")
        }
        IdentityCheck::Different => bail!(
            "this store was written under another scope rule, key syntax or fingerprint key, so \
             that every key would look new and run again; go back to the old settings, or start \
             with --accept-identity-change"
        ),
    }
}

/// Comes back on the first SIGTERM or SIGINT. A second one ends the process at once.
pub(crate) fn stop_signal() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("signals cannot be handled")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("signals cannot be handled")?;
    let mut next = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    Ok(async move {
        next().await;
        tokio::spawn(async move {
            next().await;
            std::process::exit(130);
        });
    })
}

/// For people and for programs that chose port 0.
fn announce(running: &Running) {
    let mut stdout = std::io::stdout().lock();
    // Nobody has to read it.
    let _ = writeln!(stdout, "listening on http://{}", running.address());
    let _ = writeln!(stdout, "admin on http://{}", running.admin_address());
    if let Some(token) = &running.admin_token {
        let _ = writeln!(stdout, "admin token (made for this start, not shown again): {token}");
    }
    let _ = stdout.flush();
}

#[cfg(test)]
mod tests {
    use onceward::store::StoreErrorKind;

    use super::*;

    /// Fails so often in this way, then answers. With how often it was asked.
    async fn asked(failures: u32, kind: StoreErrorKind) -> (bool, u32) {
        let mut calls = 0;
        let answer = patiently(async || {
            calls += 1;
            if calls <= failures { Err(StoreError::new(kind, "test", "held")) } else { Ok(()) }
        });
        (answer.await.is_ok(), calls)
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_waits_for_a_store_that_another_process_holds() {
        assert_eq!(asked(0, StoreErrorKind::Unavailable).await, (true, 1));
        assert_eq!(asked(50, StoreErrorKind::Unavailable).await, (true, 51));
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_does_not_wait_for_ever_nor_for_what_cannot_get_better() {
        let (answered, calls) = asked(u32::MAX, StoreErrorKind::Ambiguous).await;
        assert!(!answered && calls > 50, "{calls} calls");
        assert_eq!(asked(1, StoreErrorKind::Corrupt).await, (false, 1));
    }
}

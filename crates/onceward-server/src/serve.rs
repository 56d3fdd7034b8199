//! `onceward serve`: all of it together, until a signal.

use std::{
    io::Write as _,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use metrics_exporter_prometheus::PrometheusHandle;
use onceward::{
    Canary, Engine, Settings, Store,
    outbox::HttpSink,
    store::{IdentityCheck, StoreError},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tracing::{field, info, warn};

use crate::{
    admin::{self, Admin, Api},
    cli::ServeArgs,
    config::{CanarySettings, Config},
    gateway::{
        Deciding, Dispatcher, Gateway, Pace, Probes, Reconciling, Rewrite, Setup, Upstream,
        Webhooks,
    },
    listener::Listening,
    store::OpenStore,
    tls::Certificate,
    traffic::Traffic,
    workers::Workers,
};

/// What runs has this long to finish once the process was told to stop.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(25);

/// Serves until SIGTERM or SIGINT.
pub(crate) async fn serve(args: ServeArgs) -> Result<()> {
    let config = Config::load(args.clone())?;
    let metrics = admin::install_metrics()?;
    // Before anything is announced: a signal from now on is a wish for a clean end.
    let mut stop = pin!(stop_signal()?);
    let mut hangup = signal(SignalKind::hangup()).context("signals cannot be handled")?;
    let mut running = Running::start(&config, metrics).await?;
    announce(&running);
    loop {
        tokio::select! {
            () = &mut stop => break,
            _ = hangup.recv() => match running.reload(args.clone()) {
                Ok(()) => info!("the configuration was reloaded"),
                Err(error) => {
                    let why = format!("{error:#}");
                    warn!(why, "the configuration was not reloaded; the old one holds");
                }
            },
        }
    }
    info!("stopping: finishing what runs");
    running.stop().await;
    info!("stopped");
    Ok(())
}

/// A gateway at work.
pub(crate) struct Running {
    config: Config,
    engine: Arc<Engine>,
    canary: Arc<Canary>,
    store: OpenStore,
    gateway: Gateway,
    /// None where the workers run elsewhere.
    dispatcher: Option<Dispatcher>,
    reconciling: Option<Reconciling>,
    workers: Workers,
    /// None where clients are served elsewhere.
    gateway_listening: Option<Listening>,
    admin: Admin,
    admin_listening: Listening,
    certificate: Option<Arc<Certificate>>,
    /// Made at the start, since none was given.
    admin_token: Option<String>,
    traffic: Traffic,
}

impl Running {
    pub(crate) async fn start(config: &Config, metrics: PrometheusHandle) -> Result<Running> {
        let (cache, ring) = (config.cache.as_ref(), config.privacy.ring.as_ref());
        let store = OpenStore::open(&config.store, cache, ring).await?;
        let routes = config.routes.protected()?;
        let canary = Arc::new(canary(&store.store, &config.canary)?);
        let settings = settings(config, &canary);
        let engine = Engine::new(Arc::clone(&store.store), routes, settings);
        let engine = Arc::new(engine);
        check_identity(&engine, &*store.store, config.accept_identity_change).await?;
        let traffic = Traffic::default();
        let setup = set_up(config, Arc::clone(&engine), &store.store, traffic.clone())?;
        let gateway = Gateway::new(setup, &config.limits);
        let certificate = config.tls.as_ref().map(Certificate::load).transpose()?;
        let (access, admin_token) = config.admin_settings.access();
        let shadow = Arc::clone(gateway.shadow());
        let lookup_key = config.privacy.lookup_key.clone();
        let (records, messages) = (Arc::clone(&store.store), store.outbox());
        let watched = Arc::clone(&canary);
        let api = Api::new(records, messages, watched, lookup_key, access, traffic.clone(), shadow);
        let admin = Admin::new(Arc::clone(&engine), metrics, api);
        tokio::spawn(probe(Arc::downgrade(&engine)));
        let admin_listening = Listening::bind(config.admin, admin.clone()).await?;
        let role = config.workers.role;
        let gateway_listening = match role.serves() {
            true => {
                let (on, limits) = (config.listen, config.limits);
                let bound = Listening::bind_with(on, gateway.clone(), limits, certificate.clone());
                Some(bound.await?)
            }
            false => None,
        };
        let dispatcher = role.works().then(|| Dispatcher::start(&gateway));
        let reconciling = probes(config)?.map(|probes| Reconciling::start(&store.store, probes));
        let sinks = sinks(config)?;
        let workers = Workers::start(&engine, store.outbox(), &config.workers, sinks);
        config.routes.warnings.iter().for_each(|warning| warn!("{warning}"));
        info!(
            listen = gateway_listening.as_ref().map(|listening| field::display(listening.address)),
            admin = %admin_listening.address,
            upstream = %config.upstream,
            scope = config.scope.name(),
            routes = config.routes.all().count() - 1,
            "serving"
        );
        let config = config.clone();
        Ok(Running {
            config,
            engine,
            canary,
            store,
            gateway,
            dispatcher,
            workers,
            reconciling,
            gateway_listening,
            admin,
            admin_listening,
            certificate,
            admin_token,
            traffic,
        })
    }

    /// Reads the configuration anew. Either all of it holds from the next request on, or nothing of
    /// it, and the error says why. Requests that run keep what they began with.
    fn reload(&mut self, args: ServeArgs) -> Result<()> {
        ensure!(args.config.is_some(), "there is no file to read; start with --config FILE");
        let config = Config::load(args)?;
        let needs_restart = [
            ("gateway.listen", config.listen != self.config.listen),
            ("gateway.admin", config.admin != self.config.admin),
            ("store.url", config.store != self.config.store),
            ("store.cache", config.cache != self.config.cache),
            ("store.canary_file or store.canary_limit", config.canary != self.config.canary),
            ("scope.from", config.scope.name() != self.config.scope.name()),
            ("[tls]", config.tls != self.config.tls),
            ("[limits]", config.limits != self.config.limits),
            ("[admin]", config.admin_settings != self.config.admin_settings),
            ("privacy.hash_keys", config.privacy.lookup_key != self.config.privacy.lookup_key),
            (
                "sealing (privacy.keys) on or off",
                config.privacy.ring.is_some() != self.config.privacy.ring.is_some(),
            ),
        ];
        let changed: Vec<&str> =
            needs_restart.iter().filter(|(_, changed)| *changed).map(|(key, _)| *key).collect();
        ensure!(changed.is_empty(), "{} needs a restart to change", changed.join(", "));
        let settings = settings(&config, &self.canary);
        let engine = self.engine.under(config.routes.protected()?, settings);
        ensure!(
            engine.identity() == self.engine.identity(),
            "another fingerprint_key or scope makes every key look new, so that everything would run \
             again; it needs a restart with --accept-identity-change"
        );
        let engine = Arc::new(engine);
        let traffic = self.traffic.clone();
        let setup = set_up(&config, Arc::clone(&engine), &self.store.store, traffic)?;
        let (probes, sinks) = (probes(&config)?, sinks(&config)?);
        // What can fail is over with the certificate.
        if let Some(certificate) = &self.certificate {
            certificate.reload()?;
        }
        if config.privacy.ring != self.config.privacy.ring {
            self.store.set_ring(config.privacy.ring.as_ref());
            info!(keys = ?config.privacy.ring_ids(), "the key ring was replaced");
        }
        self.gateway.set_up(setup);
        self.reconciling = probes.map(|probes| Reconciling::start(&self.store.store, probes));
        if config.workers.role.works() {
            self.dispatcher = Some(Dispatcher::start(&self.gateway));
        }
        let workers = Workers::start(&engine, self.store.outbox(), &config.workers, sinks);
        std::mem::replace(&mut self.workers, workers).replace();
        config.routes.warnings.iter().for_each(|warning| warn!("{warning}"));
        (self.engine, self.config) = (engine, config);
        Ok(())
    }

    /// Where clients connect, if they do so here.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.gateway_listening.as_ref().map(|listening| listening.address)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn admin_address(&self) -> SocketAddr {
        self.admin_listening.address
    }

    /// Takes nothing new, finishes what runs, and closes the store.
    pub(crate) async fn stop(self) {
        self.admin.drain();
        let Running {
            engine,
            canary,
            store,
            gateway,
            dispatcher,
            workers,
            reconciling,
            gateway_listening,
            admin,
            admin_listening,
            ..
        } = self;
        drop(dispatcher);
        let stop_asking = async {
            if let Some(reconciling) = reconciling {
                reconciling.stop(DRAIN_TIME_MAX).await;
            }
        };
        let stop_serving = async {
            if let Some(listening) = gateway_listening {
                listening.stop(DRAIN_TIME_MAX).await;
            }
        };
        let stop_working = workers.stop(DRAIN_TIME_MAX);
        tokio::join!(stop_serving, stop_working, stop_asking, engine.drain(DRAIN_TIME_MAX));
        // What was written last is remembered too, if the store answers.
        let _ = timeout(Duration::from_secs(1), canary.beat()).await;
        if let Err(error) = canary.save().await {
            warn!(%error, "what the canary remembers cannot be written");
        }
        admin_listening.stop(Duration::from_secs(1)).await;
        drop((engine, canary, gateway, admin));
        store.close().await;
    }
}

/// Where the workers run, unknown outcomes are asked about.
fn probes(config: &Config) -> Result<Option<Probes>> {
    config.workers.role.works().then(|| Probes::new(&config.routes)).transpose()
}

fn sinks(config: &Config) -> Result<Vec<(String, HttpSink)>> {
    config.sinks.iter().map(|sink| Ok((sink.name.clone(), sink.open()?))).collect()
}

/// Finds out whether a store that was down is back, also while no requests come.
async fn probe(engine: Weak<Engine>) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(engine) = engine.upgrade() else { return };
        engine.probe_store().await;
    }
}

/// Watches the store. Its first beat is made before the first key runs.
fn canary(store: &Arc<dyn Store>, settings: &CanarySettings) -> Result<Canary> {
    let canary = Canary::new(Arc::clone(store)).limit(settings.limit);
    match &settings.file {
        Some(file) => canary.remembering(file).context("store.canary_file"),
        None => Ok(canary),
    }
}

fn settings(config: &Config, canary: &Arc<Canary>) -> Settings {
    Settings {
        canary: Some(Arc::clone(canary)),
        scope: config.scope.clone(),
        key_rules: config.key_rules.clone(),
        lookup_key: config.privacy.lookup_key.clone(),
        problem_base: config.problem_base.clone(),
        limits: config.quota,
        ..Settings::default()
    }
}

/// What the gateway works with under a configuration.
fn set_up(
    config: &Config,
    engine: Arc<Engine>,
    store: &Arc<dyn Store>,
    traffic: Traffic,
) -> Result<Setup> {
    let to_upstream = &config.to_upstream;
    let upstream = Upstream::new(config.upstream.clone(), to_upstream, config.max_execution)?;
    Ok(Setup {
        engine,
        upstream: Arc::new(upstream),
        rewrite: Rewrite::new(
            config.proxies.clone(),
            to_upstream.makes_traceparent,
            Deciding::new(&config.scope, &config.routes),
        ),
        scope_asks_for_peer: config.scope.name().starts_with("header:"),
        pace: Pace {
            stall_max: config.limits.stall_time_max,
            first_byte_max: to_upstream.first_byte_time_max,
            total_max: to_upstream.total_time_max,
        },
        routes: config.routes.clone(),
        traffic,
        cors: config.cors.clone(),
        webhooks: Webhooks::new(
            Arc::clone(store),
            config.privacy.lookup_key.clone(),
            config.webhooks.clone(),
        ),
    })
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
            "this store was written under another scope rule, key syntax, fingerprint key or \
             privacy.hash_keys, so that every key would look new and run again; go back to the old \
             settings, or start with --accept-identity-change"
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
    let scheme = if running.certificate.is_some() { "https" } else { "http" };
    if let Some(address) = running.address() {
        let _ = writeln!(stdout, "listening on {scheme}://{address}");
    }
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

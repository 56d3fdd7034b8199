//! The routes, what each of them declares, and the workers beside them.

use std::{future::Future, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
    response::Response,
    routing::{get, post},
};
use onceward::{
    Effects, Engine, Idempotency, OutboxStore, Policy, Relay, Resumer, Routes,
    outbox::HttpSink,
    worker::{Reaper, Sweeper},
};
use sqlx::Pool;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinHandle,
};

use crate::{
    bank::Bank,
    cli::ServeArgs,
    edges::{Edge, reach},
    payments, records,
    tables::{Opened, Tables},
};

/// The sink of messages about payments.
pub(crate) const NOTIFY: &str = "notify";

/// How long a stop waits for what runs.
const DRAIN: Duration = Duration::from_secs(25);

/// What the handlers have.
pub(crate) struct App<D: Tables> {
    pub(crate) pool: Pool<D>,
    pub(crate) bank: Bank,
}

impl<D: Tables> Clone for App<D> {
    fn clone(&self) -> Self {
        App { pool: self.pool.clone(), bank: self.bank.clone() }
    }
}

/// What each route can do to the world. A route that nobody thought of is protected, too.
fn policies(lease: Duration) -> Result<Routes> {
    let required = Policy::required().lease(lease)?;
    let phased = required.clone().effects(Effects::Phased)?;
    let local = required.clone().effects(Effects::Local)?;
    let single = required.clone().single();
    let routes = Routes::with_default(required.effects(Effects::External)?)
        .route("POST /payments", phased.clone())?
        .route("POST /payments/*/capture", phased.clone())?
        .route("POST /payments/*/refund", phased)?
        .route("POST /payments/*/notes", single)?
        .route("POST /customers", local)?;
    Ok(routes)
}

/// The service without its layer. A worker that goes on with an operation calls this.
fn handlers<D: Tables>(app: App<D>) -> Router {
    Router::new()
        .route("/payments", post(payments::create::<D>))
        .route("/payments/{id}", get(payments::show::<D>))
        .route("/payments/{id}/capture", post(payments::capture::<D>))
        .route("/payments/{id}/refund", post(payments::refund::<D>))
        .route("/payments/{id}/notes", post(records::create_note::<D>))
        .route("/customers", post(records::create_customer::<D>))
        .with_state(app)
}

/// Callers are told apart by their credential; who checks it stands in front of the layer.
fn protected(handlers: Router, layer: Idempotency) -> Router {
    handlers.layer(layer).layer(middleware::from_fn(arrive))
}

async fn arrive(request: Request, next: Next) -> Response {
    reach(Edge::BeforeReserve);
    next.run(request).await
}

/// Serves until it is told to stop.
pub(crate) async fn serve<D: Tables>(args: &ServeArgs, opened: Opened<D>) -> Result<()> {
    let app = App { pool: opened.pool, bank: Bank::new(&args.bank, args.bank_is_forgetful)? };
    let handlers = handlers(app);
    let layer = Idempotency::new(opened.store, policies(args.lease)?);
    let engine = Arc::clone(layer.engine());
    let (stop, stopped) = watch::channel(());

    let resuming = resume(&engine, handlers.clone(), args.lease);
    let sweeping = sweep(&engine, args.lease, until(&stopped));
    let reaping = reap(&engine, until(&stopped));
    let relaying = match &args.notify {
        Some(url) => Some(relay(opened.outbox, url, args, until(&stopped))?),
        None => None,
    };
    let listener = TcpListener::bind(args.listen).await.context("the listener")?;
    println!("listening on http://{}", listener.local_addr()?);
    let mut terminated = signal(SignalKind::terminate())?;
    let serving = axum::serve(listener, protected(handlers, layer))
        .with_graceful_shutdown(until(&stopped))
        .into_future();
    let serving = tokio::spawn(serving);
    tokio::select! {
        _ = terminated.recv() => {}
        signalled = tokio::signal::ctrl_c() => signalled?,
    }
    drop(stop);
    engine.drain(DRAIN).await;
    resuming.abort();
    sweeping.await?;
    reaping.await?;
    if let Some(relaying) = relaying {
        relaying.await?;
    }
    Ok(serving.await??)
}

/// Goes on with payments whose process died, or whose client gave up.
fn resume(engine: &Arc<Engine>, handlers: Router, every: Duration) -> JoinHandle<()> {
    let resumer = Resumer::new(Arc::clone(engine), handlers);
    tokio::spawn(async move { resumer.run(every, 16).await })
}

/// Moves on what a process left that died, though no client comes.
fn sweep(
    engine: &Arc<Engine>,
    every: Duration,
    stop: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    let sweeper = Sweeper::new(Arc::clone(engine));
    tokio::spawn(async move { sweeper.run(every, stop).await })
}

/// Drops what is past its retention.
fn reap(engine: &Arc<Engine>, stop: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    let reaper = Reaper::new(Arc::clone(engine));
    tokio::spawn(async move { reaper.run(Reaper::EVERY, stop).await })
}

/// Delivers what was staged.
fn relay(
    outbox: Arc<dyn OutboxStore>,
    url: &str,
    args: &ServeArgs,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<JoinHandle<()>> {
    let patience = args.lease.min(Duration::from_secs(15));
    let sink = match args.bank_is_forgetful {
        false => HttpSink::idempotent(url)?,
        true => HttpSink::not_idempotent(url)?,
    };
    let relay = Relay::new(outbox)
        .sink(NOTIFY, sink.timeout(patience))
        // A little longer, so that the sink itself says what went wrong.
        .delivery_timeout(patience + Duration::from_secs(1))
        .poll(Duration::from_millis(200));
    Ok(tokio::spawn(async move {
        relay.run(stop).await;
    }))
}

/// Ends when the other end is dropped.
fn until(stopped: &watch::Receiver<()>) -> impl Future<Output = ()> + Send + 'static {
    let mut stopped = stopped.clone();
    async move { while stopped.changed().await.is_ok() {} }
}

#[cfg(test)]
mod tests;

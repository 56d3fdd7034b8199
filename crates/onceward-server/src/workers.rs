//! The workers of a process: sweeper, reaper, surveyor, beater, and the relay of the outbox.

use std::{pin::pin, sync::Arc, time::Duration};

use onceward::{
    Engine, OutboxStore,
    outbox::{HttpSink, Relay},
    worker::{Beater, Reaper, Surveyor, Sweeper},
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::config;

/// Workers that run until they are stopped or replaced: what one of them is at comes to its end. If this
/// is only dropped they are cut off where they are, as in a crash.
pub(crate) struct Workers {
    tasks: JoinSet<()>,
    /// Tells them to stop by going away.
    going: watch::Sender<()>,
}

impl Workers {
    /// The workers for an engine, under these settings. Where they run elsewhere, what handlers take is
    /// still told here, where they run.
    pub(crate) fn start(
        engine: &Arc<Engine>,
        outbox: Option<Arc<dyn OutboxStore>>,
        settings: &config::Workers,
        sinks: Vec<(String, HttpSink)>,
    ) -> Self {
        let (going, gone) = watch::channel(());
        let mut tasks = JoinSet::new();
        // Each process for itself, whatever else it does.
        let (beater, stop) = (Beater::new(Arc::clone(engine)), stopped(gone.clone()));
        tasks.spawn(async move { beater.run(Beater::EVERY, stop).await });
        let mut surveyor = Surveyor::new(Arc::clone(engine));
        if !settings.role.works() {
            tasks.spawn(measure(surveyor, settings.survey_every, stopped(gone)));
            return Workers { tasks, going };
        }
        let sweeper = Sweeper::new(Arc::clone(engine));
        let mut reaper = Reaper::new(Arc::clone(engine)).audit_retention(settings.audit_retention);
        if let Some(outbox) = outbox {
            if !sinks.is_empty() {
                let mut relay = Relay::new(Arc::clone(&outbox));
                if let Some(canary) = engine.canary() {
                    relay = relay.canary(Arc::clone(canary));
                }
                let relay =
                    sinks.into_iter().fold(relay, |relay, (name, sink)| relay.sink(name, sink));
                let stop = stopped(gone.clone());
                tasks.spawn(async move {
                    relay.run(stop).await;
                });
            }
            reaper = reaper.outbox(Arc::clone(&outbox), settings.message_retention);
            surveyor = surveyor.outbox(outbox);
        }
        let (sweep_every, stop) = (settings.sweep_every, stopped(gone.clone()));
        tasks.spawn(async move { sweeper.run(sweep_every, stop).await });
        let (reap_every, stop) = (settings.reap_every, stopped(gone.clone()));
        tasks.spawn(async move { reaper.run(reap_every, stop).await });
        let (survey_every, stop) = (settings.survey_every, stopped(gone));
        tasks.spawn(async move { surveyor.run(survey_every, stop).await });
        Workers { tasks, going }
    }

    /// Waits until what they were at has ended, after the engine was told to drain.
    pub(crate) async fn stop(mut self, at_most: Duration) {
        drop(self.going);
        let _ = timeout(at_most, async { while self.tasks.join_next().await.is_some() {} }).await;
    }

    /// Lets others take over: what these are at comes to its end by itself.
    pub(crate) fn replace(mut self) {
        self.tasks.detach_all();
    }
}

async fn measure(surveyor: Surveyor, every: Duration, stop: impl Future<Output = ()>) {
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => return,
            () = sleep(every) => surveyor.look_at_handlers(),
        }
    }
}

async fn stopped(mut gone: watch::Receiver<()>) {
    // Nothing is ever sent.
    let _ = gone.changed().await;
}

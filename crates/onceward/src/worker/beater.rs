//! The beater: keeps the canary of an engine beating.

use std::{sync::Arc, time::Duration};

use tracing::warn;

use super::runner::{Worker, repeat};
use crate::{engine::Engine, store::StoreError};

/// Beats for the [canary](crate::canary) of an engine, and writes down what was acknowledged. One for
/// each process: a canary stands for one. Without a canary it does nothing.
#[derive(Debug)]
pub struct Beater {
    engine: Arc<Engine>,
}

impl Worker for Beater {
    const NAME: &'static str = "beater";

    fn engine(&self) -> &Engine {
        &self.engine
    }

    async fn once(&self) -> Result<bool, StoreError> {
        self.run_once().await.map(|()| false)
    }
}

impl Beater {
    /// How often it runs by default.
    pub const EVERY: Duration = Duration::from_secs(1);

    /// A beater for the canary of this engine.
    pub fn new(engine: Arc<Engine>) -> Self {
        Beater { engine }
    }

    /// One beat.
    ///
    /// # Errors
    /// When the store does not answer.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn run_once(&self) -> Result<(), StoreError> {
        let Some(canary) = self.engine.canary() else { return Ok(()) };
        self.engine.in_time(Box::pin(canary.beat())).await?;
        if let Err(error) = canary.save().await {
            // The process still remembers. Another one after it would know less.
            warn!(%error, "what the canary remembers cannot be written");
        }
        Ok(())
    }

    /// Runs every so often, until `stop` or until the engine is told to drain.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn run(&self, every: Duration, stop: impl Future<Output = ()> + Send) {
        repeat(self, every, stop).await;
    }
}

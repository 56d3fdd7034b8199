//! Requests that were accepted for later, sent to upstream as live ones are.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Request;
use onceward::{Policy, store::Which, tower::work};
use tokio::task::JoinHandle;

use super::{Forward, Gateway, Setup};
use crate::listener::Alarms;

/// How many are sent at once. As many bodies are in memory beside those of live requests.
const AT_ONCE: u32 = 32;

/// How often the store is asked for what other processes have accepted or left behind.
const EVERY: Duration = Duration::from_secs(1);

/// The same where no route is queued: there may be some left from before.
const EVERY_WITHOUT_ROUTES: Duration = Duration::from_secs(10);

/// Sends requests that were accepted for later, under one setup, until it is dropped. What is on its way
/// then goes on.
pub(crate) struct Dispatcher(JoinHandle<()>);

impl Dispatcher {
    /// A dispatcher under the setup that holds now.
    pub(crate) fn start(gateway: &Gateway) -> Self {
        let setup = gateway.setup();
        let queues = setup.routes.all().any(|route| route.policy.rules().queued.is_some());
        let every = if queues { EVERY } else { EVERY_WITHOUT_ROUTES };
        let engine = Arc::clone(&setup.engine);
        let send = move |request, policy: &Policy| forward(&setup, request, policy);
        Dispatcher(tokio::spawn(work(engine, Which::Accepted, every, AT_ONCE, send)))
    }
}

/// The head was kept as upstream is to see it.
fn forward(setup: &Arc<Setup>, request: Request<Bytes>, policy: &Policy) -> Forward {
    let (parts, body) = request.into_parts();
    setup.forward(policy, parts, body, None, Alarms::default())
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.0.abort();
    }
}

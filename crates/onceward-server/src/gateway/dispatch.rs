//! Requests that no client waits for, sent to upstream as live ones are: those that were accepted for
//! later, and those of phased operations that were cut off.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Request;
use onceward::{Effects, Policy, store::Which, tower::work};
use tokio::task::JoinHandle;

use super::{Forward, Gateway, Setup};
use crate::listener::Alarms;

/// How many are sent at once. As many bodies are in memory beside those of live requests.
const AT_ONCE: u32 = 32;

/// How often the store is asked for what other processes have accepted or left behind.
const EVERY: Duration = Duration::from_secs(1);

/// The same where no route is queued or phased: there may be some left from before.
const EVERY_WITHOUT_ROUTES: Duration = Duration::from_secs(10);

/// Sends requests that no client waits for, under one setup, until it is dropped. What is on its way then
/// goes on.
pub(crate) struct Dispatcher(JoinHandle<()>);

impl Dispatcher {
    /// A dispatcher under the setup that holds now.
    pub(crate) fn start(gateway: &Gateway) -> Self {
        let setup = gateway.setup();
        let rules = || setup.routes.all().map(|route| route.policy.rules());
        let goes_on = rules().any(|rules| rules.effects == Effects::Phased);
        let every = match goes_on || rules().any(|rules| rules.queued.is_some()) {
            true => EVERY,
            false => EVERY_WITHOUT_ROUTES,
        };
        // A service that shares the store may have phased operations of its own, and goes on with them.
        let which = if goes_on { Which::All } else { Which::Accepted };
        let engine = Arc::clone(&setup.engine);
        let send = move |request, policy: &Policy| forward(&setup, request, policy);
        Dispatcher(tokio::spawn(work(engine, which, every, AT_ONCE, send)))
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

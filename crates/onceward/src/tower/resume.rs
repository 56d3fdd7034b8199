//! Going on without a client, with the service that is behind the layer.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use tower_service::Service;

use super::{Body, BoxError, Call, work};
use crate::{
    engine::{Engine, Resumed},
    policy::Policy,
    store::{StoreError, Which},
};

/// The body of a request that is gone on with: it was kept whole.
pub type KeptBody = Body<Empty<Bytes>>;

/// Goes on with phased operations that were cut off and that no client comes back for, and executes what
/// was accepted for later ([`Policy::queued`]).
///
/// It calls the service that is behind the layer with the request that the operation began with. That
/// has no credentials any more: whoever asks for them has to stand in front of the layer.
///
/// ```
/// # fn example(pay: axum::Router) {
/// use std::{sync::Arc, time::Duration};
/// use onceward::{Effects, Idempotency, MemoryStore, Policy, Resumer};
///
/// let policy = Policy::required().effects(Effects::Phased).expect("not a single policy");
/// let layer = Idempotency::new(Arc::new(MemoryStore::new()), policy);
/// let resumer = Resumer::new(Arc::clone(layer.engine()), pay.clone());
/// tokio::spawn(async move { resumer.run(Duration::from_secs(10), 16).await });
/// let app = pay.layer(layer);
/// # let _ = app;
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Resumer<S> {
    engine: Arc<Engine>,
    service: S,
}

impl<S, C> Resumer<S>
where
    S: Service<Request<KeptBody>, Response = Response<C>> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
    C: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    C::Error: Into<BoxError>,
{
    /// A resumer for the operations of this engine, with the service behind its layer.
    pub fn new(engine: Arc<Engine>, service: S) -> Self {
        Resumer { engine, service }
    }

    /// Goes on with at most `limit` operations, in a task of its own. Comes back when they have ended.
    ///
    /// # Errors
    /// When the store does not say which there are.
    ///
    /// # Cancel safety
    /// May be dropped: the operations run on.
    pub async fn run_once(&self, limit: u32) -> Result<Resumed, StoreError> {
        let Resumer { engine, service } = self.clone();
        let resumed =
            tokio::spawn(async move { engine.resume_each(limit, handler_of(service)).await });
        // A task that did not end was dropped with its runtime: its work is cut off, as in a crash.
        resumed.await.unwrap_or(Ok(Resumed::default()))
    }

    /// Does so again and again, with at most `at_once` of them at a time, until it is dropped. Looks
    /// every so often, and as soon as something is accepted. After the engine was told to drain it finds
    /// nothing more to do.
    ///
    /// # Cancel safety
    /// May be dropped: the operations at work run on.
    pub async fn run(&self, every: Duration, at_once: u32) {
        let Resumer { engine, service } = self.clone();
        work(engine, Which::All, every, at_once, handler_of(service)).await;
    }
}

fn handler_of<S: Clone>(service: S) -> impl Fn(Request<Bytes>, &Policy) -> Call<S, Empty<Bytes>> {
    move |request, policy| {
        let (parts, body) = request.into_parts();
        Call {
            service: service.clone(),
            parts: Box::new(parts),
            body,
            reply_cap: policy.reply_cap(),
            streamed: PhantomData::<fn(Empty<Bytes>)>,
        }
    }
}

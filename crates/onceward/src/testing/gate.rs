//! A store whose calls stop at a gate, so that a test forces any interleaving of any callers.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};

use super::faulty::{StoreCall, wrapped_store};
use crate::{
    record::{AuditRecord, Lease, ProviderId, ProviderNote, Record, RecordId, SavedStep},
    scope::Scope,
    store::{
        Advance, Advanced, Ask, Beat, Claim, Database, Identity, IdentityCheck, Noted, Pulse,
        Reaped, Regression, Reservation, Resolve, Resolved, Resumable, ScopeKey, Store,
        StoreFuture, Swept, Which, Write, Written,
        list::{AuditPage, AuditQuery, Page, Query, Stats},
    },
};

/// A store whose calls stop before they take effect and again before they answer.
#[derive(Debug)]
pub struct GatedStore {
    inner: Arc<dyn Store>,
    gate: mpsc::UnboundedSender<Paused>,
}

/// Where the calls of a [`GatedStore`] arrive.
#[derive(Debug)]
pub struct Gate(Mutex<mpsc::UnboundedReceiver<Paused>>);

/// A call that stands at the gate until it is let through.
#[derive(Debug)]
#[must_use = "a call that is dropped at the gate is let through"]
pub struct Paused {
    call: StoreCall,
    point: Point,
    go: oneshot::Sender<()>,
}

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// It has not taken effect.
    Before,
    /// It took effect and has not answered.
    After,
}

impl GatedStore {
    /// A store around `inner`, and the gate its calls arrive at.
    pub fn new(inner: Arc<dyn Store>) -> (Self, Gate) {
        let (gate, arrivals) = mpsc::unbounded_channel();
        (GatedStore { inner, gate }, Gate(Mutex::new(arrivals)))
    }

    async fn stop(&self, call: StoreCall, point: Point) {
        let (go, passed) = oneshot::channel();
        // Without a gatekeeper every call passes.
        if self.gate.send(Paused { call, point, go }).is_ok() {
            let _ = passed.await;
        }
    }

    fn call<'a, T: Send + 'a>(
        &'a self,
        call: StoreCall,
        inner: impl FnOnce() -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            // An engine asks for the identity once, before its first request: not what tests are about.
            if matches!(call, StoreCall::CheckIdentity | StoreCall::AcceptIdentity) {
                return inner().await;
            }
            self.stop(call, Point::Before).await;
            let answer = inner().await;
            self.stop(call, Point::After).await;
            answer
        })
    }
}

impl Gate {
    /// Waits for the next call that stops.
    ///
    /// # Cancel safety
    /// No arrival is lost.
    pub async fn next(&self) -> Paused {
        let arrival = self.0.lock().await.recv().await;
        arrival.unwrap_or_else(|| unreachable!("the store lives as long as its callers"))
    }

    /// Waits for the next call that stops and says what it must be.
    ///
    /// # Panics
    /// When another call arrives.
    ///
    /// # Cancel safety
    /// No arrival is lost.
    pub async fn expect(&self, call: StoreCall, point: Point) -> Paused {
        let paused = self.next().await;
        assert_eq!((paused.call, paused.point), (call, point), "another call came to the gate");
        paused
    }
}

impl Paused {
    /// Which call it is.
    pub fn call(&self) -> StoreCall {
        self.call
    }

    /// Where it stands.
    pub fn point(&self) -> Point {
        self.point
    }

    /// Lets it through.
    pub fn pass(self) {
        // The caller may have been dropped at the gate.
        let _ = self.go.send(());
    }
}

wrapped_store!(GatedStore);

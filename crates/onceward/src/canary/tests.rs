//! What others see while a beat is answered.

use std::sync::{OnceLock, Weak};

use super::*;
use crate::MemoryStore;

/// A clock that looks at a canary whenever that one asks for the time.
#[derive(Debug, Default)]
struct Watching {
    canary: OnceLock<Weak<Canary>>,
    /// Whether the store was believed to have lost nothing.
    believed: Mutex<Vec<bool>>,
}

impl Clock for Watching {
    fn now(&self) -> Timestamp {
        if let Some(canary) = self.canary.get().and_then(Weak::upgrade) {
            let believed = canary.is_vouched() && !canary.regressed.load(Ordering::Relaxed);
            self.believed.lock().expect("not poisoned").push(believed);
        }
        SystemClock.now()
    }
}

#[tokio::test]
async fn a_store_is_vouched_for_only_after_its_loss_is_known() {
    let memory = Arc::new(MemoryStore::new());
    let clock = Arc::new(Watching::default());
    let canary = Canary::new(Arc::clone(&memory) as Arc<dyn Store>).clock(clock.clone());
    let canary = Arc::new(canary);
    clock.canary.set(Arc::downgrade(&canary)).expect("set once");
    // Another node has found a loss.
    let lost = Beat { node: NodeId::from_bytes([9; 16]), acked: 41 };
    let known = memory.beat(lost).await.expect("a beat").regression;
    assert!(known.is_some() && !canary.is_vouched());
    assert_eq!(canary.beat().await.expect("a beat"), known);
    assert!(canary.is_vouched());
    let believed = clock.believed.lock().expect("not poisoned").clone();
    assert!(!believed.is_empty() && believed.iter().all(|believed| !believed), "{believed:?}");
}

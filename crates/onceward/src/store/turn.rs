//! One look at a record at a time: a record that is locked takes up one connection, however many ask
//! for it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::record::RecordId;

/// A look at one record.
pub(super) trait Look: Send {
    /// Which record.
    fn id(&self) -> &RecordId;

    /// Whether nobody waits for its answer any more.
    fn is_abandoned(&self) -> bool;
}

type Queues<L> = HashMap<RecordId, VecDeque<L>>;

/// The records that somebody looks at, and who waits to do so.
pub(super) struct Turns<L>(Arc<Mutex<Queues<L>>>);

impl<L> Clone for Turns<L> {
    fn clone(&self) -> Self {
        Turns(Arc::clone(&self.0))
    }
}

impl<L> Default for Turns<L> {
    fn default() -> Self {
        Turns(Arc::default())
    }
}

/// The right to look at a record.
pub(super) struct Turn<L> {
    turns: Turns<L>,
    id: RecordId,
    over: bool,
}

impl<L: Look> Turns<L> {
    /// A turn that begins with this look; none if somebody has one, who then does this look too.
    pub(super) fn take(&self, look: L) -> Option<Turn<L>> {
        let id = look.id().clone();
        let mut queues = self.lock();
        if let Some(queue) = queues.get_mut(&id) {
            queue.push_back(look);
            return None;
        }
        queues.insert(id.clone(), VecDeque::from([look]));
        drop(queues);
        Some(Turn { turns: self.clone(), id, over: false })
    }
}

impl<L> Turns<L> {
    fn lock(&self) -> MutexGuard<'_, Queues<L>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L: Look> Turn<L> {
    /// The next look that somebody waits for. Without one, the turn is over.
    pub(super) fn next(&mut self) -> Option<L> {
        let mut queues = self.turns.lock();
        let queue = queues.get_mut(&self.id).filter(|_| !self.over)?;
        while let Some(look) = queue.pop_front() {
            if !look.is_abandoned() {
                return Some(look);
            }
        }
        queues.remove(&self.id);
        self.over = true;
        None
    }

    /// All that wait now.
    pub(super) fn rest(&mut self) -> VecDeque<L> {
        self.turns.lock().get_mut(&self.id).map(std::mem::take).unwrap_or_default()
    }
}

impl<L> Drop for Turn<L> {
    /// Those that wait are told when their looks are dropped.
    fn drop(&mut self) {
        if !self.over {
            self.turns.lock().remove(&self.id);
        }
    }
}

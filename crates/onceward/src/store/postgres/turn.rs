//! One look at a record at a time: a record that is locked takes up one connection, however many ask
//! for it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::look::Look;
use crate::record::RecordId;

type Queues = HashMap<RecordId, VecDeque<Look>>;

/// The records that somebody looks at, and who waits to do so.
#[derive(Clone, Default)]
pub(super) struct Turns(Arc<Mutex<Queues>>);

/// The right to look at a record.
pub(super) struct Turn {
    turns: Turns,
    id: RecordId,
    over: bool,
}

impl Turns {
    /// A turn that begins with this look; none if somebody has one, who then does this look too.
    pub(super) fn take(&self, look: Look) -> Option<Turn> {
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

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// The next look that somebody waits for. Without one, the turn is over.
    pub(super) fn next(&mut self) -> Option<Look> {
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
    pub(super) fn rest(&mut self) -> VecDeque<Look> {
        self.turns.lock().get_mut(&self.id).map(std::mem::take).unwrap_or_default()
    }
}

impl Drop for Turn {
    /// Those that wait are told when their looks are dropped.
    fn drop(&mut self) {
        if !self.over {
            self.turns.lock().remove(&self.id);
        }
    }
}

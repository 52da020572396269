//! Open connections of the server, and which of them makes room for one more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::AbortHandle;

/// Most connections at once.
pub const MAX_CONNECTIONS: usize = 64;

/// Mark of a connection: whether one of its requests was accepted.
#[derive(Clone, Debug, Default)]
pub(crate) struct IsTrusted(Arc<AtomicBool>);

impl IsTrusted {
    /// Notes an accepted request.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Open connections, oldest first.
#[derive(Default)]
pub(crate) struct Connections {
    open: Vec<(IsTrusted, AbortHandle)>,
}

impl Connections {
    /// Makes room for one more, at the limit by closing one that is not trusted; false if there is
    /// none.
    pub(crate) fn make_room(&mut self) -> bool {
        if self.open.len() < MAX_CONNECTIONS {
            return true;
        }
        self.open.retain(|(_, task)| !task.is_finished());
        if self.open.len() < MAX_CONNECTIONS {
            return true;
        }
        let Some(oldest) = self.open.iter().position(|(is_trusted, _)| !is_trusted.get()) else {
            return false;
        };
        let (_, task) = self.open.remove(oldest);
        task.abort();
        true
    }

    /// Adds a connection with its task.
    pub(crate) fn add(&mut self, is_trusted: IsTrusted, task: AbortHandle) {
        self.open.push((is_trusted, task));
    }
}

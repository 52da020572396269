//! The thread that follows the event files of all runs.

use crate::history::History;
use crate::runs::{MAX_RUNS, Runs, Table};
use lockstep_platform::{JoinHandle, Signal, ThreadError, World};
use lockstep_telemetry::json_lines::{Change, Follower};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch::{Receiver, Sender, channel};

/// Time between two looks at the files.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Looks between two searches for new runs and changed states.
const POLLS_PER_SEARCH: u32 = 8;
/// Bytes of a file that are read at a look, so that all runs of a table move.
const MAX_BYTES_PER_POLL: u64 = 4 << 20;
/// Time to stop.
const STOP_TIME: Duration = Duration::from_secs(10);

/// The running thread; it stops on drop.
pub struct Watcher {
    signal: Arc<dyn Signal>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<Box<dyn JoinHandle>>,
}

impl Watcher {
    /// Starts to follow the runs into a table. The receiver sees a new number after every change.
    pub fn start(
        world: &World,
        runs: Arc<dyn Runs>,
        table: Table,
    ) -> Result<(Self, Receiver<u64>), ThreadError> {
        let (sender, receiver) = channel(0);
        let is_stopped = Arc::new(AtomicBool::new(false));
        let signal = world.threads().signal();
        let own_world = World::clone(world);
        let mut watch = Watch { world: own_world, runs, table, followers: Vec::new(), sender };
        let (stop, wake) = (Arc::clone(&is_stopped), Arc::clone(&signal));
        let follow = move || {
            let mut polls = 0_u32;
            while !stop.load(Ordering::Acquire) {
                let epoch = wake.epoch();
                if polls.is_multiple_of(POLLS_PER_SEARCH) {
                    watch.search();
                }
                polls = polls.wrapping_add(1);
                let is_more = watch.poll(&stop);
                if !is_more && !stop.load(Ordering::Acquire) {
                    wake.wait(epoch, POLL_INTERVAL);
                }
            }
        };
        let thread = Some(world.threads().spawn("dashboard-reader", Box::new(follow))?);
        Ok((Self { signal, is_stopped, thread }, receiver))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Release);
        self.signal.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.finished_within(STOP_TIME)
        {
            let _ = thread.join();
        }
    }
}

/// State of the thread.
struct Watch {
    world: World,
    runs: Arc<dyn Runs>,
    table: Table,
    /// One a run of the table.
    followers: Vec<Follower>,
    sender: Sender<u64>,
}

impl Watch {
    /// Adds new runs and updates the states of all.
    fn search(&mut self) {
        let mut is_changed = false;
        // The newest runs, where there are more than a table has.
        let folders = self.runs.folders();
        for folder in &folders[folders.len().saturating_sub(MAX_RUNS)..] {
            let is_known = self.table.lock().iter().any(|run| run.folder == *folder);
            if !is_known {
                let (info, state) = (self.runs.info(folder), self.runs.state(folder));
                if self.table.add(folder, info, state) {
                    self.followers.push(Follower::new(&self.runs.events(folder)));
                    is_changed = true;
                }
            }
        }
        for number in 0..self.followers.len() {
            let (folder, state) = {
                let runs = self.table.lock();
                (runs[number].folder.clone(), runs[number].state.clone())
            };
            let found = self.runs.state(&folder);
            if found != state {
                let run = &mut self.table.lock()[number];
                run.state = found;
                run.version += 1;
                is_changed = true;
            }
        }
        if is_changed {
            self.sender.send_modify(|number| *number += 1);
        }
    }

    /// Reads what was appended; returns whether more is left.
    fn poll(&mut self, stop: &AtomicBool) -> bool {
        let mut is_more = false;
        for (number, follower) in self.followers.iter_mut().enumerate() {
            if stop.load(Ordering::Acquire) {
                return false;
            }
            let mut changes = Vec::new();
            let polled = follower.poll(&self.world, MAX_BYTES_PER_POLL, |change| {
                changes.push(match change {
                    Change::Replaced => None,
                    Change::Event(stamped) => Some(stamped.clone()),
                });
            });
            // A file that cannot be read now is read at a later look.
            let is_whole = matches!(polled, Ok(false));
            is_more |= matches!(polled, Ok(true));
            let mut runs = self.table.lock();
            let run = &mut runs[number];
            if changes.is_empty() && run.is_read >= is_whole {
                continue;
            }
            for change in changes {
                match change {
                    None => run.history = History::default(),
                    Some(stamped) => run.history.take(stamped.seconds, &stamped.event),
                }
            }
            run.is_read |= is_whole;
            run.version += 1;
            drop(runs);
            self.sender.send_modify(|number| *number += 1);
        }
        is_more
    }
}

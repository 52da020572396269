//! Several runs at a time, each a process of its own that ends when this one does.

use crate::child::Child;
use crate::failure::Failure;
use crate::workers::OWNER;
use lockstep_platform::{Exit, World};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::time::Duration;

/// Between two looks at the processes.
const LOOK: Duration = Duration::from_millis(10);

/// What a pool of processes asks and tells.
pub(super) trait Work {
    /// The arguments of a run that is about to start.
    fn begin(&mut self, run: usize) -> Result<Vec<OsString>, Failure>;

    /// A run has ended with this code and, if it failed, these words. An error ends the pool after
    /// the runs that are under way.
    fn end(&mut self, run: usize, code: u8, words: &str) -> Result<(), Failure>;

    /// Time passes while these are under way.
    fn look(&mut self, running: &[usize]);
}

/// Carries out all runs, `jobs` at a time. After a failure no more are begun, but those that are
/// under way may end: their results are worth keeping.
pub(super) fn run_all(
    world: &World,
    jobs: usize,
    runs: &[usize],
    work: &mut dyn Work,
) -> Result<(), Failure> {
    let mut waiting: VecDeque<usize> = runs.iter().copied().collect();
    let mut running: Vec<(usize, Child)> = Vec::new();
    let mut failure = None;
    while !running.is_empty() || !waiting.is_empty() {
        while running.len() < jobs
            && let Some(run) = waiting.pop_front()
        {
            let arguments = work.begin(run)?;
            let owner = (OWNER.to_owned(), world.processes().own_id().to_string());
            running.push((run, Child::start(world, arguments, vec![owner])?));
        }
        let mut still = Vec::new();
        for (run, mut child) in running {
            let Some(exit) = child.try_wait()? else {
                still.push((run, child));
                continue;
            };
            let (code, words) = match exit {
                Exit::Code(0) => (0, String::new()),
                _ => child.last_words(exit),
            };
            if let Err(error) = work.end(run, code, &words) {
                waiting.clear();
                failure.get_or_insert(error);
            }
        }
        running = still;
        let names: Vec<usize> = running.iter().map(|(run, _)| *run).collect();
        work.look(&names);
        world.clock().sleep(LOOK);
    }
    failure.map_or(Ok(()), Err)
}

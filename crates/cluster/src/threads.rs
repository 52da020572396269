//! Workers that are threads of this process.
//!
//! They run the same code as worker processes with another transport. A thread cannot be killed, so
//! a failed run ends with the process: the other threads have the grace period of processes, then
//! the call returns and leaves them behind.

use crate::ClusterError;
use crate::join::{JoinedWorker, ThreadRank, thread_ranks};
use crate::root_cause::{RunFailure, WorkerExit, find_root_cause};
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_platform::{Deadline, Exit, Queue, RecvError, World};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Time that the other threads have after the first failure.
const GRACE: Duration = Duration::from_secs(3);

/// Poll interval while no thread has failed.
const POLL_INTERVAL: Duration = Duration::from_mins(1);

/// Failure of a worker thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerFailure {
    /// Exit code of a process that fails like this.
    pub exit_code: u8,
    /// Description.
    pub text: String,
}

impl From<ClusterError> for WorkerFailure {
    fn from(error: ClusterError) -> Self {
        Self { exit_code: error.blame().exit_code(), text: error.to_string() }
    }
}

/// Result of a worker thread.
struct ThreadResult<T> {
    rank: usize,
    result: Result<Result<Option<T>, WorkerFailure>, String>,
}

/// Runs `work` on a thread for each worker of the recipe and returns the value of one of them.
pub fn run<T: Send + 'static>(
    recipe: &Recipe,
    world: &World,
    arena_bytes: usize,
    work: impl Fn(&Recipe, &Comm) -> Result<Option<T>, WorkerFailure> + Send + Sync + 'static,
) -> Result<Option<T>, RunFailure> {
    let thread_ranks =
        thread_ranks(recipe, world, arena_bytes).map_err(|error| start_failure(&error))?;
    let num_workers = thread_ranks.len();
    let (work, queue) = (Arc::new(work), Arc::new(Queue::new(world, num_workers)));
    for (rank, thread_rank) in thread_ranks.into_iter().enumerate() {
        let (recipe, own_world) = (recipe.clone(), Arc::clone(world));
        let (work, queue) = (Arc::clone(&work), Arc::clone(&queue));
        let body = move || {
            let whole = || join_and_run(thread_rank, &recipe, &own_world, arena_bytes, &*work);
            let result =
                catch_unwind(AssertUnwindSafe(whole)).map_err(|panic| panic_message(&*panic));
            // The queue has room for all results; it is closed after a failed run.
            let _ = queue.send(ThreadResult { rank, result }, Duration::ZERO);
        };
        let thread = world.threads().spawn(&format!("rank-{rank}"), Box::new(body));
        thread.map_err(|error| start_failure(&error.into()))?;
    }
    collect(world, &queue, num_workers)
}

fn join_and_run<T>(
    thread_rank: ThreadRank,
    recipe: &Recipe,
    world: &World,
    arena_bytes: usize,
    work: &impl Fn(&Recipe, &Comm) -> Result<Option<T>, WorkerFailure>,
) -> Result<Option<T>, WorkerFailure> {
    let JoinedWorker { comm, .. } = thread_rank.join(recipe, world, arena_bytes)?;
    work(recipe, &comm)
}

/// Waits for all threads, or after a failure for the grace period.
fn collect<T>(
    world: &World,
    queue: &Queue<ThreadResult<T>>,
    num_workers: usize,
) -> Result<Option<T>, RunFailure> {
    let mut exits = Vec::new();
    let mut value_of_run = None;
    let mut grace: Option<Deadline> = None;
    while exits.len() < num_workers {
        let remaining = grace.map_or(POLL_INTERVAL, |deadline| deadline.remaining(world.clock()));
        match queue.recv(remaining) {
            Ok(ThreadResult { rank, result }) => {
                let (exit, lines) = match result {
                    Ok(Ok(value)) => {
                        value_of_run = value_of_run.or(value);
                        (0, Vec::new())
                    }
                    Ok(Err(failure)) => {
                        let lines = failure.text.lines().map(str::to_owned).collect();
                        (i32::from(failure.exit_code), lines)
                    }
                    Err(message) => (101, vec![format!("a bug: {message}")]),
                };
                if exit != 0 {
                    grace.get_or_insert_with(|| Deadline::after(world.clock(), GRACE));
                }
                let (exit, killed_by_launcher, is_replaced) = (Exit::Code(exit), false, false);
                exits.push(WorkerExit { rank, exit, killed_by_launcher, is_replaced, lines });
            }
            Err(RecvError::TimedOut) if grace.is_none() => {}
            Err(RecvError::TimedOut | RecvError::Closed) => break,
        }
    }
    find_root_cause(&exits).map_or(Ok(value_of_run), Err)
}

/// Failure before any thread started, attributed to rank 0.
fn start_failure(error: &ClusterError) -> RunFailure {
    let (exit_code, text) = (error.blame().exit_code(), error.to_string());
    let (lost, others) = (Vec::new(), Vec::new());
    RunFailure { rank: 0, exit_code, lost, text, others, run_dir: None }
}

/// Message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_comm::Reduction;
    use lockstep_config::{Blame, Sources, resolve};
    use lockstep_platform::real;

    const ARENA_BYTES: usize = 1 << 20;

    fn recipe(sets: &[&str]) -> Recipe {
        let own = ["run.workers=3", "run.isolation=threads", "run.deadline=20"];
        let sets = own.iter().chain(sets).map(|set| (*set).to_owned()).collect();
        resolve(&Sources { sets, ..Sources::default() }).expect("a sound recipe")
    }

    #[test]
    fn threads_communicate_over_memory_and_over_tcp() {
        for (transport, name) in [("auto", "threads"), ("threads", "threads"), ("tcp", "tcp")] {
            let recipe = recipe(&[&format!("run.transport={transport}")]);
            let sum = run(&recipe, &real(), ARENA_BYTES, |_, comm| {
                let mut numbers = [comm.rank().0 as u32 + 1];
                comm.all_reduce(&mut numbers, Reduction::Sum).expect("all are there");
                Ok((comm.rank().0 == 0).then_some((numbers[0], comm.transport())))
            });
            assert_eq!(sum.expect("all succeed"), Some((6, name)));
        }
    }

    #[test]
    fn the_first_that_does_not_blame_a_peer_is_the_cause() {
        let failure = run::<()>(&recipe(&[]), &real(), ARENA_BYTES, |_, comm| {
            let (blame, text) = match comm.rank().0 {
                1 => (Blame::Diverged, "the loss became NaN"),
                _ => (Blame::Peer(1), "rank 1 left"),
            };
            Err(WorkerFailure { exit_code: blame.exit_code(), text: text.to_owned() })
        });
        let failure = failure.expect_err("all fail");
        assert_eq!((failure.rank, failure.exit_code), (1, 5));
        assert_eq!(failure.text, "rank 1: the loss became NaN");
        assert_eq!(failure.others.len(), 2);
    }

    #[test]
    fn a_panic_of_a_worker_ends_the_run_as_a_bug() {
        let failure = run::<()>(&recipe(&[]), &real(), ARENA_BYTES, |_, comm| {
            if comm.rank().0 == 2 {
                std::panic::resume_unwind(Box::new("an invariant is broken"));
            }
            Ok(None)
        });
        let failure = failure.expect_err("one panics");
        assert_eq!((failure.rank, failure.exit_code), (2, 101));
        assert!(failure.text.contains("an invariant is broken"), "{failure}");
    }
}

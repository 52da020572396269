//! Workers that are threads of this process.
//!
//! They run the code that processes run; only their ends of the group differ. A thread cannot be
//! ended from outside, so a run in which one has failed ends with the process: the others get as
//! long as processes do, and then the caller is told and leaves them behind.

use crate::ClusterError;
use crate::join::{Member, Seat, seats};
use crate::verdict::{Ended, RunFailure, verdict};
use lockstep_comm::Comm;
use lockstep_config::{Blame, Recipe};
use lockstep_platform::{Deadline, Exit, Queue, RecvError, World};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// How long the others have after the first failure.
const GRACE: Duration = Duration::from_secs(3);

/// Between two looks while all is well; nothing happens at one.
const LOOK: Duration = Duration::from_mins(1);

/// Why a worker ended its life early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Who must act.
    pub blame: Blame,
    /// What happened.
    pub text: String,
}

impl From<ClusterError> for Fault {
    fn from(error: ClusterError) -> Self {
        Self { blame: error.blame(), text: error.to_string() }
    }
}

/// A thread's last message.
struct Last<T> {
    rank: usize,
    result: Result<Result<Option<T>, Fault>, String>,
}

/// Runs `life` once for each worker of the recipe, each on a thread of its own, and returns what
/// one of them brought back.
pub fn run<T: Send + 'static>(
    recipe: &Recipe,
    world: &World,
    arena_bytes: usize,
    life: impl Fn(&Recipe, &Comm) -> Result<Option<T>, Fault> + Send + Sync + 'static,
) -> Result<Option<T>, RunFailure> {
    let seats = seats(recipe, world, arena_bytes).map_err(|error| refused(&error))?;
    let num_workers = seats.len();
    let (life, queue) = (Arc::new(life), Arc::new(Queue::new(world, num_workers)));
    for (rank, seat) in seats.into_iter().enumerate() {
        let (recipe, own_world) = (recipe.clone(), Arc::clone(world));
        let (life, queue) = (Arc::clone(&life), Arc::clone(&queue));
        let body = move || {
            let whole = || live(seat, &recipe, &own_world, arena_bytes, &*life);
            let result = catch_unwind(AssertUnwindSafe(whole)).map_err(|panic| said(&*panic));
            // The queue has room for all; closed, it has nobody to tell.
            let _ = queue.send(Last { rank, result }, Duration::ZERO);
        };
        let thread = world.threads().spawn(&format!("rank-{rank}"), Box::new(body));
        thread.map_err(|error| refused(&error.into()))?;
    }
    collect(world, &queue, num_workers)
}

fn live<T>(
    seat: Seat,
    recipe: &Recipe,
    world: &World,
    arena_bytes: usize,
    life: &impl Fn(&Recipe, &Comm) -> Result<Option<T>, Fault>,
) -> Result<Option<T>, Fault> {
    let Member { comm, .. } = seat.take(recipe, world, arena_bytes)?;
    life(recipe, &comm)
}

/// Waits for all, or after a failure for as many as come in time.
fn collect<T>(
    world: &World,
    queue: &Queue<Last<T>>,
    num_workers: usize,
) -> Result<Option<T>, RunFailure> {
    let mut ended = Vec::new();
    let mut brought = None;
    let mut patience: Option<Deadline> = None;
    while ended.len() < num_workers {
        let remaining = patience.map_or(LOOK, |grace| grace.remaining(world.clock()));
        match queue.recv(remaining) {
            Ok(Last { rank, result }) => {
                let (exit, lines) = match result {
                    Ok(Ok(value)) => {
                        brought = brought.or(value);
                        (0, Vec::new())
                    }
                    Ok(Err(fault)) => {
                        let lines = fault.text.lines().map(str::to_owned).collect();
                        (i32::from(fault.blame.exit_code()), lines)
                    }
                    Err(message) => (101, vec![format!("a bug: {message}")]),
                };
                if exit != 0 {
                    patience.get_or_insert_with(|| Deadline::after(world.clock(), GRACE));
                }
                let (exit, by_us, is_replaced) = (Exit::Code(exit), false, false);
                ended.push(Ended { rank, exit, by_us, is_replaced, lines });
            }
            Err(RecvError::TimedOut) if patience.is_none() => {}
            Err(RecvError::TimedOut | RecvError::Closed) => break,
        }
    }
    verdict(&ended).map_or(Ok(brought), Err)
}

/// A run that could not begin is nobody's but rank 0's, which would have had to begin it.
fn refused(error: &ClusterError) -> RunFailure {
    let (exit_code, text) = (error.blame().exit_code(), error.to_string());
    RunFailure { rank: 0, exit_code, lost: Vec::new(), text, others: Vec::new() }
}

/// What a panic said; it may carry any value, but nearly always a text.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_comm::Reduction;
    use lockstep_config::{Sources, resolve};
    use lockstep_platform::real;

    const ARENA_BYTES: usize = 1 << 20;

    fn recipe(sets: &[&str]) -> Recipe {
        let own = ["run.workers=3", "run.isolation=threads", "run.deadline=20"];
        let sets = own.iter().chain(sets).map(|set| (*set).to_owned()).collect();
        resolve(&Sources { sets, ..Sources::default() }).expect("a sound recipe")
    }

    #[test]
    fn threads_meet_over_memory_and_over_tcp() {
        for (transport, name) in [("auto", "threads"), ("threads", "threads"), ("tcp", "tcp")] {
            let recipe = recipe(&[&format!("run.transport={transport}")]);
            let sum = run(&recipe, &real(), ARENA_BYTES, |_, comm| {
                let mut numbers = [comm.rank().0 as u32 + 1];
                comm.all_reduce(&mut numbers, Reduction::Sum).expect("all are there");
                Ok((comm.rank().0 == 0).then_some((numbers[0], comm.transport())))
            });
            assert_eq!(sum.expect("nobody fails"), Some((6, name)));
        }
    }

    #[test]
    fn the_first_that_does_not_blame_a_peer_is_the_cause() {
        let failure = run::<()>(&recipe(&[]), &real(), ARENA_BYTES, |_, comm| {
            let (blame, text) = match comm.rank().0 {
                1 => (Blame::Diverged, "the loss became NaN"),
                _ => (Blame::Peer(1), "rank 1 left"),
            };
            Err(Fault { blame, text: text.to_owned() })
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

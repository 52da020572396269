//! Role of a process in a run: single worker, host of worker threads, launcher or worker.
//!
//! The recipe defines the number of workers and their isolation; the environment tells whether a
//! launcher started this process as a worker. A worker never starts others, so any program that
//! sets the four variables and the secret can be the launcher.

use crate::ClusterError;
pub use crate::rendezvous::LAUNCHER;
use crate::rendezvous::RankEnv;
use lockstep_config::{Isolation, Recipe, TransportChoice};
use lockstep_mpi::Launched;
use lockstep_platform::World;

/// Environment variable that is set if the launcher writes to a terminal.
pub const TERMINAL: &str = "LOCKSTEP_TERMINAL";

/// Environment variable with the number of restarts of the run.
pub const RESTARTS: &str = "LOCKSTEP_RESTARTS";

/// Environment variable with the run directory that all attempts share.
pub const RUN_DIR: &str = "LOCKSTEP_RUN_DIR";

/// Environment variable that is set if the launcher forwards SIGTERM, on which workers save.
pub const SAVES: &str = "LOCKSTEP_SAVES";

/// Role of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Only worker of the run.
    SingleWorker,
    /// ThreadHost of all workers, which are threads.
    ThreadHost,
    /// Starts the workers as processes.
    Launcher,
    /// Worker with its rank.
    Worker(RankEnv),
    /// Worker that an MPI launcher started.
    MpiWorker(Launched),
}

impl Role {
    /// Rank and world size of a worker that a launcher started.
    pub fn place(&self) -> Option<(usize, usize)> {
        match self {
            Self::Worker(env) => Some((env.rank.0, env.num_ranks)),
            Self::MpiWorker(launched) => Some((launched.rank, launched.num_ranks)),
            Self::SingleWorker | Self::ThreadHost | Self::Launcher => None,
        }
    }
}

/// World size of the launcher that started this process as a rank; `None` without one. The workers
/// of our own launcher have the recipe of its command line.
pub fn launched_world_size(world: &World) -> Option<usize> {
    let variable = |name| world.host().env(name);
    if has_launcher(world) {
        return None;
    }
    if variable("RANK").is_some() {
        return variable("WORLD_SIZE")?.trim().parse().ok().filter(|size| *size > 0);
    }
    mpi_launched(world).map(|launched| launched.num_ranks)
}

/// An MPI launcher that started several processes. One that started a single process, as batch
/// systems do for a script, leaves the workers to us.
fn mpi_launched(world: &World) -> Option<Launched> {
    lockstep_mpi::launched(world).filter(|launched| launched.num_ranks > 1)
}

/// Determines the role of this process.
pub fn role(recipe: &Recipe, world: &World) -> Result<Role, ClusterError> {
    let is_started = ["RANK", "WORLD_SIZE"].iter().any(|name| world.host().env(name).is_some());
    let role = if is_started {
        let env =
            RankEnv::from_env(world).map_err(|source| ClusterError::Environment { source })?;
        started_role(recipe, env.num_ranks, Role::Worker(env))?
    } else if let Some(launched) = mpi_launched(world) {
        started_role(recipe, launched.num_ranks, Role::MpiWorker(launched))?
    } else {
        own_role(recipe)
    };
    let needs_mpi = recipe.run.transport == TransportChoice::Mpi;
    match role {
        Role::Launcher | Role::Worker(_) if needs_mpi => {
            Err(ClusterError::NoMpiLauncher { num_ranks: recipe.num_ranks() })
        }
        role => Ok(role),
    }
}

/// Role of a process that no launcher started.
fn own_role(recipe: &Recipe) -> Role {
    match (recipe.num_ranks(), recipe.run.isolation) {
        // A run with restarts needs a launcher.
        (1, _) if recipe.run.restarts == 0 && recipe.run.elastic.is_none() => Role::SingleWorker,
        (_, Isolation::Threads) => Role::ThreadHost,
        (_, Isolation::Processes) => Role::Launcher,
    }
}

/// Role of a process that a launcher started.
fn started_role(recipe: &Recipe, world_size: usize, worker: Role) -> Result<Role, ClusterError> {
    let sizes = recipe.rank_counts();
    if world_size == 1 && recipe.run.isolation == Isolation::Threads {
        return Ok(own_role(recipe));
    }
    if recipe.run.isolation == Isolation::Threads {
        return Err(ClusterError::ThreadsAmongProcesses { world_size });
    }
    if !sizes.contains(&world_size) {
        let servers = recipe.num_server_ranks();
        return Err(ClusterError::WorldSize { world_size, sizes, servers });
    }
    Ok(if world_size == 1 { Role::SingleWorker } else { worker })
}

/// Ties this process to the `lockstep` launcher that started it, if any: it ends with the launcher.
/// A worker calls this first.
pub fn follow_launcher(world: &World) -> Result<(), ClusterError> {
    let launcher = world.host().env(LAUNCHER).and_then(|number| number.parse().ok());
    match launcher {
        Some(number) if !world.processes().end_with(number) => Err(ClusterError::Orphan),
        _ => Ok(()),
    }
}

/// Whether a `lockstep` launcher started this process and prefixes its output with the rank.
pub fn has_launcher(world: &World) -> bool {
    world.host().env(LAUNCHER).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::{Secret, Ticket};
    use lockstep_config::{Sources, resolve};
    use lockstep_mesh::Rank;

    fn recipe(sets: &[&str]) -> Recipe {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        resolve(&Sources { sets, ..Sources::default() }).expect("a sound recipe")
    }

    fn started_role(recipe: &Recipe, env: RankEnv) -> Result<Role, ClusterError> {
        super::started_role(recipe, env.num_ranks, Role::Worker(env))
    }

    fn rank_env(rank: usize, num_ranks: usize) -> RankEnv {
        let secret = Secret::parse(&"07".repeat(32)).expect("64 digits");
        let ticket = Ticket { secret, run: String::new() };
        RankEnv::new(Rank(rank), num_ranks, "127.0.0.1:1", &ticket)
    }

    #[test]
    fn servers_are_started_too() {
        let served = recipe(&["sync.mode=parameter-server", "run.workers=1", "sync.servers=2"]);
        assert_eq!(own_role(&served), Role::Launcher);
        assert_eq!(started_role(&served, rank_env(2, 3)), Ok(Role::Worker(rank_env(2, 3))));
        let error = started_role(&served, rank_env(0, 1)).expect_err("servers are missing");
        assert_eq!(
            error.to_string(),
            "WORLD_SIZE = 1 is not run.workers = 1 and 2 servers of sync.servers together; start 3"
        );
    }

    #[test]
    fn the_recipe_decides_for_a_process_without_launcher() {
        assert_eq!(own_role(&recipe(&["run.workers=1"])), Role::SingleWorker);
        assert_eq!(own_role(&recipe(&["run.workers=2"])), Role::Launcher);
        let restarted = recipe(&["run.workers=1", "run.restarts=3"]);
        assert_eq!(own_role(&restarted), Role::Launcher);
        let threads = recipe(&["run.workers=2", "run.isolation=threads"]);
        assert_eq!(own_role(&threads), Role::ThreadHost);
        assert_eq!(
            own_role(&recipe(&["run.workers=1", "run.isolation=threads"])),
            Role::SingleWorker
        );
    }

    #[test]
    fn a_started_process_is_a_worker_if_the_world_size_matches() {
        let four = recipe(&["run.workers=4"]);
        assert_eq!(started_role(&four, rank_env(3, 4)), Ok(Role::Worker(rank_env(3, 4))));
        let error = started_role(&four, rank_env(0, 2)).expect_err("two are not four");
        assert_eq!(
            error.to_string(),
            "WORLD_SIZE = 2 is not run.workers = 4; start 4 workers or set run.workers = 2"
        );
        assert_eq!(
            started_role(&recipe(&["run.workers=1"]), rank_env(0, 1)),
            Ok(Role::SingleWorker)
        );
    }

    #[test]
    fn an_attempt_of_an_elastic_run_may_have_any_of_its_sizes() {
        let range = recipe(&["run.workers={min = 1, max = 4}"]);
        assert_eq!(own_role(&range), Role::Launcher);
        assert_eq!(started_role(&range, rank_env(0, 1)), Ok(Role::SingleWorker));
        assert_eq!(started_role(&range, rank_env(2, 3)), Ok(Role::Worker(rank_env(2, 3))));
        let stages = recipe(&["run.workers={min = 2, max = 6}", "parallel.pipeline=2"]);
        let error = started_role(&stages, rank_env(0, 3))
            .expect_err("three workers are not replicas of two");
        assert_eq!(
            error.to_string(),
            "WORLD_SIZE = 3 is not one of the sizes 2, 4, 6 of run.workers; start one of these \
             numbers of workers"
        );
    }

    #[test]
    fn threads_are_refused_in_one_of_several_processes() {
        let threads = recipe(&["run.workers=2", "run.isolation=threads"]);
        let error =
            started_role(&threads, rank_env(0, 2)).expect_err("two processes of two threads");
        assert_eq!(error, ClusterError::ThreadsAmongProcesses { world_size: 2 });
        assert_eq!(started_role(&threads, rank_env(0, 1)), Ok(Role::ThreadHost));
    }
}

//! What a process is in a run: alone, host of threads, launcher or worker.
//!
//! The recipe says how many workers there are and what a worker is; the environment says whether
//! somebody has started this process as one of them. A process that is a worker never starts
//! others, so a launcher can be any program that sets the four variables and the run's secret.

use crate::ClusterError;
use crate::rendezvous::Place;
use lockstep_config::{Isolation, Recipe};
use lockstep_platform::World;

/// The variable by which a launcher of ours tells its number to the workers.
pub const LAUNCHER: &str = "LOCKSTEP_LAUNCHER";

/// The variable by which a launcher of ours tells rank 0 that a person watches.
pub const TERMINAL: &str = "LOCKSTEP_TERMINAL";

/// The variable by which a launcher of ours tells how often the run has begun again.
pub const RESTARTS: &str = "LOCKSTEP_RESTARTS";

/// The variable by which a launcher of ours tells the folder that all lives of the run share.
pub const RUN_DIR: &str = "LOCKSTEP_RUN_DIR";

/// What this process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// The only worker.
    Alone,
    /// All workers are threads in here.
    Host,
    /// It starts the workers.
    Launcher,
    /// It is a worker, with this place among the others.
    Worker(Place),
}

/// Finds out what this process is.
pub fn role(recipe: &Recipe, world: &World) -> Result<Role, ClusterError> {
    let is_started = ["RANK", "WORLD_SIZE"].iter().any(|name| world.host().env(name).is_some());
    if !is_started {
        return Ok(own_role(recipe));
    }
    let place = Place::from_env(world).map_err(|source| ClusterError::Place { source })?;
    of_place(recipe, place)
}

/// The role of a process that nobody has started as a worker.
fn own_role(recipe: &Recipe) -> Role {
    match (recipe.num_ranks(), recipe.run.isolation) {
        // Somebody must be left to start it again.
        (1, _) if recipe.run.restarts == 0 && recipe.run.elastic.is_none() => Role::Alone,
        (_, Isolation::Threads) => Role::Host,
        (_, Isolation::Processes) => Role::Launcher,
    }
}

/// The role of a process that was started as a worker.
fn of_place(recipe: &Recipe, place: Place) -> Result<Role, ClusterError> {
    let (world_size, sizes) = (place.num_ranks, recipe.rank_counts());
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
    Ok(if world_size == 1 { Role::Alone } else { Role::Worker(place) })
}

/// Ties this process to the launcher that started it, if it was one of ours: it shall not outlive
/// it. A worker does this before anything else.
pub fn follow_launcher(world: &World) -> Result<(), ClusterError> {
    let launcher = world.host().env(LAUNCHER).and_then(|number| number.parse().ok());
    match launcher {
        Some(number) if !world.processes().end_with(number) => Err(ClusterError::Orphan),
        _ => Ok(()),
    }
}

/// Whether a launcher of ours started this process, and so puts the rank before its words.
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

    fn place(rank: usize, num_ranks: usize) -> Place {
        let secret = Secret::parse(&"07".repeat(32)).expect("64 digits");
        let ticket = Ticket { secret, run: String::new() };
        Place::new(Rank(rank), num_ranks, "127.0.0.1:1", &ticket)
    }

    #[test]
    fn servers_are_started_too() {
        let served = recipe(&["sync.mode=parameter-server", "run.workers=1", "sync.servers=2"]);
        assert_eq!(own_role(&served), Role::Launcher);
        assert_eq!(of_place(&served, place(2, 3)), Ok(Role::Worker(place(2, 3))));
        let error = of_place(&served, place(0, 1)).expect_err("servers are missing");
        assert_eq!(
            error.to_string(),
            "WORLD_SIZE = 1 is not run.workers = 1 and 2 servers of sync.servers together; start 3"
        );
    }

    #[test]
    fn the_recipe_decides_where_nobody_started_this_process_as_a_worker() {
        assert_eq!(own_role(&recipe(&["run.workers=1"])), Role::Alone);
        assert_eq!(own_role(&recipe(&["run.workers=2"])), Role::Launcher);
        let restarted = recipe(&["run.workers=1", "run.restarts=3"]);
        assert_eq!(own_role(&restarted), Role::Launcher);
        let threads = recipe(&["run.workers=2", "run.isolation=threads"]);
        assert_eq!(own_role(&threads), Role::Host);
        assert_eq!(own_role(&recipe(&["run.workers=1", "run.isolation=threads"])), Role::Alone);
    }

    #[test]
    fn a_started_process_is_a_worker_if_the_recipe_agrees() {
        let four = recipe(&["run.workers=4"]);
        assert_eq!(of_place(&four, place(3, 4)), Ok(Role::Worker(place(3, 4))));
        let error = of_place(&four, place(0, 2)).expect_err("two are not four");
        assert_eq!(
            error.to_string(),
            "WORLD_SIZE = 2 is not run.workers = 4; start 4 workers or set run.workers = 2"
        );
        assert_eq!(of_place(&recipe(&["run.workers=1"]), place(0, 1)), Ok(Role::Alone));
    }

    #[test]
    fn a_life_of_an_elastic_run_may_have_any_of_its_sizes() {
        let range = recipe(&["run.workers={min = 1, max = 4}"]);
        assert_eq!(own_role(&range), Role::Launcher);
        assert_eq!(of_place(&range, place(0, 1)), Ok(Role::Alone));
        assert_eq!(of_place(&range, place(2, 3)), Ok(Role::Worker(place(2, 3))));
        let stages = recipe(&["run.workers={min = 2, max = 6}", "parallel.pipeline=2"]);
        let error = of_place(&stages, place(0, 3)).expect_err("three are no copies of two");
        assert_eq!(
            error.to_string(),
            "WORLD_SIZE = 3 is not one of the sizes 2, 4, 6 of run.workers; start so many workers"
        );
    }

    #[test]
    fn threads_are_refused_in_one_of_several_processes() {
        let threads = recipe(&["run.workers=2", "run.isolation=threads"]);
        let error = of_place(&threads, place(0, 2)).expect_err("that would be four");
        assert_eq!(error, ClusterError::ThreadsAmongProcesses { world_size: 2 });
        assert_eq!(of_place(&threads, place(0, 1)), Ok(Role::Host));
    }
}

//! A command that several workers carry out together: as one process, as threads, or as processes
//! that this one starts.
//!
//! Every worker process runs the same command with the same arguments and finds its place in the
//! environment, so this is the only place that tells them apart: the one that was typed checks and
//! launches, the workers live.

use crate::failure::Failure;
use lockstep_cluster::role::{TERMINAL, follow_launcher, has_launcher};
use lockstep_cluster::threads::{self, Fault};
use lockstep_cluster::{Launch, Member, Role, join, launch, role};
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_platform::World;
use lockstep_telemetry::Surface;
use lockstep_trainer::TrainError;
use std::io::{IsTerminal, Write};

/// Threads for each core beyond which more of them are a mistake.
const MAX_THREADS_PER_CORE: usize = 4;

/// Variables that tell started workers what was found out before.
pub(crate) type Told = Vec<(&'static str, String)>;

/// Carries out `life` as every worker of the recipe, after `check` found nothing to refuse; what it
/// returns, workers that are started find in their environment. Returns what rank 0 brought back if
/// rank 0 lives in this process.
pub(crate) fn run<T: Send + 'static>(
    recipe: &Recipe,
    world: &World,
    quiet: bool,
    check: impl FnOnce() -> Result<Told, Failure>,
    life: impl Fn(&Recipe, &Comm) -> Result<Option<T>, TrainError> + Send + Sync + 'static,
) -> Result<Option<T>, Failure> {
    world.processes().accept_interrupts();
    let arena_bytes = lockstep_trainer::saved::arena_bytes(recipe);
    let role = role(recipe, world)?;
    let is_started = matches!(role, Role::Worker(_));
    let told = if is_started { Told::new() } else { check()? };
    if !is_started && !quiet {
        warn_of_threads(recipe, world);
    }
    match role {
        Role::Alone => {
            let member = join::alone(recipe, world, arena_bytes)?;
            Ok(life(recipe, &member.comm)?)
        }
        Role::Host => {
            let life = move |recipe: &Recipe, comm: &Comm| {
                let fault =
                    |error: TrainError| Fault { blame: error.blame(), text: error.to_string() };
                life(recipe, comm).map_err(fault)
            };
            let outcome = threads::run(recipe, world, arena_bytes, life);
            outcome.map_err(|failure| {
                for (rank, line) in &failure.others {
                    tell(&format!("[{rank}] error: {line}\n"));
                }
                failure.into()
            })
        }
        Role::Launcher => {
            let arguments = std::env::args_os().skip(1).collect();
            let is_terminal = std::io::stderr().is_terminal();
            let num_workers = recipe.run.workers;
            let command = Launch { arguments, num_workers, told, is_terminal };
            launch(world, &command, Box::new(std::io::stderr()))??;
            Ok(None)
        }
        Role::Worker(place) => {
            let outcome = follow_launcher(world)
                .and_then(|()| join::worker(recipe, world, &place, arena_bytes, warn))
                .map_err(Failure::from)
                .and_then(|member| {
                    Ok(life(&on_this_machine(recipe, world, &member), &member.comm)?)
                });
            // A launcher of ours puts the rank before our words; others may not.
            let named = has_launcher(world);
            outcome.map_err(|failure| if named { failure } else { failure.of_rank(place.rank.0) })
        }
    }
}

/// The recipe with the threads of one worker here, where not all workers share this machine.
fn on_this_machine(recipe: &Recipe, world: &World, member: &Member) -> Recipe {
    let mut recipe = recipe.clone();
    if member.num_local != recipe.run.workers {
        let cores = world.threads().available();
        recipe.run.threads = recipe.run.num_threads(cores, member.num_local);
    }
    recipe
}

/// What progress is drawn on: a terminal, or one that a launcher sees for us.
pub(crate) fn surface(world: &World) -> Surface {
    let is_terminal = std::io::stderr().is_terminal() || world.host().env(TERMINAL).is_some();
    if is_terminal { Surface::Terminal } else { Surface::Plain }
}

fn warn_of_threads(recipe: &Recipe, world: &World) {
    let (cores, workers) = (world.threads().available(), recipe.run.workers);
    let threads = recipe.run.threads;
    if threads * workers > MAX_THREADS_PER_CORE * cores && threads > 1 {
        let best = (cores / workers).max(1);
        tell(&format!(
            "warning: run.threads = {threads} for each of run.workers = {workers} is too much for \
             {cores} cores; try {best}\n"
        ));
    }
}

/// Something that the run goes on in spite of.
pub(crate) fn warn(line: &str) {
    tell(&format!("warning: {line}\n"));
}

/// A line for people.
pub(crate) fn tell(line: &str) {
    // Nobody is left to tell when standard error is closed.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

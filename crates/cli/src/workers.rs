//! A command that several workers carry out together: as one process, as threads, or as processes
//! that this one starts.
//!
//! Every worker process runs the same command with the same arguments and finds its place in the
//! environment, so this is the only place that tells them apart: the one that was typed checks and
//! launches, the workers live.

use crate::failure::Failure;
use lockstep_cluster::role::{RESTARTS, RUN_DIR, TERMINAL, follow_launcher, has_launcher};
use lockstep_cluster::threads::{self, Fault};
use lockstep_cluster::{Guests, Launch, Member, Role, Terms, join, launch, role};
use lockstep_comm::Comm;
use lockstep_comm::rendezvous::Ticket;
use lockstep_config::{Blame, Recipe};
use lockstep_platform::World;
use lockstep_telemetry::Surface;
use lockstep_trainer::{Life, TrainError};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

/// The variable by which a command tells its number to the runs that it starts, so that they end
/// with it.
pub(crate) const OWNER: &str = "LOCKSTEP_OWNER";

/// Threads for each core beyond which more of them are a mistake.
const MAX_THREADS_PER_CORE: usize = 4;

/// Variables that tell started workers what was found out before.
pub(crate) type Told = Vec<(&'static str, String)>;

/// What a launcher needs to know besides the recipe.
#[derive(Default)]
pub(crate) struct Care {
    /// How often the run may begin again.
    pub(crate) restarts: u64,
    /// The folder that all its lives share.
    pub(crate) run_dir: Option<PathBuf>,
    /// Whether workers save what they have when they are asked to end.
    pub(crate) saves_on_request: bool,
    /// Where workers of other hosts may come to.
    pub(crate) listen: Option<String>,
    /// What workers that are started find in their environment.
    pub(crate) told: Told,
}

/// Carries out `life` as every worker of the recipe, after `check` found nothing to refuse. Returns
/// what rank 0 brought back if rank 0 lives in this process.
pub(crate) fn run<T: Send + 'static>(
    recipe: &Recipe,
    world: &World,
    quiet: bool,
    check: impl FnOnce() -> Result<Care, Failure>,
    life: impl Fn(&Recipe, &Comm) -> Result<Option<T>, TrainError> + Send + Sync + 'static,
) -> Result<Option<T>, Failure> {
    world.processes().accept_interrupts();
    let role = role(recipe, world)?;
    // A worker of an elastic run knows it at the size of this life.
    let sized = match &role {
        Role::Worker(place) => recipe.sized(place.num_ranks - recipe.num_server_ranks()),
        Role::Alone => recipe.sized(1),
        Role::Host | Role::Launcher => recipe.clone(),
    };
    let recipe = &sized;
    let arena_bytes = lockstep_trainer::saved::arena_bytes(recipe);
    follow_launcher(world)?;
    follow_owner(world)?;
    if has_launcher(world) && recipe.checkpoint.is_on() {
        // A request to end that comes before the first step is heard after it.
        world.processes().defer_termination(true);
    }
    let mut care = Care::default();
    if !has_launcher(world) && !matches!(role, Role::Worker(_)) {
        care = check()?;
        if !quiet {
            warn_of_threads(recipe, world);
        }
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
        Role::Launcher => start_all(recipe, world, care).map(|()| None),
        Role::Worker(place) => {
            let outcome = join::worker(recipe, world, &place, arena_bytes, warn)
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

/// Ties a run to the command that started it. Its workers are tied to the run.
fn follow_owner(world: &World) -> Result<(), Failure> {
    let owner = world.host().env(OWNER).filter(|_| !has_launcher(world));
    match owner.and_then(|number| number.parse().ok()) {
        Some(number) if !world.processes().end_with(number) => {
            Err(Failure::new(Blame::Peer(0), "the command that started this run has ended"))
        }
        _ => Ok(()),
    }
}

/// Starts the workers as processes like this one, and waits for them.
fn start_all(recipe: &Recipe, world: &World, care: Care) -> Result<(), Failure> {
    let guests = care.listen.as_deref().map(|addr| guests(recipe, world, addr)).transpose()?;
    let command = Launch {
        arguments: std::env::args_os().skip(1).collect(),
        terms: terms(recipe, &care),
        told: care.told,
        is_terminal: std::io::stderr().is_terminal(),
        stand_ins: recipe.stand_ins(),
        run_dir: care.run_dir,
        passes_requests_on: care.saves_on_request,
    };
    launch(world, &command, guests, Box::new(std::io::stderr()))??;
    Ok(())
}

/// Refuses an address that workers of other hosts could not come to.
pub(crate) fn check_listen(recipe: &Recipe, addr: &str) -> Result<(), Failure> {
    let refuse =
        |rule: &str, fix: &str| Err(Failure::user(format!("--listen {addr} {rule}; {fix}")));
    if recipe.worker_sizes().len() < 2 {
        let fix = "try --set 'run.workers={min=1,max=4}'";
        return refuse("needs a range of workers for more to come", fix);
    }
    if ["0.0.0.0:", "[::]:", ":"].iter().any(|any| addr.starts_with(any)) {
        let fix = "name the one by which they reach this host";
        return refuse("is no address that other hosts can call", fix);
    }
    Ok(())
}

/// Listens for workers of other hosts; this one starts the fewest that the run can have.
fn guests(recipe: &Recipe, world: &World, addr: &str) -> Result<Guests, Failure> {
    let ticket = Ticket::from_env(world).map_err(Failure::user)?;
    let sizes = recipe.worker_sizes();
    let (fewest, most) = (sizes[0], sizes[sizes.len() - 1]);
    Ok(Guests::open(world, addr, &ticket, fewest, most, warn)?)
}

/// Offers a worker to the run that listens at an address, until it is over.
pub(crate) fn serve(world: &World, addr: &str, quiet: bool) -> Result<(), Failure> {
    world.processes().accept_interrupts();
    let ticket = Ticket::from_env(world).map_err(Failure::user)?;
    if !quiet {
        tell(&format!("offering a worker to the run at {addr}\n"));
    }
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match lockstep_cluster::guests::serve(world, addr, &ticket, &arguments)? {
        0 => Ok(()),
        code => Err(Failure::with_code(code, format!("the run at {addr} failed and says why"))),
    }
}

/// Whether somebody has started this process as a worker.
pub(crate) fn is_worker(world: &World) -> bool {
    world.host().env("RANK").is_some()
}

/// How many workers there may be, and what may be done about those that are lost.
fn terms(recipe: &Recipe, care: &Care) -> Terms {
    // Without a folder that lives share nothing could go on.
    if care.run_dir.is_none() {
        return Terms::fixed(recipe.num_ranks(), care.restarts);
    }
    let rejoin = Duration::from_secs_f64(recipe.run.rejoin.0);
    Terms { sizes: recipe.rank_sizes(), restarts: care.restarts, rejoin }
}

/// Which life of a run this process belongs to, as its launcher says.
pub(crate) fn life(world: &World) -> Life {
    let variable = |name| world.host().env(name).filter(|_| has_launcher(world));
    let restarts = variable(RESTARTS).and_then(|number| number.parse().ok()).unwrap_or(0);
    Life { restarts, dir: variable(RUN_DIR).map(PathBuf::from) }
}

/// The recipe with the threads of one worker here, where not all workers share this machine.
fn on_this_machine(recipe: &Recipe, world: &World, member: &Member) -> Recipe {
    let mut recipe = recipe.clone();
    if member.num_local != recipe.num_ranks() {
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

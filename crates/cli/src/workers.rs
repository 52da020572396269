//! Runs a command on all workers: in one process, as threads, or as processes of a launcher.
//!
//! Every worker process runs the same command with the same arguments and reads its rank from the
//! environment. This module alone distinguishes the roles: the launcher checks and starts, the
//! workers train.

use crate::console;
use crate::failure::Failure;
use crate::resume_command::{quoted, resume_command};
use lockstep_cluster::launch::INTERRUPT_REPEAT;
use lockstep_cluster::relay::{LAST_STEP, RUN_FOLDER};
use lockstep_cluster::rendezvous::Ticket;
use lockstep_cluster::role::{
    RESTARTS, RUN_DIR, SAVES, follow_launcher, has_launcher, launched_world_size,
};
use lockstep_cluster::threads::{self, WorkerFailure};
use lockstep_cluster::{
    ClusterError, JoinedWorker, Launch, RemoteWorkers, RestartPolicy, Role, join, launch, mpi, role,
};
use lockstep_comm::Comm;
use lockstep_config::{Blame, Recipe};
use lockstep_platform::{Interrupts, World};
use lockstep_trainer::{Attempt, Options, SaveSignals, TrainError, has_checkpoints};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Environment variable with the process id of the command that owns a run; the run ends with it.
pub(crate) const OWNER: &str = "LOCKSTEP_OWNER";

/// Threads per core above which the command warns.
const MAX_THREADS_PER_CORE: usize = 4;

/// Time within which a launcher other than ours forwards SIGINT to its workers.
const FORWARDED_WITHIN: Duration = Duration::from_secs(1);

/// Line that follows Ctrl-C in a run without checkpoints.
const UNSAVED: &str = "\ninterrupted: nothing is saved, since checkpoint.every and \
                       checkpoint.interval are 0\n";

/// Environment variables for the workers of a launcher.
pub(crate) type WorkerEnv = Vec<(&'static str, String)>;

/// Options of a launcher besides the recipe.
#[derive(Default)]
pub(crate) struct LaunchOptions {
    /// Largest number of restarts.
    pub(crate) restarts: u64,
    /// Run directory that all attempts share.
    pub(crate) run_dir: Option<PathBuf>,
    /// Whether workers write a checkpoint on SIGTERM and Ctrl-C.
    pub(crate) saves_on_request: bool,
    /// Line that follows Ctrl-C in a run that saves nothing then.
    pub(crate) unsaved_line: Option<&'static str>,
    /// Address for remote workers.
    pub(crate) listen: Option<String>,
    /// Environment of the started workers.
    pub(crate) env: WorkerEnv,
}

/// Run folder, known as soon as rank 0 has created it; clones share it.
#[derive(Clone, Default)]
pub(crate) struct RunDir(Arc<OnceLock<PathBuf>>);

impl RunDir {
    fn get(&self) -> Option<&Path> {
        self.0.get().map(PathBuf::as_path)
    }

    fn set(&self, path: PathBuf) {
        // All ranks of this process have the same folder.
        let _ = self.0.set(path);
    }
}

/// Runs `work` on every worker of the recipe after `check` has passed. Returns the result of rank 0
/// if rank 0 is in this process. `work` calls [`prepare`] with the same `run_dir`.
pub(crate) fn run<T: Send + 'static>(
    recipe: &Recipe,
    world: &World,
    quiet: bool,
    run_dir: &RunDir,
    check: impl FnOnce() -> Result<LaunchOptions, Failure>,
    work: impl Fn(&Recipe, &Comm) -> Result<Option<T>, TrainError> + Send + Sync + 'static,
) -> Result<Option<T>, Failure> {
    // A terminal sends SIGINT to the whole process group; the launcher decides for its workers.
    let effect = if has_launcher(world) { Interrupts::Ignore } else { Interrupts::End };
    world.processes().handle_interrupts(effect);
    let role = role(recipe, world)?;
    // A worker of an elastic run uses the world size of this attempt.
    let sized = match &role {
        Role::SingleWorker => recipe.with_workers(1),
        role => match role.place() {
            Some((_, num_ranks)) => recipe.with_workers(num_ranks - recipe.num_server_ranks()),
            None => recipe.clone(),
        },
    };
    let (requested, recipe) = (recipe, &sized);
    let arena_bytes = lockstep_trainer::arena_bytes(recipe);
    follow_launcher(world)?;
    follow_owner(world)?;
    if has_launcher(world) && world.host().env(SAVES).is_some() {
        // SIGTERM before the first step takes effect after it.
        world.processes().defer_termination(true);
    }
    let mut options = LaunchOptions::default();
    if !has_launcher(world) && role.place().is_none() {
        options = check()?;
        if !quiet {
            warn_of_threads(recipe, world);
        }
        if let Some(line) = options.unsaved_line {
            world.processes().handle_interrupts(Interrupts::Explain(line));
        }
    }
    let is_first = role.place().is_none_or(|(rank, _)| rank == 0);
    let prints_next = !has_launcher(world) && is_first;
    let outcome = run_role(role, recipe, world, options, arena_bytes, run_dir, work);
    if !has_launcher(world) {
        world.processes().accept_interrupts();
        world.processes().defer_termination(false);
    }
    outcome.map_err(|failure| {
        let next = run_dir.get().filter(|_| prints_next);
        let next = next.and_then(|dir| next_command(&failure, requested, world, dir));
        let failure = if has_launcher(world) { failure } else { failure.into_notice() };
        failure.with_next(next)
    })
}

/// Runs this process's part of the command.
fn run_role<T: Send + 'static>(
    role: Role,
    recipe: &Recipe,
    world: &World,
    options: LaunchOptions,
    arena_bytes: usize,
    run_dir: &RunDir,
    work: impl Fn(&Recipe, &Comm) -> Result<Option<T>, TrainError> + Send + Sync + 'static,
) -> Result<Option<T>, Failure> {
    match role {
        Role::SingleWorker => {
            let member = join::join_single(recipe, world, arena_bytes)?;
            Ok(work(recipe, &member.comm)?)
        }
        Role::ThreadHost => {
            let work = move |recipe: &Recipe, comm: &Comm| {
                let fault = |failure: Failure| WorkerFailure {
                    exit_code: failure.code(),
                    text: failure.text().to_owned(),
                };
                work(recipe, comm).map_err(|error| fault(error.into()))
            };
            let outcome = threads::run(recipe, world, arena_bytes, work);
            outcome.map_err(|failure| {
                for (rank, line) in &failure.others {
                    print_status(&format!("[{rank}] error: {line}\n"));
                }
                failure.into()
            })
        }
        Role::Launcher => start_all(recipe, world, options, run_dir).map(|()| None),
        Role::Worker(place) => {
            let joined = join::join_worker(recipe, world, &place, arena_bytes, warn);
            work_as(place.rank.0, joined, recipe, world, work)
        }
        Role::MpiWorker(launched) => {
            let joined = mpi::join_mpi_worker(recipe, world, &launched, arena_bytes, warn);
            work_as(launched.rank, joined, recipe, world, work)
        }
    }
}

/// Runs the work of a rank that has joined.
fn work_as<T>(
    rank: usize,
    joined: Result<JoinedWorker, ClusterError>,
    recipe: &Recipe,
    world: &World,
    work: impl Fn(&Recipe, &Comm) -> Result<Option<T>, TrainError>,
) -> Result<Option<T>, Failure> {
    let outcome = joined
        .map_err(Failure::from)
        .and_then(|member| Ok(work(&on_this_machine(recipe, world, &member), &member.comm)?));
    // Our launcher prefixes error lines with the rank; others may not.
    let has_prefix = has_launcher(world);
    outcome.map_err(|failure| if has_prefix { failure } else { failure.of_rank(rank) })
}

/// The command that continues after a failure: one that resumes a run that was saved on request, or
/// one that reads the records of a failed run.
fn next_command(failure: &Failure, recipe: &Recipe, world: &World, dir: &Path) -> Option<String> {
    let arguments = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    let mut arguments = arguments.peekable();
    if failure.is_on_request() {
        return has_checkpoints(dir, world).then(|| resume_command(arguments, dir, recipe));
    }
    world.files().metadata(&dir.join("flight"))?;
    let program = quoted(arguments.peek().map_or("lockstep", String::as_str));
    let dir = quoted(&dir.display().to_string());
    Some(format!("which rank failed in which call: {program} doctor {dir}"))
}

/// Ends this run with the command that owns it. Workers end with the run.
fn follow_owner(world: &World) -> Result<(), Failure> {
    let owner = world.host().env(OWNER).filter(|_| !has_launcher(world));
    match owner.and_then(|number| number.parse().ok()) {
        Some(number) if !world.processes().end_with(number) => {
            Err(Failure::new(Blame::Peer(0), "the command that started this run has ended"))
        }
        _ => Ok(()),
    }
}

/// Starts the workers as processes of this command and waits for them.
fn start_all(
    recipe: &Recipe,
    world: &World,
    options: LaunchOptions,
    run_dir: &RunDir,
) -> Result<(), Failure> {
    let remote = options.listen.as_deref();
    let remote = remote.map(|addr| listen_for_remote_workers(recipe, world, addr)).transpose()?;
    let command = Launch {
        arguments: std::env::args_os().skip(1).collect(),
        policy: restart_policy(recipe, &options),
        env: options.env,
        is_terminal: console::is_terminal(world),
        replica_groups: recipe.server_replica_groups(),
        run_dir: options.run_dir,
        forwards_termination: options.saves_on_request,
    };
    let planned = command.run_dir.clone();
    let outcome = launch(world, &command, remote, console::screen(world))?;
    outcome.map_err(|failure| {
        let is_folder = |dir: &PathBuf| world.files().metadata(dir).is_some();
        if let Some(dir) = failure.run_dir.clone().or(planned.filter(is_folder)) {
            run_dir.set(dir);
        }
        failure.into()
    })
}

/// Refuses an address that remote workers cannot reach.
pub(crate) fn check_listen(recipe: &Recipe, addr: &str) -> Result<(), Failure> {
    let refuse =
        |rule: &str, fix: &str| Err(Failure::user(format!("--listen {addr} {rule}; {fix}")));
    if recipe.worker_counts().len() < 2 {
        let fix = "try --set 'run.workers={min=1,max=4}'";
        return refuse("needs a range of workers, so that more can join", fix);
    }
    if ["0.0.0.0:", "[::]:", ":"].iter().any(|any| addr.starts_with(any)) {
        let fix = "give the address by which other hosts reach this one";
        return refuse("is not an address that other hosts can connect to", fix);
    }
    Ok(())
}

/// Listens for workers of other hosts; this one starts the fewest that the run can have.
fn listen_for_remote_workers(
    recipe: &Recipe,
    world: &World,
    addr: &str,
) -> Result<RemoteWorkers, Failure> {
    let ticket = Ticket::from_env(world).map_err(Failure::user)?;
    let sizes = recipe.worker_counts();
    let (fewest, most) = (sizes[0], sizes[sizes.len() - 1]);
    Ok(RemoteWorkers::open(world, addr, &ticket, fewest, most, warn)?)
}

/// Joins the run that listens at an address as a remote worker, until it ends.
pub(crate) fn serve(world: &World, addr: &str, quiet: bool) -> Result<(), Failure> {
    world.processes().accept_interrupts();
    let ticket = Ticket::from_env(world).map_err(Failure::user)?;
    if !quiet {
        print_status(&format!("joining the run at {addr} as a remote worker\n"));
    }
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match lockstep_cluster::remote_workers::offer_worker(world, addr, &ticket, &arguments)? {
        0 => Ok(()),
        code => Err(Failure::with_code(
            code,
            format!("the run at {addr} failed; its launcher prints the reason"),
        )),
    }
}

/// Whether a launcher started this process as a worker.
pub(crate) fn is_worker(world: &World) -> bool {
    world.host().env("RANK").is_some() || launched_world_size(world).is_some()
}

/// Numbers of workers, and the policy for lost ones.
fn restart_policy(recipe: &Recipe, options: &LaunchOptions) -> RestartPolicy {
    // Without a shared run directory no attempt could resume.
    if options.run_dir.is_none() {
        return RestartPolicy::fixed(recipe.num_ranks(), options.restarts);
    }
    let rejoin = Duration::from_secs_f64(recipe.run.rejoin.0);
    RestartPolicy { sizes: recipe.rank_counts(), restarts: options.restarts, rejoin }
}

/// Options of a launcher that follow from the recipe's checkpoints.
pub(crate) fn saving_options(recipe: &Recipe) -> LaunchOptions {
    let saves_on_request = recipe.checkpoint.is_on();
    let unsaved_line = (!saves_on_request).then_some(UNSAVED);
    LaunchOptions { saves_on_request, unsaved_line, ..LaunchOptions::default() }
}

/// Sets the options that depend on the role of this process: attempt, signals and run folder.
pub(crate) fn prepare(options: &mut Options, run_dir: &RunDir, comm: &Comm, world: &World) {
    options.attempt = attempt(world);
    options.save_signals = match has_launcher(world) {
        true => SaveSignals::Termination,
        // Another launcher may forward a signal that the terminal has sent to the worker, too.
        false if is_worker(world) => {
            SaveSignals::TerminationAndInterrupt { repeat: FORWARDED_WITHIN }
        }
        false => SaveSignals::TerminationAndInterrupt { repeat: INTERRUPT_REPEAT },
    };
    let run_dir = run_dir.clone();
    let reports = has_launcher(world) && comm.rank().0 == 0;
    if reports {
        options.on_last_step = Some(Box::new(|| print_status(&format!("{LAST_STEP}\n"))));
    }
    options.on_run_folder = Some(Box::new(move |path| {
        if reports {
            print_status(&format!("{RUN_FOLDER}{}\n", path.display()));
        }
        run_dir.set(path.to_owned());
    }));
}

/// Attempt that this process belongs to, by its environment.
fn attempt(world: &World) -> Attempt {
    let variable = |name| world.host().env(name).filter(|_| has_launcher(world));
    let restarts = variable(RESTARTS).and_then(|number| number.parse().ok()).unwrap_or(0);
    Attempt { restarts, dir: variable(RUN_DIR).map(PathBuf::from) }
}

/// The recipe with this host's threads per worker, where workers run on several hosts.
fn on_this_machine(recipe: &Recipe, world: &World, member: &JoinedWorker) -> Recipe {
    let mut recipe = recipe.clone();
    if member.num_local != recipe.num_ranks() {
        let cores = world.threads().available();
        recipe.run.threads = recipe.run.num_threads(cores, member.num_local);
    }
    recipe
}

fn warn_of_threads(recipe: &Recipe, world: &World) {
    let (cores, workers) = (world.threads().available(), recipe.run.workers);
    let threads = recipe.run.threads;
    if threads * workers > MAX_THREADS_PER_CORE * cores && threads > 1 {
        let best = (cores / workers).max(1);
        print_status(&format!(
            "warning: run.threads = {threads} x run.workers = {workers} exceeds {cores} cores; try \
             run.threads = {best}\n"
        ));
    }
}

/// Prints a warning.
pub(crate) fn warn(line: &str) {
    print_status(&format!("warning: {line}\n"));
}

/// Prints a status line on standard error.
pub(crate) fn print_status(line: &str) {
    // A closed standard error is not a failure of the command.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

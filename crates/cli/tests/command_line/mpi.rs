//! Workers that MPI launchers start: one worker's bits, clear errors, and a frozen rank that is
//! named. Each test runs under every MPI that is installed, and says which are not.

use crate::process::{Finished, Folder, is_switched_on};
use lockstep_platform::{World, real};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Number of ranks, more than the cores of a small machine.
const RANKS: &str = "4";

/// Longest time until a run trains.
const START_TIMEOUT: Duration = Duration::from_mins(1);

/// An installed MPI: its launcher and its compiler.
struct Mpi {
    launcher: &'static str,
    compiler: &'static str,
}

/// The MPIs of this machine. Debian adds the family to the names, so that both fit on a machine.
#[expect(clippy::print_stdout, reason = "says what it skips")]
fn installed() -> Vec<Mpi> {
    let families = [
        Mpi { launcher: "mpirun.openmpi", compiler: "mpicc.openmpi" },
        Mpi { launcher: "mpirun.mpich", compiler: "mpicc.mpich" },
    ];
    let is_there = |program: &str| {
        let found = Command::new("sh").args(["-c", "command -v \"$0\"", program]).output();
        found.is_ok_and(|found| found.status.success())
    };
    let is_whole = |mpi: &Mpi| {
        let is_whole = is_there(mpi.launcher) && is_there(mpi.compiler);
        if !is_whole {
            println!("skipped: {} or {} is not installed", mpi.launcher, mpi.compiler);
        }
        is_whole
    };
    let found: Vec<Mpi> = families.into_iter().filter(is_whole).collect();
    let is_required = is_switched_on("LOCKSTEP_MPI");
    assert!(!is_required || found.len() == 2, "LOCKSTEP_MPI=1, and an MPI is not installed");
    found
}

impl Mpi {
    /// `lockstep` with these arguments on all ranks.
    fn command(&self, folder: &Folder, ranks: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.launcher);
        command.args(["-n", ranks]).arg(env!("CARGO_BIN_EXE_lockstep")).args(arguments);
        command.current_dir(folder.path()).env("MPICC", self.compiler);
        command.env("XDG_CACHE_HOME", folder.path().join("cache"));
        // Containers run tests as root on few cores, which Open MPI refuses by default.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
        command
    }

    fn run(&self, folder: &Folder, ranks: &str, arguments: &[&str]) -> Finished {
        Finished::new(self.command(folder, ranks, arguments).output().expect("the launcher runs"))
    }
}

/// Arguments that train with these settings.
fn training<'a>(sets: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["train", "--preset", "tiny", "--json", "--device", "cpu"];
    for set in ["numerics.invariant_up_to=4"].iter().chain(sets) {
        arguments.extend(["--set", set]);
    }
    arguments
}

fn hashes(finished: &Finished) -> [Value; 2] {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let start = finished.stdout.find('{').expect("figures");
    let figures: Value = serde_json::from_str(&finished.stdout[start..]).expect("JSON");
    ["losses_hash", "weights_hash"].map(|name| figures[name].clone())
}

#[test]
fn ranks_of_mpirun_train_the_bits_of_one_worker() {
    let folder = Folder::new();
    let one = hashes(&folder.run(&training(&["train.steps=3", "run.workers=1"])));
    for mpi in installed() {
        for transport in ["run.transport=mpi", "run.transport=auto"] {
            let arguments = training(&["train.steps=3", transport]);
            let found = hashes(&mpi.run(&folder, RANKS, &arguments));
            assert_eq!(found, one, "{} {transport}", mpi.launcher);
        }
    }
}

#[test]
fn a_missing_launcher_or_compiler_and_one_of_another_mpi_are_named() {
    let folder = Folder::new();
    let training = training(&["train.steps=3", "run.transport=mpi"]);
    let alone = [&training[..], &["--set", "run.workers=2"]].concat();
    let refused = folder.run(&alone);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("mpirun -n 2 lockstep"), "{refused:?}");
    let installed = installed();
    for mpi in &installed {
        let nothing = Mpi { compiler: "no-such-mpicc", ..*mpi }.run(&folder, "2", &training);
        assert_ne!(nothing.code, Some(0), "{nothing:?}");
        assert!(nothing.stderr.contains("no-such-mpicc cannot be run"), "{nothing:?}");
    }
    let [first, second] = &installed[..] else { return };
    // A process of another MPI's launcher finds itself alone.
    let mixed = Mpi { compiler: second.compiler, ..*first }.run(&folder, "2", &training);
    assert_ne!(mixed.code, Some(0), "{mixed:?}");
    assert!(mixed.stderr.contains("are of different MPIs"), "{mixed:?}");
}

#[test]
fn a_frozen_rank_is_named_by_all_others_after_the_deadline() {
    for mpi in installed() {
        let folder = Folder::new();
        let long = ["run.transport=mpi", "train.steps=100000", "run.deadline=3"];
        let arguments = training(&[&long[..], &["emulate.microbatch_ms=5"]].concat());
        let mut command = mpi.command(&folder, RANKS, &arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let run = command.spawn().expect("the launcher runs");
        let world = real();
        let start = world.clock().now();
        while !trains(&world, &folder) {
            assert!(world.clock().since(start) < START_TIMEOUT, "the run trains");
            world.clock().sleep(Duration::from_millis(50));
        }
        let frozen = process_of_rank(&world, run.id(), "2").expect("rank 2 runs");
        let stopped = Command::new("kill").args(["-STOP", &frozen.to_string()]).status();
        assert!(stopped.is_ok_and(|status| status.success()), "rank 2 can be stopped");
        let waited = Finished::new(run.wait_with_output().expect("it ends"));
        // The launcher may leave it behind, or may have killed it.
        let _ = Command::new("kill").args(["-KILL", &frozen.to_string()]).output();
        assert_ne!(waited.code, Some(0), "{waited:?}");
        // All survivors name the frozen rank and the wait, which ended at the deadline.
        let errors: Vec<&str> =
            waited.stderr.lines().filter(|line| line.contains("error: ")).collect();
        assert!(!errors.is_empty(), "{}: {waited:?}", mpi.launcher);
        for error in errors {
            assert!(error.contains("waited 3000 ms for rank 2,"), "{}: {error}", mpi.launcher);
        }
    }
}

/// Whether the run has finished a step.
fn trains(world: &World, folder: &Folder) -> bool {
    let runs = world.files().list(&folder.path().join("runs")).unwrap_or_default();
    let has_step = |run: PathBuf| {
        let events = world.files().read_to_string(&run.join("events.jsonl"));
        events.is_ok_and(|text| text.contains("\"event\":\"step\""))
    };
    runs.into_iter().any(has_step)
}

/// The process of a rank among the descendants of the launcher, by its environment.
fn process_of_rank(world: &World, launcher: u32, rank: &str) -> Option<u32> {
    let variables = [format!("OMPI_COMM_WORLD_RANK={rank}"), format!("PMI_RANK={rank}")];
    let program = Path::new(env!("CARGO_BIN_EXE_lockstep"));
    let processes = world.files().list(Path::new("/proc")).expect("processes");
    let ids = processes.iter().filter_map(|path| path.file_name()?.to_str()?.parse::<u32>().ok());
    let mut of_rank = ids.filter(|id| {
        let folder = PathBuf::from(format!("/proc/{id}"));
        let is_ours = folder.join("exe").read_link().is_ok_and(|exe| exe == program);
        let environment = world.files().read(&folder.join("environ")).unwrap_or_default();
        let has = |variable: &String| {
            environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
        };
        is_ours && variables.iter().any(has) && descends(world, *id, launcher)
    });
    of_rank.next()
}

/// Whether a process is a descendant of another.
fn descends(world: &World, mut id: u32, ancestor: u32) -> bool {
    while id > 1 {
        if id == ancestor {
            return true;
        }
        let status = PathBuf::from(format!("/proc/{id}/status"));
        let status = world.files().read_to_string(&status).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        id = parent.and_then(|parent| parent.trim().parse().ok()).unwrap_or(0);
    }
    false
}

//! Ctrl-C: the run saves, and the command that it prints ends in the bits of an undisturbed run.

use crate::process::{Folder, LONGER_THAN_A_TEST};
use lockstep_conformance::cases::{Random, select_cases};
use lockstep_platform::{Deadline, ProcessState, World, real};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Deadline of every wait.
const LIMIT: Duration = Duration::from_mins(2);

const STEPS: u64 = 150;

const ON_INTERRUPT: Option<i32> = Some(130);

/// One worker, two processes and two threads.
const LAYOUTS: [&[&str]; 3] =
    [&["run.workers=1"], &["run.workers=2"], &["run.workers=2", "run.isolation=threads"]];

fn arguments<'a>(sets: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["train", "--preset", "tiny", "--json", "--quiet"];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    fixed.into_iter().chain(sets).collect()
}

/// Starts a command as the leader of its own process group, as a shell does.
fn start(mut command: Command) -> Child {
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the binary starts")
}

/// Sends SIGINT to the whole process group, as a terminal does on Ctrl-C. False if it has ended.
fn press_ctrl_c(leader: u32) -> bool {
    let status = Command::new("kill").args(["-INT", "--", &format!("-{leader}")]).output();
    status.expect("a kill command").status.success()
}

/// Sends SIGINT twice, as a terminal and a launcher that forwards it do.
fn interrupt_twice(process: u32) {
    let script = format!("kill -INT {process}; kill -INT {process}");
    let status = Command::new("/bin/sh").args(["-c", &script]).status();
    assert!(status.expect("a shell").success());
}

/// Polls until a value is present.
fn wait_for<T>(world: &World, what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Deadline::after(world.clock(), LIMIT);
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(!deadline.has_passed(world.clock()), "{what} does not happen");
        world.clock().sleep(Duration::from_millis(1));
    }
}

/// Steps of the event file, in its order.
fn steps(world: &World, run: &Path) -> Vec<u64> {
    let text = world.files().read_to_string(&run.join("events.jsonl")).unwrap_or_default();
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let steps = events.filter(|event| event["event"] == "step");
    steps.filter_map(|event| event["step"].as_u64()).collect()
}

fn wait_for_step(world: &World, folder: &Folder, run: &str, step: u64) {
    let dir = folder.path().join(run);
    wait_for(world, "a step", || (steps(world, &dir).len() as u64 >= step).then_some(()));
}

/// Processes of a group that run; zombies do not.
fn alive_in_group(world: &World, leader: u32) -> Vec<PathBuf> {
    let all = world.files().list(Path::new("/proc")).expect("the kernel lists processes");
    let is_member = |path: &PathBuf| {
        let stat = world.files().read_to_string(&path.join("stat")).unwrap_or_default();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
        fields.get(3) == Some(&leader.to_string().as_str()) && fields.get(1) != Some(&"Z")
    };
    all.into_iter().filter(is_member).collect()
}

/// Waits until no process of the group is left, and asserts that no shared memory is.
fn assert_nothing_left(world: &World, folder: &Folder, leader: u32) {
    let is_over = || alive_in_group(world, leader).is_empty().then_some(());
    wait_for(world, "the end of all processes", is_over);
    assert_eq!(folder.left_in_shared_memory(LONGER_THAN_A_TEST), BTreeSet::new());
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs the last line of the output in a shell.
fn run_last_line(folder: &Folder, stderr: &str) -> Output {
    let line = stderr.lines().last().expect("a command");
    assert!(line.contains("lockstep train ") && line.contains(" --resume "), "{stderr}");
    folder.shell(line).output().expect("a shell")
}

#[track_caller]
fn summary(output: &Output, case: &str) -> Value {
    assert_eq!(output.status.code(), Some(0), "{case}: {}", stderr_of(output));
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

#[track_caller]
fn assert_same_bits(found: &Value, whole: &Value, case: &str) {
    for hash in ["losses_hash", "weights_hash"] {
        assert_eq!(found[hash], whole[hash], "{case}");
    }
}

/// Settings of every run; steps are slow on any machine, so that an interrupt finds the run.
fn sets<'a>(layout: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    let all = ["train.steps=150", "train.eval_every=40", "emulate.microbatch_ms=4"];
    all.iter().chain(layout).chain(more).copied().collect()
}

fn undisturbed() -> Value {
    Folder::new().json(&arguments(&["train.steps=150", "train.eval_every=40", "run.workers=1"]))
}

#[test]
fn ctrl_c_at_any_step_saves_and_the_printed_command_ends_in_the_same_bits() {
    let world = real();
    let whole = undisturbed();
    for seed in select_cases(&world, 20, 2) {
        std::thread::scope(|scope| {
            for layout in LAYOUTS {
                let (world, whole) = (&world, &whole);
                scope.spawn(move || interrupt_and_resume(world, whole, seed, layout));
            }
        });
    }
}

fn interrupt_and_resume(world: &World, whole: &Value, seed: u64, layout: &[&str]) {
    let mut random = Random(seed);
    let after = 1 + random.below(STEPS as usize / 3) as u64;
    // A folder that the recipe names is taken by the first run.
    let named: &[&str] = if random.below(2) == 0 { &["run.dir=it's a run"] } else { &[] };
    let case = format!("seed {seed}: after {after} steps, {layout:?}, {named:?}");
    let folder = Folder::new();
    let run = start(folder.command(&arguments(&sets(layout, named))));
    let (leader, dir) = (run.id(), if named.is_empty() { "runs/0001" } else { "it's a run" });
    wait_for_step(world, &folder, dir, after);
    assert!(press_ctrl_c(leader), "{case}");
    let ended = run.wait_with_output().expect("it was started");
    let stderr = stderr_of(&ended);
    assert_eq!(ended.status.code(), ON_INTERRUPT, "{case}: {stderr}");
    assert_eq!(stderr.matches("interrupted: ").count(), 1, "{case}: {stderr}");
    assert_eq!(stderr.matches("ended on request after step").count(), 1, "{case}: {stderr}");
    assert!(stderr.contains("\nended on request after step"), "{case}: {stderr}");
    assert!(!stderr.contains("error:"), "{case}: a stop on request is no error: {stderr}");
    assert_eq!(stderr.matches("--resume").count(), 1, "{case}: one command: {stderr}");
    assert_nothing_left(world, &folder, leader);
    let rest = run_last_line(&folder, &stderr);
    assert_same_bits(&summary(&rest, &case), whole, &case);
    let last = if named.is_empty() { "runs/0002" } else { "it's a run-2" };
    let found = steps(world, &folder.path().join(last));
    assert_eq!(found, (1..=STEPS).collect::<Vec<_>>(), "{case}: one curve");
}

#[test]
fn a_resumed_run_may_be_interrupted_too() {
    let world = real();
    let folder = Folder::new();
    let run = start(folder.command(&arguments(&sets(LAYOUTS[0], &[]))));
    wait_for_step(&world, &folder, "runs/0001", 5);
    press_ctrl_c(run.id());
    let first = stderr_of(&run.wait_with_output().expect("it was started"));
    let line = first.lines().last().expect("a command").to_owned();
    let run = start(folder.shell(&format!("exec {line}")));
    // Its events begin with those of the first run.
    let done = steps(&world, &folder.path().join("runs/0001")).len() as u64;
    wait_for_step(&world, &folder, "runs/0002", done + 5);
    press_ctrl_c(run.id());
    let second = stderr_of(&run.wait_with_output().expect("it was started"));
    assert_eq!(second.matches("--resume").count(), 1, "{second}");
    assert!(second.trim_end().ends_with("--resume runs/0002"), "{second}");
    assert!(!second.contains("runs/0001"), "{second}");
    let rest = run_last_line(&folder, &second);
    assert_same_bits(&summary(&rest, "twice"), &undisturbed(), "twice");
    let found = steps(&world, &folder.path().join("runs/0003"));
    assert_eq!(found, (1..=STEPS).collect::<Vec<_>>());
}

#[test]
fn ctrl_c_after_the_last_step_promises_no_checkpoint_and_the_run_ends_as_usual() {
    let world = real();
    for layout in LAYOUTS {
        let folder = Folder::new();
        // The last step is long enough to be announced, the evaluation after it to be interrupted.
        let sets =
            ["train.steps=2", "train.eval_batches=4000", "emulate.microbatch_ms=50", layout[0]];
        let run = start(folder.command(&arguments(&[&sets, &layout[1..]].concat())));
        wait_for_step(&world, &folder, "runs/0001", 2);
        assert!(press_ctrl_c(run.id()), "{layout:?}");
        let ended = run.wait_with_output().expect("it was started");
        let stderr = stderr_of(&ended);
        assert_eq!(summary(&ended, "the end")["steps"], 2);
        assert_eq!(stderr.matches("interrupted: ").count(), 1, "{layout:?}: {stderr}");
        assert!(stderr.contains("interrupted: the run is at its last step"), "{stderr}");
        assert!(!stderr.contains("--resume"), "{layout:?}: {stderr}");
    }
}

#[test]
fn a_second_ctrl_c_stops_at_once_and_leaves_nothing() {
    let world = real();
    for layout in LAYOUTS {
        let folder = Folder::new();
        // The first step lasts longer than the test.
        let slow = ["train.steps=9", "emulate.microbatch_ms=10000"];
        let run = start(folder.command(&arguments(&[layout, &slow].concat())));
        let leader = run.id();
        let events = folder.path().join("runs/0001/events.jsonl");
        wait_for(&world, "the start", || world.files().metadata(&events));
        // The first one is recorded; the others count from a moment after it.
        wait_for(&world, "the end", || {
            press_ctrl_c(leader);
            let is_over = world.processes().state(leader) == Some(ProcessState::Ended);
            is_over.then_some(())
        });
        let ended = run.wait_with_output().expect("it was started");
        let stderr = stderr_of(&ended);
        assert_eq!(ended.status.code(), ON_INTERRUPT, "{layout:?}: {stderr}");
        assert_eq!(stderr.matches("interrupted: ").count(), 1, "{layout:?}: {stderr}");
        assert_nothing_left(&world, &folder, leader);
    }
}

#[test]
fn a_run_without_checkpoints_ends_at_once_and_says_so() {
    let world = real();
    let off = ["train.steps=100000000", "checkpoint.interval=0"];
    let servers = ["train.steps=100000000", "sync.mode=parameter-server", "run.workers=2"];
    for sets in [
        &[&off[..], LAYOUTS[0]].concat()[..],
        &[&off[..], LAYOUTS[1]].concat(),
        &[&off[..], LAYOUTS[2]].concat(),
        &servers,
    ] {
        let folder = Folder::new();
        let run = start(folder.command(&arguments(sets)));
        let leader = run.id();
        wait_for_step(&world, &folder, "runs/0001", 2);
        press_ctrl_c(leader);
        let ended = run.wait_with_output().expect("it was started");
        let stderr = stderr_of(&ended);
        assert_eq!(ended.status.signal(), Some(2), "{sets:?}: {stderr}");
        let line = "interrupted: nothing is saved, since checkpoint.every and";
        assert!(stderr.contains(line), "{sets:?}: {stderr}");
        assert_nothing_left(&world, &folder, leader);
    }
}

#[test]
fn workers_of_another_launcher_agree_on_the_step() {
    let world = real();
    let folder = Folder::new();
    let port = world.net().listen("127.0.0.1:0").expect("a port").local_addr();
    let port = port.rsplit_once(':').expect("a port").1.to_owned();
    let secret = "07".repeat(32);
    let worker = |rank: usize| {
        let mut command = folder.command(&arguments(&sets(LAYOUTS[1], &[])));
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        command.env("LOCKSTEP_SECRET", &secret);
        start(command)
    };
    let ranks = [worker(0), worker(1)];
    wait_for_step(&world, &folder, "runs/0001", 3);
    for rank in &ranks {
        interrupt_twice(rank.id());
    }
    let ended = ranks.map(|rank| rank.wait_with_output().expect("it was started"));
    let [first, second] = [0, 1].map(|rank| {
        let stderr = stderr_of(&ended[rank]);
        assert_eq!(ended[rank].status.code(), ON_INTERRUPT, "{stderr}");
        stderr
    });
    let request = |stderr: &str| {
        let line = stderr.lines().find(|line| line.contains("ended on request after step"));
        line.expect("an error line").rsplit_once("rank ").map(|(_, text)| text[1..].to_owned())
    };
    assert_eq!(request(&first), request(&second), "the same step");
    assert!(!second.lines().any(|line| line.contains("lockstep train")), "{second}");
    // Here the command starts its own workers.
    let rest = run_last_line(&folder, &first);
    assert_same_bits(&summary(&rest, "ranks"), &undisturbed(), "ranks");
}

#[test]
fn an_interrupt_of_a_restarted_run_is_not_restarted() {
    let world = real();
    let folder = Folder::new();
    let restarts = ["run.restarts=5", "run.dir=run"];
    let run = start(folder.command(&arguments(&sets(LAYOUTS[1], &restarts))));
    wait_for_step(&world, &folder, "run", 4);
    press_ctrl_c(run.id());
    let ended = run.wait_with_output().expect("it was started");
    let stderr = stderr_of(&ended);
    assert_eq!(ended.status.code(), ON_INTERRUPT, "{stderr}");
    assert!(!stderr.contains("restarting"), "{stderr}");
    let rest = run_last_line(&folder, &stderr);
    assert_same_bits(&summary(&rest, "restarts"), &undisturbed(), "restarts");
}

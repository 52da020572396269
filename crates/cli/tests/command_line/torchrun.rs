//! Workers that other launchers start: plain variables, torchrun's environment and torchrun itself.

use crate::process::{Finished, Folder};
use lockstep_platform::{Listener, real};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Steps of the runs here.
const STEPS: &str = "train.steps=3";

/// Two neighbouring ports that are free, with listeners at both.
fn neighbours() -> (u16, [Box<dyn Listener>; 2]) {
    let net_error = "some neighbouring ports are free";
    let world = real();
    for _ in 0..1000 {
        let first = world.net().listen("127.0.0.1:0").expect(net_error);
        let port = first.local_addr();
        let port: u16 = port.rsplit_once(':').expect("a port").1.parse().expect("a number");
        let next = port.checked_add(1).map(|next| world.net().listen(&format!("127.0.0.1:{next}")));
        if let Some(Ok(next)) = next {
            return (port, [first, next]);
        }
    }
    panic!("{net_error}");
}

/// A port that is free now.
fn free_port() -> u16 {
    neighbours().0
}

/// The command of one rank, without a secret. Private files of the user lie in the folder.
fn rank(folder: &Folder, port: u16, rank: usize, world_size: usize, sets: &[&str]) -> Command {
    let mut command = folder.command(&["train", "--preset", "tiny", "--set", STEPS, "--json"]);
    for set in sets {
        command.args(["--set", set]);
    }
    command.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", folder.path());
    command.env_remove("LOCKSTEP_SECRET").env_remove("LOCKSTEP_SECRET_FILE");
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", world_size.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Adds the variables that torchrun's agent sets.
fn by_torchrun(mut command: Command, local_world_size: usize) -> Command {
    command.env("TORCHELASTIC_RUN_ID", "none").env("TORCHELASTIC_USE_AGENT_STORE", "True");
    command.env("LOCAL_WORLD_SIZE", local_world_size.to_string());
    command
}

fn finish(child: Child) -> Finished {
    Finished::new(child.wait_with_output().expect("it ends"))
}

/// Starts all ranks, which must succeed, and returns the figures of rank 0.
fn figures(ranks: Vec<Command>) -> Value {
    let children: Vec<Child> =
        ranks.into_iter().map(|mut rank| rank.spawn().expect("the binary starts")).collect();
    let ends: Vec<Finished> = children.into_iter().map(finish).collect();
    for end in &ends {
        assert_eq!(end.code, Some(0), "{}", end.stderr);
    }
    let printed: Vec<&Finished> = ends.iter().filter(|end| !end.stdout.is_empty()).collect();
    let [one] = printed[..] else { panic!("one rank prints figures: {ends:?}") };
    serde_json::from_str(&one.stdout).expect("JSON")
}

/// Hashes of the run without another launcher.
fn expected_hashes(folder: &Folder, sets: &[&str]) -> [Value; 2] {
    let mut arguments = vec!["train", "--preset", "tiny", "--set", STEPS, "--json", "--quiet"];
    for set in sets {
        arguments.extend(["--set", set]);
    }
    hashes(&folder.json(&arguments))
}

fn hashes(figures: &Value) -> [Value; 2] {
    ["losses_hash", "weights_hash"].map(|name| figures[name].clone())
}

#[test]
fn the_world_size_decides_the_number_of_workers_and_no_secret_is_needed_on_one_host() {
    let folder = Folder::new();
    let port = free_port();
    let figures = figures((0..3).rev().map(|index| rank(&folder, port, index, 3, &[])).collect());
    assert_eq!(figures["workers"], 3);
    assert_eq!(hashes(&figures), expected_hashes(&folder, &["run.workers=2"]));
    // The secret lies where only this user can read it.
    let is_secret = |path: &&std::path::PathBuf| path.ends_with("secret");
    let content = folder.content();
    let secret = content.keys().find(is_secret).expect("the first rank creates it");
    assert_eq!(real().files().is_open_to_others(secret), Ok(false));
}

/// A rank whose place these variables and arguments give, without those of torchrun.
fn placed(folder: &Folder, variables: &[(&str, String)], arguments: &[String]) -> Command {
    let mut command = rank(folder, 1, 0, 1, &[]);
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().map(|(name, value)| (name, value))).args(arguments);
    command
}

#[test]
fn ranks_of_slurm_of_kubernetes_and_of_arguments_train_the_bits_of_one_command() {
    let folder = Folder::new();
    let expected = expected_hashes(&folder, &["run.workers=2"]);
    let with_secret = |variables: &[(&'static str, &str)]| {
        let secret = ("LOCKSTEP_SECRET", "5a".repeat(32));
        let given = variables.iter().map(|(name, value)| (*name, (*value).to_owned()));
        given.chain([secret]).collect::<Vec<_>>()
    };
    let slurm = |index: usize| {
        // The number of this process keeps the port apart from that of another run.
        let [index, job] = [index.to_string(), std::process::id().to_string()];
        let step = [
            ("SLURM_PROCID", index.as_str()),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_NODELIST", "localhost"),
            ("SLURM_JOB_ID", &job),
        ];
        placed(&folder, &step.map(|(name, value)| (name, value.to_owned())), &[])
    };
    assert_eq!(hashes(&figures([1, 0].map(slurm).into())), expected, "Slurm");
    let port = free_port().to_string();
    let pod = |index: usize| {
        let index = index.to_string();
        let job = [
            ("JOB_COMPLETION_INDEX", index.as_str()),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &port),
        ];
        placed(&folder, &with_secret(&job), &[])
    };
    assert_eq!(hashes(&figures([1, 0].map(pod).into())), expected, "Kubernetes");
    let master = format!("127.0.0.1:{}", free_port());
    let by_hand = |index: usize| {
        let index = index.to_string();
        let place = ["--rank", &index, "--world-size", "2", "--master", &master];
        placed(&folder, &with_secret(&[("RANK", "7")]), &place.map(str::to_owned))
    };
    assert_eq!(hashes(&figures([1, 0].map(by_hand).into())), expected, "arguments");
    let wrong = folder.run(&["train", "--rank", "2", "--world-size", "2", "--master", &master]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("--rank 2 is not below --world-size 2"), "{wrong:?}");
}

#[test]
fn parameter_servers_count_as_ranks() {
    let folder = Folder::new();
    let port = free_port();
    let sets = ["sync.mode=parameter-server", "sync.servers=1"];
    let figures = figures((0..3).map(|index| rank(&folder, port, index, 3, &sets)).collect());
    assert_eq!((&figures["workers"], &figures["servers"]), (&2.into(), &1.into()));
    let alone = rank(&folder, port, 0, 1, &sets).spawn().expect("the binary starts");
    let alone = finish(alone);
    assert_eq!(alone.code, Some(2), "{}", alone.stderr);
    assert!(
        alone.stderr.contains("WORLD_SIZE = 1 leaves no worker beside 1 server of"),
        "{alone:?}"
    );
}

#[test]
fn a_world_size_that_does_not_fit_the_recipe_is_an_error_with_both_numbers() {
    let folder = Folder::new();
    let refused = |sets: &[&str], world_size| {
        let child = rank(&folder, 1, 0, world_size, sets).spawn().expect("the binary starts");
        let refused = finish(child);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        refused.stderr
    };
    let text = refused(&["run.workers=4"], 2);
    assert!(text.contains("WORLD_SIZE = 2 is not run.workers = 4"), "{text}");
    let text = refused(&["parallel.pipeline=2"], 3);
    assert!(text.contains("run.workers follows WORLD_SIZE = 3 of the launcher"), "{text}");
}

#[test]
fn under_torchrun_rank_0_listens_next_to_the_port_of_the_agent() {
    let folder = Folder::new();
    let (port, [_agent, next]) = neighbours();
    let start = |index| by_torchrun(rank(&folder, port, index, 2, &[]), 2);
    // The port is taken: the error names the variable that helps.
    let taken = finish(start(0).spawn().expect("the binary starts"));
    assert_eq!(taken.code, Some(2), "{}", taken.stderr);
    let fix = format!("torchrun's agent holds MASTER_PORT = {port}");
    assert!(taken.stderr.contains(&fix), "{}", taken.stderr);
    assert!(taken.stderr.contains("set LOCKSTEP_MASTER_PORT to a free port"), "{}", taken.stderr);

    let other = free_port().to_string();
    let elsewhere = |index| {
        let mut command = start(index);
        command.env("LOCKSTEP_MASTER_PORT", &other);
        command
    };
    let expected = expected_hashes(&folder, &["run.workers=2"]);
    assert_eq!(hashes(&figures(vec![elsewhere(1), elsewhere(0)])), expected);
    drop(next);
    assert_eq!(hashes(&figures(vec![start(0), start(1)])), expected);
}

#[test]
fn ranks_on_several_hosts_need_a_secret() {
    let folder = Folder::new();
    let child = by_torchrun(rank(&folder, 1, 0, 2, &[]), 1).spawn().expect("the binary starts");
    let refused = finish(child);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let hint = "make one with `lockstep rendezvous --new-secret` and give it to all workers";
    assert!(refused.stderr.contains(hint), "{}", refused.stderr);
}

#[test]
fn a_rank_that_waits_names_the_missing_ranks() {
    let folder = Folder::new();
    for (early, line) in [(0, "waiting for rank 1 of 2 at"), (1, "rank 1 waits for rank 0 at")] {
        let port = free_port();
        let mut first = rank(&folder, port, early, 2, &[]).spawn().expect("the binary starts");
        let mut stderr = BufReader::new(first.stderr.take().expect("piped"));
        let mut report = String::new();
        while !report.contains(line) {
            report.clear();
            assert!(stderr.read_line(&mut report).expect("text") > 0, "it ended without a report");
        }
        assert!(report.contains(&format!("127.0.0.1:{port}")), "{report}");
        assert!(report.trim_end().ends_with("s of 60 s"), "{report}");
        let second = rank(&folder, port, 1 - early, 2, &[]).spawn().expect("the binary starts");
        // Its pipe must not fill up.
        let rest = std::io::read_to_string(stderr).expect("text");
        let (first, second) = (finish(first), finish(second));
        assert_eq!((first.code, second.code), (Some(0), Some(0)), "{rest}{}", second.stderr);
    }
}

#[test]
fn torchrun_starts_the_workers() {
    let mut help = Command::new("torchrun");
    help.arg("--help").stdout(Stdio::null()).stderr(Stdio::null());
    if !help.status().is_ok_and(|status| status.success()) {
        println!("skipped: torchrun (Python's torch) is not installed");
        return;
    }
    let folder = Folder::new();
    let expected = expected_hashes(&folder, &["run.workers=2"]);
    let port = free_port().to_string();
    for rendezvous in [&["--master-port", &port][..], &["--standalone"]] {
        let mut command = Command::new("torchrun");
        command.args(["--nproc-per-node", "2"]).args(rendezvous).arg("--no-python");
        command.args([env!("CARGO_BIN_EXE_lockstep"), "train", "--preset", "tiny"]);
        command.args(["--set", STEPS, "--set", "run.device=cpu", "--json"]);
        command.current_dir(folder.path());
        let finished = Finished::new(command.output().expect("torchrun starts"));
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let figures: Value = serde_json::from_str(&finished.stdout).expect("JSON of rank 0");
        assert_eq!((&figures["workers"], hashes(&figures)), (&2.into(), expected.clone()));
    }
}

//! `lockstep sweep`: parallel runs, resumed after kills, and their table.

use crate::launch::send;
use crate::process::{Finished, Folder, assert_keys};
use lockstep_platform::{Deadline, real};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

/// Deadline of every wait.
const LIMIT: Duration = Duration::from_mins(2);

/// Sixteen configurations of a convex problem, of which some diverge.
const SIXTEEN: &[&str] = &[
    "sweep",
    "--preset",
    "quadratic",
    "--set=run.workers=1",
    "--set=train.steps=600",
    "--over",
    "optim.lr=0.03,0.3,1,30",
    "--over",
    "optim.momentum=0,0.3,0.6,0.9",
    "--by=suboptimality",
    "--jobs=3",
];

/// Names of the finished runs.
fn done(folder: &Folder) -> Vec<String> {
    let out = folder.path().join("sweep");
    let paths = real().files().list(&out).unwrap_or_default();
    let names = paths.iter().filter_map(|path| path.file_name()?.to_str());
    let records = names.filter_map(|name| name.strip_suffix(".json"));
    records.filter(|name| *name != "sweep").map(str::to_owned).collect()
}

/// Starts a sweep and kills it when some runs are done, but not all.
fn kill_in_the_middle(folder: &Folder, arguments: &[&str], num_done: usize) {
    let mut command = folder.command(arguments);
    let mut sweep =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let world = real();
    let deadline = Deadline::after(world.clock(), LIMIT);
    while done(folder).len() < num_done {
        assert!(sweep.try_wait().expect("it was started").is_none(), "it ended before the kill");
        assert!(!deadline.has_passed(world.clock()), "{num_done} runs are never done");
        world.clock().sleep(Duration::from_millis(1));
    }
    send("-KILL", sweep.id());
    let ended = Finished::new(sweep.wait_with_output().expect("it was started"));
    assert_eq!(ended.code, None, "{}", ended.stderr);
}

#[test]
fn a_sweep_that_is_killed_and_resumed_ends_with_the_same_table() {
    let whole = Folder::new();
    let expected = whole.succeed(SIXTEEN);
    let table: Vec<&str> = expected.stdout.lines().collect();
    assert_eq!(table.len(), 1 + 16 + 3, "{}", expected.stdout);
    assert!(table[1].starts_with('*'), "{}", expected.stdout);
    assert!(table[16].contains("diverged"), "{}", expected.stdout);
    let progress = expected.stderr.lines().filter(|line| line.contains("/16  "));
    assert_eq!(progress.count(), 16, "{}", expected.stderr);

    let folder = Folder::new();
    kill_in_the_middle(&folder, SIXTEEN, 4);
    let first = done(&folder);
    assert!(first.len() < 16, "{first:?}");
    let records: Vec<Vec<u8>> =
        first.iter().map(|name| folder.read(&format!("sweep/{name}.json"))).collect();
    kill_in_the_middle(&folder, &[SIXTEEN, &["--quiet"]].concat(), 9);
    let resumed = folder.succeed(SIXTEEN);
    assert_eq!(resumed.stdout, expected.stdout);
    assert!(resumed.stderr.contains("resuming: "), "{}", resumed.stderr);
    for (name, record) in first.iter().zip(&records) {
        assert_eq!(folder.read(&format!("sweep/{name}.json")), *record, "{name} ran twice");
        assert!(!resumed.stderr.contains(&format!("  {name}  ")), "{}", resumed.stderr);
    }
    let csv = [SIXTEEN, &["--csv", "--quiet"]].concat();
    assert_eq!(folder.succeed(&csv).stdout, whole.succeed(&csv).stdout);
    // All runs are done, so a plot costs nothing.
    let repeated = folder.json(&[SIXTEEN, &["--json", "--svg", "lr.svg"]].concat());
    assert_keys(&repeated, "by runs best out");
    let keys = "run set status rung steps command suboptimality validation_loss seconds";
    assert_keys(&repeated["best"], keys);
    assert!(String::from_utf8(folder.read("lr.svg")).expect("text").contains(">optim.momentum<"));
}

#[test]
fn the_command_of_the_best_run_trains_it_to_the_same_bits() {
    let folder = Folder::new();
    let base = ["sweep", "--preset", "quadratic", "--set=run.workers=1", "--set=train.steps=90"];
    let halving = ["--over=optim.lr=log:1e-3..1", "--random=9", "--seed=3", "--halving=3"];
    let report = folder.json(&[&base[..], &halving, &["--jobs=2", "--json"]].concat());
    let runs = report["runs"].as_array().expect("a list");
    let steps: Vec<u64> = runs.iter().filter_map(|run| run["steps"].as_u64()).collect();
    assert_eq!(steps, [90, 30, 30, 10, 10, 10, 10, 10, 10], "{report}");
    let statuses: Vec<_> = runs.iter().filter_map(|run| run["status"].as_str()).collect();
    assert_eq!(statuses.iter().filter(|status| **status == "dropped").count(), 8, "{statuses:?}");
    let command = report["best"]["command"].as_str().expect("a command");
    let arguments: Vec<&str> = command.split(' ').skip(1).collect();
    let alone = folder.json(&[&arguments[..], &["--json", "--quiet"]].concat());
    let name = report["best"]["run"].as_str().expect("a name");
    let summary = folder.read(&format!("sweep/{name}-rung3/summary.json"));
    let paused: Value = serde_json::from_slice(&summary).expect("JSON");
    for hash in ["weights_hash", "losses_hash", "validation_loss"] {
        assert_eq!(alone[hash], paused[hash], "{hash}");
    }
}

#[test]
fn a_killed_run_resumes_from_its_checkpoint() {
    let arguments = [
        "sweep",
        "--preset=tiny",
        "--set=run.workers=1",
        "--set=train.steps=100",
        "--set=checkpoint.every=5",
        "--over=optim.lr=1e-3",
    ];
    let folder = Folder::new();
    let mut sweep = folder.command(&arguments).stderr(Stdio::null()).spawn().expect("it starts");
    let world = real();
    let deadline = Deadline::after(world.clock(), LIMIT);
    let checkpoints = folder.path().join("sweep/0001/checkpoints");
    let is_saved = || {
        let paths = world.files().list(&checkpoints).unwrap_or_default();
        // An incomplete checkpoint is hidden.
        let mut names = paths.iter().filter_map(|path| path.file_name()?.to_str());
        names.any(|name| name.starts_with("step-"))
    };
    while !is_saved() {
        assert!(!deadline.has_passed(world.clock()), "there is no checkpoint");
        world.clock().sleep(Duration::from_millis(1));
    }
    send("-KILL", sweep.id());
    sweep.wait().expect("it was started");
    let resumed = folder.json(&[&arguments[..], &["--json"]].concat());
    let events = String::from_utf8(folder.read("sweep/0001/events.jsonl")).expect("text");
    assert!(events.contains("\"event\":\"restored\""), "it started over: {events}");
    assert!(!folder.path().join("sweep/0001.partial").exists());
    let whole = Folder::new().json(&[&arguments[..], &["--json"]].concat());
    for figure in ["validation_loss", "final_loss", "steps"] {
        assert_eq!(resumed["best"][figure], whole["best"][figure], "{figure}");
    }
}

#[test]
fn every_invalid_run_is_reported_before_the_first_starts() {
    let folder = Folder::new();
    let refused = |arguments: &[&str], lines: &[&str]| {
        let finished = folder.run(&[&["sweep", "--preset=tiny"], arguments].concat());
        assert_eq!(finished.code, Some(2), "{arguments:?}: {}", finished.stderr);
        for line in lines {
            assert!(finished.stderr.contains(line), "{arguments:?}: {}", finished.stderr);
        }
        assert_eq!(finished.stderr.lines().count(), lines.len(), "{}", finished.stderr);
    };
    refused(
        &["--over=model.heads=2,5,7", "--over=optim.lr=1e-3,fast", "--set=train.stepz=3"],
        &[
            "train.stepz = 3 is not a known key; did you mean train.steps?\n",
            "model.heads = 5 does not divide model.width = 32; try 1, 2, 4, 8 or 16",
            "model.heads = 7 does not divide model.width = 32; try 1, 2, 4, 8 or 16",
            "(3 of 6 runs, first with model.heads=2 optim.lr=fast)",
        ],
    );
    refused(&["--over=optim.lr=log:1e-3..1"], &["--random 20"]);
    refused(&["--over=run.dir=a,b", "--over=optim.lr"], &["run.dir is not possible", "KEY=VALUES"]);
    refused(&["--over=optim.lr=1,2", "--by=accuracy"], &["--by accuracy is not available for"]);
    refused(&["--over=train.steps=2,4", "--halving=2"], &["is not possible with --halving"]);
    folder.write("taken/file", b"mine");
    refused(
        &["--over=optim.lr=1,2", "--out=taken"],
        &["taken is not empty and is not a sweep's folder"],
    );
    assert_eq!(folder.content().len(), 2, "nothing was written");
    let dry = folder.succeed(&["sweep", "--preset=tiny", "--over=optim.lr=1e-3,1e-2", "--dry-run"]);
    assert!(dry.stdout.contains("0002  lockstep train --preset tiny --set optim.lr=1e-2\n"));
    assert_eq!(folder.content().len(), 2, "nothing was written");
}

#[test]
fn another_sweep_is_refused_and_a_grid_may_grow() {
    let folder = Folder::new();
    let base = ["sweep", "--preset=quadratic", "--set=run.workers=1", "--set=train.steps=5"];
    let sweep = |over: &str, more: &[&str]| folder.run(&[&base[..], &[over], more].concat());
    assert_eq!(sweep("--over=optim.lr=0.1,0.2", &[]).code, Some(0));
    let other = sweep("--over=optim.lr=0.1,0.3", &[]);
    assert_eq!(other.code, Some(2), "{}", other.stderr);
    assert!(other.stderr.contains("sweep holds another sweep: its run 0002 is optim.lr=0.2"));
    let recipe = sweep("--over=optim.lr=0.1,0.2", &["--set=problem.dim=8"]);
    assert!(recipe.stderr.contains("the recipe of run 0001 differs"), "{}", recipe.stderr);
    let grown = sweep("--over=optim.lr=0.1,0.2,0.4", &[]);
    assert_eq!(grown.code, Some(0), "{}", grown.stderr);
    assert!(grown.stderr.contains("resuming: 2 of 3 runs are done"), "{}", grown.stderr);
    assert_eq!(grown.stdout.lines().count(), 1 + 3 + 3, "{}", grown.stdout);
}

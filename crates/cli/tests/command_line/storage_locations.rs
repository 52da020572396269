//! Folders of runs and checkpoints: resuming, naming and refusing them.

use crate::bad_input::refused;
use crate::process::Folder;

/// Trains the smallest model with these settings and arguments.
fn train<'a>(sets: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["train", "--preset", "tiny", "--quiet", "--json"];
    arguments.extend(["--set", "train.eval_every=0", "--set", "run.workers=1"]);
    for set in sets {
        arguments.extend(["--set", set]);
    }
    arguments.extend(more);
    arguments
}

#[test]
fn a_run_resumes_with_more_steps_where_earlier_ones_stay_the_same() {
    let folder = Folder::new();
    let steady = ["optim.schedule=constant", "optim.warmup_steps=2"];
    let of = |steps, dir| [&steady[..], &[steps, dir]].concat();
    folder.json(&train(&of("train.steps=4", "run.dir=short"), &["--stop-after", "3"]));
    let whole = folder.json(&train(&of("train.steps=6", "run.dir=whole"), &[]));
    let longer = train(&of("train.steps=6", "run.dir=longer"), &["--resume", "short"]);
    let longer = folder.json(&longer);
    for hash in ["weights_hash", "losses_hash"] {
        assert_eq!(longer[hash], whole[hash], "{hash}");
    }
    let finished = train(&of("train.steps=6", "run.dir=next"), &["--resume", "longer"]);
    refused(&folder, &finished, &["6 of 6 steps are done", "raise train.steps"]);
    // Fewer steps are another run, and so is a schedule that depends on the last step.
    let fewer = train(&of("train.steps=5", "run.dir=next"), &["--resume", "longer"]);
    refused(&folder, &fewer, &["train.steps = 6 there, train.steps = 5 here"]);
    let warm = ["optim.warmup_steps=1", "train.steps=6", "run.dir=next", steady[0]];
    let parts = ["with train.steps = 6 the learning rate of step 0", "--from short"];
    refused(&folder, &train(&warm, &["--resume", "short"]), &parts);
}

#[test]
fn a_checkpoint_folder_stands_for_its_newest_checkpoint() {
    let folder = Folder::new();
    let sets = ["train.steps=6", "checkpoint.every=2", "run.dir=run"];
    folder.json(&train(&sets, &[]));
    let (all, one) = ("run/checkpoints", "run/checkpoints/step-00000004");
    for place in [all, one] {
        folder.succeed(&["generate", place, "--tokens", "1"]);
    }
    folder.succeed(&["eval", all]);
    folder.json(&train(&["train.steps=1", "run.dir=other", "train.seed=2"], &["--from", all]));
    folder.succeed(&["export", all, "--to", "lockstep", "model-only"]);

    // With all checkpoints damaged, the newest is named, and that no older one is left.
    for step in ["step-00000002", "step-00000004"] {
        let path = format!("{all}/{step}/rank-0000.safetensors");
        let mut bytes = folder.read(&path);
        *bytes.last_mut().expect("it has bytes") ^= 1;
        folder.write(&path, &bytes);
    }
    let damaged = folder.run(&["generate", all]);
    assert_eq!(damaged.code, Some(4), "{}", damaged.stderr);
    assert!(damaged.stderr.contains("step-00000004"), "{}", damaged.stderr);
    let sets = ["train.steps=6", "checkpoint.every=2", "run.dir=rest"];
    let damaged = folder.run(&train(&sets, &["--resume", all]));
    assert_eq!(damaged.code, Some(4), "{}", damaged.stderr);
    let [line] = damaged.stderr.lines().collect::<Vec<_>>()[..] else { panic!("{damaged:?}") };
    assert!(line.contains("step-00000004 is not a whole checkpoint"), "{line}");
    assert!(line.contains("trying the next older one"), "{line}");
    assert!(line.ends_with("there is no older one"), "{line}");
}

#[test]
fn a_checkpoint_dir_that_is_a_file_is_refused_before_the_run() {
    let folder = Folder::new();
    folder.write("occupied", b"a file");
    for dir in ["checkpoint.dir=occupied", "checkpoint.dir=occupied/by/a/file"] {
        let run = train(&["checkpoint.every=2", "run.dir=run", dir], &[]);
        refused(&folder, &run, &["checkpoint.dir = occupied", "occupied is a file"]);
    }
    // A folder that cannot be created is reported before the first step.
    let run = train(&["checkpoint.every=2", "run.dir=run", "checkpoint.dir=/proc/none"], &[]);
    let closed = folder.run(&run);
    assert_eq!(closed.code, Some(2), "{}", closed.stderr);
    assert!(closed.stderr.starts_with("error: cannot create /proc/none: "), "{}", closed.stderr);
    assert!(!folder.path().join("run/events.jsonl").exists(), "no step was done");
}

#[test]
fn a_drill_without_a_kill_is_refused() {
    let folder = Folder::new();
    for option in ["--kills", "--gone"] {
        let idle = folder.run(&["drill", "--preset", "tiny", option, "0"]);
        assert_eq!(idle.code, Some(2), "{}", idle.stderr);
        assert!(idle.stderr.contains("a drill needs at least one kill; try 1"));
    }
    assert!(folder.content().is_empty(), "nothing was trained");
}

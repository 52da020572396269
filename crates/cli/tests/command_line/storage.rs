//! Storage failures: one error line, exit code 4, and complete checkpoints stay.
//!
//! The disk is a tmpfs in the command's own mount namespace. Without namespaces the tests pass
//! unchecked.

use crate::process::{Finished, Folder};
use std::process::{Command, Stdio};

/// Mounts a disk at `disk`, runs the command and lists the disk.
const SCRIPT: &str = r#"
mount -t tmpfs -o "$DISK" tmpfs disk || exit 77
"$@"; code=$?
echo; ls -A disk disk/.[a-z]* 2> /dev/null
exit $code
"#;

/// Trains with checkpoints on a disk with these mount options; `None` without namespaces.
fn train_on(folder: &Folder, disk: &str, sets: &[&str]) -> Option<Finished> {
    folder.write("disk/.keep", b"");
    let all = ["train.steps=9", "train.eval_every=0", "checkpoint.every=2", "checkpoint.dir=disk"];
    let sets = all.iter().chain(sets).flat_map(|set| ["--set", set]);
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh"]);
    command.arg(env!("CARGO_BIN_EXE_lockstep")).args(["train", "--preset", "tiny", "--quiet"]);
    command.args(sets).env("DISK", disk).current_dir(folder.path()).stdin(Stdio::null());
    let finished = Finished::new(command.output().ok()?);
    let is_refused = finished.code == Some(77) || finished.stderr.starts_with("unshare:");
    (!is_refused).then_some(finished)
}

/// Size of a checkpoint.
fn checkpoint_bytes(folder: &Folder) -> u64 {
    let arguments = ["train", "--preset", "tiny", "--quiet", "--json"];
    let sets = ["train.steps=3", "train.eval_every=0", "checkpoint.every=2", "run.dir=whole"];
    let sets = sets.iter().chain(&["run.workers=1"]).flat_map(|set| ["--set", set]);
    folder.json(&arguments.into_iter().chain(sets).collect::<Vec<_>>());
    let events = String::from_utf8(folder.read("whole/events.jsonl")).expect("text");
    let events = events.lines().map(serde_json::from_str::<serde_json::Value>);
    let saved = events.flatten().find(|event| event["event"] == "checkpoint_saved");
    saved.and_then(|event| event["bytes"].as_u64()).expect("it was saved")
}

#[test]
fn a_full_disk_ends_the_run_and_leaves_older_checkpoints() {
    let folder = Folder::new();
    let bytes = checkpoint_bytes(&folder);
    // Two and a half checkpoints: the third is written before the first is removed.
    let disk = format!("size={}", bytes * 5 / 2);
    for workers in ["run.workers=1", "run.workers=2"] {
        let folder = Folder::new();
        let sets = [workers, "run.dir=run", "checkpoint.background=false"];
        let Some(full) = train_on(&folder, &disk, &sets) else { return };
        assert_eq!(full.code, Some(4), "{}{}", full.stdout, full.stderr);
        let errors: Vec<_> =
            full.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        let [error] = errors[..] else { panic!("one line: {}", full.stderr) };
        assert!(error.contains("the checkpoint of step 6 was not written"), "{error}");
        assert!(error.contains("no space left"), "{error}");
        assert!(error.contains("disk/step-00000004"), "it names the newest checkpoint: {error}");
        for whole in ["step-00000002", "step-00000004"] {
            assert!(full.stdout.contains(whole), "{}", full.stdout);
        }
        assert!(
            !full.stdout.contains("step-00000006"),
            "no partial checkpoint stays: {}",
            full.stdout
        );
    }
}

#[test]
fn a_read_only_disk_ends_the_run_with_one_line() {
    let folder = Folder::new();
    let sets = ["run.workers=2", "run.dir=run"];
    let Some(closed) = train_on(&folder, "ro", &sets) else { return };
    assert_eq!(closed.code, Some(4), "{}", closed.stderr);
    let is_error = |line: &&str| line.contains("error: ") && !line.starts_with('[');
    let errors: Vec<_> = closed.stderr.lines().filter(is_error).collect();
    let [error] = errors[..] else { panic!("one line: {}", closed.stderr) };
    assert!(error.contains("cannot write disk/generation"), "{error}");
    assert!(error.contains("ead-only"), "{error}");
    assert!(!folder.path().join("run/events.jsonl").exists(), "no step was trained");
}

//! `train --resume` by the recipe that the run records, and runs that cannot be resumed.

use crate::bad_input::refused;
use crate::process::{Finished, Folder};
use serde_json::Value;

/// Trains twelve steps of the smallest model into `dir`.
fn train<'a>(dir: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["train", "--preset", "tiny", "--steps", "12", "--workers", "1"];
    let dir = ["--quiet", "--json", "--set", dir];
    [&fixed[..], &dir, more].concat()
}

/// Resumes a run without naming its recipe.
fn resume(folder: &Folder, run: &str, more: &[&str]) -> Value {
    folder.json(&[&["train", "--resume", run, "--quiet", "--json"], more].concat())
}

#[track_caller]
fn assert_same_bits(found: &Value, whole: &Value) {
    for hash in ["losses_hash", "weights_hash"] {
        assert_eq!(found[hash], whole[hash], "{hash}");
    }
}

#[test]
fn a_run_resumes_by_its_own_recipe() {
    let folder = Folder::new();
    let whole = folder.json(&train("run.dir=whole", &[]));
    folder.json(&train("run.dir=half", &["--stop-after", "5"]));
    let rest = resume(&folder, "half", &[]);
    assert_same_bits(&rest, &whole);
    assert_eq!(rest["run_dir"], "half-2", "the folder of the recipe is taken");
    let rest = resume(&folder, "half", &["--workers", "2", "--set", "run.dir=two"]);
    assert_same_bits(&rest, &whole);
    assert_eq!((&rest["run_dir"], &rest["workers"]), (&"two".into(), &2.into()));
}

/// Settings of a run whose largest micro-batch has four sequences.
const TWO_LEAVES: [&str; 4] = ["--set", "numerics.invariant_up_to=2", "--set", "train.batch=8"];
const AUTOMATIC: [&str; 4] = ["--set", "train.microbatch=auto", "--set", "parallel.recompute=auto"];

/// Bits depend on the micro-batch size, so a run that is resumed with `auto` keeps its own.
#[test]
fn an_automatic_micro_batch_is_that_of_the_run_to_resume() {
    let folder = Folder::new();
    let one = [&TWO_LEAVES[..], &["--set", "train.microbatch=1"]].concat();
    let whole = folder.json(&train("run.dir=whole", &one));
    folder.json(&train("run.dir=half", &[&one[..], &["--stop-after", "5"]].concat()));
    let with_recipe = [&["--resume", "half"][..], &TWO_LEAVES, &AUTOMATIC].concat();
    assert_same_bits(&folder.json(&train("run.dir=rest", &with_recipe)), &whole);
    assert_same_bits(&resume(&folder, "half", &AUTOMATIC), &whole);
}

#[test]
fn automatic_settings_are_printed_and_recorded_and_are_those_of_every_worker() {
    let folder = Folder::new();
    let four = [&TWO_LEAVES[..], &["--set", "train.microbatch=4"]].concat();
    let whole = folder.json(&train("run.dir=four", &four));
    let fixed = ["train", "--preset", "tiny", "--steps", "12", "--workers", "2", "--json"];
    let new = [&fixed[..], &["--set", "run.dir=new"], &TWO_LEAVES, &AUTOMATIC].concat();
    let Finished { stdout, stderr, .. } = folder.succeed(&new);
    let line = "chosen by memory: train.microbatch = 4 and parallel.recompute = none, which takes ";
    assert_eq!(stderr.matches(line).count(), 1, "{stderr}");
    assert_same_bits(&serde_json::from_str(&stdout).unwrap(), &whole);
    let recorded = String::from_utf8(folder.read("new/recipe.toml")).unwrap();
    for line in ["\nmicrobatch = 4\n", "\nrecompute = \"none\"\n"] {
        assert!(recorded.contains(line), "{recorded}");
    }
}

#[test]
fn checkpoints_resume_by_their_own_recipe() {
    let folder = Folder::new();
    let whole = folder.json(&train("run.dir=whole", &["--set", "checkpoint.every=4"]));
    for place in ["whole/checkpoints", "whole/checkpoints/step-00000004"] {
        assert_same_bits(&resume(&folder, place, &[]), &whole);
    }
}

#[test]
fn a_key_that_may_not_change_is_refused_with_both_values() {
    let folder = Folder::new();
    folder.json(&train("run.dir=half", &["--stop-after", "5"]));
    let resume = ["train", "--resume", "half", "--set", "run.dir=next"];
    let with = |more: &[&'static str]| [&resume[..], more].concat();
    let parts = ["train.steps = 12 there, train.steps = 9 here", "only run.*, parallel.*"];
    refused(&folder, &with(&["--steps", "9"]), &parts);
    refused(&folder, &with(&["--set", "train.seed=7"]), &["train.seed = 1 there, train.seed = 7"]);
    // A preset is another recipe, and the error says how to keep that of the run.
    let of_run = "--resume takes the recipe of the run";
    let preset = ["--preset", "tiny", "--set", "train.batch=16"];
    refused(&folder, &with(&preset), &["train.steps = 12 there", "train.batch = 8 there", of_run]);
    // More steps are refused where they change the learning rate of those before.
    let parts = ["with train.steps = 20 the learning rate", "which has train.steps = 12", of_run];
    refused(&folder, &with(&["--steps", "20"]), &parts);
}

#[test]
fn a_run_without_a_checkpoint_restarts_by_the_printed_command() {
    let folder = Folder::new();
    let whole = folder.json(&train("run.dir=it's a run", &[]));
    folder.write("killed/recipe.toml", &folder.read("it's a run/recipe.toml"));
    let events = String::from_utf8(folder.read("it's a run/events.jsonl")).expect("text");
    let parts = ["\"run_started\"", "\"step\",\"step\":1,", "\"step\",\"step\":2,"];
    let is_early =
        |line: &&str| parts.iter().any(|part| line.contains(&format!("\"event\":{part}")));
    let early: String = events.split_inclusive('\n').filter(is_early).collect();
    folder.write("killed/events.jsonl", early.as_bytes());

    let Finished { code, stdout, stderr } = folder.run(&["train", "--resume", "killed"]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    let [error, command] = stderr.lines().collect::<Vec<_>>()[..] else { panic!("{stderr}") };
    let expected = "error: killed has no checkpoint to resume from: it trained 2 of 12 steps and \
                    saved none";
    assert!(error.starts_with(expected), "{error}");
    assert!(command.contains(" train killed/recipe.toml --set "), "{command}");
    let mut shell = folder.shell(&format!("{command} --quiet --json"));
    let restarted = Finished::new(shell.output().expect("a shell"));
    assert_eq!(restarted.code, Some(0), "{}", restarted.stderr);
    let restarted: Value = serde_json::from_str(&restarted.stdout).expect("one JSON value");
    assert_same_bits(&restarted, &whole);
    assert_eq!(restarted["run_dir"], "it's a run-2");
}

//! `train.epochs`: the number of steps follows from the data.

use crate::bad_input::refused;
use crate::process::Folder;
use serde_json::Value;

/// Trains the smallest model on the conversations of a folder.
fn of_chat<'a>(command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec![command, "--preset", "tiny", "--json"];
    let sets = [
        "data.format=chat",
        "data.source=chat.jsonl",
        "data.validation=0.2",
        "finetune.chat_template=chatml",
        "model.context=64",
        "train.eval_every=0",
    ];
    arguments.extend(sets.iter().flat_map(|set| ["--set", set]));
    arguments.extend(more);
    arguments
}

fn folder() -> Folder {
    let folder = Folder::new();
    let line = |number: usize| {
        let (question, answer) = (format!("Say {number}."), format!("It is {number}."));
        format!(r#"{{"prompt": "{question}", "completion": "{answer}"}}"#) + "\n"
    };
    folder.write("chat.jsonl", (0..37).map(line).collect::<String>().as_bytes());
    folder
}

#[test]
fn epochs_make_the_steps_that_the_data_need_on_every_layout_and_resume() {
    let folder = folder();
    let two = ["--set", "train.epochs=2", "--set", "run.dir=one"];
    let one = folder.succeed(&of_chat("train", &two));
    let run: Value = serde_json::from_str(&one.stdout).unwrap();
    let number = |value: &Value| value.as_u64().unwrap();
    let (num_train, steps) = (number(&run["conversations"]["train"]), number(&run["steps"]));
    let plan = folder.json(&of_chat("plan", &two));
    assert_eq!(steps, (2 * num_train).div_ceil(number(&plan["batch"])));
    assert_eq!(number(&plan["steps"]), steps);
    let line = format!("2 epochs of the data = {steps} steps\n");
    assert!(one.stderr.contains(&line), "{}", one.stderr);
    let recorded = String::from_utf8(folder.read("one/recipe.toml")).unwrap();
    for line in [format!("\nsteps = {steps}\n"), "\nepochs = 2.0\n".to_owned()] {
        assert!(recorded.contains(&line), "{recorded}");
    }

    // The same run by its number of steps, on two workers, and in two parts.
    let count = steps.to_string();
    let hashes = ["losses_hash", "weights_hash", "recipe_hash"].map(|name| run[name].clone());
    let same = |run: &Value| {
        assert_eq!(run["steps"], steps);
        assert_eq!(
            ["losses_hash", "weights_hash", "recipe_hash"].map(|name| run[name].clone()),
            hashes
        );
    };
    same(&folder.json(&of_chat("train", &["--quiet", "--steps", &count])));
    for layout in [&["run.isolation=processes", "parallel.zero=1"][..], &["parallel.pipeline=2"]] {
        let mut arguments =
            of_chat("train", &["--quiet", "--workers", "2", "--set", "train.epochs=2"]);
        arguments.extend(layout.iter().flat_map(|set| ["--set", set]));
        same(&folder.json(&arguments));
    }
    let part = ["--quiet", "--set", "train.epochs=2", "--stop-after", "3", "--set", "run.dir=part"];
    folder.json(&of_chat("train", &part));
    same(&folder.json(&["train", "--resume", "part", "--quiet", "--json"]));
}

#[test]
fn two_lengths_and_data_without_one_are_refused() {
    let folder = folder();
    let both = of_chat("train", &["--steps", "5", "--set", "train.epochs=2"]);
    refused(
        &folder,
        &both,
        &["train.epochs = 2.0 is the length", "and train.steps = 5 is another"],
    );
    folder.write("both.toml", b"[train]\nsteps = 5\nepochs = 2\n");
    let parts =
        ["both.toml:3: train.epochs = 2.0 makes ", "steps of this data, and train.steps = 5;"];
    refused(&folder, &["train", "both.toml"], &parts);
    // An argument is stronger than a file.
    folder.write("epochs.toml", b"[train]\nepochs = 2\n");
    assert_eq!(
        folder.json(&["plan", "epochs.toml", "--json", "--set", "train.steps=5"])["steps"],
        5
    );
    folder.write("steps.toml", b"[train]\nsteps = 5\n");
    let plan = folder.json(&["plan", "steps.toml", "--json", "--set", "train.epochs=1"]);
    assert!(plan["steps"].as_u64() > Some(5), "{plan}");

    let mixture = "data.mixture=[{source = \"chat.jsonl\", weight = 1, field = \"prompt\"}]";
    let sets = ["--set", "train.epochs=1", "--set", mixture];
    let streamed = [&["plan", "--preset", "tiny"][..], &sets].concat();
    let parts = ["train.epochs = 1.0 is a number of passes, and data.mixture", "set train.steps"];
    refused(&folder, &streamed, &parts);
}

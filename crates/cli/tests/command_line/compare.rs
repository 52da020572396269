//! `lockstep compare`: two runs, bit for bit.

use crate::process::{Finished, Folder, assert_keys};
use serde_json::{Value, json};

const KEYS: &str = "equal run_a run_b recipe layout steps_a steps_b common_steps equal_steps
    first_step weights optimizer notes";

/// Trains three steps of the smallest model into `dir`.
fn train(folder: &Folder, dir: &str, more: &[&str]) {
    let dir = format!("run.dir={dir}");
    let tiny = ["train", "--preset", "tiny", "--set", "train.steps=3", "--quiet", "--set", &dir];
    folder.succeed(&[&tiny[..], more].concat());
}

fn compare(folder: &Folder, a: &str, b: &str) -> Value {
    let report = folder.json(&["compare", a, b, "--json"]);
    assert_keys(&report, KEYS);
    report
}

fn text(folder: &Folder, a: &str, b: &str) -> String {
    let finished = folder.succeed(&["compare", a, b]);
    assert_eq!(finished.stderr, "");
    finished.stdout
}

/// Flips the lowest bit of one element of one tensor in a file of weights.
fn flip(folder: &Folder, file: &str, tensor: &str, element: usize) {
    let mut bytes = folder.read(file);
    let header_bytes = u64::from_le_bytes(*bytes.first_chunk().expect("a length")) as usize;
    let data = 8 + header_bytes;
    let header: Value = serde_json::from_slice(&bytes[8..data]).expect("the header is JSON");
    let start = header[tensor]["data_offsets"][0].as_u64().expect("an offset") as usize;
    bytes[data + start + 4 * element] ^= 1;
    folder.write(file, &bytes);
}

#[test]
fn two_runs_of_one_recipe_are_bit_identical_in_any_layout() {
    let folder = Folder::new();
    train(&folder, "a", &["--set", "run.threads=1"]);
    train(&folder, "b", &["--set", "run.threads=2"]);
    let report = compare(&folder, "a", "b");
    assert_eq!(report["equal"], true, "{report}");
    assert_eq!([&report["common_steps"], &report["equal_steps"]], [3, 3]);
    assert_eq!([&report["recipe"], &report["notes"]], [&json!([]), &json!([])]);
    assert_eq!(report["layout"], json!([{"key": "run.threads", "a": 1, "b": 2}]));
    for file in ["weights", "optimizer"] {
        assert!(report[file]["num_compared"].as_u64() > Some(0), "{report}");
        assert_eq!(report[file]["first"], Value::Null);
    }
    let text = text(&folder, "a", "b");
    assert!(text.starts_with("bit-identical: a (A, 3 steps) and b (B, 3)\n"), "{text}");
    assert_eq!(folder.run(&["compare", "a", "b", "--exit-code"]).code, Some(0));
}

#[test]
fn another_seed_differs_from_the_first_step_and_tensor_on() {
    let folder = Folder::new();
    train(&folder, "a", &[]);
    train(&folder, "b", &["--set", "train.seed=2"]);
    let report = compare(&folder, "a", "b");
    assert_eq!([&report["equal"], &report["equal_steps"]], [&json!(false), &json!(0)]);
    assert_eq!(report["recipe"], json!([{"key": "train.seed", "a": 1, "b": 2}]));
    let first = &report["first_step"];
    assert_eq!(first["step"], 1);
    let [a, b] = [&first["a"], &first["b"]].map(|loss| loss.as_f64().expect("a loss"));
    // Losses have equal sign and exponent, so the distance of their bits is in ulps.
    assert_eq!(first["ulps"], a.to_bits().abs_diff(b.to_bits()));
    assert_eq!(first["relative"], (a - b).abs() / a.max(b));
    let summary: Value = serde_json::from_slice(&folder.read("b/summary.json")).expect("JSON");
    assert_eq!(summary["first_loss"].as_f64(), Some(b));
    let embedding = "model.embed_tokens.weight";
    assert_eq!([&report["weights"]["first"]["tensor"]], [embedding]);
    let text = text(&folder, "a", "b");
    for part in ["different:", "train.seed: A 1, B 2", "equal for 0 steps; at step 1", "ulps"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn one_flipped_bit_is_found_by_tensor_and_element() {
    let folder = Folder::new();
    train(&folder, "a", &[]);
    train(&folder, "b", &[]);
    let tensor = "model.layers.1.mlp.down_proj.weight";
    flip(&folder, "b/model.safetensors", tensor, 7);
    let report = compare(&folder, "a", "b");
    assert_eq!([&report["equal"], &report["equal_steps"]], [&json!(false), &json!(3)]);
    let first = &report["weights"]["first"];
    assert_eq!(
        [&first["tensor"], &first["element"], &first["ulps"]],
        [&json!(tensor), &json!(7), &json!(1)]
    );
    assert_ne!(first["a"], first["b"], "both have all digits");
    let worst = report["weights"]["worst"].as_array().expect("a list");
    assert_eq!(worst.len(), 1, "{worst:?}");
    assert_eq!([&worst[0]["tensor"], &worst[0]["max_ulps"]], [&json!(tensor), &json!(1)]);
    assert_eq!(worst[0]["differing_share"], 1.0 / (32.0 * 96.0));
    assert_eq!(report["optimizer"]["worst"], json!([]));
    let text = text(&folder, "a", "b");
    assert!(text.contains(&format!("first {tensor}, element 7: A ")), "{text}");
    assert!(text.contains(": 1 ulp\n") && text.contains(" 1 of 3072 "), "{text}");

    // Tensors are in the order of the model, not of the alphabet.
    let earlier = "model.layers.1.self_attn.v_proj.weight";
    flip(&folder, "b/model.safetensors", earlier, 0);
    flip(&folder, "b/optimizer.safetensors", &format!("{tensor}.v"), 5);
    let report = compare(&folder, "a", "b");
    assert_eq!(report["weights"]["first"]["tensor"], earlier);
    assert_eq!(report["optimizer"]["first"]["tensor"], format!("{tensor}.v"));

    let Finished { code, stdout, stderr } = folder.run(&["compare", "a", "b", "--exit-code"]);
    assert_eq!((code, stderr.as_str()), (Some(5), ""));
    assert!(stdout.starts_with("different:"), "{stdout}");
}

#[test]
fn runs_of_different_lengths_are_compared_on_common_steps() {
    let folder = Folder::new();
    train(&folder, "whole", &[]);
    train(&folder, "part", &["--stop-after", "2"]);
    let report = compare(&folder, "part", "whole");
    assert_eq!([&report["steps_a"], &report["steps_b"]], [2, 3]);
    assert_eq!([&report["common_steps"], &report["equal_steps"]], [2, 2]);
    assert_eq!([&report["equal"], &report["weights"]], [&json!(false), &Value::Null]);
    let note = "weights are not compared: A saved them after step 2, B after step 3";
    assert_eq!(report["notes"], json!([note]));
    let text = text(&folder, "part", "whole");
    assert!(text.contains("equal for all 2 common steps"), "{text}");
    assert!(text.contains(note), "{text}");

    // Saved after the same step, but one trained on before it was killed.
    for file in ["recipe.toml", "state.json", "model.safetensors", "optimizer.safetensors"] {
        folder.write(&format!("further/{file}"), &folder.read(&format!("part/{file}")));
    }
    folder.write("further/events.jsonl", &folder.read("whole/events.jsonl"));
    let report = compare(&folder, "part", "further");
    assert_eq!([&report["steps_b"], &report["equal_steps"]], [3, 2]);
    assert_eq!([&report["weights"]["worst"], &report["equal"]], [&json!([]), &json!(false)]);

    // A resumed run has the losses from before and equals the uninterrupted one.
    train(&folder, "rest", &["--resume", "part"]);
    assert_eq!(compare(&folder, "rest", "whole")["equal"], true);
    // Without saved state its events have the losses from before.
    train(&folder, "bare", &["--resume", "part", "--set", "run.save_optimizer=false"]);
    let no_optimizer = "optimizer state is not compared: a run did not save it";
    let report = compare(&folder, "bare", "whole");
    assert_eq!([&report["equal"], &report["common_steps"]], [&json!(true), &json!(3)]);
    assert_eq!(report["notes"], json!([no_optimizer]));
    // Without the earlier events only its own steps are known, which a note reports.
    let events = String::from_utf8(folder.read("bare/events.jsonl")).expect("events are text");
    let is_earlier =
        |line: &&str| ["\"step\":1,", "\"step\":2,"].iter().any(|step| line.contains(step));
    let own: String = events.split_inclusive('\n').filter(|line| !is_earlier(line)).collect();
    folder.write("bare/events.jsonl", own.as_bytes());
    let report = compare(&folder, "bare", "whole");
    assert_eq!([&report["equal"], &report["common_steps"]], [&json!(true), &json!(1)]);
    assert_eq!(report["notes"], json!(["losses of A are known from step 3 on only", no_optimizer]));
}

#[test]
fn a_run_that_was_stopped_is_compared_by_its_checkpoint() {
    let folder = Folder::new();
    train(&folder, "whole", &["--set", "checkpoint.every=2"]);
    train(&folder, "part", &["--stop-after", "2"]);
    // The files of a run that Ctrl-C has stopped after its second step.
    folder.write("stopped/recipe.toml", &folder.read("whole/recipe.toml"));
    folder.write("stopped/events.jsonl", &folder.read("part/events.jsonl"));
    let checkpoints = folder.path().join("whole/checkpoints");
    for (path, bytes) in folder.content() {
        if let Ok(name) = path.strip_prefix(&checkpoints)
            && path.is_file()
        {
            folder.write(&format!("stopped/checkpoints/{}", name.display()), &bytes);
        }
    }
    let from_checkpoint = "weights of B are those of its checkpoint after step 2";
    let report = compare(&folder, "part", "stopped");
    assert_eq!(report["equal"], true, "{report}");
    assert_eq!(report["notes"], json!([from_checkpoint]));
    let finished = compare(&folder, "part", "part");
    for file in ["weights", "optimizer"] {
        assert!(report[file]["num_compared"].as_u64() > Some(0), "{report}");
        assert_eq!(report[file]["num_compared"], finished[file]["num_compared"], "{file}");
        assert_eq!(report[file]["unmatched"], json!([]), "{file}");
    }
    let other = "weights are not compared: A saved them after step 3, B after step 2";
    let report = compare(&folder, "whole", "stopped");
    assert_eq!(
        [&report["equal"], &report["notes"]],
        [&json!(false), &json!([from_checkpoint, other])]
    );
    // A run that trained on after its last checkpoint has other weights at its end.
    folder.write("stopped/events.jsonl", &folder.read("whole/events.jsonl"));
    let report = compare(&folder, "stopped", "stopped");
    assert_eq!([&report["steps_a"], &report["equal"]], [&json!(3), &json!(false)]);
}

#[test]
fn a_run_that_was_killed_is_compared_by_its_events() {
    let folder = Folder::new();
    train(&folder, "whole", &[]);
    folder.write("killed/recipe.toml", &folder.read("whole/recipe.toml"));
    let events = String::from_utf8(folder.read("whole/events.jsonl")).expect("events are text");
    let lines: Vec<&str> = events.split_inclusive('\n').collect();
    folder.write("killed/events.jsonl", lines[..3].concat().as_bytes());
    let report = compare(&folder, "whole", "killed");
    assert_eq!([&report["steps_b"], &report["equal_steps"]], [2, 2]);
    assert_eq!(report["notes"], json!(["weights are not compared: B saved none"]));

    folder.write("killed/events.jsonl", format!("{}{{\n{}", lines[0], lines[1]).as_bytes());
    let Finished { code, stdout, stderr } = folder.run(&["compare", "whole", "killed"]);
    assert_eq!((code, stdout.as_str(), stderr.lines().count()), (Some(4), "", 1), "{stderr}");
    assert!(stderr.starts_with("error: killed/events.jsonl cannot be read: line 2"), "{stderr}");
}

#[test]
fn different_models_differ_in_recipe_and_tensors() {
    let folder = Folder::new();
    train(&folder, "a", &[]);
    train(&folder, "b", &["--set", "model.layers=1", "--set", "model.ffn=64"]);
    let report = compare(&folder, "a", "b");
    assert_eq!(report["equal"], false);
    let keys: Vec<_> = report["recipe"].as_array().into_iter().flatten().collect();
    assert_eq!(
        keys,
        [
            &json!({"key": "model.ffn", "a": 96, "b": 64}),
            &json!({"key": "model.layers", "a": 2, "b": 1}),
        ]
    );
    let unmatched = report["weights"]["unmatched"].as_array().expect("a list");
    let gate = "model.layers.0.mlp.gate_proj.weight";
    let shapes = json!({"tensor": gate, "shape_a": [96, 32], "shape_b": [64, 32]});
    assert_eq!(unmatched[0], shapes, "the first in the model's order");
    let last = unmatched.last().expect("a layer is missing");
    assert_eq!(last["tensor"], "model.layers.1.mlp.down_proj.weight");
    assert_eq!(last["shape_b"], Value::Null);
    let text = text(&folder, "a", "b");
    assert!(text.contains("gate_proj.weight: A [96, 32], B [64, 32]\n"), "{text}");
    assert!(text.contains("more (--json has all)\n"), "{text}");
    assert!(text.lines().count() < 20, "a few lines: {text}");
}

#[test]
fn a_changed_corpus_is_reported() {
    let folder = Folder::new();
    for (dir, text) in [("a", "ab cd "), ("b", "ab ce ")] {
        folder.write("book.txt", text.repeat(500).as_bytes());
        train(&folder, dir, &["--set", "data.source=book.txt"]);
    }
    let report = compare(&folder, "a", "b");
    assert_eq!(report["equal"], false);
    let recipe = report["recipe"].as_array().expect("a list");
    assert_eq!(recipe.len(), 1, "{recipe:?}");
    assert_eq!(recipe[0]["key"], "corpus");
    assert_ne!(recipe[0]["a"], recipe[0]["b"]);
}

#[test]
fn a_folder_without_a_run_is_refused_in_one_line() {
    let folder = Folder::new();
    train(&folder, "a", &[]);
    folder.write("empty/recipe.toml", &folder.read("a/recipe.toml"));
    for (a, b, expected) in [
        ("a", "nowhere", "nowhere does not exist"),
        ("nowhere", "a", "nowhere does not exist"),
        ("a", "a/recipe.toml", "a/recipe.toml holds no finished run"),
        ("empty", "a", "empty holds no finished run (no events.jsonl)"),
    ] {
        let Finished { code, stdout, stderr } = folder.run(&["compare", a, b, "--exit-code"]);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
        assert!(stderr.starts_with(&format!("error: {expected}")), "{stderr}");
        assert!(stderr.contains("`lockstep train`"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    assert_eq!(folder.run(&["compare", "a"]).code, Some(2));
}

//! `lockstep plan`: forecasts, refusals and drawings.

use crate::process::{Folder, assert_keys};

/// What is said when it ends with the code of bad input.
pub(crate) fn refusal(folder: &Folder, arguments: &[&str]) -> String {
    let finished = folder.run(arguments);
    assert_eq!(finished.code, Some(2), "{arguments:?}: {}", finished.stderr);
    finished.stderr
}

#[test]
fn a_plan_has_the_names_that_scripts_rely_on() {
    let folder = Folder::new();
    let sets = ["--set", "run.workers=3", "--set", "parallel.zero=2"];
    let plan = folder.json(&[&["plan", "--preset", "tiny", "--json"], &sets[..]].concat());
    let names = "feasible memory step_seconds compute_seconds exposed_communication_seconds \
        bubble_fraction mfu tokens_per_second days dollars layout alternatives";
    assert_keys(&plan, names);
    let memory = &plan["memory"];
    let parts = ["weights", "gradients", "optimizer", "activations", "buffers"];
    let sum: u64 = parts.iter().filter_map(|part| memory[format!("{part}_bytes")].as_u64()).sum();
    assert_eq!(memory["total_bytes"].as_u64(), Some(sum));
    assert_eq!(plan["memory_by_rank"].as_array().map(Vec::len), Some(3));
    assert_eq!(plan["wire_is_exact"], true);
}

#[test]
fn what_does_not_fit_is_refused_before_anything_starts() {
    let folder = Folder::new();
    let huge = ["model.width=16384", "model.heads=128", "model.layers=200", "run.workers=4"];
    for command in ["plan", "train"] {
        let mut arguments = vec![command];
        for set in huge {
            arguments.extend(["--set", set]);
        }
        let error = refusal(&folder, &arguments);
        assert!(error.starts_with("error: run.workers = 4 takes "), "{error}");
        assert!(error.contains(" of memory and this machine has "), "{error}");
        assert!(error.contains("the largest part, optimizer, takes "), "{error}");
        assert!(error.contains("; try model.layers = 1, model.width = "), "{error}");
    }
}

#[test]
fn closed_forms_stand_beside_the_prices_of_schedules() {
    let folder = Folder::new();
    let report = folder.json(&["plan", "collectives", "--bytes", "8KiB,8MiB", "--json"]);
    let rows = report["rows"].as_array().expect("a list");
    assert_eq!(rows.len(), 8, "four algorithms, two lengths");
    for row in rows {
        let [closed, priced] = ["closed_form_seconds", "schedule_seconds"]
            .map(|name| row[name].as_f64().expect("a number"));
        assert!((closed / priced - 1.0).abs() < 1e-9, "{row}");
    }
    let error = refusal(&folder, &["plan", "collectives", "--bytes", "8 parsecs"]);
    assert!(error.contains("is not a number of bytes; try"), "{error}");
    let error = refusal(&folder, &["plan", "collectives", "--ranks", "1"]);
    assert!(error.contains("--ranks 1 is not between 2 and 512; try 8"), "{error}");
}

#[test]
fn timelines_are_drawn_and_measured() {
    let folder = Folder::new();
    let rows = folder.json(&[
        "plan",
        "timeline",
        "--schedule",
        "gpipe,1f1b,interleaved,zero-bubble",
        "--svg",
        "picture.svg",
        "--json",
    ]);
    let bubbles: Vec<String> = rows
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| format!("{:.4}", row["bubble_fraction"].as_f64().expect("a number")))
        .collect();
    assert_eq!(bubbles, ["0.2727", "0.2727", "0.1579", "0.1111"]);
    let picture = String::from_utf8(folder.read("picture.svg")).expect("text");
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    let error = refusal(&folder, &["plan", "timeline", "--schedule", "2f1b"]);
    assert!(error.starts_with("error: `2f1b` is no schedule; try gpipe, 1f1b"), "{error}");
    let error = refusal(&folder, &["plan", "timeline", "--forward=-1"]);
    assert!(error.contains("--forward -1 is no time"), "{error}");
}

#[test]
fn what_is_not_counted_is_said_and_not_forecast() {
    let folder = Folder::new();
    for (set, cause) in [
        ("sync.mode=local-sgd", "sync.mode = \"local-sgd\""),
        ("compress.method=int8", "compress.method = \"int8\""),
    ] {
        let sets = ["--preset", "tiny", "--set", set, "--set", "run.workers=2"];
        let text = folder.succeed(&[&["plan"], &sets[..]].concat()).stdout;
        assert!(text.contains(&format!("what {cause} sends and keeps is not counted")), "{text}");
        assert!(!text.contains("together exactly"), "{text}");
        let report = folder.json(&[&["plan", "--json"], &sets[..]].concat());
        assert_eq!(report["wire_is_exact"], false, "{report}");
        let steps = ["--set", "train.steps=2", "--set", "train.eval_every=0"];
        let run = folder.succeed(&[&["train"], &sets[..], &steps[..]].concat());
        assert!(run.stderr.contains(&format!("what {cause} adds is not counted")), "{run:?}");
    }
}

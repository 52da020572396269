//! `lockstep plan`: predictions, refusals and drawings.

use crate::process::{Finished, Folder, assert_keys};
use serde_json::{Value, json};

/// The error of a command that must exit with 2.
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
        bubble_fraction mfu tokens_per_second days dollars layout alternatives \
        tflops_per_device tokens_per_second_per_device batch context precision";
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

/// The output of `plan` with this calibration file.
fn plan_with(folder: &Folder, measured: &[u8], compute: &str) -> String {
    folder.write("measured.json", measured);
    let compute = format!("precision.compute={compute}");
    let mut command = folder.command(&["plan", "--preset", "tiny", "--set", &compute]);
    command.env("LOCKSTEP_CALIBRATION", folder.path().join("measured.json"));
    let finished = Finished::new(command.output().expect("the binary starts"));
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    finished.stdout
}

#[test]
fn step_time_is_predicted_in_calibrated_formats_only() {
    let folder = Folder::new();
    let world = lockstep_platform::real();
    let format = |compute: &str, flops_per_second: f64| {
        json!({
            "compute": compute, "peak_flops_per_second": 1e12, "score_seconds": 0.0,
            "points": [{"width": 64, "flops_per_second": flops_per_second}],
            "block_seconds": 0.0, "block_seconds_alone": 0.0, "microbatch_seconds_per_param": 0.0,
        })
    };
    let mut machine = json!({
        "version": 4, "host": world.host().name(), "cores": world.threads().available(),
        "kernels": "portable", "formats": [format("f32", 1e9), format("bf16", 4e9)],
        "sums": [{"len": 1, "seconds_per_element": 0.0}], "update_seconds_per_param": 0.0,
        "step_overhead_seconds": 0.0, "latency_factor": 0.0, "transfer_factor": 1e-9,
    });
    let plan = |machine: &Value, compute: &str| {
        plan_with(&folder, machine.to_string().as_bytes(), compute)
    };
    let [slow, fast] = ["f32", "bf16"].map(|compute| plan(&machine, compute));
    assert!(slow.contains(" per step: ") && fast.contains(" per step: "), "{slow}{fast}");
    assert_ne!(slow, fast, "each has its own speed");
    let missing = plan(&machine, "fp16");
    let help = "calibrated in f32 and bf16 only; lockstep plan calibrate --formats f32,bf16,fp16 \
                adds fp16";
    assert!(missing.contains(help), "{missing}");
    machine["host"] = json!("elsewhere");
    let other = plan(&machine, "f32");
    assert!(other.contains(" is of elsewhere with "), "{other}");
    let old = plan(&json!({"version": 3, "host": "here"}), "f32");
    assert!(old.contains("is of another version; lockstep plan calibrate"), "{old}");
    let damaged = plan_with(&folder, b"{\"version\": 4}", "f32");
    assert!(damaged.contains("is not a readable calibration"), "{damaged}");
    let error = refusal(&folder, &["plan", "calibrate", "--formats", "f32,int4"]);
    assert!(error.contains("--formats int4 is not known; try f32, bf16, fp16"), "{error}");
}

#[test]
fn closed_forms_equal_the_cost_of_schedules() {
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
fn timelines_are_drawn_with_their_bubble() {
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
    assert!(error.contains("--forward -1 is not a time"), "{error}");
}

#[test]
fn unmodelled_traffic_is_reported_and_not_predicted() {
    let folder = Folder::new();
    let auto = &["sync.mode=local-sgd", "sync.local_steps=auto"][..];
    for (more, cause) in [
        (&["sync.mode=parameter-server"][..], "sync.mode = \"parameter-server\""),
        (auto, "sync.local_steps = \"auto\""),
    ] {
        let sets = two_workers(more);
        let text = folder.succeed(&[&["plan"], &sets[..]].concat()).stdout;
        assert!(
            text.contains(&format!("communication and memory of {cause} are not counted")),
            "{text}"
        );
        assert!(!text.contains("in total exactly"), "{text}");
        let report = folder.json(&[&["plan", "--json"], &sets[..]].concat());
        assert_eq!(report["wire_is_exact"], false, "{report}");
        let run = folder.succeed(&[&["train"], &sets[..]].concat());
        assert!(run.stderr.contains(&format!("{cause} is not modelled")), "{run:?}");
        assert!(!run.stdout.contains("predicted "), "{run:?}");
    }
}

#[test]
fn traffic_of_local_sgd_and_compression_is_predicted_exactly() {
    let folder = Folder::new();
    for more in
        [["sync.mode=local-sgd", "sync.local_steps=2"], ["compress.method=int8", "optim.lr=0.01"]]
    {
        let sets = two_workers(&more);
        let text = folder.succeed(&[&["plan"], &sets[..]].concat()).stdout;
        assert!(text.contains("in total exactly"), "{text}");
        let run = folder.json(&[&["train", "--json"], &sets[..]].concat());
        assert_eq!(run["predicted_wire_bytes"], run["wire_bytes"], "{more:?}");
        assert!(run["predicted_peak_bytes"].as_u64() > Some(0), "{more:?}");
    }
}

/// Arguments for a short run of two workers.
fn two_workers<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut sets = vec!["--preset", "tiny"];
    let always = ["run.workers=2", "train.steps=2", "train.eval_every=0"];
    sets.extend(always.iter().chain(more).flat_map(|set| ["--set", *set]));
    sets
}

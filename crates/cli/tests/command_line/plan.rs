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
    let parts = ["weights", "gradients", "optimizer", "activations", "buffers", "checkpoint"];
    let sum: u64 = parts.iter().filter_map(|part| memory[format!("{part}_bytes")].as_u64()).sum();
    assert_eq!(memory["total_bytes"].as_u64(), Some(sum));
    assert_eq!(plan["memory_by_rank"].as_array().map(Vec::len), Some(3));
    assert_eq!(plan["wire_is_exact"], true);
    for isolation in ["threads", "processes"] {
        let set = format!("run.isolation={isolation}");
        let plan = folder.json(&["plan", "--preset", "tiny", "--json", "--set", &set]);
        let process = &plan["peak_process"];
        let parts = ["ranks_bytes", "mapped_bytes", "overhead_bytes"];
        let sum: u64 = parts.iter().filter_map(|part| process[part].as_u64()).sum();
        assert_eq!(process["total_bytes"].as_u64(), Some(sum), "{process}");
        assert_eq!(plan["peak_process_bytes"].as_u64(), Some(sum), "{process}");
        let text = folder.succeed(&["plan", "--preset", "tiny", "--set", &set]).stdout;
        assert!(text.contains(" of code, corpus and buffers of the process"), "{text}");
    }
}

#[test]
fn a_plan_counts_the_copy_of_a_checkpoint_as_the_run_makes_it() {
    let folder = Folder::new();
    let tensor = ["run.workers=4", "parallel.tensor=2", "numerics.invariant_tensor_up_to=2"];
    for (index, more) in [
        &["run.workers=1"][..],
        &["run.workers=2"],
        &["run.workers=2", "parallel.zero=1"],
        &["run.workers=2", "parallel.zero=3"],
        &["run.workers=2", "parallel.pipeline=2"],
        &["run.workers=2", "optim.name=sgd"],
        &["run.workers=2", "sync.mode=local-sgd", "sync.local_steps=1"],
        &tensor,
    ]
    .into_iter()
    .enumerate()
    {
        let dir = format!("run.dir=run{index}");
        let mut sets = vec!["--preset", "tiny"];
        let always = ["train.steps=3", "train.eval_every=0", "checkpoint.every=1", &dir];
        sets.extend(always.iter().chain(more).flat_map(|set| ["--set", *set]));
        let plan = folder.json(&[&["plan", "--json"], &sets[..]].concat());
        folder.succeed(&[&["train", "--quiet"], &sets[..]].concat());
        let events = String::from_utf8(folder.read(&format!("run{index}/events.jsonl")));
        let events = events.expect("text");
        let mut events = events.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        let saved = events.find(|event: &Value| event["event"] == "checkpoint_saved");
        // The first rank also saves the loss of the first step, in 8 bytes.
        let copied = saved.expect("an event")["bytes"].as_u64().expect("a number") - 8;
        let predicted = &plan["memory_by_rank"][0]["checkpoint_bytes"];
        assert_eq!(predicted.as_u64(), Some(copied), "{more:?}");
    }
}

#[test]
fn a_run_that_does_not_save_has_no_copy_in_its_forecast() {
    let folder = Folder::new();
    let copy = |more: &[&str]| {
        let plan = folder.json(&[&["plan", "--preset", "tiny", "--json"], more].concat());
        plan["memory"]["checkpoint_bytes"].as_u64().expect("a number")
    };
    assert!(copy(&["--set", "checkpoint.interval=bounded"]) > 0);
    assert_eq!(copy(&["--set", "checkpoint.interval=0", "--set", "checkpoint.every=0"]), 0);
    let line = |set: &str| {
        let run = ["train", "--preset", "tiny", "--set", "train.steps=1", "--set", set];
        folder.succeed(&run).stderr
    };
    let with = line("checkpoint.interval=bounded");
    assert!(
        with.contains("predicted: peak memory ") && with.contains(" for checkpoints)"),
        "{with}"
    );
    let without = line("checkpoint.interval=0");
    assert!(!without.contains("for checkpoints"), "{without}");
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
        let value = |key: &str| {
            let (_, value) = error.split_once(&format!("{key} = ")).expect("a suggestion");
            value.split([',', ' ']).next().and_then(|number| number.parse::<f64>().ok()).unwrap()
        };
        let shape = value("model.width") / value("model.layers") / (16384.0 / 200.0);
        assert!((0.5..=2.0).contains(&shape), "a model of a similar shape: {error}");
    }
}

#[test]
fn a_device_of_another_machine_is_planned_with_a_warning_and_refused_by_runs() {
    let folder = Folder::new();
    let absent = ["--preset", "tiny", "--set", "run.device=cuda:99"];
    let with = |command: &[&'static str]| [command, &absent].concat();
    let planned = folder.succeed(&with(&["plan"]));
    assert!(planned.stderr.starts_with("warning: "), "{}", planned.stderr);
    assert!(planned.stderr.contains("plan for another machine"), "{}", planned.stderr);
    assert!(planned.stdout.contains("peak on the device of the largest rank: "));
    assert!(planned.stdout.contains("calibrate --device cuda:99"), "{}", planned.stdout);
    let report = folder.json(&with(&["plan", "--json"]));
    let bytes = report["device_bytes_by_rank"].as_array().expect("a number for each rank");
    assert!(bytes.len() == 2 && bytes.iter().all(|bytes| bytes.as_u64() > Some(0)), "{bytes:?}");
    let on_cpu = folder.json(&["plan", "--preset", "tiny", "--json", "--set", "run.device=cpu"]);
    assert!(on_cpu["device_bytes_by_rank"].is_null());
    // Nothing is printed, and nothing is written, before the refusal.
    for command in [&["train"][..], &["drill"], &["bench", "train", "--by-operation"]] {
        let error = refusal(&folder, &with(command));
        assert!(error.starts_with("error: "), "{command:?}: {error}");
    }
    let calibrate = ["plan", "calibrate", "--device", "cuda:99"];
    assert!(refusal(&folder, &calibrate).starts_with("error: "));
    assert!(folder.content().is_empty());
}

/// The output of `plan` with this calibration file.
/// A plan of GPT-2 with automatic settings for a GPU that this machine lacks.
fn automatic_plan<'a>(device: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let sets = [
        "run.workers=1",
        "numerics.invariant_up_to=1",
        "precision.compute=bf16",
        "train.batch=64",
        "train.microbatch=auto",
        "parallel.recompute=auto",
    ];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let plan = ["plan", "memory", "--preset", "gpt2", "--device", device];
    plan.into_iter().chain(sets).chain(more.iter().copied()).collect()
}

#[test]
fn a_named_device_decides_the_automatic_settings() {
    let folder = Folder::new();
    let mut last = 0;
    for device in ["rtx4090", "a100-40gb", "h200"] {
        let plan = folder.json(&automatic_plan(device, &["--json"]));
        let automatic = &plan["automatic"];
        let bytes = |of: &Value| of.as_u64().unwrap_or_else(|| panic!("{automatic}"));
        let (chosen, needed) = (&automatic["chosen"], bytes(&automatic["chosen"]["needed_bytes"]));
        assert!(needed <= bytes(&automatic["usable_bytes"]), "{automatic}");
        assert!(bytes(&automatic["usable_bytes"]) < bytes(&automatic["memory_bytes"]));
        // The plan is that of the chosen settings.
        assert_eq!(plan["device_bytes_by_rank"], json!([needed]));
        assert_eq!(plan["layout"]["microbatch"], chosen["microbatch"]);
        assert_eq!(plan["layout"]["recompute"], chosen["recompute"]);
        let size = bytes(&chosen["microbatch"]);
        assert!(size >= last, "{device}: {automatic}");
        last = size;
    }
    assert_eq!(last, 64, "a whole batch fits into the largest device");
    let text = folder.succeed(&automatic_plan("a100-40gb", &[])).stdout;
    assert!(text.contains("chosen by memory: train.microbatch = "), "{text}");
    assert!(text.contains("; a100-40gb has 40 GiB, 37.6 GiB besides its reserve; "), "{text}");
}

#[test]
fn a_named_device_that_holds_nothing_is_refused_with_the_smallest_need() {
    let folder = Folder::new();
    let large =
        ["--set", "model.width=4096", "--set", "model.heads=32", "--set", "model.layers=48"];
    let error = refusal(&folder, &automatic_plan("a10", &large));
    let smallest = "even with train.microbatch = 1 and parallel.recompute = full, and a10-24gb has";
    assert!(error.contains(smallest), "{error}");
    assert!(error.contains("22.6 GiB besides its reserve"), "{error}");
    let error = refusal(&folder, &["plan", "--preset", "tiny", "--device", "mi300x"]);
    assert!(error.contains("--device mi300x-192gb does not run recipes; try "), "{error}");
    let error = refusal(&folder, &["plan", "--device", "a10", "--cluster", "8xh100"]);
    assert!(error.contains("--cluster names its devices; drop --device a10"), "{error}");
}

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
        "version": 5, "host": world.host().name(), "cores": world.threads().available(),
        "kernels": "portable", "formats": [format("f32", 1e9), format("bf16", 4e9)],
        "sums": [{"len": 1, "seconds_per_element": 0.0}], "update_seconds_per_param": 0.0,
        "serial_sums": [{"len": 1, "seconds_per_element": 0.0}], "compressors": [],
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
    let damaged = plan_with(&folder, b"{\"version\": 5}", "f32");
    assert!(damaged.contains("is not a readable calibration"), "{damaged}");
    let error = refusal(&folder, &["plan", "calibrate", "--formats", "f32,int4"]);
    assert!(error.contains("--formats int4 is not known; try f32, bf16, fp16, fp8"), "{error}");
}

#[test]
fn closed_forms_equal_the_cost_of_schedules() {
    let folder = Folder::new();
    let report = folder.json(&["plan", "collectives", "--bytes", "8KiB,8MiB", "--json"]);
    let rows = report["rows"].as_array().expect("a list");
    let mut compared = 0;
    for row in rows {
        let [closed, priced] =
            ["closed_form_seconds", "schedule_seconds"].map(|name| row[name].as_f64());
        if let (Some(closed), Some(priced)) = (closed, priced) {
            assert!((closed / priced - 1.0).abs() < 1e-9, "{row}");
            compared += 1;
        }
    }
    assert!(compared > 30, "{compared}");
    let has = |op: &str, algorithm: &str| {
        rows.iter().any(|row| row["op"] == op && row["algorithm"] == algorithm)
    };
    for algorithm in ["double-tree:8", "hierarchical", "parameter-server:1", "pairwise", "direct"] {
        assert!(has("all-reduce", algorithm), "{algorithm}");
    }
    for (op, algorithm) in [
        ("reduce-scatter", "halving"),
        ("all-gather", "doubling"),
        ("broadcast", "scatter-gather"),
        ("reduce", "tree"),
        ("scatter", "linear"),
        ("gather", "linear"),
        ("all-to-all", "pairwise"),
        ("barrier", "dissemination"),
    ] {
        assert!(has(op, algorithm), "{op} by {algorithm}");
    }
    // Fast nodes: a hierarchy crosses the slow links least.
    let nodes =
        ["--ranks", "16", "--per-node", "4", "--node-latency", "1", "--node-bandwidth", "200"];
    let one = ["plan", "collectives", "--op", "all-reduce", "--bytes", "64MiB"];
    let text = folder.succeed(&[&one[..], &nodes].concat()).stdout;
    let line = text.lines().find(|line| line.contains("hierarchical")).expect("a line");
    assert!(line.ends_with('*'), "{text}");
    let error = refusal(&folder, &["plan", "collectives", "--op", "all-reduced"]);
    assert!(error.contains("try all, or one of all-reduce, reduce-scatter"), "{error}");
    let error = refusal(&folder, &["plan", "collectives", "--per-node", "3"]);
    assert!(error.contains("--per-node 3 does not divide --ranks 8; try 2"), "{error}");
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
    let full = ["plan", "timeline", "--schedule", "pipedream"];
    let row = &folder.json(&[&full[..], &["--json"]].concat())[0];
    assert!(row["cycle_bubble_fraction"].as_f64().is_some_and(|idle| idle.abs() < 1e-9), "{row}");
    assert_eq!(row["weight_versions"], json!([4, 3, 2, 1]));
    let text = folder.succeed(&full).stdout;
    assert!(text.contains("24 ms per step once full, bubble 0.00 %"), "{text}");
    assert!(text.contains("weight versions by device 4 3 2 1"), "{text}");
    let error = refusal(&folder, &["plan", "timeline", "--schedule", "2f1b"]);
    assert!(error.starts_with("error: `2f1b` is no schedule; try gpipe, 1f1b"), "{error}");
    let error = refusal(&folder, &["plan", "timeline", "--forward=-1"]);
    assert!(error.contains("--forward -1 is not a time"), "{error}");
}

#[test]
fn unmodelled_traffic_is_reported_and_not_predicted() {
    let folder = Folder::new();
    let (sets, cause) = (two_workers(&["sync.stragglers=shares"]), "sync.stragglers = \"shares\"");
    let text = folder.succeed(&[&["plan"], &sets[..]].concat()).stdout;
    assert!(text.contains(&format!("communication of {cause} is not counted")), "{text}");
    assert!(!text.contains("in total exactly"), "{text}");
    let report = folder.json(&[&["plan", "--json"], &sets[..]].concat());
    assert_eq!(report["wire_is_exact"], false, "{report}");
    let run = folder.succeed(&[&["train"], &sets[..]].concat());
    assert!(run.stderr.contains(&format!("{cause} is not modelled")), "{run:?}");
    assert!(!run.stdout.contains("predicted "), "{run:?}");
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

#[test]
fn traffic_and_memory_of_servers_and_clients_are_predicted() {
    let folder = Folder::new();
    for more in [
        ["sync.mode=parameter-server", "sync.servers=2"],
        ["sync.mode=federated", "sync.local_steps=2"],
    ] {
        let sets = two_workers(&more);
        let text = folder.succeed(&[&["plan"], &sets[..]].concat()).stdout;
        assert!(text.contains("in total exactly"), "{text}");
        let run = folder.json(&[&["train", "--json"], &sets[..]].concat());
        assert_eq!(run["predicted_wire_bytes"], run["wire_bytes"], "{more:?}");
        assert!(run["predicted_peak_bytes"].as_u64() > Some(0), "{more:?}");
    }
}

#[test]
fn traffic_that_timing_decides_is_predicted_as_a_range() {
    let folder = Folder::new();
    let sets = two_workers(&["sync.mode=local-sgd", "sync.local_steps=auto"]);
    let report = folder.json(&[&["plan", "--json"], &sets[..]].concat());
    let [low, high] = ["wire_bytes_least", "wire_bytes"].map(|key| report[key].as_u64());
    assert!(low < high && report["wire_is_exact"] == false, "{report}");
    let text = folder.succeed(&[&["plan"], &sets[..]].concat()).stdout;
    assert!(!text.contains("exactly") && text.contains(" to "), "{text}");
}

/// Arguments for a short run of two workers.
fn two_workers<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut sets = vec!["--preset", "tiny"];
    let always = ["run.workers=2", "train.steps=2", "train.eval_every=0"];
    sets.extend(always.iter().chain(more).flat_map(|set| ["--set", *set]));
    sets
}

#[test]
fn a_step_program_is_proven_and_printed() {
    let folder = Folder::new();
    let layout = ["--set", "run.workers=2", "--set", "parallel.zero=3", "--rank", "1"];
    let step = [&["plan", "step", "--preset", "tiny"], &layout[..]].concat();
    let text = folder.succeed(&step).stdout;
    assert!(text.starts_with("step of rank 1, "), "{text}");
    let report = folder.json(&[&step[..], &["--json"]].concat());
    let tasks = report["tasks"].as_array().expect("tasks");
    assert_eq!(text.lines().count(), tasks.len() + 1);
    // ZeRO-3 gathers parameters before the first pass, which waits for them.
    let gather = tasks.iter().position(|task| task["task"] == "gather parameters 0");
    let gather = gather.expect("a gather");
    assert_eq!(tasks[gather]["call"]["ranks"], json!([0, 1]));
    let forward = tasks.iter().find(|task| task["task"] == "forward block 0 microbatch 0");
    let after = forward.expect("a forward pass")["after"].as_array().expect("a list");
    assert!(after.contains(&json!(gather)), "{after:?}");
    let error = refusal(&folder, &["plan", "step", "--preset", "tiny", "--rank", "9"]);
    assert!(error.contains("there is no rank 9; try 0 to"), "{error}");
    let shares = ["sync.stragglers=shares"];
    let error = refusal(&folder, &[&["plan", "step"], &two_workers(&shares)[..]].concat());
    assert!(error.contains("has no step program"), "{error}");
    let text = folder.succeed(&["plan", "step", "--preset", "federated"]).stdout;
    assert!(text.starts_with("step of rank 0, "), "{text}");
}

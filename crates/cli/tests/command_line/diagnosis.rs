//! `lockstep explain RUN` on real runs with a planted cause: the verdict names it.
//!
//! Emulated times are tens of milliseconds, so that a busy machine does not decide a verdict.

use crate::process::{Folder, assert_keys, soak};
use serde_json::Value;

/// Two workers whose micro-batches take a fixed time.
const TWO: &[&str] = &["run.workers=2", "run.isolation=threads", "emulate.microbatch_ms=10"];

fn arguments<'a>(sets: &[&[&'a str]]) -> Vec<&'a str> {
    let mut arguments = vec!["train", "--preset", "tiny", "--quiet", "--device", "cpu"];
    for set in ["run.dir=run", "train.steps=8"].iter().chain(sets.concat().iter()) {
        arguments.extend(["--set", set]);
    }
    arguments
}

/// Trains with these settings and explains the run.
fn explained(sets: &[&[&str]]) -> Value {
    let folder = Folder::new();
    folder.succeed(&arguments(sets));
    folder.json(&["explain", "run", "--json"])
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[track_caller]
fn assert_verdict(found: &Value, verdict: &str) {
    assert_eq!(found["verdict"], verdict, "{} {}", found["parts"], found["causes"]);
}

fn what_if<'a>(found: &'a Value, name: &str) -> &'a Value {
    let all = found["what_if"].as_array().expect("a list");
    all.iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("{name}: {all:?}"))
}

#[test]
fn a_slowed_rank_is_a_straggler_and_without_it_the_step_is_that_of_a_run_without_it() {
    // One micro-batch a step, so that few sleeps end too late.
    let long = ["emulate.microbatch_ms=200", "train.steps=6", "run.isolation=threads"];
    let gossip = ["sync.mode=gossip", "optim.name=sgd"];
    let cases: [(usize, &[&str]); 2] = [(4, &[]), (2, &gossip)];
    for (workers, sets) in cases {
        let size = ["run.workers=", "train.batch=", "numerics.invariant_up_to="];
        let size = size.map(|key| format!("{key}{workers}"));
        let size: Vec<&str> = size.iter().map(String::as_str).collect();
        let slow = format!("emulate.slow=[{{rank = {}, factor = 2}}]", workers - 1);
        let found = explained(&[&long, &size, sets, &[&slow]]);
        assert_verdict(&found, "straggler");
        assert_eq!(found["culprit_rank"], workers - 1);
        let without = number(&what_if(&found, "no_straggler")["step_seconds"]);
        let plain = number(&explained(&[&long, &size, sets])["step_seconds"]);
        assert!((without / plain - 1.0).abs() < 0.1, "{sets:?}: {without} s for {plain} s");
        if sets.is_empty() {
            assert_eq!(found["next"]["settings"][0], "sync.stragglers=shares");
        }
    }
}

/// Verdicts of all causes, the largest first.
fn verdicts(found: &Value) -> Vec<&str> {
    let causes = found["causes"].as_array().expect("a list");
    causes.iter().filter_map(|cause| cause["verdict"].as_str()).collect()
}

#[test]
fn of_a_straggler_and_a_link_the_larger_comes_first() {
    let both = [
        "emulate.microbatch_ms=30",
        "emulate.bandwidth=2MB",
        "run.transport=tcp",
        "train.batch=2",
        "numerics.invariant_up_to=2",
    ];
    let found = explained(&[TWO, &both, &["emulate.slow=[{rank = 1, factor = 6}]"]]);
    assert_eq!(verdicts(&found), ["straggler", "communication"], "{}", found["parts"]);
    let found = explained(&[TWO, &both, &["emulate.slow=[{rank = 1, factor = 2}]"]]);
    assert_eq!(verdicts(&found), ["communication", "straggler"], "{}", found["parts"]);
}

#[test]
fn a_shaped_link_is_communication_and_tiny_buckets_are_latency() {
    let tcp = ["run.transport=tcp"];
    let narrow = ["emulate.bandwidth=2MB"];
    let found = explained(&[TWO, &tcp, &narrow]);
    assert_verdict(&found, "communication");
    assert!(number(&what_if(&found, "twice_the_bandwidth")["gain"]) > 0.0);
    let tiny = ["emulate.latency_ms=5", "parallel.bucket_bytes=4KiB"];
    let found = explained(&[TWO, &tcp, &tiny]);
    assert_verdict(&found, "latency");
    assert_eq!(found["next"]["settings"][0], "parallel.bucket_bytes=0", "{}", found["next"]);
}

#[test]
fn slow_servers_are_a_symptom_and_bytes_and_memory_are_listed() {
    let servers = ["run.workers=2", "sync.mode=parameter-server", "sync.servers=2"];
    let found = explained(&[&servers, &["run.transport=tcp", "emulate.bandwidth=2MB"]]);
    let symptoms = found["symptoms"].as_array().expect("a list");
    let slow = symptoms.iter().find(|symptom| symptom["name"] == "saturated_servers");
    let slow = slow.unwrap_or_else(|| panic!("{symptoms:?}"));
    assert!(slow["evidence"].as_str().is_some_and(|it| it.contains("a pull takes")), "{slow}");
    let sent = &found["bytes_by_algorithm"][0];
    assert_eq!((&sent["axis"], &sent["algorithm"]), (&"strategy".into(), &"messages".into()));
    assert!(number(&sent["bytes_per_step"]) > 1e5, "{sent}");
    for part in found["memory"].as_array().expect("a list") {
        assert_eq!(part["measured_bytes"], part["planned_bytes"], "{part}");
    }
}

#[test]
fn unbalanced_stages_are_a_bubble() {
    let stages = [
        "run.workers=2",
        "run.threads=1",
        "parallel.pipeline=2",
        "model.layers=6",
        "model.width=64",
        "model.ffn=192",
        "parallel.stage_layers=1,5",
    ];
    let found = explained(&[&stages]);
    assert_verdict(&found, "bubble");
    assert_eq!(found["culprit_rank"], 1, "{}", found["ranks"]);
    assert!(number(&what_if(&found, "balanced_stages")["gain"]) > 0.0);
}

#[test]
fn slow_input_and_a_slow_disk_are_found_and_the_larger_comes_first() {
    let input = ["emulate.data_ms=200"];
    let found = explained(&[TWO, &input]);
    assert_verdict(&found, "input");
    // The state of `tiny` is some hundred kilobytes.
    let disk = ["checkpoint.every=3", "checkpoint.background=false", "emulate.disk_bandwidth=1MB"];
    let found = explained(&[TWO, &disk]);
    assert_verdict(&found, "checkpoint");
    assert!(found["next"]["settings"].to_string().contains("checkpoint.background=true"));
    let both = explained(&[TWO, &["emulate.data_ms=400"], &disk]);
    assert_eq!(verdicts(&both), ["input", "checkpoint"], "{}", both["parts"]);
    let slower = ["checkpoint.every=4", "emulate.disk_bandwidth=200kB", "emulate.data_ms=100"];
    let both = explained(&[TWO, &disk, &slower]);
    assert_eq!(verdicts(&both), ["checkpoint", "input"], "{}", both["parts"]);
}

#[test]
fn small_microbatches_overflows_and_a_high_rate_are_named_with_what_to_try() {
    // A run with progress measures the peak of the machine first.
    let of_size = |sets: &[&str]| {
        let folder = Folder::new();
        let mut arguments = arguments(&[&["run.workers=1"], sets]);
        arguments.retain(|argument| *argument != "--quiet");
        folder.succeed(&arguments);
        let found = folder.json(&["explain", "run", "--json"]);
        assert_verdict(&found, "compute");
        (found["evidence"].to_string().contains("micro-batches are small"), found)
    };
    let (is_named, found) = of_size(&["train.microbatch=1"]);
    assert!(is_named, "{found}");
    assert!(found["next"]["settings"][0].as_str().is_some_and(|it| it.contains("microbatch")));
    let (is_named, found) = of_size(&["train.batch=64", "train.microbatch=8"]);
    assert!(!is_named, "{found}");

    let storm = ["precision.compute=fp16", "precision.loss_scale_interval=1", "train.steps=40"];
    let found = explained(&[&["run.workers=1"], &storm]);
    let warnings = found["health"]["warnings"].to_string();
    assert!(warnings.contains("overflow storm"), "{found}");
    assert!(found["next"]["settings"].to_string().contains("precision."));

    let explosion = ["optim.lr=3", "optim.clip=0", "train.steps=60"];
    let found = explained(&[&["run.workers=1"], &explosion]);
    assert_eq!(found["health"]["diverged"], true, "{}", found["health"]);
    assert_eq!(found["next"]["settings"][0], "optim.lr=0.3", "{}", found["next"]);
}

#[test]
fn ten_healthy_runs_get_neither_a_straggler_nor_a_communication_verdict() {
    // As many busy threads as cores at most: emulated micro-batches leave the cores idle. Tensor
    // parallelism of small layers on shared cores is not healthy, so it has one long micro-batch.
    let few = ["emulate.microbatch_ms=60", "train.batch=4", "numerics.invariant_up_to=4"];
    let more = ["emulate.microbatch_ms=60"];
    let long = ["emulate.microbatch_ms=200", "model.layers=1"];
    let real = [
        "run.threads=1",
        "model.width=64",
        "model.ffn=192",
        "train.batch=64",
        "train.microbatch=8",
    ];
    let runs: [[&[&str]; 2]; 10] = [
        [&["run.workers=2", "run.isolation=threads"], &few],
        [&["run.workers=2", "run.transport=tcp"], &few],
        [&["run.workers=4", "parallel.zero=1"], &more],
        [&["run.workers=4", "parallel.zero=2", "run.isolation=threads"], &more],
        [&["run.workers=4", "parallel.zero=3"], &more],
        [
            &["run.workers=2", "parallel.tensor=2", "train.batch=1", "numerics.invariant_up_to=1"],
            &long,
        ],
        [
            &["run.workers=4", "parallel.tensor=2", "train.batch=2", "numerics.invariant_up_to=2"],
            &long,
        ],
        [&["run.workers=2"], &real],
        [&["run.workers=2", "parallel.zero=3"], &real],
        [&["run.workers=2", "parallel.pipeline=2", "model.layers=4"], &real],
    ];
    // Two workers that compute need both cores for themselves, which a soak has.
    let num_runs = if soak() { runs.len() } else { runs.len() - 3 };
    for sets in &runs[..num_runs] {
        let found = explained(sets);
        let verdict = found["verdict"].as_str().expect("a name");
        let is_wrong = ["straggler", "communication", "latency"].contains(&verdict);
        assert!(!is_wrong, "{sets:?}: {verdict} {}", found["causes"]);
    }
}

#[test]
fn the_report_begins_with_the_verdict_which_train_prints_too() {
    let folder = Folder::new();
    let trained =
        folder.succeed(&arguments(&[TWO, &["telemetry.trace=true", "telemetry.trace_every=4"]]));
    let line = trained.stdout.lines().find(|line| line.starts_with("verdict"));
    assert!(line.is_some_and(|line| line.contains("compute")), "{}", trained.stdout);
    let text = folder.succeed(&["explain", "run"]).stdout;
    assert!(text.starts_with("verdict      compute"), "{text}");
    let [traced, other] = [8, 4].map(|step| format!("step {step}, the slowest of 2 traced\n"));
    assert!(text.contains(&traced) || text.contains(&other), "{text}");
    for part in ["part (mean of ranks)", "rank", "what if", "next"] {
        assert!(text.lines().any(|line| line.starts_with(part)), "{part}: {text}");
    }
    let titles = text.lines().find(|line| line.starts_with("part")).expect("a table");
    assert!(titles.ends_with(" plan"), "{titles}");
    let json = folder.json(&["explain", "run", "--json"]);
    assert_keys(
        &json,
        "verdict culprit_rank evidence parts what_if next noise_scale critical_batch health causes \
         symptoms memory bytes_by_algorithm plan slow_steps traced_steps last_rank_counts",
    );
    assert_keys(&json["plan"], "step_seconds is_calibrated parts ranks");
    let traced = json["traced_steps"].as_array().expect("a list");
    assert_eq!(traced.iter().map(|it| &it["step"]).collect::<Vec<_>>(), [4, 8], "{traced:?}");
    for rank in traced.iter().flat_map(|step| step["ranks"].as_array().expect("a list")) {
        let part = |name: &str| number(&rank[name]);
        let compute = part("compute_seconds");
        assert!(compute > 0.0 && compute <= part("seconds"), "{rank}");
    }
    let counts = json["last_rank_counts"].as_array().expect("a list");
    assert_eq!(counts.iter().filter_map(Value::as_u64).sum::<u64>(), 2, "{counts:?}");
    assert_keys(
        &json["parts"],
        "compute_seconds exposed_communication_seconds waiting_for_rank_seconds bubble_seconds \
         data_seconds checkpoint_seconds optimizer_seconds",
    );
    let nothing = folder.run(&["explain", "nowhere"]);
    assert_eq!(nothing.code, Some(2), "{nothing:?}");
}

#[test]
fn the_noise_scale_comes_from_recorded_gradient_norms() {
    let folder = Folder::new();
    folder.succeed(&arguments(&[&["run.workers=1"]]));
    // A gradient of squared norm 2, and noise of trace 12.
    let mut events = folder.read("run/events.jsonl");
    for step in 1..=3 {
        let line = format!(
            "{{\"v\":2,\"seconds\":1,\"rank\":0,\"event\":\"gradient_noise\",\"step\":{step},\
             \"small_batch\":2,\"large_batch\":16,\"small_norm_squared\":8,\
             \"large_norm_squared\":2.75}}\n"
        );
        events.extend(line.as_bytes());
    }
    folder.write("run/events.jsonl", &events);
    let found = folder.json(&["explain", "run", "--json"]);
    assert!((number(&found["noise_scale"]) - 6.0).abs() < 1e-9);
    assert_eq!(found["critical_batch"], 6);
}

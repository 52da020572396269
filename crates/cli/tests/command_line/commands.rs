//! Every command works, and its JSON has the names that scripts rely on.

use crate::process::{Finished, Folder, assert_keys};
use serde_json::Value;
use std::process::Stdio;

const TRAIN_KEYS: &str = "steps first_loss final_loss validation_loss baseline_loss losses_hash
    weights_hash recipe_hash kernel_class device tokens_per_second step_seconds_median
    peak_rss_bytes peak_rss_bytes_by_rank wire_bytes wire_bytes_by_rank microbatches_by_rank
    workers restarts staleness_max predicted_step_seconds predicted_peak_bytes
    predicted_wire_bytes run_dir";

const BENCH_KEYS: &str = "tokens_per_second gflops fma_peak_gflops step_seconds_median
    peak_rss_bytes threads workers precision kernels";

/// Three steps of the smallest model.
const TINY: [&str; 5] = ["train", "--preset", "tiny", "--set", "train.steps=3"];

fn tiny(more: &[&'static str]) -> Vec<&'static str> {
    [&TINY, more].concat()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn train_prints_the_figures_that_scripts_rely_on() {
    let folder = Folder::new();
    let finished = folder.succeed(&tiny(&["--json", "--quiet"]));
    assert_eq!(finished.stderr, "", "--quiet is quiet");
    let figures: Value = serde_json::from_str(&finished.stdout).expect("one JSON value");
    assert_keys(&figures, TRAIN_KEYS);
    assert_eq!(figures["steps"], 3);
    assert_eq!(figures["workers"], 2);
    assert_eq!([&figures["kernel_class"], &figures["device"]], ["f32-fma", "cpu"]);
    assert_eq!(figures["run_dir"], "runs/0001");
    assert_eq!(figures["microbatches_by_rank"], serde_json::json!([4, 4]));
    for key in "losses_hash weights_hash recipe_hash".split_whitespace() {
        assert_eq!(figures[key].as_str().map(str::len), Some(64), "{key}");
    }
    for key in "first_loss final_loss validation_loss baseline_loss tokens_per_second \
                step_seconds_median peak_rss_bytes first_step_at_seconds"
        .split_whitespace()
    {
        assert!(number(&figures[key]) > 0.0, "{key}");
    }
    assert_eq!(folder.read("runs/0001/summary.json"), finished.stdout.as_bytes());
}

#[test]
fn train_leaves_a_folder_with_recipe_events_weights_and_figures() {
    let folder = Folder::new();
    folder.succeed(&tiny(&["--set", "run.dir=mine", "--quiet"]));
    let content = folder.content();
    let names: Vec<_> = content.keys().filter_map(|path| path.file_name()?.to_str()).collect();
    let expected = "mine events.jsonl model.safetensors optimizer.safetensors recipe.toml \
                    state.json summary.json";
    assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());

    let events = String::from_utf8(folder.read("mine/events.jsonl")).expect("events are text");
    let names: Vec<Value> = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON")["event"].take())
        .collect();
    let of_ranks = ["algorithm_bytes", "rank_counters", "rank_counters"];
    let steps = ["run_started", "step", "step", "step"];
    assert_eq!(names, [&steps[..], &of_ranks, &["evaluated", "run_finished"]].concat());

    // The saved recipe reproduces the run.
    let hash = |figures: Value| figures["weights_hash"].clone();
    let first = serde_json::from_slice(&folder.read("mine/summary.json")).expect("JSON");
    let arguments = ["train", "mine/recipe.toml", "--set", "run.dir=second", "--json"];
    assert_eq!(hash(folder.json(&arguments)), hash(first));
}

#[test]
fn train_prints_a_text_report() {
    let folder = Folder::new();
    let Finished { stdout, stderr, .. } = folder.succeed(&TINY);
    for part in ["validation", "losses_hash", "weights_hash", "runs/0001", "No sample:"] {
        assert!(stdout.contains(part), "{part} in {stdout}");
    }
    assert!(stderr.contains("step 3/3"), "{stderr}");
    assert!(!stderr.contains('\u{1b}'), "no control sequences into a pipe");
}

#[test]
fn a_stopped_run_resumes() {
    let folder = Folder::new();
    let whole = folder.json(&tiny(&["--json"]));
    let part = folder.json(&tiny(&["--json", "--stop-after", "2"]));
    let rest = folder.json(&tiny(&["--json", "--resume", "runs/0002"]));
    assert_eq!([&part["steps"], &rest["steps"]], [&Value::from(2), &Value::from(3)]);
    assert_ne!(part["weights_hash"], whole["weights_hash"]);
    for key in ["weights_hash", "losses_hash", "validation_loss"] {
        assert_eq!(rest[key], whole[key], "{key}");
    }
}

#[test]
fn generate_writes_the_same_text_for_the_same_seed() {
    let folder = Folder::new();
    folder.succeed(&tiny(&["--quiet"]));
    let text = |more: &[&'static str]| {
        let arguments = [&["generate", "--prompt", "In", "--tokens", "50", "--json"], more];
        let report = folder.json(&arguments.concat());
        assert_keys(&report, "prompt text num_tokens seconds tokens_per_second run_dir");
        assert_eq!(report["num_tokens"], 50);
        report["text"].clone()
    };
    assert_eq!(text(&["--seed", "7"]), text(&["--seed", "7", "runs/0001"]));
    assert_ne!(text(&["--seed", "7"]), text(&["--seed", "8"]));
    let coldest = ["--temperature", "0", "--seed"];
    assert_eq!(
        text(&[&coldest[..], &["7"]].concat()),
        text(&[&coldest[..], &["8"]].concat()),
        "greedy decoding does not depend on the seed"
    );
    let plain = folder.succeed(&["generate", "--prompt", "In the", "--tokens", "5"]);
    assert!(plain.stdout.starts_with("In the"), "{}", plain.stdout);
    assert_eq!(plain.stderr, "");
}

#[test]
fn generate_takes_the_newest_run() {
    let folder = Folder::new();
    folder.succeed(&tiny(&["--quiet"]));
    folder.succeed(&tiny(&["--quiet", "--set", "train.seed=2"]));
    let report = folder.json(&["generate", "--json", "--tokens", "2"]);
    assert_eq!(report["run_dir"], "runs/0002");
}

#[test]
fn inspect_counts_parameters_and_memory() {
    let folder = Folder::new();
    let report = folder.json(&["inspect", "--preset", "gpt2", "--json"]);
    assert_keys(
        &report,
        "num_params params forward_flops_per_token backward_flops_per_token memory",
    );
    assert_eq!(report["num_params"], 124_439_808, "GPT-2's well-known size");
    let parts = "weights_bytes gradients_bytes optimizer_bytes activations_bytes buffers_bytes \
        checkpoint_bytes";
    assert_keys(&report["memory"], &format!("{parts} total_bytes"));
    let sum: f64 = parts.split_whitespace().map(|part| number(&report["memory"][part])).sum();
    assert!(
        (sum - number(&report["memory"]["total_bytes"])).abs() < 0.5,
        "the parts sum to the total"
    );
    for tensor in report["params"].as_array().expect("a list") {
        assert_keys(tensor, "name shape num_params mirror_of");
    }
    let text = folder.succeed(&["inspect"]).stdout;
    assert!(text.contains("model.embed_tokens.weight") && text.contains("memory"), "{text}");
    assert!(text.contains(" allocated by rank 0\n"), "{text}");
    assert!(text.contains(" of the largest process, as train predicts: with "), "{text}");
}

#[test]
fn inspect_and_plan_agree_on_memory() {
    let folder = Folder::new();
    // Local SGD has buffers besides the model's, which both must count.
    let local = ["--set", "sync.mode=local-sgd", "--set", "run.workers=2"];
    for more in
        [&[][..], &local, &["--set", "parallel.zero=3"], &["--set", "run.isolation=threads"]]
    {
        let report =
            |command| folder.json(&[&[command, "--preset", "tiny", "--json"][..], more].concat());
        let (inspect, plan) = (report("inspect"), report("plan"));
        assert_eq!(inspect["memory"], plan["memory"], "{more:?}");
        // The process besides its ranks is measured in each command.
        for part in ["ranks_bytes", "mapped_bytes"] {
            let [one, other] = [&inspect, &plan].map(|report| &report["peak_process"][part]);
            assert_eq!(one, other, "{more:?}: {part}");
        }
    }
}

#[test]
fn bench_data_loads_without_a_model() {
    let folder = Folder::new();
    folder.write("a.jsonl", b"{\"text\": \"In the beginning\"}\n{\"text\": \"Amen\"}\n");
    let mixture = "data.mixture=[{source=\"a.jsonl\",weight=0.5},{source=\"bundled\",weight=0.5}]";
    let bench = ["bench", "data", "--preset", "tiny", "--seconds", "0.01", "--set", mixture];
    let speed = folder.json(&[&bench[..], &["--json"]].concat());
    assert_keys(&speed, "tokens_per_second tokens steps seconds");
    let [tokens, steps] = ["tokens", "steps"].map(|name| speed[name].as_u64().unwrap());
    assert!(steps > 0 && tokens.is_multiple_of(steps), "{tokens} tokens in {steps} steps");
    assert!(folder.succeed(&bench).stdout.contains("tokens/s"));
    assert_eq!(folder.content().len(), 1, "a benchmark leaves nothing behind");
    crate::bad_input::refused(&folder, &["bench", "data", "--seconds", "0"], &["--seconds 0"]);
}

#[test]
fn bench_train_prints_the_figures_that_scripts_rely_on() {
    let folder = Folder::new();
    let bench = ["bench", "train", "--preset", "tiny", "--steps", "1"];
    let report = folder.json(
        &[&bench[..], &["--json", "--set", "run.threads=2", "--set", "run.workers=1"]].concat(),
    );
    assert_keys(&report, BENCH_KEYS);
    assert_eq!([&report["threads"], &report["workers"]], [&Value::from(2), &Value::from(1)]);
    assert_eq!(report["precision"], "f32");
    for key in "tokens_per_second gflops fma_peak_gflops step_seconds_median".split_whitespace() {
        assert!(number(&report[key]) > 0.0, "{key}");
    }
    assert!(folder.succeed(&bench).stdout.contains("tokens/s"));
    let spans = &folder.json(&[&bench[..], &["--spans", "--json"]].concat())["spans"];
    let seconds = "plain_step_seconds_median sampled_step_seconds_median ratio_median";
    assert_keys(spans, &format!("spans_per_step {seconds}"));
    assert!(spans["spans_per_step"].as_u64().is_some_and(|number| number > 10), "{spans}");
    assert!(folder.content().is_empty(), "a benchmark leaves nothing behind");
}

#[test]
fn config_prints_a_recipe_that_resolves_to_itself() {
    let folder = Folder::new();
    let resolved = ["config", "--preset", "tiny", "--set", "train.seed=7"];
    let text = folder.succeed(&resolved).stdout;
    assert!(text.contains("seed = 7") && text.contains("default"), "{text}");
    let report = folder.json(&[&resolved[..], &["--json"]].concat());
    assert_keys(&report, "recipe_hash recipe_toml keys");
    for key in report["keys"].as_array().expect("a list") {
        assert_keys(key, "name meaning default allowed");
    }
    let toml = folder.succeed(&[&resolved[..], &["--toml"]].concat()).stdout;
    assert_eq!(report["recipe_toml"], toml);
    folder.write("saved.toml", toml.as_bytes());
    let reloaded = folder.json(&["config", "saved.toml", "--json"]);
    assert_eq!(reloaded["recipe_hash"], report["recipe_hash"]);
}

#[test]
fn config_lists_presets_and_prints_the_reference_page() {
    let folder = Folder::new();
    let page = folder.succeed(&["config", "--markdown"]).stdout;
    assert!(page.starts_with('#'), "a page has a title: {page}");
    let report = folder.json(&["config", "--json"]);
    for key in report["keys"].as_array().expect("a list") {
        let name = key["name"].as_str().expect("a name");
        assert!(page.contains(name), "{name} is in the reference");
    }
    let presets = folder.succeed(&["config", "--presets"]).stdout;
    for line in presets.lines() {
        let name = line.split_whitespace().next().expect("a name");
        folder.succeed(&["inspect", "--preset", name]);
    }
    assert!(presets.contains("bible-small"), "{presets}");
}

#[test]
fn help_has_examples() {
    let folder = Folder::new();
    let commands: [&[&str]; 9] = [
        &[],
        &["train"],
        &["generate"],
        &["inspect"],
        &["compare"],
        &["bench", "train"],
        &["bench", "comm"],
        &["bench", "data"],
        &["config"],
    ];
    for command in commands {
        let help = folder.succeed(&[command, &["--help"]].concat());
        assert!(help.stdout.contains("Examples:"), "{command:?}");
        assert_eq!(help.stderr, "", "{command:?}");
    }
    assert!(folder.succeed(&["--version"]).stdout.starts_with("lockstep "));
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let folder = Folder::new();
    folder.succeed(&tiny(&["--quiet"]));
    let commands: [&[&str]; 5] = [
        &["config"],
        &["config", "--markdown"],
        &["inspect", "--json"],
        &["generate", "--tokens", "50"],
        &tiny(&["--quiet"]),
    ];
    for arguments in commands {
        // Like `| head -0`, without a race: the reader is closed before the start.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = folder.command(arguments);
        let output = command.stdout(writer).stderr(Stdio::piped()).output().expect("it starts");
        let finished = Finished::new(output);
        assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

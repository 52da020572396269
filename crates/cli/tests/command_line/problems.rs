//! Small problems in all commands, and lints.

use crate::process::{Folder, assert_keys};
use serde_json::Value;

#[test]
fn a_small_problem_works_in_every_command() {
    let folder = Folder::new();
    let train = |more: &[&str]| {
        let base = ["train", "--preset", "ridge", "--json", "--quiet", "--set", "train.steps=20"];
        folder.json(&[&base, more].concat())
    };
    let alone = train(&["--set", "run.workers=1", "--set", "run.dir=alone"]);
    assert_keys(&alone, "accuracy optimum_loss suboptimality distance baseline_loss");
    assert!(alone["accuracy"].is_null());
    let four = ["--set", "run.workers=4", "--set", "parallel.zero=3", "--set", "run.dir=four"];
    let four = train(&[&four[..], &["--stop-after", "7"]].concat());
    assert_eq!(four["steps"], 7);
    let rest = train(&["--resume", "four", "--set", "run.dir=rest"]);
    for key in ["losses_hash", "weights_hash", "suboptimality", "distance"] {
        assert_eq!(rest[key], alone[key], "{key}");
    }
    let same = folder.json(&["compare", "alone", "rest", "--json"]);
    assert_eq!(same["equal"], true, "{same}");
    let events = String::from_utf8(folder.read("alone/events.jsonl")).expect("events are text");
    assert!(events.contains(r#""event":"assessed","step":20,"accuracy":null,"optimum_loss":"#));
    let inspected = folder.json(&["inspect", "--preset", "ridge", "--json"]);
    assert_eq!(
        (&inspected["num_params"], &inspected["params"][0]["name"]),
        (&64.into(), &"x".into())
    );
}

#[test]
fn samples_are_held_once_and_their_memory_is_predicted() {
    let folder = Folder::new();
    let of = |samples: u64| {
        let samples = format!("problem.samples={samples}");
        let base = ["train", "--preset", "digits", "--json", "--quiet", "--set", "run.workers=1"];
        let sets = ["--set", "train.steps=1", "--set", "train.eval_batches=1", "--set", &samples];
        let run = folder.json(&[&base[..], &sets].concat());
        ["predicted_peak_bytes", "peak_rss_bytes"].map(|key| run[key].as_f64().expect("bytes"))
    };
    let (few, many) = (of(1 << 10), of(25 << 10));
    // A digit is 16 by 16 pixels and a class, of four bytes each.
    let table = f64::from(24 << 10) * 257.0 * 4.0;
    for (key, (few, many)) in ["predicted", "measured"].iter().zip(few.into_iter().zip(many)) {
        let ratio = (many - few) / table;
        assert!((0.9..1.1).contains(&ratio), "{key}: {few} and {many}, {ratio} tables");
    }
}

#[test]
fn memory_of_a_small_run_over_tcp_is_that_of_its_forecast() {
    let folder = Folder::new();
    let base = ["train", "--preset", "tiny", "--json", "--quiet", "--set", "run.transport=tcp"];
    let sets = ["--set", "run.workers=2", "--set", "train.steps=2"];
    let run = folder.json(&[&base[..], &sets].concat());
    let [forecast, measured] =
        ["predicted_peak_bytes", "peak_rss_bytes"].map(|key| run[key].as_f64().expect("bytes"));
    let ratio = forecast / measured;
    assert!((0.85..1.15).contains(&ratio), "{forecast} of {measured} bytes, {ratio}");
}

#[test]
fn noise_on_federated_updates_is_reported_by_the_command() {
    let folder = Folder::new();
    let train = |more: &[&str]| {
        let sets = [
            "sync.mode=federated",
            "federated.clients=4",
            "federated.sampled=2",
            "federated.clip=0.5",
            "federated.noise_multiplier=0.5",
            "sync.local_steps=2",
            "optim.name=sgd",
            "train.steps=4",
            "train.eval_batches=1",
            "problem.samples=256",
            "run.workers=1",
        ];
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let base = ["train", "--preset", "digits", "--quiet"];
        let arguments: Vec<&str> = base.into_iter().chain(sets).chain(more.to_vec()).collect();
        folder.succeed(&arguments).stdout
    };
    let json: Value = serde_json::from_str(&train(&["--json"])).expect("one JSON value");
    assert!(json["epsilon"].as_f64() > Some(0.0), "{json}");
    assert_eq!(json["delta"], 1e-5, "{json}");
    let text = train(&[]);
    let line = text.lines().find(|line| line.starts_with("privacy      epsilon "));
    assert!(line.is_some_and(|line| line.ends_with(" at delta 0.00001")), "{text}");
}

#[test]
fn a_small_problem_reports_its_solution_and_generates_no_text() {
    let folder = Folder::new();
    let sets = ["--set", "train.steps=5", "--set", "run.workers=1", "--set", "optim.lr=4"];
    let finished = folder.succeed(&[&["train", "--preset", "quadratic"], &sets[..]].concat());
    assert!(finished.stdout.contains(" above the optimum 0.000000, "), "{}", finished.stdout);
    assert!(!finished.stdout.contains("sample"), "{}", finished.stdout);
    let warning = "warning: optim.lr = 4 reaches the stability limit 3.800 of this problem";
    assert_eq!(finished.stderr.matches(warning).count(), 1, "{}", finished.stderr);
    folder.write("book.txt", b"In the beginning");
    for command in [&["generate", "runs/0001"][..], &["eval", "runs/0001", "--data", "book.txt"]] {
        let refused = folder.run(command);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains("has no text; name a run of gpt2 or llama"));
    }
}

#[test]
fn lints_are_listed_and_fire_for_a_recipe() {
    let folder = Folder::new();
    let all = folder.succeed(&["config", "lints"]).stdout;
    assert!(all.contains("no-clip\n    "), "{all}");
    let json = folder.json(&["config", "lints", "--set", "optim.clip=0", "--json"]);
    let lints = json.as_array().expect("a list");
    let keys = "id condition threshold advice fires message";
    for lint in lints {
        assert_keys(lint, keys);
    }
    let firing: Vec<&Value> = lints.iter().filter(|lint| lint["fires"] == true).collect();
    assert_eq!(firing.len(), 1, "{firing:?}");
    assert_eq!(firing[0]["id"], "no-clip");
    let one = folder.succeed(&["config", "lints", "--set", "optim.clip=0"]).stdout;
    assert_eq!(one.lines().count(), 1, "{one}");
    let none = folder.succeed(&["config", "lints", "--preset", "ridge"]).stdout;
    assert!(none.starts_with("none of "), "{none}");
    assert_eq!(folder.run(&["config", "lints", "--set", "optim.clip=x"]).code, Some(2));
}

#[test]
fn a_convex_problem_reports_its_learning_rate_limits() {
    let folder = Folder::new();
    let curvature = |sets: &[&str]| {
        let base = ["inspect", "--preset", "quadratic", "--json"];
        folder.json(&[&base[..], sets].concat())["curvature"].clone()
    };
    // The largest eigenvalue is 1 by construction, so SGD is stable below 2 / 1, and heavy-ball
    // momentum below 2 (1 + momentum) / 1 (Polyak, 1964).
    let assert_close = |value: &Value, expected: f64| {
        let value = value.as_f64().expect("a number");
        assert!((value / expected - 1.0).abs() < 1e-6, "{value} is not {expected}");
    };
    let momentum = curvature(&[]);
    assert_close(&momentum["largest_curvature"], 1.0);
    assert_close(&momentum["lr_limits"][0]["lr"], 3.8);
    assert_close(&momentum["lr_limits"][1]["lr"], 0.1);
    let plain = curvature(&["--set", "optim.name=sgd"]);
    assert_close(&plain["lr_limits"][0]["lr"], 2.0);
    assert_close(&plain["lr_limits"][1]["lr"], 1.0);
    assert_eq!(curvature(&["--set", "optim.name=adamw"])["lr_limits"], serde_json::json!([]));
    let text = folder.json(&["inspect", "--preset", "tiny", "--json"]);
    assert!(text.get("curvature").is_none());
}

//! Emulated links and slow workers do not change results; algorithms are selected by measurement.

use crate::process::Folder;
use serde_json::Value;

fn train(folder: &Folder, sets: &[&str]) -> Value {
    let mut arguments = vec!["train", "--preset", "tiny", "--json", "--quiet"];
    let common =
        ["train.steps=3", "train.eval_batches=1", "run.workers=2", "run.isolation=threads"];
    for set in common.iter().chain(sets) {
        arguments.extend(["--set", set]);
    }
    folder.json(&arguments)
}

#[test]
fn emulated_links_and_slow_workers_keep_results_bit_identical() {
    let folder = Folder::new();
    let plain = train(&folder, &[]);
    assert_eq!(plain["emulated"], Value::Null);
    let cases: [(&[&str], &str); 2] = [
        (
            &[
                "run.transport=tcp",
                "emulate.latency_ms=1",
                "emulate.jitter_ms=1",
                "emulate.bandwidth=100MB",
                "emulate.links=[{ranks = [1, 0], loss = 0.01}]",
                "parallel.zero=2",
            ],
            "links latency 1 ms, jitter 1 ms, 100 MB/s; link 1-0 latency 1 ms, jitter 1 ms, \
             100 MB/s, 1 % lost",
        ),
        (
            &["emulate.slow=[{rank = 1, factor = 2, distribution = \"uniform\"}]"],
            "worker 1 2 times slower (uniform)",
        ),
    ];
    for (sets, description) in cases {
        let found = train(&folder, sets);
        for hash in ["losses_hash", "weights_hash", "validation_loss"] {
            assert_eq!(found[hash], plain[hash], "{hash} with {sets:?}");
        }
        assert_eq!(found["emulated"], description);
    }
}

#[test]
fn the_selected_algorithm_is_timed_against_all_others() {
    let folder = Folder::new();
    let tcp = ["bench", "comm", "--json", "--seconds", "0.01", "--transport", "tcp"];
    let more = ["--select", "--bytes", "1KiB", "--set", "emulate.latency_ms=0.5"];
    let rows = folder.json(&[&tcp[..], &more[..]].concat());
    let row = &rows[0];
    assert_eq!(row["verified"], true);
    assert_eq!(
        row["algorithm"], "butterfly",
        "latency dominates a short message, so one round is best"
    );
    assert!(row["predicted_us"].as_f64().expect("a number") >= 500.0);
    let forced = row["forced"].as_array().expect("a list");
    let names: Vec<_> = forced.iter().filter_map(|each| each["algorithm"].as_str()).collect();
    assert!(names.contains(&"butterfly") && names.contains(&"ring"), "{names:?}");
    assert!(row["probe"].as_str().is_some_and(|text| text.contains("latency us")));
}

#[test]
fn invalid_emulation_is_refused_in_one_line() {
    let folder = Folder::new();
    for (arguments, expected) in [
        (
            &["--set", "emulate.latency_ms=1"][..],
            "--set emulate.* emulates links, which shm lacks; try --transport tcp",
        ),
        (&["--set", "train.steps=1"], "--set train.steps=1 is not an emulate key; try"),
        (
            &["--transport", "tcp", "--set", "emulate.loss=2"],
            "emulate.loss = 2 must be at least 0 and at most 0.5; try",
        ),
        (&["--select", "--algorithm", "ring"], "--select times all algorithms"),
    ] {
        let arguments = [&["bench", "comm", "--bytes", "1KiB"][..], arguments].concat();
        let finished = folder.run(&arguments);
        assert_eq!(finished.code, Some(2), "{}", finished.stderr);
        assert!(finished.stderr.contains(expected), "{}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    }
}

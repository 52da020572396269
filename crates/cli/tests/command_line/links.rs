//! Bad links and slow workers change no bit, and algorithms are chosen by what was measured.

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
fn bad_links_and_slow_workers_change_no_bit_and_are_told() {
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
    for (sets, words) in cases {
        let found = train(&folder, sets);
        for hash in ["losses_hash", "weights_hash", "validation_loss"] {
            assert_eq!(found[hash], plain[hash], "{hash} with {sets:?}");
        }
        assert_eq!(found["emulated"], words);
    }
}

#[test]
fn the_choice_is_measured_beside_all_that_could_have_been_chosen() {
    let folder = Folder::new();
    let tcp = ["bench", "comm", "--json", "--seconds", "0.01", "--transport", "tcp"];
    let more = ["--select", "--bytes", "1KiB", "--set", "emulate.latency_ms=0.5"];
    let rows = folder.json(&[&tcp[..], &more[..]].concat());
    let row = &rows[0];
    assert_eq!(row["verified"], true);
    assert_eq!(row["algorithm"], "butterfly", "one round is all that a short message can pay for");
    assert!(row["predicted_us"].as_f64().expect("a number") >= 500.0);
    let forced = row["forced"].as_array().expect("a list");
    let names: Vec<_> = forced.iter().filter_map(|each| each["algorithm"].as_str()).collect();
    assert!(names.contains(&"butterfly") && names.contains(&"ring"), "{names:?}");
    assert!(row["probe"].as_str().is_some_and(|text| text.contains("latency us")));
}

#[test]
fn what_cannot_be_emulated_is_refused_in_one_line() {
    let folder = Folder::new();
    for (arguments, expected) in [
        (
            &["--set", "emulate.latency_ms=1"][..],
            "--set emulate.* makes links worse, and shm has none; try --transport tcp",
        ),
        (&["--set", "train.steps=1"], "--set train.steps=1 is no key of emulate; try"),
        (
            &["--transport", "tcp", "--set", "emulate.loss=2"],
            "emulate.loss = 2 must be at least 0 and at most 0.5; try",
        ),
        (&["--select", "--algorithm", "ring"], "--select tries all algorithms"),
    ] {
        let arguments = [&["bench", "comm", "--bytes", "1KiB"][..], arguments].concat();
        let finished = folder.run(&arguments);
        assert_eq!(finished.code, Some(2), "{}", finished.stderr);
        assert!(finished.stderr.contains(expected), "{}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    }
}

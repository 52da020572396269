//! Every data-parallel layout over every transport is bit-identical to one worker.
//!
//! The harness covers all ZeRO stages and sizes with threads; here processes, rendezvous and
//! sockets are real.

use crate::process::{Folder, soak};
use serde_json::Value;

fn train(folder: &Folder, model: &[&str], layout: &[String]) -> Value {
    let mut arguments = vec!["train", "--preset", "tiny", "--json", "--quiet"];
    let common = ["train.steps=3", "train.eval_batches=1", "model.heads=4"];
    let layout = layout.iter().map(String::as_str);
    for set in common.iter().chain(model).copied().chain(layout) {
        arguments.extend(["--set", set]);
    }
    folder.json(&arguments)
}

/// Workers, stage, transport, isolation.
fn layouts() -> Vec<[&'static str; 4]> {
    let transports =
        [("shm", "processes"), ("tcp", "processes"), ("threads", "threads"), ("tcp", "threads")];
    let mut all = Vec::new();
    for workers in ["2", "3", "4", "5", "8"] {
        for stage in ["0", "1", "2", "3"] {
            for (transport, isolation) in transports {
                all.push([workers, stage, transport, isolation]);
            }
        }
    }
    if soak() {
        return all;
    }
    // A pairwise covering of all values.
    let few = [0, 5, 10, 15, 17, 20, 27, 30, 34, 39, 40, 45, 51, 54, 56, 61, 66, 71, 73, 78];
    few.iter().step_by(2).map(|&index| all[index]).collect()
}

fn assert_equal_on_all_layouts(model: &[&str]) {
    let folder = Folder::new();
    let alone = train(&folder, model, &["run.workers=1".to_owned()]);
    let microbatches = alone["microbatches_by_rank"][0].as_u64().expect("a number");
    for [workers, stage, transport, isolation] in layouts() {
        let layout = [
            format!("run.workers={workers}"),
            format!("parallel.zero={stage}"),
            format!("run.transport={transport}"),
            format!("run.isolation={isolation}"),
        ];
        let mut found = train(&folder, model, &layout);
        if transport == "tcp" && found["predicted_wire_bytes"] != found["wire_bytes"] {
            // Links that a busy machine slows in the middle of a run are measured again, and other
            // algorithms may be selected.
            found = train(&folder, model, &layout);
        }
        for hash in ["losses_hash", "weights_hash", "validation_loss"] {
            assert_eq!(found[hash], alone[hash], "{hash} of {layout:?}");
        }
        // The predicted bytes equal the counted ones.
        assert_eq!(found["predicted_wire_bytes"], found["wire_bytes"], "{layout:?}");
        let by_rank = found["microbatches_by_rank"].as_array().expect("a list");
        assert_eq!(by_rank.len().to_string(), workers, "{layout:?}");
        let sum: u64 =
            by_rank.iter().map(|microbatches| microbatches.as_u64().expect("a number")).sum();
        assert_eq!(sum, microbatches, "{layout:?}");
        assert!(found["wire_bytes"].as_u64() > Some(0), "{layout:?}");
    }
}

#[test]
fn a_tied_gpt2_with_dropout_is_the_same_over_every_transport() {
    assert_equal_on_all_layouts(&["model.family=gpt2", "model.tied=true", "model.dropout=0.1"]);
}

#[test]
fn a_llama_with_grouped_queries_is_the_same_over_every_transport() {
    assert_equal_on_all_layouts(&["model.kv_heads=2"]);
}

#[test]
fn a_run_resumes_with_other_workers_bit_for_bit() {
    let folder = Folder::new();
    let own = |sets: &[&str]| sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>();
    let whole = train(&folder, &["train.steps=6"], &own(&["run.workers=1"]));
    let first = ["train", "--preset", "tiny", "--json", "--quiet", "--set", "model.heads=4"];
    let first = first.iter().chain(&["--set", "train.eval_batches=1", "--set", "train.steps=6"]);
    let first: Vec<&str> = first.copied().collect();
    let part = [&["--stop-after", "2", "--set", "run.workers=3", "--set", "parallel.zero=3"][..]];
    let stopped = folder.json(&[&first, part[0]].concat());
    let dir = stopped["run_dir"].as_str().expect("a path");
    let rest = ["--resume", dir, "--set", "run.workers=2", "--set", "parallel.zero=1"];
    let resumed = folder.json(&[&first, &rest[..]].concat());
    for hash in ["losses_hash", "weights_hash"] {
        assert_eq!(resumed[hash], whole[hash], "{hash}");
    }
}

//! Pipelines of real workers, processes and threads, over every transport: the bits of one worker.

use crate::process::Folder;
use serde_json::Value;

fn train(folder: &Folder, sets: &[&str]) -> Value {
    let common = ["train.steps=3", "train.eval_batches=1", "model.heads=4", "model.layers=3"];
    let mut arguments = vec!["train", "--preset", "tiny", "--json", "--quiet"];
    for set in common.iter().chain(sets) {
        arguments.extend(["--set", set]);
    }
    folder.json(&arguments)
}

#[test]
fn a_pipeline_of_processes_is_the_same_over_every_transport() {
    let models = [
        &["model.family=gpt2", "model.tied=true", "model.dropout=0.1"][..],
        &["model.kv_heads=2", "model.tied=false"],
    ];
    let wires = [
        ["run.isolation=processes", "run.transport=shm"],
        ["run.isolation=processes", "run.transport=tcp"],
        ["run.isolation=threads", "run.transport=tcp"],
    ];
    let pipelines = [
        &["run.workers=2", "parallel.pipeline=2"][..],
        &["run.workers=4", "parallel.pipeline=2", "parallel.zero=3"],
        &["run.workers=3", "parallel.pipeline=3", "parallel.schedule=gpipe"],
        &["run.workers=4", "parallel.pipeline=2", "parallel.virtual_stages=2", "parallel.zero=1"],
        &["run.workers=4", "parallel.pipeline=4", "parallel.schedule=zero-bubble"],
    ];
    let folder = Folder::new();
    for (turn, model) in models.into_iter().enumerate() {
        let alone = train(&folder, &[model, &["run.workers=1"]].concat());
        for (index, pipeline) in pipelines.into_iter().enumerate() {
            let layout = [pipeline, &wires[(index + turn) % 3]].concat();
            let found = train(&folder, &[model, &layout].concat());
            for key in ["losses_hash", "weights_hash", "validation_loss"] {
                assert_eq!(found[key], alone[key], "{key} of {layout:?}");
            }
            assert!(found["wire_bytes"].as_u64() > Some(0), "{layout:?}");
        }
    }
}

#[test]
fn a_run_goes_on_in_another_pipeline_to_the_same_bits() {
    let folder = Folder::new();
    let own = |sets: &[&'static str]| [&["model.tied=true"][..], sets].concat();
    let whole = train(&folder, &own(&["run.workers=1", "run.dir=whole"]));
    let mut first = vec!["train", "--preset", "tiny", "--json", "--quiet", "--stop-after", "2"];
    let common = ["train.steps=3", "train.eval_batches=1", "model.heads=4", "model.layers=3"];
    let half = ["run.workers=4", "parallel.pipeline=2", "parallel.zero=1", "run.dir=half"];
    for set in common.iter().chain(&["model.tied=true"]).chain(&half) {
        first.extend(["--set", set]);
    }
    folder.json(&first);
    let mut rest = vec!["train", "--preset", "tiny", "--json", "--quiet", "--resume", "half"];
    let other = ["run.workers=3", "parallel.pipeline=3", "run.dir=rest"];
    for set in common.iter().chain(&["model.tied=true"]).chain(&other) {
        rest.extend(["--set", set]);
    }
    let rest = folder.json(&rest);
    for key in ["losses_hash", "weights_hash"] {
        assert_eq!(rest[key], whole[key], "{key}");
    }
}

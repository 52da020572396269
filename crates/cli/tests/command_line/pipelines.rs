//! Every pipeline and tensor-parallel layout over every transport is bit-identical to one worker.

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
    let transports = [
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
            let layout = [pipeline, &transports[(index + turn) % 3]].concat();
            let found = train(&folder, &[model, &layout].concat());
            for key in ["losses_hash", "weights_hash", "validation_loss"] {
                assert_eq!(found[key], alone[key], "{key} of {layout:?}");
            }
            assert!(found["wire_bytes"].as_u64() > Some(0), "{layout:?}");
        }
    }
}

#[test]
fn tensor_parallel_pipelines_are_the_same_over_every_transport() {
    let (shm, tcp) = ("run.transport=shm", "run.transport=tcp");
    let products = [
        &["run.workers=2", "parallel.tensor=2", shm][..],
        &["run.workers=2", "parallel.tensor=2", "parallel.sequence=true", tcp],
        &["run.workers=4", "parallel.tensor=2", "parallel.pipeline=2", shm],
        &[
            "run.workers=4",
            "parallel.tensor=2",
            "parallel.sequence=true",
            "parallel.pipeline=2",
            "parallel.schedule=zero-bubble",
            tcp,
        ],
        &["run.workers=4", "parallel.tensor=2", "parallel.sequence=true", "parallel.zero=3", shm],
        &["run.workers=3", "parallel.pipeline=3", "parallel.partition=measured", shm],
    ];
    let model = ["model.kv_heads=2", "model.dropout=0.1", "numerics.invariant_tensor_up_to=2"];
    let folder = Folder::new();
    let alone = train(&folder, &[&model[..], &["run.workers=1"]].concat());
    assert_eq!(alone["bits_depend_on"], Value::Null);
    for product in products {
        let found = train(&folder, &[&model, product].concat());
        for key in ["losses_hash", "weights_hash", "validation_loss"] {
            assert_eq!(found[key], alone[key], "{key} of {product:?}");
        }
        let blocks = found["blocks_by_stage"].as_array().expect("a list");
        let blocks = blocks.iter().map(|blocks| blocks.as_u64().expect("a number"));
        assert_eq!(blocks.sum::<u64>(), 3 + 2, "three layers and two ends: {product:?}");
    }
    let cut = train(&folder, &[model[0], model[1], "run.workers=2", "parallel.tensor=2"]);
    // The bits are equal here, but not guaranteed for another tensor-parallel degree.
    assert_eq!(cut["weights_hash"], alone["weights_hash"]);
    let cause = cut["bits_depend_on"].as_str().expect("a cause");
    assert!(cause.starts_with("parallel.tensor = 2 is more than numerics."), "{cause}");
}

#[test]
fn a_run_resumes_in_another_pipeline_bit_for_bit() {
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

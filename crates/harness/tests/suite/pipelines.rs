//! Pipeline parallelism: the bits of one worker for every schedule, number of stages and
//! combination with data parallelism and ZeRO.
//!
//! The commit chooses some of the layouts; with `LOCKSTEP_SOAK=1` all combinations run.
//! Ranks are threads; the tests of the command line start processes.

use lockstep_harness::recipes::{DROPOUT, GPT2, LLAMA, Small, THREE_MICROBATCHES};
use lockstep_harness::runs::{Runs, soak, some};
use lockstep_harness::traffic::assert_traffic_as_predicted;

/// Pipeline degree, virtual stages and schedule.
const PIPELINES: [(usize, usize, &str); 10] = [
    (2, 1, "1f1b"),
    (2, 1, "zero-bubble"),
    (4, 1, "zero-bubble"),
    (2, 1, "gpipe"),
    (2, 2, "interleaved"),
    (3, 1, "1f1b"),
    (3, 1, "gpipe"),
    (4, 1, "1f1b"),
    (4, 1, "interleaved"),
    (1, 2, "interleaved"),
];

/// Settings of a run of this pipeline.
fn sets(
    (devices, chunks, schedule): (usize, usize, &str),
    data: usize,
    zero: usize,
) -> Vec<String> {
    vec![
        format!("run.workers={}", devices * data),
        format!("parallel.pipeline={devices}"),
        format!("parallel.virtual_stages={chunks}"),
        format!("parallel.schedule={schedule}"),
        format!("parallel.zero={zero}"),
    ]
}

/// Every schedule with every ZeRO stage; the data-parallel degree and recomputation alternate.
fn layouts() -> Vec<Vec<String>> {
    let recomputes = ["none", "selective", "full", "every-2"];
    let mut list = Vec::new();
    for pipeline in PIPELINES {
        for zero in 0..4 {
            let turn = list.len();
            let degrees = if soak() { vec![1, 2, 3] } else { vec![[1, 2, 3, 2, 1][turn % 5]] };
            for data in degrees {
                let mut sets = sets(pipeline, data, zero);
                sets.push(format!("parallel.recompute={}", recomputes[turn / 3 % 4]));
                sets.push(format!("parallel.overlap={}", turn % 2 == 0));
                sets.push(format!("parallel.bucket_bytes={}", ["0", "1", "64KiB"][turn % 3]));
                list.push(sets);
            }
        }
    }
    list
}

/// Trains as one worker and under each layout.
fn same_on_all(small: &Small, more: &[&str], layouts: &[Vec<String>]) {
    let mut runs = Runs::new("pipelines");
    let mut hashes = |sets: &[String]| {
        let own = ["train.steps=3", "train.eval_every=2"].iter().chain(more);
        let sets: Vec<String> = own.map(|set| (*set).to_owned()).chain(sets.to_vec()).collect();
        let recipe = small.with(&sets);
        let outcome = runs.finish(&recipe);
        assert_traffic_as_predicted(&recipe, &outcome);
        (outcome.hashes(), outcome.summary.validation_loss.map(f64::to_bits))
    };
    let alone = hashes(&["run.workers=1".to_owned()]);
    for layout in layouts {
        assert_eq!(hashes(layout), alone, "{}: {layout:?} against one worker", small.name);
    }
}

#[test]
fn a_llama_is_the_same_in_every_pipeline() {
    same_on_all(&LLAMA, &[], &some(layouts(), 10));
}

#[test]
fn a_tied_gpt2_is_the_same_in_every_pipeline() {
    same_on_all(&GPT2, &["model.layers=3"], &some(layouts(), 6));
}

#[test]
fn dropout_is_the_same_in_every_pipeline() {
    same_on_all(&DROPOUT, &[], &some(layouts(), 4));
}

#[test]
fn three_microbatches_a_leaf_are_the_same_in_every_pipeline() {
    same_on_all(&THREE_MICROBATCHES, &[], &some(layouts(), 5));
}

#[test]
fn explicit_stage_layers_are_the_same() {
    let more = ["model.layers=5"];
    let explicit = |stages: &str, data: usize| {
        let devices = stages.split(',').count();
        let mut sets = sets((devices, 1, "1f1b"), data, 1);
        sets.push(format!("parallel.stage_layers={stages}"));
        sets
    };
    same_on_all(&LLAMA, &more, &[explicit("4,1", 2), explicit("1,3,1", 1), explicit("1,1,2,1", 2)]);
}

#[test]
fn frozen_parameters_are_the_same_in_every_pipeline() {
    let frozen = [
        r#"optim.groups=[{match="*embed*",frozen=true},{match="*layers.0*",freeze_after=2}]"#,
        r#"optim.groups=[{match="*lm_head*"},{match="*norm*"},{match="*",frozen=true}]"#,
        r#"optim.groups=[{match="*embed*",unfreeze_at=1},{match="*",freeze_after=2}]"#,
    ];
    for groups in frozen {
        for tied in ["model.tied=true", "model.tied=false"] {
            if tied.ends_with("true") && groups.contains("lm_head") {
                continue;
            }
            let layouts = [sets((3, 1, "1f1b"), 1, 0), sets((2, 1, "1f1b"), 2, 2)];
            same_on_all(&LLAMA, &[groups, tied], &layouts);
        }
    }
}

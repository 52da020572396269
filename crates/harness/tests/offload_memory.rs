//! A run with its optimizer state on a disk takes the memory that was forecast, which is less.
//!
//! One test only: what another one takes would count as well. With `LOCKSTEP_SOAK=1` the model has
//! 303 million parameters, in bf16, on two workers with ZeRO-3.

use lockstep_config::units::Bytes;
use lockstep_config::{OffloadState, Recipe, Sources, resolve};
use lockstep_harness::Runs;
use lockstep_harness::recipes::LLAMA;
use lockstep_harness::runs::soak;
use lockstep_planner::Forecast;
use lockstep_planner::memory::{Process, Room};

const SHORT: [&str; 5] = [
    "train.steps=2",
    "train.eval_batches=1",
    "run.isolation=threads",
    "run.save_optimizer=false",
    "parallel.bucket_bytes=4MiB",
];

/// Layers of 4 million parameters, or the preset.
fn recipe() -> Recipe {
    if soak() {
        let sets = SHORT.iter().map(|set| (*set).to_owned()).collect();
        let preset = Some("gpt2-medium-bytes".to_owned());
        return resolve(&Sources { preset, sets, file: None }).expect("the preset");
    }
    let large = [
        "model.width=512",
        "model.heads=8",
        "model.kv_heads=8",
        "model.ffn=2048",
        "model.layers=6",
        "model.context=16",
        "train.batch=2",
        "train.microbatch=1",
        "numerics.invariant_up_to=2",
        "run.workers=1",
        "offload.state=file",
    ];
    LLAMA.with(&[&SHORT[..], &large].concat())
}

#[test]
fn memory_is_as_forecast_and_state_is_no_part_of_it() {
    let mut runs = Runs::new("offload-memory");
    let recipe = recipe();
    let start = Bytes(runs.world().host().current_rss_bytes());
    let room = Room { memory: Bytes(0), process: Process { start, text: Bytes(0) } };
    let forecast = |recipe: &Recipe| {
        Forecast::of(recipe, room, None).expect("a machine that says nothing").peak_bytes().0
    };
    let predicted = forecast(&recipe);
    let mut in_memory = recipe.clone();
    in_memory.offload.state = OffloadState::None;
    let state = forecast(&in_memory) - predicted;
    let measured = runs.finish(&recipe).summary.peak_rss_bytes;
    let error = measured as f64 / predicted as f64 - 1.0;
    let said = format!("{predicted} bytes said, {measured} measured: {:.2} %", 100.0 * error);
    assert!(error.abs() < 0.05, "{said}");
    assert!(state > predicted / 4, "{state} bytes of state are worth a disk; {said}");
}

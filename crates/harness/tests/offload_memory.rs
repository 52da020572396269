//! A run with offloaded optimizer state has the peak memory that was forecast, without that state.
//!
//! A binary of its own with one test: it measures the memory of the whole process. With
//! `LOCKSTEP_SOAK=1` the model has 303 million parameters, in bf16, on two workers with ZeRO-3.

use lockstep_config::units::Bytes;
use lockstep_config::{OffloadState, Recipe, Sources, resolve};
use lockstep_harness::Runs;
use lockstep_harness::recipes::LLAMA;
use lockstep_harness::runs::soak;
use lockstep_planner::Forecast;
use lockstep_planner::memory::{MemoryBudget, Process};

const SHORT: [&str; 6] = [
    "train.steps=2",
    "train.eval_batches=1",
    "run.isolation=threads",
    "run.save_optimizer=false",
    // Two steps save nothing, and a forecast without a calibration cannot know that.
    "checkpoint.interval=0",
    "parallel.bucket_bytes=4MiB",
];

/// Layers of 4 million parameters; in the long suite a preset.
fn recipe() -> Recipe {
    if soak() {
        let sets = SHORT.iter().map(|set| (*set).to_owned()).collect();
        let preset = Some("gpt2-medium-bytes".to_owned());
        return resolve(&Sources { preset, sets, ..Sources::default() }).expect("the preset");
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
fn peak_memory_is_as_forecast_without_the_offloaded_state() {
    let mut runs = Runs::new("offload-memory");
    let recipe = recipe();
    let start = Bytes(runs.world().host().current_rss_bytes());
    let budget = MemoryBudget {
        memory: Bytes(0),
        process: Process { start, text: Bytes(0) },
        is_accelerator: false,
    };
    let forecast = |recipe: &Recipe| {
        Forecast::of(recipe, budget, None).expect("a budget without a limit").peak_bytes().0
    };
    let predicted = forecast(&recipe);
    let mut in_memory = recipe.clone();
    in_memory.offload.state = OffloadState::None;
    let state = forecast(&in_memory) - predicted;
    let measured = runs.finish(&recipe).summary.peak_rss_bytes;
    let error = measured as f64 / predicted as f64 - 1.0;
    let report = format!("{predicted} bytes forecast, {measured} measured: {:.2} %", 100.0 * error);
    assert!(error.abs() < 0.05, "{report}");
    assert!(state > predicted / 4, "{state} bytes of state are worth offloading; {report}");
}

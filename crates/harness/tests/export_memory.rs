//! Export of a checkpoint, of any layout, holds a few tensors at a time and never the whole model.
//!
//! A binary of its own with one test: it installs a global allocator that counts the whole process.

use lockstep_checkpoint::ElementType;
use lockstep_harness::Runs;
use lockstep_harness::allocations::{self, CountingAllocator};
use lockstep_harness::recipes::LLAMA;
use lockstep_trainer::Options;
use lockstep_trainer::convert::{Target, convert};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn an_export_holds_a_few_tensors_and_never_the_model() {
    let mut runs = Runs::new("export");
    let large = ["model.layers=12", "model.width=128", "model.heads=4", "model.ffn=512"];
    let layouts: [&[&str]; 3] = [
        &["run.workers=4", "parallel.zero=3"],
        &["run.workers=2", "parallel.tensor=2", "numerics.invariant_tensor_up_to=2"],
        &["run.workers=2", "parallel.pipeline=2", "checkpoint.compression=zstd"],
    ];
    for (number, layout) in layouts.into_iter().enumerate() {
        let own = ["train.steps=3", "checkpoint.every=2", "train.eval_batches=1"];
        let recipe = LLAMA.with(&[&large[..], &own, layout].concat());
        let saved = runs.run(&recipe, Options::default()).expect("a short run");
        let checkpoint = saved.dir.join("checkpoints").join("step-00000002");
        let out = runs.path().join(format!("out-{number}"));
        let target = Target::HuggingFace {
            format: ElementType::F32,
            shard_bytes: 1 << 30,
            max_positions: None,
        };
        let before = allocations::live_bytes();
        allocations::reset_peak();
        let written = convert(&checkpoint, &out, target, runs.world(), &mut |_, _| {});
        let written = written.expect("the checkpoint is valid");
        let held = allocations::peak_bytes() - before;
        let whole = written.num_bytes;
        assert!(whole > 8 << 20, "a model of some size: {whole}");
        assert!(held < whole / 2, "{layout:?}: {held} of {whole} bytes were held");
    }
}

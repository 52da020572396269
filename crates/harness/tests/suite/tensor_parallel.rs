//! Tensor and sequence parallelism with data, pipeline parallelism and ZeRO: the bits of one worker
//! where the recipe fixes the order of sums over shards, close results otherwise.

use lockstep_config::Dtype;
use lockstep_harness::recipes::{GPT2, LLAMA, Small};
use lockstep_harness::runs::{Outcome, soak};
use lockstep_harness::traffic::assert_traffic_as_predicted;
use lockstep_harness::{Runs, Tolerance};
use lockstep_trainer::Options;

/// Degrees of the axes, ZeRO stage and sequence parallelism.
#[derive(Clone, Copy, Debug)]
struct Layout {
    data: usize,
    tensor: usize,
    pipeline: usize,
    zero: usize,
    sequence: bool,
}

impl Layout {
    const ONE: Self = Self { data: 1, tensor: 1, pipeline: 1, zero: 0, sequence: false };

    fn num_workers(self) -> usize {
        self.data * self.tensor * self.pipeline
    }

    fn sets(self) -> Vec<String> {
        let Self { data, tensor, pipeline, zero, sequence } = self;
        vec![
            format!("run.workers={}", self.num_workers()),
            format!("parallel.data={data}"),
            format!("parallel.tensor={tensor}"),
            format!("parallel.pipeline={pipeline}"),
            format!("parallel.zero={zero}"),
            format!("parallel.sequence={sequence}"),
            "run.isolation=threads".to_owned(),
            "run.threads=1".to_owned(),
        ]
    }
}

/// Every layout of up to eight workers in the long suite; else pairs of techniques.
fn layouts() -> Vec<Layout> {
    if !soak() {
        let pair = |data, tensor, pipeline, zero, sequence| Layout {
            data,
            tensor,
            pipeline,
            zero,
            sequence,
        };
        return vec![
            pair(1, 2, 1, 0, false),
            pair(1, 2, 1, 0, true),
            pair(2, 2, 1, 3, true),
            pair(2, 2, 1, 1, false),
            pair(1, 2, 2, 0, true),
            pair(2, 2, 2, 2, false),
        ];
    }
    let mut all = Vec::new();
    for data in [1, 2, 4, 8] {
        for tensor in [1, 2] {
            for pipeline in [1, 2, 4] {
                for zero in 0..4 {
                    for sequence in [false, true] {
                        let layout = Layout { data, tensor, pipeline, zero, sequence };
                        if layout.num_workers() <= 8 && (tensor > 1 || !sequence) {
                            all.push(layout);
                        }
                    }
                }
            }
        }
    }
    all
}

/// Settings on top of a small recipe: dropout, few steps, the layout.
fn sets(layout: Layout, more: &[&str]) -> Vec<String> {
    let own = ["train.steps=3", "train.eval_batches=1", "model.dropout=0.1"];
    let own = own.iter().chain(more).map(|set| (*set).to_owned());
    own.chain(layout.sets()).collect()
}

fn run(runs: &mut Runs, small: &Small, layout: Layout, more: &[&str]) -> Outcome {
    let recipe = small.with(&sets(layout, more));
    let outcome = runs.finish(&recipe);
    assert_traffic_as_predicted(&recipe, &outcome);
    outcome
}

const TENSOR_LEAVES: &str = "numerics.invariant_tensor_up_to=2";

#[test]
fn every_layout_gives_the_bits_of_one_worker() {
    let mut runs = Runs::new("tensor");
    let (untied, tied) = ("model.tied=false", "model.tied=true");
    for (small, tied) in [(LLAMA, untied), (LLAMA, tied), (GPT2, tied)] {
        let alone = run(&mut runs, &small, Layout::ONE, &[TENSOR_LEAVES, tied]);
        for layout in layouts() {
            let outcome = run(&mut runs, &small, layout, &[TENSOR_LEAVES, tied]);
            assert_eq!(outcome.hashes(), alone.hashes(), "{}, {tied}: {layout:?}", small.name);
            let validation = |outcome: &Outcome| outcome.summary.validation_loss.map(f64::to_bits);
            assert_eq!(validation(&outcome), validation(&alone), "{}: {layout:?}", small.name);
        }
    }
    // Mistral: a window below the context, on its shards of heads and in its stages.
    let mistral = [TENSOR_LEAVES, "model.sliding_window=5"];
    let alone = run(&mut runs, &LLAMA, Layout::ONE, &mistral);
    for (pipeline, sequence) in [(1, false), (2, true)] {
        let layout = Layout { tensor: 2, pipeline, sequence, ..Layout::ONE };
        let outcome = run(&mut runs, &LLAMA, layout, &mistral);
        assert_eq!(outcome.hashes(), alone.hashes(), "a window: {layout:?}");
    }
    let whole = run(&mut runs, &LLAMA, Layout::ONE, &[TENSOR_LEAVES]);
    assert_ne!(whole.hashes(), alone.hashes(), "the window is shorter than the context");
}

#[test]
fn without_a_fixed_order_of_sums_results_are_close() {
    let mut runs = Runs::new("tensor");
    for small in [LLAMA, GPT2] {
        let alone = run(&mut runs, &small, Layout::ONE, &[]);
        let layout = Layout { tensor: 2, sequence: true, ..Layout::ONE };
        let sharded = run(&mut runs, &small, layout, &[]);
        assert_ne!(sharded.hashes().weights, alone.hashes().weights, "another order of additions");
        // Their order is the one that is fixed for as many shards: recipes of one hash.
        let fixed = run(&mut runs, &small, Layout::ONE, &[TENSOR_LEAVES]);
        assert_eq!(sharded.hashes(), fixed.hashes(), "{}", small.name);
        assert_eq!(sharded.summary.recipe_hash, fixed.summary.recipe_hash);
        assert_ne!(sharded.summary.recipe_hash, alone.summary.recipe_hash);
        let tolerance = Tolerance::Close(Dtype::F32, 256);
        tolerance.assert(small.name, &sharded.losses, &alone.losses);
        // Sequence parallelism changes no bit.
        let without_sequence = run(&mut runs, &small, Layout { sequence: false, ..layout }, &[]);
        assert_eq!(without_sequence.hashes(), sharded.hashes(), "{}", small.name);
    }
}

#[test]
fn a_run_resumes_with_another_tensor_parallel_degree() {
    let mut runs = Runs::new("tensor");
    let two = Layout { tensor: 2, data: 2, zero: 1, sequence: true, ..Layout::ONE };
    for small in [LLAMA, GPT2] {
        let whole = run(&mut runs, &small, Layout::ONE, &[TENSOR_LEAVES]);
        for (first, second) in [(Layout::ONE, two), (two, Layout::ONE)] {
            let options = Options { stop_after: Some(2), ..Options::default() };
            let part =
                runs.run(&small.with(&sets(first, &[TENSOR_LEAVES])), options).expect("a part");
            let options = Options { resume: Some(part.dir), ..Options::default() };
            let rest =
                runs.run(&small.with(&sets(second, &[TENSOR_LEAVES])), options).expect("the rest");
            assert_eq!(rest.hashes(), whole.hashes(), "{}: {first:?} {second:?}", small.name);
        }
    }
}

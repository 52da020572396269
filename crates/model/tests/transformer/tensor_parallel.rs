//! Tensor parallelism: equal bits for every degree, and the results of the unsharded model.

use super::tiny::{
    Batch, GEMMA2, LLAMA, LORA, NEOX, Outcome, PHI3, SEQUENTIAL_NEOX, TRAIN, Tiny, VARIANT,
    assert_same,
};
use lockstep_config::{Family, Model};
use lockstep_model::{
    CollectiveCall, CollectiveKind, Decoder, Microbatch, Mode, Param, Pass, Recompute, SingleRank,
    TensorCollectives, TensorShards,
};
use lockstep_tensor::device::ViewMut;
use lockstep_tensor::{Cpu, Isa};
use std::collections::BTreeMap;
use std::sync::{Barrier, Mutex};

const NUM_SHARDS: usize = 4;

/// Every dimension is divisible by four; grouped-query attention.
const DIVISIBLE: Model =
    Model { width: 48, heads: 8, kv_heads: 4, ffn: 44, vocab: 28, context: 12, ..LLAMA };

/// All families, tied and untied, with and without dropout; sums over more than 512; their
/// variants; and adapters.
fn variants() -> Vec<Model> {
    let gpt2 = Model { family: Family::Gpt2, kv_heads: 8, ..DIVISIBLE };
    let neox = |like: Model| Model { family: like.family, gpt_neox: like.gpt_neox, ..gpt2.clone() };
    let bloom = Model { family: Family::Bloom, ..gpt2.clone() };
    let mut variants = vec![
        Model { layers: 1, ffn: NUM_SHARDS * 521, dropout: 0.25, ..DIVISIBLE },
        Model { variant: VARIANT, ..DIVISIBLE },
        Model { variant: PHI3, ..DIVISIBLE },
        Model { variant: GEMMA2, tied: true, ..DIVISIBLE },
        Model { lora: LORA, variant: VARIANT, ..DIVISIBLE },
        Model { tied: true, dropout: 0.25, ..neox(NEOX) },
        neox(SEQUENTIAL_NEOX),
        // Slopes of two sequences.
        Model { heads: 12, kv_heads: 12, dropout: 0.25, ..bloom.clone() },
        Model { tied: true, ..bloom },
    ];
    for family in [DIVISIBLE, gpt2] {
        for (tied, dropout) in [(false, 0.0), (true, 0.25)] {
            variants.push(Model { tied, dropout, ..family.clone() });
        }
    }
    variants
}

/// In-process collectives: tensor-parallel ranks are threads.
struct SharedMemory {
    values: Mutex<Vec<Vec<f32>>>,
    barrier: Barrier,
}

/// One tensor-parallel rank.
struct ThreadRank<'a> {
    shared: &'a SharedMemory,
    index: usize,
}

impl ThreadRank<'_> {
    /// Values of all ranks.
    fn all(&self, values: &[f32]) -> Vec<Vec<f32>> {
        self.shared.values.lock().expect("no rank panicked")[self.index] = values.to_vec();
        self.shared.barrier.wait();
        let all = self.shared.values.lock().expect("no rank panicked").clone();
        self.shared.barrier.wait();
        assert!(all.iter().all(|other| other.len() == values.len()), "equal calls on all ranks");
        all
    }

    fn part(&self, values: &[f32]) -> std::ops::Range<usize> {
        let len = values.len() / self.shared.values.lock().expect("no rank panicked").len();
        self.index * len..(self.index + 1) * len
    }
}

/// Sum by the reduction tree: neighbours first, then pairs of neighbours.
fn by_tree(mut all: Vec<Vec<f32>>) -> Vec<f32> {
    while all.len() > 1 {
        let pairs = all.chunks(2).map(|pair| match pair {
            [left, right] => left.iter().zip(right).map(|(l, r)| l + r).collect(),
            alone => alone[0].clone(),
        });
        all = pairs.collect();
    }
    all.remove(0)
}

impl TensorCollectives for ThreadRank<'_> {
    fn all_reduce(&mut self, values: ViewMut<'_>) {
        let values = values.into_slice::<f32>().expect("host memory");
        values.copy_from_slice(&by_tree(self.all(values)));
    }

    fn all_reduce_max(&mut self, values: ViewMut<'_>) {
        let values = values.into_slice::<f32>().expect("host memory");
        for other in self.all(values) {
            for (value, other) in values.iter_mut().zip(other) {
                *value = value.max(other);
            }
        }
    }

    fn all_gather(&mut self, values: ViewMut<'_>) {
        let values = values.into_slice::<f32>().expect("host memory");
        for (index, other) in self.all(values).iter().enumerate() {
            let part = ThreadRank { shared: self.shared, index }.part(values);
            values[part.clone()].copy_from_slice(&other[part]);
        }
    }

    fn reduce_scatter(&mut self, values: ViewMut<'_>) {
        let values = values.into_slice::<f32>().expect("host memory");
        let part = self.part(values);
        let sum = by_tree(self.all(values));
        values.fill(f32::NAN);
        values[part.clone()].copy_from_slice(&sum[part]);
    }
}

/// Gradients of whole tensors by name; replicated tensors have equal gradients on every rank.
type Gradients = BTreeMap<String, Vec<f32>>;

fn add_gradients(all: &mut Gradients, tiny: &Tiny, outcome: &Outcome) {
    for (block, param) in tiny.blueprint.params() {
        let own = &outcome.grads[block][param.range()];
        let tensor = all.entry(param.name.clone());
        let tensor = tensor.or_insert_with(|| vec![f32::NAN; param.tensor_len()]);
        if param.piece.num == 1 && !tensor[0].is_nan() {
            assert_same(tensor, own, &param.name);
        }
        param.place(0, own, tensor);
    }
}

/// Runs a micro-batch on `degree` tensor-parallel ranks and merges their outcomes.
fn run(
    model: &Model,
    batch: &Batch,
    (degree, sequence): (usize, bool),
    mode: Mode,
    recompute: Recompute,
) -> (Outcome, Gradients) {
    let shared =
        SharedMemory { values: Mutex::new(vec![vec![]; degree]), barrier: Barrier::new(degree) };
    let ranks: Vec<(Tiny, Outcome)> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..degree)
            .map(|index| {
                let shared = &shared;
                scope.spawn(move || {
                    let shards = TensorShards::for_tp_rank(NUM_SHARDS, degree, index, sequence);
                    let tiny = Tiny::of_shards(model, &shards);
                    let cpu = Cpu::single(Isa::detect());
                    let mut rank = ThreadRank { shared, index };
                    let microbatch = batch.microbatch();
                    let outcome = tiny.run_shards(&cpu, &microbatch, mode, recompute, &mut rank);
                    (tiny, outcome)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    });
    let mut gradients = Gradients::new();
    let mut all = Outcome { loss: f64::NAN, logits: vec![], grads: vec![], d_stream: vec![] };
    for (index, (tiny, outcome)) in ranks.iter().enumerate() {
        assert!(index == 0 || outcome.loss.to_bits() == all.loss.to_bits(), "one loss");
        all.loss = outcome.loss;
        all.logits.extend(&outcome.logits);
        if index == 0 || sequence {
            all.d_stream.extend(&outcome.d_stream);
        } else {
            assert_same(&outcome.d_stream, &all.d_stream, "the stream of every rank");
        }
        if mode != Mode::Evaluate {
            add_gradients(&mut gradients, tiny, outcome);
        }
    }
    (all, gradients)
}

#[test]
fn every_degree_gives_the_bits_of_one_rank() {
    for model in variants() {
        let batch = Batch::new(&model, 3);
        let (expected, gradients) = run(&model, &batch, (1, false), TRAIN, Recompute::None);
        assert!(gradients.values().flatten().all(|g| g.is_finite()), "{model:?}");
        for degree in [1, 2, 4] {
            for sequence in [false, true] {
                let what = format!("TP{degree}, sequence {sequence}, {model:?}");
                let layout = (degree, sequence);
                let (got, got_gradients) = run(&model, &batch, layout, TRAIN, Recompute::None);
                got.assert_same(&expected, &what);
                for (name, expected) in &gradients {
                    assert_same(&got_gradients[name], expected, &format!("{name}, {what}"));
                }
            }
        }
    }
}

#[test]
fn recomputation_and_evaluation_give_equal_bits_on_every_degree() {
    for model in variants() {
        let batch = Batch::new(&model, 3);
        let (_, gradients) = run(&model, &batch, (1, false), TRAIN, Recompute::None);
        let (evaluated, _) = run(&model, &batch, (1, false), Mode::Evaluate, Recompute::None);
        for sequence in [false, true] {
            let layout = (2, sequence);
            for what in [Recompute::Selective, Recompute::Full] {
                let (_, recomputed) = run(&model, &batch, layout, TRAIN, what);
                for (name, expected) in &gradients {
                    assert_same(
                        &recomputed[name],
                        expected,
                        &format!("{name}, {what:?}, {model:?}"),
                    );
                }
            }
            let (recomputed, _) = run(&model, &batch, layout, Mode::Evaluate, Recompute::None);
            assert_eq!(recomputed.loss.to_bits(), evaluated.loss.to_bits(), "{model:?}");
            assert_same(&recomputed.logits, &evaluated.logits, "logits");
        }
    }
}

/// Effect of another order of additions, relative to the largest element of a tensor.
const ROUNDING: f32 = 2e-5;

#[test]
fn sharding_changes_only_the_rounding() {
    let cpu = Cpu::single(Isa::detect());
    for mut model in variants() {
        // Each shard of a row-parallel layer's input has a mask of its own.
        model.lora.dropout = 0.0;
        let batch = Batch::new(&model, 3);
        let whole = Tiny::new(&model);
        let expected = whole.train(&cpu, &batch.microbatch());
        let mut gradients = Gradients::new();
        add_gradients(&mut gradients, &whole, &expected);
        let (got, sharded) = run(&model, &batch, (1, false), TRAIN, Recompute::None);
        assert!((got.loss / expected.loss - 1.0).abs() < f64::from(ROUNDING), "{model:?}");
        for (name, expected) in &gradients {
            let largest = expected.iter().fold(0.0_f32, |max, g| max.max(g.abs()));
            for (got, expected) in sharded[name].iter().zip(expected) {
                let error = (got - expected).abs();
                assert!(error <= ROUNDING * largest, "{name}: {got}, not {expected}: {model:?}");
            }
        }
    }
}

#[test]
fn a_sharded_model_decodes_to_the_logits_of_its_forward() {
    let cpu = Cpu::single(Isa::detect());
    for model in variants() {
        let batch = Batch::new(&model, 1);
        let tiny = Tiny::of_shards(&model, &TensorShards::all(NUM_SHARDS));
        let all = tiny.run(&cpu, &batch.microbatch(), Mode::Evaluate, Recompute::None, 0.0);
        let mut decoder = Decoder::new(&tiny.blueprint, &cpu, model.context).unwrap();
        let (rows, vocab) = (model.context, model.vocab / NUM_SHARDS);
        for chunk in [5, 1, 1, model.context - 7] {
            let end = decoder.num_positions() + chunk;
            let logits =
                decoder.feed(&tiny.params, &batch.inputs()[end - chunk..end]).unwrap().to_vec();
            // A row of logits consists of its parts of all shards.
            let part = |shard: usize| &all.logits[(shard * rows + end - 1) * vocab..][..vocab];
            let expected: Vec<f32> = (0..NUM_SHARDS).flat_map(part).copied().collect();
            assert_same(&logits, &expected, &format!("{model:?}"));
        }
    }
}

/// Records the calls.
#[derive(Default)]
struct CallRecorder {
    calls: Vec<CollectiveCall>,
}

impl CallRecorder {
    fn record(&mut self, kind: CollectiveKind, values: &ViewMut<'_>) {
        self.calls.push(CollectiveCall { kind, len: values.len() });
    }
}

impl TensorCollectives for CallRecorder {
    fn all_reduce(&mut self, values: ViewMut<'_>) {
        self.record(CollectiveKind::AllReduce, &values);
        SingleRank.all_reduce(values);
    }

    fn all_reduce_max(&mut self, values: ViewMut<'_>) {
        self.record(CollectiveKind::AllReduceMax, &values);
    }

    fn all_gather(&mut self, values: ViewMut<'_>) {
        self.record(CollectiveKind::AllGather, &values);
    }

    fn reduce_scatter(&mut self, values: ViewMut<'_>) {
        self.record(CollectiveKind::ReduceScatter, &values);
    }
}

#[test]
fn blocks_make_the_calls_that_they_declare() {
    let cpu = Cpu::single(Isa::detect());
    for model in variants() {
        let batch = Batch::new(&model, 3);
        let microbatch = batch.microbatch();
        for (sequence, recompute) in [
            (false, Recompute::None),
            (true, Recompute::None),
            (false, Recompute::Full),
            (true, Recompute::Full),
            (true, Recompute::Selective),
        ] {
            for halves in [false, true] {
                let shards = TensorShards { sequence, ..TensorShards::all(NUM_SHARDS) };
                let tiny = Tiny { halves, ..Tiny::of_shards(&model, &shards) };
                let mut recorder = CallRecorder::default();
                tiny.run_shards(&cpu, &microbatch, TRAIN, recompute, &mut recorder);
                let declared = declared(&tiny, &microbatch, recompute);
                let what = format!("{halves}, {sequence}, {recompute:?}, {model:?}");
                assert_eq!(recorder.calls, declared, "{what}");
            }
        }
    }
}

/// Declared collective calls of a forward and a backward pass.
fn declared(tiny: &Tiny, microbatch: &Microbatch<'_>, recompute: Recompute) -> Vec<CollectiveCall> {
    let blocks = &tiny.blueprint.blocks;
    let mut calls = Vec::new();
    for block in blocks {
        calls.extend(block.collective_calls(microbatch.shape, Pass::Forward));
    }
    let halves: &[usize] = if tiny.halves { &[1, 2] } else { &[0] };
    for half in halves {
        for block in blocks.iter().rev() {
            let what = if block.io().is_layer() { recompute } else { Recompute::None };
            calls.extend(block.collective_calls(microbatch.shape, Pass::Recompute(what)));
            let all: Vec<_> = block.params().iter().map(Param::range).collect();
            let pass =
                [Pass::Backward(&all), Pass::BackwardInputs, Pass::BackwardWeights(&all)][*half];
            calls.extend(block.collective_calls(microbatch.shape, pass));
        }
    }
    calls
}

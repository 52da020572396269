//! A model in slices: whoever holds them, the same bits; and the mathematics of one piece.

use super::tiny::{Batch, LLAMA, Outcome, TRAIN, Tiny, assert_same};
use lockstep_config::{Family, Model};
use lockstep_model::{
    CollectiveCall, CollectiveKind, Decoder, Microbatch, Mode, Param, Pass, Recompute, SingleRank,
    TensorCollectives, TensorShards,
};
use lockstep_tensor::{Cpu, Isa};
use std::collections::BTreeMap;
use std::sync::{Barrier, Mutex};

const NUM_SLICES: usize = 4;

/// Everything can be cut into four; grouped-query attention.
const CUT: Model =
    Model { width: 48, heads: 8, kv_heads: 4, ffn: 44, vocab: 28, context: 12, ..LLAMA };

/// Both families, tied and untied, with and without dropout; and sums over more than 512.
fn variants() -> Vec<Model> {
    let gpt2 = Model { family: Family::Gpt2, kv_heads: 8, ..CUT };
    let mut variants = vec![Model { layers: 1, ffn: NUM_SLICES * 521, dropout: 0.25, ..CUT }];
    for family in [CUT, gpt2] {
        for (tied, dropout) in [(false, 0.0), (true, 0.25)] {
            variants.push(Model { tied, dropout, ..family.clone() });
        }
    }
    variants
}

/// Holders of slices that are threads of one process.
struct Table {
    places: Mutex<Vec<Vec<f32>>>,
    barrier: Barrier,
}

/// One of them.
struct Seat<'a> {
    table: &'a Table,
    index: usize,
}

impl Seat<'_> {
    /// What everybody puts on the table.
    fn all(&self, values: &[f32]) -> Vec<Vec<f32>> {
        self.table.places.lock().expect("nobody panicked")[self.index] = values.to_vec();
        self.table.barrier.wait();
        let all = self.table.places.lock().expect("nobody panicked").clone();
        self.table.barrier.wait();
        assert!(all.iter().all(|other| other.len() == values.len()), "the same call everywhere");
        all
    }

    fn part(&self, values: &[f32]) -> std::ops::Range<usize> {
        let len = values.len() / self.table.places.lock().expect("nobody panicked").len();
        self.index * len..(self.index + 1) * len
    }
}

/// Neighbours first, then neighbours of those.
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

impl TensorCollectives for Seat<'_> {
    fn all_reduce(&mut self, values: &mut [f32]) {
        values.copy_from_slice(&by_tree(self.all(values)));
    }

    fn all_reduce_max(&mut self, values: &mut [f32]) {
        for other in self.all(values) {
            for (value, other) in values.iter_mut().zip(other) {
                *value = value.max(other);
            }
        }
    }

    fn all_gather(&mut self, values: &mut [f32]) {
        for (index, other) in self.all(values).iter().enumerate() {
            let part = Seat { table: self.table, index }.part(values);
            values[part.clone()].copy_from_slice(&other[part]);
        }
    }

    fn reduce_scatter(&mut self, values: &mut [f32]) {
        let part = self.part(values);
        let sum = by_tree(self.all(values));
        values.fill(f32::NAN);
        values[part.clone()].copy_from_slice(&sum[part]);
    }
}

/// The gradients of whole tensors by name, where every holder of all of one has the same.
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

/// The same micro-batch by `degree` holders; their outcomes, put together.
fn run(
    model: &Model,
    batch: &Batch,
    (degree, sequence): (usize, bool),
    mode: Mode,
    recompute: Recompute,
) -> (Outcome, Gradients) {
    let table = Table { places: Mutex::new(vec![vec![]; degree]), barrier: Barrier::new(degree) };
    let holders: Vec<(Tiny, Outcome)> = std::thread::scope(|scope| {
        let holders: Vec<_> = (0..degree)
            .map(|index| {
                let table = &table;
                scope.spawn(move || {
                    let shards = TensorShards::for_tp_rank(NUM_SLICES, degree, index, sequence);
                    let tiny = Tiny::of_slices(model, &shards);
                    let cpu = Cpu::single(Isa::detect());
                    let mut seat = Seat { table, index };
                    let microbatch = batch.microbatch();
                    let outcome = tiny.run_slices(&cpu, &microbatch, mode, recompute, &mut seat);
                    (tiny, outcome)
                })
            })
            .collect();
        holders.into_iter().map(|holder| holder.join().expect("no holder panics")).collect()
    });
    let mut gradients = Gradients::new();
    let mut all = Outcome { loss: f64::NAN, logits: vec![], grads: vec![], d_stream: vec![] };
    for (index, (tiny, outcome)) in holders.iter().enumerate() {
        assert!(index == 0 || outcome.loss.to_bits() == all.loss.to_bits(), "one loss");
        all.loss = outcome.loss;
        all.logits.extend(&outcome.logits);
        if index == 0 || sequence {
            all.d_stream.extend(&outcome.d_stream);
        } else {
            assert_same(&outcome.d_stream, &all.d_stream, "the stream of every holder");
        }
        if mode != Mode::Evaluate {
            add_gradients(&mut gradients, tiny, outcome);
        }
    }
    (all, gradients)
}

#[test]
fn any_number_of_holders_gives_the_bits_of_one() {
    for model in variants() {
        let batch = Batch::new(&model, 3);
        let (expected, gradients) = run(&model, &batch, (1, false), TRAIN, Recompute::None);
        assert!(gradients.values().flatten().all(|g| g.is_finite()), "{model:?}");
        for degree in [1, 2, 4] {
            for sequence in [false, true] {
                let what = format!("{degree} holders, sequence {sequence}, {model:?}");
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
fn holders_recompute_and_evaluate_to_the_same_bits() {
    for model in variants() {
        let batch = Batch::new(&model, 3);
        let (_, gradients) = run(&model, &batch, (1, false), TRAIN, Recompute::None);
        let (evaluated, _) = run(&model, &batch, (1, false), Mode::Evaluate, Recompute::None);
        for sequence in [false, true] {
            let layout = (2, sequence);
            for what in [Recompute::Selective, Recompute::Full] {
                let (_, again) = run(&model, &batch, layout, TRAIN, what);
                for (name, expected) in &gradients {
                    assert_same(&again[name], expected, &format!("{name}, {what:?}, {model:?}"));
                }
            }
            let (again, _) = run(&model, &batch, layout, Mode::Evaluate, Recompute::None);
            assert_eq!(again.loss.to_bits(), evaluated.loss.to_bits(), "{model:?}");
            assert_same(&again.logits, &evaluated.logits, "logits");
        }
    }
}

/// Relative to the largest element of a tensor: what another order of additions changes.
const ROUNDING: f32 = 2e-5;

#[test]
fn slices_change_the_rounding_of_one_piece_and_nothing_else() {
    let cpu = Cpu::single(Isa::detect());
    for model in variants() {
        let batch = Batch::new(&model, 3);
        let whole = Tiny::new(&model);
        let expected = whole.train(&cpu, &batch.microbatch());
        let mut gradients = Gradients::new();
        add_gradients(&mut gradients, &whole, &expected);
        let (got, sliced) = run(&model, &batch, (1, false), TRAIN, Recompute::None);
        assert!((got.loss / expected.loss - 1.0).abs() < f64::from(ROUNDING), "{model:?}");
        for (name, expected) in &gradients {
            let largest = expected.iter().fold(0.0_f32, |max, g| max.max(g.abs()));
            for (got, expected) in sliced[name].iter().zip(expected) {
                let error = (got - expected).abs();
                assert!(error <= ROUNDING * largest, "{name}: {got}, not {expected}: {model:?}");
            }
        }
    }
}

#[test]
fn a_model_in_slices_decodes_to_the_logits_of_its_forward() {
    let cpu = Cpu::single(Isa::detect());
    for model in variants() {
        let batch = Batch::new(&model, 1);
        let tiny = Tiny::of_slices(&model, &TensorShards::all(NUM_SLICES));
        let all = tiny.run(&cpu, &batch.microbatch(), Mode::Evaluate, Recompute::None, 0.0);
        let mut decoder = Decoder::new(&tiny.blueprint, model.context);
        let (rows, vocab) = (model.context, model.vocab / NUM_SLICES);
        for chunk in [5, 1, 1, model.context - 7] {
            let end = decoder.num_positions() + chunk;
            let logits =
                decoder.feed(&cpu, &tiny.params, &batch.inputs()[end - chunk..end]).to_vec();
            // A row of logits is its parts of all slices.
            let part = |shard: usize| &all.logits[(shard * rows + end - 1) * vocab..][..vocab];
            let expected: Vec<f32> = (0..NUM_SLICES).flat_map(part).copied().collect();
            assert_same(&logits, &expected, &format!("{model:?}"));
        }
    }
}

/// Writes down what is asked of it.
#[derive(Default)]
struct Notebook {
    calls: Vec<CollectiveCall>,
}

impl Notebook {
    fn note(&mut self, kind: CollectiveKind, values: &[f32]) {
        self.calls.push(CollectiveCall { kind, len: values.len() });
    }
}

impl TensorCollectives for Notebook {
    fn all_reduce(&mut self, values: &mut [f32]) {
        self.note(CollectiveKind::AllReduce, values);
        SingleRank.all_reduce(values);
    }

    fn all_reduce_max(&mut self, values: &mut [f32]) {
        self.note(CollectiveKind::AllReduceMax, values);
    }

    fn all_gather(&mut self, values: &mut [f32]) {
        self.note(CollectiveKind::AllGather, values);
    }

    fn reduce_scatter(&mut self, values: &mut [f32]) {
        self.note(CollectiveKind::ReduceScatter, values);
    }
}

#[test]
fn blocks_make_the_calls_that_they_announce() {
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
                let shards = TensorShards { sequence, ..TensorShards::all(NUM_SLICES) };
                let tiny = Tiny { halves, ..Tiny::of_slices(&model, &shards) };
                let mut notebook = Notebook::default();
                tiny.run_slices(&cpu, &microbatch, TRAIN, recompute, &mut notebook);
                let announced = announced(&tiny, &microbatch, recompute);
                let what = format!("{halves}, {sequence}, {recompute:?}, {model:?}");
                assert_eq!(notebook.calls, announced, "{what}");
            }
        }
    }
}

/// The calls that blocks say they will make in a forward and a backward pass.
fn announced(
    tiny: &Tiny,
    microbatch: &Microbatch<'_>,
    recompute: Recompute,
) -> Vec<CollectiveCall> {
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

//! Every valid layout of small models: losses, gradients and the weights after three steps are
//! those of one worker.
//!
//! They agree bit for bit where `numerics.invariant_tensor_up_to` fixes the order of sums over
//! tensor-parallel shards. Otherwise tensor-parallel layouts agree up to rounding with one worker,
//! and bit for bit with all layouts of the same tensor-parallel degree. Memory and bytes sent of
//! every rank are as planned. With `LOCKSTEP_SOAK=1` all layouts run; else a subset that covers all
//! pairs of values. `cargo test -p lockstep-harness --test suite layout_matrix:: -- --nocapture`
//! prints the table of layouts.

#![expect(clippy::print_stdout, reason = "--nocapture prints the table of layouts")]

use lockstep_comm::{Comm, CommError};
use lockstep_config::{ConfigError, Dtype, Recipe, Reduction};
use lockstep_harness::layouts::{self, Layout};
use lockstep_harness::recipes::{GPT2, LLAMA, Small};
use lockstep_harness::runs::soak;
use lockstep_harness::tolerance::Tolerance;
use lockstep_harness::traffic::predicted_bytes_of_steps;
use lockstep_model::{Microbatch, MicrobatchShape, Param};
use lockstep_optim::Update;
use lockstep_parallel::from_recipe::{arena_bytes, blueprint_of_rank, mesh_of, microbatch_shape};
use lockstep_parallel::{Groups, Replica};
use lockstep_planner::memory::Memory;
use lockstep_planner::traffic::embedding_rows;
use lockstep_platform::World;
use lockstep_tensor::Isa;
use lockstep_tensor::device::Compute;
use lockstep_tensor::device::View;
use lockstep_tensor::random::Key;
use lockstep_trainer::learner::Learner;
use lockstep_trainer::{TrainError, materialize};
use std::collections::BTreeMap;

const WORKERS: [usize; 5] = [1, 2, 3, 4, 8];
const NUM_STEPS: u64 = 3;

/// Eight blocks: unequal on three stages, one each on eight.
const SMALL: [&str; 9] = [
    "model.layers=6",
    "model.width=32",
    "model.ffn=32",
    "model.context=16",
    "model.dropout=0.1",
    "train.batch=8",
    "train.microbatch=1",
    "parallel.bucket_bytes=16KiB",
    "run.isolation=threads",
];

/// Tensors by name.
type Tensors = BTreeMap<String, Vec<f32>>;

/// Results of three steps.
struct Outcome {
    losses: Vec<f64>,
    /// Gradients of every step, summed over the batch, before clipping.
    grads: Tensors,
    weights: Tensors,
    wire_bytes: u64,
}

/// Results of one rank.
struct RankOutcome {
    losses: Vec<f64>,
    grads: Vec<Piece>,
    weights: Tensors,
    wire_bytes: u64,
    held_bytes: u64,
}

/// Elements of a gradient, from index `first` of a piece of a parameter on.
struct Piece {
    step: u64,
    param: Param,
    first: usize,
    values: Vec<f32>,
}

/// Tokens of a step, equal on every rank.
struct Batch {
    shape: MicrobatchShape,
    tokens: Vec<u32>,
    num_targets: u64,
}

impl Batch {
    fn new(recipe: &Recipe, step: u64) -> Self {
        let (shape, num_microbatches) = (microbatch_shape(recipe), recipe.num_microbatches());
        let (key, num_rows) = (Key::new(step, "tokens"), num_microbatches * shape.rows());
        let draw = |i: usize| (key.uniform_f64(i as u64) * recipe.model.vocab as f64) as u32;
        assert_eq!(recipe.train.reduction, Reduction::Mean);
        Self { shape, tokens: (0..=num_rows).map(draw).collect(), num_targets: num_rows as u64 }
    }

    fn microbatch(&self, index: usize) -> Microbatch<'_> {
        let rows = index * self.shape.rows()..(index + 1) * self.shape.rows();
        Microbatch {
            shape: self.shape,
            inputs: View::of(&self.tokens[rows.clone()]),
            targets: View::of(&self.tokens[rows.start + 1..=rows.end]),
            first_sample: (index * self.shape.sequences) as u64,
            num_targets: self.num_targets,
            documents: None,
            preferences: None,
        }
    }
}

/// Three steps of one rank.
fn train_rank(recipe: &Recipe, world: &World, comm: &Comm) -> Result<RankOutcome, TrainError> {
    let cpu = &Compute::single(Isa::detect());
    let groups = Groups::new(comm, mesh_of(recipe))?;
    let mut learner = materialize(recipe, cpu, &groups, world)?;
    let (mut losses, mut grads, mut weights) = (Vec::new(), Vec::new(), Tensors::new());
    // The broadcast of the initial parameters belongs to no step.
    learner.replica.settle()?;
    let before = sent_and_shared(&learner.replica);
    for step in 0..NUM_STEPS {
        let batch = Batch::new(recipe, step);
        let lr = learner.lr(step);
        let Learner { replica, optimizer, clip, .. } = &mut learner;
        let loss = replica
            .run_microbatches(cpu, recipe.train.seed, step, &|index| batch.microbatch(index))?;
        losses.push(loss / batch.num_targets as f64);
        let sums = replica.finish_reduce(cpu)?;
        for (slot, values) in replica.own_grads() {
            let mut params = replica.blueprint().owned_params().map(|(_, param)| param);
            let is_of = |p: &&Param| p.name == slot.name && p.piece.index == slot.piece;
            let param = params.find(is_of).expect("every slot is a parameter").clone();
            let first = slot.first - param.first();
            grads.push(Piece { step, param, first, values: values.to_vec() });
        }
        let sums = replica.unscale(cpu, sums).expect("memory");
        let clip = replica.clip(cpu, sums, clip)?;
        replica.step(cpu, optimizer, &Update { count: step + 1, lr, clip })?;
    }
    let replica = &mut learner.replica;
    replica.settle()?;
    let wire_bytes = sent_and_shared(replica) - before;
    assert_eq!(replica.find_difference()?, None, "replicas are equal");
    replica.visit_params(|param, values| {
        weights.insert(param.name.clone(), values.to_vec());
        Ok::<_, CommError>(())
    })?;
    let held_bytes = (replica.footprint(&learner.optimizer).total() * size_of::<f32>()) as u64;
    Ok(RankOutcome { losses, grads, weights, wire_bytes, held_bytes })
}

fn sent_and_shared(replica: &Replica) -> u64 {
    let traffic = replica.traffic();
    traffic.sent_bytes + traffic.read_bytes + traffic.written_bytes
}

/// Three steps with all workers as threads.
fn train(recipe: &Recipe, world: &World) -> Outcome {
    let arena_bytes = arena_bytes(recipe);
    let settings = lockstep_comm::Options { arena_bytes, ..lockstep_comm::Options::default() };
    let ends = Comm::threads(world, recipe.run.workers, &settings).expect("a world of threads");
    let mut ranks: Vec<RankOutcome> = std::thread::scope(|scope| {
        let start = |end| scope.spawn(move || train_rank(recipe, world, end).expect("three steps"));
        let threads: Vec<_> = ends.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    let planned = Memory::of(recipe, &blueprint_of_rank(recipe, 0)).ranks;
    let planned = planned.iter().map(|rank| rank.own().0);
    assert!(ranks.iter().map(|rank| rank.held_bytes).eq(planned), "memory: {:?}", recipe.parallel);
    let sent: Vec<u64> = ranks.iter().map(|rank| rank.wire_bytes).collect();
    assert_eq!(sent, predicted(recipe), "bytes: {:?}", recipe.parallel);
    let wire_bytes = sent.iter().sum();
    let pieces: Vec<_> =
        ranks.iter_mut().flat_map(|rank| std::mem::take(&mut rank.grads)).collect();
    let RankOutcome { losses, weights, .. } = ranks.swap_remove(0);
    Outcome { losses, grads: assemble(&pieces), weights, wire_bytes }
}

/// Predicted bytes sent by every rank.
fn predicted(recipe: &Recipe) -> Vec<u64> {
    predicted_bytes_of_steps(recipe, NUM_STEPS, |step| {
        let batch = Batch::new(recipe, step);
        embedding_rows::by_rank(recipe, step, |microbatch| {
            batch.microbatch(microbatch).inputs.as_slice().expect("host memory")
        })
    })
}

/// Assembles whole gradients from the pieces of all ranks; replicated elements have equal bits.
fn assemble(pieces: &[Piece]) -> Tensors {
    /// Bits of a NaN that no gradient has.
    const MISSING: u32 = 0x7fc0_dead;
    let mut whole = Tensors::new();
    for Piece { step, param, first, values } in pieces {
        let name = format!("step {step}, gradient of {}", param.name);
        let empty = || vec![f32::from_bits(MISSING); param.tensor_len()];
        let tensor = whole.entry(name.clone()).or_insert_with(empty);
        let mut there = vec![0.0; values.len()];
        param.pick(*first, tensor, &mut there);
        let is_same = |(there, value): (&f32, &f32)| {
            there.to_bits() == MISSING || there.to_bits() == value.to_bits()
        };
        assert!(there.iter().zip(values).all(is_same), "{name}: two ranks differ");
        param.place(*first, values, tensor);
    }
    let is_known = |tensor: &Vec<f32>| tensor.iter().all(|value| value.to_bits() != MISSING);
    let unknown = whole.iter().find(|(_, tensor)| !is_known(tensor));
    assert!(unknown.is_none(), "no rank has all of {:?}", unknown.map(|(name, _)| name));
    whole
}

fn assert_agree(tolerance: Tolerance, found: &Outcome, expected: &Outcome, what: &str) {
    let agree = || {
        tolerance.compare("loss", &found.losses, &expected.losses)?;
        for (found, expected) in
            [(&found.grads, &expected.grads), (&found.weights, &expected.weights)]
        {
            assert!(found.keys().eq(expected.keys()), "{what}: other tensors");
            for (name, values) in expected {
                tolerance.compare(name, &found[name], values)?;
            }
        }
        Ok(())
    };
    agree().unwrap_or_else(|mismatch: lockstep_harness::tolerance::Mismatch| {
        panic!("{what}: {mismatch}");
    });
}

/// A model and its settings.
struct Case<'a> {
    small: &'a Small,
    sets: Vec<&'a str>,
    world: World,
}

impl<'a> Case<'a> {
    fn new(small: &'a Small, sets: &[&'a str]) -> Self {
        let sets = SMALL.iter().chain(sets).copied().collect();
        Self { small, sets, world: lockstep_platform::real() }
    }

    fn recipe(&self, layout: &Layout) -> Recipe {
        layout.resolve(self.small, &self.sets).expect("a valid layout")
    }

    /// All valid layouts in the long suite; else a subset that covers all pairs, divided among
    /// `num_tests` tests, of which this is number `test`.
    fn layouts(
        &self,
        (test, num_tests): (usize, usize),
        is_included: impl Fn(&Layout) -> bool,
    ) -> Vec<Layout> {
        let mut all = Layout::all(&WORKERS);
        all.retain(|layout| is_included(layout) && layout.resolve(self.small, &self.sets).is_ok());
        if soak() {
            return all;
        }
        let pairs = layouts::pairs(&all, &self.world);
        pairs.into_iter().skip(test).step_by(num_tests).collect()
    }

    /// Trains all of them, checks the results, and prints a line for each.
    fn run(&self, layouts: &[Layout], check: &dyn Fn(&Layout, &Outcome) -> String) {
        println!(
            "\n{} {:?}\n{}  result     wire bytes",
            self.small.name,
            self.sets,
            layouts::TITLE
        );
        for layout in layouts {
            let found = train(&self.recipe(layout), &self.world);
            let result = check(layout, &found);
            println!("{layout}  {result:<9}  {:>10}", found.wire_bytes);
        }
        println!("{} layouts", layouts.len());
    }

    /// Asserts that all layouts give the bits of one worker.
    fn assert_equal_everywhere(&self, turn: (usize, usize)) {
        let alone = train(&self.recipe(&Layout::SINGLE), &self.world);
        self.run(&self.layouts(turn, |_| true), &|layout, found| {
            assert_agree(Tolerance::Exact, found, &alone, &format!("{layout:?}"));
            "equal".to_owned()
        });
    }

    /// Asserts that tensor-parallel layouts give the numbers of one worker up to rounding, and the
    /// bits of all layouts of the same tensor-parallel degree.
    fn assert_close_everywhere(&self, turn: (usize, usize)) {
        let alone = train(&self.recipe(&Layout::SINGLE), &self.world);
        let of_degree = |tensor: usize| {
            let layout = Layout { workers: tensor, tensor, ..Layout::SINGLE };
            layout.resolve(self.small, &self.sets).ok().map(|recipe| train(&recipe, &self.world))
        };
        let by_degree: BTreeMap<_, _> =
            WORKERS[1..].iter().filter_map(|tensor| Some((*tensor, of_degree(*tensor)?))).collect();
        self.run(&self.layouts(turn, |layout| layout.tensor > 1), &|layout, found| {
            let what = format!("{layout:?}");
            assert_agree(Tolerance::Exact, found, &by_degree[&layout.tensor], &what);
            assert_agree(Tolerance::Close(Dtype::F32, 256), found, &alone, &what);
            assert_ne!(found.weights, alone.weights, "{what}: another order of additions");
            "close".to_owned()
        });
    }
}

/// Grouped-query attention; every layer divides into eight shards.
const LLAMA_SETS: [&str; 3] = ["model.heads=16", "model.kv_heads=8", "model.tied=false"];

#[test]
fn every_layout_gives_a_llama_the_bits_of_one_worker() {
    let sets = [&LLAMA_SETS[..], &["numerics.invariant_tensor_up_to=8"]].concat();
    Case::new(&LLAMA, &sets).assert_equal_everywhere((0, 2));
}

#[test]
fn every_layout_gives_a_tied_gpt2_the_bits_of_one_worker() {
    Case::new(&GPT2, &["numerics.invariant_tensor_up_to=4"]).assert_equal_everywhere((1, 2));
}

#[test]
fn tensor_parallel_layouts_without_fixed_order_give_a_llama_close_results() {
    let sets = [&LLAMA_SETS[..], &["optim.name=sgd"]].concat();
    Case::new(&LLAMA, &sets).assert_close_everywhere((0, 8));
}

#[test]
fn tensor_parallel_layouts_without_fixed_order_give_a_tied_gpt2_close_results() {
    Case::new(&GPT2, &["optim.name=sgd"]).assert_close_everywhere((1, 8));
}

/// Every suggestion of an error as a setting: values of its key, then of others.
fn advice(error: &ConfigError) -> Vec<String> {
    let advice = error.fix.strip_prefix("try ").expect("a suggestion");
    let mut key = error.key.as_str();
    let parts = advice.split(", or ").flat_map(|part| part.split(" or "));
    let set = |part| match str::split_once(part, " = ") {
        Some((other, value)) => {
            key = other;
            format!("{key}={value}")
        }
        None => format!("{key}={part}"),
    };
    parts.flat_map(|part| part.split(", ")).map(set).collect()
}

#[test]
fn invalid_layouts_are_refused_with_valid_suggestions() {
    let case = Case::new(&GPT2, &["numerics.invariant_tensor_up_to=4"]);
    let mut refused = Layout::all(&WORKERS);
    refused.retain(|layout| layout.resolve(case.small, &case.sets).is_err());
    assert!(!refused.is_empty());
    for layout in if soak() { refused } else { layouts::pairs(&refused, &case.world) } {
        let own = case.sets.iter().map(|set| (*set).to_owned());
        let sets: Vec<_> = own.chain(layout.sets()).collect();
        let errors = case.small.try_with(&sets).expect_err("it is refused").errors;
        for (error, fix) in errors.iter().flat_map(|e| advice(e).into_iter().map(move |f| (e, f))) {
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
            // Following one suggestion and then the first of each remaining error leads to a valid
            // layout within three rounds.
            let mut sets = [sets.clone(), vec![fix]].concat();
            for _ in 0..3 {
                let left = case.small.try_with(&sets).err().into_iter().flatten();
                let left: Vec<_> = left.map(|error| advice(&error).swap_remove(0)).collect();
                sets.extend(left);
            }
            let mended = case.small.try_with(&sets);
            assert!(mended.is_ok(), "{error}\n{sets:?}: {}", mended.unwrap_err());
        }
    }
}

//! Every product of layouts that a recipe may ask for, on small models: losses, every gradient and
//! the weights after three steps are those of one worker.
//!
//! To the bit where sums over slices are asked for (`numerics.invariant_tensor_up_to`); but for
//! rounding where they are not and layers are cut, and then to the bit for all layouts that cut
//! layers alike. Every rank holds and moves the bytes that the planner said. With `LOCKSTEP_SOAK=1`
//! all products run; else few that have all pairs. The table of them is printed, which `cargo test
//! -p lockstep-harness --test products -- --nocapture` shows.

#![expect(clippy::print_stdout, reason = "the table of layouts is asked for")]

use lockstep_comm::{Comm, CommError};
use lockstep_config::{ConfigError, Dtype, Recipe, Reduction};
use lockstep_harness::moved::predicted_in_all;
use lockstep_harness::products::{self, Product};
use lockstep_harness::recipes::{GPT2, LLAMA, Small};
use lockstep_harness::runs::soak;
use lockstep_harness::tolerance::Tolerance;
use lockstep_model::{Microbatch, MicrobatchShape, Param};
use lockstep_optim::Update;
use lockstep_parallel::from_recipe::{arena_bytes, blueprint_of_rank, mesh_of, microbatch_shape};
use lockstep_parallel::{Groups, Replica};
use lockstep_planner::memory::Memory;
use lockstep_planner::traffic::embedding_rows;
use lockstep_platform::World;
use lockstep_tensor::random::Key;
use lockstep_tensor::{Cpu, Isa};
use lockstep_trainer::TrainError;
use lockstep_trainer::learner::Learner;
use lockstep_trainer::materialize;
use std::collections::BTreeMap;

const WORKERS: [usize; 5] = [1, 2, 3, 4, 8];
const NUM_STEPS: u64 = 3;

/// Eight blocks, so that three stages are uneven and eight have one each.
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

/// What came out of three steps.
struct Outcome {
    losses: Vec<f64>,
    /// Of every step, summed over the batch, before clipping.
    grads: Tensors,
    weights: Tensors,
    wire_bytes: u64,
}

/// What one rank knows of it.
struct Told {
    losses: Vec<f64>,
    grads: Vec<Piece>,
    weights: Tensors,
    wire_bytes: u64,
    held_bytes: u64,
}

/// Elements of a gradient, from the `first` of a piece of a parameter on.
struct Piece {
    step: u64,
    param: Param,
    first: usize,
    values: Vec<f32>,
}

/// Tokens of a step, the same for everybody.
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
            inputs: &self.tokens[rows.clone()],
            targets: &self.tokens[rows.start + 1..=rows.end],
            first_sample: (index * self.shape.sequences) as u64,
            num_targets: self.num_targets,
        }
    }
}

/// Three steps as one of the workers.
fn work(recipe: &Recipe, world: &World, comm: &Comm) -> Result<Told, TrainError> {
    let cpu = &Cpu::single(Isa::detect());
    let groups = Groups::new(comm, mesh_of(recipe))?;
    let mut learner = materialize(recipe, cpu, &groups, world)?;
    let (mut losses, mut grads, mut weights) = (Vec::new(), Vec::new(), Tensors::new());
    // To hand out the first parameters is no part of any step.
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
            let param = params.find(is_of).expect("what is stepped is a parameter").clone();
            let first = slot.first - param.first();
            grads.push(Piece { step, param, first, values: values.to_vec() });
        }
        let sums = replica.unscale(cpu, sums);
        let clip = replica.clip(cpu, sums, clip)?;
        replica.step(cpu, optimizer, &Update { count: step + 1, lr, clip })?;
    }
    let replica = &mut learner.replica;
    replica.settle()?;
    let wire_bytes = sent_and_shared(replica) - before;
    assert_eq!(replica.find_difference()?, None, "replicas are the same");
    replica.visit_params(|param, values| {
        weights.insert(param.name.clone(), values.to_vec());
        Ok::<_, CommError>(())
    })?;
    let held_bytes = (replica.footprint(&learner.optimizer).total() * size_of::<f32>()) as u64;
    Ok(Told { losses, grads, weights, wire_bytes, held_bytes })
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
    let mut told: Vec<Told> = std::thread::scope(|scope| {
        let start = |end| scope.spawn(move || work(recipe, world, end).expect("three steps"));
        let ranks: Vec<_> = ends.iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    });
    let planned = Memory::of(recipe, &blueprint_of_rank(recipe, 0)).ranks;
    let planned = planned.iter().map(|rank| rank.own().0);
    assert!(told.iter().map(|told| told.held_bytes).eq(planned), "memory: {:?}", recipe.parallel);
    let moved: Vec<u64> = told.iter().map(|told| told.wire_bytes).collect();
    assert_eq!(moved, predicted(recipe), "bytes: {:?}", recipe.parallel);
    let wire_bytes = moved.iter().sum();
    let pieces: Vec<_> = told.iter_mut().flat_map(|told| std::mem::take(&mut told.grads)).collect();
    let Told { losses, weights, .. } = told.swap_remove(0);
    Outcome { losses, grads: put_together(&pieces), weights, wire_bytes }
}

/// The bytes that every rank was said to move.
fn predicted(recipe: &Recipe) -> Vec<u64> {
    predicted_in_all(recipe, NUM_STEPS, |step| {
        let batch = Batch::new(recipe, step);
        embedding_rows::by_rank(recipe, step, |microbatch| batch.microbatch(microbatch).inputs)
    })
}

/// Whole gradients from what the ranks step with; those who have the same have the same bits.
fn put_together(pieces: &[Piece]) -> Tensors {
    /// A number that no gradient is.
    const NOBODY: u32 = 0x7fc0_dead;
    let mut whole = Tensors::new();
    for Piece { step, param, first, values } in pieces {
        let name = format!("step {step}, gradient of {}", param.name);
        let nothing = || vec![f32::from_bits(NOBODY); param.tensor_len()];
        let tensor = whole.entry(name.clone()).or_insert_with(nothing);
        let mut there = vec![0.0; values.len()];
        param.pick(*first, tensor, &mut there);
        let is_same = |(there, value): (&f32, &f32)| {
            there.to_bits() == NOBODY || there.to_bits() == value.to_bits()
        };
        assert!(there.iter().zip(values).all(is_same), "{name}: two ranks differ");
        param.place(*first, values, tensor);
    }
    let is_known = |tensor: &Vec<f32>| tensor.iter().all(|value| value.to_bits() != NOBODY);
    let unknown = whole.iter().find(|(_, tensor)| !is_known(tensor));
    assert!(unknown.is_none(), "nobody steps all of {:?}", unknown.map(|(name, _)| name));
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

/// A model, and how it is to be divided.
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

    fn recipe(&self, product: &Product) -> Recipe {
        product.resolve(self.small, &self.sets).expect("it was valid before")
    }

    /// What the code that proves recipes accepts. All of it in the long suite; else all pairs,
    /// dealt out to as many tests, of which this is the one with this number.
    fn products(
        &self,
        (test, num_tests): (usize, usize),
        is_wanted: impl Fn(&Product) -> bool,
    ) -> Vec<Product> {
        let mut all = Product::all(&WORKERS);
        all.retain(|product| is_wanted(product) && product.resolve(self.small, &self.sets).is_ok());
        if soak() {
            return all;
        }
        let pairs = products::pairs(&all, &self.world);
        pairs.into_iter().skip(test).step_by(num_tests).collect()
    }

    /// Runs all of them against what is expected, and prints a line for each.
    fn run(&self, products: &[Product], expected: &dyn Fn(&Product, &Outcome) -> String) {
        println!(
            "\n{} {:?}\n{}  result     wire bytes",
            self.small.name,
            self.sets,
            products::TITLE
        );
        for product in products {
            let found = train(&self.recipe(product), &self.world);
            let result = expected(product, &found);
            println!("{product}  {result:<9}  {:>10}", found.wire_bytes);
        }
        println!("{} products", products.len());
    }

    /// All products give the bits of one worker.
    fn is_equal_everywhere(&self, turn: (usize, usize)) {
        let alone = train(&self.recipe(&Product::ONE), &self.world);
        self.run(&self.products(turn, |_| true), &|product, found| {
            assert_agree(Tolerance::Exact, found, &alone, &format!("{product:?}"));
            "equal".to_owned()
        });
    }

    /// All products that cut layers give the numbers of one worker but for rounding, and the bits
    /// of all others that cut layers alike.
    fn is_close_everywhere(&self, turn: (usize, usize)) {
        let alone = train(&self.recipe(&Product::ONE), &self.world);
        let cut = |tensor: usize| {
            let product = Product { workers: tensor, tensor, ..Product::ONE };
            product.resolve(self.small, &self.sets).ok().map(|recipe| train(&recipe, &self.world))
        };
        let by_degree: BTreeMap<_, _> =
            WORKERS[1..].iter().filter_map(|tensor| Some((*tensor, cut(*tensor)?))).collect();
        self.run(&self.products(turn, |product| product.tensor > 1), &|product, found| {
            let what = format!("{product:?}");
            assert_agree(Tolerance::Exact, found, &by_degree[&product.tensor], &what);
            assert_agree(Tolerance::Close(Dtype::F32, 256), found, &alone, &what);
            assert_ne!(found.weights, alone.weights, "{what}: another order of additions");
            "close".to_owned()
        });
    }
}

/// Grouped queries; everything can be cut into eight.
const LLAMA_SETS: [&str; 3] = ["model.heads=16", "model.kv_heads=8", "model.tied=false"];

#[test]
fn every_product_gives_a_llama_the_bits_of_one_worker() {
    let sets = [&LLAMA_SETS[..], &["numerics.invariant_tensor_up_to=8"]].concat();
    Case::new(&LLAMA, &sets).is_equal_everywhere((0, 2));
}

#[test]
fn every_product_gives_a_tied_gpt2_the_bits_of_one_worker() {
    Case::new(&GPT2, &["numerics.invariant_tensor_up_to=4"]).is_equal_everywhere((1, 2));
}

#[test]
fn products_that_cut_layers_without_slices_give_a_llama_close_results() {
    let sets = [&LLAMA_SETS[..], &["optim.name=sgd"]].concat();
    Case::new(&LLAMA, &sets).is_close_everywhere((0, 8));
}

#[test]
fn products_that_cut_layers_without_slices_give_a_tied_gpt2_close_results() {
    Case::new(&GPT2, &["optim.name=sgd"]).is_close_everywhere((1, 8));
}

/// Every single piece of advice in an error, as settings: values of its key, then of others.
fn advice(error: &ConfigError) -> Vec<String> {
    let advice = error.fix.strip_prefix("try ").expect("advice to try something");
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
fn products_that_cannot_be_are_refused_with_ones_that_can() {
    let case = Case::new(&GPT2, &["numerics.invariant_tensor_up_to=4"]);
    let mut refused = Product::all(&WORKERS);
    refused.retain(|product| product.resolve(case.small, &case.sets).is_err());
    assert!(!refused.is_empty());
    for product in if soak() { refused } else { products::pairs(&refused, &case.world) } {
        let own = case.sets.iter().map(|set| (*set).to_owned());
        let sets: Vec<_> = own.chain(product.sets()).collect();
        let errors = case.small.try_with(&sets).expect_err("it is refused").errors;
        for (error, fix) in errors.iter().flat_map(|e| advice(e).into_iter().map(move |f| (e, f))) {
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
            // Who follows one piece of advice and then those that are left has a layout soon.
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

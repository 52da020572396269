//! Data pipeline: bits are a function of the recipe for every source and placement, and an
//! interrupted run resumes at the exact sample.

use lockstep_comm::Comm;
use lockstep_config::{Blame, Recipe};
use lockstep_data::{Batch, Cursor, DataRank, Feed, IGNORE};
use lockstep_harness::recipes::LLAMA;
use lockstep_harness::runs::soak;
use lockstep_harness::{Runs, corpora};
use lockstep_model::{Microbatch, MicrobatchShape, describe};
use lockstep_parallel::{Leaves, Replica, ReplicaPlan};
use lockstep_tensor::Isa;
use lockstep_tensor::device::Compute;
use lockstep_tensor::device::View;
use lockstep_trainer::{Options, TrainError};

/// A scratch folder with `shards`, `texts` and `tokenizer.json` in it.
fn prepared() -> Runs {
    let runs = Runs::new("data-pipeline");
    let (world, path) = (runs.world(), runs.path());
    let chapters = corpora::chapters(world, 24);
    let tokenizer = corpora::write_word_tokenizer(world, &path.join("tokenizer.json"), &chapters);
    corpora::write_shards(world, &path.join("shards"), &tokenizer, &chapters);
    corpora::write_text_folder(world, &path.join("texts"), &chapters);
    runs
}

/// A small recipe on a source of the scratch folder.
fn recipe(runs: &Runs, source: &str, sets: &[&str]) -> Recipe {
    let source = format!("data.source={}", runs.path().join(source).display());
    let vocab = format!("model.vocab={}", corpora::VOCAB);
    let own =
        [&*source, &vocab, "train.eval_batches=1", "data.validation=0.2", "run.isolation=threads"];
    LLAMA.with(&[&own, sets].concat())
}

/// Numbers of workers and ZeRO stages.
fn layouts() -> Vec<[String; 2]> {
    let pair = |workers: usize, stage: usize| {
        [format!("run.workers={workers}"), format!("parallel.zero={stage}")]
    };
    if soak() {
        return (1..=8).flat_map(|w| (0..4).map(move |stage| pair(w, stage))).collect();
    }
    (1..=4).flat_map(|workers| (0..4).map(move |stage| pair(workers, stage))).collect()
}

/// A batch that doubles after one step.
const RAMP: &str = "train.batch_schedule=[{tokens = 1, batch = 32}]";

/// Trains with every layout and asserts equal bits.
fn same_on_all_layouts(source: &str, sets: &[&str]) {
    let mut runs = prepared();
    let mut expected = None;
    for layout in layouts() {
        let layout: Vec<&str> = layout.iter().map(String::as_str).collect();
        let recipe = recipe(&runs, source, &[&["train.steps=3"], sets, &layout].concat());
        let outcome = runs.finish(&recipe);
        let validation = outcome.summary.validation_loss.map(f64::to_bits);
        let found = (outcome.hashes(), validation);
        assert_eq!(*expected.get_or_insert(found.clone()), found, "{sets:?}, {layout:?}");
    }
}

#[test]
fn token_shards_are_the_same_on_all_layouts() {
    same_on_all_layouts("shards", &[]);
}

#[test]
fn padded_documents_are_the_same_on_all_layouts() {
    same_on_all_layouts("texts", &["data.documents=padded", "data.last_batch=pad"]);
}

#[test]
fn partitioned_texts_are_the_same_on_all_layouts() {
    same_on_all_layouts("shards", &["data.placement=partitioned"]);
}

#[test]
fn growing_batches_of_partitioned_texts_are_the_same_on_all_layouts() {
    same_on_all_layouts("shards", &["data.placement=partitioned", "data.last_batch=pad", RAMP]);
}

#[test]
fn ten_steps_and_ten_more_equal_twenty_on_another_number_of_workers() {
    let mut runs = prepared();
    let cases: [(&str, &[&str]); 7] = [
        ("shards", &["data.placement=partitioned", "data.last_batch=drop", RAMP]),
        ("shards", &[]),
        ("shards", &["data.documents=padded", "data.last_batch=pad"]),
        ("shards", &["data.order=sequential", "data.last_batch=drop", "train.batch=24"]),
        ("shards", &["data.placement=partitioned", "data.last_batch=pad"]),
        ("texts", &["data.placement=partitioned", "data.documents=padded"]),
        ("texts", &["data.order=sequential", "data.last_batch=pad"]),
    ];
    for (source, sets) in cases {
        let with = |workers: &str| {
            let own = ["train.steps=20", "numerics.invariant_up_to=4", workers];
            recipe(&runs, source, &[&own, sets].concat())
        };
        let (first, second) = (with("run.workers=1"), with("run.workers=3"));
        let whole = runs.finish(&first);
        let half = Options { stop_after: Some(10), ..Options::default() };
        let half = runs.run(&first, half).expect("the first part");
        let rest = Options { resume: Some(half.dir.clone()), ..Options::default() };
        let rest = runs.run(&second, rest).expect("the second part");
        assert_eq!(rest.hashes(), whole.hashes(), "{source}, {sets:?}");
        assert_ne!(half.hashes(), whole.hashes(), "the second part does something");
    }
}

#[test]
fn text_and_its_shards_give_the_same_bits() {
    let mut runs = prepared();
    let tokenizer = format!("data.tokenizer={}", runs.path().join("tokenizer.json").display());
    let from_shards = runs.finish(&recipe(&runs, "shards", &["train.steps=3"]));
    let from_text = runs.finish(&recipe(&runs, "texts", &["train.steps=3", &tokenizer]));
    assert_eq!(from_shards.hashes(), from_text.hashes());
    let kept = from_shards.dir.join("tokenizer.json");
    assert!(runs.world().files().metadata(&kept).is_some(), "generation needs it");
}

#[test]
fn a_worker_holds_the_samples_of_its_leaves_only() {
    let mut runs = prepared();
    for source in ["shards", "texts"] {
        let mut held = |placement: &str| {
            let sets = ["train.steps=1", "run.workers=4", placement];
            let summary = runs.finish(&recipe(&runs, source, &sets)).summary;
            summary.accounted_bytes_by_rank.iter().map(|bytes| bytes.corpus).collect::<Vec<_>>()
        };
        let whole = held("data.placement=shared")[0];
        let parts = held("data.placement=partitioned");
        // Shared shards stay in mapped files; partitioned ones are copied.
        let whole = if source == "shards" { parts.iter().sum() } else { whole };
        // A quarter of the training text, and the micro-batches of the evaluation.
        for part in &parts {
            assert!(*part * 100 < whole * 45 && *part * 100 > whole * 15, "{part} of {whole}");
        }
    }
}

#[test]
fn local_texts_stay_with_their_workers() {
    let mut runs = Runs::new("data-pipeline");
    for (worker, letters) in ["abc", "xyz"].iter().enumerate() {
        let path = runs.path().join(format!("own-{worker}.txt"));
        let text = letters.repeat(400 + 100 * worker);
        runs.world().files().write_atomic(&path, text.as_bytes()).expect("a text");
    }
    let sets = ["data.placement=local", "run.workers=2", "train.steps=3", "data.last_batch=pad"];
    let recipe = recipe(&runs, "own-{rank}.txt", &sets);
    for worker in 0..2 {
        let leaves: Vec<usize> = (4 * worker..4 * worker + 4).collect();
        let data_rank = DataRank { worker, num_workers: 2, leaves: leaves.clone() };
        let mut feed = Feed::open(&recipe, runs.world(), &data_rank).expect("its own text");
        let mut loader = feed.loader(runs.world(), Cursor::start()).expect("batches");
        let batch = loader.next_batch().expect("a batch");
        for microbatch in 0..8 {
            let expected = match (leaves.contains(&microbatch), worker) {
                (false, _) => 0..1,
                (true, 0) => u32::from(b'a')..u32::from(b'd'),
                (true, _) => u32::from(b'x')..u32::from(b'{'),
            };
            assert!(
                batch.microbatch(microbatch).0.iter().all(|token| expected.contains(token)),
                "{microbatch}"
            );
        }
    }
    let outcome = runs.finish(&recipe);
    assert!(outcome.losses.iter().all(|loss| loss.is_finite()));
    assert!(outcome.summary.validation_loss.is_some_and(f64::is_finite));
    assert_eq!(outcome.hashes(), runs.finish(&recipe).hashes(), "equal workers give equal bits");

    // Other workers have other texts, so resuming with them is refused.
    let half = Options { stop_after: Some(1), ..Options::default() };
    let half = runs.run(&recipe, half).expect("the first part");
    let mut alone = recipe.clone();
    (alone.run.workers, alone.parallel.data) = (1, 1);
    let rest = Options { resume: Some(half.dir), ..Options::default() };
    let error = runs.run(&alone, rest).expect_err("another worker's text is missing");
    assert_eq!(error.blame(), Blame::User);
}

#[test]
fn a_vocabulary_that_does_not_fit_is_refused_with_both_numbers() {
    let mut runs = prepared();
    let small = recipe(&runs, "shards", &["train.steps=1", "model.vocab=256"]);
    let error = runs.run(&small, Options::default()).expect_err("too few rows");
    let text = error.to_string();
    assert!(text.contains("model.vocab = 256") && text.contains("400"), "{text}");
    assert_eq!(error.blame(), Blame::User);
    assert!(matches!(error, TrainError::Data(_)));
}

/// Bits of the loss of a batch and of every gradient.
fn loss_and_gradients(recipe: &Recipe, batch: &Batch) -> (u64, Vec<u32>) {
    let world = lockstep_platform::real();
    let cpu = Compute::single(Isa::detect());
    let arena_bytes = lockstep_trainer::arena_bytes(recipe);
    let options = lockstep_comm::Options { arena_bytes, ..lockstep_comm::Options::default() };
    let ends = Comm::threads(&world, 1, &options).expect("one worker");
    let shape =
        MicrobatchShape { sequences: recipe.train.microbatch_size, tokens: recipe.model.context };
    let leaves = Leaves {
        num_leaves: recipe.num_leaves(),
        microbatches_per_leaf: recipe.microbatches_per_leaf(),
    };
    let plan = ReplicaPlan::single_rank(shape, leaves);
    let blueprint = describe(&recipe.model);
    let mut replica =
        Replica::materialize(blueprint, 1, &cpu, plan, &ends[0], &world).expect("a replica");
    let microbatch = |index: usize| {
        let (inputs, targets) = batch.microbatch(index);
        let (inputs, targets) = (View::of(inputs), View::of(targets));
        let first_sample = (index * shape.sequences) as u64;
        Microbatch {
            shape,
            inputs,
            targets,
            first_sample,
            num_targets: batch.num_targets,
            documents: None,
            preferences: None,
        }
    };
    let loss = replica.run_microbatches(&cpu, 1, 0, &microbatch).expect("one worker");
    replica.finish_reduce(&cpu).expect("one worker");
    let grads = replica.own_grads().flat_map(|(_, grads)| grads.to_vec());
    (loss.to_bits(), grads.map(f32::to_bits).collect())
}

#[test]
fn tokens_of_the_padding_change_no_bit() {
    let runs = prepared();
    let recipe = recipe(&runs, "texts", &["data.documents=padded", "data.last_batch=pad"]);
    let data_rank = DataRank::alone(&recipe);
    let mut feed = Feed::open(&recipe, runs.world(), &data_rank).expect("the texts");
    let mut loader = feed.loader(runs.world(), Cursor::start()).expect("batches");
    let mut batch = loader.next_batch().expect("a batch").clone();
    // Shorten most sequences, so that there is padding in every micro-batch.
    for (index, targets) in batch.targets.chunks_mut(recipe.model.context).enumerate() {
        targets[recipe.model.context - index % 5 * 3..].fill(IGNORE);
    }
    batch.num_targets = batch.targets.iter().filter(|&&target| target != IGNORE).count() as u64;
    let plain = loss_and_gradients(&recipe, &batch);
    let num_padding = batch.targets.iter().filter(|&&target| target == IGNORE).count();
    assert!(num_padding > 50, "{num_padding} positions of padding");
    for (input, target) in batch.inputs.iter_mut().zip(&batch.targets) {
        if *target == IGNORE {
            *input = (*input * 31 + 17) % 256;
        }
    }
    let other = loss_and_gradients(&recipe, &batch);
    assert_eq!(plain.0, other.0, "the loss");
    assert!(plain.1 == other.1, "the gradients");
}

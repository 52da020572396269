//! Property tests over seeds, sizes and splits.

use std::sync::Arc;

use lockstep_config::{Recipe, Sources, resolve};
use lockstep_data::{Batch, Corpus, Cursor, DataError, Loader, Permutation, Sampler, Tokenizer};
use lockstep_platform::World;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Seeds that a recipe can hold: TOML has signed integers only.
const SEEDS: std::ops::RangeInclusive<u64> = 0..=i64::MAX as u64;

/// Deterministic cases on every run and machine.
fn cases(num_cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases: num_cases,
        rng_seed: RngSeed::Fixed(3),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Text whose windows all differ, so that equal tokens mean equal samples.
fn counting_text(num_bytes: usize) -> String {
    let numbers: Vec<String> = (0..num_bytes).map(|i| i.to_string()).collect();
    let mut text = numbers.join(" ");
    text.truncate(num_bytes);
    text
}

fn corpus() -> Arc<Corpus> {
    let text = counting_text(4_000);
    Arc::new(Corpus::from_text("counting", &text, 0.1).expect("the text is not empty"))
}

fn recipe(seed: u64, batch: usize, microbatch_size: usize, context: usize) -> Recipe {
    let sets = [
        format!("train.seed={seed}"),
        format!("train.batch={batch}"),
        format!("train.microbatch={microbatch_size}"),
        format!("model.context={context}"),
        "numerics.invariant_up_to=1".to_owned(),
    ];
    let sources = Sources { sets: sets.into(), ..Sources::default() };
    resolve(&sources).expect("the recipe is sound")
}

fn open(recipe: &Recipe, cursor: Cursor) -> Loader {
    let world: World = lockstep_platform::real();
    Loader::open(recipe, &world, corpus(), cursor).expect("the corpus is long enough")
}

fn take(loader: &mut Loader, num_batches: usize) -> Vec<Batch> {
    (0..num_batches).map(|_| loader.next_batch().expect("a batch").clone()).collect()
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn a_permutation_is_a_bijection(size in 1_u64..20_000, key: u64) {
        let permutation = Permutation::new(size, key);
        let mut images: Vec<u64> = (0..size).map(|index| permutation.apply(index)).collect();
        images.sort_unstable();
        prop_assert!(images.into_iter().eq(0..size));
    }

    #[test]
    fn every_window_is_used_once_in_each_epoch(
        seed: u64,
        context in 1_usize..40,
        extra_tokens in 1_usize..2_000,
        epoch in 0_u64..1_000,
    ) {
        let num_tokens = context + extra_tokens;
        let sampler = Sampler::new(seed, context, num_tokens);
        let first = epoch * sampler.num_windows();
        let windows = (first..first + sampler.num_windows()).map(|sample| sampler.locate(sample));
        let mut windows: Vec<_> = windows.collect();
        windows.sort_unstable_by_key(|window| window.start);
        for (index, window) in windows.iter().enumerate() {
            prop_assert_eq!((window.epoch, window.index), (epoch, index as u64));
            prop_assert_eq!(window.start, windows[0].start + index * context);
            prop_assert!(window.start + context < num_tokens);
        }
    }

    #[test]
    fn another_seed_gives_another_order(seed: u64, other: u64) {
        prop_assume!(seed != other);
        let order = |seed| {
            let sampler = Sampler::new(seed, 8, 4_000);
            (0..64).map(|sample| sampler.locate(sample).start).collect::<Vec<_>>()
        };
        prop_assert_ne!(order(seed), order(other));
    }

    #[test]
    fn any_text_survives_the_tokenizer(text in "\\PC*") {
        let (tokenizer, mut tokens) = (Tokenizer::bytes(), Vec::new());
        tokenizer.encode(&text, &mut tokens).unwrap();
        prop_assert_eq!(tokenizer.decode(&tokens), text);
    }
}

proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn a_resumed_loader_gives_what_an_uninterrupted_one_gives(
        seed in SEEDS,
        num_before in 0_usize..40,
        num_after in 1_usize..40,
    ) {
        let recipe = recipe(seed, 8, 2, 16);
        let whole = take(&mut open(&recipe, Cursor::start()), num_before + num_after);

        let mut loader = open(&recipe, Cursor::start());
        let before = take(&mut loader, num_before);
        let saved = serde_json::to_string(&loader.cursor()).expect("a cursor is plain data");
        drop(loader);
        let restored: Cursor = serde_json::from_str(&saved).expect("the same cursor");
        let after = take(&mut open(&recipe, restored), num_after);
        prop_assert_eq!([before, after].concat(), whole);
    }

    #[test]
    fn the_microbatch_size_does_not_change_which_sample_lands_where(
        seed in SEEDS,
        num_steps in 1_usize..8,
    ) {
        // Micro-batches in sequence, as the model sees them.
        let stream = |microbatch_size| {
            let mut loader = open(&recipe(seed, 12, microbatch_size, 16), Cursor::start());
            let batches = take(&mut loader, num_steps);
            let microbatches = batches.iter().flat_map(|batch| {
                assert_eq!(batch.num_microbatches(), 12 / microbatch_size);
                (0..batch.num_microbatches()).map(|microbatch| batch.microbatch(microbatch))
            });
            let (inputs, targets): (Vec<_>, Vec<_>) = microbatches.unzip();
            (inputs.concat(), targets.concat())
        };
        let single = stream(1);
        for microbatch_size in [2, 3, 4, 6, 12] {
            prop_assert_eq!(&stream(microbatch_size), &single);
        }
    }

    #[test]
    fn the_batch_size_only_cuts_the_stream_of_samples_elsewhere(seed in SEEDS) {
        let stream = |batch, num_steps| {
            let batches = take(&mut open(&recipe(seed, batch, 1, 16), Cursor::start()), num_steps);
            batches.into_iter().flat_map(|batch| batch.inputs).collect::<Vec<u32>>()
        };
        prop_assert_eq!(stream(4, 6), stream(8, 3));
    }
}

#[test]
fn a_cursor_from_another_text_is_refused() {
    let recipe = recipe(1, 4, 1, 16);
    let world = lockstep_platform::real();
    let saved = open(&recipe, Cursor::start()).cursor();
    let other = Corpus::from_text("other.txt", &counting_text(3_000), 0.1).expect("a text");
    let error = Loader::open(&recipe, &world, Arc::new(other), saved).expect_err("another text");
    assert!(matches!(error, DataError::OtherCorpus { .. }));
    assert!(error.to_string().starts_with("other.txt is not the text that this run began with"));
}

#[test]
fn a_context_longer_than_the_corpus_is_refused_before_any_batch() {
    let error = Loader::open(
        &recipe(1, 4, 1, 1_024),
        &lockstep_platform::real(),
        corpus(),
        Cursor::start(),
    );
    assert!(matches!(error, Err(DataError::TooShort { context: 1_024, .. })));
}

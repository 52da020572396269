//! Data parallelism, ZeRO, recomputation and overlap: every layout gives the losses and weights of
//! one worker bit for bit, and sends the predicted bytes.

use lockstep_comm::Comm;
use lockstep_harness::Runs;
use lockstep_harness::recipes::{DROPOUT, GPT2, LLAMA, Small, THREE_MICROBATCHES, WIDE};
use lockstep_harness::runs::{Hashes, soak, some};
use lockstep_harness::traffic::assert_traffic_as_predicted;
use lockstep_trainer::{Options, train};

/// Trains with one worker and with every layout, and asserts equal hashes.
fn same_on_all_layouts(small: &Small, steps: u64, layouts: &[Vec<String>]) {
    let mut runs = Runs::new("layouts");
    let steps = format!("train.steps={steps}");
    let mut hashes = |layout: &[String]| -> Hashes {
        let sets = [&[steps.clone(), "train.eval_batches=1".to_owned()], layout].concat();
        let recipe = small.with(&sets);
        let outcome = runs.finish(&recipe);
        assert_traffic_as_predicted(&recipe, &outcome);
        outcome.hashes()
    };
    let alone = hashes(&["run.workers=1".to_owned()]);
    for layout in layouts {
        assert_eq!(hashes(layout), alone, "{}: {layout:?} against one worker", small.name);
    }
}

/// All combinations of the values of each key.
fn all(keys: &[(&str, &[&str])]) -> Vec<Vec<String>> {
    keys.iter().fold(vec![vec!["run.isolation=threads".to_owned()]], |layouts, (key, values)| {
        let with = |layout: &Vec<String>, value: &&str| {
            [layout.clone(), vec![format!("{key}={value}")]].concat()
        };
        layouts.iter().flat_map(|l| values.iter().map(move |value| with(l, value))).collect()
    })
}

/// Every combination in the long suite; else layouts that combine every value with most others.
fn layouts(workers: &[&str]) -> Vec<Vec<String>> {
    let stages = ["0", "1", "2", "3"];
    let recomputes = ["none", "selective", "full", "every-2"];
    if soak() {
        return all(&[
            ("run.workers", workers),
            ("parallel.zero", &stages),
            ("parallel.recompute", &recomputes),
            ("run.threads", &["1", "2"]),
            ("parallel.overlap", &["true", "false"]),
            ("parallel.bucket_bytes", &["0", "1", "64KiB"]),
        ]);
    }
    let mut layouts = all(&[("run.workers", workers), ("parallel.zero", &stages)]);
    for (index, layout) in layouts.iter_mut().enumerate() {
        let pick =
            |values: &[&str], stride: usize| values[index / stride % values.len()].to_owned();
        layout.push(format!("parallel.recompute={}", pick(&recomputes, 3)));
        layout.push(format!("run.threads={}", pick(&["1", "2"], 1)));
        layout.push(format!("parallel.overlap={}", pick(&["true", "false"], 5)));
        layout.push(format!("parallel.bucket_bytes={}", pick(&["1", "64KiB", "0"], 1)));
    }
    layouts
}

#[test]
fn fixed_algorithms_send_the_predicted_bytes_and_change_no_bit() {
    let mut runs = Runs::new("layouts");
    let sets = ["train.steps=2", "train.eval_batches=1", "run.workers=4"];
    let fixed = "parallel.collectives=[{op=\"all-reduce\",algorithm=\"rabenseifner\"},\
                 {op=\"reduce-scatter\",algorithm=\"halving\"},\
                 {op=\"all-gather\",algorithm=\"ring\",channels=2}]";
    for zero in ["parallel.zero=0", "parallel.zero=1"] {
        let usual = runs.finish(&LLAMA.with(&[&sets[..], &[zero]].concat()));
        let recipe = LLAMA.with(&[&sets[..], &[zero, fixed]].concat());
        let outcome = runs.finish(&recipe);
        assert_traffic_as_predicted(&recipe, &outcome);
        assert_eq!(outcome.hashes(), usual.hashes(), "{zero}");
        assert_eq!(outcome.summary.recipe_hash, usual.summary.recipe_hash);
    }
    // The engine itself refuses sums in another order.
    let ring = "parallel.collectives=[{op=\"all-reduce\",algorithm=\"ring\"}]";
    let refused = runs.run(&LLAMA.with(&[&sets[..], &[ring]].concat()), Options::default());
    let refused = refused.expect_err("the bits would depend on the layout").to_string();
    assert!(refused.contains("canonical order"), "{refused}");
}

#[test]
fn a_llama_is_the_same_on_all_layouts() {
    same_on_all_layouts(&LLAMA, 3, &some(layouts(&["2", "3", "4", "5", "8"]), 10));
}

#[test]
fn a_tied_gpt2_is_the_same_on_all_layouts() {
    same_on_all_layouts(&GPT2, 3, &some(layouts(&["2", "3", "8"]), 6));
}

#[test]
fn dropout_is_the_same_on_all_layouts() {
    same_on_all_layouts(&DROPOUT, 3, &some(layouts(&["2", "5"]), 4));
}

#[test]
fn three_microbatches_a_leaf_are_the_same_on_all_layouts() {
    same_on_all_layouts(&THREE_MICROBATCHES, 3, &some(layouts(&["2", "3", "4"]), 6));
}

#[test]
fn matrix_products_longer_than_one_block_are_the_same_on_all_layouts() {
    let small = WIDE;
    let steps = format!("train.steps={}", if soak() { 10 } else { 2 });
    let more = ["train.batch=4", "train.microbatch=2", "numerics.invariant_up_to=2", &steps];
    let more = more.map(str::to_owned);
    let layouts: Vec<_> =
        layouts(&["2"]).into_iter().map(|layout| [&more[..], &layout].concat()).collect();
    let alone = [&more[..], &["run.workers=1".to_owned()]].concat();
    let expected = Runs::new("layouts").finish(&small.with(&alone)).hashes();
    for layout in layouts {
        let recipe = small.with(&layout);
        let found = Runs::new("layouts").finish(&recipe);
        assert_traffic_as_predicted(&recipe, &found);
        assert_eq!(found.hashes(), expected, "{layout:?}");
    }
}

#[test]
fn unequal_leaf_shares_are_the_same_as_equal_ones() {
    let shares = [("5,3", "0"), ("1,7", "1"), ("2,1,5", "0"), ("1,2,1,4", "1")];
    let layouts: Vec<_> = shares
        .iter()
        .map(|(shares, stage)| {
            let workers = shares.split(',').count();
            vec![
                "run.isolation=threads".to_owned(),
                format!("run.workers={workers}"),
                format!("parallel.leaf_shares={shares}"),
                format!("parallel.zero={stage}"),
            ]
        })
        .collect();
    same_on_all_layouts(&LLAMA, 3, &layouts);
}

#[test]
fn workers_with_different_recipes_are_refused_at_once() {
    let runs = Runs::new("layouts");
    let recipe = |stage: &str| {
        let dir = format!("run.dir={}", runs.path().join(stage).display());
        LLAMA.with(&["run.workers=2".to_owned(), format!("parallel.zero={stage}"), dir])
    };
    let (one, other) = (recipe("0"), recipe("1"));
    let world = runs.world();
    let ends = Comm::threads(world, 2, &lockstep_comm::Options::default()).expect("two workers");
    let errors: Vec<String> = std::thread::scope(|scope| {
        let start = |(end, recipe)| {
            scope.spawn(move || train(recipe, world, end, Options::default()).unwrap_err())
        };
        let workers: Vec<_> = ends.iter().zip([&one, &other]).map(start).collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic").to_string()).collect()
    });
    assert!(errors.iter().all(|error| error.contains("worker 1 has another recipe")), "{errors:?}");
}

#[test]
fn sparse_embedding_gradients_are_the_same_in_fewer_bytes() {
    let mut runs = Runs::new("layouts");
    let mut train = |small: &Small, workers: usize, context: usize| {
        let sets = [
            format!("run.workers={workers}"),
            format!("model.context={context}"),
            "train.batch=16".to_owned(),
            "train.microbatch=1".to_owned(),
            "train.steps=3".to_owned(),
            "parallel.bucket_bytes=1".to_owned(),
        ];
        let recipe = small.with(&sets);
        let outcome = runs.finish(&recipe);
        assert_traffic_as_predicted(&recipe, &outcome);
        outcome
    };
    for small in [LLAMA, GPT2] {
        // Sixteen sequences on four workers: 32 tokens each of a vocabulary of 256, or 256.
        let [few, many] = [8, 64].map(|context| {
            let (alone, four) = (train(&small, 1, context), train(&small, 4, context));
            assert_eq!(four.hashes(), alone.hashes(), "{}, context {context}", small.name);
            four.summary.wire_bytes
        });
        assert!(few < many, "{}: {few} bytes are no less than {many}", small.name);
    }
}

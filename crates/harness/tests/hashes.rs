//! Bits are a function of the recipe: not of threads, instruction sets or chance.

use lockstep_harness::Runs;
use lockstep_harness::recipes::{DROPOUT, GPT2, LLAMA, Small, THREE_MICROBATCHES, TINY, WIDE};
use lockstep_harness::runs::{Hashes, soak};
use lockstep_tensor::Isa;

/// An instruction set and a number of threads, as settings.
type Hand = [String; 2];

/// Every instruction set of this machine, each with all of these numbers of threads; portable
/// kernels are slow, and outside the long suite they get the first number only.
fn hands(all_num_threads: &[usize]) -> Vec<Hand> {
    let mut hands = Vec::new();
    for isa in Isa::available() {
        let quick = isa != Isa::Portable || soak();
        let all = if quick { all_num_threads } else { &all_num_threads[..1] };
        for num_threads in all {
            hands.push([format!("run.isa={isa}"), format!("run.threads={num_threads}")]);
        }
    }
    hands
}

/// Trains with every pair of hands and demands one result, which it returns.
fn same_with_all_hands(small: &Small, sets: &[&str], hands: &[Hand]) -> Hashes {
    let mut runs = Runs::new("hashes");
    let mut results = hands.iter().map(|hand| {
        let own = sets.iter().map(|set| (*set).to_owned());
        let sets: Vec<String> = own.chain(hand.iter().cloned()).collect();
        (hand, runs.finish(&small.with(&sets)).hashes())
    });
    let (first_hand, expected) = results.next().expect("there is always one");
    for (hand, hashes) in results {
        assert_eq!(hashes, expected, "{}: {hand:?} against {first_hand:?}", small.name);
    }
    expected
}

/// The long suite repeats a check with several seeds.
fn seeds(num_in_soak: usize) -> Vec<String> {
    let num_seeds = if soak() { num_in_soak } else { 1 };
    (1..=num_seeds).map(|seed| format!("train.seed={seed}")).collect()
}

fn same_for_all_seeds(small: &Small) {
    for seed in seeds(20) {
        same_with_all_hands(small, &["train.steps=3", &seed], &hands(&[2, 1, 5]));
    }
}

#[test]
fn a_llama_is_the_same_with_all_hands() {
    same_for_all_seeds(&LLAMA);
}

#[test]
fn a_gpt2_is_the_same_with_all_hands() {
    same_for_all_seeds(&GPT2);
}

#[test]
fn dropout_is_the_same_with_all_hands() {
    same_for_all_seeds(&DROPOUT);
}

#[test]
fn odd_sizes_and_three_microbatches_a_leaf_are_the_same_with_all_hands() {
    same_for_all_seeds(&THREE_MICROBATCHES);
}

#[test]
fn products_longer_than_one_block_are_the_same_with_all_hands() {
    let num_steps = if soak() { 3 } else { 1 };
    for seed in seeds(4) {
        let steps = format!("train.steps={num_steps}");
        same_with_all_hands(&WIDE, &[&steps, &seed], &hands(&[2, 1]));
    }
}

#[test]
fn the_same_recipe_twice_gives_the_same_hashes_and_another_seed_others() {
    let mut runs = Runs::new("hashes");
    for small in TINY {
        let mut hashes = |seed| runs.finish(&small.with(&["train.steps=3", seed])).hashes();
        let (first, second) = (hashes("train.seed=1"), hashes("train.seed=1"));
        assert_eq!(first, second, "{}", small.name);
        let other = hashes("train.seed=2");
        assert_ne!(first.losses, other.losses, "{}", small.name);
        assert_ne!(first.weights, other.weights, "{}", small.name);
    }
}

#[test]
fn every_setting_of_the_recipe_that_bits_depend_on_changes_the_weights() {
    let mut runs = Runs::new("hashes");
    let mut weights =
        |sets: &[&str]| runs.finish(&LLAMA.with(&[&["train.steps=2"], sets].concat())).hashes();
    let plain = weights(&[]);
    let microbatches = weights(&["train.microbatch=1"]);
    assert_ne!(plain.weights, microbatches.weights, "other micro-batches add in another order");
    let leaves = weights(&["numerics.invariant_up_to=1"]);
    assert_ne!(plain.weights, leaves.weights, "other leaves add in another order");
    for set in ["optim.lr=1e-4", "optim.clip=0", "model.dropout=0.1", "optim.name=sgd"] {
        assert_ne!(plain.weights, weights(&[set]).weights, "{set}");
    }
    // Evaluation only looks.
    let looked = weights(&["train.eval_every=1", "train.eval_batches=2"]);
    assert_eq!(plain, looked);
}

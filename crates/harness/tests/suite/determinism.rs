//! Bits are a function of the recipe, not of threads, instruction sets or chance.

use lockstep_harness::Runs;
use lockstep_harness::recipes::{DROPOUT, GPT2, LLAMA, Small, THREE_MICROBATCHES, TINY, WIDE};
use lockstep_harness::runs::{Hashes, soak};
use lockstep_tensor::Isa;

/// Settings of an instruction set and a number of threads.
type CpuSettings = [String; 2];

/// Every instruction set of this machine with each of these numbers of threads. Portable kernels
/// are slow: outside the long suite they run with the first number only.
fn cpu_settings(all_num_threads: &[usize]) -> Vec<CpuSettings> {
    let mut settings = Vec::new();
    for isa in Isa::available() {
        let quick = isa != Isa::Portable || soak();
        let all = if quick { all_num_threads } else { &all_num_threads[..1] };
        for num_threads in all {
            settings.push([format!("run.isa={isa}"), format!("run.threads={num_threads}")]);
        }
    }
    settings
}

/// Trains with all of these settings, asserts equal hashes and returns them.
fn same_with_all_settings(small: &Small, sets: &[&str], settings: &[CpuSettings]) -> Hashes {
    let mut runs = Runs::new("hashes");
    let mut results = settings.iter().map(|cpu| {
        let own = sets.iter().map(|set| (*set).to_owned());
        let sets: Vec<String> = own.chain(cpu.iter().cloned()).collect();
        (cpu, runs.finish(&small.with(&sets)).hashes())
    });
    let (first, expected) = results.next().expect("there is always one");
    for (cpu, hashes) in results {
        assert_eq!(hashes, expected, "{}: {cpu:?} against {first:?}", small.name);
    }
    expected
}

/// One seed, or several in the long suite.
fn seeds(num_in_soak: usize) -> Vec<String> {
    let num_seeds = if soak() { num_in_soak } else { 1 };
    (1..=num_seeds).map(|seed| format!("train.seed={seed}")).collect()
}

fn same_for_all_seeds(small: &Small) {
    for seed in seeds(20) {
        same_with_all_settings(small, &["train.steps=3", &seed], &cpu_settings(&[2, 1, 5]));
    }
}

#[test]
fn a_llama_is_the_same_on_all_instruction_sets_and_threads() {
    same_for_all_seeds(&LLAMA);
}

#[test]
fn a_gpt2_is_the_same_on_all_instruction_sets_and_threads() {
    same_for_all_seeds(&GPT2);
}

#[test]
fn dropout_is_the_same_on_all_instruction_sets_and_threads() {
    same_for_all_seeds(&DROPOUT);
}

#[test]
fn odd_sizes_and_three_microbatches_a_leaf_are_the_same_on_all_instruction_sets_and_threads() {
    same_for_all_seeds(&THREE_MICROBATCHES);
}

#[test]
fn matrix_products_longer_than_one_block_are_the_same_on_all_instruction_sets_and_threads() {
    let num_steps = if soak() { 3 } else { 1 };
    for seed in seeds(4) {
        let steps = format!("train.steps={num_steps}");
        same_with_all_settings(&WIDE, &[&steps, &seed], &cpu_settings(&[2, 1]));
    }
}

#[test]
fn a_recipe_repeats_its_hashes_and_another_seed_changes_them() {
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
fn settings_of_the_identity_change_the_weights() {
    let mut runs = Runs::new("hashes");
    let mut weights =
        |sets: &[&str]| runs.finish(&LLAMA.with(&[&["train.steps=2"], sets].concat())).hashes();
    let plain = weights(&[]);
    let microbatches = weights(&["train.microbatch=1"]);
    assert_ne!(
        plain.weights, microbatches.weights,
        "other micro-batches, another order of additions"
    );
    let leaves = weights(&["numerics.invariant_up_to=1"]);
    assert_ne!(plain.weights, leaves.weights, "other leaves, another order of additions");
    for set in ["optim.lr=1e-4", "optim.clip=0", "model.dropout=0.1", "optim.name=sgd"] {
        assert_ne!(plain.weights, weights(&[set]).weights, "{set}");
    }
    // Evaluation changes no bit.
    let evaluated = weights(&["train.eval_every=1", "train.eval_batches=2"]);
    assert_eq!(plain, evaluated);
}

//! Ten losses of each small recipe, to seven digits, as last approved.
//!
//! Any change of the arithmetic shows here first. After an intended change, `LOCKSTEP_BLESS=1 cargo
//! test -p lockstep-harness --test suite golden_losses` rewrites the files; the commit says why.

use lockstep_config::Recipe;
use lockstep_harness::recipes::{Small, TINY, WIDE};
use lockstep_harness::runs::bless;
use lockstep_harness::{Runs, golden};
use lockstep_model::precision_of;
use std::fmt::Write;

const BLESS: &str = "LOCKSTEP_BLESS=1 cargo test -p lockstep-harness --test suite golden_losses";

/// Content of the golden file of a recipe.
fn file(small: &Small, recipe: &Recipe, losses: &[f64]) -> String {
    let model = &recipe.model;
    let mut text = format!(
        "# The loss of each step of the recipe {:?} in crates/harness/src/recipes.rs, in nats.\n\
         # model: {} with {} layers, width {}, {} heads ({} KV heads), ffn {}, context {}, \
         dropout {}\n\
         # seed {}, {} micro-batches in {} leaves, {}, kernel class {}: any machine, any number of \
         threads\n\
         # regenerate: {BLESS}\n",
        small.name,
        model.family,
        model.layers,
        model.width,
        model.heads,
        model.kv_heads,
        model.ffn,
        model.context,
        model.dropout,
        recipe.train.seed,
        recipe.num_microbatches(),
        recipe.num_leaves(),
        recipe.precision.compute,
        precision_of(recipe.precision.compute).kernel_class(),
    );
    for loss in losses {
        // Losses of untrained bytes are below ten, so six decimals make seven digits.
        assert!((1.0..10.0).contains(loss), "{loss}");
        let _ = writeln!(text, "{loss:.6}");
    }
    text
}

fn check(small: &Small, num_steps: usize) {
    let mut runs = Runs::new("golden-losses");
    let recipe = small.with(&[format!("train.steps={num_steps}")]);
    let losses = runs.finish(&recipe).losses;
    assert_eq!(losses.len(), num_steps);
    let found = file(small, &recipe, &losses);
    let path = golden::folder().join(format!("losses-{}.txt", small.name));
    let files = runs.world().files();
    if bless() {
        files.write_atomic(&path, found.as_bytes()).expect("golden files can be written");
        return;
    }
    let expected = files.read_to_string(&path).expect("golden files are committed");
    for (number, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        let (name, line) = (small.name, number + 1);
        assert_eq!(found, expected, "losses-{name}.txt, line {line}; if intended: {BLESS}");
    }
    assert_eq!(found, expected, "losses-{}.txt; if intended: {BLESS}", small.name);
}

#[test]
fn losses_of_small_recipes_are_as_approved() {
    for small in TINY {
        check(&small, 10);
    }
}

#[test]
fn losses_of_the_wide_recipe_are_as_approved() {
    check(&WIDE, 10);
}

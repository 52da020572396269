//! Tensor parallelism: valid degrees and the messages of invalid ones.

use lockstep_config::{Recipe, Sources, resolve};

fn with(sets: &[&str]) -> Result<Recipe, String> {
    let sets = sets.iter().map(|argument| (*argument).to_owned()).collect();
    // A preset outlives a change of the defaults.
    let preset = Some("bible-small".to_owned());
    let sources = Sources { sets, preset, ..Sources::default() };
    resolve(&sources).map_err(|errors| errors.to_string())
}

fn recipe(sets: &[&str]) -> Recipe {
    with(sets).unwrap_or_else(|errors| panic!("{errors}"))
}

fn errors(sets: &[&str]) -> String {
    with(sets).map_or_else(|errors| errors, |recipe| panic!("resolved:\n{}", recipe.to_toml()))
}

#[test]
fn workers_are_the_product_of_all_axes() {
    let recipe = recipe(&["run.workers=8", "parallel.pipeline=2", "parallel.tensor=2"]);
    assert_eq!((recipe.parallel.data, recipe.num_tensor_shards()), (2, 2));
    assert_eq!(
        errors(&["run.workers=6", "parallel.tensor=2", "parallel.pipeline=2"]),
        "parallel.tensor = 2 times parallel.pipeline = 2 does not divide run.workers = 6; \
         try 1, or run.workers = 8"
    );
    assert_eq!(
        errors(&["run.workers=4", "parallel.tensor=2", "parallel.data=4"]),
        "parallel.data = 4 replicas of 2 workers each are not run.workers = 4; \
         try 2 or run.workers = 8"
    );
}

#[test]
fn invariant_tensor_shards_are_in_the_identity() {
    let one = recipe(&["run.workers=1"]);
    let two = recipe(&["run.workers=1", "numerics.invariant_tensor_up_to=2"]);
    assert_ne!(one.hash(), two.hash());
    assert!(!one.identity_text().contains("invariant_tensor_up_to"));
    let sharded = recipe(&[
        "run.workers=2",
        "parallel.tensor=2",
        "parallel.sequence=true",
        "numerics.invariant_tensor_up_to=2",
    ]);
    assert_eq!(sharded.hash(), two.hash());
}

#[test]
fn recipes_with_as_many_tensor_shards_have_the_same_hash_and_others_have_not() {
    let shards = |tensor: usize, up_to: usize| {
        let tensor = format!("parallel.tensor={tensor}");
        let up_to = format!("numerics.invariant_tensor_up_to={up_to}");
        recipe(&["run.workers=2", &tensor, &up_to])
    };
    let (whole, two) = (shards(1, 1), shards(2, 1));
    assert_ne!(two.hash(), whole.hash(), "the sums of two shards have other bits");
    assert_eq!(two.hash(), shards(2, 2).hash());
    assert_eq!(two.hash(), shards(1, 2).hash());
    assert!(two.identity_text().contains("numerics.invariant_tensor_up_to = 2\n"));
    assert!(two.to_toml().contains("invariant_tensor_up_to = 1\n"), "the file has what was set");
}

#[test]
fn shards_divide_the_dimensions_of_the_model() {
    assert_eq!(
        errors(&["numerics.invariant_tensor_up_to=4"]),
        "numerics.invariant_tensor_up_to = 4 does not divide model.heads = 6; try 1 or 2"
    );
    assert_eq!(
        errors(&["numerics.invariant_tensor_up_to=4", "model.heads=12", "model.kv_heads=6"]),
        "numerics.invariant_tensor_up_to = 4 does not divide model.kv_heads = 6; try 1 or 2"
    );
    assert_eq!(
        errors(&["run.workers=2", "parallel.tensor=2", "model.vocab=257"]),
        "parallel.tensor = 2 does not divide model.vocab = 257; try 1"
    );
    assert_eq!(
        errors(&["numerics.invariant_tensor_up_to=2", "model.family=ridge"]),
        "numerics.invariant_tensor_up_to = 2 is not supported with model.family = \"ridge\"; try 1"
    );
}

#[test]
fn ranks_own_whole_nodes_of_the_reduction_tree() {
    let wide = "model.heads=12";
    let six = "numerics.invariant_tensor_up_to=6";
    let sizes = [wide, "model.ffn=96", "model.vocab=258", "model.context=240"];
    let with_six = |more: [&'static str; 2]| [&sizes[..], &[six], &more].concat();
    recipe(&with_six(["run.workers=3", "parallel.tensor=3"]));
    recipe(&with_six(["run.workers=6", "parallel.tensor=6"]));
    assert_eq!(
        errors(&with_six(["run.workers=2", "parallel.tensor=2"])),
        "parallel.tensor = 2 does not leave each rank a power of two of \
         numerics.invariant_tensor_up_to = 6; try 1, 3 or 6"
    );
    assert_eq!(
        errors(&[wide, "run.workers=4", "parallel.tensor=4", "numerics.invariant_tensor_up_to=2"]),
        "parallel.tensor = 4 is more than numerics.invariant_tensor_up_to = 2; \
         try 1 or 2, or numerics.invariant_tensor_up_to = 4"
    );
}

#[test]
fn rows_divide_over_all_shards() {
    let sets = ["run.workers=2", "parallel.tensor=2", "parallel.sequence=true"];
    recipe(&sets);
    assert_eq!(
        errors(&[&sets[..], &["model.context=33", "train.microbatch=1"]].concat()),
        "parallel.sequence = true divides 33 rows of a micro-batch into 2 shards; \
         try false or model.context = 34"
    );
    recipe(&["run.workers=1", "parallel.sequence=true", "model.context=33", "train.microbatch=1"]);
}

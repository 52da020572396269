//! The description of a model against the engine's own blocks.

use lockstep_config::{Sources, resolve};
use lockstep_model::describe;
use lockstep_planner::model::{FlopsConvention, step_flops};
use lockstep_planner::recipe::model_from_recipe;

#[test]
fn parameters_and_flops_of_a_recipe_are_those_of_the_engine() {
    for sets in [
        &["model.family=gpt2"][..],
        &["model.family=gpt2", "model.tied=false"],
        &["model.family=llama"],
        &["model.family=llama", "model.tied=true", "model.layers=7"],
        &["model.family=llama", "model.heads=4", "model.kv_heads=2", "model.context=96"],
        &["model.head_dim=24", "model.rope_scaling=linear"],
        &["model.qkv_bias=true", "model.heads=4", "model.kv_heads=2"],
        &["model.qk_norm=true", "model.head_dim=96", "model.heads=4", "model.kv_heads=1"],
    ] {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let preset = Some("bible-small".to_owned());
        let sources = Sources { sets, preset, ..Sources::default() };
        let recipe = resolve(&sources).expect("a sound recipe");
        let (blueprint, model) = (describe(&recipe.model), model_from_recipe(&recipe.model));
        assert_eq!(model.num_params(), blueprint.num_params() as u64, "{:?}", sources.sets);
        let each = blueprint.flops_per_token();
        let counted = step_flops(&model, 1, FlopsConvention::Causal) / model.context as f64;
        // The engine counts the pair of a token with itself, once per head forward and twice back.
        let diagonal = 3 * 2 * model.layers * model.query_width();
        let expected = each.forward + each.backward - diagonal;
        assert!((counted / expected as f64 - 1.0).abs() < 1e-12, "{:?}", sources.sets);
    }
}

//! Checks of a custom model: blocks of a library user in place of the recipe's family.
//!
//! Strategies that describe the model a second time know only families, and so do automatic rounds
//! and tensor parallelism, which shards the layers inside a block.

use crate::TrainError;
use lockstep_config::Recipe;
use lockstep_model::{BlockIo, Blueprint};
use lockstep_parallel::strategies;

/// Refuses a custom model that is malformed, or that the recipe's layout cannot train.
pub(crate) fn check(recipe: &Recipe, model: Option<&Blueprint>) -> Result<(), TrainError> {
    let found = model.and_then(|model| refusal(recipe).or_else(|| defect(recipe, model)));
    found.map_or(Ok(()), |reason| Err(TrainError::CustomModel { reason }))
}

/// Setting of the recipe that needs a model family.
fn refusal(recipe: &Recipe) -> Option<String> {
    if strategies::needs_family(recipe) {
        let mode = recipe.sync.mode.name();
        return Some(format!("sync.mode = {mode} trains model families only"));
    }
    if recipe.sync.local_steps_is_auto {
        return Some("sync.local_steps = auto measures model families only; try 16".to_owned());
    }
    if recipe.finetune.distills() {
        return Some("finetune.method = distill teaches model families only".to_owned());
    }
    let shards = recipe.num_tensor_shards();
    (shards > 1).then(|| {
        format!(
            "{shards} tensor shards need a model family; set parallel.tensor = 1 and \
                 numerics.invariant_tensor_up_to = 1"
        )
    })
}

/// First rule of a blueprint that the model breaks.
fn defect(recipe: &Recipe, model: &Blueprint) -> Option<String> {
    let blocks = &model.blocks;
    let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else {
        return Some("it has no blocks".to_owned());
    };
    if !matches!(first.io(), BlockIo::TokensToStream { .. }) {
        return Some(format!("its first block, {}, must read tokens", first.name()));
    }
    if !matches!(last.io(), BlockIo::StreamToLoss { .. }) {
        return Some(format!("its last block, {}, must end in the loss", last.name()));
    }
    for pair in blocks.windows(2) {
        let (output, input) = (pair[0].io().output_width(), pair[1].io().input_width());
        if output != input || output == 0 {
            let (from, to) = (pair[0].name(), pair[1].name());
            return Some(format!("{from} writes rows of {output}, {to} reads rows of {input}"));
        }
    }
    for block in blocks {
        let mut end = 0;
        for param in block.params() {
            if param.offset != end || param.name.is_empty() {
                return Some(format!("{} has a gap or no name before element {end}", block.name()));
            }
            end = param.range().end;
        }
    }
    let mut names: Vec<_> = model.params().map(|(_, param)| param.name.as_str()).collect();
    names.sort_unstable();
    if let Some([name, _]) = names.array_windows().find(|[name, next]| name == next) {
        return Some(format!("two of its parameters are named {name}"));
    }
    if names.is_empty() {
        return Some("it has no parameters".to_owned());
    }
    let (num_blocks, parallel) = (blocks.len(), &recipe.parallel);
    let listed: usize = parallel.stage_layers.iter().sum();
    if !parallel.stage_layers.is_empty() && listed + 2 != num_blocks {
        return Some(format!(
            "parallel.stage_layers lists {listed} layers, it has {} between its first and last \
             block",
            num_blocks - 2
        ));
    }
    (parallel.num_stages() > num_blocks)
        .then(|| format!("{} stages cannot hold its {num_blocks} blocks", parallel.num_stages()))
}

#[cfg(test)]
mod tests {
    use super::check;
    use lockstep_config::{Blame, Recipe, Sources, SyncMode, resolve};
    use lockstep_model::{Blueprint, describe};
    use lockstep_parallel::strategies;

    fn recipe(sets: &[&str]) -> Recipe {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        resolve(&Sources { preset: Some("tiny".into()), sets, ..Sources::default() })
            .expect("it resolves")
    }

    fn refusal(sets: &[&str], change: impl Fn(&mut Blueprint)) -> String {
        let recipe = recipe(sets);
        let mut model = describe(&recipe.model);
        change(&mut model);
        let error = check(&recipe, Some(&model)).expect_err("it is refused");
        assert_eq!(error.blame(), Blame::User);
        error.to_string()
    }

    #[test]
    fn blocks_of_a_family_are_a_custom_model_too() {
        let recipe = recipe(&["run.workers=4", "parallel.zero=3"]);
        assert!(check(&recipe, Some(&describe(&recipe.model))).is_ok());
        assert!(check(&recipe, None).is_ok());
    }

    #[test]
    fn malformed_models_are_refused_with_the_block() {
        let text = refusal(&[], |model| model.blocks.clear());
        assert_eq!(text, "the custom model cannot be trained: it has no blocks");
        let text = refusal(&[], |model| drop(model.blocks.pop()));
        assert!(text.contains("its last block, model.layers.1, must end in the loss"), "{text}");
        let text = refusal(&[], |model| drop(model.blocks.remove(0)));
        assert!(text.contains("its first block, model.layers.0, must read tokens"), "{text}");
        let wider = recipe(&["model.width=64"]);
        let text = refusal(&[], |model| {
            model.blocks[1] = describe(&wider.model).blocks.swap_remove(1);
        });
        assert!(text.contains("writes rows of 32, model.layers.0 reads rows of 64"), "{text}");
        let other = recipe(&[]);
        let text = refusal(&[], |model| {
            model.blocks.insert(1, describe(&other.model).blocks.swap_remove(1));
        });
        assert!(text.contains("two of its parameters are named model.layers.0."), "{text}");
    }

    #[test]
    fn settings_that_need_a_family_are_refused() {
        let refused = |mode: &&&str| {
            let plain = ["optim.name=sgd", "optim.weight_decay=0.0", "run.workers=1"];
            let plain = plain.iter().map(|set| (*set).to_owned());
            let sets = plain.chain([format!("sync.mode={mode}")]).collect();
            let sources = Sources { preset: Some("tiny".into()), sets, ..Sources::default() };
            let Ok(recipe) = resolve(&sources) else { return false };
            let needs_family = strategies::needs_family(&recipe);
            let text = check(&recipe, Some(&describe(&recipe.model))).err().map(|e| e.to_string());
            let expected = format!("sync.mode = {mode} trains model families only");
            assert_eq!(text.is_some_and(|text| text.contains(&expected)), needs_family);
            needs_family
        };
        assert!(
            (1..SyncMode::NAMES.len()).contains(&SyncMode::NAMES.iter().filter(refused).count())
        );
        let tensor = ["parallel.tensor=2", "run.workers=2", "numerics.invariant_tensor_up_to=2"];
        let text = refusal(&tensor, |_| ());
        assert!(text.contains("set parallel.tensor = 1"), "{text}");
    }
}

//! Recipe arguments of every command: a preset, a file and single keys, in ascending priority.

use crate::failure::Failure;
use crate::prediction;
use lockstep_config::{Recipe, Sources};
use lockstep_platform::{FileKind, World};
use lockstep_trainer::pretrained;
use std::path::PathBuf;

/// Arguments that name a recipe.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct RecipeArguments {
    /// Recipe in TOML, or the folder of a model to start from (default: the default recipe)
    recipe: Option<PathBuf>,
    /// Start from a named recipe (`lockstep config --presets` lists them)
    #[arg(long)]
    preset: Option<String>,
    /// Set one key, over preset and file; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

impl RecipeArguments {
    /// Whether no recipe argument is present.
    pub(crate) fn is_default(&self) -> bool {
        self.recipe.is_none() && self.preset.is_none() && self.sets.is_empty()
    }

    /// Adds settings with the highest priority.
    pub(crate) fn with(&self, sets: &[String]) -> Self {
        let mut more = self.clone();
        more.sets.extend_from_slice(sets);
        more
    }

    /// Adds a preset where neither a recipe nor a preset is present.
    pub(crate) fn or_preset(&self, name: &str) -> Self {
        let mut more = self.clone();
        if self.recipe.is_none() {
            more.preset.get_or_insert_with(|| name.to_owned());
        }
        more
    }

    /// The recipe arguments of an equal command line.
    pub(crate) fn to_arguments(&self) -> Vec<String> {
        let recipe = self.recipe.iter().map(|path| path.display().to_string());
        let preset = self.preset.iter().flat_map(|name| ["--preset".to_owned(), name.clone()]);
        let sets = self.sets.iter().flat_map(|set| ["--set".to_owned(), set.clone()]);
        recipe.chain(preset).chain(sets).collect()
    }

    /// Reads, merges and checks the recipe.
    pub(crate) fn resolve(&self, world: &World) -> Result<Recipe, Failure> {
        self.resolve_with_default(world, None)
    }

    /// Like [`Self::resolve`], with the command's own preset as the default.
    pub(crate) fn resolve_with_default(
        &self,
        world: &World,
        default_preset: Option<&str>,
    ) -> Result<Recipe, Failure> {
        let mut sets = self.sets.clone();
        let mut file = None;
        if let Some(path) = &self.recipe {
            if world.files().metadata(path) == Some(FileKind::Directory) {
                // First, so that an explicit model.from overrides it.
                sets.insert(0, format!("model.from={}", path.display()));
            } else {
                let text = world.files().read_to_string(path);
                let text = text.map_err(|error| Failure::user(error.to_string()))?;
                file = Some((path.display().to_string(), text));
            }
        }
        let arguments = default_preset.map_or_else(|| self.clone(), |name| self.or_preset(name));
        let preset = arguments.preset;
        let recipe = pretrained::resolve(&Sources { file, preset, sets }, world)?;
        Ok(prediction::with_microbatch(recipe, world))
    }
}

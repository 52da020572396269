//! How every command is told its recipe: a file, a preset and single keys, in this order.

use crate::failure::Failure;
use crate::forecast;
use lockstep_config::{Recipe, Sources};
use lockstep_platform::{FileKind, World};
use lockstep_trainer::pretrained;
use std::path::PathBuf;

/// Arguments that name a recipe.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct RecipeArguments {
    /// A recipe in TOML, or the folder of a model to start from; without one, the default recipe
    recipe: Option<PathBuf>,
    /// Start from a named recipe (`lockstep config --presets` lists them)
    #[arg(long)]
    preset: Option<String>,
    /// Set one key, over preset and file; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

impl RecipeArguments {
    /// Whether nothing was asked for.
    pub(crate) fn is_default(&self) -> bool {
        self.recipe.is_none() && self.preset.is_none() && self.sets.is_empty()
    }

    /// The same with more keys set, over all others.
    pub(crate) fn with(&self, sets: &[String]) -> Self {
        let mut more = self.clone();
        more.sets.extend_from_slice(sets);
        more
    }

    /// The same, starting from a preset where neither a recipe nor another preset was asked for.
    pub(crate) fn or_preset(&self, name: &str) -> Self {
        let mut more = self.clone();
        if self.recipe.is_none() {
            more.preset.get_or_insert_with(|| name.to_owned());
        }
        more
    }

    /// The same as arguments of a command.
    pub(crate) fn typed(&self) -> Vec<String> {
        let recipe = self.recipe.iter().map(|path| path.display().to_string());
        let preset = self.preset.iter().flat_map(|name| ["--preset".to_owned(), name.clone()]);
        let sets = self.sets.iter().flat_map(|set| ["--set".to_owned(), set.clone()]);
        recipe.chain(preset).chain(sets).collect()
    }

    /// Reads, merges and proves the recipe.
    pub(crate) fn resolve(&self, world: &World) -> Result<Recipe, Failure> {
        self.resolve_with_default(world, None)
    }

    /// The same, starting from a preset of the command's own where none was asked for.
    pub(crate) fn resolve_with_default(
        &self,
        world: &World,
        default_preset: Option<&str>,
    ) -> Result<Recipe, Failure> {
        let mut sets = self.sets.clone();
        let mut file = None;
        if let Some(path) = &self.recipe {
            if world.files().metadata(path) == Some(FileKind::Directory) {
                // Weakest first, so that an explicit model.from is heard.
                sets.insert(0, format!("model.from={}", path.display()));
            } else {
                let text = world.files().read_to_string(path);
                let text = text.map_err(|error| Failure::user(error.to_string()))?;
                file = Some((path.display().to_string(), text));
            }
        }
        let asked = default_preset.map_or_else(|| self.clone(), |name| self.or_preset(name));
        let preset = asked.preset;
        let recipe = pretrained::resolve(&Sources { file, preset, sets }, world)?;
        Ok(forecast::with_microbatch(recipe, world))
    }
}

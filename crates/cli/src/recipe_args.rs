//! Recipe arguments of every command: a preset, a file and single keys, in ascending priority.

use crate::automatic::{self, AutomaticSettings, Purpose};
use crate::epochs;
use crate::failure::Failure;
use crate::resume_command::next_dir;
use lockstep_checkpoint::pytorch::is_one as is_other_program;
use lockstep_cluster::role::launched_world_size;
use lockstep_config::{Recipe, Sources};
use lockstep_planner::traffic::check_algorithms;
use lockstep_platform::{FileKind, World};
use lockstep_trainer::{TrainError, pretrained, recorded_recipe};
use std::path::{Path, PathBuf};

/// Key of the number of workers.
const WORKERS: &str = "run.workers";

/// Key of the run folder.
const RUN_DIR: &str = "run.dir";

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
    /// Recorded recipe of the run to resume, as name and text; in place of the default recipe.
    #[arg(skip)]
    recorded: Option<(String, String)>,
    /// Recorded recipe of the run to resume, whether or not another is given.
    #[arg(skip)]
    resumed: Option<(String, String)>,
}

impl RecipeArguments {
    /// Whether no recipe argument is present.
    pub(crate) fn is_default(&self) -> bool {
        self.recipe.is_none() && self.preset.is_none() && self.sets.is_empty()
    }

    /// Settings of single keys.
    pub(crate) fn sets(&self) -> &[String] {
        &self.sets
    }

    /// The recipe file or model folder.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.recipe.as_deref()
    }

    /// Replaces the recipe file or model folder.
    pub(crate) fn with_path(&self, recipe: Option<PathBuf>) -> Self {
        Self { recipe, ..self.clone() }
    }

    /// Adds settings with the highest priority.
    pub(crate) fn with(&self, sets: &[String]) -> Self {
        let mut more = self.clone();
        more.sets.extend_from_slice(sets);
        more
    }

    /// Takes the recipe that a run or checkpoint records in place of the default recipe.
    pub(crate) fn or_recorded_in(&self, dir: &Path, world: &World) -> Self {
        let mut more = self.clone();
        more.resumed = recorded_recipe(dir, world);
        if self.recipe.is_none() && self.preset.is_none() {
            more.recorded.clone_from(&more.resumed);
            if is_other_program(world, dir) {
                // It records a model and no recipe.
                more.recipe = Some(dir.to_owned());
            }
        }
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
        self.resolve_for(Purpose::Description, world, None).map(|(recipe, _)| recipe)
    }

    /// Like [`Self::resolve`], with the command's own preset as the default; returns automatic
    /// settings too.
    pub(crate) fn resolve_for(
        &self,
        purpose: Purpose<'_>,
        world: &World,
        default_preset: Option<&str>,
    ) -> Result<(Recipe, Option<AutomaticSettings>), Failure> {
        let mut sets = self.sets.clone();
        let mut file = self.recorded.clone();
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
        let sources = Sources { file, preset, sets, epoch_steps: epochs::from_launcher(world) };
        let sources = pretrained::with_epoch_steps(&sources, world)?;
        let explicit = match self.recorded {
            // A resumed run may have another number of workers.
            Some(_) => Sources { file: None, ..sources.clone() },
            None => sources.clone(),
        };
        let mut recipe = match purpose {
            Purpose::Run(_) => resolve_as_rank(&sources, &explicit, world, pretrained::resolve),
            Purpose::Description => {
                resolve_as_rank(&sources, &explicit, world, pretrained::resolve_shape)
            }
        }?;
        if self.recorded.is_some()
            && !recipe.run.dir.is_empty()
            && !explicit.sets_explicitly(RUN_DIR)
        {
            // The run to resume has this folder.
            recipe.run.dir = next_dir(&recipe.run.dir, world).display().to_string();
        }
        if recipe.train.microbatch_is_auto
            && let Some(size) = self.resumed_microbatch(&recipe, world)
        {
            (recipe.train.microbatch_size, recipe.train.microbatch_is_auto) = (size, false);
        }
        let (recipe, settings) = automatic::choose(recipe, purpose, world)?;
        check_algorithms(&recipe)
            .map_err(|refused| Failure::new(refused.blame(), refused.to_string()))?;
        Ok((recipe, settings))
    }

    /// Micro-batch size of the run to resume, on which bits depend, if it suits the recipe.
    fn resumed_microbatch(&self, recipe: &Recipe, world: &World) -> Option<usize> {
        let sources = Sources { file: Some(self.resumed.clone()?), ..Sources::default() };
        let size = pretrained::resolve(&sources, world).ok()?.train.microbatch_size;
        recipe.train.batch.is_multiple_of(size * recipe.num_leaves()).then_some(size)
    }
}

/// Resolves the recipe. In a rank that a launcher started, such as torchrun, WORLD_SIZE decides the
/// number of workers unless the `explicit` sources do: the recipe file or an argument.
fn resolve_as_rank(
    sources: &Sources,
    explicit: &Sources,
    world: &World,
    resolve: fn(&Sources, &World) -> Result<Recipe, TrainError>,
) -> Result<Recipe, Failure> {
    let Some(world_size) =
        launched_world_size(world).filter(|_| !explicit.sets_explicitly(WORKERS))
    else {
        return Ok(resolve(sources, world)?);
    };
    let resolve_with = |workers: usize| {
        let mut sources = sources.clone();
        sources.sets.push(format!("{WORKERS}={workers}"));
        resolve(&sources, world)
    };
    // Parameter servers are ranks beside the workers. Their number does not depend on that of the
    // workers, which may be too large with the servers counted in.
    let without_servers = resolve_with(world_size);
    let num_servers = match &without_servers {
        Ok(recipe) => recipe.num_server_ranks(),
        Err(_) => resolve(sources, world).map_or(0, |r| r.num_server_ranks()),
    };
    let resolved = match world_size.checked_sub(num_servers) {
        Some(_) if num_servers == 0 => without_servers,
        Some(workers @ 1..) => resolve_with(workers),
        _ => {
            let least = num_servers + 1;
            let plural = if num_servers == 1 { "" } else { "s" };
            return Err(Failure::user(format!(
                "WORLD_SIZE = {world_size} leaves no worker beside {num_servers} server{plural} of \
                 sync.servers; start at least {least} ranks"
            )));
        }
    };
    resolved.map_err(|error| {
        let text = error.to_string();
        let origin = format!("{WORKERS} follows WORLD_SIZE = {world_size} of the launcher");
        let lines = if text.contains(WORKERS) { format!("{text}\n{origin}") } else { text };
        Failure::new(error.blame(), lines)
    })
}

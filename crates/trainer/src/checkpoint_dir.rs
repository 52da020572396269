//! Location of a run's checkpoints and lookup of the newest one.

use crate::run_folder::{RunFolder, load_recipe};
use crate::{Options, TrainError};
use lockstep_checkpoint::sharded::{MANIFEST, Reader, Store};
use lockstep_config::{Recipe, Sources};
use lockstep_platform::World;
use std::path::{Path, PathBuf};

/// Folder of the recipe's checkpoints.
pub(crate) fn dir_of(recipe: &Recipe, run_dir: &Path) -> PathBuf {
    match recipe.checkpoint.dir.as_str() {
        "" => run_dir.join("checkpoints"),
        dir => PathBuf::from(dir),
    }
}

/// Checkpoint store of a run folder; any other folder is taken as a store itself.
pub(crate) fn store_in(dir: &Path, world: &World) -> Result<Store, TrainError> {
    let place = match RunFolder::started(dir, world) {
        Ok(folder) => dir_of(&load_recipe(&folder, world)?, dir),
        Err(_) => dir.to_owned(),
    };
    Ok(Store::new(world, &place))
}

/// Recipe that a run or a checkpoint records, with the name of its file. A folder of checkpoints
/// stands for the newest one.
pub fn recorded_recipe(dir: &Path, world: &World) -> Option<(String, String)> {
    if let Ok(folder) = RunFolder::started(dir, world) {
        let text = world.files().read_to_string(&folder.recipe()).ok()?;
        return Some((folder.recipe().display().to_string(), text));
    }
    let newest = || {
        let store = Store::new(world, dir);
        store.steps().ok()?.into_iter().find_map(|step| store.open(step).ok())
    };
    let reader = Reader::open(world, dir).ok().or_else(newest)?;
    let name = reader.folder().join(MANIFEST).display().to_string();
    Some((name, reader.manifest().position.recipe.clone()))
}

/// Whether a run folder has checkpoints.
pub fn has_checkpoints(run: &Path, world: &World) -> bool {
    let steps = store_in(run, world).and_then(|store| Ok(store.steps()?));
    steps.is_ok_and(|steps| !steps.is_empty())
}

/// Recipe of the run that this one continues: that of its earlier attempt, or of the run or the
/// checkpoints that it resumes from.
pub(crate) fn earlier_recipe(options: &Options, world: &World) -> Option<Recipe> {
    let attempt = options.attempt.dir.as_deref().filter(|_| options.attempt.restarts > 0);
    let dir = attempt.or(options.resume.as_deref())?;
    if let Ok(folder) = RunFolder::started(dir, world) {
        return load_recipe(&folder, world).ok();
    }
    let reader = newest_in(dir, world).ok()??;
    recipe_in(&reader.manifest().position.recipe, dir).ok()
}

/// Newest checkpoint in `dir` whose checksums all match, if there is one.
pub(crate) fn newest_in(dir: &Path, world: &World) -> Result<Option<Reader>, TrainError> {
    let store = store_in(dir, world)?;
    let mut first_fault = None;
    for step in store.steps()? {
        let whole = |reader: Reader| reader.verify_all().map(|()| reader);
        match store.open(step).and_then(whole) {
            Ok(reader) => return Ok(Some(reader)),
            Err(error) => first_fault = first_fault.or(Some(error)),
        }
    }
    first_fault.map_or(Ok(None), |error| Err(error.into()))
}

/// Resolves the recipe stored in a checkpoint's manifest.
pub(crate) fn recipe_in(text: &str, dir: &Path) -> Result<Recipe, TrainError> {
    let name = dir.join(MANIFEST).display().to_string();
    let file = Some((name.clone(), text.to_owned()));
    lockstep_config::resolve(&Sources { file, ..Sources::default() })
        .map_err(|errors| TrainError::SavedRecipe { path: name, reason: errors.to_string() })
}

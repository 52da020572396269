//! The model of `--model`: a published one by name, or a Hugging Face `config.json`.

use super::suggest::unknown_model;
use lockstep_planner::model::{HuggingFaceConfig, MODEL_TYPES, Model, preset};
use lockstep_platform::World;
use std::path::{Path, PathBuf};

/// The model of a name or a file, or every error in it.
pub(super) fn named_model(text: &str, world: &World) -> Result<Model, Vec<String>> {
    if let Some(model) = preset(text) {
        return Ok(model);
    }
    let path = Path::new(text);
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let folder = path.join("config.json");
    if !is_json && world.files().metadata(&folder).is_none() {
        return Err(vec![unknown_model(text)]);
    }
    let path: PathBuf = if is_json { path.to_owned() } else { folder };
    let content = world.files().read_to_string(&path).map_err(|error| vec![error.to_string()])?;
    let at = |line: String| format!("--model {}: {line}", path.display());
    let config: HuggingFaceConfig = serde_json::from_str(&content).map_err(|error| {
        let families = MODEL_TYPES.join(", ");
        vec![at(format!("{error}; try the config.json of a model of {families}"))]
    })?;
    // The folder of a downloaded model has its name.
    let folder = path.parent().and_then(Path::file_name).unwrap_or(path.as_os_str());
    let lines = |lines: Vec<String>| lines.into_iter().map(at).collect();
    config.model(&folder.to_string_lossy()).map_err(lines)
}

//! Model of a folder that has adapters alone, as `peft` writes it: the weights beside them are in
//! the folder of their base model.

use crate::TrainError;
use lockstep_checkpoint::peft::{self, AdapterFolder};
use lockstep_checkpoint::sharded::MANIFEST;
use lockstep_config::{Family, Model};
use lockstep_platform::{FileKind, World};
use std::path::{Path, PathBuf};

/// Folder of a model. One of adapters has no weights beside them; `base` is the folder that has
/// them.
#[derive(Clone, Copy, Debug)]
pub struct ModelPath<'a> {
    /// Folder of the model, or of its adapters.
    pub folder: &'a Path,
    /// Folder of the base model; none takes the one that the adapters name.
    pub base: Option<&'a Path>,
}

impl<'a> From<&'a Path> for ModelPath<'a> {
    fn from(folder: &'a Path) -> Self {
        Self { folder, base: None }
    }
}

impl<'a> From<&'a PathBuf> for ModelPath<'a> {
    fn from(folder: &'a PathBuf) -> Self {
        Self::from(folder.as_path())
    }
}

/// Files of a folder with weights, one of which each has.
const MODEL_FILES: [&str; 4] =
    ["recipe.toml", MANIFEST, "model.safetensors", "model.safetensors.index.json"];

/// Adapters of a folder of their own, and the model with them.
pub(crate) struct PeftAdapters {
    pub(crate) folder: AdapterFolder,
    pub(crate) model: Model,
    /// Folder of the weights beside them.
    pub(crate) base: PathBuf,
}

impl PeftAdapters {
    /// The adapters beside the weights of a model in the folder `base`.
    pub(crate) fn beside(
        folder: AdapterFolder,
        base: PathBuf,
        model: &Model,
    ) -> Result<Self, TrainError> {
        let refuse = |why: String| {
            let (dir, base) = (folder.path().display().to_string(), base.display().to_string());
            Err(TrainError::UnfitBase { dir, base, why })
        };
        if model.family != Family::Llama {
            let family = model.family.name();
            return refuse(format!("is of family {family}, and adapters are for that of Llama"));
        }
        if model.lora.is_on() {
            return refuse(
                "has adapters itself; merge them with `lockstep convert --to huggingface`".into(),
            );
        }
        let model = Model { lora: folder.lora, ..model.clone() };
        Ok(Self { folder, model, base })
    }
}

/// Whether a folder has adapters and no model.
pub(crate) fn is_one(path: &Path, world: &World) -> bool {
    let has = |name: &&str| world.files().metadata(&path.join(name)).is_some();
    has(&peft::CONFIG) && !MODEL_FILES.iter().any(has)
}

/// Folder of the base model that the adapters name.
pub(crate) fn base_of(folder: &AdapterFolder, world: &World) -> Result<PathBuf, TrainError> {
    let refuse = |why: String| {
        let dir = folder.path().display().to_string();
        Err(TrainError::NoBase { dir, why })
    };
    let Some(name) = folder.base_model.as_ref().filter(|name| !name.is_empty()) else {
        return refuse("base_model_name_or_path names none".to_owned());
    };
    let path = PathBuf::from(name);
    match world.files().metadata(&path) {
        Some(FileKind::Directory) => Ok(path),
        _ => refuse(format!("base_model_name_or_path = {name:?} is no folder here")),
    }
}

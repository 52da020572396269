//! Adapter folders of Hugging Face's `peft`: low-rank adapters without the weights of their model.
//!
//! ```text
//! adapter_config.json         rank, scale, dropout and target modules
//! adapter_model.safetensors   the matrices, named base_model.model.….lora_A.weight
//! ```
//!
//! [`AdapterFolder::open`] reads the configuration and the header of the matrices; [`save`] writes
//! a folder. An option that changes what is computed is refused by name and value, all at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lockstep_config::{Lora, LoraTarget, LoraTargets};
use lockstep_platform::World;
use serde_json::{Map, Value, json};

use crate::error::quoted;
use crate::weights::{Tensors, WeightsFile, WeightsHasher, save_each_as};
use crate::{CheckpointError, ElementType, new_folder};

/// File with the configuration.
pub const CONFIG: &str = "adapter_config.json";

/// File with the matrices.
pub const FILE_NAME: &str = "adapter_model.safetensors";

/// Prefix of stored names: `peft` wraps the model twice.
const PREFIX: &str = "base_model.model.";

/// Stands for all linear layers but the output projection.
const ALL_LINEAR: &str = "all-linear";

/// Options that are read, or that cannot change what a trained adapter computes. All others must be
/// absent, false or empty.
const KNOWN: &[&str] = &[
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "inference_mode",
    "init_lora_weights",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
];

/// Initialisations that leave the weights of the model as they were.
const PLAIN_INITS: &[&str] = &["gaussian", "orthogonal", "eva"];

/// A folder with validated configuration and header.
pub struct AdapterFolder {
    path: PathBuf,
    /// Its adapters.
    pub lora: Lora,
    /// Name or folder of the model that they were trained beside, if it is recorded.
    pub base_model: Option<String>,
    /// Its matrices by the names of the engine.
    pub tensors: Tensors,
}

impl AdapterFolder {
    /// Reads `adapter_config.json` and the header of the matrices.
    pub fn open(world: &World, path: &Path) -> Result<Self, CheckpointError> {
        let config = path.join(CONFIG);
        let bytes = world.files().read(&config)?;
        let lora = parse(&config, &bytes)?;
        let options: Map<String, Value> = serde_json::from_slice(&bytes).unwrap_or_default();
        let base_model = options.get("base_model_name_or_path").and_then(Value::as_str);
        let base_model = base_model.map(str::to_owned);
        let file = path.join(FILE_NAME);
        let mut tensors = Tensors::empty(&file);
        let file = WeightsFile::open(world, &file).map_err(CheckpointError::of_input)?;
        let name_of = |stored: &str| Some(stored.strip_prefix(PREFIX).unwrap_or(stored).to_owned());
        tensors.add(file, name_of).map_err(CheckpointError::of_input)?;
        Ok(Self { path: path.to_owned(), lora, base_model, tensors })
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the configuration, for messages.
    pub fn config(&self) -> PathBuf {
        self.path.join(CONFIG)
    }

    /// Checks that the matrices have these names and shapes.
    pub fn prove(&self, needed: &BTreeMap<String, Vec<usize>>) -> Result<(), CheckpointError> {
        self.tensors.prove(needed).map_err(CheckpointError::of_input)
    }
}

/// Reads the text of `adapter_config.json`; `path` is for messages.
fn parse(path: &Path, bytes: &[u8]) -> Result<Lora, CheckpointError> {
    let foreign = |reason: String| CheckpointError::Foreign { path: path.to_owned(), reason };
    let options: Map<String, Value> = serde_json::from_slice(bytes).map_err(|error| {
        foreign(quoted(&format!("not the configuration of an adapter: {error}")))
    })?;
    let mut refusals = Vec::new();
    let mut refuse = |key: &str, rule: &str| {
        let value = options.get(key).map_or("null".to_owned(), Value::to_string);
        refusals.push(format!("{} = {} {rule}", quoted(key), quoted(&value)));
    };
    let text = |key: &str| options.get(key).and_then(Value::as_str);
    if text("peft_type") != Some("LORA") {
        refuse("peft_type", "is not supported; \"LORA\" is");
    }
    if !matches!(text("bias"), None | Some("none")) {
        refuse("bias", "is not supported; \"none\" is");
    }
    if text("init_lora_weights").is_some_and(|init| !PLAIN_INITS.contains(&init)) {
        refuse("init_lora_weights", "changes the weights of the model; merge the adapter first");
    }
    for (key, value) in &options {
        let is_neutral = match value {
            Value::Null | Value::Bool(false) => true,
            Value::Object(map) => map.is_empty(),
            Value::Array(list) => list.is_empty(),
            _ => false,
        };
        if !is_neutral && !KNOWN.contains(&key.as_str()) {
            refuse(key, "is not supported; only an adapter without it is");
        }
    }
    let rank = options.get("r").and_then(Value::as_u64).filter(|rank| (1..=4096).contains(rank));
    if rank.is_none() {
        refuse("r", "is not a rank; a whole number from 1 to 4096 is");
    }
    let number = |key: &str, default: f64| options.get(key).map_or(Some(default), Value::as_f64);
    let alpha = number("lora_alpha", 8.0).filter(|alpha| *alpha > 0.0 && *alpha <= 1e6);
    if alpha.is_none() {
        refuse("lora_alpha", "is not a positive number");
    }
    let dropout = number("lora_dropout", 0.0).filter(|rate| (0.0..1.0).contains(rate));
    if dropout.is_none() {
        refuse("lora_dropout", "is not a probability below 1");
    }
    let targets = options.get("target_modules").and_then(targets);
    if targets.is_none() {
        let names = LoraTarget::NAMES.join(", ");
        refuse("target_modules", &format!("is not a list of {names}"));
    }
    match (rank, alpha, dropout, targets) {
        (Some(rank), Some(alpha), Some(dropout), Some(targets)) if refusals.is_empty() => {
            let (alpha, dropout) = (alpha as f32, dropout as f32);
            Ok(Lora { rank: rank as usize, alpha, dropout, targets, ..Lora::NONE })
        }
        _ => Err(foreign(refusals.join("; "))),
    }
}

/// The modules of a list, or of the word for all of them.
fn targets(value: &Value) -> Option<LoraTargets> {
    if value.as_str() == Some(ALL_LINEAR) {
        return Some(LoraTargets::ALL);
    }
    let names = value.as_array()?.iter().map(Value::as_str);
    names.map(|name| LoraTarget::from_name(name?)).collect()
}

/// Contents of a new adapter folder.
pub struct AdapterExport<'a> {
    /// The adapters.
    pub lora: &'a Lora,
    /// Name or folder of the model, if it is known.
    pub base_model: Option<&'a str>,
    /// Names and shapes of the matrices, by the names of the engine.
    pub outlines: &'a BTreeMap<String, Vec<usize>>,
    /// Number format of the matrices.
    pub format: ElementType,
}

/// Writes a new folder atomically. `read` returns the elements of a matrix by name. Returns the
/// [`crate::weights_hash`] of the matrices before rounding.
pub fn save<E: From<CheckpointError>>(
    world: &World,
    folder: &Path,
    export: &AdapterExport<'_>,
    read: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
) -> Result<String, E> {
    new_folder::create(world, folder, |partial| write(world, partial, export, read))
}

/// Writes the files into a folder, each atomically; the parameters are those of [`save`].
pub fn write<E: From<CheckpointError>>(
    world: &World,
    folder: &Path,
    export: &AdapterExport<'_>,
    mut read: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
) -> Result<String, E> {
    let mut hasher = WeightsHasher::default();
    let outlines = export.outlines.iter();
    let outlines: Vec<_> =
        outlines.map(|(name, shape)| (format!("{PREFIX}{name}"), shape.clone())).collect();
    let notes = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    world.files().create_dir_all(folder).map_err(CheckpointError::from)?;
    let file = folder.join(FILE_NAME);
    save_each_as(world, &file, export.format, &outlines, &notes, |take| {
        for (name, shape) in export.outlines {
            let mut data = vec![0.0; shape.iter().product()];
            read(name, &mut data)?;
            hasher.update(&data);
            take(&data)?;
        }
        Ok::<(), E>(())
    })?;
    let text = config_json(export.lora, export.base_model);
    let written = world.files().write_atomic(&folder.join(CONFIG), text.as_bytes());
    written.map_err(CheckpointError::from)?;
    Ok(hasher.finish())
}

/// Text of `adapter_config.json`, with the options that `peft` writes.
fn config_json(lora: &Lora, base_model: Option<&str>) -> String {
    let targets: Vec<&str> = lora.targets.iter().map(LoraTarget::name).collect();
    let value = json!({
        "alpha_pattern": {},
        "auto_mapping": null,
        "base_model_name_or_path": base_model,
        "bias": "none",
        "exclude_modules": null,
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "layer_replication": null,
        "layers_pattern": null,
        "layers_to_transform": null,
        "loftq_config": {},
        "lora_alpha": number(lora.alpha),
        "lora_bias": false,
        "lora_dropout": shortest(lora.dropout),
        "megatron_config": null,
        "megatron_core": "megatron.core",
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": lora.rank,
        "rank_pattern": {},
        "revision": null,
        "target_modules": targets,
        "task_type": "CAUSAL_LM",
        "use_dora": false,
        "use_rslora": false,
    });
    serde_json::to_string_pretty(&value).expect("a map by text is JSON") + "\n"
}

/// A number as JSON: `peft` declares an integer, and takes others.
fn number(value: f32) -> Value {
    let whole = value.fract() == 0.0 && value.abs() < 1e9;
    if whole { json!(value as i64) } else { json!(shortest(value)) }
}

/// The `f64` that prints as the `f32` does.
fn shortest(number: f32) -> f64 {
    number.to_string().parse().expect("a finite number")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_platform::ScratchDir;

    fn parsed(text: &str) -> Result<Lora, String> {
        parse(Path::new("a.json"), text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_configuration_as_peft_writes_it_is_read() {
        // From the guide of peft on its checkpoint format, with the targets of Llama.
        let text = r#"{"alpha_pattern": {}, "auto_mapping": null, "bias": "none",
            "base_model_name_or_path": "a", "fan_in_fan_out": false, "inference_mode": true,
            "init_lora_weights": true, "layer_replication": null, "layers_pattern": null,
            "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 16,
            "lora_dropout": 0.05, "megatron_config": null, "megatron_core": "megatron.core",
            "modules_to_save": null, "peft_type": "LORA", "r": 4, "rank_pattern": {},
            "revision": null, "target_modules": ["v_proj", "q_proj"], "task_type": "CAUSAL_LM",
            "use_dora": false, "use_rslora": false}"#;
        let targets = [LoraTarget::Query, LoraTarget::Value].into_iter().collect();
        let expected = Lora { rank: 4, alpha: 16.0, dropout: 0.05, targets, ..Lora::NONE };
        assert_eq!(parsed(text), Ok(expected));
        assert_eq!(parsed(&config_json(&expected, None)), Ok(expected));
        let all = parsed(r#"{"peft_type": "LORA", "r": 1, "target_modules": "all-linear"}"#);
        assert_eq!(all.map(|lora| lora.targets.iter().count()), Ok(7));
    }

    #[test]
    fn options_that_change_the_computation_are_refused_together() {
        let error = parsed(
            r#"{"peft_type": "LORA", "r": 0, "use_dora": true, "rank_pattern": {"q": 2},
                "init_lora_weights": "pissa", "target_modules": ["c_attn"]}"#,
        );
        let error = error.unwrap_err();
        for part in ["r = 0 is not a rank", "use_dora = true", "rank_pattern", "pissa", "c_attn"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(parsed("[]").unwrap_err().contains("not the configuration of an adapter"));
    }

    #[test]
    fn matrices_come_back_under_the_names_of_peft() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "peft").unwrap();
        let name = "model.layers.0.self_attn.q_proj.lora_A.weight";
        let outlines = BTreeMap::from([(name.to_owned(), vec![1, 2])]);
        let lora = Lora { rank: 1, ..Lora::NONE };
        let format = ElementType::F32;
        let export = AdapterExport { lora: &lora, base_model: None, outlines: &outlines, format };
        let (folder, values) = (scratch.path().join("adapter"), [0.5_f32, -2.0]);
        save(&world, &folder, &export, |_, out| {
            out.copy_from_slice(&values);
            Ok::<_, CheckpointError>(())
        })
        .unwrap();
        let stored = WeightsFile::open(&world, &folder.join(FILE_NAME)).unwrap().names();
        assert_eq!(stored, [format!("base_model.model.{name}")]);
        let read = AdapterFolder::open(&world, &folder).unwrap();
        assert_eq!(read.lora, lora);
        read.prove(&outlines).unwrap();
        let mut out = [0.0; 2];
        read.tensors.read(name, 0, &mut out).unwrap();
        assert_eq!(out.map(f32::to_bits), values.map(f32::to_bits));
    }
}

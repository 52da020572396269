//! Export of a GGUF file, which llama.cpp and the programs on top of it run.
//!
//! The format is a header of metadata and tensor descriptions, followed by the tensors
//! (`docs/gguf.md` of the ggml project). Matrices are floats or blocks of eight-bit integers;
//! vectors stay `f32`. Tensors are streamed one at a time.
//!
//! # Layout
//!
//! - `format`: bytes of the header
//! - `block`: types of tensors
//! - `metadata`: shape of the model
//! - `tensors`: names and order of elements
//! - `vocabulary`: the tokenizer

mod block;
mod format;
mod metadata;
mod tensors;
mod vocabulary;

pub use block::TensorType;

use crate::huggingface::{CHAT_TEMPLATE, Companions, Saved, TOKENIZER, TOKENIZER_CONFIG};
use crate::weights::{WeightsHasher, not_representable};
use crate::{CheckpointError, ElementType};
use format::Description;
use lockstep_config::{Model, ModelType};
use lockstep_platform::{FileAction, FileError, FileWriter, World, write_atomic_with};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;
use tensors::Source;
use vocabulary::Vocabulary;

/// Name of the tensor with the divisors of rotary frequencies.
const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// Parameters of an export.
pub struct Export<'a> {
    /// Shape of the model.
    pub model: &'a Model,
    /// Names and shapes of the tensors.
    pub outlines: &'a BTreeMap<String, Vec<usize>>,
    /// Type of the matrices.
    pub tensor_type: TensorType,
    /// Files of the vocabulary; without a tokenizer, tokens are bytes.
    pub companions: &'a Companions,
    /// Ids of special tokens, as in `config.json`.
    pub special_tokens: &'a Map<String, Value>,
}

/// Writes a new file atomically. `read` returns the elements of a tensor by name.
pub fn save<E: From<CheckpointError>>(
    world: &World,
    path: &Path,
    export: &Export<'_>,
    mut read: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
) -> Result<Saved, E> {
    let (head, sources) = plan(world, path, export)?;
    let mut hasher = WeightsHasher::default();
    let mut failed = None;
    let written = write_atomic_with(world, path, |writer| {
        writer.write_all(&head)?;
        let mut each = || {
            for source in &sources {
                let data = match source {
                    Planned::Computed(_, values) => values.clone(),
                    Planned::Read(source) => {
                        let mut data = vec![0.0; source.description.shape.iter().product()];
                        read(&source.name, &mut data)?;
                        hasher.update(&data);
                        source.change.apply(data, &export.outlines[&source.name])
                    }
                };
                let description = source.description();
                write_tensor(writer, path, description, &data)?;
            }
            Ok(())
        };
        each().map_err(|error: E| {
            failed = Some(error);
            std::io::Error::other("the tensors could not be produced")
        })
    });
    if let Some(error) = failed {
        return Err(error);
    }
    written.map_err(CheckpointError::from)?;
    let num_bytes = sources.iter().map(|source| source.description().num_bytes() as u64).sum();
    let file = path.file_name().map(|name| name.display().to_string()).unwrap_or_default();
    Ok(Saved { files: vec![file], num_bytes, weights_hash: hasher.finish() })
}

/// A tensor of the file: one of the model, or one computed from its shape.
enum Planned {
    Read(Source),
    Computed(Description, Vec<f32>),
}

impl Planned {
    const fn description(&self) -> &Description {
        match self {
            Self::Read(source) => &source.description,
            Self::Computed(description, _) => description,
        }
    }
}

/// Everything before the tensors, and their order.
fn plan(
    world: &World,
    path: &Path,
    export: &Export<'_>,
) -> Result<(Vec<u8>, Vec<Planned>), CheckpointError> {
    let refuse = |reason: String| CheckpointError::Foreign { path: path.to_owned(), reason };
    let no_counterpart = |what: &str| {
        refuse(format!("GGUF has no counterpart of {what} here; export with --to huggingface"))
    };
    let model = export.model;
    let architecture = metadata::architecture(model).ok_or_else(|| {
        let family = model.variant.model_type.map_or(model.family.name(), ModelType::name);
        no_counterpart(&format!("this {family} model"))
    })?;
    let sources = tensors::sources(model, export.outlines, export.tensor_type)
        .map_err(|name| no_counterpart(&format!("tensor {name}")))?;
    let mut planned: Vec<_> = sources.into_iter().map(Planned::Read).collect();
    let divisors = metadata::rope_divisors(model)
        .map_err(|kind| no_counterpart(&format!("model.rope_scaling = {kind}")))?;
    if let Some(divisors) = divisors {
        let description = Description {
            name: ROPE_DIVISORS.to_owned(),
            tensor_type: TensorType::Floats(ElementType::F32),
            shape: vec![divisors.len()],
        };
        planned.push(Planned::Computed(description, divisors));
    }
    let content = |name: &str| export.companions.read(world, name);
    let (tokenizer, tokenizer_config) = (content(TOKENIZER)?, content(TOKENIZER_CONFIG)?);
    let chat_template = content(CHAT_TEMPLATE)?;
    let vocabulary = Vocabulary {
        tokenizer: tokenizer.as_deref(),
        tokenizer_config: tokenizer_config.as_deref(),
        chat_template: chat_template.as_deref(),
        special_tokens: export.special_tokens,
        num_rows: model.vocab,
    };
    let name = path.file_stem().map(|name| name.display().to_string()).unwrap_or_default();
    let mut all = metadata::metadata(model, architecture, &name, export.tensor_type);
    all.extend(vocabulary.metadata().map_err(refuse)?);
    let descriptions: Vec<_> = planned.iter().map(|one| one.description().clone()).collect();
    Ok((format::head(&all, &descriptions), planned))
}

/// Writes the bytes of a tensor, and the zeros after them.
fn write_tensor(
    writer: &mut dyn FileWriter,
    path: &Path,
    description: &Description,
    data: &[f32],
) -> Result<(), CheckpointError> {
    let Description { name, tensor_type, .. } = description;
    if let Some(element) = tensor_type.first_not_finite(data) {
        return Err(not_representable(name, data, element, tensor_type.name()));
    }
    let mut bytes = Vec::with_capacity(description.num_bytes());
    tensor_type.encode(data, &mut bytes);
    let mut write = |bytes: &[u8]| {
        let failed = |error| FileError::new(FileAction::Write, path, &error);
        writer.write_all(bytes).map_err(failed)
    };
    write(&bytes)?;
    write(description.padding())?;
    Ok(())
}

//! Writes folders of `torch.distributed.checkpoint`: parameters as `model.<name>`, state of AdamW
//! as `optim.state.<name>.exp_avg`, which are the names of `get_state_dict`.
//!
//! A tensor is cut by rows into chunks of bounded size, which bounds memory.

use std::path::Path;

use lockstep_platform::{World, write_atomic_with};

use super::archive_writer::archive;
use super::distributed::METADATA;
use super::pickle_writer::PickleWriter;
use crate::weights::ElementType;
use crate::{CheckpointError, new_folder};

/// File with all values.
pub const FILE_NAME: &str = "__0_0.distcp";

/// Largest chunk of a tensor that has rows to cut between.
const CHUNK_BYTES: usize = 1 << 28;

/// Module of the classes in `.metadata`.
const MODULE: &str = "torch.distributed.checkpoint.metadata";

/// A tensor to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedTensor {
    /// Its name in the state dictionary.
    pub name: String,
    /// Its shape, slowest dimension first.
    pub shape: Vec<usize>,
}

impl ExportedTensor {
    /// A parameter.
    pub fn parameter(name: &str, shape: &[usize]) -> Self {
        Self { name: format!("model.{name}"), shape: shape.to_vec() }
    }

    /// State of a parameter, by its PyTorch name.
    pub fn state(name: &str, kind: &str, shape: &[usize]) -> Self {
        Self { name: format!("optim.state.{name}.{kind}"), shape: shape.to_vec() }
    }

    /// Rows per chunk, and elements per row.
    fn rows(&self) -> (usize, usize) {
        let Some((_, row)) = self.shape.split_first() else { return (1, 1) };
        let row: usize = row.iter().product();
        ((CHUNK_BYTES / size_of::<f32>() / row.max(1)).max(1), row)
    }

    /// First rows and numbers of rows of the chunks.
    fn chunks(&self) -> Vec<(usize, usize)> {
        let num_rows = self.shape.first().copied().unwrap_or(1);
        let at_once = self.rows().0;
        (0..num_rows).step_by(at_once).map(|first| (first, at_once.min(num_rows - first))).collect()
    }
}

/// A written chunk: its tensor, first row, offset and length in the file.
struct Written {
    tensor: usize,
    first: usize,
    offset: u64,
    len: u64,
}

/// Writes a folder. `read` fills elements of a tensor from an index on. Returns the number of bytes
/// of the values.
pub fn save<E: From<CheckpointError>>(
    world: &World,
    folder: &Path,
    tensors: &[ExportedTensor],
    mut read: impl FnMut(usize, usize, &mut [f32]) -> Result<(), E>,
) -> Result<u64, E> {
    let mut num_bytes = 0;
    new_folder::create(world, folder, |partial| {
        let path = partial.join(FILE_NAME);
        let (mut all, mut failed) = (Vec::new(), None);
        let written = write_atomic_with(world, &path, |writer| {
            for (index, tensor) in tensors.iter().enumerate() {
                let (_, row) = tensor.rows();
                for (first, rows) in tensor.chunks() {
                    let mut values = vec![0.0; rows * row];
                    if let Err(error) = read(index, first * row, &mut values) {
                        failed = Some(error);
                        return Err(std::io::Error::other("the tensors could not be read"));
                    }
                    let mut bytes = Vec::new();
                    ElementType::F32.narrow(&values, &mut bytes);
                    let bytes = archive(&chunk_shape(tensor, rows), &bytes);
                    writer.write_all(&bytes)?;
                    let (offset, len) = (num_bytes, bytes.len() as u64);
                    all.push(Written { tensor: index, first, offset, len });
                    num_bytes += len;
                }
            }
            Ok(())
        });
        if let Some(error) = failed {
            return Err(error);
        }
        written.map_err(CheckpointError::from)?;
        let metadata = metadata(tensors, &all);
        world
            .files()
            .write_atomic(&partial.join(METADATA), &metadata)
            .map_err(CheckpointError::from)?;
        Ok(())
    })?;
    Ok(num_bytes)
}

fn chunk_shape(tensor: &ExportedTensor, rows: usize) -> Vec<usize> {
    let mut shape = tensor.shape.clone();
    if let Some(first) = shape.first_mut() {
        *first = rows;
    }
    shape
}

fn chunk_offsets(tensor: &ExportedTensor, first: usize) -> Vec<usize> {
    let mut offsets = vec![0; tensor.shape.len()];
    if let Some(row) = offsets.first_mut() {
        *row = first;
    }
    offsets
}

/// Contents of `.metadata`.
fn metadata(tensors: &[ExportedTensor], all: &[Written]) -> Vec<u8> {
    PickleWriter::pickle(|writer| {
        writer.instance(MODULE, "Metadata", |writer| {
            writer.dict(|writer| {
                writer.text("state_dict_metadata");
                writer.dict(|writer| {
                    for tensor in tensors {
                        writer.text(&tensor.name);
                        describe(writer, tensor);
                    }
                });
                writer.text("planner_data");
                writer.dict(|writer| {
                    for tensor in tensors {
                        writer.text(&tensor.name);
                        writer.tuple(|writer| {
                            for key in path_of(&tensor.name) {
                                writer.text(key);
                            }
                        });
                    }
                });
                writer.text("storage_data");
                writer.dict(|writer| {
                    for chunk in all {
                        place(writer, &tensors[chunk.tensor], chunk);
                    }
                });
            });
        });
    })
}

/// Keys of the nested dictionaries that lead to a tensor.
fn path_of(name: &str) -> Vec<&str> {
    let Some(state) = name.strip_prefix("optim.state.") else {
        return name.splitn(2, '.').collect();
    };
    let (param, kind) = state.rsplit_once('.').expect("a kind of state");
    vec!["optim", "state", param, kind]
}

fn describe(writer: &mut PickleWriter, tensor: &ExportedTensor) {
    writer.instance(MODULE, "TensorStorageMetadata", |writer| {
        writer.dict(|writer| {
            writer.text("properties");
            writer.instance(MODULE, "TensorProperties", |writer| {
                writer.tuple(|writer| {
                    writer.global("torch", "float32");
                    writer.call("torch.serialization", "_get_layout", |writer| {
                        writer.text("torch.strided");
                    });
                    writer.boolean(false);
                    // The contiguous format.
                    writer.call(MODULE, "_MEM_FORMAT_ENCODING", |writer| writer.count(0));
                    writer.boolean(false);
                });
            });
            writer.text("size");
            writer.size(&tensor.shape);
            writer.text("chunks");
            writer.list(|writer| {
                for (first, rows) in tensor.chunks() {
                    writer.instance(MODULE, "ChunkStorageMetadata", |writer| {
                        writer.dict(|writer| {
                            writer.text("offsets");
                            writer.size(&chunk_offsets(tensor, first));
                            writer.text("sizes");
                            writer.size(&chunk_shape(tensor, rows));
                        });
                    });
                }
            });
        });
    });
}

fn place(writer: &mut PickleWriter, tensor: &ExportedTensor, chunk: &Written) {
    writer.instance(MODULE, "MetadataIndex", |writer| {
        writer.dict(|writer| {
            writer.text("fqn");
            writer.text(&tensor.name);
            writer.text("offset");
            writer.size(&chunk_offsets(tensor, chunk.first));
            writer.text("index");
            writer.none();
        });
    });
    writer.instance("torch.distributed.checkpoint.filesystem", "_StorageInfo", |writer| {
        writer.dict(|writer| {
            writer.text("relative_path");
            writer.text(FILE_NAME);
            writer.text("offset");
            writer.count(chunk.offset);
            writer.text("length");
            writer.count(chunk.len);
        });
    });
}

//! Folders of `torch.distributed.checkpoint` (DCP), which FSDP, torchtitan and Megatron-Core write.
//!
//! ```text
//! .metadata       a pickle: shape, type and chunks of every tensor, and where each chunk is
//! __0_0.distcp    chunks, each a file of torch.save inside this one
//! ```
//!
//! Names are those of the state dictionary, joined by dots. Which of them are parameters and which
//! optimizer state, `names` decides.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use lockstep_platform::World;

use super::chunk::Chunk;
use super::pickle::{Pickle, Value};
use super::placed::{PlacedChunk, PlacedTensor, PlacedTensors, Values};
use crate::CheckpointError;
use crate::error::quoted;

/// File with the names, shapes and places.
pub(super) const METADATA: &str = ".metadata";

/// Largest `.metadata` that is read: far above that of a model on thousands of ranks.
const METADATA_BYTES_MAX: u64 = 1 << 30;

/// Place of a stored item.
struct Place {
    file: String,
    offset: u64,
    len: u64,
}

/// A tensor's name and the first index of a chunk of it.
type ChunkName = (String, Vec<usize>);

/// Reads `.metadata` and checks that every chunk lies in its file.
pub(super) fn open(world: &World, folder: &Path) -> Result<PlacedTensors, CheckpointError> {
    let path = folder.join(METADATA);
    let foreign = |reason: &str| {
        let (path, reason) = (path.clone(), quoted(reason));
        CheckpointError::Foreign { path, reason }
    };
    let reader = world.files().open(&path)?;
    let num_bytes = reader.num_bytes();
    if num_bytes > METADATA_BYTES_MAX {
        return Err(foreign(&format!("it has {num_bytes} bytes, too many for a list of tensors")));
    }
    let mut bytes = vec![0; num_bytes as usize];
    reader.read_exact_at(0, &mut bytes)?;
    let pickle =
        Pickle::parse(&bytes).map_err(|reason| foreign(&format!("not a pickle: {reason}")))?;
    let lists = tensors_of(pickle.root()).zip(places_of(pickle.root()));
    let (listed, places) =
        lists.ok_or_else(|| foreign("it is not the metadata of torch.distributed.checkpoint"))?;
    let mut tensors = PlacedTensors::empty(folder);
    for (name, (dtype, shape, chunks)) in listed {
        let mut placed = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let place = places
                .get(&(name.clone(), chunk.offsets.clone()))
                .ok_or_else(|| foreign(&format!("tensor {name} has a chunk without a place")))?;
            let file = tensors.file(world, &place.file)?;
            let range = place.offset..place.offset.saturating_add(place.len);
            let values = Values::InArchive { range, found: OnceLock::new() };
            placed.push(PlacedChunk { chunk, file, values });
        }
        let box_shape = shape.clone();
        tensors.add(&name, PlacedTensor { dtype, shape, box_shape, chunks: placed })?;
    }
    Ok(tensors)
}

/// Type, shape and chunks of a listed tensor.
type Listed = (String, Vec<usize>, Vec<Chunk>);

/// Tensors that the metadata lists, without what is no tensor.
fn tensors_of(root: Value<'_>) -> Option<BTreeMap<String, Listed>> {
    let listed = root.instance_of("Metadata")?.get("state_dict_metadata")?.entries()?;
    let tensors = listed.into_iter().filter_map(|(name, item)| {
        let item = item.instance_of("TensorStorageMetadata")?;
        Some(name.text().zip(tensor_of(item)))
    });
    tensors.map(|tensor| tensor.map(|(name, tensor)| (name.to_owned(), tensor))).collect()
}

fn tensor_of(item: Value<'_>) -> Option<Listed> {
    let properties = item.get("properties")?.instance_of("TensorProperties")?;
    // Its state is a tuple that begins with the type; older versions keep a dictionary.
    let dtype = properties.elements().and_then(|fields| fields.first().copied());
    let dtype = dtype.or_else(|| properties.get("dtype"))?.global()?;
    let chunks = item.get("chunks")?.elements()?.into_iter().map(|chunk| {
        let chunk = chunk.instance_of("ChunkStorageMetadata")?;
        let (offsets, sizes) = (chunk.get("offsets")?.counts()?, chunk.get("sizes")?.counts()?);
        Some(Chunk { offsets, sizes })
    });
    Some((dtype.1.to_owned(), item.get("size")?.counts()?, chunks.collect::<Option<_>>()?))
}

/// Place of every chunk.
fn places_of(root: Value<'_>) -> Option<BTreeMap<ChunkName, Place>> {
    let stored = root.instance_of("Metadata")?.get("storage_data")?.entries()?;
    let places = stored.into_iter().map(|(index, info)| {
        let (index, info) =
            (index.instance_of("MetadataIndex")?, info.instance_of("_StorageInfo")?);
        // What is no tensor has no offset in a tensor.
        let offset = index.get("offset").and_then(Value::counts).unwrap_or_default();
        let place = Place {
            file: info.get("relative_path")?.text()?.to_owned(),
            offset: info.get("offset")?.count()? as u64,
            len: info.get("length")?.count()? as u64,
        };
        Some(((index.get("fqn")?.text()?.to_owned(), offset), place))
    });
    places.collect()
}

//! Folders of DeepSpeed with ZeRO.
//!
//! ```text
//! latest                                              name of the newest folder
//! global_step10/mp_rank_00_model_states.pt            names and shapes of the parameters, or
//!               zero_pp_rank_0_mp_rank_00_model_states.pt   with stage 3
//! global_step10/zero_pp_rank_0_mp_rank_00_optim_states.pt …   a part of all values, per rank
//! ```
//!
//! With stages 1 and 2, the parameters of a group lie one after the other in one flat buffer, which
//! is cut into equally long parts, one per data-parallel rank. With stage 3, each parameter is cut
//! into equally long parts, and a rank's parts lie one after the other in its buffers
//! (`deepspeed/utils/zero_to_fp32.py` reads them so). The master weights, `exp_avg` and
//! `exp_avg_sq` share that layout, but for padding at the end. 16-bit weights of the model's own
//! file are not used.

use std::ops::Range;
use std::path::{Path, PathBuf};

use lockstep_platform::World;

use super::archive::{Archive, StoredTensor};
use super::chunk::Chunk;
use super::pickle::Value;
use super::placed::{PlacedChunk, PlacedTensor, PlacedTensors, Values};
use crate::CheckpointError;
use crate::error::quoted;
use crate::weights::ElementType;

/// File with the name of the newest folder.
const LATEST: &str = "latest";

/// Files with the parameters' names: of stages 1 and 2, and of stage 3.
const MODEL_FILES: [&str; 2] =
    ["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"];

/// End of the name of a rank's part.
const PART_FILE: &str = "_mp_rank_00_optim_states.pt";

/// The folder of the newest checkpoint: this one or the one that `latest` names.
pub(super) fn find(world: &World, folder: &Path) -> Option<PathBuf> {
    let has_model = |folder: &Path| model_file(world, folder).is_some();
    if has_model(folder) {
        return Some(folder.to_owned());
    }
    let name = world.files().read_to_string(&folder.join(LATEST)).ok()?;
    let name = name.trim();
    let is_plain = !name.is_empty() && !name.contains(['/', '\\']) && name != "..";
    Some(folder.join(name)).filter(|inner| is_plain && has_model(inner))
}

fn model_file(world: &World, folder: &Path) -> Option<&'static str> {
    let exists = |name: &&str| world.files().metadata(&folder.join(name)).is_some();
    MODEL_FILES.into_iter().find(exists)
}

/// A flat buffer of a part: its first byte, length in elements and type.
struct Buffer {
    file: usize,
    start: u64,
    len: usize,
    format: ElementType,
}

/// Kinds of values: master weights and moments, by the end of their names.
const SUFFIXES: [&str; 3] = ["", ".exp_avg", ".exp_avg_sq"];

/// Names and shapes of the parameters of a group, in the order of the flat buffers.
type Group = Vec<(String, Vec<usize>)>;

/// Opens the parts of all ranks: parameters by their names, moments as `state.<name>.exp_avg`, and
/// the number of updates.
pub(super) fn open(
    world: &World,
    folder: &Path,
) -> Result<(PlacedTensors, Option<u64>), CheckpointError> {
    let mut tensors = PlacedTensors::empty(folder);
    let groups = read_shapes(world, &mut tensors, folder)?;
    let names = part_names(world, folder)?;
    let mut parts: Vec<PartState> = Vec::with_capacity(names.len());
    for name in &names {
        let file = tensors.file(world, name)?;
        let fail = |reason: String| foreign(&folder.join(name), &reason);
        let archive = archive_of(&tensors, file).map_err(fail)?;
        let part = Part { tensors: &tensors, file, archive: &archive };
        let state = part.state(names.len()).map_err(fail)?;
        if parts.first().is_some_and(|first| !first.is_of_the_same(&state)) {
            return Err(fail("it is not of the same step and stage as the first part".to_owned()));
        }
        parts.push(state);
    }
    let step = parts[0].num_updates;
    for (kind, end) in SUFFIXES.iter().enumerate() {
        let buffers: Vec<_> = parts.iter().map(|part| part.buffers[kind].as_slice()).collect();
        let found = match parts[0].stage {
            3 => tensors_by_rank(&groups, &buffers),
            _ => tensors_by_group(&groups, &buffers),
        };
        for (name, tensor) in found.map_err(|reason| foreign(folder, &reason))? {
            let stored = if end.is_empty() { name } else { format!("state.{name}{end}") };
            tensors.add(&stored, tensor)?;
        }
    }
    Ok((tensors, step))
}

/// Tensors of stages 1 and 2: the buffers of a group on all ranks, one after the other.
fn tensors_by_group(
    groups: &[Group],
    by_rank: &[&[Buffer]],
) -> Result<Vec<(String, PlacedTensor)>, String> {
    let mut tensors = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let joined: Option<Vec<_>> = by_rank.iter().map(|buffers| buffers.get(index)).collect();
        let joined = joined.ok_or_else(|| format!("no buffer of group {index}"))?;
        let mut first = 0_usize;
        for (name, shape) in group {
            let len = num_elements(name, shape)?;
            let end = first.checked_add(len).ok_or("the parameters are too large")?;
            let mut tensor = Assembly::new(shape, len);
            tensor.add(&joined, first..end)?;
            tensors.push((name.clone(), tensor.finish()));
            first = end;
        }
    }
    Ok(tensors)
}

/// Tensors of stage 3: equal parts of each parameter, on each rank.
fn tensors_by_rank(
    groups: &[Group],
    by_rank: &[&[Buffer]],
) -> Result<Vec<(String, PlacedTensor)>, String> {
    let (mut tensors, mut first) = (Vec::new(), 0_usize);
    for (name, shape) in groups.iter().flatten() {
        let len = num_elements(name, shape)?;
        let part = len.div_ceil(by_rank.len());
        let end = first.checked_add(part).ok_or("the parameters are too large")?;
        let mut tensor = Assembly::new(shape, len);
        for (rank, buffers) in by_rank.iter().enumerate() {
            // The last parts may be padded.
            let own = part.min(len.saturating_sub(rank.saturating_mul(part)));
            tensor.add(&buffers.iter().collect::<Vec<_>>(), first..first + own)?;
        }
        tensors.push((name.clone(), tensor.finish()));
        first = end;
    }
    Ok(tensors)
}

fn num_elements(name: &str, shape: &[usize]) -> Result<usize, String> {
    let len = shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim));
    len.ok_or_else(|| format!("{name} has too many elements"))
}

/// A tensor that is put together from ranges of buffers, in order.
struct Assembly {
    tensor: PlacedTensor,
    done: usize,
}

impl Assembly {
    fn new(shape: &[usize], len: usize) -> Self {
        let (shape, box_shape) = (shape.to_vec(), vec![len]);
        let dtype = String::new();
        Self { tensor: PlacedTensor { dtype, shape, box_shape, chunks: Vec::new() }, done: 0 }
    }

    /// Adds a range of buffers that lie one after the other.
    fn add(&mut self, buffers: &[&Buffer], range: Range<usize>) -> Result<(), String> {
        let mut start = 0_usize;
        for buffer in buffers {
            let end = start.saturating_add(buffer.len);
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                if !self.tensor.dtype.is_empty() && self.tensor.dtype != buffer.format.torch_name()
                {
                    return Err("parts of a parameter have different types".to_owned());
                }
                buffer.format.torch_name().clone_into(&mut self.tensor.dtype);
                // The buffer lies in its file, so the offset does not overflow.
                let skipped = (from - start) as u64 * buffer.format.num_bytes() as u64;
                let chunk = Chunk { offsets: vec![self.done], sizes: vec![to - from] };
                let values = Values::At(buffer.start + skipped);
                self.tensor.chunks.push(PlacedChunk { chunk, file: buffer.file, values });
                self.done += to - from;
            }
            start = end;
        }
        Ok(())
    }

    fn finish(self) -> PlacedTensor {
        self.tensor
    }
}

/// Names and shapes of the parameters of each group, in the order of the flat buffers.
fn read_shapes(
    world: &World,
    tensors: &mut PlacedTensors,
    folder: &Path,
) -> Result<Vec<Group>, CheckpointError> {
    let name = model_file(world, folder).unwrap_or(MODEL_FILES[0]);
    let file = tensors.file(world, name)?;
    let fail = |reason: &str| foreign(&folder.join(name), reason);
    let archive = archive_of(tensors, file).map_err(|reason| fail(&reason))?;
    let root = archive.objects.root();
    let shapes = root.get("param_shapes").filter(|shapes| !shapes.is_none());
    let shapes = shapes.ok_or_else(|| {
        fail("it has no param_shapes, so ZeRO was off; save the model with save_pretrained")
    })?;
    let group_of = |group: Value<'_>| {
        let pairs = group.entries()?.into_iter();
        pairs.map(|(name, shape)| Some((name.text()?.to_owned(), shape.counts()?))).collect()
    };
    // Older versions keep one group alone.
    let groups = shapes.elements().unwrap_or_else(|| vec![shapes]);
    let groups: Option<Vec<_>> = groups.into_iter().map(group_of).collect();
    groups.ok_or_else(|| fail("its param_shapes are damaged"))
}

/// Names of the parts of all ranks, in the order of the ranks.
fn part_names(world: &World, folder: &Path) -> Result<Vec<String>, CheckpointError> {
    let mut ranked = Vec::new();
    for path in world.files().list(folder)? {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let Some(before) = name.strip_suffix(PART_FILE) else { continue };
        let rank = before.rsplit_once("zero_pp_rank_").and_then(|(_, rank)| rank.parse().ok());
        if let Some(rank) = rank {
            ranked.push((rank, name.to_owned()));
        }
    }
    ranked.sort();
    let is_complete =
        ranked.iter().enumerate().all(|(at, (rank, _)): (_, &(usize, _))| at == *rank);
    if ranked.is_empty() || !is_complete {
        let reason = format!("the files zero_pp_rank_N{PART_FILE} are not complete");
        return Err(foreign(folder, &reason));
    }
    Ok(ranked.into_iter().map(|(_, name)| name).collect())
}

fn archive_of(tensors: &PlacedTensors, file: usize) -> Result<Archive, String> {
    let reader = tensors.reader(file);
    Archive::open(reader, 0..reader.num_bytes())
}

/// An open part of a rank.
struct Part<'a> {
    tensors: &'a PlacedTensors,
    file: usize,
    archive: &'a Archive,
}

/// Contents of a part.
struct PartState {
    stage: usize,
    /// Flat buffers by kind; with stages 1 and 2 one for each group.
    buffers: [Vec<Buffer>; SUFFIXES.len()],
    num_updates: Option<u64>,
}

impl PartState {
    fn is_of_the_same(&self, other: &Self) -> bool {
        self.stage == other.stage && self.num_updates == other.num_updates
    }
}

impl Part<'_> {
    fn state(&self, num_ranks: usize) -> Result<PartState, String> {
        let damaged = "its optimizer_state_dict is not that of ZeRO";
        let state = self.archive.objects.root().get("optimizer_state_dict").ok_or(damaged)?;
        let stage = state.get("zero_stage").and_then(stage_of).ok_or(damaged)?;
        let (weights, base) = match stage {
            1 | 2 => ("single_partition_of_fp32_groups", "base_optimizer_state"),
            3 => ("fp32_flat_groups", "optimizer_state_dict"),
            _ => return Err(format!("ZeRO stage {stage} is not known; 1, 2 and 3 are")),
        };
        let count = state.get("partition_count");
        let count =
            count.and_then(|count| count.count().or_else(|| count.counts()?.into_iter().max()));
        if let Some(count) = count.filter(|count| *count != num_ranks) {
            return Err(format!("it is one of {count} parts, and {num_ranks} are there"));
        }
        let weights = state.get(weights).and_then(Value::elements).ok_or(damaged)?;
        let groups = state.get(base).and_then(groups_of).ok_or(damaged)?;
        let moments = |end: &str| {
            let kind = end.trim_start_matches('.');
            let found = groups.iter().map(|group| group.get(kind)).collect::<Option<Vec<_>>>();
            self.buffers(
                found.ok_or_else(|| format!("it has no {kind}; only Adam's state is read"))?,
            )
        };
        let buffers = [self.buffers(weights)?, moments(SUFFIXES[1])?, moments(SUFFIXES[2])?];
        let steps: Option<Vec<_>> =
            groups.iter().map(|group| self.num_updates(group.get("step")?)).collect();
        let num_updates = steps.and_then(|steps| steps.first().copied());
        Ok(PartState { stage, buffers, num_updates })
    }

    fn buffers(&self, tensors: Vec<Value<'_>>) -> Result<Vec<Buffer>, String> {
        tensors.into_iter().map(|tensor| self.buffer(tensor)).collect()
    }

    fn buffer(&self, value: Value<'_>) -> Result<Buffer, String> {
        let tensor = StoredTensor::of(value).ok_or("a buffer is not a tensor")??;
        let range = self.archive.range_of(self.tensors.reader(self.file), &tensor)?;
        let format = tensor.format.ok_or("a buffer is not of floating-point numbers")?;
        let len = tensor.num_elements().ok_or("a buffer is too long")?;
        Ok(Buffer { file: self.file, start: range.start, len, format })
    }

    /// A count that is a number or a tensor of one.
    fn num_updates(&self, value: Value<'_>) -> Option<u64> {
        if let Some(count) = value.number() {
            return Some(count as u64);
        }
        let buffer = self.buffer(value).ok().filter(|buffer| buffer.len == 1)?;
        let mut bytes = [0; 4];
        if buffer.format != ElementType::F32 {
            return None;
        }
        self.tensors.reader(buffer.file).read_exact_at(buffer.start, &mut bytes).ok()?;
        Some(f32::from_le_bytes(bytes) as u64)
    }
}

/// Number of a stage, which newer versions wrap in an enumeration.
fn stage_of(value: Value<'_>) -> Option<usize> {
    let wrapped = value.call_of("deepspeed.runtime.zero.config", "ZeroStageEnum");
    wrapped.map_or(Some(value), |parts| parts.first().copied())?.count()
}

/// State of the base optimizer of each group: the values of `state`, or a list.
fn groups_of(base: Value<'_>) -> Option<Vec<Value<'_>>> {
    match base.get("state") {
        Some(state) => Some(state.entries()?.into_iter().map(|(_, group)| group).collect()),
        None => base.elements(),
    }
}

fn foreign(path: &Path, reason: &str) -> CheckpointError {
    CheckpointError::Foreign { path: path.to_owned(), reason: quoted(reason) }
}

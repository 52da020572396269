//! Diagnosis of non-finite gradients, and the check that all replicas hold the same weights.
//!
//! Every rank knows every micro-batch's loss and the global gradient norm, so all ranks notice a
//! non-finite value together, before the step, at no cost. Only then is its origin searched. The
//! weights have not changed, so the micro-batches are run once more, each block's gradient is
//! checked by itself, and all ranks find the same first micro-batch, block and tensor.

use crate::buffer::Floats;
use crate::microbatch::Store;
use crate::param_store::ParamStore;
use crate::pipeline::Job;
use crate::programs::Segment;
use crate::replica::Replica;
use lockstep_comm::CommError;
use lockstep_config::LossScale;
use lockstep_model::{Blueprint, Grads, Microbatch, Mode};
use lockstep_schedule::step::{Program, TaskId, TaskOp};
use lockstep_tensor::device::{Result as DeviceResult, View};
use lockstep_tensor::{Cpu, reduce};
use std::cmp::Reverse;

/// The first non-finite gradient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonFiniteGradient {
    /// Rank that computed it.
    pub worker: usize,
    /// Micro-batch of the batch.
    pub microbatch: usize,
    /// Block: the first in which the micro-batch's backward produced it.
    pub block: String,
    /// Parameter.
    pub name: String,
    /// Element of the parameter.
    pub element: usize,
}

/// A tensor that differs between replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightMismatch {
    /// Tensor name.
    pub name: String,
    /// First rank whose values differ from those of rank 0.
    pub worker: usize,
}

impl Replica {
    /// Runs the micro-batches of a step again to find the first non-finite gradient. Collective;
    /// all ranks return the same result, `None` where every micro-batch's gradients are finite and
    /// only their sum is not.
    pub fn find_non_finite<'a>(
        &mut self,
        cpu: &Cpu,
        seed: u64,
        step: u64,
        microbatch: &dyn Fn(usize) -> Microbatch<'a>,
    ) -> Result<Option<NonFiniteGradient>, CommError> {
        let loss_scale = self.loss_scale.unwrap_or(LossScale::ONE);
        let Self { blueprint, losses, device, scratch, store, programs, .. } = self;
        let longest = blueprint.blocks.iter().map(|block| block.num_params()).max().unwrap_or(0);
        let num_microbatches = vec![0; blueprint.blocks.len()];
        let grads = store.overlap.private(longest)?;
        let mut inspector = Inspector { store, blueprint, grads, num_microbatches, found: None };
        let numbers = losses.own_microbatches();
        device.run(
            &mut inspector,
            &mut Job {
                blueprint,
                cpu,
                mode: Mode::Train { seed, step, loss_scale },
                scratch,
                num_microbatches: numbers.len(),
                microbatch: &|index| microbatch(numbers[index]),
                should_run: &|_| true,
                loss: &mut |_, _| {},
                done: &|_| {},
            },
            &programs.training.program,
            programs.training.segment(Segment::Passes),
        )?;
        let first = inspector.found.map(|(index, Reverse(block), param, element)| {
            // Backward reaches the last block first.
            [numbers[index], usize::MAX - block, param, element].map(|number| number as u64)
        });
        let control = self.store.overlap.control();
        let mut all = vec![u64::MAX; 4 * control.group_size()];
        control.all_gather(&first.unwrap_or([u64::MAX; 4]), &mut all)?;
        let (found, _) = all.as_chunks::<4>();
        let found = found.iter().enumerate().min_by_key(|(_, at)| **at);
        let found = found.filter(|(_, at)| at[0] != u64::MAX);
        Ok(found.map(|(worker, at)| {
            let [microbatch, block, param, element] = at.map(|n| n as usize);
            let block = &self.blueprint.blocks[usize::MAX - block];
            let (param, block) = (&block.params()[param], block.name().to_owned());
            let held = self.blueprint.shards.num_local();
            let index = match param.piece.num {
                1 => 0,
                _ => self.groups.tp_rank_of(worker) * held + param.piece.index % held,
            };
            let param = param.sibling(index);
            let (_, element) = param.runs(element..element + 1).next().expect("its element");
            let name = param.name;
            NonFiniteGradient { worker, microbatch, block, name, element }
        }))
    }

    /// Compares the replicas tensor by tensor; always `None` where parameters are sharded.
    pub fn find_difference(&mut self) -> Result<Option<WeightMismatch>, CommError> {
        if self.plan.zero == 3 {
            return Ok(None);
        }
        let mut names = Vec::new();
        let mut hashes = Vec::new();
        self.visit_params::<CommError>(|param, values| {
            let mut hasher = blake3::Hasher::new();
            for value in values {
                hasher.update(&value.to_bits().to_le_bytes());
            }
            let hash = hasher.finalize();
            let (prefixes, _) = hash.as_bytes().as_chunks::<8>();
            names.push(param.name.clone());
            hashes.push(u64::from_le_bytes(prefixes[0]));
            Ok(())
        })?;
        let control = self.store.overlap.control();
        let mut all = vec![0; hashes.len() * control.group_size()];
        control.all_gather(&hashes, &mut all)?;
        let by_worker: Vec<&[u64]> = all.chunks_exact(hashes.len()).collect();
        let differs = names.into_iter().enumerate().find_map(|(tensor, name)| {
            let is_other = |hashes: &&[u64]| hashes[tensor] != by_worker[0][tensor];
            // A rank gets the tensors of other stages from its own pipeline.
            let part = self.groups.dp_rank_of(by_worker.iter().position(is_other)?);
            let (block, _) = self.blueprint.params().find(|(_, param)| param.name == name)?;
            let worker = self.groups.first_rank_at(self.plan.stages.device_of(block), part);
            Some(WeightMismatch { name, worker })
        });
        Ok(differs)
    }
}

/// Checks every block's gradient of a micro-batch and discards it.
struct Inspector<'a> {
    store: &'a mut ParamStore,
    blueprint: &'a Blueprint,
    grads: Floats,
    /// Number of micro-batches checked, by block.
    num_microbatches: Vec<usize>,
    /// Micro-batch, block, parameter and element.
    found: Option<(usize, Reverse<usize>, usize, usize)>,
}

impl Store for Inspector<'_> {
    fn arrive(&mut self, block: usize) -> Result<(), CommError> {
        self.store.arrive(block)
    }

    fn params(&self, block: usize) -> DeviceResult<View<'_>> {
        self.store.params(block)
    }

    fn params_and_grads(
        &mut self,
        cpu: &Cpu,
        block: usize,
        _leaf: Option<u32>,
    ) -> DeviceResult<(View<'_>, Grads<'_>)> {
        let runs = &self.store.trained().of_block[block];
        let (device, grads) = self.grads.on_device(cpu)?;
        let mut grads = grads.range(0..runs.iter().map(ExactSizeIterator::len).sum());
        device.fill(grads.reborrow(), 0.0)?;
        Ok((self.store.params(block)?, Grads::new(grads, runs)))
    }

    fn first_trained(&self) -> usize {
        self.store.first_trained()
    }

    fn finish_grads(&mut self, cpu: &Cpu, block: usize) -> Result<(), CommError> {
        let mut rest = &self.grads[..];
        let params = self.blueprint.blocks[block].params().iter().enumerate();
        let bad = params.filter_map(|(index, param)| {
            let runs = &self.store.trained().of_block[block];
            if !runs.iter().any(|run| run.contains(&param.range().start)) {
                return None;
            }
            let (own, behind) = rest.split_at(param.len());
            rest = behind;
            let element = reduce::first_non_finite(cpu, own)?;
            Some((self.num_microbatches[block], Reverse(block), index, element))
        });
        let first = bad.min();
        self.found = [self.found, first].into_iter().flatten().min();
        self.num_microbatches[block] += 1;
        Ok(())
    }

    fn communicate(&mut self, cpu: &Cpu, program: &Program, task: TaskId) -> Result<(), CommError> {
        match program.tasks[task.0 as usize].op {
            TaskOp::GatherParams { .. } | TaskOp::ReleaseParams { .. } => {
                self.store.communicate(cpu, program, task)
            }
            // Gradients are checked here and go nowhere.
            _ => Ok(()),
        }
    }
}

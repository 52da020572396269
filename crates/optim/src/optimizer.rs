//! The optimizer of a rank: state, and the walk of an update rule over flat buffers.
//!
//! The optimizer updates the flat buffers of the blocks and keeps its state (momentum, first and
//! second moments) in flat buffers too, for the parameters it owns. Every rule
//! (`crates/optim/src/rules`) works element by element, so any rank can update any part of a buffer
//! with equal results. Quantities that depend on the step alone (learning rate, bias corrections)
//! are computed first, in `f64`.
//!
//! LARS and LAMB need norms of whole tensors, of which a rank may own a part. A step therefore has
//! two halves: [`Optimizer::prepare_block`] turns the gradient buffer into the quantity to measure
//! (the gradient itself, or LAMB's direction), the caller reduces the norms over all ranks into
//! [`Optimizer::norms_mut`], and [`Optimizer::step_block`] updates the parameters. Vectors (norms
//! and biases) and tensors of zeros have a trust ratio of one. Muon needs whole hidden matrices:
//! the caller gathers their directions between the two halves and orthogonalises them
//! ([`crate::newton_schulz`]). Adafactor needs every tensor whole: the caller gathers the gradients
//! and replaces them by [`Optimizer::factored_direction`] before the step.

use crate::Slot;
use crate::eight_bit::{self, CodedMoments};
use crate::factored::{FactoredMoments, num_moments};
use crate::rule::{GroupOptions, RuleDescription, SpanStep, StateViews, UpdateRule};
use crate::rules::rule_of;
use crate::state::{BlockStates, PIECE_LEN, StateBuffer, StateError};
use crate::update::{TensorNorms, Update, UpdateInputs, WholeTensors};
use lockstep_config::{Optim, OptimName};
use lockstep_platform::{FileError, Paged};
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{
    Device, DualBuffer, MAX_STATE_BUFFERS, Result as DeviceResult, View, ViewMut,
};
use std::ops::Range;
use std::sync::Arc;

/// Optimizer of one rank.
#[derive(Debug)]
pub struct Optimizer {
    settings: Optim,
    blocks: Vec<BlockState>,
    slots: Vec<Slot>,
    norms: TensorNorms,
    /// Second moments of whole tensors, of which every rank that steps a part keeps all.
    factored: Option<FactoredMoments>,
    /// Moments of eight bits, of the slots of large tensors.
    coded: Vec<CodedMoments>,
    /// Number of steps after which second moments are frozen (1-bit Adam).
    frozen_after: Option<u64>,
    /// First disk error of offloaded state.
    failure: Option<FileError>,
    /// A piece of offloaded state on the accelerator.
    staging: [DualBuffer; MAX_STATE_BUFFERS],
}

/// Optimizer state of one block.
#[derive(Debug, Default)]
struct BlockState {
    /// Spans of parameters with equal options.
    spans: Vec<Span>,
    /// No buffers for SGD, one for momentum, two for AdamW.
    state: BlockStates,
    /// Length of each buffer: Muon has second moments of some parameters only.
    lens: StateLens,
}

/// Elements of each state buffer.
type StateLens = [usize; MAX_STATE_BUFFERS];

/// Consecutive parameters of the flat buffers with equal options.
#[derive(Debug)]
struct Span {
    params: Range<usize>,
    grads: Range<usize>,
    state: Range<usize>,
    options: GroupOptions,
}

impl Optimizer {
    /// Makes zeroed state for the parameters in `slots`, at the start of a run.
    pub fn new(settings: &Optim, slots: &[Slot]) -> Self {
        Self::at_step(settings, slots, 0)
    }

    /// Makes zeroed state for the parameters in `slots`, which are those trained in `step`.
    pub fn at_step(settings: &Optim, slots: &[Slot], step: u64) -> Self {
        Self::on_device(settings, slots, step, None).expect("memory of the host")
    }

    /// Like [`Self::at_step`], with state in the memory of an accelerator, if there is one.
    pub fn on_device(
        settings: &Optim,
        slots: &[Slot],
        step: u64,
        accelerator: Option<&Arc<dyn Device>>,
    ) -> DeviceResult<Self> {
        let (mut optimizer, lens) = Self::without_state(settings, slots, step);
        let zeros = |len| DualBuffer::zeros(accelerator, len).map(StateBuffer::Memory);
        let buffers: Vec<_> = lens.into_iter().map(zeros).collect::<DeviceResult<_>>()?;
        optimizer.attach_state(buffers.into_iter());
        Ok(optimizer)
    }

    /// Uses pieces of offloaded state in the memory of an accelerator.
    pub fn stage_on(&mut self, accelerator: &Arc<dyn Device>) -> DeviceResult<()> {
        let lens = piece_lens(self.blocks.iter().map(|block| block.lens));
        for (staging, len) in self.staging.iter_mut().zip(lens).filter(|(_, len)| *len > 0) {
            *staging = DualBuffer::zeros(Some(accelerator), len)?;
        }
        Ok(())
    }

    /// Makes zeroed state offloaded to a file, which `make` creates: one buffer of zeros per
    /// length.
    pub fn in_file(
        settings: &Optim,
        slots: &[Slot],
        step: u64,
        make: impl FnOnce(&[usize]) -> Result<Vec<Box<dyn Paged>>, FileError>,
    ) -> Result<Self, FileError> {
        let (mut optimizer, lens) = Self::without_state(settings, slots, step);
        optimizer.attach_state(make(&lens)?.into_iter().map(StateBuffer::File));
        Ok(optimizer)
    }

    /// Makes an optimizer without state, and the length of every state buffer of every block.
    fn without_state(settings: &Optim, slots: &[Slot], step: u64) -> (Self, Vec<usize>) {
        let num_blocks = slots.iter().map(|slot| slot.block + 1).max().unwrap_or(0);
        let mut blocks: Vec<_> = (0..num_blocks).map(|_| BlockState::default()).collect();
        let rule = rule_of(settings.name).describe();
        for slot in slots {
            blocks[slot.block].push(slot, GroupOptions::of(settings, &rule, slot, step));
        }
        for block in &mut blocks {
            block.place_state(&rule);
        }
        let num_states = Self::num_states(settings.name);
        let lens = blocks.iter().flat_map(|block| block.lens.into_iter().take(num_states));
        let lens = lens.collect();
        let of_tensor = |slot| (slot, GroupOptions::of(settings, &rule, slot, step));
        let factored = (rule.inputs.whole == WholeTensors::All)
            .then(|| FactoredMoments::new(slots.iter().map(of_tensor)));
        let coded = slots.iter().filter(|slot| rule.codes(slot)).map(of_tensor);
        let coded = coded.map(|(slot, options)| CodedMoments::new(slot, options)).collect();
        let (settings, slots, norms) = (settings.clone(), slots.to_vec(), TensorNorms::default());
        let (frozen_after, failure, staging) = (None, None, Default::default());
        let optimizer = Self {
            settings,
            blocks,
            slots,
            norms,
            factored,
            coded,
            frozen_after,
            failure,
            staging,
        };
        (optimizer, lens)
    }

    fn attach_state(&mut self, mut buffers: impl Iterator<Item = StateBuffer>) {
        let num_states = Self::num_states(self.settings.name);
        for block in &mut self.blocks {
            block.state = BlockStates(buffers.by_ref().take(num_states).collect());
            let lens = block.state.0.iter().map(StateBuffer::len);
            assert!(lens.eq(block.lens.into_iter().take(num_states)), "as requested");
        }
    }

    /// Starts reading the first state that the next step needs, where state is offloaded.
    pub fn read_ahead(&self) {
        if let Some(first) = self.blocks.iter().find(|block| block.lens[0] > 0) {
            first.state.read_first();
        }
    }

    /// Returns the first disk error of offloaded state. After an error the state is not that of any
    /// step.
    pub fn check(&self) -> Result<(), FileError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Copies the state of every parameter that `other` updates as well.
    pub fn copy_state_from(&mut self, other: &Self) {
        for slot in self.slots.clone() {
            for kind in 0..self.state_names().len() {
                if let Some(state) = other.state(&slot.name, slot.piece, kind) {
                    let own = self.state_mut(&slot.name, slot.piece, kind).expect("its own slot");
                    own.copy_from_slice(state);
                }
            }
        }
        for own in &mut self.coded {
            if let Some(other) = other.coded_of(&own.slot.name, own.slot.piece) {
                own.blocks.clone_from(&other.blocks);
            }
        }
        if let (Some(own), Some(other)) = (&mut self.factored, &other.factored) {
            own.copy_from(other);
        }
    }

    /// Starts state that follows the parameters at their values, which `params` returns by slot.
    pub fn start_at<'a>(&mut self, params: impl Fn(&Slot) -> &'a [f32]) {
        for &kind in self.description().starts_at_params {
            for slot in self.slots.clone() {
                let own = self.state_mut(&slot.name, slot.piece, kind).expect("its own slot");
                own.copy_from_slice(params(&slot));
            }
        }
    }

    /// Whether evaluations and files use averages that the state holds, not the parameters.
    pub fn has_averages(&self) -> bool {
        self.description().averages.is_some()
    }

    /// Exchanges parameters and their averages, where the state holds some; `params` returns the
    /// parameters by slot.
    pub fn swap_averages(&mut self, mut params: impl FnMut(&Slot, &mut [f32])) {
        let Some(kind) = self.description().averages else { return };
        for slot in &self.slots {
            let block = &mut self.blocks[slot.block];
            let range = block.state_range(slot);
            params(slot, &mut block.state.0[kind].whole_mut()[range]);
        }
    }

    /// Freezes second moments after `num_steps` steps (1-bit Adam, Tang et al. 2021). An element
    /// without a gradient so far has a second moment of zero and would take an unbounded step; it
    /// gets its tensor's mean.
    pub fn freeze_second_moments(&mut self, num_steps: u64) {
        self.frozen_after = Some(num_steps);
        let Some(kind) = self.state_names().iter().position(|name| *name == "v") else { return };
        for slot in self.slots.clone() {
            let state = self.state_mut(&slot.name, slot.piece, kind).expect("its own slot");
            let sum = state.iter().fold(0.0, |sum, v| sum + f64::from(*v));
            let mean = (sum / state.len() as f64) as f32;
            state.iter_mut().filter(|v| **v == 0.0).for_each(|v| *v = mean);
        }
    }

    /// Inputs of a step, which the caller provides.
    pub fn inputs(&self) -> UpdateInputs {
        self.description().inputs
    }

    /// Inputs of a step of the rule of this name.
    pub fn inputs_of(name: OptimName) -> UpdateInputs {
        rule_of(name).describe().inputs
    }

    fn description(&self) -> RuleDescription {
        self.rule().describe()
    }

    fn rule(&self) -> &'static dyn UpdateRule {
        rule_of(self.settings.name)
    }

    /// Norms of this step, for the caller to set.
    pub const fn norms_mut(&mut self) -> &mut TensorNorms {
        &mut self.norms
    }

    /// Turns the gradients of one block into the quantity to measure or to orthogonalise: LAMB and
    /// Muon update their moments and leave the direction of their step. Other rules leave gradients
    /// unchanged.
    pub fn prepare_on(
        &mut self,
        device: &dyn Device,
        update: &Update,
        block: usize,
        params: View<'_>,
        mut grads: ViewMut<'_>,
    ) -> DeviceResult<()> {
        let rule = self.rule();
        if !self.inputs().directions {
            return Ok(());
        }
        let Self { settings, blocks, norms, frozen_after, failure, staging, .. } = self;
        let (settings, norms, frozen_after) = (&*settings, &*norms, *frozen_after);
        walk(blocks, block, (failure, staging), |part, state| {
            let options = &part.options;
            let step = SpanStep { settings, update, options, norms, frozen_after };
            let grads = grads.reborrow().range(part.grads);
            rule.prepare(&step, device, params.range(part.params), grads, state)
        })
    }

    /// Updates the parameters of one block by their gradients; both are the block's flat buffers.
    /// A rounded copy of the parameters is updated with them, unless it is empty. Disk errors of
    /// offloaded state appear in [`Self::check`].
    pub fn step_on(
        &mut self,
        device: &dyn Device,
        update: &Update,
        block: usize,
        (mut params, mut copy): (ViewMut<'_>, ViewMut<'_>),
        grads: View<'_>,
    ) -> DeviceResult<()> {
        let rule = self.rule();
        let Self { settings, blocks, norms, coded, frozen_after, failure, staging, .. } = self;
        let (settings, norms, frozen_after) = (&*settings, &*norms, *frozen_after);
        for CodedMoments { slot, options, blocks } in
            coded.iter_mut().filter(|it| it.slot.block == block)
        {
            let step = SpanStep { settings, update, options, norms, frozen_after }.adam_step();
            let (rounded, g) = (part_of(&mut copy, &slot.range), grads.range(slot.grads.clone()));
            let p = params.reborrow().range(slot.range.clone());
            device.adamw_8bit(&step, p, g, blocks, rounded)?;
        }
        let step = |part: SpanPart, state: StateViews<'_>| {
            let SpanPart { params: at, grads: grads_at, options } = part;
            let step = SpanStep { settings, update, options: &options, norms, frozen_after };
            let rounded = part_of(&mut copy, &at);
            let p = params.reborrow().range(at);
            device.optimizer_step(&rule.kernel(&step), p, grads.range(grads_at), state, rounded)
        };
        if rule.describe().steps_with_state {
            walk(blocks, block, (failure, staging), step)
        } else {
            for_each_span(blocks, block, step)
        }
    }

    /// Like [`Self::prepare_on`], for buffers in host memory.
    pub fn prepare_block(
        &mut self,
        cpu: &Cpu,
        update: &Update,
        block: usize,
        params: &[f32],
        grads: &mut [f32],
    ) {
        self.prepare_on(cpu, update, block, View::of(params), ViewMut::of(grads))
            .expect("the CPU has every rule");
    }

    /// Like [`Self::step_on`], for buffers in host memory.
    pub fn step_block(
        &mut self,
        cpu: &Cpu,
        update: &Update,
        block: usize,
        params: &mut [f32],
        grads: &[f32],
    ) {
        self.step_on(cpu, update, block, (ViewMut::of(params), nothing()), View::of(grads))
            .expect("the CPU has every rule");
    }

    /// Names of the state buffers of a parameter.
    pub fn state_names(&self) -> &'static [&'static str] {
        self.description().state_names
    }

    /// Parameters that this optimizer updates.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Updates the factored second moments of a whole tensor from its gradients, and replaces those
    /// by the direction of the step; `sums` has a number for each row and column.
    pub fn factored_direction(
        &mut self,
        cpu: &Cpu,
        update: &Update,
        tensor: usize,
        grads: &mut [f32],
        sums: &mut [f64],
    ) {
        let factored = self.factored.as_mut().expect("a rule with factored moments");
        factored.direction(cpu, update, tensor, grads, sums);
    }

    /// Number of state values of the parameters in `slots` in files; factored moments are those of
    /// whole tensors.
    pub fn num_state_values<'a>(
        name: OptimName,
        slots: impl IntoIterator<Item = &'a Slot>,
    ) -> usize {
        let rule = rule_of(name).describe();
        if rule.inputs.whole == WholeTensors::All {
            return num_moments(slots);
        }
        let values = |slot: &Slot| slot.range.len() * rule.num_buffers(slot.matrix);
        slots.into_iter().map(values).sum()
    }

    /// Number of state values per parameter, at most.
    pub fn num_states(name: OptimName) -> usize {
        rule_of(name).describe().state_names.len()
    }

    /// Number of `f32` of state in memory at once.
    pub fn resident_len(&self) -> usize {
        let buffers = self.blocks.iter().flat_map(|block| &block.state.0);
        let is_offloaded = buffers.clone().any(|buffer| matches!(buffer, StateBuffer::File(_)));
        if let Some(factored) = &self.factored {
            return factored.len();
        }
        Self::planned_len(self.settings.name, &self.slots, is_offloaded)
    }

    /// Number of `f32` of state in memory at once, for the parameters in `slots`.
    pub fn planned_len(name: OptimName, slots: &[Slot], is_offloaded: bool) -> usize {
        let rule = rule_of(name).describe();
        if rule.codes_large {
            let (large, small): (Vec<_>, Vec<_>) = slots.iter().partition(|slot| rule.codes(slot));
            let coded: usize = large.into_iter().map(eight_bit::planned_len).sum();
            return coded + Self::num_state_values(name, small);
        }
        if !is_offloaded || rule.inputs.whole == WholeTensors::All {
            return Self::num_state_values(name, slots);
        }
        let num_blocks = slots.iter().map(|slot| slot.block + 1).max().unwrap_or(0);
        let mut lens = vec![StateLens::default(); num_blocks];
        for slot in slots {
            for len in &mut lens[slot.block][..rule.num_buffers(slot.matrix)] {
                *len += slot.range.len();
            }
        }
        piece_lens(lens.into_iter()).iter().sum()
    }
}

/// Elements of each state buffer that are in memory at once when state is offloaded, for blocks
/// with buffers of these lengths.
fn piece_lens(blocks: impl Iterator<Item = StateLens>) -> StateLens {
    blocks.fold(StateLens::default(), |mut most, lens| {
        for (most, len) in most.iter_mut().zip(lens) {
            *most = (*most).max(len.min(PIECE_LEN));
        }
        most
    })
}

/// Part of a span whose state is in one piece.
struct SpanPart {
    params: Range<usize>,
    grads: Range<usize>,
    options: GroupOptions,
}

/// Calls `work` with every span part of a block and its state buffers. Does nothing after a disk
/// error.
fn walk(
    blocks: &mut [BlockState],
    block: usize,
    (failure, staging): (&mut Option<FileError>, &mut [DualBuffer; MAX_STATE_BUFFERS]),
    mut work: impl FnMut(SpanPart, StateViews<'_>) -> DeviceResult<()>,
) -> DeviceResult<()> {
    // A block without own parameters may follow the last one that has some.
    if failure.is_some() || block >= blocks.len() {
        return Ok(());
    }
    let (before, behind) = blocks.split_at_mut(block + 1);
    let BlockState { spans, state, .. } = &mut before[block];
    let next = behind.iter().find(|block| block.lens[0] > 0).map(|block| &block.state);
    let walked = state.walk(next, staging, |piece, mut buffers| {
        spans.iter().filter_map(|span| span.part(&piece)).try_for_each(|(part, at)| {
            work(part, buffers.each_mut().map(|buffer| part_of(buffer, &at)))
        })
    });
    match walked {
        Err(StateError::Device(error)) => Err(error),
        Err(StateError::File(error)) => {
            *failure = Some(error);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Calls `work` with every span of a block, without state.
fn for_each_span(
    blocks: &[BlockState],
    block: usize,
    mut work: impl FnMut(SpanPart, StateViews<'_>) -> DeviceResult<()>,
) -> DeviceResult<()> {
    let Some(BlockState { spans, .. }) = blocks.get(block) else { return Ok(()) };
    spans.iter().try_for_each(|Span { params, grads, options, .. }| {
        let (params, grads, options) = (params.clone(), grads.clone(), *options);
        work(SpanPart { params, grads, options }, [(); MAX_STATE_BUFFERS].map(|()| nothing()))
    })
}

/// Part of a state buffer; nothing where the rule has no such buffer, or not for these parameters.
fn part_of<'a>(buffer: &'a mut ViewMut<'_>, at: &Range<usize>) -> ViewMut<'a> {
    if buffer.len() < at.end { nothing() } else { buffer.reborrow().range(at.clone()) }
}

/// No elements.
fn nothing() -> ViewMut<'static> {
    ViewMut::of::<f32>(&mut [])
}

impl Span {
    /// Part of the span whose state is in `piece`, and its range within the piece.
    fn part(&self, piece: &Range<usize>) -> Option<(SpanPart, Range<usize>)> {
        let start = self.state.start.max(piece.start);
        let len = self.state.end.min(piece.end).checked_sub(start).filter(|len| *len > 0)?;
        let skipped = start - self.state.start;
        let from = |range: &Range<usize>| range.start + skipped..range.start + skipped + len;
        let (params, grads) = (from(&self.params), from(&self.grads));
        let at = start - piece.start;
        Some((SpanPart { params, grads, options: self.options }, at..at + len))
    }
}

impl BlockState {
    fn push(&mut self, slot: &Slot, options: GroupOptions) {
        match self.spans.last_mut() {
            Some(last) if last.params.end > slot.range.start => {
                panic!("{} is out of order in its block", slot.name);
            }
            Some(last)
                if last.params.end == slot.range.start
                    && last.grads.end == slot.grads.start
                    && last.options == options =>
            {
                last.params.end = slot.range.end;
                last.grads.end = slot.grads.end;
            }
            _ => {
                let (params, grads) = (slot.range.clone(), slot.grads.clone());
                self.spans.push(Span { params, grads, state: 0..0, options });
            }
        }
    }

    /// Gives every span its range of the state buffers: those with more buffers come first, so that
    /// each buffer is as long as its users need.
    fn place_state(&mut self, rule: &RuleDescription) {
        for num_buffers in (1..=MAX_STATE_BUFFERS).rev() {
            for span in &mut self.spans {
                let is_coded = span.options.is_coded;
                if !is_coded && rule.num_buffers(span.options.matrix) == num_buffers {
                    span.state = self.lens[0]..self.lens[0] + span.params.len();
                    for len in &mut self.lens[..num_buffers] {
                        *len += span.params.len();
                    }
                }
            }
        }
    }

    /// Range of a parameter in the state buffers.
    fn state_range(&self, slot: &Slot) -> Range<usize> {
        let span = self
            .spans
            .iter()
            .find(|span| span.params.contains(&slot.range.start))
            .expect("every slot is in a span");
        let start = span.state.start + slot.range.start - span.params.start;
        start..start + slot.range.len()
    }
}

mod saved_state;

#[cfg(test)]
mod tests;

//! From a gradient to a step: SGD, momentum, Nesterov, Adam, AdamW, LARS, LAMB.
//!
//! The optimizer walks over the flat buffers of the blocks and keeps its state (velocities, running
//! means) just as flat, for the parameters it owns. Every rule works element by element, so any
//! part of a buffer can be stepped anywhere with the same result. Whatever depends on the step
//! alone (learning rate, bias corrections) is computed first, in `f64`.
//!
//! LARS and LAMB need norms of whole tensors, of which a worker may own a part. So a step has two
//! halves: [`Optimizer::prepare_block`] brings the gradient's buffer to what is measured (the
//! gradient itself, or LAMB's direction), somebody measures all workers' parts and puts the norms
//! into [`Optimizer::norms_mut`], and [`Optimizer::step_block`] steps. Vectors (norms and biases)
//! and tensors of zeros have a ratio of one.

use crate::Slot;
use crate::clip::{Clip, class_of_group};
use crate::state::{Kept, Kinds, PIECE_LEN};
use lockstep_config::{Optim, OptimName};
use lockstep_platform::{FileError, Paged};
use lockstep_tensor::adamw::{self, AdamwStep};
use lockstep_tensor::math::scalar;
use lockstep_tensor::{Cpu, adam, lamb, lars, nesterov, sgd};
use std::ops::Range;

/// The optimizer of one worker.
#[derive(Debug)]
pub struct Optimizer {
    settings: Optim,
    blocks: Vec<BlockState>,
    slots: Vec<Slot>,
    norms: TensorNorms,
    /// The number of steps after which second moments stay as they are.
    settled: Option<u64>,
    /// The first thing that went wrong with state that lies in a file.
    failure: Option<FileError>,
}

/// The state of one block.
#[derive(Debug, Default)]
struct BlockState {
    /// Stretches of parameters that are stepped alike.
    spans: Vec<Span>,
    /// One buffer per kind of state: none for SGD, one for momentum, two for AdamW.
    state: Kinds,
    len: usize,
}

/// Parameters that follow each other in the flat buffers and are treated alike.
#[derive(Debug)]
struct Span {
    params: Range<usize>,
    grads: Range<usize>,
    state: Range<usize>,
    treatment: Treatment,
}

/// What may differ from one parameter to another.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Treatment {
    /// On the learning rate of the step.
    lr_scale: f64,
    weight_decay: f64,
    /// Whose clipping it shares.
    clip_class: usize,
    /// The first step that its state knows of.
    since: u64,
    /// The tensor whose norms decide how long the step is, for rules that ask.
    measured: Option<usize>,
}

/// One step's numbers, the same for all parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Number of steps that were taken, this one included: 1 for the first. What was skipped does
    /// not count.
    pub count: u64,
    /// The learning rate.
    pub lr: f64,
    /// What gradients are multiplied with first.
    pub clip: Clip,
}

/// Euclidean norms by [`Slot::tensor`].
#[derive(Clone, Debug, Default)]
pub struct TensorNorms {
    /// Of the parameters.
    pub params: Vec<f64>,
    /// Of what [`Optimizer::prepare_block`] left in the gradients' buffers.
    pub steps: Vec<f64>,
}

impl Optimizer {
    /// State of zeros for the parameters in `slots`, at the beginning of a run.
    pub fn new(settings: &Optim, slots: &[Slot]) -> Self {
        Self::at_step(settings, slots, 0)
    }

    /// State of zeros for the parameters in `slots`, which are those that are trained in `step`.
    pub fn at_step(settings: &Optim, slots: &[Slot], step: u64) -> Self {
        let (mut optimizer, lens) = Self::without_state(settings, slots, step);
        optimizer.keep(lens.into_iter().map(|len| Kept::Here(vec![0.0; len])));
        optimizer
    }

    /// The same with state that lies in a file, which `make` makes: zeros in stretches of the
    /// lengths that it is given.
    pub fn in_file(
        settings: &Optim,
        slots: &[Slot],
        step: u64,
        make: impl FnOnce(&[usize]) -> Result<Vec<Box<dyn Paged>>, FileError>,
    ) -> Result<Self, FileError> {
        let (mut optimizer, lens) = Self::without_state(settings, slots, step);
        optimizer.keep(make(&lens)?.into_iter().map(Kept::Away));
        Ok(optimizer)
    }

    /// What state there will be: a length for every kind of every block.
    fn without_state(settings: &Optim, slots: &[Slot], step: u64) -> (Self, Vec<usize>) {
        let num_blocks = slots.iter().map(|slot| slot.block + 1).max().unwrap_or(0);
        let mut blocks: Vec<_> = (0..num_blocks).map(|_| BlockState::default()).collect();
        for slot in slots {
            blocks[slot.block].push(slot, Treatment::of(settings, slot, step));
        }
        let num_states = Self::num_states(settings.name);
        let lens = blocks.iter().flat_map(|b| std::iter::repeat_n(b.len, num_states)).collect();
        let (settings, slots, norms) = (settings.clone(), slots.to_vec(), TensorNorms::default());
        (Self { settings, blocks, slots, norms, settled: None, failure: None }, lens)
    }

    fn keep(&mut self, mut kept: impl Iterator<Item = Kept>) {
        let num_states = Self::num_states(self.settings.name);
        for block in &mut self.blocks {
            block.state = Kinds(kept.by_ref().take(num_states).collect());
            assert!(block.state.0.iter().all(|kind| kind.len() == block.len), "as asked for");
        }
    }

    /// Begins to read what the next step needs first, where it lies in a file.
    pub fn read_ahead(&self) {
        if let Some(first) = self.blocks.iter().find(|block| block.len > 0) {
            first.state.read_first();
        }
    }

    /// Whether the disk has done what it was asked for; after an error the state is not that of
    /// any step.
    pub fn check(&self) -> Result<(), FileError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Takes over the state of every parameter that `other` steps as well.
    pub fn continue_from(&mut self, other: &Self) {
        for slot in self.slots.clone() {
            for kind in 0..self.kinds().len() {
                if let Some(state) = other.state(&slot.name, slot.piece, kind) {
                    let own = self.state_mut(&slot.name, slot.piece, kind).expect("its own slot");
                    own.copy_from_slice(state);
                }
            }
        }
    }

    /// Second moments stay as they are from here on, after so many steps (1-bit Adam). An element
    /// that had no gradient yet would be stepped without measure; it gets its tensor's mean.
    pub fn settle_second_moments(&mut self, num_steps: u64) {
        self.settled = Some(num_steps);
        let Some(kind) = self.kinds().iter().position(|kind| *kind == "v") else { return };
        for slot in self.slots.clone() {
            let state = self.state_mut(&slot.name, slot.piece, kind).expect("its own slot");
            let sum = state.iter().fold(0.0, |sum, v| sum + f64::from(*v));
            let mean = (sum / state.len() as f64) as f32;
            state.iter_mut().filter(|v| **v == 0.0).for_each(|v| *v = mean);
        }
    }

    /// Whether a step needs the norms of tensors.
    pub const fn needs_norms(&self) -> bool {
        matches!(self.settings.name, OptimName::Lars | OptimName::Lamb)
    }

    /// Where the norms of this step go, for rules that need them.
    pub const fn norms_mut(&mut self) -> &mut TensorNorms {
        &mut self.norms
    }

    /// Makes what is measured of the gradients of one block: LAMB updates its moments and leaves
    /// the direction of its step. Other rules leave gradients as they are.
    pub fn prepare_block(
        &mut self,
        cpu: &Cpu,
        update: &Update,
        block: usize,
        params: &[f32],
        grads: &mut [f32],
    ) {
        let OptimName::Lamb = self.settings.name else { return };
        let Self { settings, blocks, settled, failure, .. } = self;
        walk(blocks, block, failure, |stretch, state| {
            let step = stretch.treatment.adam_step(settings, update, *settled);
            let [m, v] = state;
            lamb::direction(cpu, &step, &params[stretch.params], &mut grads[stretch.grads], m, v);
        });
    }

    /// Steps the parameters of one block by their gradients; both are the block's flat buffers.
    /// See [`Self::check`] where state lies in a file.
    pub fn step_block(
        &mut self,
        cpu: &Cpu,
        update: &Update,
        block: usize,
        params: &mut [f32],
        grads: &[f32],
    ) {
        let Self { settings, blocks, norms, settled, failure, .. } = self;
        let mu = settings.momentum as f32;
        let step = |stretch: Stretch, [one, two]: [&mut [f32]; 2]| {
            let Stretch { params: at, grads: grads_at, treatment } = stretch;
            let (p, g) = (&mut params[at], &grads[grads_at]);
            let lr = treatment.lr(update) as f32;
            let decay = treatment.weight_decay as f32;
            let scale = update.clip.scale(treatment.clip_class);
            let adam_step = || treatment.adam_step(settings, update, *settled);
            match settings.name {
                OptimName::Sgd => sgd::step(cpu, lr, decay, scale, p, g),
                OptimName::Momentum => sgd::momentum(cpu, lr, mu, decay, scale, p, g, one),
                OptimName::Nesterov => nesterov::step(cpu, lr, mu, decay, scale, p, g, one),
                OptimName::Adam => adam::step(cpu, &adam_step(), p, g, one, two),
                OptimName::AdamW => adamw::step(cpu, &adam_step(), p, g, one, two),
                OptimName::Lars => {
                    let local = treatment.lars_rate(settings, norms, scale);
                    let lr = (treatment.lr(update) * local) as f32;
                    lars::step(cpu, lr, mu, decay, scale, p, g, one);
                }
                OptimName::Lamb => {
                    let lr = (treatment.lr(update) * treatment.lamb_ratio(norms)) as f32;
                    sgd::step(cpu, lr, 0.0, 1.0, p, g);
                }
            }
        };
        match settings.name {
            OptimName::Sgd | OptimName::Lamb => walk_without(blocks, block, step),
            _ => walk(blocks, block, failure, step),
        }
    }

    /// The names of the kinds of state that a parameter has.
    pub fn kinds(&self) -> &'static [&'static str] {
        state_kinds(self.settings.name)
    }

    /// What this optimizer steps.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The state of one kind of what this optimizer steps of a piece of a parameter, if it steps
    /// any of it.
    pub fn state(&self, param: &str, piece: usize, kind: usize) -> Option<&[f32]> {
        let slot = self.slots.iter().find(|slot| slot.name == param && slot.piece == piece)?;
        let block = &self.blocks[slot.block];
        Some(&block.state.0[kind].lend()[block.state_range(slot)])
    }

    /// See [`Self::state`]; to overwrite on restore.
    pub fn state_mut(&mut self, param: &str, piece: usize, kind: usize) -> Option<&mut [f32]> {
        let slot = self.slots.iter().find(|slot| slot.name == param && slot.piece == piece)?;
        let block = &mut self.blocks[slot.block];
        let range = block.state_range(slot);
        Some(&mut block.state.0[kind].lend_mut()[range])
    }

    /// Number of state values that a rule keeps for each parameter.
    pub const fn num_states(name: OptimName) -> usize {
        state_kinds(name).len()
    }

    /// Number of `f32` of state that are in memory at once.
    pub fn resident_len(&self) -> usize {
        let kinds = self.blocks.iter().flat_map(|block| &block.state.0);
        let is_away = kinds.clone().any(|kind| matches!(kind, Kept::Away(_)));
        let lens = self.blocks.iter().map(|block| block.len);
        Self::planned_len(self.settings.name, lens, is_away)
    }

    /// The same, for blocks of which so many parameters will be stepped.
    pub fn planned_len(
        name: OptimName,
        block_lens: impl Iterator<Item = usize>,
        is_away: bool,
    ) -> usize {
        let each = if is_away {
            block_lens.map(|len| len.min(PIECE_LEN)).max().unwrap_or(0)
        } else {
            block_lens.sum()
        };
        Self::num_states(name) * each
    }
}

/// Parameters that are stepped together.
struct Stretch {
    params: Range<usize>,
    grads: Range<usize>,
    treatment: Treatment,
}

/// Calls `work` with the stretches of a block and the state of each, by kind. A failing disk ends
/// it, and all that come after.
fn walk(
    blocks: &mut [BlockState],
    block: usize,
    failure: &mut Option<FileError>,
    mut work: impl FnMut(Stretch, [&mut [f32]; 2]),
) {
    // A block without parameters of its own may lie behind the last one that has some.
    if failure.is_some() || block >= blocks.len() {
        return;
    }
    let (before, behind) = blocks.split_at_mut(block + 1);
    let BlockState { spans, state, .. } = &mut before[block];
    let after = behind.iter().find(|block| block.len > 0).map(|block| &block.state);
    *failure = state
        .walk(after, |piece, mut kinds| {
            for (stretch, at) in spans.iter().filter_map(|span| span.part(&piece)) {
                work(stretch, kinds.each_mut().map(|k| k.get_mut(at.clone()).unwrap_or_default()));
            }
        })
        .err();
}

/// The same without the state.
fn walk_without(
    blocks: &[BlockState],
    block: usize,
    mut work: impl FnMut(Stretch, [&mut [f32]; 2]),
) {
    let Some(BlockState { spans, .. }) = blocks.get(block) else { return };
    for Span { params, grads, treatment, .. } in spans {
        let (params, grads, treatment) = (params.clone(), grads.clone(), *treatment);
        work(Stretch { params, grads, treatment }, <[&mut [f32]; 2]>::default());
    }
}

impl Span {
    /// What of it has its state in a piece of the block's, and where in the piece that is.
    fn part(&self, piece: &Range<usize>) -> Option<(Stretch, Range<usize>)> {
        let start = self.state.start.max(piece.start);
        let len = self.state.end.min(piece.end).checked_sub(start).filter(|len| *len > 0)?;
        let skipped = start - self.state.start;
        let from = |range: &Range<usize>| range.start + skipped..range.start + skipped + len;
        let (params, grads) = (from(&self.params), from(&self.grads));
        let at = start - piece.start;
        Some((Stretch { params, grads, treatment: self.treatment }, at..at + len))
    }
}

impl BlockState {
    fn push(&mut self, slot: &Slot, treatment: Treatment) {
        let state = self.len..self.len + slot.range.len();
        self.len = state.end;
        match self.spans.last_mut() {
            Some(last) if last.params.end > slot.range.start => {
                panic!("{} is out of order in its block", slot.name);
            }
            Some(last)
                if last.params.end == slot.range.start
                    && last.grads.end == slot.grads.start
                    && last.treatment == treatment =>
            {
                last.params.end = slot.range.end;
                last.grads.end = slot.grads.end;
                last.state.end = state.end;
            }
            _ => {
                let (params, grads) = (slot.range.clone(), slot.grads.clone());
                self.spans.push(Span { params, grads, state, treatment });
            }
        }
    }

    /// Where the state of a parameter lies.
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

/// Names of the state buffers, in order.
const fn state_kinds(name: OptimName) -> &'static [&'static str] {
    match name {
        OptimName::Sgd => &[],
        OptimName::Momentum | OptimName::Nesterov | OptimName::Lars => &["momentum"],
        OptimName::Adam | OptimName::AdamW | OptimName::Lamb => &["m", "v"],
    }
}

impl Treatment {
    fn of(settings: &Optim, slot: &Slot, step: u64) -> Self {
        let index = settings.group_of(&slot.name);
        let group = index.map(|index| &settings.groups[index]);
        let usual = if slot.decay { settings.weight_decay } else { 0.0 };
        let since = match group {
            Some(group) => group.trained_since(step),
            None => Some(0),
        };
        let asks = matches!(settings.name, OptimName::Lars | OptimName::Lamb);
        Self {
            lr_scale: group.map_or(1.0, |group| group.lr_scale),
            weight_decay: group.and_then(|group| group.weight_decay).unwrap_or(usual),
            clip_class: class_of_group(settings, index),
            since: since.unwrap_or_else(|| panic!("{} is frozen in step {step}", slot.name)),
            measured: (asks && slot.decay).then_some(slot.tensor),
        }
    }

    fn lr(&self, update: &Update) -> f64 {
        update.lr * self.lr_scale
    }

    /// The numbers of a step as Adam and its kin take them.
    fn adam_step(&self, settings: &Optim, update: &Update, settled: Option<u64>) -> AdamwStep {
        // 1 - beta^count: how much of its final weight a running mean has reached.
        let count = (update.count - self.since) as i32;
        let filled = |beta: f64, count: i32| 1.0 - scalar::powi(beta, count);
        // What has settled is kept whole, and is as full as it was.
        let settled = settled.filter(|settled| update.count > *settled);
        let full = settled.map_or(count, |settled| (settled - self.since).max(1) as i32);
        AdamwStep {
            lr: self.lr(update),
            beta1: settings.beta1,
            beta2: if settled.is_some() { 1.0 } else { settings.beta2 },
            eps: settings.eps,
            weight_decay: self.weight_decay,
            bias1: filled(settings.beta1, count),
            bias2: filled(settings.beta2, full),
            grad_scale: update.clip.scale(self.clip_class),
        }
    }

    /// The learning rate of a tensor under LARS, relative to that of the step.
    fn lars_rate(&self, settings: &Optim, norms: &TensorNorms, grad_scale: f32) -> f64 {
        let Some(tensor) = self.measured else { return 1.0 };
        let (param, grad) = (norms.params[tensor], norms.steps[tensor] * f64::from(grad_scale));
        if param > 0.0 && grad > 0.0 {
            settings.trust * param / (grad + self.weight_decay * param)
        } else {
            1.0
        }
    }

    /// How long a tensor is relative to LAMB's direction.
    fn lamb_ratio(&self, norms: &TensorNorms) -> f64 {
        let Some(tensor) = self.measured else { return 1.0 };
        let (param, step) = (norms.params[tensor], norms.steps[tensor]);
        if param > 0.0 && step > 0.0 { param / step } else { 1.0 }
    }
}

#[cfg(test)]
mod tests;

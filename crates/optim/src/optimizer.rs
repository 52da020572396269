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
use lockstep_config::{Optim, OptimName};
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
}

/// The state of one block.
#[derive(Debug, Default)]
struct BlockState {
    /// Stretches of parameters that are stepped alike.
    spans: Vec<Span>,
    /// One buffer per kind of state: none for SGD, one for momentum, two for AdamW.
    state: Vec<Vec<f32>>,
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
        let num_blocks = slots.iter().map(|slot| slot.block + 1).max().unwrap_or(0);
        let mut blocks: Vec<_> = (0..num_blocks).map(|_| BlockState::default()).collect();
        for slot in slots {
            blocks[slot.block].push(slot, Treatment::of(settings, slot, step));
        }
        let num_states = Self::num_states(settings.name);
        for block in &mut blocks {
            block.state = (0..num_states).map(|_| vec![0.0; block.len]).collect();
        }
        let norms = TensorNorms::default();
        Self { settings: settings.clone(), blocks, slots: slots.to_vec(), norms, settled: None }
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
        let Some(BlockState { spans, state, .. }) = self.blocks.get_mut(block) else { return };
        let [m, v] = &mut state[..] else { unreachable!("two moments") };
        for Span { params: at, grads: grads_at, state, treatment } in spans {
            let step = treatment.adam_step(&self.settings, update, self.settled);
            let (m, v) = (&mut m[state.clone()], &mut v[state.clone()]);
            let grads = &mut grads[grads_at.clone()];
            lamb::direction(cpu, &step, &params[at.clone()], grads, m, v);
        }
    }

    /// Steps the parameters of one block by their gradients; both are the block's flat buffers.
    pub fn step_block(
        &mut self,
        cpu: &Cpu,
        update: &Update,
        block: usize,
        params: &mut [f32],
        grads: &[f32],
    ) {
        // A block without parameters of its own behind the last one that has some.
        let Some(BlockState { spans, state, .. }) = self.blocks.get_mut(block) else { return };
        let mu = self.settings.momentum as f32;
        for Span { params: at, grads: grads_at, state: state_at, treatment } in spans {
            let (p, g) = (&mut params[at.clone()], &grads[grads_at.clone()]);
            let mut state = state.iter_mut().map(|buffer| &mut buffer[state_at.clone()]);
            let mut next = || state.next().expect("as many buffers as kinds of state");
            let lr = treatment.lr(update) as f32;
            let decay = treatment.weight_decay as f32;
            let scale = update.clip.scale(treatment.clip_class);
            let adam_step = || treatment.adam_step(&self.settings, update, self.settled);
            match self.settings.name {
                OptimName::Sgd => sgd::step(cpu, lr, decay, scale, p, g),
                OptimName::Momentum => sgd::momentum(cpu, lr, mu, decay, scale, p, g, next()),
                OptimName::Nesterov => nesterov::step(cpu, lr, mu, decay, scale, p, g, next()),
                OptimName::Adam => adam::step(cpu, &adam_step(), p, g, next(), next()),
                OptimName::AdamW => adamw::step(cpu, &adam_step(), p, g, next(), next()),
                OptimName::Lars => {
                    let local = treatment.lars_rate(&self.settings, &self.norms, scale);
                    let lr = (treatment.lr(update) * local) as f32;
                    lars::step(cpu, lr, mu, decay, scale, p, g, next());
                }
                OptimName::Lamb => {
                    let lr = (treatment.lr(update) * treatment.lamb_ratio(&self.norms)) as f32;
                    sgd::step(cpu, lr, 0.0, 1.0, p, g);
                }
            }
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
        Some(&block.state[kind][block.state_range(slot)])
    }

    /// See [`Self::state`]; to overwrite on restore.
    pub fn state_mut(&mut self, param: &str, piece: usize, kind: usize) -> Option<&mut [f32]> {
        let slot = self.slots.iter().find(|slot| slot.name == param && slot.piece == piece)?;
        let block = &mut self.blocks[slot.block];
        let range = block.state_range(slot);
        Some(&mut block.state[kind][range])
    }

    /// Number of state values that a rule keeps for each parameter.
    pub const fn num_states(name: OptimName) -> usize {
        state_kinds(name).len()
    }

    /// Number of `f32` of state.
    pub fn state_len(&self) -> usize {
        self.blocks.iter().flat_map(|block| &block.state).map(Vec::len).sum()
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

//! From a gradient to a step: SGD, momentum, AdamW.
//!
//! The optimizer walks over the flat buffers of the blocks and keeps its state (velocities, running
//! means) just as flat, for the parameters it owns. Every rule works element by element, so any
//! part of a buffer can be stepped anywhere with the same result. Whatever depends on the step
//! alone (learning rate, bias corrections) is computed first, in `f64`.

use crate::Slot;
use lockstep_config::{Optim, OptimName};
use lockstep_tensor::adamw::{self, AdamwStep};
use lockstep_tensor::math::scalar;
use lockstep_tensor::{Cpu, sgd};
use std::ops::Range;

/// The optimizer of one worker.
#[derive(Debug)]
pub struct Optimizer {
    settings: Optim,
    blocks: Vec<BlockState>,
    slots: Vec<Slot>,
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

/// Parameters that follow each other in the flat buffer and agree about decay.
#[derive(Debug)]
struct Span {
    params: Range<usize>,
    state: Range<usize>,
    decay: bool,
}

/// One step's numbers, the same for all parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Number of steps up to and including this one: 1 for the first.
    pub count: u64,
    /// The learning rate.
    pub lr: f64,
    /// What gradients are multiplied with first; clipping gives it.
    pub grad_scale: f32,
}

impl Optimizer {
    /// State of zeros for the parameters in `slots`.
    pub fn new(settings: &Optim, slots: &[Slot]) -> Self {
        let num_blocks = slots.iter().map(|slot| slot.block + 1).max().unwrap_or(0);
        let mut blocks: Vec<_> = (0..num_blocks).map(|_| BlockState::default()).collect();
        for slot in slots {
            blocks[slot.block].push(slot);
        }
        let num_states = Self::num_states(settings.name);
        for block in &mut blocks {
            block.state = (0..num_states).map(|_| vec![0.0; block.len]).collect();
        }
        Self { settings: settings.clone(), blocks, slots: slots.to_vec() }
    }

    /// Steps the parameters of one block by their gradients; both are the block's flat buffer.
    pub fn step_block(
        &mut self,
        cpu: &Cpu,
        update: &Update,
        block: usize,
        params: &mut [f32],
        grads: &[f32],
    ) {
        assert_eq!(params.len(), grads.len(), "a gradient per parameter");
        // A block without parameters of its own behind the last one that has some.
        let Some(BlockState { spans, state, .. }) = self.blocks.get_mut(block) else { return };
        let rule = Rule::new(&self.settings, update);
        for span in spans {
            let (p, g) = (&mut params[span.params.clone()], &grads[span.params.clone()]);
            let mut state = state.iter_mut().map(|buffer| &mut buffer[span.state.clone()]);
            let mut next = || state.next().expect("as many buffers as kinds of state");
            let Rule { lr, weight_decay, grad_scale, .. } = rule;
            let weight_decay = if span.decay { weight_decay } else { 0.0 };
            match self.settings.name {
                OptimName::Sgd => sgd::step(cpu, lr, weight_decay, grad_scale, p, g),
                OptimName::Momentum => {
                    let mu = rule.momentum;
                    sgd::momentum(cpu, lr, mu, weight_decay, grad_scale, p, g, next());
                }
                OptimName::AdamW => {
                    let weight_decay = if span.decay { rule.adamw.weight_decay } else { 0.0 };
                    let step = AdamwStep { weight_decay, ..rule.adamw };
                    let (m, v) = (next(), next());
                    adamw::step(cpu, &step, p, g, m, v);
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

    /// The state of one kind of what this optimizer steps of a parameter, if it steps any of it.
    pub fn state(&self, param: &str, kind: usize) -> Option<&[f32]> {
        let slot = self.slots.iter().find(|slot| slot.name == param)?;
        let block = &self.blocks[slot.block];
        Some(&block.state[kind][block.state_range(slot)])
    }

    /// See [`Self::state`]; to overwrite on restore.
    pub fn state_mut(&mut self, param: &str, kind: usize) -> Option<&mut [f32]> {
        let slot = self.slots.iter().find(|slot| slot.name == param)?;
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
    fn push(&mut self, slot: &Slot) {
        let state = self.len..self.len + slot.range.len();
        self.len = state.end;
        match self.spans.last_mut() {
            Some(last) if last.params.end == slot.range.start && last.decay == slot.decay => {
                last.params.end = slot.range.end;
                last.state.end = state.end;
            }
            Some(last) if last.params.end > slot.range.start => {
                panic!("{} is out of order in its block", slot.name);
            }
            _ => self.spans.push(Span { params: slot.range.clone(), state, decay: slot.decay }),
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
        OptimName::Momentum => &["momentum"],
        OptimName::AdamW => &["m", "v"],
    }
}

/// The numbers of a step as the kernels take them.
#[derive(Clone, Copy)]
struct Rule {
    lr: f32,
    weight_decay: f32,
    grad_scale: f32,
    momentum: f32,
    adamw: AdamwStep,
}

impl Rule {
    fn new(settings: &Optim, update: &Update) -> Self {
        let lr = update.lr as f32;
        let weight_decay = settings.weight_decay as f32;
        let grad_scale = update.grad_scale;
        // 1 - beta^count: how much of its final weight a running mean has reached.
        let filled = |beta: f64| 1.0 - scalar::powi(beta, update.count as i32);
        let adamw = AdamwStep {
            lr: update.lr,
            beta1: settings.beta1,
            beta2: settings.beta2,
            eps: settings.eps,
            weight_decay: settings.weight_decay,
            bias1: filled(settings.beta1),
            bias2: filled(settings.beta2),
            grad_scale,
        };
        Self { lr, weight_decay, grad_scale, momentum: settings.momentum as f32, adamw }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::LrSchedule;
    use lockstep_tensor::Isa;

    fn settings(name: OptimName) -> Optim {
        Optim {
            name,
            lr: 0.1,
            weight_decay: 0.01,
            clip: 0.0,
            warmup_steps: 0,
            schedule: LrSchedule::Constant,
            final_lr_fraction: 1.0,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            momentum: 0.8,
        }
    }

    /// Block 0 has a gap, as a mirror leaves one, and mixed decay; block 1 owns nothing.
    fn slots() -> Vec<Slot> {
        let slot = |block, name: &str, range, decay| Slot {
            block,
            name: name.to_string(),
            range,
            first: 0,
            decay,
        };
        vec![
            slot(0, "a", 0..3, true),
            slot(0, "b", 3..5, false),
            slot(0, "c", 7..9, true),
            slot(2, "d", 0..2, true),
        ]
    }

    fn buffers(scale: f32) -> Vec<Vec<f32>> {
        [9, 4, 2]
            .iter()
            .map(|len| (0..*len).map(|i| scale * (1.0 + (i * 5 % 7) as f32)).collect())
            .collect()
    }

    fn run(optimizer: &mut Optimizer, params: &mut [Vec<f32>], counts: std::ops::Range<u64>) {
        let cpu = Cpu::single(Isa::detect());
        let grads = buffers(0.5);
        for count in counts {
            let update = Update { count, lr: 0.1 / count as f64, grad_scale: 0.5 };
            for (block, params) in params.iter_mut().enumerate() {
                optimizer.step_block(&cpu, &update, block, params, &grads[block]);
            }
        }
    }

    /// The rules in `f64`, one element at a time.
    fn by_hand(name: OptimName, mut p: f64, g: f64, decay: bool, num_steps: u64) -> f64 {
        let s = settings(name);
        let decay = if decay { s.weight_decay } else { 0.0 };
        let (mut m, mut v) = (0.0, 0.0);
        for count in 1..=num_steps {
            let (lr, g) = (0.1 / count as f64, 0.5 * g);
            match name {
                OptimName::Sgd => p -= lr * (g + decay * p),
                OptimName::Momentum => {
                    m = s.momentum * m + g + decay * p;
                    p -= lr * m;
                }
                OptimName::AdamW => {
                    p -= lr * decay * p;
                    m = s.beta1 * m + (1.0 - s.beta1) * g;
                    v = s.beta2 * v + (1.0 - s.beta2) * g * g;
                    let m_hat = m / (1.0 - s.beta1.powi(count as i32));
                    let v_hat = v / (1.0 - s.beta2.powi(count as i32));
                    p -= lr * m_hat / (v_hat.sqrt() + s.eps);
                }
            }
        }
        p
    }

    const RULES: [OptimName; 3] = [OptimName::Sgd, OptimName::Momentum, OptimName::AdamW];

    #[test]
    fn each_rule_steps_what_it_owns_and_nothing_else() {
        for name in RULES {
            let mut optimizer = Optimizer::new(&settings(name), &slots());
            let (before, mut params) = (buffers(1.0), buffers(1.0));
            run(&mut optimizer, &mut params, 1..4);
            let mut expected = before.clone();
            for slot in slots() {
                for i in slot.range {
                    let p = f64::from(before[slot.block][i]);
                    expected[slot.block][i] = by_hand(name, p, 0.5 * p, slot.decay, 3) as f32;
                }
            }
            for (params, expected) in params.iter().flatten().zip(expected.iter().flatten()) {
                let error = (params - expected).abs();
                assert!(error < 1e-6 * expected.abs(), "{name}: {params} but {expected}");
            }
        }
    }

    #[test]
    fn state_that_is_saved_and_restored_continues_with_the_same_bits() {
        for name in RULES {
            let mut optimizer = Optimizer::new(&settings(name), &slots());
            let mut params = buffers(1.0);
            run(&mut optimizer, &mut params, 1..3);
            let mut restored = Optimizer::new(&settings(name), &slots());
            for slot in slots() {
                for kind in 0..optimizer.kinds().len() {
                    let values = optimizer.state(&slot.name, kind).unwrap();
                    restored.state_mut(&slot.name, kind).unwrap().copy_from_slice(values);
                }
            }
            let mut resumed = params.clone();
            run(&mut optimizer, &mut params, 3..5);
            run(&mut restored, &mut resumed, 3..5);
            let bits = |params: Vec<Vec<f32>>| {
                params.iter().flatten().map(|p| p.to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(bits(params), bits(resumed), "{name}");
        }
    }

    #[test]
    fn state_is_named_after_parameters_and_holds_no_more_than_they_need() {
        let optimizer = Optimizer::new(&settings(OptimName::AdamW), &slots());
        assert_eq!(optimizer.kinds(), ["m", "v"]);
        for (name, len) in [("a", 3), ("b", 2), ("c", 2), ("d", 2)] {
            for kind in 0..2 {
                assert_eq!(optimizer.state(name, kind).map(<[f32]>::len), Some(len), "{name}");
            }
        }
        assert_eq!(optimizer.state_len(), 2 * 9);
        assert_eq!(Optimizer::new(&settings(OptimName::Sgd), &slots()).state_len(), 0);
    }

    #[test]
    fn unknown_state_is_not_found() {
        let mut optimizer = Optimizer::new(&settings(OptimName::Momentum), &slots());
        assert!(optimizer.state_mut("a", 0).is_some());
        assert!(optimizer.state_mut("e", 0).is_none());
    }
}

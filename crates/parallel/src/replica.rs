//! A worker's copy of the model: parameters, gradients, and the memory that lanes pass through.
//!
//! Parameters and gradients are one flat buffer per block. Nothing here depends on the number of
//! workers: initial weights are a function of (seed, name, element), a lane's loss and gradients
//! are a function of the lane and the parameters, and the order in which gradients are added is
//! that of [`crate::leaves`].
//!
//! A step is: [`Replica::run_lane`] for each lane in ascending order, [`Replica::finish_reduce`],
//! then [`Replica::step`]. A mirror (the head's copy of a tied embedding) has its own tree of
//! sums; its total is added to the owner's total once, the owner is stepped, and the copy follows.

use crate::footprint::Footprint;
use crate::lane::{Activations, GradientSink};
use crate::leaves::{LeafTree, Leaves};
use lockstep_model::{
    Blueprint, Context, Lane, LaneShape, Mirror, Mode, Param, Recompute, Scratch, init,
};
use lockstep_optim::{Optimizer, Slot, Update};
use lockstep_tensor::{Cpu, reduce};
use std::ops::Range;

/// Sizes that a replica is made for.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaPlan {
    /// The shape of every training lane.
    pub lane: LaneShape,
    /// How gradients are summed.
    pub leaves: Leaves,
    /// What backward computes again.
    pub recompute: Recompute,
}

/// See the module's text.
pub struct Replica {
    blueprint: Blueprint,
    plan: ReplicaPlan,
    params: Vec<Vec<f32>>,
    grads: Gradients,
    mirrors: Vec<MirrorPair>,
    activations: Activations,
    d_stream: Vec<f32>,
    scratch: Scratch,
    /// Lanes run in this step.
    num_lanes: usize,
}

/// A gradient tree per block.
struct Gradients {
    trees: Vec<LeafTree>,
}

/// Where a mirror and its owner lie: (block, elements).
struct MirrorPair {
    mirror: (usize, Range<usize>),
    owner: (usize, Range<usize>),
}

/// A value that is not a number or not finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonFinite {
    /// The parameter whose value or gradient it is.
    pub name: String,
    /// Which element of it.
    pub element: usize,
}

impl GradientSink for Gradients {
    fn buffer(&mut self, cpu: &Cpu, block: usize) -> &mut [f32] {
        self.trees[block].lane_buffer(cpu)
    }

    fn finish(&mut self, cpu: &Cpu, block: usize) {
        self.trees[block].finish_lane(cpu);
    }
}

impl Replica {
    /// Allocates everything and fills in the initial weights.
    pub fn materialize(blueprint: Blueprint, seed: u64, cpu: &Cpu, plan: ReplicaPlan) -> Self {
        let blocks = &blueprint.blocks;
        let mut params: Vec<_> = blocks.iter().map(|b| vec![0.0; b.num_params()]).collect();
        for (block, param) in blueprint.params() {
            init::fill(cpu, seed, param, 0, &mut params[block][param.range()]);
        }
        let all = 0..plan.leaves.num_leaves;
        let tree = |len| LeafTree::new(len, plan.leaves, all.clone());
        let trees = params.iter().map(|block| tree(block.len())).collect();
        let mirrors = blueprint.mirrors().map(MirrorPair::new).collect();
        Self {
            activations: Activations::new(&blueprint, plan.lane, plan.recompute),
            d_stream: vec![0.0; plan.lane.rows() * blueprint.width],
            scratch: Scratch::new(blueprint.scratch_len(plan.lane)),
            num_lanes: 0,
            grads: Gradients { trees },
            blueprint,
            plan,
            params,
            mirrors,
        }
    }

    /// The model this is a copy of.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// The flat buffer of each block, mirrors included.
    pub fn params(&self) -> &[Vec<f32>] {
        &self.params
    }

    /// Every parameter that is saved, with its values; mirrors are left out.
    pub fn named_params(&self) -> impl Iterator<Item = (&Param, &[f32])> {
        let owned = self.blueprint.owned_params();
        owned.map(|(block, param)| (param, &self.params[block][param.range()]))
    }

    /// The values of a saved parameter, to overwrite; [`Self::refresh_mirrors`] must follow.
    pub fn param_mut(&mut self, name: &str) -> Option<&mut [f32]> {
        let mut owned = self.blueprint.owned_params();
        let (block, param) = owned.find(|(_, param)| param.name == name)?;
        Some(&mut self.params[block][param.range()])
    }

    /// Runs the next lane of the step forward and backward, adds its gradients to their leaf and
    /// returns the sum of its token losses. `step` numbers dropout masks.
    ///
    /// # Panics
    /// When lanes do not come in ascending order.
    pub fn run_lane(&mut self, cpu: &Cpu, seed: u64, step: u64, lane: &Lane<'_>) -> f64 {
        assert_eq!(lane.shape, self.plan.lane, "the memory is for this shape");
        let num_samples = self.num_lanes * lane.shape.sequences;
        assert_eq!(lane.first_sample, num_samples as u64, "lanes come in ascending order");
        if self.num_lanes == 0 {
            self.grads.trees.iter_mut().for_each(LeafTree::restart);
        }
        let blocks = &self.blueprint.blocks;
        let mode = Mode::Train { seed, step };
        let mut ctx = Context { cpu, lane, mode, scratch: &mut self.scratch };
        let loss = self.activations.forward(blocks, &self.params, &mut ctx);
        let (d_stream, grads) = (&mut self.d_stream, &mut self.grads);
        self.activations.backward(blocks, &self.params, &mut ctx, d_stream, grads);
        self.num_lanes += 1;
        loss
    }

    /// Runs a lane forward, without dropout, and returns the sum of its token losses.
    pub fn evaluate_lane(&mut self, cpu: &Cpu, lane: &Lane<'_>) -> f64 {
        assert_eq!(lane.shape, self.plan.lane, "the memory is for this shape");
        let mode = Mode::Evaluate;
        let mut ctx = Context { cpu, lane, mode, scratch: &mut self.scratch };
        self.activations.forward(&self.blueprint.blocks, &self.params, &mut ctx)
    }

    /// The logits of the lane that was evaluated last, a row per token.
    pub fn logits(&self) -> &[f32] {
        let head = self.blueprint.blocks.len() - 1;
        &self.activations.kept(head)[..self.plan.lane.rows() * self.blueprint.vocab]
    }

    /// Ends the sums of a step: every leaf is in the tree, and mirrors have given their gradients
    /// to their owners. The gradients are those of [`Self::grads`] from now to the next lane.
    pub fn finish_reduce(&mut self, cpu: &Cpu) {
        for pair in &self.mirrors {
            let blocks = [pair.owner.0, pair.mirror.0];
            let [owner, mirror] = self
                .grads
                .trees
                .get_disjoint_mut(blocks)
                .expect("a mirror lives in another block than its owner");
            let owner = &mut owner.root_mut()[pair.owner.1.clone()];
            reduce::add_assign(cpu, owner, &mirror.root_mut()[pair.mirror.1.clone()]);
        }
        assert!(self.grads.trees.iter().all(LeafTree::is_complete), "every lane was run");
        self.num_lanes = 0;
    }

    /// The summed gradients of each block, as flat as the parameters.
    pub fn grads(&self) -> &[impl AsRef<[f32]> + use<>] {
        &self.grads.trees
    }

    /// The summed gradient of every saved parameter.
    pub fn named_grads(&self) -> impl Iterator<Item = (&Param, &[f32])> {
        let owned = self.blueprint.owned_params();
        owned.map(|(block, param)| (param, &self.grads.trees[block].as_ref()[param.range()]))
    }

    /// The first gradient that is not finite, by block, for the report of a run that stops.
    pub fn first_non_finite_grad(&self, cpu: &Cpu) -> Option<NonFinite> {
        first_non_finite(cpu, self.named_grads())
    }

    /// The first parameter value that is not finite.
    pub fn first_non_finite_param(&self, cpu: &Cpu) -> Option<NonFinite> {
        first_non_finite(cpu, self.named_params())
    }

    /// What the optimizer steps: every parameter but mirrors.
    pub fn slots(&self) -> Vec<Slot> {
        let slot = |(block, param): (usize, &Param)| Slot {
            block,
            name: param.name.clone(),
            range: param.range(),
            decay: param.decay,
        };
        self.blueprint.owned_params().map(slot).collect()
    }

    /// Steps every parameter by its summed gradient.
    pub fn step(&mut self, cpu: &Cpu, optimizer: &mut Optimizer, update: &Update) {
        for (block, (params, tree)) in self.params.iter_mut().zip(&self.grads.trees).enumerate() {
            optimizer.step_block(cpu, update, block, params, tree.as_ref());
        }
        self.refresh_mirrors();
    }

    /// The memory this replica and its optimizer hold.
    pub fn footprint(&self, optimizer: &Optimizer) -> Footprint {
        Footprint {
            weights: self.params.iter().map(Vec::len).sum(),
            gradients: self.grads.trees.iter().map(LeafTree::num_elements).sum(),
            optimizer: optimizer.state_len(),
            activations: self.activations.num_elements() + self.d_stream.len(),
            scratch: self.scratch.len(),
        }
    }

    /// Copies owners over their mirrors.
    pub fn refresh_mirrors(&mut self) {
        for pair in &self.mirrors {
            let [owner, mirror] = self
                .params
                .get_disjoint_mut([pair.owner.0, pair.mirror.0])
                .expect("a mirror lives in another block than its owner");
            let owner = &owner[pair.owner.1.clone()];
            mirror[pair.mirror.1.clone()].copy_from_slice(owner);
        }
    }
}

impl MirrorPair {
    fn new(mirror: Mirror<'_>) -> Self {
        Self {
            mirror: (mirror.mirror_block, mirror.mirror.range()),
            owner: (mirror.owner_block, mirror.owner.range()),
        }
    }
}

fn first_non_finite<'a>(
    cpu: &Cpu,
    mut values: impl Iterator<Item = (&'a Param, &'a [f32])>,
) -> Option<NonFinite> {
    values.find_map(|(param, values)| {
        let element = reduce::first_non_finite(cpu, values)?;
        Some(NonFinite { name: param.name.clone(), element })
    })
}

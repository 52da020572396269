//! Tensor and sequence parallelism: workers that hold different slices of every layer complete each
//! other's sums.
//!
//! The model is described in slices ([`lockstep_model::slices`]) and asks an [`Exchange`] to
//! complete what its own slices make; here that is a group of workers. Two sums a layer and pass:
//! behind the second product of each half on the way forward, and behind the first product's input
//! gradient on the way back. With `sequence` each becomes a reduce-scatter behind and an all-gather
//! in front, which move the same bytes, and what lies between the halves is kept once among the
//! workers instead of by each. Sums go by the tree over members, which is the upper part of the
//! tree over slices: the bits are those of one worker that holds them all.
//!
//! These calls stand in the way of the computation, so workers of such a group belong as near to
//! each other as possible. Nothing is overlapped, and all of their time counts as waiting.

use lockstep_comm::{Comm, CommError, Label, Reduction, Traffic};
use lockstep_model::{Blueprint, Exchange};
use lockstep_optim::Slot;
use lockstep_platform::World;
use std::collections::BTreeMap;
use std::time::Duration;

/// A worker's end of the group that holds the model's slices.
pub struct Slicing {
    comm: Comm,
    world: World,
    exposed: Duration,
    /// The first thing that went wrong; nothing is sent behind it.
    failed: Option<CommError>,
    /// The step at work, for reports.
    step: u64,
}

impl Slicing {
    /// For the members of `comm`, each of which holds as many slices, in the order of the members.
    pub fn new(comm: &Comm, world: World) -> Self {
        let comm = comm.canonical();
        Self { comm, world, exposed: Duration::ZERO, failed: None, step: 0 }
    }

    /// The group.
    pub fn comm(&self) -> &Comm {
        &self.comm
    }

    /// Says which step is at work.
    pub fn begin_step(&mut self, step: u64) {
        self.step = step;
    }

    /// What went wrong since this was asked last. What blocks have computed meanwhile is of no use.
    pub fn check(&mut self) -> Result<(), CommError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// What has passed over the wires of this group.
    pub fn traffic(&self) -> Traffic {
        self.comm.counters().total().traffic
    }

    /// The time waited since this was asked last.
    pub fn take_exposed(&mut self) -> Duration {
        std::mem::take(&mut self.exposed)
    }

    fn call(&mut self, run: impl FnOnce(&Comm) -> Result<(), CommError>) {
        if self.failed.is_some() || self.comm.group_size() == 1 {
            return;
        }
        let start = self.world.clock().now();
        self.failed = run(&self.comm.about(Label::step(self.step))).err();
        self.exposed += self.world.clock().since(start);
    }
}

/// What holder number `holder` measures, where this one, who has `blueprint`, would have `slots`:
/// the same places in its own pieces. What all of them have is measured by the first.
pub fn held_by(blueprint: &Blueprint, holder: usize, mut slots: Vec<Slot>) -> Vec<Slot> {
    let held = blueprint.slices.num_held();
    let pieces: BTreeMap<&str, (usize, usize)> =
        blueprint.params().map(|(_, p)| (p.name.as_str(), (p.piece.num, p.len()))).collect();
    slots.retain_mut(|slot| {
        let (num_pieces, len) = pieces[slot.name.as_str()];
        if num_pieces == 1 {
            return holder == 0;
        }
        let in_piece = slot.first - slot.piece * len;
        slot.piece = holder * held + slot.piece % held;
        slot.first = slot.piece * len + in_piece;
        true
    });
    slots
}

impl Exchange for Slicing {
    fn sum(&mut self, values: &mut [f32]) {
        self.call(|comm| comm.all_reduce(values, Reduction::Sum));
    }

    fn max(&mut self, values: &mut [f32]) {
        self.call(|comm| comm.all_reduce(values, Reduction::Max));
    }

    fn gather(&mut self, values: &mut [f32]) {
        self.call(|comm| comm.all_gather_in_place(values));
    }

    fn sum_scatter(&mut self, values: &mut [f32]) {
        self.call(|comm| comm.reduce_scatter_in_place(values, Reduction::Sum));
    }

    fn has_failed(&self) -> bool {
        self.failed.is_some()
    }
}

//! Pipeline stages: a model cut into ranges of blocks, assigned to pipeline ranks.
//!
//! The blueprint stays whole: a stage is a range of consecutive blocks, known by their numbers in
//! the model, so names, initial weights and dropout do not depend on it. Stage s lies on pipeline
//! rank s mod p; with several stages a rank (virtual stages) the bubble shrinks
//! ([`Kind::Interleaved`]).
//!
//! Stages are cut to minimize the cost of the slowest, which limits the throughput. The cost of a
//! block is its model FLOPs or its measured time ([`crate::block_profile`]).

use lockstep_config::{PipelineSchedule, Recipe};
use lockstep_model::Blueprint;
use lockstep_schedule::pipeline::{Kind, Pipeline, Shape, build};
use std::ops::Range;

/// Cuts of the model into stages, and the pipeline schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stages {
    /// First block of every stage but the first.
    cuts: Vec<usize>,
    num_blocks: usize,
    num_devices: usize,
    kind: Kind,
}

impl Stages {
    /// A single stage with all blocks.
    pub const fn whole() -> Self {
        Self { cuts: Vec::new(), num_blocks: usize::MAX, num_devices: 1, kind: Kind::OneFOneB }
    }

    /// Stages of a recipe, balanced by FLOPs where it lists no layers.
    pub fn of(recipe: &Recipe, blueprint: &Blueprint) -> Self {
        Self::by_costs(recipe, &costs(blueprint))
    }

    /// Stages of a recipe, balanced by these costs of blocks.
    pub fn by_costs(recipe: &Recipe, costs: &[u64]) -> Self {
        let parallel = &recipe.parallel;
        let kind = match parallel.schedule {
            PipelineSchedule::GPipe => Kind::GPipe,
            PipelineSchedule::OneFOneB => Kind::OneFOneB,
            PipelineSchedule::Interleaved => Kind::Interleaved,
            PipelineSchedule::ZeroBubble => Kind::ZeroBubble,
        };
        if parallel.stage_layers.is_empty() {
            return Self::balanced(costs, parallel.num_stages(), parallel.pipeline, kind);
        }
        // The embedding belongs to the first stage, the head to the last.
        let mut block = 1;
        let mut cuts: Vec<usize> = Vec::new();
        for layers in &parallel.stage_layers[..parallel.stage_layers.len() - 1] {
            block += layers;
            cuts.push(block);
        }
        Self { cuts, num_blocks: costs.len(), num_devices: parallel.pipeline, kind }
    }

    /// Cuts that minimize the cost of the most expensive stage; `costs` has one entry per block.
    pub fn balanced(costs: &[u64], num_stages: usize, num_devices: usize, kind: Kind) -> Self {
        assert!(num_stages <= costs.len(), "a block for every stage");
        assert!(num_stages.is_multiple_of(num_devices), "equal numbers of stages on every rank");
        let cuts = partition(costs, num_stages);
        Self { cuts, num_blocks: costs.len(), num_devices, kind }
    }

    /// First block of every stage but the first.
    pub fn cuts(&self) -> &[usize] {
        &self.cuts
    }

    /// Whether weight gradients are computed apart from input gradients.
    pub fn splits_backward(&self) -> bool {
        self.kind == Kind::ZeroBubble
    }

    /// Number of pipeline ranks.
    pub const fn num_devices(&self) -> usize {
        self.num_devices
    }

    /// Number of stages.
    pub fn num_stages(&self) -> usize {
        self.cuts.len() + 1
    }

    /// Number of stages per pipeline rank.
    pub fn num_chunks(&self) -> usize {
        self.num_stages() / self.num_devices
    }

    /// Blocks of a stage of a model with `num_blocks` blocks.
    pub fn blocks(&self, stage: usize, num_blocks: usize) -> Range<usize> {
        assert!(
            self.num_blocks == usize::MAX || self.num_blocks == num_blocks,
            "cut for another model"
        );
        let start = if stage == 0 { 0 } else { self.cuts[stage - 1] };
        start..self.cuts.get(stage).copied().unwrap_or(num_blocks)
    }

    /// Blocks of each stage of a pipeline rank.
    pub fn runs_of(&self, device: usize, num_blocks: usize) -> Vec<Range<usize>> {
        let stages = (device..self.num_stages()).step_by(self.num_devices);
        stages.map(|stage| self.blocks(stage, num_blocks)).collect()
    }

    /// Stage of a block.
    pub fn stage_of(&self, block: usize) -> usize {
        self.cuts.partition_point(|cut| *cut <= block)
    }

    /// Pipeline rank of a block.
    pub fn device_of(&self, block: usize) -> usize {
        self.stage_of(block) % self.num_devices
    }

    /// Schedule of all pipeline ranks for `num_microbatches` micro-batches.
    pub fn pipeline(&self, num_microbatches: usize) -> Pipeline {
        let shape = Shape {
            num_devices: self.num_devices,
            num_chunks: self.num_chunks(),
            num_microbatches,
        };
        build(self.kind, shape).expect("config has proven it")
    }
}

/// FLOPs of the blocks of a model, forward and backward.
pub fn costs(blueprint: &Blueprint) -> Vec<u64> {
    let flops = blueprint.blocks.iter().map(|block| block.flops_per_token(blueprint.context));
    flops.map(|flops| flops.forward + flops.backward).collect()
}

/// Cuts of consecutive, non-empty groups that minimize the largest cost; among those, the first
/// groups are as large as possible without leaving later ones empty.
fn partition(costs: &[u64], num_groups: usize) -> Vec<usize> {
    let num_needed = |limit: u64| {
        let (mut groups, mut sum) = (1, 0);
        for &cost in costs {
            if sum + cost > limit {
                (groups, sum) = (groups + 1, 0);
            }
            sum += cost;
        }
        groups
    };
    let (mut low, mut high) = (costs.iter().copied().max().unwrap_or(0), costs.iter().sum());
    while low < high {
        let middle = low + (high - low) / 2;
        if num_needed(middle) <= num_groups { high = middle } else { low = middle + 1 }
    }
    let (mut cuts, mut sum) = (Vec::new(), 0);
    for (block, &cost) in costs.iter().enumerate() {
        let num_left = num_groups - 1 - cuts.len();
        let is_full = sum + cost > low;
        // Keep one block for each remaining group.
        let must_cut = costs.len() - block == num_left;
        if block > cuts.last().copied().unwrap_or(0) && num_left > 0 && (is_full || must_cut) {
            cuts.push(block);
            sum = 0;
        }
        sum += cost;
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MODEL;
    use lockstep_config::Model;
    use lockstep_model::describe;

    fn dearest(costs: &[u64], cuts: &[usize]) -> u64 {
        let ends = cuts.iter().copied().chain([costs.len()]);
        let starts = [0].into_iter().chain(cuts.iter().copied());
        starts.zip(ends).map(|(start, end)| costs[start..end].iter().sum()).max().unwrap()
    }

    /// Minimum over all cuts.
    fn best(costs: &[u64], num_groups: usize, first: usize) -> u64 {
        if num_groups == 1 {
            return costs[first..].iter().sum();
        }
        let cuts = first + 1..=costs.len() - (num_groups - 1);
        let with = |cut: usize| {
            let own: u64 = costs[first..cut].iter().sum();
            own.max(best(costs, num_groups - 1, cut))
        };
        cuts.map(with).min().unwrap()
    }

    #[test]
    fn the_slowest_stage_is_optimal_and_none_is_empty() {
        let lists = [
            &[1, 1, 1, 1, 1, 1][..],
            &[0, 5, 5, 5, 5, 20],
            &[9, 1, 1, 1, 1, 9],
            &[0, 0, 0, 0, 0, 7],
            &[3, 1, 4, 1, 5, 9, 2, 6],
        ];
        for costs in lists {
            for num_groups in 1..=costs.len() {
                let cuts = partition(costs, num_groups);
                assert_eq!(cuts.len(), num_groups - 1, "{costs:?}");
                assert!(cuts.is_sorted_by(|a, b| a < b) && cuts.first() != Some(&0), "{cuts:?}");
                assert_eq!(dearest(costs, &cuts), best(costs, num_groups, 0), "{costs:?} {cuts:?}");
            }
        }
    }

    #[test]
    fn blocks_and_stages_invert_each_other() {
        let blueprint = describe(&Model { layers: 5, ..MODEL });
        let costs = costs(&blueprint);
        for (num_stages, num_devices) in [(1, 1), (2, 2), (3, 3), (4, 2), (6, 3), (7, 7)] {
            let stages = Stages::balanced(&costs, num_stages, num_devices, Kind::Interleaved);
            let mut next = 0;
            for stage in 0..num_stages {
                let blocks = stages.blocks(stage, costs.len());
                assert!(blocks.start == next && !blocks.is_empty());
                next = blocks.end;
                assert!(blocks.clone().all(|block| stages.stage_of(block) == stage));
                assert!(blocks.clone().all(|b| stages.device_of(b) == stage % num_devices));
            }
            assert_eq!(next, costs.len());
        }
    }
}

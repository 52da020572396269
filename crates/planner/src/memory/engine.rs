//! Memory of every rank of a run of this engine by purpose, before it is allocated.
//!
//! The engine's own count ([`Footprint`]) is exact, and tests compare it with the allocations. A
//! process also holds its code, its data and, where workers share memory, the pages of other
//! workers that it accesses: a page counts for every process that accesses it.

use super::process::{Process, ProcessMemory};
use super::{checkpoint, mapped_pages, strategy};
use crate::shorter_steps::ShorterSteps;
use crate::traffic::{GroupCalls, Interconnect, StepInputs, StepKind, rank_at, step_calls};
use lockstep_config::units::{Bytes, Seconds};
use lockstep_config::{Isolation, Recipe};
use lockstep_mesh::{Axis, Rank};
use lockstep_model::{Blueprint, ProductPlan};
use lockstep_parallel::{Activations, Footprint, ReplicaPlan, from_recipe};

/// Bytes of one rank by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankMemory {
    /// Parameters.
    pub weights: Bytes,
    /// Gradient sums: the leaf in progress, and those that wait for their sibling.
    pub gradients: Bytes,
    /// Optimizer state.
    pub optimizer: Bytes,
    /// Activations of a micro-batch between forward and backward.
    pub activations: Bytes,
    /// Scratch, buckets in transfer, prefetch windows.
    pub buffers: Bytes,
    /// Copy of the rank's checkpoint shard, where the run may save.
    pub checkpoint: Bytes,
    /// Memory of calls: mapped pages of other ranks, and scratch memory.
    pub shared: Bytes,
    /// Where blocks run on an accelerator, the bytes in its memory: most of the parts above, and
    /// tokens, rounded operands and workspace of products. Strategies and checkpoints are in host
    /// memory.
    pub on_accelerator: Bytes,
}

/// Memory of all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// Memory by rank, in the step with the highest peak: workers, then parameter servers.
    pub ranks: Vec<RankMemory>,
    /// Parameters of a bucket.
    pub bucket_len: usize,
    /// First step with the highest peak.
    pub peak_step: u64,
}

impl From<&Footprint> for RankMemory {
    fn from(held: &Footprint) -> Self {
        Self {
            weights: bytes(held.weights),
            gradients: bytes(held.gradients),
            optimizer: bytes(held.optimizer),
            activations: bytes(held.activations),
            buffers: bytes(held.buffers),
            checkpoint: Bytes(0),
            shared: Bytes(0),
            on_accelerator: Bytes(0),
        }
    }
}

impl RankMemory {
    /// Bytes in a step of very many micro-batches, from those in both shorter ones.
    fn extrapolated([short, long]: [Self; 2], by: &ShorterSteps) -> Self {
        let of = |part: fn(&Self) -> Bytes| by.bytes([part(&short), part(&long)]);
        Self {
            weights: of(|it| it.weights),
            gradients: of(|it| it.gradients),
            optimizer: of(|it| it.optimizer),
            activations: of(|it| it.activations),
            buffers: of(|it| it.buffers),
            checkpoint: of(|it| it.checkpoint),
            shared: of(|it| it.shared),
            on_accelerator: of(|it| it.on_accelerator),
        }
    }

    /// Bytes that the rank allocates to train.
    pub fn own(&self) -> Bytes {
        self.weights + self.gradients + self.optimizer + self.activations + self.buffers
    }

    /// Bytes that the rank allocates to train and to save.
    pub fn allocated(&self) -> Bytes {
        self.own() + self.checkpoint
    }

    /// Parts by name, largest first.
    pub fn parts(&self) -> Vec<(&'static str, Bytes)> {
        let mut parts = vec![
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("buffers", self.buffers),
            ("checkpoint", self.checkpoint),
        ];
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        parts
    }
}

impl Memory {
    /// Memory of a recipe.
    pub fn of(recipe: &Recipe, blueprint: &Blueprint) -> Self {
        let likeliest = step_calls::plan_at(recipe, blueprint, 0).bucket_len;
        Self::with_bucket_len(recipe, blueprint, likeliest)
    }

    /// Memory of a recipe with this bucket length.
    pub fn with_bucket_len(recipe: &Recipe, blueprint: &Blueprint, bucket_len: usize) -> Self {
        let is_saved = checkpoint::is_expected(recipe, None);
        let at = |step| -> Vec<RankMemory> {
            let plan = from_recipe::plan_at(recipe, blueprint, step);
            let plan = ReplicaPlan { bucket_len, ..plan };
            let walked = |recipe: &Recipe, plan: &ReplicaPlan, worker: usize| {
                let [outer, besides] =
                    strategy::extra_elements(recipe, plan, blueprint, worker).map(bytes);
                let held = Footprint::plan(blueprint, plan, recipe.optim.name, worker);
                let mut memory = RankMemory::from(&held);
                if recipe.num_servers() > 0 {
                    // The servers hold the optimizer state.
                    memory.optimizer = Bytes(0);
                }
                let on_host = bytes(Footprint::plan_on_host(blueprint, plan, worker));
                let scratch = device_scratch(plan, blueprint, worker);
                memory.on_accelerator = Bytes(memory.own().0 - on_host.0) + scratch;
                memory.optimizer += outer;
                memory.buffers += besides;
                if is_saved {
                    memory.checkpoint = checkpoint::copy_bytes(recipe, plan, blueprint, worker);
                }
                memory
            };
            let shorter = ShorterSteps::of(recipe, &plan);
            let rank = |worker| match &shorter {
                Some(shorter) => {
                    let of = |(recipe, plan): &(Recipe, ReplicaPlan)| walked(recipe, plan, worker);
                    RankMemory::extrapolated(shorter.steps.each_ref().map(of), shorter)
                }
                None => walked(recipe, &plan, worker),
            };
            let server = |elements: [usize; 3]| {
                let [weights, gradients, optimizer] = elements.map(bytes);
                RankMemory { weights, gradients, optimizer, ..RankMemory::default() }
            };
            let (recipe, plan) = ShorterSteps::shortest(recipe, &plan);
            let servers = strategy::server_elements(&recipe, &plan, blueprint).into_iter();
            (0..recipe.run.workers).map(rank).chain(servers.map(server)).collect()
        };
        let most = |ranks: &Vec<RankMemory>| ranks.iter().map(RankMemory::allocated).sum::<Bytes>();
        let steps = from_recipe::phase_boundaries(recipe, blueprint);
        let all = steps.into_iter().map(|step| (step, at(step)));
        // First of the steps with the highest peak.
        let (peak_step, ranks) = all
            .reduce(|best, next| if most(&next.1) > most(&best.1) { next } else { best })
            .expect("a run has a first step");
        Self { ranks, bucket_len, peak_step }
    }

    /// Bytes that all processes of the run allocate.
    pub fn total(&self) -> Bytes {
        self.ranks.iter().map(RankMemory::allocated).sum()
    }

    /// Bytes of each rank on its accelerator, if it has one.
    pub fn on_accelerators(&self) -> Vec<Bytes> {
        self.ranks.iter().map(|rank| rank.on_accelerator).collect()
    }

    /// Removes the copies of checkpoints that a run of this duration does not save.
    #[must_use]
    pub fn with_duration(mut self, recipe: &Recipe, duration: Option<Seconds>) -> Self {
        if !checkpoint::is_expected(recipe, duration) {
            self.ranks.iter_mut().for_each(|rank| rank.checkpoint = Bytes(0));
        }
        self
    }

    /// Adds the memory of calls.
    pub fn with_mapped_pages(mut self, recipe: &Recipe, blueprint: &Blueprint) -> Self {
        let plan = from_recipe::plan_at(recipe, blueprint, self.peak_step);
        let plan = ReplicaPlan { bucket_len: self.bucket_len, ..plan };
        let (kind, known) = (StepKind::all_of(recipe), StepInputs::default());
        let calls = step_calls::of_plan(recipe, &plan, blueprint, &kind, known);
        let interconnect = Interconnect::of_recipe(recipe);
        for (members, group) in &calls.after_step {
            let rank = |member: usize| members[member];
            self.add_mapped_pages(group, &interconnect, &rank, mapped_pages::staged_by_rank);
        }
        for (device, tp_ranks) in calls.data.iter().enumerate() {
            for (tp_rank, calls) in tp_ranks.iter().enumerate() {
                let rank = |part| rank_at(&plan.mesh, device, part, tp_rank);
                self.add_mapped_pages(calls, &interconnect, &rank, mapped_pages::bytes_by_rank);
            }
        }
        for (device, parts) in calls.tensor.iter().enumerate() {
            for (part, calls) in parts.iter().enumerate() {
                let rank = |tp_rank| rank_at(&plan.mesh, device, part, tp_rank);
                self.add_mapped_pages(calls, &interconnect, &rank, mapped_pages::staged_by_rank);
            }
        }
        self
    }

    /// Adds the memory of a group's calls; `rank` maps group ranks to ranks.
    fn add_mapped_pages(
        &mut self,
        calls: &GroupCalls,
        interconnect: &Interconnect,
        rank: &dyn Fn(usize) -> usize,
        mapped: fn(&GroupCalls, &Interconnect) -> Vec<Bytes>,
    ) {
        let ranks: Vec<usize> = (0..calls.contributions.num_ranks()).map(rank).collect();
        let interconnect = interconnect.among(&ranks);
        let (mapped, working) =
            (mapped(calls, &interconnect), mapped_pages::working_by_rank(calls, &interconnect));
        for (rank, (mapped, working)) in ranks.into_iter().zip(mapped.into_iter().zip(working)) {
            self.ranks[rank].shared += mapped + working;
        }
    }

    /// Resident memory of each rank's process: all ranks where they are threads of one process, a
    /// rank and its mapped pages where they are processes.
    pub fn processes(&self, recipe: &Recipe, process: Process) -> Vec<ProcessMemory> {
        let num_ranks = self.ranks.len() as u64;
        let has_links = num_ranks > 1 && recipe.run.transport.has_messages_only();
        // A small run needs most memory before it has a model, while it measures its links.
        let at_peak = |of: ProcessMemory, num_workers: u64| {
            let probing = process.probing(num_workers, num_ranks - num_workers);
            let more = Bytes(probing.0.saturating_sub(of.total().0));
            let more = if has_links { more } else { Bytes(0) };
            ProcessMemory { overhead: of.overhead + more, ..of }
        };
        if recipe.run.isolation == Isolation::Threads {
            let (ranks, overhead) = (self.total(), process.besides(num_ranks, 0));
            let all = ProcessMemory { ranks, mapped: Bytes(0), overhead };
            return vec![at_peak(all, num_ranks); self.ranks.len()];
        }
        let overhead = process.besides(1, num_ranks - 1);
        let of_rank = |rank: &RankMemory| {
            let (ranks, mapped) = (rank.allocated(), rank.shared);
            at_peak(ProcessMemory { ranks, mapped, overhead }, 1)
        };
        self.ranks.iter().map(of_rank).collect()
    }
}

/// Bytes that an accelerator needs besides the engine's buffers.
fn device_scratch(plan: &ReplicaPlan, blueprint: &Blueprint, worker: usize) -> Bytes {
    let stage = plan.mesh.index(Axis::Pipeline, Rank(worker));
    let is_own = |block: &usize| plan.stages.device_of(*block) == stage;
    let own = (0..blueprint.blocks.len()).filter(is_own);
    let products = ProductPlan {
        has_copies: plan.copy_of_params(blueprint).is_some(),
        splits_backward: plan.stages.splits_backward(),
    };
    let products = blueprint.accelerator_scratch_bytes(own, plan.microbatch, products);
    let tokens = 2 * plan.microbatch.rows() * size_of::<u32>();
    Bytes((tokens + products) as u64)
}

/// Activations that each block of the model saves per micro-batch, by name.
pub fn activations_by_block(recipe: &Recipe, blueprint: &Blueprint) -> Vec<(String, Bytes)> {
    let plan = from_recipe::plan_at(recipe, blueprint, 0);
    let lens = Activations::planned_by_block(blueprint, plan.microbatch, plan.recompute);
    let names = blueprint.blocks.iter().map(|block| block.name().to_owned());
    names.zip(lens.into_iter().map(bytes)).collect()
}

const fn bytes(elements: usize) -> Bytes {
    Bytes((elements * size_of::<f32>()) as u64)
}

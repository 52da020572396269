//! Forecast of a run before it starts: memory, traffic and step time.

use crate::calibration::machine::Machine;
use crate::memory::{self, Memory, MemoryBudget, OutOfMemory, Process, ProcessMemory};
use crate::time::engine::{self, StepTime};
use crate::traffic::{self, ByteRange, Interconnect, StepCalls, StepInputs, TrafficByOp};
use lockstep_config::Recipe;
use lockstep_config::units::{Bytes, Seconds, Tokens, TokensPerSecond};
use lockstep_parallel::from_recipe::blueprint_of_rank;

/// Forecast of a run on one machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// Memory by rank and part.
    pub memory: Memory,
    /// Peak resident memory of each rank's process by part.
    pub process_by_rank: Vec<ProcessMemory>,
    /// Calls of each class of steps, with its share of the run; most runs have one class.
    pub step_classes: Vec<(f64, StepCalls)>,
    /// Traffic of every rank in the first step, or in the mean step where there are several
    /// classes.
    pub traffic: Vec<TrafficByOp>,
    /// Least and most bytes of every rank in the mean step, where the recipe does not decide them.
    ranges: Vec<ByteRange>,
    /// Whether a skipped update sends less, and the loss scale decides which are skipped.
    may_skip_updates: bool,
    /// Peak memory and traffic for every candidate bucket length, most likely first.
    pub by_bucket_len: Vec<BucketForecast>,
    /// Step time by part, if the machine was measured.
    pub step: Option<StepTime>,
    /// Tokens per step.
    pub tokens: Tokens,
}

/// Figures that depend on the bucket length, which may be tuned when a run starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketForecast {
    /// Parameters of a bucket.
    pub bucket_len: usize,
    /// Peak resident memory of each rank's process.
    pub peak_by_rank: Vec<Bytes>,
    /// Peak memory of each rank's accelerator, if it has one.
    pub accelerator_by_rank: Vec<Bytes>,
    /// Bytes sent per step by the busiest rank.
    pub wire_bytes: Bytes,
}

impl Forecast {
    /// Forecast of a recipe on this machine, or the reason that it does not fit.
    pub fn of(
        recipe: &Recipe,
        room: MemoryBudget,
        machine: Option<&Machine>,
    ) -> Result<Self, OutOfMemory> {
        memory::check(recipe, room)?;
        Ok(Self::unchecked(recipe, room.process, machine))
    }

    /// Forecast of a recipe, whether or not it fits.
    pub fn unchecked(recipe: &Recipe, process: Process, machine: Option<&Machine>) -> Self {
        let blueprint = blueprint_of_rank(recipe, 0);
        let interconnect = Interconnect::of_recipe(recipe);
        let (step_classes, traffic) =
            traffic::of_run(recipe, &blueprint, &interconnect, StepInputs::default());
        let step = step_time(recipe, &interconnect, machine);
        let duration = step.map(|step| step.seconds() * recipe.train.steps as f64);
        let complete = |memory: Memory| {
            memory.with_mapped_pages(recipe, &blueprint).with_duration(recipe, duration)
        };
        let memory = complete(Memory::of(recipe, &blueprint));
        let busiest = traffic::busiest_by_bucket_len(recipe, &blueprint, &interconnect);
        let of_bucket_len = |(bucket_len, wire_bytes)| {
            let memory = complete(Memory::with_bucket_len(recipe, &blueprint, bucket_len));
            let processes = memory.processes(recipe, process);
            let peak_by_rank = processes.iter().map(ProcessMemory::total).collect();
            let accelerator_by_rank = memory.on_accelerators();
            BucketForecast { bucket_len, peak_by_rank, accelerator_by_rank, wire_bytes }
        };
        let skipped = StepInputs { is_skipped: true, ..StepInputs::default() };
        let may_skip_updates = traffic::may_skip_updates(recipe)
            && traffic::of_run(recipe, &blueprint, &interconnect, skipped).1 != traffic;
        let is_exact = step_classes.iter().all(|(_, calls)| calls.is_exact) && !may_skip_updates;
        let ranges = match recipe.unmodelled_traffic() {
            None if !is_exact => traffic::wire_range(recipe, &blueprint, &interconnect),
            _ => Vec::new(),
        };
        Self {
            ranges,
            may_skip_updates,
            by_bucket_len: busiest.into_iter().map(of_bucket_len).collect(),
            process_by_rank: memory.processes(recipe, process),
            traffic,
            tokens: Tokens(recipe.tokens_per_step() as u64),
            memory,
            step_classes,
            step,
        }
    }

    /// Updates traffic and step time to a measured interconnect, by which workers select their
    /// algorithms.
    pub fn over(
        mut self,
        recipe: &Recipe,
        interconnect: &Interconnect,
        machine: Option<&Machine>,
    ) -> Self {
        let blueprint = blueprint_of_rank(recipe, 0);
        (self.step_classes, self.traffic) =
            traffic::of_run(recipe, &blueprint, interconnect, StepInputs::default());
        if !self.ranges.is_empty() {
            self.ranges = traffic::wire_range(recipe, &blueprint, interconnect);
        }
        if self.step.is_some() {
            self.step = step_time(recipe, interconnect, machine).or(self.step);
        }
        let busiest = traffic::busiest_by_bucket_len(recipe, &blueprint, interconnect);
        for (forecast, (_, wire_bytes)) in self.by_bucket_len.iter_mut().zip(busiest) {
            forecast.wire_bytes = wire_bytes;
        }
        self
    }

    /// Updates the traffic to the embedding rows of the first steps, in their mean
    /// ([`traffic::embedding_rows`]).
    pub fn with_rows(
        mut self,
        recipe: &Recipe,
        interconnect: &Interconnect,
        rows: &[Vec<usize>],
    ) -> Self {
        let Some(first) = rows.first().filter(|_| self.has_rows()) else { return self };
        let blueprint = blueprint_of_rank(recipe, 0);
        let known = StepInputs { rows_by_rank: Some(first), ..StepInputs::default() };
        (self.step_classes, self.traffic) =
            traffic::of_run(recipe, &blueprint, interconnect, known);
        let busiest = traffic::busiest_with_rows(recipe, &blueprint, interconnect, rows);
        for (forecast, (_, wire_bytes)) in self.by_bucket_len.iter_mut().zip(busiest) {
            forecast.wire_bytes = wire_bytes;
        }
        self
    }

    /// Whether rows of an embedding are exchanged sparsely.
    pub fn has_rows(&self) -> bool {
        self.step_classes.iter().any(|(_, calls)| calls.has_rows)
    }

    /// Whether the traffic is exact, or an approximate upper bound.
    pub fn is_exact(&self) -> bool {
        self.step_classes.iter().all(|(_, calls)| calls.is_exact) && !self.may_skip_updates
    }

    /// Peak resident memory of the largest process.
    pub fn peak_bytes(&self) -> Bytes {
        self.largest_process().1.total()
    }

    /// First rank whose process has the highest peak, and its memory by part.
    pub fn largest_process(&self) -> (usize, ProcessMemory) {
        let processes = self.process_by_rank.iter().copied().enumerate();
        processes.rev().max_by_key(|(_, process)| process.total()).unwrap_or_default()
    }

    /// Peak resident memory of each rank's process.
    pub fn peak_by_rank(&self) -> Vec<Bytes> {
        self.process_by_rank.iter().map(ProcessMemory::total).collect()
    }

    /// Least and most bytes sent per step by the busiest rank.
    pub fn wire_range(&self) -> ByteRange {
        if self.is_exact() || self.ranges.is_empty() {
            return ByteRange::exactly(self.wire_bytes());
        }
        let most = |end: fn(&ByteRange) -> Bytes| self.ranges.iter().map(end).max();
        let [low, high] = [most(|it| it.low), most(|it| it.high)].map(Option::unwrap_or_default);
        ByteRange { low, high }
    }

    /// Bytes sent per step by the busiest rank.
    pub fn wire_bytes(&self) -> Bytes {
        let each = self.traffic.iter().map(|rank| traffic::total(rank).wire_bytes());
        each.max().unwrap_or_default()
    }

    /// Step time.
    pub fn step_seconds(&self) -> Option<Seconds> {
        self.step.map(|step| step.seconds())
    }

    /// Throughput.
    pub fn tokens_per_second(&self) -> Option<TokensPerSecond> {
        self.step_seconds().map(|seconds| self.tokens / seconds)
    }
}

/// Mean step time on this machine, if measured and applicable.
pub fn step_time(
    recipe: &Recipe,
    interconnect: &Interconnect,
    machine: Option<&Machine>,
) -> Option<StepTime> {
    // Synthetic problems end before a step has a meaningful time, and uncounted traffic has no
    // cost.
    let is_known = !recipe.model.family.is_problem() && recipe.unmodelled_traffic().is_none();
    let machine = machine.filter(|_| is_known)?.with(recipe.precision.compute)?;
    Some(engine::mean(recipe, interconnect, &machine))
}

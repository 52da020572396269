//! Forecast of a run before it starts: memory, traffic and step time.

use crate::memory::{self, Memory, MemoryBudget, OutOfMemory};
use crate::time::{self, Calibration, Machine, StepTime};
use crate::traffic::{self, Interconnect, StepCalls, StepInputs, TrafficByOp};
use lockstep_config::Recipe;
use lockstep_config::units::{Bytes, Seconds, Tokens, TokensPerSecond};
use lockstep_parallel::from_recipe::blueprint_of_rank;

/// Forecast of a run on one machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// Memory by rank and part.
    pub memory: Memory,
    /// Peak resident memory of each rank's process.
    pub peak_by_rank: Vec<Bytes>,
    /// Calls of each class of steps, with its share of the run; most runs have one class.
    pub step_classes: Vec<(f64, StepCalls)>,
    /// Traffic of every rank in the first step, or in the mean step where there are several
    /// classes.
    pub traffic: Vec<TrafficByOp>,
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
        let memory = memory::check(recipe, room)?;
        let blueprint = blueprint_of_rank(recipe, 0);
        let memory = memory.with_mapped_pages(recipe, &blueprint);
        let interconnect = Interconnect::of_recipe(recipe);
        let (step_classes, traffic) =
            traffic::of_run(recipe, &blueprint, &interconnect, StepInputs::default());
        let machine = measured(recipe, machine);
        let step =
            machine.map(|machine| time::mean(recipe, &step_classes, &interconnect, &machine));
        let busiest = traffic::busiest_by_bucket_len(recipe, &blueprint, &interconnect);
        let of_bucket_len = |(bucket_len, wire_bytes)| {
            let memory = Memory::with_bucket_len(recipe, &blueprint, bucket_len);
            let memory = memory.with_mapped_pages(recipe, &blueprint);
            let peak_by_rank = memory.processes(recipe, room.process);
            BucketForecast { bucket_len, peak_by_rank, wire_bytes }
        };
        Ok(Self {
            by_bucket_len: busiest.into_iter().map(of_bucket_len).collect(),
            peak_by_rank: memory.processes(recipe, room.process),
            traffic,
            tokens: Tokens(recipe.tokens_per_step() as u64),
            memory,
            step_classes,
            step,
        })
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
        if let (Some(step), Some(machine)) = (&mut self.step, measured(recipe, machine)) {
            *step = time::mean(recipe, &self.step_classes, interconnect, &machine);
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
        self.step_classes.iter().all(|(_, calls)| calls.is_exact)
    }

    /// Peak resident memory of the largest process.
    pub fn peak_bytes(&self) -> Bytes {
        self.peak_by_rank.iter().copied().max().unwrap_or_default()
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

/// Calibration of the machine in the recipe's number format, if measured and applicable.
fn measured(recipe: &Recipe, machine: Option<&Machine>) -> Option<Calibration> {
    // Synthetic problems end before a step has a meaningful time, and uncounted traffic has no
    // cost.
    let is_counted = recipe.unmodelled_traffic().is_none() && recipe.unmodelled_time().is_none();
    let is_known = !recipe.model.family.is_problem() && is_counted;
    let machine = machine.filter(|_| is_known);
    machine.and_then(|machine| machine.with(recipe.precision.compute))
}

//! Everything that is known of a run before it starts.

use crate::memory::{self, Memory, Room, TooLarge};
use crate::time::{self, Calibration, Machine, StepTime};
use crate::traffic::{self, ByCause, Known, StepCalls, Wires};
use lockstep_config::units::{Bytes, Seconds, Tokens, TokensPerSecond};
use lockstep_config::{Recipe, TransportChoice};
use lockstep_parallel::asked::blueprint_on;

/// What a run will cost on one machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// By rank and part.
    pub memory: Memory,
    /// What the process of each rank will show as its own.
    pub peak_by_rank: Vec<Bytes>,
    /// The calls of every kind of step with their share of the run: of most runs one kind.
    pub kinds: Vec<(f64, StepCalls)>,
    /// What every rank moves in the first step, or in the mean one where they are of several kinds.
    pub traffic: Vec<ByCause>,
    /// The same two figures for every length that buckets may have, the likeliest first.
    pub by_bucket_len: Vec<BucketForecast>,
    /// The parts of a step, where the machine was measured.
    pub step: Option<StepTime>,
    /// Tokens of a step.
    pub tokens: Tokens,
}

/// What depends on the length of buckets, which may be measured when a run starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketForecast {
    /// Parameters of a bucket.
    pub bucket_len: usize,
    /// What the process of each rank will show as its own.
    pub peak_by_rank: Vec<Bytes>,
    /// What the busiest rank moves in a step.
    pub wire_bytes: Bytes,
}

impl Forecast {
    /// What a recipe will cost here, or why it does not fit.
    pub fn of(recipe: &Recipe, room: Room, machine: Option<&Machine>) -> Result<Self, TooLarge> {
        let memory = memory::check(recipe, room)?;
        let blueprint = blueprint_on(recipe, 0);
        let memory = memory.with_seen(recipe, &blueprint);
        let wires = wires(recipe);
        let (kinds, traffic) = traffic::of_run(recipe, &blueprint, &wires, Known::default());
        let machine = measured(recipe, machine);
        let step = machine.map(|machine| time::mean(recipe, &kinds, &wires, &machine));
        let busiest = traffic::busiest_by_bucket_len(recipe, &blueprint, &wires);
        let of_bucket_len = |(bucket_len, wire_bytes)| {
            let memory = Memory::with_bucket_len(recipe, &blueprint, bucket_len);
            let memory = memory.with_seen(recipe, &blueprint);
            let peak_by_rank = memory.processes(recipe, room.process);
            BucketForecast { bucket_len, peak_by_rank, wire_bytes }
        };
        Ok(Self {
            by_bucket_len: busiest.into_iter().map(of_bucket_len).collect(),
            peak_by_rank: memory.processes(recipe, room.process),
            traffic,
            tokens: Tokens(recipe.tokens_per_step() as u64),
            memory,
            kinds,
            step,
        })
    }

    /// The same with the bytes that will pass over wires which are known by now, and the time that
    /// takes: workers measure them when they have met, and choose algorithms by that.
    pub fn over(mut self, recipe: &Recipe, wires: &Wires, machine: Option<&Machine>) -> Self {
        let blueprint = blueprint_on(recipe, 0);
        (self.kinds, self.traffic) = traffic::of_run(recipe, &blueprint, wires, Known::default());
        if let (Some(step), Some(machine)) = (&mut self.step, measured(recipe, machine)) {
            *step = time::mean(recipe, &self.kinds, wires, &machine);
        }
        let busiest = traffic::busiest_by_bucket_len(recipe, &blueprint, wires);
        for (forecast, (_, wire_bytes)) in self.by_bucket_len.iter_mut().zip(busiest) {
            forecast.wire_bytes = wire_bytes;
        }
        self
    }

    /// The same with the bytes of rows of an embedding that travel one by one, in the mean of the
    /// first steps, of which it is known how many each rank touches ([`traffic::rows`]).
    pub fn with_rows(mut self, recipe: &Recipe, wires: &Wires, rows: &[Vec<usize>]) -> Self {
        let Some(first) = rows.first().filter(|_| self.has_rows()) else { return self };
        let blueprint = blueprint_on(recipe, 0);
        let known = Known { rows_by_rank: Some(first), ..Known::default() };
        (self.kinds, self.traffic) = traffic::of_run(recipe, &blueprint, wires, known);
        let busiest = traffic::busiest_with_rows(recipe, &blueprint, wires, rows);
        for (forecast, (_, wire_bytes)) in self.by_bucket_len.iter_mut().zip(busiest) {
            forecast.wire_bytes = wire_bytes;
        }
        self
    }

    /// Whether rows of an embedding's table travel one by one.
    pub fn has_rows(&self) -> bool {
        self.kinds.iter().any(|(_, calls)| calls.has_rows)
    }

    /// Whether bytes are what will be moved, or only about the most that may be.
    pub fn is_exact(&self) -> bool {
        self.kinds.iter().all(|(_, calls)| calls.is_exact)
    }

    /// What the largest process will show as its own.
    pub fn peak_bytes(&self) -> Bytes {
        self.peak_by_rank.iter().copied().max().unwrap_or_default()
    }

    /// What the busiest rank moves in a step.
    pub fn wire_bytes(&self) -> Bytes {
        let each = self.traffic.iter().map(|rank| traffic::total(rank).wire_bytes());
        each.max().unwrap_or_default()
    }

    /// How long a step takes.
    pub fn step_seconds(&self) -> Option<Seconds> {
        self.step.map(|step| step.seconds())
    }

    /// How fast the run goes.
    pub fn tokens_per_second(&self) -> Option<TokensPerSecond> {
        self.step_seconds().map(|seconds| self.tokens / seconds)
    }
}

/// What is known of the machine for a recipe: in its number format, if that was measured. Small
/// problems are over before anything could be said about a step.
fn measured(recipe: &Recipe, machine: Option<&Machine>) -> Option<Calibration> {
    // Small problems are over before anything could be said about a step, and what is not counted
    // has no price.
    let is_counted = recipe.uncounted().is_none() && recipe.unpriced().is_none();
    let is_known = !recipe.model.family.is_problem() && is_counted;
    let machine = machine.filter(|_| is_known);
    machine.and_then(|machine| machine.with(recipe.precision.compute))
}

/// How the workers of a recipe reach each other on one machine.
pub fn wires(recipe: &Recipe) -> Wires {
    match recipe.run.transport {
        TransportChoice::Tcp => Wires::messages(recipe.run.workers),
        _ => Wires::memory(recipe.run.workers),
    }
}

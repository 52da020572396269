//! Straggler policies: measures the workers' speed and acts on slow ones.
//!
//! All workers decide alike, from figures that they have gathered from each other: which workers
//! are excluded, and which leaves each one computes. An event names the workers missing in a step;
//! the summary counts missed steps and names a slow worker.

use crate::TrainError;
use crate::figures::{median, quartiles};
use lockstep_checkpoint::sharded::{Reader, Snapshot};
use lockstep_comm::CommError;
use lockstep_config::{Recipe, StragglerPolicy};
use lockstep_data::Batch;
use lockstep_parallel::{Replica, StepCutoff, StepDuty};
use lockstep_platform::World;
use std::time::Duration;

/// Interval in steps at which an excluded worker runs one probe micro-batch.
const PROBE_EVERY: u64 = 10;

/// Number of first residuals that set the reference norm, and the growth factor that triggers a
/// warning.
const NUM_REFERENCE_RESIDUALS: u64 = 20;
const MAX_RESIDUAL_GROWTH: f64 = 20.0;

/// Prepares a replica for the recipe's straggler policy.
pub(crate) fn prepare(
    recipe: &Recipe,
    world: &World,
    replica: &mut Replica,
) -> Result<(), CommError> {
    let keys = &recipe.sync.stragglers;
    let num_workers = recipe.parallel.data;
    let rule = match keys.policy {
        StragglerPolicy::Wait | StragglerPolicy::Exclude | StragglerPolicy::Shares => None,
        StragglerPolicy::Backup => Some(StepCutoff::Quorum(num_workers - keys.backups)),
        StragglerPolicy::Timeout => {
            Some(StepCutoff::Timeout(Duration::from_secs_f64(keys.timeout.0)))
        }
        StragglerPolicy::DropSlowest => Some(StepCutoff::Slack(keys.factor)),
    };
    if let Some(rule) = rule {
        replica.enable_cutoff(world, rule)?;
    }
    if recipe.sync.gradient_delay > 0 {
        replica.delay_gradients()?;
    }
    Ok(())
}

/// Adds delayed gradients, which are equal on all workers, to a checkpoint.
pub(crate) fn save(capacity: &mut Snapshot, replica: &mut Replica) -> Result<(), CommError> {
    let is_first = replica.groups().rank() == 0;
    replica.visit_delayed(|name, values| {
        if is_first {
            capacity.add(name, &[values.len()], 0, values);
        }
        Ok(())
    })
}

/// Restores delayed gradients.
pub(crate) fn load(reader: &Reader, replica: &mut Replica) -> Result<(), TrainError> {
    replica.visit_delayed(|name, values| Ok(reader.read(name, &[values.len()], 0, values)?))
}

/// Speed of the workers and state of the straggler policy.
#[derive(Clone, Debug)]
pub struct StragglerMonitor {
    stragglers: StragglerPolicy,
    /// Whether some workers take fewer steps than others (`sync.worker_steps`).
    has_idle_steps: bool,
    slack: f64,
    streak_len: u64,
    worker: usize,
    /// Reports of all workers on the last step: participation, number of targets, and time of a
    /// micro-batch.
    reports: Vec<[f64; 3]>,
    /// Workers that currently compute no micro-batches, and for how many steps in a row each
    /// worker's speed contradicted its state.
    excluded: Vec<bool>,
    streak: Vec<u64>,
    /// Micro-batch times of each worker since the last rebalancing.
    window: Vec<Vec<f64>>,
    /// Number of missed steps of each worker.
    pub missed: Vec<u64>,
    /// Time of a micro-batch on this worker, in each step that it computed any.
    microbatch_seconds: Vec<f64>,
    /// Notice about the rebalancing before this step, and leaves of each worker since then.
    notice: Option<String>,
    division: Option<Vec<usize>>,
    /// Whether the drift warning was issued; number of residuals, their first maximum, and whether
    /// the residual warning was issued.
    is_drift_reported: bool,
    residuals: (u64, f64, bool),
}

/// Participation of the workers in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Participation {
    /// Number of targets in the gradient sum.
    pub num_targets: u64,
    /// Number of targets in the batch.
    pub num_all: u64,
    /// Factor that compensates for missing gradients.
    pub factor: f32,
    /// Ranks of the missing workers.
    pub missing: Vec<usize>,
    /// Notice to the user.
    pub notice: Option<String>,
    /// Leaves of each worker, where the step is the first with this division.
    pub division: Option<Vec<usize>>,
}

impl Participation {
    /// All workers take part in a step whose batch has `num_targets` targets.
    pub fn of_all(num_targets: u64) -> Self {
        let (num_all, factor, missing) = (num_targets, 1.0, Vec::new());
        Self { num_targets, num_all, factor, missing, notice: None, division: None }
    }

    /// Number of the batch's tokens that contributed, estimated from targets.
    pub fn tokens(&self, all: usize) -> usize {
        if self.num_targets == self.num_all {
            return all;
        }
        (all as f64 * self.num_targets as f64 / self.num_all as f64).round() as usize
    }
}

impl StragglerMonitor {
    /// Monitor for the workers of a recipe.
    pub fn new(recipe: &Recipe, worker: usize) -> Self {
        let num_workers = recipe.run.workers;
        let keys = &recipe.sync.stragglers;
        let capacity = usize::try_from(recipe.train.steps.min(1 << 24)).expect("fits");
        Self {
            stragglers: keys.policy,
            has_idle_steps: !recipe.sync.worker_steps.is_empty(),
            slack: keys.factor,
            streak_len: keys.window,
            worker,
            reports: vec![[0.0; 3]; num_workers],
            excluded: vec![false; num_workers],
            streak: vec![0; num_workers],
            window: vec![Vec::new(); num_workers],
            missed: vec![0; num_workers],
            microbatch_seconds: Vec::with_capacity(capacity),
            notice: None,
            division: None,
            is_drift_reported: false,
            residuals: (0, 0.0, false),
        }
    }

    /// Begins a step. Leaves can be rebalanced here, since no reduction is in flight.
    pub fn begin_step(
        &mut self,
        recipe: &Recipe,
        step: u64,
        replica: &mut Replica,
    ) -> Result<(), CommError> {
        if self.stragglers == StragglerPolicy::Shares {
            self.notice = self.rebalance(replica)?;
        }
        let is_probe = step.is_multiple_of(PROBE_EVERY);
        replica.set_duty(match self.excluded[self.worker] {
            false if recipe.takes_step(self.worker, step) => StepDuty::Microbatches,
            true if is_probe => StepDuty::Probe,
            _ => StepDuty::Nothing,
        });
        Ok(())
    }

    /// Gathers the participation in a step after its micro-batches; the batch has `num_targets`
    /// targets.
    pub fn end_microbatches(
        &mut self,
        batch: &Batch,
        num_targets: u64,
        replica: &mut Replica,
    ) -> Result<Participation, CommError> {
        let seconds = replica.microbatch_seconds();
        self.microbatch_seconds.extend(seconds);
        let division = self.division.take();
        let full = Participation { division, ..Participation::of_all(num_targets) };
        let is_wait = self.stragglers == StragglerPolicy::Wait && !self.has_idle_steps;
        if is_wait || self.reports.len() == 1 {
            return Ok(full);
        }
        let counted_in_step = replica.counted_in_step();
        let own = if counted_in_step {
            batch.targets_in(replica.own_microbatches().iter().copied())
        } else {
            0
        };
        let seconds = seconds.unwrap_or(f64::NAN);
        replica.all_gather_reports(
            [f64::from(u8::from(counted_in_step)), own as f64, seconds],
            &mut self.reports,
        )?;
        let num_present = self.reports.iter().map(|[_, targets, _]| *targets as u64).sum::<u64>();
        if self.has_idle_steps {
            // A worker that skips the step by recipe is not missing.
            return Ok(Participation { num_targets: num_present.max(1), ..full });
        }
        let is_missing = |worker: &usize| self.reports[*worker][0] < 0.5;
        let missing: Vec<usize> = (0..self.reports.len()).filter(is_missing).collect();
        for &worker in &missing {
            self.missed[worker] += 1;
        }
        let notice = match self.stragglers {
            StragglerPolicy::Exclude => self.update_exclusions(),
            StragglerPolicy::Shares => {
                for (window, [_, _, seconds]) in self.window.iter_mut().zip(&self.reports) {
                    window.push(*seconds);
                }
                self.notice.take()
            }
            _ => None,
        };
        if missing.is_empty() {
            return Ok(Participation { notice, ..full });
        }
        let num_targets = num_present.max(1);
        let factor = (full.num_targets as f64 / num_targets as f64) as f32;
        Ok(Participation { num_targets, factor, missing, notice, ..full })
    }

    /// Excludes workers that were slow for long and readmits those that recovered.
    fn update_exclusions(&mut self) -> Option<String> {
        let counting = |worker: &usize| !self.excluded[*worker];
        let seconds = |worker: usize| self.reports[worker][2];
        let usual: Vec<f64> = (0..self.reports.len()).filter(counting).map(seconds).collect();
        let limit = self.slack * median(&usual);
        let mut notice = None;
        for worker in 0..self.reports.len() {
            let took = seconds(worker);
            // Between two probes num_present is no measurement.
            if took.is_nan() {
                continue;
            }
            if (took > limit) == self.excluded[worker] {
                self.streak[worker] = 0;
                continue;
            }
            self.streak[worker] += 1;
            let num_left = self.excluded.iter().filter(|is_out| !**is_out).count();
            let is_out = self.excluded[worker];
            // An excluded worker is measured once in `PROBE_EVERY` steps only.
            let enough =
                if is_out { self.streak_len.div_ceil(PROBE_EVERY) } else { self.streak_len };
            if self.streak[worker] < enough || (!is_out && num_left == 1) {
                continue;
            }
            self.excluded[worker] = !is_out;
            self.streak[worker] = 0;
            notice = Some(if is_out {
                format!(
                    "worker {worker} is as fast as the others and takes part in the steps again"
                )
            } else {
                let times = self.slack * took / limit;
                format!(
                    "worker {worker} is {times:.1} times slower than the median and is excluded"
                )
            });
        }
        notice
    }

    /// Rebalances the leaves after enough measurements.
    fn rebalance(&mut self, replica: &mut Replica) -> Result<Option<String>, CommError> {
        if (self.window[0].len() as u64) < self.streak_len {
            return Ok(None);
        }
        let seconds: Vec<f64> = self.window.iter().map(|window| median(window)).collect();
        self.window.iter_mut().for_each(Vec::clear);
        if !replica.rebalance_leaves(&seconds)? {
            return Ok(None);
        }
        let leaves = replica.leaves_by_worker();
        self.division = Some(leaves.to_vec());
        let slowest = index_of_max(&seconds)
            .map_or(String::new(), |worker| format!("; worker {worker} is the slowest"));
        Ok(Some(format!("leaves are rebalanced: {leaves:?}{slowest}")))
    }

    /// Warns once if workers drift apart farther in a round than the model moves.
    pub fn drift_warning(&mut self, drift: f64, moved: f64) -> Option<String> {
        if drift <= moved || std::mem::replace(&mut self.is_drift_reported, true) {
            return None;
        }
        Some(format!(
            "workers drift apart by {drift:.2e} in a round, and the model moves by {moved:.2e} \
             only; lower sync.local_steps or optim.lr, and see lockstep data skew"
        ))
    }

    /// Warns once if compression residuals keep growing.
    pub fn residual_warning(&mut self, norm: f64) -> Option<String> {
        let (count, first, is_reported) = &mut self.residuals;
        *count += 1;
        if *count <= NUM_REFERENCE_RESIDUALS {
            *first = first.max(norm);
            return None;
        }
        if norm <= MAX_RESIDUAL_GROWTH * *first || std::mem::replace(is_reported, true) {
            return None;
        }
        let times = norm / *first;
        Some(format!(
            "compression residuals have grown to {times:.0} times their first norm; send more \
             (compress.ratio, compress.bits or compress.rank)"
        ))
    }

    /// Quartiles of the time of a micro-batch on this worker.
    pub fn microbatch_seconds(&self) -> [f64; 3] {
        quartiles(&self.microbatch_seconds)
    }
}

/// Index of the largest value.
fn index_of_max(values: &[f64]) -> Option<usize> {
    (0..values.len()).max_by(|a, b| values[*a].total_cmp(&values[*b]))
}

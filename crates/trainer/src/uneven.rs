//! How fast each worker is, and what a step does about one that is slow.
//!
//! What is decided by all (who is excluded, who gets which micro-batches) follows from numbers that all of
//! them have told each other, so all decide alike. Which gradients a step went by is written down:
//! an event for every step that somebody was missing in, and counts in the summary, with the
//! worker that was slow.

use crate::TrainError;
use crate::summary::median;
use lockstep_checkpoint::sharded::{Reader, Snapshot};
use lockstep_comm::CommError;
use lockstep_config::{Recipe, Stragglers};
use lockstep_data::Batch;
use lockstep_parallel::{Duty, LateRule, Replica};
use lockstep_platform::World;
use std::time::Duration;

/// A worker that is excluded tries one micro-batch in so many steps.
const PROBE_EVERY: u64 = 10;

/// Steps whose residuals are the first ones, and how many times as much is a pile.
const NUM_FIRST: u64 = 20;
const PILED_UP: f64 = 20.0;

/// A worker is named as slow from so many times the middle micro-batch on.
const NOTABLY_SLOW: f64 = 1.2;

/// Makes room for what the recipe does about stragglers.
pub(crate) fn prepare(
    recipe: &Recipe,
    world: &World,
    replica: &mut Replica,
) -> Result<(), CommError> {
    let uneven = &recipe.sync.uneven;
    let num_workers = recipe.parallel.data;
    let rule = match uneven.stragglers {
        Stragglers::Wait | Stragglers::Exclude | Stragglers::Shares => None,
        Stragglers::Backup => Some(LateRule::Quorum(num_workers - uneven.backups)),
        Stragglers::Timeout => Some(LateRule::Timeout(Duration::from_secs_f64(uneven.timeout.0))),
        Stragglers::DropSlowest => Some(LateRule::Slack(uneven.slack)),
    };
    if let Some(rule) = rule {
        replica.leave_out_stragglers(world, rule)?;
    }
    if uneven.delay > 0 {
        replica.delay_gradients()?;
    }
    Ok(())
}

/// Copies gradients that are on their way, which are the same on all workers.
pub(crate) fn save(room: &mut Snapshot, replica: &mut Replica) -> Result<(), CommError> {
    let is_first = replica.groups().rank() == 0;
    replica.visit_delayed(|name, values| {
        if is_first {
            room.add(name, &[values.len()], 0, values);
        }
        Ok(())
    })
}

/// Reads them back.
pub(crate) fn load(reader: &Reader, replica: &mut Replica) -> Result<(), TrainError> {
    replica.visit_delayed(|name, values| Ok(reader.read(name, &[values.len()], 0, values)?))
}

/// What is known of the workers' pace.
#[derive(Clone, Debug)]
pub struct Pace {
    stragglers: Stragglers,
    /// Whether some workers take fewer steps than others, as the recipe says.
    has_rests: bool,
    slack: f64,
    patience: u64,
    worker: usize,
    /// What all workers have said of the last step: whether they took part, with how many targets,
    /// and how long a micro-batch took.
    told: Vec<[f64; 3]>,
    /// Workers that run no micro-batches at present, and for how many steps in a row each was not as it is
    /// taken to be.
    excluded: Vec<bool>,
    streak: Vec<u64>,
    /// Time of micro-batches since they were divided last, and how many steps it is of.
    window: Vec<Vec<f64>>,
    /// Steps that went without a worker.
    pub missed: Vec<u64>,
    /// How long a micro-batch took this worker, in every step that it ran any.
    microbatch_seconds: Vec<f64>,
    /// How micro-batches were divided anew before this step, in words.
    news: Option<String>,
    /// Whether a person was told of the drift; of residuals how many there were, what they were at
    /// first, and whether that was told.
    is_drift_told: bool,
    residuals: (u64, f64, bool),
}

/// What a step went by.
#[derive(Clone, Debug, PartialEq)]
pub struct Participation {
    /// Targets that were learned from.
    pub num_targets: u64,
    /// Targets that there were.
    pub num_all: u64,
    /// What the sum is multiplied by for those that are not.
    pub factor: f32,
    /// The workers that are missing.
    pub missing: Vec<usize>,
    /// Something that a person should know.
    pub news: Option<String>,
}

impl Participation {
    /// Those of a batch's tokens that were learned from, as near as targets tell.
    pub fn tokens(&self, all: usize) -> usize {
        if self.num_targets == self.num_all {
            return all;
        }
        (all as f64 * self.num_targets as f64 / self.num_all as f64).round() as usize
    }
}

impl Pace {
    /// For the workers of a recipe.
    pub fn new(recipe: &Recipe, worker: usize) -> Self {
        let num_workers = recipe.run.workers;
        let uneven = &recipe.sync.uneven;
        let room = usize::try_from(recipe.train.steps.min(1 << 24)).expect("fits");
        Self {
            stragglers: uneven.stragglers,
            has_rests: !recipe.sync.worker_steps.is_empty(),
            slack: uneven.slack,
            patience: uneven.patience,
            worker,
            told: vec![[0.0; 3]; num_workers],
            excluded: vec![false; num_workers],
            streak: vec![0; num_workers],
            window: vec![Vec::new(); num_workers],
            missed: vec![0; num_workers],
            microbatch_seconds: Vec::with_capacity(room),
            news: None,
            is_drift_told: false,
            residuals: (0, 0.0, false),
        }
    }

    /// A step begins; micro-batches may be divided anew before it, since no sums are on their way.
    pub fn begin_step(
        &mut self,
        recipe: &Recipe,
        step: u64,
        replica: &mut Replica,
    ) -> Result<(), CommError> {
        if self.stragglers == Stragglers::Shares {
            self.news = self.divide(replica)?;
        }
        let is_probe = step.is_multiple_of(PROBE_EVERY);
        replica.set_duty(match self.excluded[self.worker] {
            false if recipe.is_taken_by(self.worker, step) => Duty::Microbatches,
            true if is_probe => Duty::Probe,
            _ => Duty::Nothing,
        });
        Ok(())
    }

    /// The micro-batches of a step are run, of which all workers have `num_targets`: says what it goes by.
    pub fn end_microbatches(
        &mut self,
        batch: &Batch,
        num_targets: u64,
        replica: &mut Replica,
    ) -> Result<Participation, CommError> {
        let seconds = replica.microbatch_seconds();
        self.microbatch_seconds.extend(seconds);
        let (num_all, missing) = (num_targets, Vec::new());
        let everybody = Participation { num_targets, num_all, factor: 1.0, missing, news: None };
        let is_wait = self.stragglers == Stragglers::Wait && !self.has_rests;
        if is_wait || self.told.len() == 1 {
            return Ok(everybody);
        }
        let took_part = replica.took_part();
        let own = if took_part {
            batch.targets_in(replica.own_microbatches().iter().copied())
        } else {
            0
        };
        let seconds = seconds.unwrap_or(f64::NAN);
        replica.tell_all([f64::from(u8::from(took_part)), own as f64, seconds], &mut self.told)?;
        let there = self.told.iter().map(|[_, targets, _]| *targets as u64).sum::<u64>();
        if self.has_rests {
            // Who rests is not missed.
            return Ok(Participation { num_targets: there.max(1), ..everybody });
        }
        let is_missing = |worker: &usize| self.told[*worker][0] < 0.5;
        let missing: Vec<usize> = (0..self.told.len()).filter(is_missing).collect();
        for &worker in &missing {
            self.missed[worker] += 1;
        }
        let news = match self.stragglers {
            Stragglers::Exclude => self.judge(),
            Stragglers::Shares => {
                for (window, [_, _, seconds]) in self.window.iter_mut().zip(&self.told) {
                    window.push(*seconds);
                }
                self.news.take()
            }
            _ => None,
        };
        if missing.is_empty() {
            return Ok(Participation { news, ..everybody });
        }
        let num_targets = there.max(1);
        let factor = (everybody.num_targets as f64 / num_targets as f64) as f32;
        Ok(Participation { num_targets, num_all, factor, missing, news })
    }

    /// Excludes who was slow for long, and takes in who was not.
    fn judge(&mut self) -> Option<String> {
        let counting = |worker: &usize| !self.excluded[*worker];
        let seconds = |worker: usize| self.told[worker][2];
        let usual: Vec<f64> = (0..self.told.len()).filter(counting).map(seconds).collect();
        let limit = self.slack * median(&usual);
        let mut news = None;
        for worker in 0..self.told.len() {
            let took = seconds(worker);
            // Between two probes there is nothing to go by.
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
            // Who tries one micro-batch in ten steps need not wait for as many of them.
            let enough = if is_out { self.patience.div_ceil(PROBE_EVERY) } else { self.patience };
            if self.streak[worker] < enough || (!is_out && num_left == 1) {
                continue;
            }
            self.excluded[worker] = !is_out;
            self.streak[worker] = 0;
            news = Some(if is_out {
                format!("worker {worker} is as fast as the others again and is taken in")
            } else {
                let times = self.slack * took / limit;
                format!(
                    "worker {worker} is {times:.1} times slower than the middle one and is left out"
                )
            });
        }
        news
    }

    /// Divides micro-batches anew once they were timed for long enough.
    fn divide(&mut self, replica: &mut Replica) -> Result<Option<String>, CommError> {
        if (self.window[0].len() as u64) < self.patience {
            return Ok(None);
        }
        let seconds: Vec<f64> = self.window.iter().map(|window| median(window)).collect();
        self.window.iter_mut().for_each(Vec::clear);
        if !replica.reshare(&seconds)? {
            return Ok(None);
        }
        let leaves = replica.leaves_by_worker();
        let slowest = most(&seconds)
            .map_or(String::new(), |worker| format!("; worker {worker} is the slowest"));
        Ok(Some(format!("leaves are divided anew: {leaves:?}{slowest}")))
    }

    /// What to say, once, where workers go farther apart in a round than they come.
    pub fn drift_warning(&mut self, drift: f64, moved: f64) -> Option<String> {
        if drift <= moved || std::mem::replace(&mut self.is_drift_told, true) {
            return None;
        }
        Some(format!(
            "workers drift apart by {drift:.2e} in a round and come forward by {moved:.2e} only; \
             lower sync.local_steps or optim.lr, and see lockstep data skew"
        ))
    }

    /// What to say, once, where what compression leaves out piles up.
    pub fn residual_warning(&mut self, norm: f64) -> Option<String> {
        let (count, first, is_told) = &mut self.residuals;
        *count += 1;
        if *count <= NUM_FIRST {
            *first = first.max(norm);
            return None;
        }
        if norm <= PILED_UP * *first || std::mem::replace(is_told, true) {
            return None;
        }
        let times = norm / *first;
        Some(format!(
            "what compression leaves out has grown to {times:.0} times what it was at first; send \
             more (compress.ratio, compress.bits or compress.rank)"
        ))
    }

    /// How long a micro-batch took this worker, in the middle.
    pub fn microbatch_seconds(&self) -> f64 {
        median(&self.microbatch_seconds)
    }
}

/// The place of the largest.
fn most(values: &[f64]) -> Option<usize> {
    (0..values.len()).max_by(|a, b| values[*a].total_cmp(&values[*b]))
}

/// The worker whose micro-batches take much longer than the middle one's, if one's do, and how many times.
pub fn slow_worker(microbatch_seconds: &[f64]) -> Option<(usize, f64)> {
    let worker = most(microbatch_seconds)?;
    let mut sorted = microbatch_seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let times = microbatch_seconds[worker] / sorted[(sorted.len() - 1) / 2];
    (microbatch_seconds.len() > 1 && times >= NOTABLY_SLOW).then_some((worker, times))
}

/// The gradients of a step are in the sum: multiplies it for those that are not.
pub(crate) fn rescale(
    cpu: &lockstep_tensor::Cpu,
    participation: &Participation,
    replica: &mut Replica,
) {
    if !participation.missing.is_empty() {
        replica.rescale(cpu, participation.factor);
    }
}

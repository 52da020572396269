//! Search over all layouts of a model on a cluster.
//!
//! # Layout
//! - [`space`]: enumeration of valid layouts
//! - [`mod@fastest`]: the fastest layout alone, and lower bounds
//! - [`report`]: comparison with the runner-up, and fixes for layouts that do not fit
//! - [`scaling`]: strong and weak scaling over device counts
//!
//! Most layouts do not fit and memory is cheap to count, so it is checked first. Layouts that fit
//! are priced with closed-form pipelines; the best are simulated event by event and ranked again.

pub mod fastest;
pub mod report;
pub mod scaling;
pub mod space;

use crate::advice::{self, SyncMethod};
use crate::calibration::Calibration;
use crate::hardware::Cluster;
use crate::layout::{Framework, Job, Layout};
use crate::memory::{self, Memory};
use crate::model::Model;
use crate::time::{self, Step, layer_cache::LayerCache, pipeline::Pipelines};

/// Candidates that are simulated event by event.
const SIMULATED: usize = 48;
/// Layouts that need at most this many times the memory are reported with a fix; this many of them
/// are simulated, since the closed form does not rank exactly.
const ALMOST_FIT: f64 = 1.5;
const ALMOST_FIT_SIMULATED: usize = 8;
/// Candidates with other sync methods that are simulated.
const SYNC_SIMULATED: usize = 16;

/// A layout with its step time and memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Parallel layout.
    pub layout: Layout,
    /// Step time.
    pub step: Step,
    /// Memory of the fullest device.
    pub memory: Memory,
}

/// Result of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchResult {
    /// Number of valid layouts.
    pub examined: usize,
    /// Layouts that need more memory than a device has.
    pub too_large: usize,
    /// Layouts that fit, fastest first.
    pub best: Vec<Candidate>,
    /// Fastest layout that almost fits, if it is faster than all that fit.
    pub almost_fits: Option<Candidate>,
    /// Pareto front of time and memory, fastest first.
    pub pareto: Vec<Candidate>,
    /// Layouts with their best sync method, by estimated time to the same loss.
    pub with_sync: Vec<LayoutWithSync>,
}

/// A layout with a sync method.
#[derive(Debug, Clone, PartialEq)]
pub struct LayoutWithSync {
    /// Parallel layout.
    pub layout: Layout,
    /// Sync method and its cost in iterations.
    pub sync: SyncMethod,
    /// Step time times the factor on iterations.
    pub seconds: f64,
}

/// Input of a search.
#[derive(Debug, Clone, Copy)]
pub struct Workload<'a> {
    /// Model to train.
    pub model: &'a Model,
    /// Cluster to train on.
    pub cluster: &'a Cluster,
    /// Global batch in sequences.
    pub batch: u64,
    /// Training framework.
    pub framework: Framework,
    /// Calibration of the device type.
    pub calibration: &'a Calibration,
}

impl<'a> Workload<'a> {
    /// Job of one layout.
    pub const fn job(&self, layout: Layout) -> Job<'a> {
        Job {
            model: self.model,
            cluster: self.cluster,
            layout,
            batch: self.batch,
            framework: self.framework,
        }
    }

    /// Prices one layout with a simulated pipeline.
    pub fn price(&self, layout: Layout, pipelines: &mut Pipelines) -> Option<Candidate> {
        let job = self.job(layout);
        let step = time::step(&job, self.calibration, pipelines)?;
        Some(Candidate { layout, step, memory: memory::largest_stage(&job) })
    }
}

/// Searches all layouts and keeps the best `keep`.
pub fn search(workload: &Workload<'_>, keep: usize) -> SearchResult {
    let capacity = workload.cluster.device.memory_bytes();
    let (mut closed_form_pipelines, mut layer_cache) =
        (Pipelines::closed_form(), LayerCache::default());
    let (mut examined, mut too_large) = (0, 0);
    let (mut fitting, mut almost_fits): (Vec<Candidate>, Vec<Candidate>) = (Vec::new(), Vec::new());
    let mut without_states = Vec::new();
    space::layouts(workload, &mut |layout| {
        examined += 1;
        let job = workload.job(layout);
        let memory = memory::largest_stage(&job);
        let needed = memory.needed(workload.calibration);
        let fits = needed <= capacity;
        too_large += usize::from(!fits);
        if !fits && needed - memory.optimizer <= capacity {
            without_states.push(Layout { offload: true, ..layout });
        }
        if needed > ALMOST_FIT * capacity {
            return;
        }
        let step = time::step_cached(
            &job,
            workload.calibration,
            &mut closed_form_pipelines,
            &mut layer_cache,
        );
        let Some(step) = step else { return };
        let choice = Candidate { layout, step, memory };
        if fits {
            fitting.push(choice);
        } else {
            almost_fits.push(choice);
        }
    });
    // Optimizer offload is slow: it is tried only where nothing fits without.
    if fitting.is_empty() {
        examined += without_states.len();
        let priced = without_states
            .into_iter()
            .filter_map(|l| workload.price(l, &mut closed_form_pipelines));
        fitting = priced.collect();
    }
    for sorted in [&mut fitting, &mut almost_fits] {
        sorted.sort_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds));
    }
    // Simulated like the best layouts, so that the times compare.
    let with_sync = with_sync(&simulated(workload, &fastest_to_loss(&fitting), SIMULATED), keep);
    let best = simulated(workload, &fitting, keep);
    // Simulated like the best layouts, so that the times compare.
    let front = pareto(&fitting);
    let mut front = [simulated(workload, &front, front.len()), best.clone()].concat();
    front.sort_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds));
    let pareto = pareto(&front);
    let fastest = best.first().map_or(f64::INFINITY, |choice| choice.step.seconds);
    almost_fits.truncate(ALMOST_FIT_SIMULATED);
    let almost_fits =
        simulated(workload, &almost_fits, 1).pop().filter(|one| one.step.seconds < fastest);
    SearchResult { examined, too_large, best, almost_fits, pareto, with_sync }
}

/// Best candidates by closed form, ranked again by simulation.
fn simulated(workload: &Workload<'_>, fitting: &[Candidate], keep: usize) -> Vec<Candidate> {
    let mut pipelines = Pipelines::default();
    let mut best: Vec<Candidate> = fitting
        .iter()
        .take(SIMULATED.max(keep))
        .filter_map(|choice| workload.price(choice.layout, &mut pipelines))
        .collect();
    best.sort_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds));
    best.truncate(keep);
    best
}

/// Best sync method of a layout.
fn best_sync(choice: &Candidate) -> Option<LayoutWithSync> {
    let sync = advice::sync_methods(&choice.step, choice.layout.zero > 0).into_iter().next()?;
    let seconds = sync.relative_time * choice.step.seconds;
    Some(LayoutWithSync { layout: choice.layout, sync, seconds })
}

/// Layouts with the shortest time to the same loss under their best sync method.
fn fastest_to_loss(fitting: &[Candidate]) -> Vec<Candidate> {
    let seconds =
        |choice: &Candidate| best_sync(choice).map_or(f64::INFINITY, |with_sync| with_sync.seconds);
    let mut all: Vec<(f64, &Candidate)> = fitting.iter().map(|one| (seconds(one), one)).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all.into_iter().take(SYNC_SIMULATED).map(|(_, choice)| choice.clone()).collect()
}

/// All layouts with their best sync method, fastest to the same loss first.
fn with_sync(fitting: &[Candidate], keep: usize) -> Vec<LayoutWithSync> {
    let mut all: Vec<LayoutWithSync> = fitting.iter().filter_map(best_sync).collect();
    all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    all.truncate(keep);
    all
}

/// Pareto front of candidates sorted by time.
fn pareto(sorted: &[Candidate]) -> Vec<Candidate> {
    let mut least = f64::INFINITY;
    let mut front = Vec::new();
    for choice in sorted {
        let held = choice.memory.total();
        // A few percent of memory are not worth an entry.
        if held < 0.95 * least {
            least = held;
            front.push(choice.clone());
        }
    }
    front
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::named;
    use crate::model::preset;

    fn found(model: &str, cluster: &str, batch: u64) -> SearchResult {
        let (model, cluster) =
            (preset(model).expect("a model"), named(cluster).expect("a cluster"));
        let calibration = Calibration::of(cluster.device.calibration).expect("it is there");
        let framework = Framework::MODERN;
        let workload = Workload {
            model: &model,
            cluster: &cluster,
            batch,
            framework,
            calibration: &calibration,
        };
        search(&workload, 5)
    }

    #[test]
    fn gpt_3_on_a_thousand_devices_uses_tensor_or_pipeline_parallelism() {
        let found = found("gpt3-175b", "1024xa100-80gb", 1536);
        assert!(found.examined > 10_000, "{}", found.examined);
        assert!(found.too_large > 0 && found.best.len() == 5);
        let best = &found.best[0];
        assert_eq!(best.layout.devices(), 1024);
        assert!(best.layout.tensor * best.layout.pipeline > 1, "{:?}", best.layout);
        assert!(found.best.windows(2).all(|pair| pair[0].step.seconds <= pair[1].step.seconds));
        let falling = |pair: &[Candidate]| pair[0].memory.total() > pair[1].memory.total();
        assert!(found.pareto.windows(2).all(falling));
        let seconds = |choices: &[Candidate]| choices[0].step.seconds;
        assert!(seconds(&found.best) <= seconds(&found.pareto), "the best is one of them");
    }

    #[test]
    fn a_mixture_of_experts_on_two_thousand_devices_uses_expert_parallelism() {
        let found = found("deepseek-v3", "2048xh100-80gb", 15_360);
        assert!(found.examined > 50_000, "{}", found.examined);
        let best = &found.best[0];
        assert_eq!(best.layout.devices(), 2048);
        assert!(best.layout.expert > 1 && best.layout.pipeline > 1, "{:?}", best.layout);
    }

    #[test]
    fn optimizer_state_is_offloaded_where_nothing_fits_without() {
        let found = found("llama3-70b", "16xh100-80gb", 512);
        let best = &found.best[0];
        assert!(best.layout.offload && best.memory.optimizer <= 0.0, "{:?}", best.layout);
        // All optimizer state passes the host's memory, so the optimizer step is slow.
        assert!(best.step.update > 1.0, "{:?}", best.step);
    }

    #[test]
    fn a_model_that_cannot_fit_has_no_layout() {
        let found = found("gpt3-175b", "8xv100-16gb", 64);
        assert!(found.best.is_empty() && found.too_large == found.examined);
    }
}

//! Search over all layouts of a model on a cluster.
//!
//! # Layout
//! - [`space`]: enumeration of valid layouts
//! - `explore`: prices of all of them in closed form, and of the best by simulation
//! - [`mod@fastest`]: the fastest layout alone, and lower bounds
//! - [`explain`]: comparison with the runner-up, and fixes for layouts that do not fit
//! - [`scaling`]: strong and weak scaling over device counts
//! - [`size`]: the smallest cluster that meets a deadline or a budget
//! - [`upgrades`]: time and money with more of one resource
//! - [`sensitivity`]: days and dollars with inputs 20 % better and 20 % worse
//!
//! Most layouts do not fit and memory is cheap to count, so it is checked first. Layouts that fit
//! are priced with closed-form pipelines; the best are simulated event by event and ranked again.

pub mod explain;
mod explore;
pub mod fastest;
pub mod scaling;
pub mod sensitivity;
pub mod size;
pub mod space;
pub mod upgrades;

use crate::advice::{self, SyncMethod};
use crate::job::Workload;
use crate::layout::Layout;
use crate::memory::cluster::{StageMemory, largest_stage};
use crate::pipeline::Pipelines;
use crate::time::cluster::{self as time, Step};
use explore::{Explored, SIMULATED, explore, simulated, sorted};

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
    pub memory: StageMemory,
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

impl Candidate {
    /// Prices one layout with its pipeline.
    pub fn price(workload: &Workload<'_>, pipelines: &mut Pipelines) -> Option<Self> {
        let step = time::step(workload, pipelines)?;
        let memory = largest_stage(&workload.job);
        Some(Self { layout: workload.job.layout, step, memory })
    }
}

/// Searches all layouts and keeps the best `keep`.
pub fn search(workload: &Workload<'_>, keep: usize) -> SearchResult {
    let Explored { examined, too_large, fitting, mut almost_fits } =
        explore(workload, f64::INFINITY, ALMOST_FIT);
    // Simulated like the best layouts, so that the times compare.
    let fastest_to_loss = by_time_to_loss(&fitting).into_iter().take(SYNC_SIMULATED);
    let fastest_to_loss: Vec<_> = fastest_to_loss.map(|(_, choice)| choice.clone()).collect();
    let with_sync = simulated(workload, &fastest_to_loss, SIMULATED);
    let with_sync =
        by_time_to_loss(&with_sync).into_iter().take(keep).map(|(one, _)| one).collect();
    let best = simulated(workload, &fitting, keep);
    // Simulated like the best layouts, so that the times compare.
    let front = pareto(&fitting);
    let front = [simulated(workload, &front, front.len()), best.clone()].concat();
    let front = sorted(front);
    let pareto = pareto(&front);
    let fastest = best.first().map_or(f64::INFINITY, |choice| choice.step.seconds);
    almost_fits.truncate(ALMOST_FIT_SIMULATED);
    let almost_fits =
        simulated(workload, &almost_fits, 1).pop().filter(|one| one.step.seconds < fastest);
    SearchResult { examined, too_large, best, almost_fits, pareto, with_sync }
}

/// Best sync method of a layout.
fn best_sync(choice: &Candidate) -> Option<LayoutWithSync> {
    let sync = advice::sync_methods(&choice.step, choice.layout.zero > 0).into_iter().next()?;
    let seconds = sync.relative_time * choice.step.seconds;
    Some(LayoutWithSync { layout: choice.layout, sync, seconds })
}

/// Candidates with their best sync method, fastest to the same loss first.
fn by_time_to_loss(fitting: &[Candidate]) -> Vec<(LayoutWithSync, &Candidate)> {
    let mut all: Vec<_> = fitting.iter().filter_map(|one| Some((best_sync(one)?, one))).collect();
    all.sort_by(|a, b| a.0.seconds.total_cmp(&b.0.seconds));
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
    use crate::scenario::Scenario;

    fn found(model: &str, cluster: &str, batch: u64) -> SearchResult {
        search(&Scenario::of(model, cluster, batch).workload(), 5)
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

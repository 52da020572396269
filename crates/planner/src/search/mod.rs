//! Search over all layouts of a model on a cluster.
//!
//! # Layout
//! - [`space`]: enumeration of valid layouts
//! - `explore`: prices of all of them in closed form, and of the best by simulation
//! - [`mod@fastest`]: the fastest layout alone, and lower bounds
//! - [`cloud`]: all layouts that fit as a bounded number of points
//! - [`explain`]: comparison with the runner-up, and fixes for layouts that do not fit
//! - [`scaling`]: strong and weak scaling over device counts
//! - [`size`]: the smallest cluster that meets a deadline or a budget
//! - [`upgrades`]: time and money with more of one resource
//! - [`sensitivity`]: days and dollars with inputs 20 % better and 20 % worse
//!
//! Most layouts do not fit and memory is cheap to count, so it is checked first. Layouts that fit
//! are priced with closed-form pipelines; the best are simulated event by event and ranked again.

pub mod cloud;
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
use cloud::CloudPoint;
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
    /// All layouts that fit, by closed form; neighbours are one point where they are many.
    pub cloud: Vec<CloudPoint>,
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
    let cloud = cloud::merged(&fitting);
    SearchResult { examined, too_large, best, almost_fits, pareto, cloud, with_sync }
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
    use crate::layout::{Offload, OffloadedStates};
    use crate::scenario::{DEFAULT_RESERVE, Scenario};

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
        let all: usize = found.cloud.iter().map(|point| point.num_merged).sum();
        assert!(all > 1000 && all <= found.examined - found.too_large, "{all}");
        assert!(found.cloud.len() > 100 && found.cloud.len() <= cloud::MAX_POINTS);
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
        assert!(best.layout.offload.is_on() && best.memory.optimizer <= 0.0, "{:?}", best.layout);
        // All optimizer state passes the host's memory, so the optimizer step is slow.
        assert!(best.step.update > 1.0, "{:?}", best.step);
    }

    #[test]
    fn zero_2_and_3_shard_gradients_and_weights_of_pipelines_and_cost_time() {
        let scenario = Scenario::of("llama3-8b", "64xh100-80gb", 512);
        let of = |zero| {
            let layout = Layout { pipeline: 4, data: 16, zero, ..Layout::ONE };
            Candidate::price(&scenario.workload().with(layout), &mut Pipelines::default())
                .expect("it can be scheduled")
        };
        let [one, two, three] = [1, 2, 3].map(of);
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
        close(two.memory.gradients, one.memory.gradients / 16.0);
        close(two.memory.weights, one.memory.weights);
        close(three.memory.weights, one.memory.weights / 16.0);
        close(three.memory.optimizer, one.memory.optimizer);
        // Gathered layers take memory, but less than the weights that they replace.
        assert!(two.memory.total() < one.memory.total());
        assert!(three.memory.total() < two.memory.total());
        // ZeRO-2 reduces gradients with every micro-batch, and ZeRO-3 gathers weights as well.
        assert!(one.step.seconds < two.step.seconds, "{one:?} {two:?}");
        assert!(two.step.seconds < three.step.seconds, "{two:?} {three:?}");
    }

    #[test]
    fn a_13b_model_fits_one_32_gb_v100_with_gradients_and_states_on_the_host() {
        // ZeRO-Offload (Ren et al. 2021, section 6.2): up to 13B parameters on one V100 of 32 GB.
        let found = found("gpt3-13b", "1xv100-32gb", 16);
        let best = found.best.first().expect("it fits");
        assert_eq!(best.layout.offload, Offload::ZERO_OFFLOAD, "{}", best.layout);
        assert!(best.memory.gradients + best.memory.optimizer <= 0.0, "{:?}", best.memory);
        // Gradients in 32 bits, master weights and two moments.
        let params = crate::model::preset("gpt3-13b").expect("it is one").num_params() as f64;
        assert!((best.memory.host / (16.0 * params) - 1.0).abs() < 1e-9, "{:?}", best.memory);
        // Without the gradients there it does not fit.
        let scenario = Scenario::of("gpt3-13b", "1xv100-32gb", 16);
        let offload = Offload::to_host(OffloadedStates::Optimizer);
        let workload = scenario.workload().with(Layout { offload, ..best.layout });
        assert!(!largest_stage(&workload.job).fits(&workload));
    }

    #[test]
    fn offloaded_weights_leave_the_device_and_drives_are_slower_than_hosts() {
        let scenario = Scenario::of("gpt3-6.7b", "8xa100-40gb", 64);
        let priced = |offload: &str| {
            let text = format!("dp=8,zero=3,recompute=full,offload={offload}");
            let layout = Layout::parse(&text).expect("a layout");
            Candidate::price(&scenario.workload().with(layout), &mut Pipelines::default())
                .expect("it can be scheduled")
        };
        let names = ["false", "optimizer", "gradients", "parameters", "parameters-nvme"];
        let [none, optimizer, gradients, host, nvme] = names.map(priced);
        let all = none.memory.weights + none.memory.gradients + none.memory.optimizer;
        assert!(optimizer.memory.gradients > 0.0 && gradients.memory.gradients <= 0.0);
        assert!(gradients.memory.weights > 0.0 && host.memory.weights <= 0.0);
        assert!((host.memory.host / all - 1.0).abs() < 1e-9 && host.memory.nvme <= 0.0);
        assert!((nvme.memory.nvme / all - 1.0).abs() < 1e-9 && nvme.memory.host <= 0.0);
        assert!(none.step.seconds < gradients.step.seconds, "the host updates more slowly");
        assert!(gradients.step.seconds <= host.step.seconds, "weights arrive from the host");
        assert!(host.step.seconds < nvme.step.seconds, "drives are slower");
        // A host with too little memory cannot hold them.
        let mut small = scenario.clone();
        small.cluster.host_memory_gb = 64.0;
        assert!(host.memory.fits(&scenario.workload().with(host.layout)));
        assert!(!host.memory.fits(&small.workload().with(host.layout)));
        assert!(nvme.memory.fits(&small.workload().with(nvme.layout)));
    }

    #[test]
    fn layouts_of_a_search_leave_the_reserve_free() {
        let mut scenario = Scenario::of("gpt3-13b", "16xa100-80gb", 64);
        let mut searched = |reserve: f64| {
            scenario.reserve = reserve;
            let found = search(&scenario.workload(), 48);
            let needed = found.best.iter().map(|one| one.memory.needed(&scenario.calibration));
            let most = needed.fold(0.0, f64::max) / scenario.cluster.device.memory_bytes();
            assert!(most <= 1.0 - reserve, "{most} with a reserve of {reserve}");
            found.too_large
        };
        let [none, usual, large] = [0.0, DEFAULT_RESERVE, 0.3].map(&mut searched);
        assert!(none < usual && usual < large, "{none} {usual} {large}: some would fill a device");
    }

    #[test]
    fn a_model_that_cannot_fit_has_no_layout() {
        let found = found("gpt3-175b", "8xv100-16gb", 64);
        assert!(found.best.is_empty() && found.too_large == found.examined);
    }
}

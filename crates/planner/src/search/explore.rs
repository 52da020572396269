//! Exploration of all layouts of a workload: each in closed form, the best event by event.
//!
//! Most layouts do not fit and memory is cheap to count, so it is checked first, unless a limit of
//! the step time excludes most of them.

use super::{Candidate, space};
use crate::job::Workload;
use crate::layout::{Layout, Offload, OffloadedStates};
use crate::memory::cluster::largest_stage;
use crate::pipeline::Pipelines;
use crate::time::cluster::{self as time, Step};
use crate::time::layer_cache::LayerCache;

/// Candidates that are simulated event by event.
pub(super) const SIMULATED: usize = 48;
/// Largest ratio of a layout's closed-form time to its simulated time.
const SLACK: f64 = 1.1;

/// Layouts by closed form, fastest first.
#[derive(Debug, Default)]
pub(super) struct Explored {
    pub(super) examined: usize,
    pub(super) too_large: usize,
    pub(super) fitting: Vec<Candidate>,
    /// Layouts that need a little more memory than a device has.
    pub(super) almost_fits: Vec<Candidate>,
}

/// Prices every layout that may take at most `seconds` per step and needs at most `almost_fit`
/// times the memory of a device.
pub(super) fn explore(workload: &Workload<'_>, seconds: f64, almost_fit: f64) -> Explored {
    let (job, capacity) = (&workload.job, workload.usable_bytes());
    let (mut pipelines, mut cache) = (Pipelines::closed_form(), LayerCache::default());
    let (mut found, mut rejected) = (Explored::default(), Vec::new());
    let bound = matmul_bound(workload);
    // Whether the layout fits, or is too slow to ask.
    let mut examine = |layout: Layout| -> bool {
        found.examined += 1;
        let workload = workload.with(layout);
        let has_limit = seconds.is_finite();
        if has_limit && time::min_seconds_cached(&workload, &mut cache) > seconds {
            return true;
        }
        let mut price = || time::step_cached(&workload, &mut pipelines, &mut cache);
        let priced_first = has_limit.then(&mut price);
        let is_over = |step: Option<Step>| step.is_none_or(|s| s.seconds > SLACK * seconds);
        if priced_first.is_some_and(is_over) {
            return true;
        }
        let memory = largest_stage(&workload.job);
        let needed = memory.needed(workload.calibration);
        let fits = memory.fits(&workload);
        if !fits {
            found.too_large += 1;
            rejected.push(layout);
        }
        if needed > almost_fit * capacity {
            return fits;
        }
        let choice = priced_first.unwrap_or_else(price);
        let choice = choice.map(|step| Candidate { layout, step, memory });
        let list = if fits { &mut found.fitting } else { &mut found.almost_fits };
        list.extend(choice);
        fits
    };
    // ZeRO-2 and ZeRO-3 communicate with every micro-batch of a pipeline, where ZeRO-1 does once a
    // step: they are tried where less does not fit.
    let mut examine_shardings = |layout: Layout| {
        let stages =
            if layout.pipeline > 1 && layout.zero == 1 { 1..=3 } else { layout.zero..=layout.zero };
        let _ = stages.into_iter().any(|zero| examine(Layout { zero, ..layout }));
    };
    for degrees in space::degree_sets(job).into_iter().filter(|degrees| bound(degrees) <= seconds) {
        space::switches(job, degrees, &mut examine_shardings);
    }
    // Offloading is slow: it is tried only where nothing fits without, and that of weights only
    // where nothing fits with them on the device.
    for offload in [Offload::ZERO_OFFLOAD, Offload::to_host(OffloadedStates::Weights)] {
        if found.fitting.is_empty() {
            found.examined += rejected.len();
            let layouts = rejected.iter().map(|layout| Layout { offload, ..*layout });
            let fits = |layout: &Layout| {
                let workload = workload.with(*layout);
                largest_stage(&workload.job).fits(&workload)
            };
            let fitting: Vec<_> = layouts.filter(fits).collect();
            found.too_large += rejected.len() - fitting.len();
            found.fitting = priced(workload, fitting, &mut pipelines);
        }
    }
    let Explored { fitting, almost_fits, .. } = found;
    Explored { fitting: sorted(fitting), almost_fits: sorted(almost_fits), ..found }
}

/// Best candidates by closed form, ranked again by simulation.
pub(super) fn simulated(
    workload: &Workload<'_>,
    fitting: &[Candidate],
    keep: usize,
) -> Vec<Candidate> {
    let layouts = fitting.iter().take(SIMULATED.max(keep)).map(|choice| choice.layout);
    let mut best = sorted(priced(workload, layouts, &mut Pipelines::default()));
    best.truncate(keep);
    best
}

/// Prices layouts that can be scheduled.
fn priced(
    workload: &Workload<'_>,
    layouts: impl IntoIterator<Item = Layout>,
    pipelines: &mut Pipelines,
) -> Vec<Candidate> {
    let price = |layout| Candidate::price(&workload.with(layout), pipelines);
    layouts.into_iter().filter_map(price).collect()
}

/// Candidates by ascending step time.
pub(super) fn sorted(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    candidates.sort_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds));
    candidates
}

/// Lower bound by matmuls: those of the device with most layers, at the speed of a large one.
pub(super) fn matmul_bound(workload: &Workload<'_>) -> impl Fn(&Layout) -> f64 {
    let Workload { job, calibration, .. } = workload;
    let (model, device) = (job.model, &job.cluster.device);
    let inner = model.experts.map_or(model.ffn, |experts| {
        let routed = experts.per_token * experts.ffn + experts.shared_ffn;
        if model.dense_layers() > 0 { routed.min(model.ffn) } else { routed }
    });
    let matrices = model.attention_matrices() + model.ffn_matrices(inner);
    // Forward, input gradient and weight gradient.
    let flops = 6.0 * (matrices * job.batch * model.context) as f64;
    let tflops = if job.framework.fp8 { device.peak_tflops_fp8 } else { device.peak_tflops };
    let clock = device.clock(calibration.watts);
    let speed = tflops * 1e12 * clock * calibration.matrix_share;
    let layers = model.layers;
    move |degrees| {
        let most = layers.div_ceil(degrees.pipeline) as f64;
        most * flops / (degrees.tensor * degrees.context * degrees.data) as f64 / speed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn pipelines_shard_more_where_zero_1_does_not_fit() {
        let mut scenario = Scenario::of("llama3-8b", "16xh100-80gb", 16);
        scenario.cluster.device.memory_gb = 24.0;
        let workload = scenario.workload();
        let fitting = explore(&workload, f64::INFINITY, 1.0).fitting;
        let sharded = fitting.iter().map(|choice| choice.layout);
        let sharded: Vec<_> = sharded.filter(|one| one.pipeline > 1 && one.zero > 1).collect();
        assert!(!sharded.is_empty());
        for layout in sharded {
            let less = workload.with(Layout { zero: layout.zero - 1, ..layout });
            assert!(!largest_stage(&less.job).fits(&less), "{layout}");
        }
    }
}

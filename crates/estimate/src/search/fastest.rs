//! Search for the fastest layout alone, for searches over many clusters.

use super::{Candidate, SIMULATED, Workload, simulated, space};
use crate::layout::Layout;
use crate::memory;
use crate::time::{self, Step, layer_cache::LayerCache, pipeline::Pipelines};

/// Largest ratio of a layout's closed-form time to its simulated time.
const SLACK: f64 = 1.1;

/// First result of [`search`](super::search). Layouts that do not fit are not priced, which saves
/// most of the time.
pub fn fastest(workload: &Workload<'_>) -> Option<Candidate> {
    fastest_within(workload, f64::INFINITY)
}

/// Fastest layout with a step time of at most `seconds`. Layouts whose lower bound exceeds the
/// limit are skipped.
pub fn fastest_within(workload: &Workload<'_>, seconds: f64) -> Option<Candidate> {
    let capacity = workload.cluster.device.memory_bytes();
    let (mut closed_form_pipelines, mut layer_cache) =
        (Pipelines::closed_form(), LayerCache::default());
    let (mut fitting, mut without_states) = (Vec::new(), Vec::new());
    let bound = matmul_bound(workload);
    for degrees in
        space::degree_sets(workload).into_iter().filter(|degrees| bound(degrees) <= seconds)
    {
        space::switches(workload, degrees, &mut |layout| {
            let job = workload.job(layout);
            if time::min_seconds_cached(&job, workload.calibration, &mut layer_cache) > seconds {
                return;
            }
            let mut price = || {
                time::step_cached(
                    &job,
                    workload.calibration,
                    &mut closed_form_pipelines,
                    &mut layer_cache,
                )
            };
            // With a limit most layouts exceed it, so the time is checked before the memory.
            let priced_first = seconds.is_finite().then(&mut price);
            let is_over = |step: Option<Step>| step.is_none_or(|s| s.seconds > SLACK * seconds);
            if priced_first.is_some_and(is_over) {
                return;
            }
            let memory = memory::largest_stage(&job);
            let needed = memory.needed(workload.calibration);
            if needed <= capacity {
                let step = priced_first.unwrap_or_else(price);
                fitting.extend(step.map(|step| Candidate { layout, step, memory }));
            } else if needed - memory.optimizer <= capacity {
                without_states.push(Layout { offload: true, ..layout });
            }
        });
    }
    if fitting.is_empty() {
        let priced = without_states
            .into_iter()
            .filter_map(|l| workload.price(l, &mut closed_form_pipelines));
        fitting = priced.collect();
    }
    fitting.sort_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds));
    fitting.truncate(SIMULATED);
    let best = simulated(workload, &fitting, 1).into_iter().next();
    best.filter(|best| best.step.seconds <= seconds)
}

/// Lower bound of the step time over all layouts, if there are any.
pub fn min_step_seconds(workload: &Workload<'_>) -> Option<f64> {
    let bound = matmul_bound(workload);
    space::degree_sets(workload).iter().map(bound).min_by(f64::total_cmp)
}

/// Lower bound by matmuls: those of the device with most layers, at the speed of a large one.
fn matmul_bound(workload: &Workload<'_>) -> impl Fn(&Layout) -> f64 {
    let (model, device) = (workload.model, &workload.cluster.device);
    let inner = model.experts.map_or(model.ffn, |experts| {
        let routed = experts.per_token * experts.ffn + experts.shared_ffn;
        if model.dense_layers() > 0 { routed.min(model.ffn) } else { routed }
    });
    let matrices = model.attention_matrices() + model.ffn_matrices(inner);
    // Forward, input gradient and weight gradient.
    let flops = 6.0 * (matrices * workload.batch * model.context) as f64;
    let tflops = if workload.framework.fp8 { device.peak_tflops_fp8 } else { device.peak_tflops };
    let clock = device.clock(workload.calibration.watts);
    let speed = tflops * 1e12 * clock * workload.calibration.matrix_share;
    let layers = model.layers;
    move |degrees| {
        let most = layers.div_ceil(degrees.pipeline) as f64;
        most * flops / (degrees.tensor * degrees.context * degrees.data) as f64 / speed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Calibration;
    use crate::hardware::named;
    use crate::layout::Framework;
    use crate::model::preset;
    use crate::search::search;

    #[test]
    fn fastest_is_the_first_of_a_search_and_above_the_matmul_bound() {
        for (model, cluster, batch) in [
            ("llama3-8b", "48xh100-80gb", 512),
            ("gpt3-175b", "256xa100-80gb", 1536),
            ("deepseek-v3", "512xh100-80gb", 1024),
            ("llama3-70b", "16xh100-80gb", 512),
            ("gpt3-175b", "8xv100-16gb", 64),
        ] {
            let model = preset(model).expect("a model");
            let cluster = named(cluster).expect("a cluster");
            let calibration = Calibration::of(cluster.device.calibration).expect("it is there");
            let workload = Workload {
                model: &model,
                cluster: &cluster,
                batch,
                framework: Framework::MODERN,
                calibration: &calibration,
            };
            let found = fastest(&workload);
            assert_eq!(found.as_ref(), search(&workload, 1).best.first(), "{}", model.name);
            let Some(found) = found else { continue };
            let least = min_step_seconds(&workload).expect("there are layouts");
            assert!(least <= found.step.seconds && least > 0.3 * found.step.compute, "{least}");
        }
    }

    #[test]
    fn cached_layers_cost_the_same_bit_for_bit() {
        let model = preset("mixtral-8x7b").expect("a model");
        let cluster = named("64xh100-80gb").expect("a cluster");
        let calibration = &Calibration::of("h100").expect("it is there");
        let modern = Framework::MODERN;
        let apart = Framework { accumulation_bytes: 12, syncs_hosts_in_stages: true, ..modern };
        for framework in [modern, apart] {
            let workload =
                Workload { model: &model, cluster: &cluster, batch: 64, framework, calibration };
            let (mut closed_form_pipelines, mut layer_cache) =
                (Pipelines::closed_form(), LayerCache::default());
            let mut count = 0;
            space::layouts(&workload, &mut |layout| {
                let job = workload.job(layout);
                let among = time::step_cached(
                    &job,
                    calibration,
                    &mut closed_form_pipelines,
                    &mut layer_cache,
                );
                assert_eq!(
                    among,
                    time::step(&job, calibration, &mut closed_form_pipelines),
                    "{layout:?}"
                );
                count += 1;
            });
            assert!(count > 10_000, "{count}");
        }
    }

    #[test]
    fn few_microbatches_do_not_make_a_schedule_look_free() {
        // Sixteen stages with eight micro-batches leave devices idle for half of a step under any
        // schedule. A closed form without that idle time would rank them first.
        let model = preset("llama-65b").expect("a model");
        let cluster = named("4096xa100-80gb").expect("a cluster");
        let calibration = Calibration::of("a100").expect("it is there");
        let framework = Framework::MODERN;
        let workload = Workload {
            model: &model,
            cluster: &cluster,
            batch: 2048,
            framework,
            calibration: &calibration,
        };
        let found = search(&workload, 5);
        let best = &found.best[0];
        assert!(found.pareto.iter().all(|other| other.step.seconds >= best.step.seconds));
        assert!(best.step.seconds < 3.1, "{} takes {}", best.layout, best.step.seconds);
    }

    #[test]
    fn a_limit_excludes_no_layout_within_it() {
        let model = preset("deepseek-v3").expect("a model");
        let cluster = named("512xh100-80gb").expect("a cluster");
        let calibration = Calibration::of("h100").expect("it is there");
        let framework = Framework::MODERN;
        let workload = Workload {
            model: &model,
            cluster: &cluster,
            batch: 1024,
            framework,
            calibration: &calibration,
        };
        let best = fastest(&workload).expect("it fits");
        let seconds = best.step.seconds;
        assert_eq!(fastest_within(&workload, 1.001 * seconds), Some(best));
        assert_eq!(fastest_within(&workload, 0.999 * seconds), None);
    }

    #[test]
    fn a_device_count_without_layouts_has_no_lower_bound() {
        let model = preset("llama3-8b").expect("a model");
        let cluster = named("101xh100-80gb").expect("a cluster");
        let calibration = Calibration::of("h100").expect("it is there");
        let workload = Workload {
            model: &model,
            cluster: &cluster,
            batch: 512,
            framework: Framework::MODERN,
            calibration: &calibration,
        };
        assert_eq!(min_step_seconds(&workload), None);
    }
}

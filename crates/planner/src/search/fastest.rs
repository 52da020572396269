//! Search for the fastest layout alone, for searches over many clusters.

use super::explore::{explore, matmul_bound, simulated};
use super::{Candidate, space};
use crate::job::Workload;

/// First result of [`search`](super::search). Layouts that do not fit are not priced, which saves
/// most of the time.
pub fn fastest(workload: &Workload<'_>) -> Option<Candidate> {
    fastest_within(workload, f64::INFINITY)
}

/// Fastest layout with a step time of at most `seconds`. Layouts whose lower bound exceeds the
/// limit are skipped.
pub fn fastest_within(workload: &Workload<'_>, seconds: f64) -> Option<Candidate> {
    let fitting = explore(workload, seconds, 1.0).fitting;
    simulated(workload, &fitting, 1).pop().filter(|best| best.step.seconds <= seconds)
}

/// Lower bound of the step time over all layouts, if there are any.
pub fn min_step_seconds(workload: &Workload<'_>) -> Option<f64> {
    let bound = matmul_bound(workload);
    space::degree_sets(&workload.job).iter().map(bound).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Framework;
    use crate::job::Job;
    use crate::pipeline::Pipelines;
    use crate::scenario::Scenario;
    use crate::search::search;
    use crate::time::cluster as time;
    use crate::time::layer_cache::LayerCache;

    #[test]
    fn fastest_is_the_first_of_a_search_and_above_the_matmul_bound() {
        for (model, cluster, batch) in [
            ("llama3-8b", "48xh100-80gb", 512),
            ("gpt3-175b", "256xa100-80gb", 1536),
            ("deepseek-v3", "512xh100-80gb", 1024),
            ("llama3-70b", "16xh100-80gb", 512),
            ("gpt3-175b", "8xv100-16gb", 64),
        ] {
            let scenario = Scenario::of(model, cluster, batch);
            let workload = scenario.workload();
            let found = fastest(&workload);
            assert_eq!(found.as_ref(), search(&workload, 1).best.first(), "{model}");
            let Some(found) = found else { continue };
            let least = min_step_seconds(&workload).expect("there are layouts");
            assert!(least <= found.step.seconds && least > 0.3 * found.step.compute, "{least}");
        }
    }

    #[test]
    fn cached_layers_cost_the_same_bit_for_bit() {
        let scenario = Scenario::of("mixtral-8x7b", "64xh100-80gb", 64);
        let modern = Framework::MODERN;
        let apart = Framework { accumulation_bytes: 12, syncs_hosts_in_stages: true, ..modern };
        for framework in [modern, apart] {
            let workload = scenario.workload();
            let workload = Workload { job: Job { framework, ..workload.job }, ..workload };
            let (mut closed_form_pipelines, mut layer_cache) =
                (Pipelines::closed_form(), LayerCache::default());
            let mut count = 0;
            let mut price = |layout| {
                let workload = workload.with(layout);
                let among =
                    time::step_cached(&workload, &mut closed_form_pipelines, &mut layer_cache);
                let alone = time::step(&workload, &mut closed_form_pipelines);
                assert_eq!(among, alone, "{layout:?}");
                count += 1;
            };
            for degrees in space::degree_sets(&workload.job) {
                space::switches(&workload.job, degrees, &mut price);
            }
            assert!(count > 10_000, "{count}");
        }
    }

    #[test]
    fn few_microbatches_do_not_make_a_schedule_look_free() {
        // Sixteen stages with eight micro-batches leave devices idle for half of a step under any
        // schedule. A closed form without that idle time would rank them first.
        let scenario = Scenario::of("llama-65b", "4096xa100-80gb", 2048);
        let found = search(&scenario.workload(), 5);
        let best = &found.best[0];
        assert!(found.pareto.iter().all(|other| other.step.seconds >= best.step.seconds));
        assert!(best.step.seconds < 3.1, "{} takes {}", best.layout, best.step.seconds);
    }

    #[test]
    fn a_limit_excludes_no_layout_within_it() {
        let scenario = Scenario::of("deepseek-v3", "512xh100-80gb", 1024);
        let workload = scenario.workload();
        let best = fastest(&workload).expect("it fits");
        let seconds = best.step.seconds;
        assert_eq!(fastest_within(&workload, 1.001 * seconds), Some(best));
        assert_eq!(fastest_within(&workload, 0.999 * seconds), None);
    }

    #[test]
    fn a_device_count_without_layouts_has_no_lower_bound() {
        let scenario = Scenario::of("llama3-8b", "101xh100-80gb", 512);
        assert_eq!(min_step_seconds(&scenario.workload()), None);
    }
}

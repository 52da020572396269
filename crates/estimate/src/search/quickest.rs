//! The quickest layout and nothing else, for those who search many clusters.

use super::{Choice, PLAYED, Question, played, space};
use crate::layout::Layout;
use crate::memory;
use crate::time::{self, Step, common::Common, pipeline::Pipelines};

/// A layout may turn out quicker than its closed form by this much when it is played.
const SLACK: f64 = 1.1;

/// What [`search`](super::search) would find first. What does not fit is not priced, which saves
/// most of the time.
pub fn quickest(question: &Question<'_>) -> Option<Choice> {
    quickest_within(question, f64::INFINITY)
}

/// The same if it takes no longer than a limit, which saves most of what is left: layouts that
/// would take longer even without pauses are passed over.
pub fn quickest_within(question: &Question<'_>, seconds: f64) -> Option<Choice> {
    let capacity = question.cluster.device.memory_bytes();
    let (mut quick, mut common) = (Pipelines::closed_form(), Common::default());
    let (mut fitting, mut without_states) = (Vec::new(), Vec::new());
    let products = products_seconds(question);
    for cut in space::cuts(question).into_iter().filter(|cut| products(cut) <= seconds) {
        space::switches(question, cut, &mut |layout| {
            let job = question.job(layout);
            if time::least_of_many(&job, question.calibration, &mut common) > seconds {
                return;
            }
            let mut price =
                || time::step_of_many(&job, question.calibration, &mut quick, &mut common);
            // Where there is a limit most layouts are beyond it, and need not be counted.
            let early = seconds.is_finite().then(&mut price);
            let is_late = |step: Option<Step>| step.is_none_or(|s| s.seconds > SLACK * seconds);
            if early.is_some_and(is_late) {
                return;
            }
            let memory = memory::fullest(&job);
            let needed = memory.needed(question.calibration);
            if needed <= capacity {
                let step = early.unwrap_or_else(price);
                fitting.extend(step.map(|step| Choice { layout, step, memory }));
            } else if needed - memory.optimizer <= capacity {
                without_states.push(Layout { offload: true, ..layout });
            }
        });
    }
    if fitting.is_empty() {
        let priced = without_states.into_iter().filter_map(|l| question.price(l, &mut quick));
        fitting = priced.collect();
    }
    fitting.sort_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds));
    fitting.truncate(PLAYED);
    let best = played(question, &fitting, 1).into_iter().next();
    best.filter(|best| best.step.seconds <= seconds)
}

/// Seconds that no layout of the question can beat, if there is one.
pub fn least_seconds(question: &Question<'_>) -> Option<f64> {
    let products = products_seconds(question);
    space::cuts(question).iter().map(products).min_by(f64::total_cmp)
}

/// Products of the device with most layers, at the speed of a large one.
fn products_seconds(question: &Question<'_>) -> impl Fn(&Layout) -> f64 {
    let (model, device) = (question.model, &question.cluster.device);
    let inner = model.experts.map_or(model.ffn, |experts| {
        let routed = experts.per_token * experts.ffn + experts.shared_ffn;
        if model.dense_layers() > 0 { routed.min(model.ffn) } else { routed }
    });
    let matrices = model.attention_matrices() + model.ffn_matrices(inner);
    // Forward, and the gradients of what comes in and of weights.
    let flops = 6.0 * (matrices * question.batch * model.context) as f64;
    let tflops = if question.habits.fp8 { device.peak_tflops_fp8 } else { device.peak_tflops };
    let clock = device.clock(question.calibration.watts);
    let speed = tflops * 1e12 * clock * question.calibration.matrix_share;
    let layers = model.layers;
    move |cut| {
        let most = layers.div_ceil(cut.pipeline) as f64;
        most * flops / (cut.tensor * cut.context * cut.data) as f64 / speed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Calibration;
    use crate::hardware::named;
    use crate::layout::Habits;
    use crate::model::preset;
    use crate::search::search;

    #[test]
    fn it_is_the_first_of_a_search_and_never_below_what_products_take() {
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
            let question = Question {
                model: &model,
                cluster: &cluster,
                batch,
                habits: Habits::MODERN,
                calibration: &calibration,
            };
            let found = quickest(&question);
            assert_eq!(found.as_ref(), search(&question, 1).best.first(), "{}", model.name);
            let Some(found) = found else { continue };
            let least = least_seconds(&question).expect("there are layouts");
            assert!(least <= found.step.seconds && least > 0.3 * found.step.compute, "{least}");
        }
    }

    #[test]
    fn layers_that_were_priced_already_cost_the_same_to_the_bit() {
        let model = preset("mixtral-8x7b").expect("a model");
        let cluster = named("64xh100-80gb").expect("a cluster");
        let calibration = &Calibration::of("h100").expect("it is there");
        let modern = Habits::MODERN;
        let apart = Habits { adding_bytes: 12, waits_in_stages: true, ..modern };
        for habits in [modern, apart] {
            let question =
                Question { model: &model, cluster: &cluster, batch: 64, habits, calibration };
            let (mut quick, mut common) = (Pipelines::closed_form(), Common::default());
            let mut count = 0;
            space::layouts(&question, &mut |layout| {
                let job = question.job(layout);
                let among = time::step_of_many(&job, calibration, &mut quick, &mut common);
                assert_eq!(among, time::step(&job, calibration, &mut quick), "{layout:?}");
                count += 1;
            });
            assert!(count > 10_000, "{count}");
        }
    }

    #[test]
    fn few_microbatches_do_not_make_a_schedule_look_free() {
        // Sixteen stages with eight microbatches leave devices idle for half of a step, whatever
        // the schedule; once they were ranked as if nothing was idle, and hid all others.
        let model = preset("llama-65b").expect("a model");
        let cluster = named("4096xa100-80gb").expect("a cluster");
        let calibration = Calibration::of("a100").expect("it is there");
        let habits = Habits::MODERN;
        let question = Question {
            model: &model,
            cluster: &cluster,
            batch: 2048,
            habits,
            calibration: &calibration,
        };
        let found = search(&question, 5);
        let best = &found.best[0];
        assert!(found.pareto.iter().all(|other| other.step.seconds >= best.step.seconds));
        assert!(best.step.seconds < 3.1, "{} takes {}", best.layout.brief(), best.step.seconds);
    }

    #[test]
    fn a_limit_hides_nothing_that_keeps_it() {
        let model = preset("deepseek-v3").expect("a model");
        let cluster = named("512xh100-80gb").expect("a cluster");
        let calibration = Calibration::of("h100").expect("it is there");
        let habits = Habits::MODERN;
        let question = Question {
            model: &model,
            cluster: &cluster,
            batch: 1024,
            habits,
            calibration: &calibration,
        };
        let best = quickest(&question).expect("it fits");
        let seconds = best.step.seconds;
        assert_eq!(quickest_within(&question, 1.001 * seconds), Some(best));
        assert_eq!(quickest_within(&question, 0.999 * seconds), None);
    }

    #[test]
    fn a_number_that_nothing_divides_has_no_least() {
        let model = preset("llama3-8b").expect("a model");
        let cluster = named("101xh100-80gb").expect("a cluster");
        let calibration = Calibration::of("h100").expect("it is there");
        let question = Question {
            model: &model,
            cluster: &cluster,
            batch: 512,
            habits: Habits::MODERN,
            calibration: &calibration,
        };
        assert_eq!(least_seconds(&question), None);
    }
}

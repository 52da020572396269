//! Every layout of a model on a cluster, and the best of them.
//!
//! # Layout
//! - [`space`]: all layouts that divide
//! - [`mod@quickest`]: the best of them alone, and what none can beat
//! - [`report`]: why the second lost, and what a rejected one would need
//! - [`scaling`]: what more devices bring
//!
//! Most layouts do not fit, and memory is quick to count, so it goes first. What fits is priced
//! with pipelines by closed form; the best few are played event by event and ranked again.

pub mod quickest;
pub mod report;
pub mod scaling;
pub mod space;

use crate::advice::{self, Way};
use crate::calibration::Calibration;
use crate::hardware::Cluster;
use crate::layout::{Habits, Job, Layout};
use crate::memory::{self, Memory};
use crate::model::Model;
use crate::time::{self, Step, common::Common, pipeline::Pipelines};

/// Layouts that are played event by event.
const PLAYED: usize = 48;
/// A layout that needs no more than this many times the memory may be worth a change; so many of
/// them are played, since the quickest by closed form need not be the quickest.
const NEARLY: f64 = 1.5;
const NEARLY_PLAYED: usize = 8;
/// Layouts with other ways to keep copies together that are played.
const LAZY_PLAYED: usize = 16;

/// A layout with its price.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// How the model is divided.
    pub layout: Layout,
    /// What a step takes.
    pub step: Step,
    /// What the fullest device holds.
    pub memory: Memory,
}

/// What a search found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Layouts that divide.
    pub examined: usize,
    /// Those that need more memory than a device has.
    pub too_large: usize,
    /// Those that fit, quickest first.
    pub best: Vec<Choice>,
    /// The quickest of those that nearly fit, if it is quicker than all that do.
    pub nearly: Option<Choice>,
    /// Layouts that nothing beats both in time and in memory, quickest first.
    pub pareto: Vec<Choice>,
    /// Layouts with other ways to keep copies together, by estimated time to the same loss.
    pub lazy: Vec<Lazy>,
}

/// A layout with a way to keep copies together.
#[derive(Debug, Clone, PartialEq)]
pub struct Lazy {
    /// How the model is divided.
    pub layout: Layout,
    /// How copies are kept together, and what that costs in iterations.
    pub way: Way,
    /// Seconds of a step, times the factor on iterations.
    pub seconds: f64,
}

/// What is searched.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// What is trained.
    pub model: &'a Model,
    /// On what.
    pub cluster: &'a Cluster,
    /// Sequences of a step.
    pub batch: u64,
    /// What the program does beside.
    pub habits: Habits,
    /// What devices reach.
    pub calibration: &'a Calibration,
}

impl<'a> Question<'a> {
    /// One layout of it.
    pub const fn job(&self, layout: Layout) -> Job<'a> {
        Job {
            model: self.model,
            cluster: self.cluster,
            layout,
            batch: self.batch,
            habits: self.habits,
        }
    }

    /// Prices one layout, played event by event.
    pub fn price(&self, layout: Layout, pipelines: &mut Pipelines) -> Option<Choice> {
        let job = self.job(layout);
        let step = time::step(&job, self.calibration, pipelines)?;
        Some(Choice { layout, step, memory: memory::fullest(&job) })
    }
}

/// Searches all layouts; keeps the best `keep`.
pub fn search(question: &Question<'_>, keep: usize) -> Found {
    let capacity = question.cluster.device.memory_bytes();
    let (mut quick, mut common) = (Pipelines::closed_form(), Common::default());
    let (mut examined, mut too_large) = (0, 0);
    let (mut fitting, mut nearly): (Vec<Choice>, Vec<Choice>) = (Vec::new(), Vec::new());
    let mut without_states = Vec::new();
    space::layouts(question, &mut |layout| {
        examined += 1;
        let job = question.job(layout);
        let memory = memory::fullest(&job);
        let needed = memory.needed(question.calibration);
        let fits = needed <= capacity;
        too_large += usize::from(!fits);
        if !fits && needed - memory.optimizer <= capacity {
            without_states.push(Layout { offload: true, ..layout });
        }
        if needed > NEARLY * capacity {
            return;
        }
        let step = time::step_of_many(&job, question.calibration, &mut quick, &mut common);
        let Some(step) = step else { return };
        let choice = Choice { layout, step, memory };
        if fits {
            fitting.push(choice);
        } else {
            nearly.push(choice);
        }
    });
    // Hosts are slow: they keep states only where nothing fits without.
    if fitting.is_empty() {
        examined += without_states.len();
        let priced = without_states.into_iter().filter_map(|l| question.price(l, &mut quick));
        fitting = priced.collect();
    }
    for sorted in [&mut fitting, &mut nearly] {
        sorted.sort_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds));
    }
    // Played as the best are, or the two could not be compared.
    let lazy = lazy(&played(question, &soonest(&fitting), PLAYED), keep);
    let best = played(question, &fitting, keep);
    // Played as the best were, or the two could not be compared.
    let front = pareto(&fitting);
    let mut front = [played(question, &front, front.len()), best.clone()].concat();
    front.sort_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds));
    let pareto = pareto(&front);
    let quickest = best.first().map_or(f64::INFINITY, |choice| choice.step.seconds);
    nearly.truncate(NEARLY_PLAYED);
    let nearly = played(question, &nearly, 1).pop().filter(|one| one.step.seconds < quickest);
    Found { examined, too_large, best, nearly, pareto, lazy }
}

/// The best by closed form, ranked again by playing them.
fn played(question: &Question<'_>, fitting: &[Choice], keep: usize) -> Vec<Choice> {
    let mut pipelines = Pipelines::default();
    let mut best: Vec<Choice> = fitting
        .iter()
        .take(PLAYED.max(keep))
        .filter_map(|choice| question.price(choice.layout, &mut pipelines))
        .collect();
    best.sort_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds));
    best.truncate(keep);
    best
}

/// The way that suits a layout best.
fn best_way(choice: &Choice) -> Option<Lazy> {
    let way = advice::ways(&choice.step, choice.layout.zero > 0).into_iter().next()?;
    let seconds = way.relative_time * choice.step.seconds;
    Some(Lazy { layout: choice.layout, way, seconds })
}

/// The layouts that reach the same loss soonest with the way that suits them best.
fn soonest(fitting: &[Choice]) -> Vec<Choice> {
    let seconds = |choice: &Choice| best_way(choice).map_or(f64::INFINITY, |lazy| lazy.seconds);
    let mut all: Vec<(f64, &Choice)> = fitting.iter().map(|one| (seconds(one), one)).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all.into_iter().take(LAZY_PLAYED).map(|(_, choice)| choice.clone()).collect()
}

/// Every layout with the way that suits it best, the quickest to the same loss first.
fn lazy(fitting: &[Choice], keep: usize) -> Vec<Lazy> {
    let mut all: Vec<Lazy> = fitting.iter().filter_map(best_way).collect();
    all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    all.truncate(keep);
    all
}

/// Of layouts sorted by time, those with less memory than all quicker ones.
fn pareto(sorted: &[Choice]) -> Vec<Choice> {
    let mut least = f64::INFINITY;
    let mut front = Vec::new();
    for choice in sorted {
        let held = choice.memory.total();
        // A few percent of memory are not worth a row.
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

    fn found(model: &str, cluster: &str, batch: u64) -> Found {
        let (model, cluster) =
            (preset(model).expect("a model"), named(cluster).expect("a cluster"));
        let calibration = Calibration::of(cluster.device.calibration).expect("it is there");
        let habits = Habits::MODERN;
        let question =
            Question { model: &model, cluster: &cluster, batch, habits, calibration: &calibration };
        search(&question, 5)
    }

    #[test]
    fn gpt_3_on_a_thousand_devices_is_cut_into_slices_and_stages() {
        let found = found("gpt3-175b", "1024xa100-80gb", 1536);
        assert!(found.examined > 10_000, "{}", found.examined);
        assert!(found.too_large > 0 && found.best.len() == 5);
        let best = &found.best[0];
        assert_eq!(best.layout.devices(), 1024);
        assert!(best.layout.tensor * best.layout.pipeline > 1, "{:?}", best.layout);
        assert!(found.best.windows(2).all(|pair| pair[0].step.seconds <= pair[1].step.seconds));
        let falling = |pair: &[Choice]| pair[0].memory.total() > pair[1].memory.total();
        assert!(found.pareto.windows(2).all(falling));
        let seconds = |choices: &[Choice]| choices[0].step.seconds;
        assert!(seconds(&found.best) <= seconds(&found.pareto), "the best is one of them");
    }

    #[test]
    fn a_model_of_experts_on_two_thousand_devices_divides_its_experts() {
        let found = found("deepseek-v3", "2048xh100-80gb", 15_360);
        assert!(found.examined > 50_000, "{}", found.examined);
        let best = &found.best[0];
        assert_eq!(best.layout.devices(), 2048);
        assert!(best.layout.expert > 1 && best.layout.pipeline > 1, "{:?}", best.layout);
    }

    #[test]
    fn hosts_keep_the_states_where_nothing_fits_without() {
        let found = found("llama3-70b", "16xh100-80gb", 512);
        let best = &found.best[0];
        assert!(best.layout.offload && best.memory.optimizer <= 0.0, "{:?}", best.layout);
        // Every byte of them passes the host's memory, so the update takes longer than elsewhere.
        assert!(best.step.update > 1.0, "{:?}", best.step);
    }

    #[test]
    fn a_model_that_cannot_fit_has_no_layout_but_a_nearest_one() {
        let found = found("gpt3-175b", "8xv100-16gb", 64);
        assert!(found.best.is_empty() && found.too_large == found.examined);
    }
}

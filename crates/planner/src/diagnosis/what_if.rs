//! Counterfactuals (what-if figures): the step replayed with one thing changed.

use super::facts::RunFacts;
use super::measured_step::{MeasuredStep, RankTime};
use super::replay::{Scales, StepReplay};
use super::slow_rank::{SlowRank, work_by_rank};
use crate::calibration::machine::Machine;
use crate::recipe::layout_from_recipe;
use crate::time::engine;
use crate::traffic::Interconnect;
use lockstep_config::{Recipe, Sources, resolve};
use serde::Serialize;

/// A changed step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WhatIf {
    /// Name for programs, such as `no_straggler`.
    pub name: &'static str,
    /// Change in words.
    pub change: String,
    /// Recipe keys that make it, as arguments of `--set`; empty where hardware would have to
    /// change.
    pub settings: Vec<String>,
    /// Duration of the changed step.
    pub step_seconds: f64,
    /// Share of the measured step that it saves; negative if it is slower.
    pub gain: f64,
}

/// Counterfactuals of a run.
pub(super) struct WhatIfs<'a> {
    pub(super) facts: &'a RunFacts,
    pub(super) measured: &'a MeasuredStep,
    pub(super) replay: Option<&'a StepReplay>,
    pub(super) slow: Option<SlowRank>,
    pub(super) machine: Option<&'a Machine>,
}

impl WhatIfs<'_> {
    /// All figures that the run allows.
    pub(super) fn all(&self) -> Vec<WhatIf> {
        let mut found = Vec::new();
        found.extend(self.no_straggler());
        if let Some(replay) = self.replay.filter(|_| self.facts.recipe.run.workers > 1) {
            let bandwidth = Scales { transfer: 0.5, ..Scales::MEASURED };
            found.push(self.figure(
                "twice_the_bandwidth",
                "twice the bandwidth",
                replay,
                bandwidth,
            ));
            let latency = Scales { latency: 0.5, ..Scales::MEASURED };
            found.push(self.figure("half_the_latency", "half the latency", replay, latency));
            let change = "communication wholly hidden behind computation";
            found.push(self.figure("perfect_overlap", change, replay, Scales::SILENT));
        }
        found.extend(self.balanced_stages());
        found.extend(self.other_microbatch());
        found.extend(self.other_layout());
        found
    }

    /// The slow rank as fast as the usual one.
    pub(super) fn no_straggler(&self) -> Option<WhatIf> {
        let slow = self.slow?;
        let change = format!("rank {} as fast as the others", slow.rank);
        let scale = |rank: usize| slow.scale(rank, 0.0);
        let scales = Scales { compute: &scale, ..Scales::MEASURED };
        Some(self.figure("no_straggler", &change, self.replay?, scales))
    }

    /// Stages with equal work.
    pub(super) fn balanced_stages(&self) -> Option<WhatIf> {
        let parallel = &self.facts.recipe.parallel;
        let replay = self.replay.filter(|_| parallel.pipeline > 1)?;
        let mean = self.measured.mean(|rank| rank.compute_seconds);
        let scale = |rank: usize| mean / self.measured.ranks[rank].compute_seconds.max(1e-12);
        let scales = Scales { compute: &scale, ..Scales::MEASURED };
        let mut found = self.figure("balanced_stages", "stages of equal duration", replay, scales);
        if !parallel.stage_layers.is_empty() {
            found.settings = vec!["parallel.stage_layers=".to_owned()];
        }
        Some(found)
    }

    /// A recipe key changed; `scale` is the factor of the ranks' computation. `None` if the changed
    /// recipe is refused.
    pub(super) fn setting(&self, settings: &[String], scale: f64) -> Option<WhatIf> {
        let recipe = changed(&self.facts.recipe, settings)?;
        let ranks = self.ranks_of(&recipe, scale);
        let replay = self.replay?.with_recipe(self.facts, &recipe, &ranks)?;
        let found = self.figure("setting", &settings.join(" "), &replay, Scales::MEASURED);
        Some(WhatIf { settings: settings.to_vec(), ..found })
    }

    /// Twice the micro-batch size, or half of it in a pipeline, whose bubble then shrinks.
    pub(super) fn other_microbatch(&self) -> Option<WhatIf> {
        let Recipe { train, parallel, .. } = &self.facts.recipe;
        let doubled = 2 * train.microbatch_size;
        let sizes = match parallel.pipeline {
            1 => vec![4 * doubled, 2 * doubled, doubled],
            _ => vec![doubled, train.microbatch_size / 2],
        };
        let of_size = |size: usize| {
            let settings = microbatch_settings(&self.facts.recipe, size)?;
            let recipe = changed(&self.facts.recipe, &settings)?;
            let found = self.setting(&settings, self.computation_factor(&recipe)?)?;
            let change = format!("micro-batches of {size} sequences");
            Some(WhatIf { name: "other_microbatch", change, ..found })
        };
        sizes.into_iter().filter(|size| *size > 0).filter_map(of_size).max_by(by_gain)
    }

    /// The best other division of the ranks into pipelines and replicas.
    pub(super) fn other_layout(&self) -> Option<WhatIf> {
        let recipe = &self.facts.recipe;
        let workers = recipe.run.workers;
        let is_other = |pipeline: &usize| {
            workers.is_multiple_of(*pipeline)
                && (*pipeline != recipe.parallel.pipeline || recipe.parallel.tensor > 1)
        };
        let of_pipeline = |pipeline: usize| {
            let data = workers / pipeline;
            let settings = [
                format!("parallel.pipeline={pipeline}"),
                format!("parallel.data={data}"),
                "parallel.tensor=1".to_owned(),
                "parallel.virtual_stages=1".to_owned(),
                "parallel.schedule=1f1b".to_owned(),
                "parallel.stage_layers=".to_owned(),
                "parallel.leaf_shares=".to_owned(),
            ];
            let layout = layout_from_recipe(&changed(recipe, &settings)?);
            let change = format!("layout {layout}");
            let found = self.setting(&settings, 1.0)?;
            let settings = settings[..3].to_vec();
            Some(WhatIf { name: "other_layout", change, settings, ..found })
        };
        (1..=workers).filter(is_other).filter_map(of_pipeline).max_by(by_gain)
    }

    /// Factor of the ranks' computation with another recipe, by the calibration of this machine; a
    /// fixed time of micro-batches says nothing of other sizes.
    fn computation_factor(&self, other: &Recipe) -> Option<f64> {
        let own = &self.facts.recipe;
        let machine = self.machine.filter(|_| own.emulate.microbatch.0 == 0.0)?;
        let machine = machine.with(own.precision.compute)?;
        let seconds = |recipe: &Recipe| {
            engine::mean(recipe, &Interconnect::of_recipe(recipe), &machine).compute.0
        };
        Some(seconds(other) / seconds(own))
    }

    /// Times of the ranks of another recipe: the work of the whole step, which is that of this one
    /// times a factor, divided by FLOPs.
    fn ranks_of(&self, recipe: &Recipe, scale: f64) -> Vec<RankTime> {
        let work: f64 = self.measured.ranks.iter().map(|rank| rank.compute_seconds).sum();
        let num_ranks = recipe.run.workers as f64;
        let shares = work_by_rank(recipe);
        let rank = |(rank, share): (usize, f64)| RankTime {
            rank,
            compute_seconds: scale * work * share / num_ranks,
            optimizer_seconds: self.measured.mean(|rank| rank.optimizer_seconds),
            data_seconds: self.measured.mean(|rank| rank.data_seconds),
            exposed_communication_seconds: 0.0,
            waiting_for_rank_seconds: 0.0,
        };
        let is_same_division = recipe.parallel.pipeline == self.facts.recipe.parallel.pipeline
            && recipe.parallel.data == self.facts.recipe.parallel.data
            && recipe.parallel.stage_layers == self.facts.recipe.parallel.stage_layers;
        if is_same_division {
            // Ranks keep their measured differences.
            let scaled = |rank: &RankTime| RankTime {
                compute_seconds: scale * rank.compute_seconds,
                ..*rank
            };
            return self.measured.ranks.iter().map(scaled).collect();
        }
        shares.into_iter().enumerate().map(rank).collect()
    }

    fn figure(
        &self,
        name: &'static str,
        change: &str,
        replay: &StepReplay,
        scales: Scales<'_>,
    ) -> WhatIf {
        let step_seconds = replay.seconds(scales);
        let gain = (self.measured.seconds - step_seconds) / self.measured.total();
        WhatIf { name, change: change.to_owned(), settings: Vec::new(), step_seconds, gain }
    }
}

/// Order of two figures by their gain.
pub(super) fn by_gain(a: &WhatIf, b: &WhatIf) -> std::cmp::Ordering {
    a.gain.total_cmp(&b.gain)
}

/// Settings of another micro-batch size, with fewer reduction leaves where the batch has too few
/// micro-batches for them; `None` if the size is refused.
pub(super) fn microbatch_settings(recipe: &Recipe, size: usize) -> Option<Vec<String>> {
    let own = format!("train.microbatch={size}");
    let plain = vec![own.clone()];
    if changed(recipe, &plain).is_some() {
        return Some(plain);
    }
    let leaves = recipe.train.batch / size.max(1);
    let fewer = vec![own, format!("numerics.invariant_up_to={leaves}")];
    changed(recipe, &fewer).map(|_| fewer)
}

/// A recipe with some keys changed; `None` if it is refused.
pub(super) fn changed(recipe: &Recipe, settings: &[String]) -> Option<Recipe> {
    let file = Some(("recipe".to_owned(), recipe.to_toml()));
    resolve(&Sources { file, sets: settings.to_vec(), ..Sources::default() }).ok()
}

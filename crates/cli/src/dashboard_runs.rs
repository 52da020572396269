//! Facts of a run for the dashboard beyond its events: recipe, plan, state, diagnosis and the
//! planned step.

use crate::calibration_file;
use crate::commands::explain;
use crate::diagnosis;
use crate::prediction;
use lockstep_config::Recipe;
use lockstep_dashboard::runs::PlannedMemory;
use lockstep_dashboard::{RunInfo, Runs, State};
use lockstep_planner::diagnosis::{PlannedRank, planned_step};
use lockstep_planner::memory::{Process, RankMemory};
use lockstep_planner::recipe::layout_from_recipe;
use lockstep_planner::traffic::{BytesByPair, Interconnect, total};
use lockstep_platform::World;
use lockstep_trainer::RunFolder;
use lockstep_trainer::recorded_run::RecordedRun;
use lockstep_trainer::run_folder::load_recipe;
use lockstep_trainer::run_list::list_runs;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Ranks whose planned step is sent to a page.
const MAX_RANKS: usize = 16;
/// Tasks of a planned step that are sent to a page.
const MAX_TASKS: usize = 20_000;
/// Ranks of a matrix that is sent to a page.
const MAX_MATRIX: usize = 64;

/// Runs in folders: each is the folder of a run, or one with such folders in it.
pub(crate) struct FolderRuns {
    world: World,
    sources: Vec<PathBuf>,
    process: Process,
}

impl FolderRuns {
    /// Runs of these folders; plans of memory begin with that of `process`.
    pub(crate) fn new(world: &World, sources: Vec<PathBuf>, process: Process) -> Self {
        Self { world: World::clone(world), sources, process }
    }

    /// Layout of a run on one line; `None` if its recipe cannot be read.
    pub(crate) fn layout(&self, folder: &Path) -> Option<String> {
        Some(layout_from_recipe(&self.recipe(folder)?).to_string())
    }

    fn is_run(&self, folder: &Path) -> bool {
        RunFolder::started(folder, &self.world).is_ok()
    }

    fn recipe(&self, folder: &Path) -> Option<Recipe> {
        let folder = RunFolder::started(folder, &self.world).ok()?;
        load_recipe(&folder, &self.world).ok()
    }
}

impl Runs for FolderRuns {
    fn folders(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for source in &self.sources {
            if self.is_run(source) {
                found.push(source.clone());
                continue;
            }
            let mut inside = self.world.files().list(source).unwrap_or_default();
            inside.retain(|folder| self.is_run(folder));
            inside.sort_by_key(|folder| {
                (self.world.files().modified(&folder.join("recipe.toml")), folder.clone())
            });
            found.extend(inside);
        }
        found
    }

    fn events(&self, folder: &Path) -> PathBuf {
        folder.join("events.jsonl")
    }

    fn state(&self, folder: &Path) -> State {
        let listed = list_runs(folder, &self.world).unwrap_or_default();
        match listed.first() {
            Some(run) => State {
                name: run.state.name().to_owned(),
                reason: run.state.reason().map(str::to_owned),
            },
            None => State { name: "removed".to_owned(), reason: None },
        }
    }

    fn info(&self, folder: &Path) -> RunInfo {
        let Some(recipe) = self.recipe(folder) else { return RunInfo::default() };
        let mut info = RunInfo {
            layout: Some(layout_from_recipe(&recipe).to_string()),
            recipe: Some(recipe.to_toml()),
            settings: settings(&recipe),
            ..RunInfo::default()
        };
        if recipe.unmodelled_traffic().is_none() {
            let forecast = prediction::predict_unchecked(&recipe, &self.world, self.process);
            let ranks = forecast.memory.ranks.iter().enumerate();
            info.planned_memory =
                ranks.map(|(rank, memory)| planned_memory(rank, memory)).collect();
            info.planned_process_bytes = Some(forecast.peak_bytes().0);
            info.planned_step_seconds = forecast.step_seconds().map(|seconds| seconds.0);
            let sent = forecast.traffic.iter().map(|rank| total(rank).wire_bytes().0);
            info.planned_wire_bytes = Some(sent.sum());
        }
        info
    }

    fn explain(&self, folder: &Path) -> Result<Value, String> {
        explain::report_json(folder, &self.world).map_err(|failure| failure.text().to_owned())
    }

    fn planned_step(&self, folder: &Path) -> Result<Value, String> {
        let run = RecordedRun::read(folder, &self.world).map_err(|error| error.to_string())?;
        let machine = calibration_file::load(&run.recipe, &self.world).ok();
        let facts = diagnosis::facts_of(&run, &self.world).map_err(|error| error.to_string())?;
        let planned = planned_step(&facts, machine.as_ref()).ok_or(
            "No planned program: the strategy of this recipe has none that all ranks run together, \
             or no step is finished yet.",
        )?;
        let mut num_tasks = 0;
        let mut tracks = Vec::new();
        // Of many ranks every n-th, so that all stages of a pipeline are among them.
        let every = planned.ranks.len().div_ceil(MAX_RANKS).max(1);
        for PlannedRank { rank, queues } in planned.ranks.into_iter().step_by(every) {
            num_tasks += queues.values().map(Vec::len).sum::<usize>();
            if num_tasks > MAX_TASKS {
                break;
            }
            for (queue, spans) in queues {
                tracks.push(json!({ "name": format!("rank {rank} {queue}"), "spans": spans }));
            }
        }
        let source = if planned.is_calibrated {
            "The plan takes the speed of the calibrated machine."
        } else {
            "The plan takes the measured computation of rank 0."
        };
        Ok(json!({
            "tracks": tracks,
            "seconds": planned.seconds,
            "note": source,
            "matrix": matrix(&run.recipe),
        }))
    }
}

/// Planned bytes of a step by sender and receiver, of a recipe with a group that a page can show.
fn matrix(recipe: &Recipe) -> Option<Vec<Vec<u64>>> {
    if recipe.unmodelled_traffic().is_some() || recipe.run.workers > MAX_MATRIX {
        return None;
    }
    let interconnect = Interconnect::of_recipe(recipe);
    let forecast = lockstep_planner::Forecast::unchecked(recipe, Process::default(), None);
    // Steps of several kinds, as of local SGD: those that send most say where it goes.
    let pairs = forecast.step_classes.iter().map(|(_, step)| BytesByPair::of(step, &interconnect));
    let most = pairs.max_by_key(BytesByPair::total)?;
    (most.total().0 > 0).then_some(most.bytes)
}

fn planned_memory(rank: usize, memory: &RankMemory) -> PlannedMemory {
    let parts = vec![
        ("weights", memory.weights.0),
        ("gradients", memory.gradients.0),
        ("optimizer", memory.optimizer.0),
        ("activations", memory.activations.0),
        ("buffers", memory.buffers.0),
        ("checkpoint copy", memory.checkpoint.0),
    ];
    PlannedMemory { rank, parts }
}

/// Settings that decide the layout.
fn settings(recipe: &Recipe) -> Vec<(String, String)> {
    let parallel = &recipe.parallel;
    let rows = [
        ("workers", recipe.run.workers.to_string()),
        ("data parallel", parallel.data.to_string()),
        ("pipeline stages", parallel.pipeline.to_string()),
        ("tensor parallel", parallel.tensor.to_string()),
        ("ZeRO stage", parallel.zero.to_string()),
        ("global batch", recipe.train.batch.to_string()),
        ("micro-batch size", recipe.train.microbatch_size.to_string()),
        ("recompute", parallel.recompute.to_string()),
        ("sync strategy", recipe.sync.mode.to_string()),
    ];
    rows.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

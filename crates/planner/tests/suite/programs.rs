//! Played step programs of recipes against the simulator of pipelines, the closed form of overlap
//! and the engine's count of memory.

use lockstep_config::units::Seconds;
use lockstep_config::{Recipe, Sources, resolve};
use lockstep_mesh::Axis;
use lockstep_parallel::from_recipe::{blueprint_of_rank, plan_at};
use lockstep_parallel::{Footprint, ReplicaPlan};
use lockstep_planner::overlap::{self, Bucket};
use lockstep_planner::timeline::{PassTimes, StageTimes, simulate};
use lockstep_planner::traffic::programs_at;
use lockstep_schedule::step::{CallMode, Contents, Play, Program, TaskId, TaskOp, play, verify};
use std::collections::BTreeSet;

fn recipe(sets: &[&str]) -> Recipe {
    let small = [
        "model.layers=6",
        "model.width=16",
        "model.heads=2",
        "model.kv_heads=2",
        "model.ffn=32",
        "model.vocab=256",
        "model.context=8",
        "train.batch=8",
        "train.microbatch=1",
        "numerics.invariant_up_to=8",
        "parallel.bucket_bytes=4096",
    ];
    let sets = small.iter().chain(sets).map(|set| (*set).to_owned()).collect();
    resolve(&Sources { sets, ..Sources::default() }).unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn plan(recipe: &Recipe) -> ReplicaPlan {
    plan_at(recipe, &blueprint_of_rank(recipe, 0), 0)
}

/// Seconds of a block's passes; everything else is free.
fn pass_seconds(op: &TaskOp) -> f64 {
    match op {
        TaskOp::Backward(_) => 2.0,
        TaskOp::Forward(_) | TaskOp::InputGrad(_) | TaskOp::WeightGrad(_) => 1.0,
        _ => 0.0,
    }
}

fn played(programs: &[Program], mode: CallMode, seconds: impl Fn(&TaskOp) -> f64) -> Play {
    let of = |at: usize, id: TaskId| Seconds(seconds(&programs[at].tasks[id.0 as usize].op));
    play(programs, mode, of).expect("it ends")
}

#[test]
fn programs_of_pipelines_take_as_long_as_their_schedules() {
    let schedules: [&[&str]; 4] = [
        &["parallel.schedule=gpipe"],
        &["parallel.schedule=1f1b"],
        &["parallel.schedule=zero-bubble"],
        &["parallel.schedule=interleaved", "parallel.virtual_stages=2"],
    ];
    for (workers, schedule) in schedules.into_iter().flat_map(|it| [(2, it), (4, it)]) {
        let workers = [format!("run.workers={workers}"), format!("parallel.pipeline={workers}")];
        let workers = workers.each_ref().map(String::as_str);
        let recipe = recipe(&[&workers[..], schedule].concat());
        let plan = plan(&recipe);
        let programs = programs_at(&recipe, 0);
        let stages = (0..plan.stages.num_stages()).map(|stage| {
            let blocks = Seconds(plan.stages.blocks(stage, 8).len() as f64);
            StageTimes { forward: blocks, input_grad: blocks, weight_grad: blocks }
        });
        let times = PassTimes { stages: stages.collect(), hop: Seconds(0.0) };
        let pipeline = plan.stages.pipeline(plan.num_microbatches(0));
        let simulated = simulate(&pipeline, &times).expect("it ends").seconds();
        for mode in [CallMode::Background, CallMode::Blocking] {
            let found = played(&programs, mode, pass_seconds).seconds();
            assert!((found - simulated).0.abs() < 1e-9, "{schedule:?}: {found}, not {simulated}");
        }
    }
}

#[test]
fn overlap_with_backward_is_its_closed_form() {
    for transfer in [0.5, 3.0, 20.0] {
        let program = &programs_at(&recipe(&["run.workers=2"]), 0)[0];
        let seconds = |op: &TaskOp| match op {
            TaskOp::Reduce { .. } => transfer,
            op => pass_seconds(op),
        };
        let programs = std::slice::from_ref(program);
        let play = played(programs, CallMode::Background, seconds);
        let spans = &play.ranks[0].tasks;
        let end = |is_it: fn(&TaskOp) -> bool| {
            let ends = program.iter().zip(spans).filter(|((_, task), _)| is_it(&task.op));
            ends.map(|(_, span)| span.end).fold(Seconds(0.0), Seconds::max)
        };
        let buckets: Vec<Bucket> = program
            .iter()
            .filter(|(_, task)| matches!(task.op, TaskOp::Reduce { .. }))
            .map(|(id, _)| {
                let filled = program.after(id).iter().map(|before| spans[before.0 as usize].end);
                let ready = filled.fold(Seconds(0.0), Seconds::max);
                Bucket { ready, transfer: Seconds(transfer) }
            })
            .collect();
        assert!(buckets.len() > 3, "a recipe with several buckets");
        let backward = end(|op| matches!(op, TaskOp::Backward(_)));
        assert_eq!(end(|op| matches!(op, TaskOp::Reduce { .. })), overlap::finish(&buckets));
        assert_eq!(play.ranks[0].exposed, overlap::exposed(&buckets, backward));
    }
}

#[test]
fn live_memory_of_a_step_is_within_what_the_engine_allocates() {
    let layouts: [&[&str]; 9] = [
        &["run.workers=1"],
        &["run.workers=3"],
        &["run.workers=2", "parallel.zero=1", "model.tied=true"],
        &["run.workers=3", "parallel.zero=2"],
        &["run.workers=3", "parallel.zero=3", "precision.wire=bf16"],
        &["run.workers=2", "parallel.pipeline=2", "parallel.schedule=zero-bubble"],
        &["run.workers=4", "parallel.pipeline=2", "parallel.zero=3"],
        &["run.workers=2", "parallel.tensor=2", "parallel.recompute=selective"],
        &["run.workers=2", "parallel.recompute=full"],
    ];
    for layout in layouts {
        let recipe = recipe(layout);
        let (blueprint, plan) = (blueprint_of_rank(&recipe, 0), plan(&recipe));
        let programs = programs_at(&recipe, 0);
        let peaks = verify(&programs).expect("it is proven").peak_len;
        for (program, peak) in programs.iter().zip(peaks) {
            let held = Footprint::plan(&blueprint, &plan, recipe.optim.name, program.rank);
            let params = program.buffers.iter();
            let params = params.filter(|it| matches!(it.contents, Contents::Params { .. }));
            assert_eq!(params.map(|it| it.len).sum::<u64>(), held.weights as u64, "{layout:?}");
            assert!(peak <= held.total() as u64, "{layout:?}: {peak} of {}", held.total());
        }
    }
}

#[test]
fn one_pipeline_stands_for_all_data_parallel_ranks() {
    let layouts: [&[&str]; 4] = [
        &["run.workers=3"],
        &["run.workers=3", "parallel.zero=3"],
        &["run.workers=4", "parallel.pipeline=2", "parallel.zero=1"],
        &["run.workers=4", "parallel.tensor=2"],
    ];
    for layout in layouts {
        let recipe = recipe(layout);
        let mesh = plan(&recipe).mesh;
        let all = programs_at(&recipe, 0);
        let is_first =
            |axis, program: &&Program| mesh.index(axis, lockstep_mesh::Rank(program.rank)) == 0;
        // The first data-parallel rank has most micro-batches.
        let column: Vec<Program> = all
            .iter()
            .filter(|it| is_first(Axis::Data, it) && is_first(Axis::Tensor, it))
            .cloned()
            .collect();
        let ranks: BTreeSet<usize> = column.iter().map(|program| program.rank).collect();
        assert!(ranks.len() < all.len(), "{layout:?}");
        for mode in [CallMode::Background, CallMode::Blocking] {
            let seconds = |op: &TaskOp| match op {
                TaskOp::Recv(_) => 0.0,
                op => 0.25 + pass_seconds(op),
            };
            let (all, one) = (played(&all, mode, seconds), played(&column, mode, seconds));
            assert_eq!(all.seconds(), one.seconds(), "{layout:?}");
            assert_eq!(all.period, one.period, "{layout:?}");
        }
    }
}

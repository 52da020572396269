//! Gathers of norms and of whole matrices in the update: every byte that a rank sends is that of a
//! task of its program, and a skipped update sends none.

use crate::step_host::Host;
use lockstep_comm::{Comm, Options, Traffic};
use lockstep_config::Recipe;
use lockstep_config::units::Bytes;
use lockstep_harness::recipes::LLAMA;
use lockstep_optim::{ClipPlan, Optimizer, Update};
use lockstep_parallel::from_recipe::{arena_bytes, blueprint_of_rank, plan_at};
use lockstep_parallel::{Replica, StepHost};
use lockstep_planner::traffic::{
    self, Call, Interconnect, SelectedSchedules, StepInputs, TrafficCounts, embedding_rows,
    programs_at,
};
use lockstep_platform::{World, real};
use lockstep_schedule::step::{Program, TaskOp};
use lockstep_tensor::Isa;
use lockstep_tensor::device::Compute;

/// Two shards of a layer on each of two tensor-parallel ranks.
const SHARDS: &str = "numerics.invariant_tensor_up_to=4";

/// Bytes that a rank moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moved {
    /// In a step.
    step: u64,
    /// In a step whose update was skipped.
    skipped: u64,
    /// Among all ranks, in the update: norms.
    norms: u64,
}

fn moved(traffic: Traffic) -> u64 {
    traffic.sent_bytes + traffic.read_bytes + traffic.written_bytes
}

/// Runs a step on a rank, and one without its update.
fn measure(comm: &Comm, world: &World, recipe: &Recipe, tokens: &[u32]) -> Moved {
    let cpu = &Compute::single(Isa::detect());
    let blueprint = blueprint_of_rank(recipe, comm.group_rank());
    let plan = plan_at(recipe, &blueprint, 0);
    let shape = plan.microbatch;
    let mut replica = Replica::materialize(blueprint, 1, cpu, plan, comm, world).expect("memory");
    let mut optimizer = Optimizer::new(&recipe.optim, &replica.slots());
    let host = &Host { shape, tokens: tokens.to_vec(), step: 0 };
    let all_ranks = replica.groups().world().clone();
    let control = || moved(all_ranks.counters().total().traffic);
    let mut norms = 0;
    let [step, skipped] = [false, true].map(|is_skipped| {
        // Parameters in flight belong to the step before.
        replica.settle().expect("parameters");
        let before = moved(replica.traffic());
        let microbatch = |index: usize| host.microbatch(index);
        replica.run_microbatches(cpu, 1, u64::from(is_skipped), &microbatch).expect("passes");
        let sums = replica.finish_reduce(cpu).expect("sums");
        let sums = replica.unscale(cpu, sums).expect("memory");
        let clip = replica.clip(cpu, sums, &ClipPlan::global(1.0)).expect("a norm");
        if !is_skipped {
            let (before, update) = (control(), Update { count: 1, lr: 1e-2, clip });
            replica.step(cpu, &mut optimizer, &update).expect("an update");
            norms = control() - before;
        }
        replica.settle().expect("parameters");
        moved(replica.traffic()) - before
    });
    Moved { step, skipped, norms }
}

/// Forecast of a rank: the programs of its steps, priced.
fn forecast(recipe: &Recipe, tokens: &[u32]) -> Vec<Moved> {
    let interconnect = Interconnect::memory(recipe.run.workers);
    let blueprint = blueprint_of_rank(recipe, 0);
    let rows = embedding_rows::by_rank(recipe, 0, |_| &tokens[1..]);
    let of = |is_skipped| {
        let rows_by_rank = Some(&rows[..]);
        let inputs = StepInputs { rows_by_rank, is_skipped, ..StepInputs::default() };
        traffic::of_recipe(recipe, &blueprint, 0, &interconnect, inputs).1
    };
    let (steps, skipped) = (of(false), of(true));
    let bytes = |rank| traffic::total(rank).wire_bytes().0;
    let each = programs_at(recipe, 0).into_iter().zip(steps.iter().zip(&skipped));
    each.map(|(program, (step, skipped))| Moved {
        step: bytes(step),
        skipped: bytes(skipped),
        norms: norm_bytes(&program, &interconnect),
    })
    .collect()
}

/// Bytes of the norms that a rank gathers.
fn norm_bytes(program: &Program, interconnect: &Interconnect) -> u64 {
    let is_norm = |op| matches!(op, TaskOp::GatherNorms(_));
    let tasks = program.tasks.iter().filter(|task| is_norm(task.op));
    let calls = tasks.map(|task| program.call(task).expect("it is a collective"));
    let bytes = calls.map(|(call, group)| {
        let mut schedules = SelectedSchedules::new(interconnect, &group.contributions);
        let once = Call { element: call.element, ..Call::once(call.op, call.lengths.clone()) };
        let schedule = schedules.of(&once);
        let layout = once.layout(schedule);
        TrafficCounts::of(schedule, &layout, call.element, program.rank).wire_bytes()
    });
    bytes.sum::<Bytes>().0
}

#[test]
fn every_byte_of_an_update_is_forecast_on_every_rank() {
    let layouts: &[&[&str]] = &[
        &["run.workers=2"],
        &["run.workers=3", "parallel.zero=1"],
        &["run.workers=2", "parallel.zero=2"],
        &["run.workers=3", "parallel.zero=3"],
        &["run.workers=2", "parallel.tensor=2", "model.kv_heads=4", SHARDS],
        &["run.workers=4", "parallel.tensor=2", "parallel.zero=1"],
        &["run.workers=4", "parallel.pipeline=2", "parallel.zero=2"],
    ];
    let common = ["train.batch=8", "train.microbatch=2", "numerics.invariant_up_to=4"];
    let common = [&common[..], &["parallel.bucket_bytes=65536", "model.context=16"]].concat();
    for layout in layouts {
        let of = |optim: &str| {
            let name = format!("optim.name={optim}");
            let recipe = LLAMA.with(&[&common[..], layout, &[&name]].concat());
            let shape = plan_at(&recipe, &blueprint_of_rank(&recipe, 0), 0).microbatch;
            let tokens = (0..=shape.rows()).map(|at| (7 * at % recipe.model.vocab) as u32);
            let (tokens, world): (Vec<u32>, _) = (tokens.collect(), real());
            let options = Options { arena_bytes: arena_bytes(&recipe), ..Options::default() };
            let ends = Comm::threads(&world, recipe.run.workers, &options).expect("threads");
            let found: Vec<Moved> = std::thread::scope(|scope| {
                let (world, recipe, tokens) = (&world, &recipe, &tokens);
                let start = |end| scope.spawn(move || measure(end, world, recipe, tokens));
                let threads: Vec<_> = ends.iter().map(start).collect();
                threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
            });
            assert_eq!(found, forecast(&recipe, &tokens), "{optim}, {layout:?}");
            found
        };
        let (adamw, muon, lamb) = (of("adamw"), of("muon"), of("lamb"));
        let adafactor = of("adafactor");
        let is_whole = *layout == ["run.workers=2"];
        for (muon, adafactor) in muon.iter().zip(&adafactor) {
            assert_eq!(adafactor.step > muon.step, !is_whole, "{layout:?}: all tensors");
        }
        for ((adamw, muon), lamb) in adamw.iter().zip(&muon).zip(&lamb) {
            // Only ranks that own parts gather matrices and norms.
            assert_eq!(muon.step > adamw.step, !is_whole, "{layout:?}: {muon:?} {adamw:?}");
            assert_eq!((lamb.norms > 0, lamb.step), (!is_whole, adamw.step), "{layout:?}");
            assert_eq!((adamw.norms, muon.norms), (0, 0));
            assert_eq!((muon.skipped, lamb.skipped), (adamw.skipped, adamw.skipped));
        }
    }
}

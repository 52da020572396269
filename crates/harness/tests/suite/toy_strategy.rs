//! A strategy that is defined in this file alone: it runs, its programs are proven, and its bytes
//! are forecast.
//!
//! Ranks step by their own gradients. After every third step each pushes its weights to the next
//! rank, which takes the mean of these and its own.

use crate::step_host::Host;
use lockstep_comm::{Comm, CommError, Counters, Handle, Traffic};
use lockstep_harness::recipes::LLAMA;
use lockstep_mesh::Axis;
use lockstep_optim::{ClipPlan, Optimizer};
use lockstep_parallel::Replica;
use lockstep_parallel::from_recipe::{blueprint_of_rank, plan_at};
use lockstep_parallel::step_program::{RankPlan, StepBuilder, StepKind, StepTasks};
use lockstep_parallel::strategy::{
    StateLayout, Strategy, StrategyContext, StrategyPlan, StrategyStart,
};
use lockstep_planner::traffic::{self, Interconnect};
use lockstep_platform::{World, real};
use lockstep_schedule::step::{Contents, Message, MessageKind, Program, Queue, TaskOp, verify};
use lockstep_tensor::device::Compute;
use lockstep_tensor::{Cpu, Isa};

const NUM_RANKS: usize = 4;
const NUM_STEPS: u64 = 7;

struct PushToNext;

impl StepTasks for PushToNext {
    fn add_after_update(&self, kind: &StepKind, step: &mut StepBuilder<'_>) {
        if kind.due.is_empty() {
            return;
        }
        let link = Queue::Link(Axis::Data);
        for (bucket, len) in step.full_buckets() {
            let number = bucket as u32;
            let message = |peer: usize| Message {
                kind: MessageKind::Custom { number },
                peer: peer as u32,
                len: len as u64,
                element: 4,
            };
            let (next, before) = neighbors(step.rank());
            let params = step.params_of(bucket);
            let received = step.buffer(Contents::Custom { number }, len);
            step.task(TaskOp::Send(message(next)), link).reads(params);
            step.task(TaskOp::Recv(message(before)), link).writes(received);
            let mean = TaskOp::Custom { number };
            step.task(mean, Queue::Compute).updates(params).takes(received);
        }
    }
}

impl StrategyPlan for PushToNext {
    fn kind_at(&self, step: u64) -> StepKind {
        let is_due = (step + 1).is_multiple_of(3);
        StepKind { due: is_due.then_some(0).into_iter().collect(), ..StepKind::local() }
    }

    fn start(&self, at: &StrategyStart<'_>) -> Result<Option<Box<dyn Strategy>>, CommError> {
        let each: Vec<_> = (0..NUM_RANKS).map(|rank| rank..rank + 1).collect();
        let comm = at.groups.data().summing(&each, "next")?;
        Ok(Some(Box::new(Pushes { comm, sending: None, received: Vec::new() })))
    }
}

fn neighbors(rank: usize) -> (usize, usize) {
    ((rank + 1) % NUM_RANKS, (rank + NUM_RANKS - 1) % NUM_RANKS)
}

struct Pushes {
    comm: Comm,
    sending: Option<Handle<Vec<f32>>>,
    received: Vec<f32>,
}

impl Strategy for Pushes {
    fn run(
        &mut self,
        _cpu: &Cpu,
        op: TaskOp,
        at: &mut StrategyContext<'_>,
    ) -> Result<(), CommError> {
        let (next, before) = neighbors(self.comm.group_rank());
        match op {
            TaskOp::Send(Message { kind: MessageKind::Custom { number }, .. }) => {
                let params = at.params_mut(number as usize).to_vec();
                self.sending = Some(self.comm.start_send::<f32, _>(params, next, at.step)?);
                Ok(())
            }
            TaskOp::Recv(Message { len, .. }) => {
                self.received.resize(len as usize, 0.0);
                self.comm.recv(&mut self.received, before, at.step)
            }
            TaskOp::Custom { number } => {
                for (own, theirs) in at.params_mut(number as usize).iter_mut().zip(&self.received) {
                    *own = f32::midpoint(*own, *theirs);
                }
                self.sending.take().map_or(Ok(()), |sending| sending.finish().map(|_| ()))
            }
            op => unreachable!("{op}"),
        }
    }

    fn visit(&mut self, _: &StateLayout<'_>, _: &mut dyn FnMut(&str, bool, &mut [f32]) -> bool) {}

    fn counters(&self) -> Counters {
        self.comm.counters()
    }

    fn num_elements(&self) -> [usize; 2] {
        [0, self.received.len()]
    }
}

/// Weights after each step, and bytes sent in each.
type Steps = Vec<(Vec<f32>, u64)>;

fn train(comm: &Comm, world: &World, recipe: &lockstep_config::Recipe) -> Steps {
    let (cpu, rank) = (&Compute::single(Isa::detect()), comm.group_rank());
    let blueprint = blueprint_of_rank(recipe, 0);
    let plan = plan_at(recipe, &blueprint, 0);
    let shape = plan.microbatch;
    let mut replica = Replica::materialize(blueprint, 1, cpu, plan, comm, world).expect("memory");
    replica.adopt(Box::new(PushToNext)).expect("all ranks adopt it");
    let mut optimizer = Optimizer::new(&recipe.optim, &replica.slots());
    let tokens = (0..=shape.rows()).map(|at| ((at + 7 * rank) % recipe.model.vocab) as u32);
    let mut host = Host { shape, tokens: tokens.collect(), step: 0 };
    let clip = ClipPlan::global(0.0);
    let mut steps = Vec::new();
    // The broadcast of the initial parameters belongs to no step.
    replica.settle().expect("parameters");
    let moved = |traffic: Traffic| traffic.sent_bytes + traffic.read_bytes + traffic.written_bytes;
    let mut sent = moved(replica.traffic());
    for step in 0..NUM_STEPS {
        host.step = step;
        replica.run_step(cpu, 1, step, &mut optimizer, &clip, &mut &host).expect("a step");
        let now = moved(replica.traffic());
        let slots = replica.slots();
        let weights = slots.iter().flat_map(|slot| replica.owned_values(slot).to_vec()).collect();
        steps.push((weights, now - std::mem::replace(&mut sent, now)));
    }
    steps
}

#[test]
fn a_strategy_in_one_file_runs_is_proven_and_is_forecast_to_the_byte() {
    let sets = ["run.workers=4", "train.batch=8", "train.microbatch=2", "optim.name=sgd"];
    let recipe = LLAMA.with(&[&sets[..], &["numerics.invariant_up_to=4"]].concat());
    let blueprint = blueprint_of_rank(&recipe, 0);
    let plan = plan_at(&recipe, &blueprint, 0);
    let world = real();
    let options = lockstep_comm::Options {
        arena_bytes: lockstep_parallel::from_recipe::arena_bytes(&recipe),
        ..lockstep_comm::Options::default()
    };
    let ends = Comm::threads(&world, NUM_RANKS, &options).expect("threads");
    let ranks: Vec<Steps> = std::thread::scope(|scope| {
        let (world, recipe) = (&world, &recipe);
        let start = |end| scope.spawn(move || train(end, world, recipe));
        let threads: Vec<_> = ends.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    let interconnect = Interconnect::memory(NUM_RANKS);
    for step in 0..NUM_STEPS {
        let kind = PushToNext.kind_at(step);
        let of_rank =
            |rank| RankPlan::new(&plan, &blueprint, rank).training_with(&PushToNext, &kind);
        let programs: Vec<Program> = (0..NUM_RANKS).map(of_rank).collect();
        verify(&programs).expect("the programs are proven");
        let forecast = traffic::of_strategy(&PushToNext, &plan, &blueprint, &kind, &interconnect);
        for (rank, moved) in forecast.iter().enumerate() {
            let measured = ranks[rank][step as usize].1;
            assert_eq!(traffic::total(moved).wire_bytes().0, measured, "rank {rank} step {step}");
            assert_eq!(measured > 0, (step + 1) % 3 == 0, "every third step pushes");
        }
    }
    // Ranks differ, and a task that is left out is noticed.
    assert_ne!(ranks[0].last().expect("steps").0, ranks[1].last().expect("steps").0);
    let kind = PushToNext.kind_at(2);
    let of_rank = |rank| RankPlan::new(&plan, &blueprint, rank).training_with(&PushToNext, &kind);
    let programs: Vec<Program> = (0..NUM_RANKS).map(of_rank).collect();
    for (id, task) in programs[1].iter().filter(|(_, task)| task.op.is_of_strategy()) {
        let mut broken = programs.clone();
        broken[1] = programs[1].without(id);
        assert!(verify(&broken).is_err(), "without {}", task.op);
    }
}

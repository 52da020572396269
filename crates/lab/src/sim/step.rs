//! Data-parallel steps as step programs, the engine's tasks, played in virtual time.
//!
//! Gradients of bucket j are full after the j-th of equal parts of the backward pass, and are
//! reduced on the link while the rest of it runs.

use super::{CompiledSchedule, Fabric, simulate_collective};
use lockstep_config::units::{Bytes, Seconds};
use lockstep_mesh::Axis;
use lockstep_schedule::step::{
    Arrival, BlockPass, Builder, Call, CallMode, CommGroup, Contents, Lengths, Play, Program,
    Queue, TaskId, TaskOp, play, play_with,
};
use lockstep_schedule::{Contributions, Op};

/// Programs of a step of `num_ranks` data-parallel ranks whose gradients fill `num_buckets`.
pub fn data_parallel_step(num_ranks: usize, num_buckets: usize) -> Vec<Program> {
    let ranks: Vec<usize> = (0..num_ranks).collect();
    ranks.iter().map(|rank| program(*rank, &ranks, num_buckets)).collect()
}

fn program(rank: usize, ranks: &[usize], num_buckets: usize) -> Program {
    let mut step = Builder::new(rank);
    step.microbatches([rank].into_iter());
    let contributions = Contributions::one_each(ranks.len());
    let group = step.group(CommGroup { axis: Axis::Data, ranks: ranks.to_vec(), contributions });
    let pass = |block: usize| BlockPass { chunk: 0, microbatch: 0, block: block as u32, part: 0 };
    let saved: Vec<_> = (0..num_buckets as u32)
        .map(|block| step.buffer(Contents::Saved { block, slot: 0 }, 1))
        .collect();
    for (block, saved) in saved.iter().enumerate() {
        step.task(TaskOp::Forward(pass(block)), Queue::Compute).writes(*saved);
    }
    // Backward passes the last block first.
    for (block, saved) in saved.into_iter().enumerate().rev() {
        let bucket = block as u32;
        let grads = step.buffer(Contents::Grads { bucket }, 1);
        step.task(TaskOp::Backward(pass(block)), Queue::Compute).takes(saved).adds(grads);
        let call = Call { group, op: Op::AllReduce, lengths: Lengths::Even(1), element: Bytes(4) };
        step.task(TaskOp::Reduce { bucket }, Queue::Link(Axis::Data)).takes(grads).calls(call);
    }
    step.finish()
}

/// Plays one rank that stands for all: a pass takes `pass` and a reduction `reduction` seconds.
pub fn play_one_rank(
    program: &Program,
    pass: impl Fn(TaskOp) -> f64,
    reduction: impl Fn(u32) -> f64,
) -> Play {
    let seconds = |_: usize, task: TaskId| {
        Seconds(match program.tasks[task.0 as usize].op {
            TaskOp::Reduce { bucket } => reduction(bucket),
            op => pass(op),
        })
    };
    play(std::slice::from_ref(program), CallMode::Background, seconds).expect("one rank ends")
}

/// Plays all ranks and simulates their all-reduces message by message; `pass` gives the time of a
/// pass by rank.
pub fn play_all_ranks(
    programs: &[Program],
    sum: &CompiledSchedule,
    fabric: Fabric<'_>,
    pass: impl Fn(usize, TaskOp) -> f64,
) -> Play {
    let seconds = |at: usize, task: TaskId| {
        Seconds(match programs[at].tasks[task.0 as usize].op {
            TaskOp::Reduce { .. } => 0.0,
            op => pass(at, op),
        })
    };
    let collective = |arrivals: &[Arrival]| {
        let starts: Vec<f64> = arrivals.iter().map(|arrival| arrival.at.0).collect();
        let ends = simulate_collective(sum, fabric, &starts).ends;
        ends.into_iter().map(Seconds).collect()
    };
    play_with(programs, CallMode::Background, seconds, collective).expect("all ranks make one call")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_schedule::step::verify;

    #[test]
    fn the_programs_are_proven() {
        verify(&data_parallel_step(3, 4)).unwrap();
    }

    #[test]
    fn reductions_follow_each_other_behind_their_passes() {
        let programs = data_parallel_step(2, 3);
        let pass = |op| if matches!(op, TaskOp::Backward(_)) { 1.0 } else { 0.5 };
        // Backward ends at 2.5, 3.5 and 4.5; reductions at 4.5, 6.5 and 8.5.
        let play = play_one_rank(&programs[0], pass, |_| 2.0);
        assert_eq!(play.seconds(), Seconds(8.5));
        assert_eq!(play.ranks[0].exposed, Seconds(4.0));
    }
}

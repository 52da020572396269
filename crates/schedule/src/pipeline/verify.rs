//! Proves a pipeline: everything is done once, in an order in which nobody waits for ever, and
//! weight gradients are added in ascending order of microbatches.

use super::{Pass, Pipeline, Shape, Task};
use std::collections::BTreeSet;

/// What is wrong with a pipeline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrongPipeline {
    /// A pass is missing, comes twice, or belongs to no stage.
    #[error("device {device}: {task} does not come exactly once")]
    NotOnce {
        /// Whose.
        device: usize,
        /// What.
        task: Task,
    },
    /// Sums would depend on the schedule.
    #[error("device {device} adds the weight gradients of {task} after later ones")]
    NotAscending {
        /// Whose.
        device: usize,
        /// What.
        task: Task,
    },
    /// Every device waits for another.
    #[error("device {device} waits for ever to begin {task}")]
    Stuck {
        /// The first of them.
        device: usize,
        /// What it cannot begin.
        task: Task,
    },
}

/// Proves the pipeline, or names the first thing that is wrong.
pub fn verify(pipeline: &Pipeline) -> Result<(), WrongPipeline> {
    for (device, program) in pipeline.programs.iter().enumerate() {
        check_program(pipeline.shape, device, program)?;
    }
    run(pipeline)
}

fn check_program(shape: Shape, device: usize, program: &[Task]) -> Result<(), WrongPipeline> {
    let is_split = program.iter().any(|task| task.pass == Pass::InputGrad);
    let passes: &[Pass] = if is_split {
        &[Pass::Forward, Pass::InputGrad, Pass::WeightGrad]
    } else {
        &[Pass::Forward, Pass::Backward]
    };
    let mut missing: BTreeSet<Task> = BTreeSet::new();
    for &pass in passes {
        for chunk in 0..shape.num_chunks {
            missing.extend((0..shape.num_microbatches).map(|i| Task::new(pass, i, chunk)));
        }
    }
    let mut next_sum = vec![0; shape.num_chunks];
    for &task in program {
        if !missing.remove(&task) {
            return Err(WrongPipeline::NotOnce { device, task });
        }
        if matches!(task.pass, Pass::Backward | Pass::WeightGrad) {
            if task.microbatch != next_sum[task.chunk] {
                return Err(WrongPipeline::NotAscending { device, task });
            }
            next_sum[task.chunk] += 1;
        }
    }
    missing.pop_first().map_or(Ok(()), |task| Err(WrongPipeline::NotOnce { device, task }))
}

/// Runs every device as far as it can go, until all are done or none can go on.
fn run(pipeline: &Pipeline) -> Result<(), WrongPipeline> {
    let mut done: BTreeSet<(usize, Pass, usize)> = BTreeSet::new();
    let mut next = vec![0; pipeline.programs.len()];
    loop {
        let mut has_moved = false;
        for (device, program) in pipeline.programs.iter().enumerate() {
            while let Some(task) = program.get(next[device]) {
                let stage = pipeline.shape.stage(device, task.chunk);
                let needs = needs(pipeline.shape, stage, task.pass);
                if !needs
                    .iter()
                    .flatten()
                    .all(|&(stage, pass)| done.contains(&(stage, pass, task.microbatch)))
                {
                    break;
                }
                done.insert((stage, settled(task.pass), task.microbatch));
                next[device] += 1;
                has_moved = true;
            }
        }
        if !has_moved {
            break;
        }
    }
    let stuck = pipeline.programs.iter().zip(&next).enumerate();
    for (device, (program, &next)) in stuck {
        if let Some(&task) = program.get(next) {
            return Err(WrongPipeline::Stuck { device, task });
        }
    }
    Ok(())
}

/// What a pass waits for: passes of its own stage and of a neighbour. Whole backward passes count
/// as input gradients, since that is what others wait for.
pub fn needs(shape: Shape, stage: usize, pass: Pass) -> [Option<(usize, Pass)>; 2] {
    let is_last = stage + 1 == shape.num_stages();
    match pass {
        Pass::Forward => [stage.checked_sub(1).map(|before| (before, Pass::Forward)), None],
        Pass::Backward | Pass::InputGrad => {
            [Some((stage, Pass::Forward)), (!is_last).then_some((stage + 1, Pass::InputGrad))]
        }
        Pass::WeightGrad => [Some((stage, Pass::InputGrad)), None],
    }
}

/// What others see of a pass.
pub const fn settled(pass: Pass) -> Pass {
    match pass {
        Pass::Backward => Pass::InputGrad,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, build};
    use super::*;

    #[test]
    fn every_schedule_of_every_small_shape_is_right() {
        for kind in Kind::ALL {
            for num_devices in 1..=8 {
                for num_chunks in 1..=3 {
                    for num_microbatches in 1..=16 {
                        let shape = Shape { num_devices, num_chunks, num_microbatches };
                        if let Ok(pipeline) = build(kind, shape) {
                            assert_eq!(verify(&pipeline), Ok(()), "{pipeline}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let shape = Shape { num_devices: 2, num_chunks: 1, num_microbatches: 2 };
        let right = build(Kind::OneFOneB, shape).unwrap();
        let broken = |change: &dyn Fn(&mut Vec<Task>)| {
            let mut pipeline = right.clone();
            change(&mut pipeline.programs[1]);
            verify(&pipeline).unwrap_err().to_string()
        };
        assert_eq!(broken(&|tasks| tasks.truncate(3)), "device 1: B1 does not come exactly once");
        assert_eq!(broken(&|tasks| tasks[0].chunk = 1), "device 1: F0' does not come exactly once");
        // F0 B0 F1 B1 becomes F0 B1 F1 B0.
        assert_eq!(
            broken(&|tasks| tasks.swap(1, 3)),
            "device 1 adds the weight gradients of B1 after later ones"
        );
        // B0 F0 F1 B1: backward before forward.
        assert_eq!(broken(&|tasks| tasks.swap(0, 1)), "device 0 waits for ever to begin B0");
    }
}

//! Simulation of a pipeline whose passes have individual durations: jitter, slow devices,
//! unbalanced stages.
//!
//! A pass starts when its device is free and its inputs have arrived, as in the planner's timeline.

use lockstep_schedule::pipeline::{Pass, Pipeline, Task, needs, settled};

/// Result of a simulated pipeline.
#[derive(Debug, Clone, PartialEq)]
pub struct PipelineRun {
    /// Completion time of the last device.
    pub end: f64,
    /// Compute time of each device.
    pub busy: Vec<f64>,
    /// Number of simulated passes.
    pub num_events: u64,
}

impl PipelineRun {
    /// Idle share of the time of all devices.
    pub fn bubble(&self) -> f64 {
        1.0 - self.busy.iter().sum::<f64>() / (self.end * self.busy.len() as f64)
    }
}

/// Simulates a schedule in which `task` of `stage` takes `seconds(stage, task)` and a transfer
/// between devices takes `hop`. Returns `None` for a deadlock.
pub fn simulate_pipeline(
    pipeline: &Pipeline,
    hop: f64,
    seconds: impl FnMut(usize, Task) -> f64,
) -> Option<PipelineRun> {
    trace_pipeline(pipeline, hop, seconds, |_, _, _, _| {})
}

/// Simulates a pipeline and calls `observe` with device, task, start and end of every pass.
pub fn trace_pipeline(
    pipeline: &Pipeline,
    hop: f64,
    mut seconds: impl FnMut(usize, Task) -> f64,
    mut observe: impl FnMut(usize, Task, f64, f64),
) -> Option<PipelineRun> {
    let shape = pipeline.shape;
    let mut next = vec![0; shape.num_devices];
    let mut free = vec![0.0_f64; shape.num_devices];
    let mut busy = vec![0.0; shape.num_devices];
    // End of every pass by stage, pass and micro-batch; NaN until it is known.
    let index = |stage: usize, pass: Pass, microbatch: usize| {
        let pass = match pass {
            Pass::Forward => 0,
            Pass::Backward | Pass::InputGrad => 1,
            Pass::WeightGrad => 2,
        };
        (3 * stage + pass) * shape.num_microbatches + microbatch
    };
    let mut ends = vec![f64::NAN; 3 * shape.num_stages() * shape.num_microbatches];
    let mut num_events = 0;
    let mut has_moved = true;
    while has_moved {
        has_moved = false;
        for device in 0..shape.num_devices {
            while let Some(&task) = pipeline.programs[device].get(next[device]) {
                let stage = pipeline.stage(device, task.chunk);
                let arrived = |(needed, pass): (usize, Pass)| {
                    let end = ends[index(needed, pass, task.microbatch)];
                    let is_here = pipeline.device(needed, task.microbatch) == device;
                    if is_here { end } else { end + hop }
                };
                let needed = needs(shape, stage, task.pass).into_iter().flatten().map(arrived);
                let later =
                    |start: f64, end: f64| if end > start || end.is_nan() { end } else { start };
                // NaN, an input that is not ready, is later than any time.
                let start = needed.fold(free[device], |start, end| {
                    if start.is_nan() { start } else { later(start, end) }
                });
                if start.is_nan() {
                    break;
                }
                let end = start + seconds(stage, task);
                observe(device, task, start, end);
                busy[device] += end - start;
                free[device] = end;
                ends[index(stage, settled(task.pass), task.microbatch)] = end;
                next[device] += 1;
                num_events += 1;
                has_moved = true;
            }
        }
    }
    let is_done = next.iter().zip(&pipeline.programs).all(|(next, all)| *next == all.len());
    let end = free.iter().copied().fold(0.0, f64::max);
    is_done.then_some(PipelineRun { end, busy, num_events })
}

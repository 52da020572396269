//! A pipeline with passes that take other times each: jitter, slow devices, uneven stages.
//!
//! A pass begins when its device is free and what it waits for has arrived, as in the planner's
//! timeline; only here every pass has a time of its own.

use lockstep_schedule::pipeline::{Pass, Pipeline, Task, needs, settled};

/// When it was over.
#[derive(Debug, Clone, PartialEq)]
pub struct PlayedPipeline {
    /// When the last device was done.
    pub end: f64,
    /// How long each device worked.
    pub busy: Vec<f64>,
    /// How many passes were played.
    pub num_events: u64,
}

impl PlayedPipeline {
    /// Share of all devices' time in which they idle.
    pub fn bubble(&self) -> f64 {
        1.0 - self.busy.iter().sum::<f64>() / (self.end * self.busy.len() as f64)
    }
}

/// Plays a schedule whose pass `task` of `stage` takes `seconds(stage, task)`, and a transfer to
/// another device `hop`; nothing if it never ends.
pub fn play_pipeline(
    pipeline: &Pipeline,
    hop: f64,
    seconds: impl FnMut(usize, Task) -> f64,
) -> Option<PlayedPipeline> {
    watch_pipeline(pipeline, hop, seconds, |_, _, _, _| {})
}

/// The same, and `watch` is told of every pass: its device, what it is, when it began and ended.
pub fn watch_pipeline(
    pipeline: &Pipeline,
    hop: f64,
    mut seconds: impl FnMut(usize, Task) -> f64,
    mut watch: impl FnMut(usize, Task, f64, f64),
) -> Option<PlayedPipeline> {
    let shape = pipeline.shape;
    let mut next = vec![0; shape.num_devices];
    let mut free = vec![0.0_f64; shape.num_devices];
    let mut busy = vec![0.0; shape.num_devices];
    // By stage, pass and microbatch; not a number until it is over.
    let place = |stage: usize, pass: Pass, microbatch: usize| {
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
                    let end = ends[place(needed, pass, task.microbatch)];
                    let is_here = pipeline.device(needed, task.microbatch) == device;
                    if is_here { end } else { end + hop }
                };
                let needed = needs(shape, stage, task.pass).into_iter().flatten().map(arrived);
                let latest =
                    |start: f64, end: f64| if end > start || end.is_nan() { end } else { start };
                // Once something is missing, nothing is later than that.
                let start = needed.fold(free[device], |start, end| {
                    if start.is_nan() { start } else { latest(start, end) }
                });
                if start.is_nan() {
                    break;
                }
                let end = start + seconds(stage, task);
                watch(device, task, start, end);
                busy[device] += end - start;
                free[device] = end;
                ends[place(stage, settled(task.pass), task.microbatch)] = end;
                next[device] += 1;
                num_events += 1;
                has_moved = true;
            }
        }
    }
    let is_done = next.iter().zip(&pipeline.programs).all(|(next, all)| *next == all.len());
    let end = free.iter().copied().fold(0.0, f64::max);
    is_done.then_some(PlayedPipeline { end, busy, num_events })
}

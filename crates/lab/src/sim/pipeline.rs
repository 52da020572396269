//! A pipeline with passes that take other times each: jitter, slow devices, uneven stages.
//!
//! A pass begins when its device is free and what it waits for has arrived, as in the planner's
//! timeline; only here every pass has a time of its own.

use lockstep_schedule::pipeline::{Pass, Pipeline, Task, needs, settled};
use std::collections::BTreeMap;

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
    mut seconds: impl FnMut(usize, Task) -> f64,
) -> Option<PlayedPipeline> {
    let shape = pipeline.shape;
    let mut next = vec![0; shape.num_devices];
    let mut free = vec![0.0_f64; shape.num_devices];
    let mut busy = vec![0.0; shape.num_devices];
    let mut ends: BTreeMap<(usize, Pass, usize), f64> = BTreeMap::new();
    let mut num_events = 0;
    let mut has_moved = true;
    while has_moved {
        has_moved = false;
        for device in 0..shape.num_devices {
            while let Some(&task) = pipeline.programs[device].get(next[device]) {
                let stage = pipeline.stage(device, task.chunk);
                let arrived = |(needed, pass): (usize, Pass)| {
                    let end = *ends.get(&(needed, pass, task.microbatch))?;
                    let is_here = pipeline.device(needed, task.microbatch) == device;
                    Some(if is_here { end } else { end + hop })
                };
                let needed = needs(shape, stage, task.pass).into_iter().flatten();
                let Some(arrived) = needed.map(arrived).collect::<Option<Vec<f64>>>() else {
                    break;
                };
                let start = arrived.into_iter().fold(free[device], f64::max);
                let end = start + seconds(stage, task);
                busy[device] += end - start;
                free[device] = end;
                ends.insert((stage, settled(task.pass), task.microbatch), end);
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

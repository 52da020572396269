//! Greedy list scheduling of a pipeline, for schedules without a closed form.
//!
//! Passes belong to *streams*, each with a forward and a backward order. An idle device runs a
//! backward pass if one is ready, and else a forward pass, within its limit of live micro-batches;
//! among several it takes the pass closest to the loss, which frees memory soonest. A forward pass
//! takes one unit of time, a backward pass two.

use super::dependencies::{needs, settled};
use super::{Kind, Pass, Pipeline, Shape, Task};
use std::collections::BTreeMap;

/// Passes of one device in one direction, in order.
pub(super) struct Stream {
    pub(super) forward: Vec<Task>,
    pub(super) backward: Vec<Task>,
}

/// Scheduling state of a device.
struct DeviceState {
    streams: Vec<(Stream, usize, usize)>,
    program: Vec<Task>,
    free_at: usize,
    limit: usize,
    num_live: usize,
}

/// End of each pass, by stage, pass and micro-batch.
type Ends = BTreeMap<(usize, Pass, usize), usize>;

/// Fills in the programs of a pipeline whose devices have these streams and limits of live passes.
/// Limits grow where the pipeline would deadlock.
pub(super) fn schedule_greedily(pipeline: &mut Pipeline, devices: Vec<(Vec<Stream>, usize)>) {
    let device_state = |(streams, limit): (Vec<Stream>, usize)| DeviceState {
        streams: streams.into_iter().map(|stream| (stream, 0, 0)).collect(),
        program: Vec::new(),
        free_at: 0,
        limit,
        num_live: 0,
    };
    let mut device_states: Vec<DeviceState> = devices.into_iter().map(device_state).collect();
    let mut ends = Ends::new();
    let mut now = 0;
    while device_states.iter().any(|device_state| !device_state.is_done()) {
        let mut is_any_busy = false;
        for (device, device_state) in device_states.iter_mut().enumerate() {
            if device_state.free_at <= now
                && let Some(task) = device_state.choose(pipeline, device, now, &ends)
            {
                device_state.free_at = now + if task.pass == Pass::Forward { 1 } else { 2 };
                let stage = pipeline.stage(device, task.chunk);
                ends.insert((stage, settled(task.pass), task.microbatch), device_state.free_at);
                device_state.program.push(task);
            }
            is_any_busy |= device_state.free_at > now;
        }
        if !is_any_busy {
            for device_state in &mut device_states {
                device_state.limit += 1;
            }
        }
        now += 1;
    }
    pipeline.programs =
        device_states.into_iter().map(|device_state| device_state.program).collect();
}

impl DeviceState {
    fn is_done(&self) -> bool {
        self.streams.iter().all(|(stream, _, backward)| *backward == stream.backward.len())
    }

    /// Ready backward pass, or else forward pass.
    fn choose(
        &mut self,
        pipeline: &Pipeline,
        device: usize,
        now: usize,
        ends: &Ends,
    ) -> Option<Task> {
        let can_begin = |task: &Task| {
            let stage = pipeline.stage(device, task.chunk);
            let is_there = |(stage, pass): (usize, Pass)| {
                ends.get(&(stage, pass, task.microbatch)).is_some_and(|end| *end <= now)
            };
            needs(pipeline.shape, stage, task.pass).into_iter().flatten().all(is_there)
        };
        let distance_key =
            |task: &Task| (pipeline.stage(device, task.chunk), usize::MAX - task.microbatch);
        let streams = &mut self.streams;
        let back = streams.iter_mut().filter_map(|(stream, _, next)| {
            let task = *stream.backward.get(*next)?;
            can_begin(&task).then_some((task, next))
        });
        if let Some((task, next)) = back.max_by_key(|(task, _)| distance_key(task)) {
            *next += 1;
            self.num_live -= 1;
            return Some(task);
        }
        if self.num_live >= self.limit {
            return None;
        }
        let on = streams.iter_mut().filter_map(|(stream, next, _)| {
            let task = *stream.forward.get(*next)?;
            can_begin(&task).then_some((task, next))
        });
        let (task, next) = on.max_by_key(|(task, _)| distance_key(task))?;
        *next += 1;
        self.num_live += 1;
        Some(task)
    }
}

/// Pipeline without programs.
pub(super) fn empty(kind: Kind, shape: Shape) -> Pipeline {
    Pipeline { kind, shape, programs: vec![Vec::new(); shape.num_devices] }
}

//! Finds the order of a device's passes by playing the pipeline, where no closed form is known.
//!
//! Passes belong to *streams*: a stream has an order in which it goes forward and one in which it
//! goes backward. A device that is free goes backward if it can, and else forward, as long as it
//! keeps no more than it may; among several it takes the pass that is nearest to the loss, since
//! that is what frees memory soonest. A forward pass takes one unit of time, a backward pass two.

use super::dependencies::{needs, settled};
use super::{Kind, Pass, Pipeline, Shape, Task};
use std::collections::BTreeMap;

/// The passes of one device in one direction, in their order.
pub(super) struct Stream {
    pub(super) forward: Vec<Task>,
    pub(super) backward: Vec<Task>,
}

/// A device at schedule_greedily.
struct DeviceState {
    streams: Vec<(Stream, usize, usize)>,
    program: Vec<Task>,
    free_at: usize,
    limit: usize,
    num_live: usize,
}

/// When passes are over, by stage, pass and microbatch.
type Ends = BTreeMap<(usize, Pass, usize), usize>;

/// Fills in the programs of a pipeline whose devices have these streams, and keep at most so many
/// passes alive, or a few more where they could not go on.
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

    /// Backward if that can begin, or else forward.
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

/// A pipeline without programs, to be played.
pub(super) fn empty(kind: Kind, shape: Shape) -> Pipeline {
    Pipeline { kind, shape, programs: vec![Vec::new(); shape.num_devices] }
}

//! Interleaved 1F1B: every device holds v stages that lie p apart, so that the pipeline fills v
//! times as fast.
//!
//! Microbatches go in groups of p: a group passes through a device's first stage, then its second,
//! and so on, and backward the other way round. The idle time falls by a factor of v. The price is
//! v times the messages, and a longer warm-up, which keeps up to (p-1)/v microbatches more.
//!
//! Where the last group is smaller the two orders, forward and backward, are the same, but when to
//! change from one to the other has no closed form. It is found by playing the pipeline: a device
//! goes backward as soon as it can, and else forward while it keeps no more than in the regular
//! case.

use super::one_f_one_b::alternate;
use super::{Pass, Shape, Task, needs, settled};
use std::collections::BTreeMap;

/// What every device does.
pub fn programs(shape: Shape) -> Vec<Vec<Task>> {
    if shape.num_microbatches.is_multiple_of(shape.num_devices) {
        return (0..shape.num_devices).map(|device| regular(shape, device)).collect();
    }
    played(shape)
}

fn regular(shape: Shape, device: usize) -> Vec<Task> {
    let num_tasks = shape.num_microbatches * shape.num_chunks;
    let place = |index| place(shape, index);
    alternate(
        num_tasks,
        num_warm_up(shape, device),
        |index| task(Pass::Forward, shape, place(index)),
        |index| task(Pass::Backward, shape, place(index)),
    )
}

/// A microbatch of the first group needs all of its chunks forward before any goes back.
const fn num_warm_up(shape: Shape, device: usize) -> usize {
    2 * (shape.num_devices - 1 - device) + (shape.num_chunks - 1) * shape.num_devices
}

/// The microbatch, and the how-manieth chunk of it, of the pass number `index`.
fn place(shape: Shape, index: usize) -> (usize, usize) {
    let Shape { num_devices, num_chunks, num_microbatches } = shape;
    let (group, place) = (index / (num_devices * num_chunks), index % (num_devices * num_chunks));
    let len = num_devices.min(num_microbatches - group * num_devices);
    (group * num_devices + place % len, place / len)
}

fn task(pass: Pass, shape: Shape, (microbatch, chunk): (usize, usize)) -> Task {
    match pass {
        Pass::Forward => Task::new(pass, microbatch, chunk),
        _ => Task::new(pass, microbatch, shape.num_chunks - 1 - chunk),
    }
}

/// A device at play.
struct Player {
    program: Vec<Task>,
    num_forward: usize,
    num_backward: usize,
    free_at: usize,
    limit: usize,
}

/// Plays the pipeline with forward passes of one unit of time and backward passes of two.
fn played(shape: Shape) -> Vec<Vec<Task>> {
    let num_tasks = shape.num_microbatches * shape.num_chunks;
    let player = |device| Player {
        program: Vec::with_capacity(2 * num_tasks),
        num_forward: 0,
        num_backward: 0,
        free_at: 0,
        limit: num_warm_up(shape, device) + 1,
    };
    let mut players: Vec<Player> = (0..shape.num_devices).map(player).collect();
    let mut ends: BTreeMap<(usize, Pass, usize), usize> = BTreeMap::new();
    let mut now = 0;
    while players.iter().any(|player| player.num_backward < num_tasks) {
        let mut is_anybody_busy = false;
        for (device, player) in players.iter_mut().enumerate() {
            if player.free_at <= now
                && let Some(task) = player.choose(shape, device, now, &ends)
            {
                let stage = shape.stage(device, task.chunk);
                player.free_at = now + if task.pass == Pass::Forward { 1 } else { 2 };
                ends.insert((stage, settled(task.pass), task.microbatch), player.free_at);
                player.program.push(task);
            }
            is_anybody_busy |= player.free_at > now;
        }
        if !is_anybody_busy {
            // Nobody can go on with what may be kept: then a little more is.
            players.iter_mut().for_each(|player| player.limit += 1);
        }
        now += 1;
    }
    players.into_iter().map(|player| player.program).collect()
}

impl Player {
    /// Backward if that can begin, or else forward.
    fn choose(
        &mut self,
        shape: Shape,
        device: usize,
        now: usize,
        ends: &BTreeMap<(usize, Pass, usize), usize>,
    ) -> Option<Task> {
        let num_tasks = shape.num_microbatches * shape.num_chunks;
        let can_begin = |task: &Task| {
            let needs = needs(shape, shape.stage(device, task.chunk), task.pass);
            let is_there = |(stage, pass): (usize, Pass)| {
                ends.get(&(stage, pass, task.microbatch)).is_some_and(|end| *end <= now)
            };
            needs.into_iter().flatten().all(is_there)
        };
        if self.num_backward < self.num_forward {
            let next = task(Pass::Backward, shape, place(shape, self.num_backward));
            if can_begin(&next) {
                self.num_backward += 1;
                return Some(next);
            }
        }
        if self.num_forward < num_tasks && self.num_forward - self.num_backward < self.limit {
            let next = task(Pass::Forward, shape, place(shape, self.num_forward));
            if can_begin(&next) {
                self.num_forward += 1;
                return Some(next);
            }
        }
        None
    }
}

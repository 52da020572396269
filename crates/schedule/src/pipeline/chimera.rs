//! Chimera (Li and Hoefler 2021): two pipelines through the same devices in opposite directions.
//!
//! Every device holds two stages, one per direction: device d holds stages d and p-1-d, so the
//! model exists twice. The first half of the micro-batches goes down, the second half up; each
//! direction works where the other would idle, which about halves the bubble. The price is the
//! second replica of the weights, whose gradients must be added to the first's. Sums then have
//! another order than on one worker, so this schedule is simulated and priced but not trained with.

use super::greedy::{Stream, empty, schedule_greedily};
use super::{Kind, Pass, Pipeline, Shape, Task};
use std::ops::Range;

/// Pipeline; a task's chunk is its direction.
pub fn pipeline(shape: Shape) -> Pipeline {
    let stream = |direction: usize| Stream {
        forward: microbatches(shape, direction)
            .map(|i| Task::new(Pass::Forward, i, direction))
            .collect(),
        backward: microbatches(shape, direction)
            .map(|i| Task::new(Pass::Backward, i, direction))
            .collect(),
    };
    let mut pipeline = empty(Kind::Chimera, shape);
    let limit = shape.num_devices;
    let devices = (0..shape.num_devices).map(|_| (vec![stream(0), stream(1)], limit)).collect();
    schedule_greedily(&mut pipeline, devices);
    pipeline
}

/// Micro-batches of a direction.
pub(super) fn microbatches(shape: Shape, direction: usize) -> Range<usize> {
    let half = shape.num_microbatches.div_ceil(2);
    if direction == 0 { 0..half } else { half..shape.num_microbatches }
}

//! Chimera: two pipelines through the same devices in opposite directions.
//!
//! Every device holds two stages, one of each direction: device d the stages d and p-1-d, so that
//! the model is there twice. The first half of the microbatches goes down, the second half up; each
//! direction works where the other would idle, and the idle time is about halved. The price is the
//! second copy of the weights, whose gradients must be added to the first's: sums then have another
//! order than that of one worker, so it is drawn and priced here, and not trained with.
//! (arXiv:2107.06925.)

use super::greedy::{Stream, empty, schedule_greedily};
use super::{Kind, Pass, Pipeline, Shape, Task};
use std::ops::Range;

/// The pipeline; a task's chunk is its direction.
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

/// The microbatches of a direction.
pub(super) fn microbatches(shape: Shape, direction: usize) -> Range<usize> {
    let half = shape.num_microbatches.div_ceil(2);
    if direction == 0 { 0..half } else { half..shape.num_microbatches }
}

//! Zero bubble: backward in two halves, of which one can wait.
//!
//! Only the gradient of a stage's *input* is waited for by the stage before; the gradient of its
//! *weights* can be computed whenever there is nothing better to do. So input gradients go back as
//! fast as they can, and weight gradients fill the gaps: late devices, which have finished soonest
//! with what the others wait for, put theirs off longest.
//!
//! With a memory of one (H1) no device keeps more than p microbatches, as in 1F1B, and the idle
//! time falls by the time of two weight gradients a stage. With a memory of two (H2) the warm-up
//! is twice as long and devices work without a gap from their first pass to their last, if the
//! three passes take equally long. (A device may then begin its next step before others have
//! ended this one, so what counts is the longest time that one device takes.)

use super::{Pass, Shape, Task};

/// What a device does, with `memory` times the activations of 1F1B.
pub fn program(shape: Shape, device: usize, memory: usize) -> Vec<Task> {
    let num_microbatches = shape.num_microbatches;
    let num_warm_up = (memory * (shape.num_devices - 1 - device)).min(num_microbatches);
    let num_put_off = memory * device;
    let task = |pass| move |index| Task::new(pass, index, 0);
    let (forward, input_grad, weight_grad) =
        (task(Pass::Forward), task(Pass::InputGrad), task(Pass::WeightGrad));
    let mut tasks: Vec<Task> = (0..num_warm_up).map(forward).collect();
    for index in 0..num_microbatches {
        if num_warm_up + index < num_microbatches {
            tasks.push(forward(num_warm_up + index));
        }
        tasks.push(input_grad(index));
        if index >= num_put_off {
            tasks.push(weight_grad(index - num_put_off));
        }
    }
    let num_left = num_put_off.min(num_microbatches);
    tasks.extend((num_microbatches - num_left..num_microbatches).map(weight_grad));
    tasks
}

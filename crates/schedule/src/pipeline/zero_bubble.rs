//! Zero-bubble schedules (Qi et al. 2023): backward is split, and weight gradients are deferred.
//!
//! Only the *input* gradient of a stage is needed by the previous stage; the *weight* gradient can
//! wait. Input gradients go back as early as possible, and deferred weight gradients fill the
//! bubble; the last devices, which finish first with the passes that others wait for, defer
//! longest.
//!
//! With the memory of 1F1B (ZB-H1) no device keeps more than p micro-batches, and the bubble is
//! (p-1)(F+I-W). With twice the memory (ZB-H2) the warm-up is twice as long and devices have no
//! bubble between their first pass and their last, if the three passes take equally long. (A device
//! may then start its next step before others have ended this one, so the cycle time is the longest
//! time of one device.)

use super::{Pass, Shape, Task};

/// Program of a device, with `memory` times the activations of 1F1B.
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

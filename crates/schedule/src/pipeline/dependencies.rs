//! Dependencies between the passes of a pipeline, which follow from the model and not from the
//! schedule: forward needs the previous stage, backward the next one and its own forward pass.

use super::{Pass, Shape};

/// The stage whose output a pass takes.
pub fn comes_from(shape: Shape, stage: usize, pass: Pass) -> Option<usize> {
    let is_last = stage + 1 == shape.num_stages();
    match pass {
        Pass::Forward => stage.checked_sub(1),
        Pass::Backward | Pass::InputGrad => (!is_last).then_some(stage + 1),
        Pass::WeightGrad => None,
    }
}

/// The stage that takes the output of a pass.
pub fn goes_to(shape: Shape, stage: usize, pass: Pass) -> Option<usize> {
    let is_last = stage + 1 == shape.num_stages();
    match pass {
        Pass::Forward => (!is_last).then_some(stage + 1),
        Pass::Backward | Pass::InputGrad => stage.checked_sub(1),
        Pass::WeightGrad => None,
    }
}

/// What a pass waits for: passes of its own stage and of a neighbour. Whole backward passes count
/// as input gradients, since that is what others wait for.
pub fn needs(shape: Shape, stage: usize, pass: Pass) -> [Option<(usize, Pass)>; 2] {
    let is_last = stage + 1 == shape.num_stages();
    match pass {
        Pass::Forward => [stage.checked_sub(1).map(|before| (before, Pass::Forward)), None],
        Pass::Backward | Pass::InputGrad => {
            [Some((stage, Pass::Forward)), (!is_last).then_some((stage + 1, Pass::InputGrad))]
        }
        Pass::WeightGrad => [Some((stage, Pass::InputGrad)), None],
    }
}

/// What others see of a pass.
pub const fn settled(pass: Pass) -> Pass {
    match pass {
        Pass::Backward => Pass::InputGrad,
        other => other,
    }
}

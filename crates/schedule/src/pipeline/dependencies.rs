//! Dependencies between the passes of a pipeline, which follow from the model and not from the
//! schedule: forward needs the previous stage, backward the next one and its own forward pass.

use super::{Pass, Shape};

/// Stage whose output a pass consumes.
pub fn comes_from(shape: Shape, stage: usize, pass: Pass) -> Option<usize> {
    let is_last = stage + 1 == shape.num_stages();
    match pass {
        Pass::Forward => stage.checked_sub(1),
        Pass::Backward | Pass::InputGrad => (!is_last).then_some(stage + 1),
        Pass::WeightGrad => None,
    }
}

/// Stage that consumes the output of a pass.
pub fn goes_to(shape: Shape, stage: usize, pass: Pass) -> Option<usize> {
    let is_last = stage + 1 == shape.num_stages();
    match pass {
        Pass::Forward => (!is_last).then_some(stage + 1),
        Pass::Backward | Pass::InputGrad => stage.checked_sub(1),
        Pass::WeightGrad => None,
    }
}

/// Passes that must complete before a pass: of its own stage and of a neighbour. A full backward
/// pass counts as an input gradient, since other stages wait for that.
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

/// Pass that other stages wait for.
pub const fn settled(pass: Pass) -> Pass {
    match pass {
        Pass::Backward => Pass::InputGrad,
        other => other,
    }
}

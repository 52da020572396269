//! Weights of a whole model in one flat vector, tensor by tensor, each in the order of its memory.

use crate::replica::Replica;
use lockstep_comm::CommError;
use lockstep_model::Blueprint;
use std::collections::BTreeMap;
use std::ops::Range;

/// Range of each tensor in the vector, and the length of that.
pub(crate) fn places_of(blueprint: &Blueprint) -> (BTreeMap<String, Range<usize>>, usize) {
    let (mut places, mut len) = (BTreeMap::new(), 0);
    for (_, param) in blueprint.tensors() {
        places.insert(param.name.clone(), len..len + param.len());
        len += param.len();
    }
    (places, len)
}

/// Copies all weights of a replica into a flat vector; `places` has the range of each tensor.
pub(crate) fn read_weights(
    replica: &mut Replica,
    places: &BTreeMap<String, Range<usize>>,
    into: &mut [f32],
) -> Result<(), CommError> {
    replica.visit_params(|param, values| {
        param.pick(0, values, &mut into[places[&param.name].clone()]);
        Ok(())
    })
}

/// Sets all weights of a replica from a flat vector.
pub(crate) fn write_weights(
    replica: &mut Replica,
    places: &BTreeMap<String, Range<usize>>,
    from: &[f32],
) -> Result<(), CommError> {
    replica.fill(|param, first, values| {
        let name = param.mirror_of.as_ref().unwrap_or(&param.name);
        values.copy_from_slice(&from[places[name].clone()][first..][..values.len()]);
        Ok(())
    })
}

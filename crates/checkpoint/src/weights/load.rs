//! Reading a whole file of weights at once.

use std::path::Path;

use lockstep_platform::World;

use super::{ElementType, Tensor, Weights, WeightsFile};
use crate::CheckpointError;

/// Reads a file of weights. Anything but a whole file of finite f32 tensors is an error.
pub fn load(world: &World, path: &Path) -> Result<Weights, CheckpointError> {
    let file = WeightsFile::open(world, path)?;
    let mut weights = Weights { path: path.to_owned(), tensors: [].into(), metadata: [].into() };
    for name in file.names() {
        let tensor = read_tensor(&file, &name)?;
        weights.tensors.insert(name, tensor);
    }
    weights.metadata = file.metadata();
    Ok(weights)
}

fn read_tensor(file: &WeightsFile, name: &str) -> Result<Tensor, CheckpointError> {
    // What we write is f32; another format means that the file is not one of ours.
    file.expect_format(name, ElementType::F32)?;
    let shape = file.shape(name).expect("the header knows its own names").to_vec();
    // The header was proven against the size of the file, so this is no more than it holds.
    let mut data = vec![0.0; shape.iter().product()];
    file.read(name, 0, &mut data)?;
    Ok(Tensor { shape, data })
}

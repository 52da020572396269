//! Loading of a whole weight file.

use std::path::Path;

use lockstep_platform::World;

use super::{ElementType, Tensor, Weights, WeightsFile};
use crate::CheckpointError;

/// Loads a weight file; anything but a complete file of finite f32 tensors is an error.
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
    // Weight files of a run are f32; another format is a foreign file.
    file.expect_format(name, ElementType::F32)?;
    let shape = file.shape(name).expect("the header knows its own names").to_vec();
    // The header was validated, so this is at most the size of the file.
    let mut data = vec![0.0; shape.iter().product()];
    file.read(name, 0, &mut data)?;
    Ok(Tensor { shape, data })
}

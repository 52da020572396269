//! Base of adapters in four bits, as the folders of runs refer to it.
//!
//! A run keeps what it trains. Its base is that of its recipe: the folder of `model.from`, or
//! initial values. A folder of such a run therefore shows a model without quantised weights, whose
//! values are those that training multiplied with: dequantised, one tensor at a time.

use crate::TrainError;
use lockstep_config::{Lora, Model, QuantType};
use lockstep_model::frozen_weight::FrozenTensor;
use lockstep_model::{Param, Piece, describe};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Reads elements of a whole tensor of the base, before quantisation, from a position on.
pub(crate) type ReadBase = Box<dyn Fn(&Param, usize, &mut [f32]) -> Result<(), TrainError>>;

/// The base of a finished or interrupted run.
pub(crate) struct FrozenBase {
    /// Adapters and format of the run.
    pub(crate) lora: Lora,
    tensors: BTreeMap<String, Arc<FrozenTensor>>,
    read: ReadBase,
    /// The tensor that was read last, and its values.
    last: Mutex<Option<(String, Vec<f32>)>>,
}

/// The model with weights of `f32` beside its adapters.
pub(crate) fn dequantised(model: &Model) -> Model {
    let lora = Lora { quant_type: QuantType::None, double_quant: true, ..model.lora };
    Model { lora, ..model.clone() }
}

impl FrozenBase {
    /// The base of a run with this model.
    pub(crate) fn new(model: &Model, read: ReadBase) -> Self {
        let blueprint = describe(model);
        let tensors = blueprint.frozen_tensors();
        let tensors = tensors.map(|(_, it)| (it.param.name.clone(), Arc::clone(it)));
        let (tensors, last) = (tensors.collect(), Mutex::new(None));
        Self { lora: model.lora, tensors, read, last }
    }

    /// A tensor of the base.
    pub(crate) fn tensor(&self, name: &str) -> Option<&Param> {
        Some(&self.tensors.get(name)?.param)
    }

    /// Names and shapes.
    pub(crate) fn outlines(&self) -> impl Iterator<Item = (&String, &Vec<usize>)> {
        self.tensors.iter().map(|(name, tensor)| (name, &tensor.param.shape))
    }

    /// Reads elements as they were before quantisation.
    pub(crate) fn read(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), TrainError> {
        (self.read)(&self.tensors[name].param, first, out)
    }

    /// Reads elements as training has them.
    pub(crate) fn read_dequantised(
        &self,
        name: &str,
        first: usize,
        out: &mut [f32],
    ) -> Result<(), TrainError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|(of, _)| of != name) {
            // The memory of the last tensor is released first.
            *last = None;
            let tensor = &self.tensors[name];
            let mut values = vec![0.0; tensor.param.tensor_len()];
            self.read(name, 0, &mut values)?;
            tensor.round_trip(&mut values);
            *last = Some((name.to_owned(), values));
        }
        let (_, values) = last.as_ref().expect("just read");
        out.copy_from_slice(&values[first..first + out.len()]);
        Ok(())
    }
}

/// A parameter as its whole tensor.
pub(crate) fn whole(param: &Param) -> Param {
    Param { piece: Piece::whole(&param.shape), ..param.clone() }
}

//! Frozen weights in four bits, beside which adapters are trained (QLoRA, Dettmers et al. 2023).
//!
//! They are no parameters: no buffer of the runtime has them, so they have neither gradients nor
//! optimizer state, and are neither sharded nor exchanged. A block keeps its own in
//! [`lockstep_tensor::nf4`]'s format, as its head keeps a teacher; their memory is allocated when
//! they are read. A product dequantises a tile at a time, into memory that all weights of a model
//! share, and has the bits of a product with the dequantised weight.
//!
//! Scales are a function of the whole tensor, of which every rank reads the largest magnitudes, so
//! the blocks of a shard are those of the whole.

use crate::param::{Init, Param, ParamList, Piece};
use lockstep_config::Model;
use lockstep_tensor::device::{Device, Epilogue, Matrix, MatrixMut, Result, ViewMut};
use lockstep_tensor::gemm::{Precision, Write};
use lockstep_tensor::nf4::{self, BLOCK_LEN, GROUP_LEN, MAX_PARTS, Nf4, Nf4Rows, TensorScales};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Elements that are read at a time.
const READ_LEN: usize = 1 << 18;
const _: () = assert!(READ_LEN.is_multiple_of(BLOCK_LEN), "whole blocks");

/// A tensor that is frozen in four bits, or the piece of a shard.
#[derive(Debug)]
pub struct FrozenTensor {
    /// Name, shape, piece and initial values; it has no place in a buffer.
    pub param: Param,
    /// Whether its scales are quantised too.
    double: bool,
    loaded: OnceLock<Nf4>,
}

impl FrozenTensor {
    pub(crate) const fn new(param: Param, double: bool) -> Self {
        Self { param, double, loaded: OnceLock::new() }
    }

    /// Quantises the tensor and keeps this piece. `read` sets elements of the whole tensor, from a
    /// position on, all finite, and is called twice for those of the piece.
    ///
    /// # Panics
    /// When it is loaded already, or an element is not finite.
    pub fn load<E>(
        &self,
        mut read: impl FnMut(usize, &mut [f32]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let len = self.param.tensor_len();
        let mut buffer = vec![0.0; READ_LEN.min(len)];
        let mut largest = Vec::with_capacity(len / BLOCK_LEN);
        for first in (0..len).step_by(READ_LEN) {
            let values = &mut buffer[..READ_LEN.min(len - first)];
            read(first, values)?;
            largest.extend(values.chunks(BLOCK_LEN).map(nf4::largest));
        }
        let scales = self.scales(largest);
        let (num_blocks, num_runs) = self.num_blocks_and_runs();
        let mut weight = Nf4::with_capacity(num_blocks, num_runs, self.double);
        for (run, place) in self.param.runs(0..self.param.len()) {
            for at in (0..run.len()).step_by(READ_LEN) {
                let values = &mut buffer[..READ_LEN.min(run.len() - at)];
                read(place + at, values)?;
                for (index, block) in values.chunks(BLOCK_LEN).enumerate() {
                    weight.push(&scales, (place + at) / BLOCK_LEN + index, block);
                }
            }
        }
        assert!(self.loaded.set(weight).is_ok(), "a frozen tensor is loaded once");
        Ok(())
    }

    /// Replaces values of the whole tensor by those after quantisation.
    ///
    /// # Panics
    /// When an element is not finite.
    pub fn round_trip(&self, values: &mut [f32]) {
        let blocks = values.chunks(BLOCK_LEN);
        let num_blocks = blocks.len();
        let scales = self.scales(blocks.clone().map(nf4::largest).collect());
        let num_runs = num_blocks.div_ceil(GROUP_LEN);
        let mut weight = Nf4::with_capacity(num_blocks, num_runs, self.double);
        blocks.enumerate().for_each(|(index, block)| weight.push(&scales, index, block));
        weight.decode(values);
    }

    /// Scales of blocks with these largest magnitudes.
    fn scales(&self, largest: Vec<f32>) -> TensorScales {
        assert!(largest.iter().all(|x| x.is_finite()), "{} is finite", self.param.name);
        TensorScales::new(largest, self.double)
    }

    /// Blocks of the piece, and how often the next one is of another group.
    fn num_blocks_and_runs(&self) -> (usize, usize) {
        let (mut num_runs, mut last) = (0, None);
        for (run, place) in self.param.runs(0..self.param.len()) {
            let group_of = |at: usize| at / BLOCK_LEN / GROUP_LEN;
            let (first, end) = (group_of(place), group_of(place + run.len() - BLOCK_LEN));
            num_runs += end - first + usize::from(last != Some(first));
            last = Some(end);
        }
        (self.param.len() / BLOCK_LEN, num_runs)
    }

    /// Bytes that it will hold.
    pub fn planned_bytes(&self) -> usize {
        let (num_blocks, num_runs) = self.num_blocks_and_runs();
        Nf4::planned_bytes(num_blocks, num_runs, self.double)
    }

    /// Bytes that it holds.
    pub fn num_bytes(&self) -> usize {
        self.loaded.get().map_or(0, Nf4::num_bytes)
    }

    /// Number that differs where a code or a scale does, if it is loaded.
    pub fn fingerprint(&self) -> Option<u64> {
        self.loaded.get().map(Nf4::fingerprint)
    }
}

/// Memory of a dequantised tile, which the weights of a model share.
#[derive(Debug, Default)]
pub struct Tile(Mutex<Vec<f32>>);

impl Tile {
    /// Allocates the memory.
    pub fn allocate(&self, len: usize) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = vec![0.0; len];
    }

    /// Elements of the memory.
    pub fn num_elements(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Number format of the weights of linear layers beside adapters.
#[derive(Clone, Debug)]
pub(crate) struct BaseFormat {
    /// Whether scales are quantised too.
    double: bool,
    tile: Arc<Tile>,
}

impl BaseFormat {
    /// Format of a model; none where its weights are parameters.
    pub(crate) fn of(model: &Model) -> Option<Self> {
        let double = model.lora.double_quant;
        model.lora.is_quantised().then(|| Self { double, tile: Arc::default() })
    }
}

/// A tensor of a weight: name, shape, piece and initial values.
pub(crate) type TensorPiece = (String, [usize; 2], Piece, Init);

/// Parameters of a layer, and the format of the weights that are none.
pub(crate) struct LayerParams<'a> {
    pub(crate) params: ParamList,
    pub(crate) base: Option<&'a BaseFormat>,
}

impl LayerParams<'_> {
    /// Appends the weight of a linear layer: tensors whose rows follow each other. It is a range of
    /// the layer's flat buffer, or frozen beside it.
    pub(crate) fn weight(
        &mut self,
        tensors: impl Iterator<Item = TensorPiece>,
        [num_inputs, num_outputs]: [usize; 2],
    ) -> (Range<usize>, Option<FrozenWeight>) {
        let start = self.params.end();
        let mut parts = Vec::new();
        for (name, shape, piece, init) in tensors {
            let Some(format) = self.base else {
                self.params.push_piece(name, &shape, piece, init);
                continue;
            };
            let (shape, offset, decay, mirror_of) = (shape.to_vec(), 0, true, None);
            let param = Param { name, shape, piece, offset, init, decay, mirror_of };
            parts.push(Arc::new(FrozenTensor::new(param, format.double)));
        }
        let frozen = self.base.map(|format| {
            let tile = Arc::clone(&format.tile);
            FrozenWeight { parts, num_inputs, num_outputs, tile }
        });
        (start..self.params.end(), frozen)
    }
}

/// Weight of a linear layer in four bits: a tensor, or several whose rows follow each other.
#[derive(Clone, Debug)]
pub struct FrozenWeight {
    parts: Vec<Arc<FrozenTensor>>,
    pub(crate) num_inputs: usize,
    pub(crate) num_outputs: usize,
    pub(crate) tile: Arc<Tile>,
}

impl FrozenWeight {
    /// Elements of the largest tile of its products.
    pub const fn tile_len(&self) -> usize {
        nf4::tile_len(self.num_outputs, self.num_inputs)
    }

    /// The tensors, in order.
    pub fn tensors(&self) -> &[Arc<FrozenTensor>] {
        &self.parts
    }

    /// Memory that it shares with other weights.
    pub fn tile(&self) -> &Tile {
        &self.tile
    }

    /// The tensors as one matrix.
    fn rows(&self) -> Nf4Rows<'_> {
        let mut parts = [None; MAX_PARTS];
        for (place, part) in parts.iter_mut().zip(&self.parts) {
            *place = Some(part.loaded.get().expect("frozen weights are loaded"));
        }
        Nf4Rows { parts, width: self.num_inputs }
    }

    /// Sets `y` to the product, or adds it, with an operation on the result.
    pub(crate) fn product(
        &self,
        device: &dyn Device,
        precision: Precision,
        x: Matrix<'_>,
        mut y: ViewMut<'_>,
        write: Write,
        epilogue: &Epilogue<'_>,
    ) -> Result<()> {
        let mut tile = self.tile.0.lock().unwrap_or_else(PoisonError::into_inner);
        let out = MatrixMut::new(y.reborrow(), x.rows, self.num_outputs);
        nf4::product(device, precision, x, self.rows(), out, write, &mut tile)?;
        match epilogue {
            Epilogue::None => Ok(()),
            Epilogue::Bias(bias) => device.bias_add(y, *bias),
            Epilogue::Residual { bias, residual } => {
                if let Some(bias) = bias {
                    device.bias_add(y.reborrow(), *bias)?;
                }
                device.add_assign(y, *residual)
            }
            Epilogue::GeluBackward { .. } | Epilogue::BiasGelu { .. } => {
                unreachable!("models with adapters have gated units")
            }
        }
    }

    /// Sets `dx` to the gradient of the input, or adds it.
    pub(crate) fn input_product(
        &self,
        device: &dyn Device,
        precision: Precision,
        dy: Matrix<'_>,
        dx: ViewMut<'_>,
        write: Write,
    ) -> Result<()> {
        let mut tile = self.tile.0.lock().unwrap_or_else(PoisonError::into_inner);
        let out = MatrixMut::new(dx, dy.rows, self.num_inputs);
        nf4::input_product(device, precision, dy, self.rows(), out, write, &mut tile)
    }
}

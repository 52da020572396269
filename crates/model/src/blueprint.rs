//! A model as a list of blocks: shapes only, no memory.
//!
//! Pipeline partitioning, sharding and cost estimates work on this value before anything is
//! allocated. With tied embeddings the head has its own replica of the table, a *mirror*, with its
//! own gradient, so that the first and the last block can be on different ranks. The two gradients
//! are summed in one order under every layout: each over the micro-batches first, then one added to
//! the other, once.

use crate::block::{Block, Flops, MicrobatchShape, ProductPlan};
use crate::formats::floats;
use crate::frozen_weight::{FrozenTensor, FrozenWeight, Tile};
use crate::linear::larger_operands;
use crate::param::{Param, rows_and_cols};
use crate::teacher::Teacher;
use crate::tensor_shards::TensorShards;
use lockstep_tensor::device::Dtype;
use lockstep_tensor::device::open::accelerator_scratch_bytes;
use std::sync::Arc;

/// A model as data.
pub struct Blueprint {
    /// Embedding, layers, head.
    pub blocks: Vec<Box<dyn Block>>,
    /// Size of the vocabulary, or number of outputs of the last block.
    pub vocab: usize,
    /// Longest sequence.
    pub context: usize,
    /// Tensor-parallel shards of the blocks.
    pub shards: TensorShards,
    /// Type of activations in memory.
    pub activations: Dtype,
    /// Teacher of a student, which its head runs.
    pub teacher: Option<Arc<Teacher>>,
}

/// A tied parameter: its mirror and its owner.
#[derive(Clone, Copy, Debug)]
pub struct Mirror<'a> {
    /// Block of the mirror.
    pub mirror_block: usize,
    /// The mirror.
    pub mirror: &'a Param,
    /// Block of the owner.
    pub owner_block: usize,
    /// The parameter that is updated and saved.
    pub owner: &'a Param,
}

impl Blueprint {
    /// Every parameter with the index of its block, in the order of the flat buffers.
    pub fn params(&self) -> impl Iterator<Item = (usize, &Param)> {
        let blocks = self.blocks.iter().enumerate();
        blocks.flat_map(|(index, block)| block.params().iter().map(move |param| (index, param)))
    }

    /// Parameters that are updated and saved: all but mirrors.
    pub fn owned_params(&self) -> impl Iterator<Item = (usize, &Param)> {
        self.params().filter(|(_, param)| param.mirror_of.is_none())
    }

    /// Every mirror with its owner.
    pub fn mirrors(&self) -> impl Iterator<Item = Mirror<'_>> {
        self.params().filter_map(|(mirror_block, mirror)| {
            let owner_name = mirror.mirror_of.as_ref()?;
            let (owner_block, owner) = self
                .params()
                .find(|(_, param)| param.name == *owner_name && param.piece == mirror.piece)
                .expect("a mirror has an owner");
            Some(Mirror { mirror_block, mirror, owner_block, owner })
        })
    }

    /// Number of tensors, without mirrors.
    pub fn num_tensors(&self) -> usize {
        let is_first =
            |param: &Param| param.piece.num == 1 || param.piece.index == self.shards.local.start;
        self.owned_params().filter(|(_, param)| is_first(param)).count()
    }

    /// Saved tensors by name: the first local piece of each, with the index of its block.
    pub fn tensors(&self) -> Vec<(usize, &Param)> {
        let mut tensors: Vec<_> = self.owned_params().collect();
        tensors.sort_by(|(_, a), (_, b)| (&a.name, a.offset).cmp(&(&b.name, b.offset)));
        tensors.dedup_by(|(_, a), (_, b)| a.name == b.name);
        tensors
    }

    /// Rows and columns of a parameter's tensor, if it is a matrix inside the network: embedding
    /// and head, the first and the last block, have none.
    pub fn hidden_matrix(&self, block: usize, param: &Param) -> Option<[usize; 2]> {
        let is_inside = block > 0 && block + 1 < self.blocks.len();
        match param.shape[..] {
            [rows, cols] if is_inside => Some([rows, cols]),
            _ => None,
        }
    }

    /// Rows and columns of a parameter's tensor; a vector is one row.
    pub fn rows_and_cols(param: &Param) -> [usize; 2] {
        let (rows, cols) = rows_and_cols(&param.shape);
        [rows, cols]
    }

    /// Local pieces of a tensor, in order; `param` is one of them, in `block`.
    pub fn pieces<'a>(&'a self, block: usize, param: &'a Param) -> impl Iterator<Item = &'a Param> {
        self.blocks[block].params().iter().filter(|other| other.name == param.name)
    }

    /// Bytes that an accelerator allocates for products and attention of these blocks, besides
    /// their buffers.
    pub fn accelerator_scratch_bytes(
        &self,
        blocks: impl Iterator<Item = usize>,
        shape: MicrobatchShape,
        products: ProductPlan,
    ) -> usize {
        let operands = blocks.map(|block| self.blocks[block].operand_bytes(shape, products));
        accelerator_scratch_bytes(operands.fold([0; 2], larger_operands))
    }

    /// Tensors that are frozen in four bits, or the local pieces of them, with the indices of their
    /// blocks.
    pub fn frozen_tensors(&self) -> impl Iterator<Item = (usize, &Arc<FrozenTensor>)> {
        let weights = self.blocks.iter().map(|block| block.frozen_weights()).enumerate();
        weights.flat_map(|(index, weights)| {
            weights.into_iter().flat_map(FrozenWeight::tensors).map(move |tensor| (index, tensor))
        })
    }

    /// Memory of a dequantised tile, and its elements; none without frozen weights.
    pub fn tile(&self) -> Option<(&Tile, usize)> {
        let weights: Vec<_> = self.blocks.iter().flat_map(|block| block.frozen_weights()).collect();
        let len = weights.iter().map(|weight| weight.tile_len()).max()?;
        Some((weights[0].tile(), len))
    }

    /// Number of parameters of the whole model that are frozen in four bits.
    pub fn num_frozen_params(&self) -> usize {
        let is_first = |tensor: &FrozenTensor| {
            let piece = &tensor.param.piece;
            piece.num == 1 || piece.index == self.shards.local.start
        };
        let tensors = self.frozen_tensors().filter(|(_, tensor)| is_first(tensor));
        tensors.map(|(_, tensor)| tensor.param.tensor_len()).sum()
    }

    /// Number of parameters of the whole model, frozen ones included, tied ones once.
    pub fn num_model_params(&self) -> usize {
        self.num_params() + self.num_frozen_params()
    }

    /// Number of parameters of the whole model in buffers, tied ones once.
    pub fn num_params(&self) -> usize {
        self.tensors().iter().map(|(_, param)| param.tensor_len()).sum()
    }

    /// Local rows of the stream between blocks.
    pub fn stream_rows(&self, shape: MicrobatchShape) -> usize {
        self.shards.rows(shape.rows()).len()
    }

    /// Memory of a stream with rows of this width, in `f32` elements.
    pub fn stream_len(&self, shape: MicrobatchShape, width: usize) -> usize {
        floats(self.activations, self.stream_rows(shape) * width)
    }

    /// Width of the widest row between blocks.
    pub fn max_width(&self) -> usize {
        self.blocks.iter().map(|block| block.io().max_width()).max().unwrap_or(0)
    }

    /// FLOPs of one token in a sequence of the full context.
    pub fn flops_per_token(&self) -> Flops {
        self.blocks.iter().map(|block| block.flops_per_token(self.context)).fold(
            Flops::default(),
            |sum, block| Flops {
                forward: sum.forward + block.forward,
                backward: sum.backward + block.backward,
            },
        )
    }

    /// Scratch memory that suffices for every block.
    pub fn scratch_len(&self, shape: MicrobatchShape) -> usize {
        self.blocks.iter().map(|block| block.scratch_len(shape)).max().unwrap_or(0)
    }
}

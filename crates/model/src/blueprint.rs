//! The whole model as a list of blocks: shapes only, no memory.
//!
//! Splitting over stages, sharding and pricing all work on this value before anything is
//! allocated. With tied embeddings the head still has its own copy of the table, a *mirror*, with
//! its own gradient, so that first and last block can live on different machines and their two
//! gradients are summed in the same order under every layout: each over the micro-batches first, then one
//! to the other, once.

use crate::block::{Block, Flops, MicrobatchShape};
use crate::param::Param;
use crate::tensor_shards::TensorShards;

/// A described model.
pub struct Blueprint {
    /// Embedding, layers, head.
    pub blocks: Vec<Box<dyn Block>>,
    /// Number of different tokens, or of numbers that the last block guesses with.
    pub vocab: usize,
    /// Longest sequence.
    pub context: usize,
    /// Which slices of the model the blocks are.
    pub shards: TensorShards,
}

/// Where a mirrored parameter and its owner lie.
#[derive(Clone, Copy, Debug)]
pub struct Mirror<'a> {
    /// The block that holds the copy.
    pub mirror_block: usize,
    /// The copy.
    pub mirror: &'a Param,
    /// The block that holds the parameter.
    pub owner_block: usize,
    /// The parameter that is stepped and saved.
    pub owner: &'a Param,
}

impl Blueprint {
    /// Every parameter with the number of its block, in the order of the flat buffers.
    pub fn params(&self) -> impl Iterator<Item = (usize, &Param)> {
        let blocks = self.blocks.iter().enumerate();
        blocks.flat_map(|(index, block)| block.params().iter().map(move |param| (index, param)))
    }

    /// The parameters that are stepped and saved: all but mirrors.
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

    /// How many tensors the parameters that are not mirrors are, or are slices of.
    pub fn num_tensors(&self) -> usize {
        let is_first =
            |param: &Param| param.piece.num == 1 || param.piece.index == self.shards.local.start;
        self.owned_params().filter(|(_, param)| is_first(param)).count()
    }

    /// The tensors that are saved, whole, by name: the first piece of each that is held here, with
    /// the number of its block.
    pub fn tensors(&self) -> Vec<(usize, &Param)> {
        let mut tensors: Vec<_> = self.owned_params().collect();
        tensors.sort_by(|(_, a), (_, b)| (&a.name, a.offset).cmp(&(&b.name, b.offset)));
        tensors.dedup_by(|(_, a), (_, b)| a.name == b.name);
        tensors
    }

    /// The pieces of a tensor that are held, in order; `param` is one of them, in `block`.
    pub fn pieces<'a>(&'a self, block: usize, param: &'a Param) -> impl Iterator<Item = &'a Param> {
        self.blocks[block].params().iter().filter(|other| other.name == param.name)
    }

    /// Number of parameters of the whole model, tied ones once.
    pub fn num_params(&self) -> usize {
        self.tensors().iter().map(|(_, param)| param.tensor_len()).sum()
    }

    /// Rows of a micro-batch that the stream between blocks has.
    pub fn stream_rows(&self, shape: MicrobatchShape) -> usize {
        self.shards.rows(shape.rows()).len()
    }

    /// Width of the widest row that passes from block to block.
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

    /// Scratch that is enough for every block.
    pub fn scratch_len(&self, shape: MicrobatchShape) -> usize {
        self.blocks.iter().map(|block| block.scratch_len(shape)).max().unwrap_or(0)
    }
}

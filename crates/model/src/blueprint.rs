//! The whole model as a list of blocks: shapes only, no memory.
//!
//! Splitting over stages, sharding and pricing all work on this value before anything is
//! allocated. With tied embeddings the head still has its own copy of the table, a *mirror*, with
//! its own gradient, so that first and last block can live on different machines and their two
//! gradients are summed in the same order under every layout: each over the micro-batches first, then one
//! to the other, once.

use crate::block::{Block, Flops, MicrobatchShape};
use crate::column::Column;
use crate::dropout::Dropout;
use crate::embedding::Embedding;
use crate::entry::Entry;
use crate::head::Head;
use crate::linear::{Linear, WeightLayout};
use crate::param::{Param, ParamList, Piece};
use crate::slices::Slices;
use crate::{gpt2, init, llama, problem};
use lockstep_config::{Dtype, Family, Model};
use lockstep_tensor::gemm::Precision;

/// A described model.
pub struct Blueprint {
    /// Embedding, layers, head.
    pub blocks: Vec<Box<dyn Block>>,
    /// Number of different tokens, or of numbers that the last block guesses with.
    pub vocab: usize,
    /// Longest sequence.
    pub context: usize,
    /// Which slices of the model the blocks are.
    pub slices: Slices,
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

/// Describes the model of a recipe, in one piece, with products in `f32`: enough for whoever asks
/// about names, shapes and counts.
pub fn describe(model: &Model) -> Blueprint {
    describe_slices(model, &Slices::WHOLE, Dtype::F32)
}

/// Describes some slices of the model of a recipe, whose products compute in `compute`.
///
/// # Panics
/// When the model cannot be cut so: the number of slices divides heads, key heads, hidden numbers
/// and vocabulary of a transformer; a small problem is one slice and computes in `f32`.
pub fn describe_slices(model: &Model, slices: &Slices, compute: Dtype) -> Blueprint {
    let is_problem = model.family.is_problem();
    assert!(!is_problem || slices.num == 1, "a {:?} has one slice", model.family);
    if is_problem {
        assert_eq!(compute, Dtype::F32, "a {:?} computes in f32", model.family);
        return problem::describe(model);
    }
    transformer(model, slices, precision_of(compute))
}

/// What the kernels call a recipe's number format.
pub const fn precision_of(compute: Dtype) -> Precision {
    match compute {
        Dtype::F32 => Precision::F32,
        Dtype::Bf16 => Precision::Bf16,
        Dtype::F16 => Precision::F16,
    }
}

fn transformer(model: &Model, cut: &Slices, precision: Precision) -> Blueprint {
    for len in [model.heads, model.kv_heads, model.ffn, model.vocab] {
        assert!(len.is_multiple_of(cut.num), "{len} in {} slices", cut.num);
    }
    let embedding = embedding(model, cut);
    let head = head(model, (cut, precision), &embedding.params);
    let mut blocks: Vec<Box<dyn Block>> = vec![Box::new(embedding)];
    if model.family == Family::Gpt2 {
        for index in 0..model.layers {
            blocks.push(Box::new(gpt2::layer(model, (cut, precision), index)));
        }
    } else {
        let rope = llama::rope_table(model);
        for index in 0..model.layers {
            blocks.push(Box::new(llama::layer(model, (cut, precision), index, &rope)));
        }
    }
    blocks.push(Box::new(head));
    Blueprint { blocks, vocab: model.vocab, context: model.context, slices: cut.clone() }
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
            |param: &Param| param.piece.num == 1 || param.piece.index == self.slices.held.start;
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
        self.slices.rows(shape.rows()).len()
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

fn embedding(model: &Model, cut: &Slices) -> Embedding {
    let mut params = ParamList::default();
    let (name, table, position_table) = match model.family {
        Family::Gpt2 => ("transformer.wte", gpt2::TOKEN_TABLE, Some(gpt2::POSITION_TABLE)),
        _ => ("model.embed_tokens", llama::TOKEN_TABLE, None),
    };
    let shape = [model.vocab, model.width];
    let slices = cut.held.clone().map(|slice| {
        let piece = Piece::rows(&shape, slice, cut.num, cut.of(model.vocab, slice));
        params.push_piece(table.to_string(), &shape, piece, init::MATRIX)
    });
    let tokens = slices.reduce(|all, next| all.start..next.end).expect("at least one slice");
    let positions = position_table
        .map(|table| params.push(table.to_string(), &[model.context, model.width], init::MATRIX));
    Embedding {
        name: name.to_string(),
        width: model.width,
        params: params.finish(),
        tokens,
        first_token: cut.of(model.vocab, cut.held.start).start,
        positions,
        dropout: Dropout { rate: model.dropout, block: 0 },
        cut: cut.clone(),
    }
}

fn head(model: &Model, (cut, precision): (&Slices, Precision), token_tables: &[Param]) -> Head {
    let mut params = ParamList::default();
    let norm = match model.family {
        Family::Gpt2 => gpt2::norm(model, gpt2::FINAL_NORM, &mut params),
        _ => llama::norm(model, llama::FINAL_NORM, &mut params),
    };
    let name = "lm_head".to_string();
    let slices = token_tables[..cut.num_held()].iter().map(|table| {
        let weight_name = format!("{name}.weight");
        let weight = if model.tied {
            params.push_mirror(weight_name, table)
        } else {
            params.push_piece(weight_name, &table.shape, table.piece.clone(), init::MATRIX)
        };
        Linear {
            num_inputs: model.width,
            num_outputs: model.vocab / cut.num,
            layout: WeightLayout::OutIn,
            weight,
            bias: None,
            precision,
        }
    });
    let product = Column { slices: slices.collect(), num_slices: cut.num };
    let entry = Entry { norm, product, cut: cut.clone() };
    Head { name, params: params.finish(), entry }
}

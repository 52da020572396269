//! The whole model as a list of blocks: shapes only, no memory.
//!
//! Splitting over stages, sharding and pricing all work on this value before anything is
//! allocated. With tied embeddings the head still has its own copy of the table, a *mirror*, with
//! its own gradient, so that first and last block can live on different machines and their two
//! gradients are summed in the same order under every layout: each over the lanes first, then one
//! to the other, once.

use crate::block::{Block, Flops, LaneShape};
use crate::dropout::Dropout;
use crate::embedding::Embedding;
use crate::head::Head;
use crate::linear::{Linear, WeightLayout};
use crate::param::{Param, ParamList};
use crate::{gpt2, init, llama, problem};
use lockstep_config::{Family, Model};

/// A described model.
pub struct Blueprint {
    /// Embedding, layers, head.
    pub blocks: Vec<Box<dyn Block>>,
    /// Number of different tokens, or of numbers that the last block guesses with.
    pub vocab: usize,
    /// Longest sequence.
    pub context: usize,
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

/// Describes the model of a recipe.
pub fn describe(model: &Model) -> Blueprint {
    if model.family.is_problem() { problem::describe(model) } else { transformer(model) }
}

fn transformer(model: &Model) -> Blueprint {
    let embedding = embedding(model);
    let head = head(model, &embedding.params[0]);
    let mut blocks: Vec<Box<dyn Block>> = vec![Box::new(embedding)];
    if model.family == Family::Gpt2 {
        for index in 0..model.layers {
            blocks.push(Box::new(gpt2::layer(model, index)));
        }
    } else {
        let rope = llama::rope_table(model);
        for index in 0..model.layers {
            blocks.push(Box::new(llama::layer(model, index, &rope)));
        }
    }
    blocks.push(Box::new(head));
    Blueprint { blocks, vocab: model.vocab, context: model.context }
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
                .find(|(_, param)| param.name == *owner_name)
                .expect("a mirror has an owner");
            Some(Mirror { mirror_block, mirror, owner_block, owner })
        })
    }

    /// Number of parameters, tied ones once.
    pub fn num_params(&self) -> usize {
        self.owned_params().map(|(_, param)| param.len()).sum()
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
    pub fn scratch_len(&self, shape: LaneShape) -> usize {
        self.blocks.iter().map(|block| block.scratch_len(shape)).max().unwrap_or(0)
    }
}

fn embedding(model: &Model) -> Embedding {
    let mut params = ParamList::default();
    let (name, table, position_table) = match model.family {
        Family::Gpt2 => ("transformer.wte", gpt2::TOKEN_TABLE, Some(gpt2::POSITION_TABLE)),
        _ => ("model.embed_tokens", llama::TOKEN_TABLE, None),
    };
    let tokens = params.push(table.to_string(), &[model.vocab, model.width], init::MATRIX);
    let positions = position_table
        .map(|table| params.push(table.to_string(), &[model.context, model.width], init::MATRIX));
    Embedding {
        name: name.to_string(),
        width: model.width,
        params: params.finish(),
        tokens,
        positions,
        dropout: Dropout { rate: model.dropout, block: 0 },
    }
}

fn head(model: &Model, token_table: &Param) -> Head {
    let mut params = ParamList::default();
    let norm = match model.family {
        Family::Gpt2 => gpt2::norm(model, gpt2::FINAL_NORM, &mut params),
        _ => llama::norm(model, llama::FINAL_NORM, &mut params),
    };
    let name = "lm_head".to_string();
    let weight_name = format!("{name}.weight");
    let weight = if model.tied {
        params.push_mirror(weight_name, token_table)
    } else {
        params.push(weight_name, &token_table.shape, init::MATRIX)
    };
    let project = Linear {
        num_inputs: model.width,
        num_outputs: model.vocab,
        layout: WeightLayout::OutIn,
        weight,
        bias: None,
    };
    Head { name, params: params.finish(), norm, project }
}

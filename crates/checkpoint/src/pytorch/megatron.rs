//! Weights of Megatron-Core, as Megatron-LM writes them in its format `torch_dist`: a folder of
//! `torch.distributed.checkpoint` with the names of `GPTModel`.
//!
//! ```text
//! decoder.layers.self_attention.linear_qkv.weight   [layers, groups (q/g + 2) d, c]
//! decoder.layers.mlp.linear_fc1.weight              [layers, 2 f, c]: gates, then the others
//! decoder.layers.mlp.linear_fc1.layer_norm_weight   [layers, c]
//! embedding.word_embeddings.weight                  [padded vocabulary, c]
//! ```
//!
//! Layers are one tensor each kind, or each has its own (`decoder.layers.3.…`), whose gates and
//! others may be apart too (`linear_fc1.weight_w`, `_v`). Rows of `linear_qkv` lie by group of
//! query heads: its queries, its key, its value. Rows behind the vocabulary are padding. Here they
//! are tensors by the names of `transformers`: each is some rows of one of theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use lockstep_config::{Family, Model, ModelType};
use lockstep_platform::World;

use super::placed::PlacedTensors;
use crate::CheckpointError;
use crate::error::quoted;
use crate::weights::{ElementType, TensorSource};

/// File that names the newest iteration of a run.
const LATEST: &str = "latest_checkpointed_iteration.txt";

/// End of the name of a run's token embedding.
const TABLE: &str = "embedding.word_embeddings.weight";

/// Parts of the names of what is no weight of the model.
const OTHERS: [&str; 3] = ["optimizer.", "_extra_state", "rotary_pos_emb."];

/// Folder of the newest iteration, if a folder is that of a run of Megatron-LM.
pub(super) fn newest_iteration(world: &World, folder: &Path) -> Option<PathBuf> {
    let text = world.files().read(&folder.join(LATEST)).ok()?;
    let number: u64 = std::str::from_utf8(&text).ok()?.trim().parse().ok()?;
    Some(folder.join(format!("iter_{number:07}")))
}

/// A tensor of the model as runs of elements of a stored one.
struct View {
    stored: String,
    shape: Vec<usize>,
    /// Elements of the view, and the index of the first in the stored tensor.
    runs: Vec<(Range<usize>, usize)>,
}

/// Tensors of a stored checkpoint by the names of `transformers`.
pub(super) struct MegatronTensors {
    stored: PlacedTensors,
    views: BTreeMap<String, View>,
}

/// Prefix of the names of the model, if tensors are those of Megatron-Core.
pub(super) fn prefix_of<'a>(names: impl Iterator<Item = &'a String>) -> Option<String> {
    let is_weight = |name: &&String| !OTHERS.iter().any(|other| name.contains(other));
    let mut prefixes = names.filter(is_weight).filter_map(|name| name.strip_suffix(TABLE));
    prefixes.find(|prefix| prefix.is_empty() || prefix.ends_with('.')).map(str::to_owned)
}

impl MegatronTensors {
    /// The weights of a model; names begin with `prefix`.
    pub(super) fn new(
        stored: PlacedTensors,
        prefix: &str,
        model: &Model,
    ) -> Result<Self, CheckpointError> {
        let foreign = |reason: String| {
            let path = stored.path().to_owned();
            CheckpointError::Foreign { path, reason: quoted(&reason) }
        };
        let is_known = matches!(
            model.variant.model_type,
            None | Some(
                ModelType::Llama | ModelType::Mistral | ModelType::Qwen2 | ModelType::Qwen3
            )
        );
        if model.family != Family::Llama || !is_known {
            let reason = "checkpoints of Megatron-Core are read for models of the types llama, \
                          mistral, qwen2 and qwen3";
            return Err(foreign(reason.to_owned()));
        }
        let mut views = Views { stored: &stored, prefix, by_name: BTreeMap::new() };
        views.add_model(model).map_err(&foreign)?;
        let views = views.by_name;
        let used: BTreeSet<&str> = views.values().map(|view| view.stored.as_str()).collect();
        let names = stored.names();
        let unused = names.iter().find(|name| {
            let is_weight = !OTHERS.iter().any(|other| name.contains(other));
            is_weight && name.starts_with(prefix) && !used.contains(name.as_str())
        });
        if let Some(name) = unused {
            return Err(foreign(format!("tensor {name} is no part of the model in config.json")));
        }
        Ok(Self { stored, views })
    }
}

/// Views in the making.
struct Views<'a> {
    stored: &'a PlacedTensors,
    prefix: &'a str,
    by_name: BTreeMap<String, View>,
}

impl Views<'_> {
    fn add_model(&mut self, model: &Model) -> Result<(), String> {
        let Model { layers, width: c, vocab, .. } = *model;
        self.add_rows("model.embed_tokens.weight", TABLE, vocab, &[c])?;
        if !model.tied {
            self.add_rows("lm_head.weight", "output_layer.weight", vocab, &[c])?;
        }
        self.add_whole("model.norm.weight", "decoder.final_layernorm.weight", &[c])?;
        (0..layers).try_for_each(|layer| self.add_layer(model, layer))
    }

    fn add_layer(&mut self, model: &Model, layer: usize) -> Result<(), String> {
        let Model { layers, width: c, heads, kv_heads, ffn, .. } = *model;
        let (d, ours) = (model.head_dim(), format!("model.layers.{layer}"));
        let of_layer = Layer { index: layer, num: layers };
        let attention = format!("{ours}.self_attn");
        let norms = [
            ("input_layernorm", "self_attention.linear_qkv.layer_norm_weight"),
            ("post_attention_layernorm", "mlp.linear_fc1.layer_norm_weight"),
        ];
        for (own, theirs) in norms {
            self.add(
                &format!("{ours}.{own}.weight"),
                &of_layer,
                theirs,
                &[c],
                &[c],
                std::iter::once(0..c),
            )?;
        }
        // Rows of a group of query heads: its queries, its key and its value.
        let per_group = heads / kv_heads;
        let of_group = |group: usize, first: usize, num: usize| {
            let start = (group * (per_group + 2) + first) * d;
            start..start + num * d
        };
        let parts = [("q", 0, per_group), ("k", per_group, 1), ("v", per_group + 1, 1)];
        let rows = (heads + 2 * kv_heads) * d;
        let parameters: &[(&str, &[usize])] = &[("weight", &[c]), ("bias", &[])];
        for (kind, inner) in &parameters[..=usize::from(model.variant.qkv_bias)] {
            for (name, first, num) in parts {
                let own = (0..kv_heads).map(|group| of_group(group, first, num));
                let (name, shape) =
                    (format!("{attention}.{name}_proj.{kind}"), joined(rows, inner));
                let view = joined(kv_heads * num * d, inner);
                let theirs = format!("self_attention.linear_qkv.{kind}");
                self.add(&name, &of_layer, &theirs, &shape, &view, own)?;
            }
        }
        if model.variant.qk_norm {
            for name in ["q", "k"] {
                let own = format!("{attention}.{name}_norm.weight");
                let theirs = format!("self_attention.{name}_layernorm.weight");
                self.add(&own, &of_layer, &theirs, &[d], &[d], std::iter::once(0..d))?;
            }
        }
        let queries = heads * d;
        let [out, down] = [[c, queries], [c, ffn]];
        let name = format!("{attention}.o_proj.weight");
        let theirs = "self_attention.linear_proj.weight";
        self.add(&name, &of_layer, theirs, &out, &out, std::iter::once(0..c))?;
        let name = format!("{ours}.mlp.down_proj.weight");
        self.add(&name, &of_layer, "mlp.linear_fc2.weight", &down, &down, std::iter::once(0..c))?;
        let (both, one) = ([2 * ffn, c], [ffn, c]);
        let fused = "mlp.linear_fc1.weight";
        for (name, end, first) in [("gate", "_w", 0), ("up", "_v", ffn)] {
            let own = format!("{ours}.mlp.{name}_proj.weight");
            let apart = format!("{fused}{end}");
            if self.find(&of_layer, &apart).is_some() {
                self.add(&own, &of_layer, &apart, &one, &one, std::iter::once(0..ffn))?;
            } else {
                self.add(&own, &of_layer, fused, &both, &one, std::iter::once(first..first + ffn))?;
            }
        }
        Ok(())
    }

    /// Stored name of a layer's tensor, and the number of elements in front of it.
    fn find(&self, layer: &Layer, name: &str) -> Option<(String, bool)> {
        let own = format!("{}decoder.layers.{}.{name}", self.prefix, layer.index);
        let stacked = format!("{}decoder.layers.{name}", self.prefix);
        if self.stored.shape(&own).is_some() {
            return Some((own, false));
        }
        self.stored.shape(&stacked).is_some().then_some((stacked, true))
    }

    /// Adds rows of a layer's tensor `name` of shape `stored`.
    fn add(
        &mut self,
        own: &str,
        layer: &Layer,
        name: &str,
        stored: &[usize],
        shape: &[usize],
        rows: impl Iterator<Item = Range<usize>>,
    ) -> Result<(), String> {
        let (theirs, is_stacked) = self
            .find(layer, name)
            .ok_or_else(|| format!("it has no tensor decoder.layers.{name}"))?;
        let found = self.stored.shape(&theirs).expect("it was found");
        let expected = if is_stacked { joined(layer.num, stored) } else { stored.to_vec() };
        if found != expected {
            return Err(format!("{theirs} has shape {found:?}, the model needs {expected:?}"));
        }
        let len: usize = stored.iter().product();
        let first = if is_stacked { layer.index * len } else { 0 };
        let row_len: usize = stored[1..].iter().product();
        let mut at = 0;
        let runs = rows.map(|rows| {
            let run = at..at + rows.len() * row_len;
            at = run.end;
            (run, first + rows.start * row_len)
        });
        let view = View { stored: theirs, shape: shape.to_vec(), runs: runs.collect() };
        self.by_name.insert(own.to_owned(), view);
        Ok(())
    }

    /// Adds a tensor outside of layers.
    fn add_whole(&mut self, own: &str, name: &str, shape: &[usize]) -> Result<(), String> {
        self.add_rows(own, name, shape[0], &shape[1..])
    }

    /// Adds the first rows of a tensor outside of layers.
    fn add_rows(
        &mut self,
        own: &str,
        name: &str,
        num_rows: usize,
        inner: &[usize],
    ) -> Result<(), String> {
        let theirs = format!("{}{name}", self.prefix);
        let Some(found) = self.stored.shape(&theirs) else {
            return Err(format!("it has no tensor {name}"));
        };
        let shape = joined(num_rows, inner);
        let is_table = !inner.is_empty();
        let fits = found.first().is_some_and(|rows| {
            found[1..] == *inner && (*rows == num_rows || (is_table && *rows > num_rows))
        });
        if !fits {
            return Err(format!("{theirs} has shape {found:?}, the model needs {shape:?}"));
        }
        let len = shape.iter().product();
        let view = View { stored: theirs, shape, runs: vec![(0..len, 0)] };
        self.by_name.insert(own.to_owned(), view);
        Ok(())
    }
}

/// A layer among all.
struct Layer {
    index: usize,
    num: usize,
}

/// A shape with one more dimension in front.
fn joined(first: usize, rest: &[usize]) -> Vec<usize> {
    [&[first], rest].concat()
}

impl TensorSource for MegatronTensors {
    fn path(&self) -> &Path {
        self.stored.path()
    }

    fn names(&self) -> Vec<String> {
        self.views.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.views.get(name).map(|view| view.shape.as_slice())
    }

    fn format(&self, name: &str) -> Result<ElementType, CheckpointError> {
        self.stored.format(&self.view(name)?.stored)
    }

    fn read(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        let View { stored, runs, .. } = self.view(name)?;
        let end = first + out.len();
        for (run, place) in runs {
            let (from, to) = (run.start.max(first), run.end.min(end));
            if from < to {
                let out = &mut out[from - first..to - first];
                self.stored.read(stored, place + from - run.start, out)?;
            }
        }
        Ok(())
    }
}

impl MegatronTensors {
    fn view(&self, name: &str) -> Result<&View, CheckpointError> {
        self.views.get(name).ok_or_else(|| CheckpointError::MissingTensor {
            path: self.path().to_owned(),
            tensor: quoted(name),
        })
    }
}

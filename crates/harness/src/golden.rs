//! Reader of the golden files: results of PyTorch for small models and its optimizers.
//!
//! A safetensors file is the length of a JSON header, the header, and the numbers. The engine's
//! loader accepts finite `f32` only; these files also hold integers and doubles, which this reader
//! accepts. It trusts the committed files and panics on malformed ones.

use lockstep_config::{Recipe, Sources, resolve};
use lockstep_data::IGNORE;
use lockstep_platform::World;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// One golden file.
pub struct Golden {
    header: Map<String, Value>,
    data: Vec<u8>,
}

/// The folder of golden files.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden")
}

impl Golden {
    /// Reads `golden/<family>.safetensors`.
    pub fn load(world: &World, family: &str) -> Self {
        let path = folder().join(family).with_extension("safetensors");
        let bytes = world.files().read(&path).expect("golden files are committed");
        let (len, rest) = bytes.split_first_chunk().expect("the header's length");
        let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
        let header = serde_json::from_slice(header).expect("the header is JSON");
        Self { header, data: data.to_vec() }
    }

    /// A tensor of `f32`.
    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.numbers(name, "F32", f32::from_le_bytes)
    }

    /// A tensor of `f64`.
    pub fn f64(&self, name: &str) -> Vec<f64> {
        self.numbers(name, "F64", f64::from_le_bytes)
    }

    /// A tensor of tokens; -1 in the file becomes [`IGNORE`], a target without loss.
    pub fn tokens(&self, name: &str) -> Vec<u32> {
        let token = |bytes| u32::try_from(i32::from_le_bytes(bytes)).unwrap_or(IGNORE);
        self.numbers(name, "I32", token)
    }

    /// The dimensions of a tensor.
    pub fn shape(&self, name: &str) -> Vec<usize> {
        serde_json::from_value(self.header[name]["shape"].clone()).expect("a shape is counts")
    }

    /// The names of the model's parameters.
    pub fn params(&self) -> impl Iterator<Item = &str> {
        self.header.keys().filter_map(|name| name.strip_prefix("weights."))
    }

    /// Recipe of the recorded training: steps, each on the whole batch, in micro-batches of
    /// `microbatch_size` sequences.
    pub fn recipe(&self, microbatch_size: usize) -> Recipe {
        let num_sequences = self.shape("inputs")[0];
        let mut sets = vec![
            format!("train.batch={num_sequences}"),
            format!("train.microbatch={microbatch_size}"),
            "numerics.invariant_up_to=1".to_owned(),
            format!("train.steps={}", self.shape("losses")[0]),
            "optim.warmup_steps=0".to_owned(),
            "optim.schedule=constant".to_owned(),
            "optim.clip=0".to_owned(),
        ];
        for (section, metadata) in [("model", "model"), ("optim", "adamw")] {
            for (key, value) in self.metadata(metadata) {
                // A remark, not a setting.
                if key != "decays" {
                    sets.push(format!("{section}.{key}={value}"));
                }
            }
        }
        resolve(&Sources { sets, ..Sources::default() }).expect("the recorded model is valid")
    }

    /// An entry of the metadata: JSON inside a string.
    pub fn metadata(&self, key: &str) -> Map<String, Value> {
        let text = self.header["__metadata__"][key].as_str().expect("metadata is text");
        serde_json::from_str(text).expect("metadata is JSON")
    }

    fn numbers<const N: usize, T>(
        &self,
        name: &str,
        dtype: &str,
        number: impl Fn([u8; N]) -> T,
    ) -> Vec<T> {
        let info = self.header.get(name).unwrap_or_else(|| panic!("no tensor {name}"));
        assert_eq!(info["dtype"], dtype, "type of {name}");
        let offsets = info["data_offsets"].clone();
        let (start, end): (usize, usize) = serde_json::from_value(offsets).expect("two offsets");
        let (numbers, rest) = self.data[start..end].as_chunks();
        assert!(rest.is_empty(), "{name} ends inside a number");
        assert_eq!(numbers.len(), self.shape(name).iter().product::<usize>(), "shape of {name}");
        numbers.iter().map(|bytes| number(*bytes)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_holds_a_batch_and_a_valid_model() {
        for (name, family) in [("gpt2", "gpt2"), ("llama", "llama"), ("qwen", "llama")] {
            let golden = Golden::load(&lockstep_platform::real(), name);
            assert_eq!(golden.recipe(1).model.family.name(), family);
            assert_eq!(golden.shape("inputs"), [2, 24]);
            let ignored = golden.tokens("targets").iter().filter(|t| **t == IGNORE).count();
            assert_eq!(ignored, 6);
            assert_eq!(golden.f64("losses")[0].to_bits(), golden.f64("loss")[0].to_bits());
            for name in golden.params() {
                let weights = golden.f32(&format!("weights.{name}"));
                assert_eq!(golden.f32(&format!("grads.{name}")).len(), weights.len());
            }
        }
    }

    #[test]
    #[should_panic(expected = "type of logits")]
    fn a_tensor_is_not_read_as_another_type() {
        Golden::load(&lockstep_platform::real(), "gpt2").f64("logits");
    }
}

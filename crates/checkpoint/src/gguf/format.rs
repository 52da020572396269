//! Bytes of a GGUF file, version 3: a header, metadata, tensor descriptions, then aligned tensors.

use super::block::TensorType;

/// Version of the format.
const VERSION: u32 = 3;

/// Tensors start at multiples of this.
const ALIGNMENT: usize = 32;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
}

impl Value {
    /// Number of this type in the format.
    const fn code(&self) -> u32 {
        match self {
            Self::U32(_) => 4,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::Text(_) => TEXT,
            Self::Texts(_) | Self::I32s(_) => 9,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::U32(value) => out.extend(value.to_le_bytes()),
            Self::F32(value) => out.extend(value.to_le_bytes()),
            Self::Bool(value) => out.push(u8::from(*value)),
            Self::Text(text) => write_text(text, out),
            Self::Texts(texts) => {
                write_array_head(TEXT, texts.len(), out);
                for text in texts {
                    write_text(text, out);
                }
            }
            Self::I32s(values) => {
                write_array_head(5, values.len(), out);
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
        }
    }
}

/// Number of texts in the format.
const TEXT: u32 = 8;

fn write_text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn write_array_head(code: u32, len: usize, out: &mut Vec<u8>) {
    out.extend(code.to_le_bytes());
    out.extend((len as u64).to_le_bytes());
}

/// Name, type and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Description {
    pub(super) name: String,
    pub(super) tensor_type: TensorType,
    /// Rows first, as in a safetensors file.
    pub(super) shape: Vec<usize>,
}

impl Description {
    pub(super) fn num_bytes(&self) -> usize {
        self.tensor_type.num_bytes(self.shape.iter().product())
    }

    /// Zeros after the tensor's bytes.
    pub(super) fn padding(&self) -> &'static [u8] {
        let num_bytes = self.num_bytes();
        &[0; ALIGNMENT][..num_bytes.next_multiple_of(ALIGNMENT) - num_bytes]
    }
}

/// Everything before the first tensor.
pub(super) fn head(metadata: &[(String, Value)], tensors: &[Description]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        write_text(key, &mut out);
        out.extend(value.code().to_le_bytes());
        value.write(&mut out);
    }
    let mut start = 0;
    for tensor in tensors {
        write_text(&tensor.name, &mut out);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        // The number of columns comes first.
        out.extend(tensor.shape.iter().rev().flat_map(|len| (*len as u64).to_le_bytes()));
        out.extend(tensor.tensor_type.code().to_le_bytes());
        out.extend((start as u64).to_le_bytes());
        start += tensor.num_bytes() + tensor.padding().len();
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out
}

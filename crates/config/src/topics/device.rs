//! Device of the blocks.

use std::fmt;

use crate::field::field;
use crate::value::Value;
use crate::value_type::{Numbered, ValueType};

const CUDA: Numbered = Numbered { prefix: "cuda:", letter: 'N', min: 0, example: 0 };

/// Device on which a worker runs the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceChoice {
    /// A CUDA device if training can run on it, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The CUDA device of this index; without one, the workers of a host take its devices in turn.
    Cuda(Option<usize>),
}

impl DeviceChoice {
    /// Names without a number; the fourth form is `cuda:N`.
    pub const NAMES: &'static [&'static str] = &["auto", "cpu", "cuda"];

    /// The choice with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(None)),
            _ => CUDA.number(name).map(|index| Self::Cuda(Some(index))),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(index)) => write!(f, "cuda:{index}"),
        }
    }
}

field!(
    DeviceChoice: ValueType::ChoiceOrNumbered(Self::NAMES, CUDA),
    blank Self::Auto,
    to |device| Value::Text(device.to_string()),
    from |v| Self::from_name(v.as_text()).expect("the value type accepted it")
);

//! Parameters as data: what a block's flat buffer holds, and where.
//!
//! All parameters of a block lie in one flat buffer, one after the other without gaps, and its
//! gradients in another of the same layout. Whoever moves, shards, sums or saves parameters works
//! on such buffers and reads this description; nobody but the block knows what they mean.
//! Names are those of Hugging Face checkpoints.

use std::ops::Range;

/// One named tensor in a block's flat buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Unique in the model, as in a Hugging Face checkpoint.
    pub name: String,
    /// Row-major dimensions, as in a Hugging Face checkpoint.
    pub shape: Vec<usize>,
    /// First element in the block's flat buffer.
    pub offset: usize,
    /// How it starts.
    pub init: Init,
    /// Whether weight decay pulls on it: matrices yes, norms and biases no.
    pub decay: bool,
    /// The parameter of another block that this one is a copy of (tied embeddings). The copy has
    /// its own gradient; the owner receives the sum of both, is stepped, and is copied again.
    pub mirror_of: Option<String>,
}

/// How a parameter starts: a function of (seed, name, element), never of the layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Normal with mean zero.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// All one.
    Ones,
    /// All zero.
    Zeros,
}

impl Param {
    /// Number of elements.
    #[expect(clippy::len_without_is_empty, reason = "a parameter has at least one element")]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Its elements in the block's flat buffer.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len()
    }
}

/// Lays parameters one after the other while a block is described.
#[derive(Debug, Default)]
pub(crate) struct ParamList {
    params: Vec<Param>,
    len: usize,
}

impl ParamList {
    /// Appends a parameter and says where it lies. Matrices decay, vectors do not.
    pub(crate) fn push(&mut self, name: String, shape: &[usize], init: Init) -> Range<usize> {
        let param = Param {
            name,
            shape: shape.to_vec(),
            offset: self.len,
            init,
            decay: shape.len() > 1,
            mirror_of: None,
        };
        self.len += param.len();
        let range = param.range();
        self.params.push(param);
        range
    }

    /// Appends a copy of another block's parameter.
    pub(crate) fn push_mirror(&mut self, name: String, owner: &Param) -> Range<usize> {
        let range = self.push(name, &owner.shape, owner.init);
        let mirror = self.params.last_mut().expect("just pushed");
        mirror.mirror_of = Some(owner.name.clone());
        range
    }

    pub(crate) fn finish(self) -> Vec<Param> {
        self.params
    }
}

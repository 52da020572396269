//! Memory that a call works on.

use lockstep_platform::{Source, Target};

/// Memory of a call. Input and output may be the same.
#[derive(Clone, Copy)]
pub(crate) struct CallBuffers<'a> {
    /// All inputs, concatenated.
    pub(crate) input: Source<'a, u8>,
    pub(crate) output: Target<'a, u8>,
    /// Their offsets in the rank's segment, if they are in it.
    pub(crate) input_offset: Option<usize>,
    pub(crate) output_offset: Option<usize>,
    /// Whether the input is the output.
    pub(crate) in_place: bool,
}

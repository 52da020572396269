//! Optimizer state in memory, or offloaded to a file of which one piece at a time is in memory.
//!
//! Every update rule works element by element, so state can be processed in pieces of any length
//! with equal results. Offloaded state is: while the optimizer works on one piece, the disk reads
//! the next and writes the previous one; see [`lockstep_platform::paged`].

use lockstep_platform::{FileError, Paged};
use std::ops::Range;

/// Elements of each state buffer that are in memory at once when state is offloaded to a file.
pub const PIECE_LEN: usize = 1 << 20;

/// One state buffer of one block, such as Adam's first moments.
#[derive(Debug)]
pub(crate) enum StateBuffer {
    Memory(Vec<f32>),
    File(Box<dyn Paged>),
}

impl StateBuffer {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Memory(values) => values.len(),
            Self::File(values) => values.floats().len(),
        }
    }

    /// The whole buffer, for one sequential pass: pages of earlier passes are released first.
    pub(crate) fn whole(&self) -> &[f32] {
        match self {
            Self::Memory(values) => values,
            Self::File(values) => {
                values.release_all();
                values.floats()
            }
        }
    }

    /// The whole buffer, for one sequential pass that writes.
    pub(crate) fn whole_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Memory(values) => values,
            Self::File(values) => {
                values.release_all();
                values.floats_mut()
            }
        }
    }

    fn values_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Memory(values) => values,
            Self::File(values) => values.floats_mut(),
        }
    }
}

/// State buffers of one block, each with one element per parameter that the optimizer updates.
#[derive(Debug, Default)]
pub(crate) struct BlockStates(pub(crate) Vec<StateBuffer>);

impl BlockStates {
    /// Starts reading the first piece.
    pub(crate) fn read_first(&self) {
        self.read_ahead(0);
    }

    fn read_ahead(&self, first: usize) {
        for buffer in &self.0 {
            if let StateBuffer::File(values) = buffer {
                let len = values.floats().len();
                values.read_ahead(first.min(len)..(first + PIECE_LEN).min(len));
            }
        }
    }

    /// Calls `work` with consecutive pieces of all buffers and the range of each piece. Stops at
    /// the first disk error. `next` is the state of the next call: its first piece is read ahead.
    pub(crate) fn walk(
        &mut self,
        next: Option<&Self>,
        mut work: impl FnMut(Range<usize>, [&mut [f32]; 2]),
    ) -> Result<(), FileError> {
        let len = self.0.first().map_or(0, StateBuffer::len);
        let is_offloaded = matches!(self.0.first(), Some(StateBuffer::File(_)));
        let piece_len = if is_offloaded { PIECE_LEN } else { len.max(1) };
        for first in (0..len).step_by(piece_len) {
            let piece = first..(first + piece_len).min(len);
            self.read_piece(&piece)?;
            if piece.end < len {
                self.read_ahead(piece.end);
            } else if let Some(next) = next {
                next.read_first();
            }
            let mut values =
                self.0.iter_mut().map(|buffer| &mut buffer.values_mut()[piece.clone()]);
            let buffers = [values.next(), values.next()].map(Option::unwrap_or_default);
            assert!(values.next().is_none(), "no rule has more than two state buffers");
            work(piece.clone(), buffers);
            self.write_piece(&piece);
        }
        Ok(())
    }

    fn read_piece(&self, piece: &Range<usize>) -> Result<(), FileError> {
        self.0.iter().try_for_each(|buffer| match buffer {
            StateBuffer::Memory(_) => Ok(()),
            StateBuffer::File(values) => values.load(piece.clone()),
        })
    }

    fn write_piece(&self, piece: &Range<usize>) {
        for buffer in &self.0 {
            if let StateBuffer::File(values) = buffer {
                values.release(piece.clone());
            }
        }
    }
}

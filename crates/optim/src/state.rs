//! Optimizer state in memory, or offloaded to a file of which one piece at a time is in memory.
//!
//! Every update rule works element by element, so state can be processed in pieces of any length
//! with equal results. Offloaded state is: while the optimizer works on one piece, the disk reads
//! the next and writes the previous one; see [`lockstep_platform::paged`].

use lockstep_platform::{FileError, Paged};
use lockstep_tensor::device::{
    DeviceError, DualBuffer, MAX_STATE_BUFFERS, Result as DeviceResult, ViewMut,
};
use std::ops::Range;

/// Elements of each state buffer that are in memory at once when state is offloaded to a file.
pub const PIECE_LEN: usize = 1 << 20;

/// One state buffer of one block, such as Adam's first moments.
#[derive(Debug)]
pub(crate) enum StateBuffer {
    Memory(DualBuffer),
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

    /// A piece of the buffer, on the device; offloaded state comes by way of `staging` where that
    /// is on an accelerator.
    fn piece_mut<'a>(
        &'a mut self,
        piece: &Range<usize>,
        staging: &'a mut DualBuffer,
    ) -> DeviceResult<ViewMut<'a>> {
        match self {
            Self::Memory(values) => Ok(values.view_mut()?.range(piece.clone())),
            Self::File(values) if staging.is_on_accelerator() => {
                staging[..piece.len()].copy_from_slice(&values.floats()[piece.clone()]);
                Ok(staging.view_mut()?.range(0..piece.len()))
            }
            Self::File(values) => Ok(ViewMut::of(&mut values.floats_mut()[piece.clone()])),
        }
    }
}

/// Failure of the disk or the device.
pub(crate) enum StateError {
    File(FileError),
    Device(DeviceError),
}

impl From<FileError> for StateError {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

impl From<DeviceError> for StateError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

/// State buffers of one block, with an element for each parameter that has such state; a later
/// buffer may be shorter than the first.
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
        staging: &mut [DualBuffer; MAX_STATE_BUFFERS],
        mut work: impl FnMut(Range<usize>, [ViewMut<'_>; MAX_STATE_BUFFERS]) -> DeviceResult<()>,
    ) -> Result<(), StateError> {
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
            assert!(self.0.len() <= MAX_STATE_BUFFERS, "no rule has more state buffers");
            let mut buffers = [(); MAX_STATE_BUFFERS].map(|()| ViewMut::of::<f32>(&mut []));
            for ((buffer, state), staging) in buffers.iter_mut().zip(&mut self.0).zip(&mut *staging)
            {
                *buffer = state.piece_mut(&within(&piece, state.len()), staging)?;
            }
            work(piece.clone(), buffers)?;
            self.collect_staged(&piece, staging);
            self.write_piece(&piece);
        }
        Ok(())
    }

    /// Copies a piece that was staged back to the file's pages.
    fn collect_staged(&mut self, piece: &Range<usize>, staging: &[DualBuffer; MAX_STATE_BUFFERS]) {
        for (buffer, staging) in self.0.iter_mut().zip(staging) {
            if let (StateBuffer::File(values), true) = (buffer, staging.is_on_accelerator()) {
                let piece = within(piece, values.floats().len());
                values.floats_mut()[piece.clone()].copy_from_slice(&staging[..piece.len()]);
            }
        }
    }

    fn read_piece(&self, piece: &Range<usize>) -> Result<(), FileError> {
        self.0.iter().try_for_each(|buffer| match buffer {
            StateBuffer::Memory(_) => Ok(()),
            StateBuffer::File(values) => values.load(within(piece, values.floats().len())),
        })
    }

    fn write_piece(&self, piece: &Range<usize>) {
        for buffer in &self.0 {
            if let StateBuffer::File(values) = buffer {
                values.release(within(piece, values.floats().len()));
            }
        }
    }
}

/// Part of a piece that is in a buffer of this length.
fn within(piece: &Range<usize>, len: usize) -> Range<usize> {
    piece.start.min(len)..piece.end.min(len)
}

//! Where an optimizer keeps its state: in memory, or in a file of which a piece at a time is in
//! memory.
//!
//! Every rule works element by element, so state can be walked through in pieces of any length
//! with the same result. What lies in a file is: while one piece is worked on, the disk reads the
//! next one and writes the one before; see [`lockstep_platform::paged`].

use lockstep_platform::{FileError, Paged};
use std::ops::Range;

/// Numbers of each kind of state that are in memory at once where they lie in a file.
pub const PIECE_LEN: usize = 1 << 20;

/// One kind of state of one block.
#[derive(Debug)]
pub(crate) enum Kept {
    Here(Vec<f32>),
    Away(Box<dyn Paged>),
}

impl Kept {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Here(values) => values.len(),
            Self::Away(values) => values.floats().len(),
        }
    }

    /// All of it, in the hands of somebody who looks at it once: what was looked at before is let
    /// go of.
    pub(crate) fn lend(&self) -> &[f32] {
        match self {
            Self::Here(values) => values,
            Self::Away(values) => {
                values.rest();
                values.floats()
            }
        }
    }

    /// See [`Self::lend`].
    pub(crate) fn lend_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Here(values) => values,
            Self::Away(values) => {
                values.rest();
                values.floats_mut()
            }
        }
    }

    fn values_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Here(values) => values,
            Self::Away(values) => values.floats_mut(),
        }
    }
}

/// The state of one block: as many numbers of each kind as it has parameters that are stepped.
#[derive(Debug, Default)]
pub(crate) struct Kinds(pub(crate) Vec<Kept>);

impl Kinds {
    /// Begins to read what will be asked for first.
    pub(crate) fn read_first(&self) {
        self.read_ahead(0);
    }

    fn read_ahead(&self, first: usize) {
        for kind in &self.0 {
            if let Kept::Away(values) = kind {
                let len = values.floats().len();
                values.read_ahead(first.min(len)..(first + PIECE_LEN).min(len));
            }
        }
    }

    /// Calls `work` with stretches that together are all of the state, by kind, and where each
    /// lies. Ends early where the disk fails; `after` is what will be walked through next.
    pub(crate) fn walk(
        &mut self,
        after: Option<&Self>,
        mut work: impl FnMut(Range<usize>, [&mut [f32]; 2]),
    ) -> Result<(), FileError> {
        let len = self.0.first().map_or(0, Kept::len);
        let is_away = matches!(self.0.first(), Some(Kept::Away(_)));
        let piece_len = if is_away { PIECE_LEN } else { len.max(1) };
        for first in (0..len).step_by(piece_len) {
            let piece = first..(first + piece_len).min(len);
            self.bring(&piece)?;
            if piece.end < len {
                self.read_ahead(piece.end);
            } else if let Some(after) = after {
                after.read_first();
            }
            let mut values = self.0.iter_mut().map(|kind| &mut kind.values_mut()[piece.clone()]);
            let kinds = [values.next(), values.next()].map(Option::unwrap_or_default);
            assert!(values.next().is_none(), "no rule has more kinds of state");
            work(piece.clone(), kinds);
            self.put_back(&piece);
        }
        Ok(())
    }

    fn bring(&self, piece: &Range<usize>) -> Result<(), FileError> {
        self.0.iter().try_for_each(|kind| match kind {
            Kept::Here(_) => Ok(()),
            Kept::Away(values) => values.bring(piece.clone()),
        })
    }

    fn put_back(&self, piece: &Range<usize>) {
        for kind in &self.0 {
            if let Kept::Away(values) = kind {
                values.put_back(piece.clone());
            }
        }
    }
}

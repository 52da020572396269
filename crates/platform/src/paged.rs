//! Numbers that lie in a file and are in memory only while they are worked on.
//!
//! What is larger than memory and is walked through once in a while, as an optimizer's state is,
//! can lie on a disk. A map of the file makes it look like memory: the system reads a page when it
//! is touched and writes it back some day. Left alone, that is slow (every page is waited for) and
//! holds whatever was touched last. So whoever works on it says what it is about to do:
//!
//! 1. [`Paged::read_ahead`] of the next piece: the disk begins to read it, and nobody waits;
//! 2. [`Paged::bring`] the present one: it is in memory on return, or there is an error;
//! 3. [`Paged::put_back`] it after the work: it no longer counts as this process's memory, and the
//!    disk begins to write it.
//!
//! While a piece is worked on, the one before is being written and the one after read. The pages
//! themselves belong to the system, which drops those that are written when it needs room and
//! finds others still there the next time.
//!
//! The room is taken when the file is made. A disk that is full is an error then, and not in the
//! middle of a run; and since the file has no name, nobody can take it away.

use std::fmt;
use std::ops::Range;

use crate::FileError;

/// See the module's text. All ranges count numbers.
pub trait Paged: fmt::Debug + Send + Sync {
    /// All of them. What was not brought is read when it is touched; an unreadable disk then ends
    /// the process.
    fn floats(&self) -> &[f32];

    /// See [`Self::floats`].
    fn floats_mut(&mut self) -> &mut [f32];

    /// Begins to read a stretch that will be needed soon.
    fn read_ahead(&self, range: Range<usize>);

    /// Brings a stretch into memory.
    fn bring(&self, range: Range<usize>) -> Result<(), FileError>;

    /// Lets go of a stretch, and begins to write it.
    fn put_back(&self, range: Range<usize>);

    /// Lets go of everything that lies in the same file.
    fn rest(&self);
}

/// Numbers of a disk without maps: ordinary memory.
#[derive(Debug)]
pub(crate) struct Whole(pub(crate) Vec<f32>);

impl Paged for Whole {
    fn floats(&self) -> &[f32] {
        &self.0
    }

    fn floats_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }

    fn read_ahead(&self, _: Range<usize>) {}

    fn bring(&self, _: Range<usize>) -> Result<(), FileError> {
        Ok(())
    }

    fn put_back(&self, _: Range<usize>) {}

    fn rest(&self) {}
}

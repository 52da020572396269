//! Arrays in a file that are resident in memory only while they are used.
//!
//! Data larger than memory that is traversed once per step, such as offloaded optimizer state, can
//! live on disk. A file map makes it look like memory, but on its own it is slow (every page fault
//! waits) and keeps recently used pages resident. The user therefore announces its accesses:
//!
//! 1. [`Paged::read_ahead`] of the next range starts an asynchronous read;
//! 2. [`Paged::load`] of the current range makes it resident, or fails;
//! 3. [`Paged::release`] after the work removes it from this process's resident memory and starts
//!    the write-back.
//!
//! While one range is processed, the previous one is being written and the next one read. The page
//! cache keeps written pages as long as memory allows.
//!
//! Disk space is allocated when the file is created, so a full disk is an error at the start of a
//! run. The file has no name, so no other process can remove it.

use std::fmt;
use std::ops::Range;

use crate::file_error::FileError;

/// A file-backed array. All ranges count elements.
pub trait Paged: fmt::Debug + Send + Sync {
    /// All elements. Elements that are not loaded are read on access; a failing disk then kills the
    /// process.
    fn floats(&self) -> &[f32];

    /// All elements, mutably, with the same limits as [`Self::floats`].
    fn floats_mut(&mut self) -> &mut [f32];

    /// Starts reading a range that is needed soon.
    fn read_ahead(&self, range: Range<usize>);

    /// Makes a range resident.
    fn load(&self, range: Range<usize>) -> Result<(), FileError>;

    /// Releases a range and starts writing it back.
    fn release(&self, range: Range<usize>);

    /// Releases all arrays of the same file.
    fn release_all(&self);
}

/// Array in ordinary memory, for a disk without maps.
#[derive(Debug)]
pub(crate) struct InMemory(pub(crate) Vec<f32>);

impl Paged for InMemory {
    fn floats(&self) -> &[f32] {
        &self.0
    }

    fn floats_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }

    fn read_ahead(&self, _: Range<usize>) {}

    fn load(&self, _: Range<usize>) -> Result<(), FileError> {
        Ok(())
    }

    fn release(&self, _: Range<usize>) {}

    fn release_all(&self) {}
}

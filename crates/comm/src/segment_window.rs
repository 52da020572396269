//! Windows on the segments of ranks: the only place where this crate takes one.
//!
//! The other modules of the crate keep the contract of [`Segment::target`] by their protocols:
//! - the header of a segment, with rings and the flight recorder, is never lent as a slice, and
//!   [flags](crate::flags) order all accesses to it;
//! - a buffer of a call is accessed by peers only between the signals of its owner, who holds it
//!   exclusively until the call returns, and no peer accesses it
//!   [afterwards](crate::transport::shared);
//! - scratch and staging belong to the engine, which orders their accesses in the same way;
//! - the buffer of a [`Window`](crate::Window) is lent to nobody while the window is open.
#![expect(unsafe_code, reason = "windows into memory that other ranks access")]

use lockstep_platform::{Plain, Segment, Source, Target};

/// Window for reading and writing; panics if it is outside the segment.
#[inline]
pub(crate) fn target<T: Plain>(segment: &Segment, offset: usize, count: usize) -> Target<'_, T> {
    // SAFETY: the module's documentation says why the crate keeps the contract.
    unsafe { segment.target(offset, count) }
}

/// Window at an offset that a peer stated; `None` if it is outside the segment.
#[inline]
pub(crate) fn try_target<T: Plain>(
    segment: &Segment,
    offset: usize,
    count: usize,
) -> Option<Target<'_, T>> {
    // SAFETY: as above.
    unsafe { segment.try_target(offset, count) }
}

/// Window for reading; panics if it is outside the segment.
#[inline]
pub(crate) fn source<T: Plain>(segment: &Segment, offset: usize, count: usize) -> Source<'_, T> {
    target(segment, offset, count).as_source()
}

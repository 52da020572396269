//! Bump allocator for temporary buffers, over one buffer of a device.
//!
//! A block takes its temporary views in order and releases all of them at once, by dropping the
//! [`Frame`]. The buffer has the largest declared need of all blocks, so a step allocates nothing.
//! A view contains leftovers of earlier use: every user overwrites it before reading.

use crate::formats::floats;
use lockstep_tensor::device::{Buffer, Device, Dtype, Result, ViewMut};

/// Memory of all frames of one rank.
#[derive(Debug)]
pub struct Scratch {
    data: Buffer,
}

impl Scratch {
    /// Allocates memory for frames of up to `len` elements.
    pub fn new(device: &dyn Device, len: usize) -> Result<Self> {
        Ok(Self { data: device.allocate(Dtype::F32, len)? })
    }

    /// The whole memory, to take views from until the frame is dropped.
    pub fn frame(&mut self) -> Frame<'_> {
        Frame::over(self.data.view_mut())
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }
}

/// A view that is split off from front to back in disjoint parts.
#[derive(Debug)]
pub struct Frame<'a> {
    rest: ViewMut<'a>,
}

impl<'a> Frame<'a> {
    /// Makes a frame over `data`.
    pub fn over(data: ViewMut<'a>) -> Self {
        Self { rest: data }
    }

    /// The next `len` elements, in the type of the frame's memory.
    ///
    /// # Panics
    /// When fewer are left: the block declared too small a need.
    pub fn take(&mut self, len: usize) -> ViewMut<'a> {
        let rest = std::mem::replace(&mut self.rest, ViewMut::of::<f32>(&mut []));
        assert!(len <= rest.len(), "{len} elements requested, {} left in the frame", rest.len());
        let (piece, rest) = rest.split_at(len);
        self.rest = rest;
        piece
    }

    /// Memory for `len` elements of another type.
    ///
    /// # Panics
    /// As [`Self::take`].
    pub fn take_as(&mut self, dtype: Dtype, len: usize) -> ViewMut<'a> {
        self.take(floats(dtype, len)).cast(dtype).range(0..len)
    }

    /// A frame over the remaining elements, which are released when it is dropped.
    pub fn nested(&mut self) -> Frame<'_> {
        Frame { rest: self.rest.reborrow() }
    }

    /// Ends a frame whose parts must cover all of it.
    ///
    /// # Panics
    /// When elements are left.
    pub fn finish(self) {
        assert!(self.rest.is_empty(), "{} elements of the frame are unused", self.rest.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_tensor::{Cpu, Isa};

    fn scratch(len: usize) -> Scratch {
        Scratch::new(&Cpu::single(Isa::detect()), len).unwrap()
    }

    #[test]
    fn parts_are_contiguous_and_a_new_frame_starts_over() {
        let mut scratch = scratch(5);
        let mut frame = scratch.frame();
        let (a, b) = (frame.take(2), frame.take(3));
        a.into_slice::<f32>().unwrap().fill(1.0);
        b.into_slice::<f32>().unwrap().fill(2.0);
        frame.finish();
        let all = scratch.frame().take(5).into_slice::<f32>().unwrap();
        assert_eq!(all, [1.0, 1.0, 2.0, 2.0, 2.0]);
    }

    #[test]
    #[should_panic(expected = "3 elements requested, 2 left")]
    fn a_need_beyond_the_declared_one_is_refused() {
        let mut scratch = scratch(4);
        let mut frame = scratch.frame();
        frame.take(2);
        frame.take(3);
    }

    #[test]
    #[should_panic(expected = "1 elements of the frame are unused")]
    fn an_inexact_layout_is_refused() {
        let mut scratch = scratch(3);
        let mut frame = scratch.frame();
        frame.take(2);
        frame.finish();
    }
}

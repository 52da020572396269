//! Bump allocator for temporary buffers, over one vector.
//!
//! A block takes its temporary slices in order and releases all of them at once, by dropping the
//! [`Frame`]. The vector has the largest declared need of all blocks, so a step allocates nothing.
//! A slice contains leftovers of earlier use: every user overwrites it before reading.

/// Memory of all frames of one rank.
#[derive(Debug)]
pub struct Scratch {
    data: Vec<f32>,
}

impl Scratch {
    /// Allocates memory for frames of up to `len` elements.
    pub fn new(len: usize) -> Self {
        Self { data: vec![0.0; len] }
    }

    /// The whole memory, to take slices from until the frame is dropped.
    pub fn frame(&mut self) -> Frame<'_> {
        Frame::over(&mut self.data)
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

/// A slice that is split off from front to back in disjoint parts.
#[derive(Debug)]
pub struct Frame<'a> {
    rest: &'a mut [f32],
}

impl<'a> Frame<'a> {
    /// Makes a frame over `data`.
    pub fn over(data: &'a mut [f32]) -> Self {
        Self { rest: data }
    }

    /// The next `len` elements.
    ///
    /// # Panics
    /// When fewer are left: the block declared too small a need.
    pub fn take(&mut self, len: usize) -> &'a mut [f32] {
        let rest = std::mem::take(&mut self.rest);
        assert!(len <= rest.len(), "{len} elements requested, {} left in the frame", rest.len());
        let (piece, rest) = rest.split_at_mut(len);
        self.rest = rest;
        piece
    }

    /// A frame over the remaining elements, which are released when it is dropped.
    pub fn nested(&mut self) -> Frame<'_> {
        Frame { rest: self.rest }
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

    #[test]
    fn parts_are_contiguous_and_a_new_frame_starts_over() {
        let mut scratch = Scratch::new(5);
        let mut frame = scratch.frame();
        let (a, b) = (frame.take(2), frame.take(3));
        a.fill(1.0);
        b.fill(2.0);
        frame.finish();
        let all = scratch.frame().take(5);
        assert_eq!(all, [1.0, 1.0, 2.0, 2.0, 2.0]);
    }

    #[test]
    #[should_panic(expected = "3 elements requested, 2 left")]
    fn a_need_beyond_the_declared_one_is_refused() {
        let mut scratch = Scratch::new(4);
        let mut frame = scratch.frame();
        frame.take(2);
        frame.take(3);
    }

    #[test]
    #[should_panic(expected = "1 elements of the frame are unused")]
    fn an_inexact_layout_is_refused() {
        let mut data = [0.0; 3];
        let mut frame = Frame::over(&mut data);
        frame.take(2);
        frame.finish();
    }
}

//! Short-lived buffers without allocation: a bump allocator over one vector.
//!
//! A block asks for its temporary slices in the order in which it needs them and gives all of them
//! back at once, by dropping the [`Frame`]. The vector is as long as the hungriest block said it
//! would need, so a step allocates nothing. What a slice holds when it is taken is left over from
//! earlier use: every user overwrites it before it reads it.

/// The memory behind all frames of one rank.
#[derive(Debug)]
pub struct Scratch {
    data: Vec<f32>,
}

impl Scratch {
    /// Room for frames of up to `len` elements.
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

    /// Whether there is no room at all.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }
}

/// A slice that is handed out from front to back in pieces that do not overlap.
#[derive(Debug)]
pub struct Frame<'a> {
    rest: &'a mut [f32],
}

impl<'a> Frame<'a> {
    /// Hands out pieces of `data`.
    pub fn over(data: &'a mut [f32]) -> Self {
        Self { rest: data }
    }

    /// The next `len` elements.
    ///
    /// # Panics
    /// When fewer are left: the block promised a smaller need than it has.
    pub fn take(&mut self, len: usize) -> &'a mut [f32] {
        let rest = std::mem::take(&mut self.rest);
        assert!(len <= rest.len(), "{len} elements wanted, {} left in the frame", rest.len());
        let (piece, rest) = rest.split_at_mut(len);
        self.rest = rest;
        piece
    }

    /// What is left, to take from and have back when the inner frame is dropped.
    pub fn nested(&mut self) -> Frame<'_> {
        Frame { rest: self.rest }
    }

    /// Ends a frame whose pieces must cover all of it.
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
    fn pieces_follow_each_other_and_a_new_frame_starts_over() {
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
    #[should_panic(expected = "3 elements wanted, 2 left")]
    fn a_need_beyond_the_promise_is_a_bug() {
        let mut scratch = Scratch::new(4);
        let mut frame = scratch.frame();
        frame.take(2);
        frame.take(3);
    }

    #[test]
    #[should_panic(expected = "1 elements of the frame are unused")]
    fn an_inexact_layout_is_a_bug() {
        let mut data = [0.0; 3];
        let mut frame = Frame::over(&mut data);
        frame.take(2);
        frame.finish();
    }
}

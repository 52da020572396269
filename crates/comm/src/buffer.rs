//! Buffers in the arena of a rank.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use lockstep_platform::Block;

use crate::element::Element;

/// A slice in the rank's arena, which the other ranks of the host can access. Calls on it, or on
/// any part of it, need no staging.
pub struct ArenaBuffer<T> {
    block: Block,
    count: usize,
    kind: PhantomData<T>,
}

impl<T: Element> ArenaBuffer<T> {
    pub(crate) fn new(block: Block, count: usize) -> Self {
        let mut buffer = Self { block, count, kind: PhantomData };
        buffer.fill(T::from_small(0));
        buffer
    }

    /// Gives the buffer up without freeing its memory, which other ranks may still access.
    pub(crate) fn retire(self) {
        self.block.retire();
    }
}

impl<T: Element> Deref for ArenaBuffer<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        self.block.as_slice(self.count)
    }
}

impl<T: Element> DerefMut for ArenaBuffer<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        self.block.as_mut_slice(self.count)
    }
}

impl<T: Element> AsRef<[T]> for ArenaBuffer<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T: Element> AsMut<[T]> for ArenaBuffer<T> {
    fn as_mut(&mut self) -> &mut [T] {
        self
    }
}

impl<T: Element> fmt::Debug for ArenaBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArenaBuffer({} {})", self.count, T::DTYPE)
    }
}

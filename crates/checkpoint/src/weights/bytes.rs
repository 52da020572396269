//! From f32 values to their stored bytes, a piece at a time.

use super::ElementType;

/// Elements in a piece: large enough that a system call for each is cheap, small enough to stay
/// in the cache.
pub(crate) const PIECE_ELEMENTS: usize = 16 * 1024;

/// Gives the little-endian bytes of all elements, in order, to `take`.
pub(crate) fn for_each_piece<E>(
    data: &[f32],
    format: ElementType,
    buffer: &mut Vec<u8>,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    for piece in data.chunks(PIECE_ELEMENTS) {
        buffer.clear();
        format.narrow(piece, buffer);
        take(buffer)?;
    }
    Ok(())
}

/// The number of the first element of these little-endian `f32` that is not finite.
pub(crate) fn first_not_finite(bytes: &[u8]) -> Option<usize> {
    let (elements, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty(), "whole elements");
    let is_bad = |element: &[u8; 4]| !f32::from_le_bytes(*element).is_finite();
    // Nearly always there is none, and without a way out in the middle the loop takes many at once.
    if !elements.iter().fold(false, |found, element| found | is_bad(element)) {
        return None;
    }
    elements.iter().position(is_bad)
}

//! Conversion of f32 values to stored bytes, in pieces.

use super::ElementType;

/// Elements per piece: large enough to amortise a system call, small enough for the cache.
pub(crate) const PIECE_ELEMENTS: usize = 16 * 1024;

/// Passes the little-endian bytes of all elements to `take`, in order.
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

/// Index of the first non-finite element of these little-endian `f32`.
pub(crate) fn first_not_finite(bytes: &[u8]) -> Option<usize> {
    let (elements, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty(), "whole elements");
    let is_bad = |element: &[u8; 4]| !f32::from_le_bytes(*element).is_finite();
    // Usually there is none, and a loop without early exit is vectorised.
    if !elements.iter().fold(false, |found, element| found | is_bad(element)) {
        return None;
    }
    elements.iter().position(is_bad)
}

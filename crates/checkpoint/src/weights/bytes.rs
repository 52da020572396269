//! Between f32 values and their little-endian bytes, a piece at a time.

/// Elements in a piece: large enough that a system call for each is cheap, small enough to stay
/// in the cache.
const PIECE_ELEMENTS: usize = 16 * 1024;

/// Bytes of one element.
pub(super) const ELEMENT_BYTES: usize = size_of::<f32>();

/// Bytes of one piece.
pub(super) const PIECE_BYTES: usize = PIECE_ELEMENTS * ELEMENT_BYTES;

/// Gives the little-endian bytes of all elements, in order, to `take`.
pub(super) fn for_each_piece<E>(
    data: &[f32],
    buffer: &mut Vec<u8>,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    for piece in data.chunks(PIECE_ELEMENTS) {
        buffer.clear();
        buffer.extend(piece.iter().flat_map(|value| value.to_le_bytes()));
        take(buffer)?;
    }
    Ok(())
}

/// Adds the elements that the little-endian bytes stand for.
pub(super) fn extend_from_bytes(data: &mut Vec<f32>, bytes: &[u8]) {
    let (elements, rest) = bytes.as_chunks::<ELEMENT_BYTES>();
    assert!(rest.is_empty(), "a piece holds whole elements");
    data.extend(elements.iter().map(|&element| f32::from_le_bytes(element)));
}

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

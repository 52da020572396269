//! Striping of a message over the streams of a pair.
//!
//! A message is cut into segments of fixed size, which the streams take in turn: of three streams
//! the second carries segments 1, 4, 7 and so on. Both ends know this, so segments need no headers
//! of their own, and a message that fits one segment uses the first stream only.

use std::ops::Range;

/// Size of a segment.
pub(super) const SEGMENT_BYTES: usize = 128 << 10;

/// Number of bytes of a message of `len` bytes that `stream` of `num_streams` carries.
pub(super) fn part_bytes(len: usize, num_streams: usize, stream: usize) -> usize {
    let num_segments = len.div_ceil(SEGMENT_BYTES);
    if num_segments <= stream {
        return 0;
    }
    let last = num_segments - 1;
    let num_own = (last - stream) / num_streams + 1;
    let missing = if last % num_streams == stream { num_segments * SEGMENT_BYTES - len } else { 0 };
    num_own * SEGMENT_BYTES - missing
}

/// Range of the message that follows the first `position` bytes of the stream's part, up to the end
/// of the segment.
pub(super) fn run(len: usize, num_streams: usize, stream: usize, position: usize) -> Range<usize> {
    if num_streams == 1 {
        return position..len;
    }
    let segment = position / SEGMENT_BYTES * num_streams + stream;
    let start = segment * SEGMENT_BYTES + position % SEGMENT_BYTES;
    start..len.min((segment + 1) * SEGMENT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_travels_once_and_in_order_on_its_stream() {
        const S: usize = SEGMENT_BYTES;
        for len in [0, 1, S - 1, S, S + 1, 2 * S, 3 * S - 1, 3 * S, 3 * S + 5, 10 * S + 1] {
            for num_streams in 1..=5 {
                let mut covered = vec![0_u8; len];
                for stream in 0..num_streams {
                    let part = part_bytes(len, num_streams, stream);
                    let (mut position, mut before) = (0, 0);
                    while position < part {
                        let run = run(len, num_streams, stream, position);
                        assert!(run.start >= before && !run.is_empty());
                        before = run.end;
                        covered[run.clone()].iter_mut().for_each(|times| *times += 1);
                        position += run.len();
                    }
                    assert_eq!(position, part, "{len} bytes over {num_streams}");
                }
                assert!(covered.iter().all(|&times| times == 1), "{len} over {num_streams}");
            }
        }
    }

    #[test]
    fn a_run_that_is_resumed_ends_where_it_would_have() {
        let (len, at) = (5 * SEGMENT_BYTES + 7, SEGMENT_BYTES + 100);
        assert_eq!(run(len, 2, 1, at).start, 3 * SEGMENT_BYTES + 100);
        assert_eq!(run(len, 2, 1, at).end, 4 * SEGMENT_BYTES);
    }

    #[test]
    fn a_short_message_keeps_to_the_first_stream() {
        assert_eq!(part_bytes(SEGMENT_BYTES, 4, 0), SEGMENT_BYTES);
        assert!((1..4).all(|stream| part_bytes(SEGMENT_BYTES, 4, stream) == 0));
    }
}

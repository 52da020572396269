//! The reader of messages between ranks, fed with any bytes on two streams in pieces of any size.
//!
//! An input is the length of a piece, two bytes that say where the second stream begins, and the
//! bytes of both.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lockstep_comm::hostile;

fuzz_target!(|input: &[u8]| {
    let [piece, low, high, bytes @ ..] = input else { return };
    let first_len = usize::from(u16::from_le_bytes([*low, *high])).min(bytes.len());
    let (first, second) = bytes.split_at(first_len);
    hostile::receive([first, second], usize::from(*piece) + 1);
});

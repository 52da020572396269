//! Fuzzes the receiver of messages between ranks, on two streams that arrive in pieces.
//!
//! An input is the length of a piece, the length of the first stream in two bytes, and the bytes of
//! both streams.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lockstep_comm::hostile;

fuzz_target!(|input: &[u8]| {
    let [piece, low, high, bytes @ ..] = input else { return };
    let first_len = usize::from(u16::from_le_bytes([*low, *high])).min(bytes.len());
    let (first, second) = bytes.split_at(first_len);
    hostile::receive([first, second], usize::from(*piece) + 1);
});

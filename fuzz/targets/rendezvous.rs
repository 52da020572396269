//! Fuzzes the decoder of rendezvous messages.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lockstep_cluster::rendezvous::hostile;

fuzz_target!(|bytes: &[u8]| {
    hostile::decode(bytes);
});

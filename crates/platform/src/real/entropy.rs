//! Kernel entropy.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::Entropy;

pub(crate) struct RealEntropy;

impl Entropy for RealEntropy {
    fn fill(&self, buffer: &mut [u8]) {
        let mut num_filled = 0;
        while num_filled < buffer.len() {
            match getrandom(&mut buffer[num_filled..], GetRandomFlags::empty()) {
                Ok(num_bytes) => num_filled += num_bytes,
                Err(Errno::INTR) => {}
                Err(error) => panic!("the kernel gives no random bytes: {error}"),
            }
        }
    }
}

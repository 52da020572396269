//! Brings a large file to the disk while it is being written.
//!
//! The system collects what is written in memory and would begin with the disk only at the sync:
//! first all the copying, then all the waiting. Asked after every few mebibytes to begin with what
//! it has, it does both at once, and the sync finds little left to do. Nothing is promised by it:
//! what is durable is still up to the sync, and so is the word about a disk that failed.

#![expect(unsafe_code, reason = "a call of the system that the bindings do not have")]
#![expect(clippy::disallowed_types, reason = "this is where files are touched")]

use std::fs::File;
use std::ops::Range;

/// Bytes that are collected before the disk is asked to begin.
const BATCH_BYTES: usize = 8 << 20;

/// How much of a file the disk has not been asked for.
#[derive(Default)]
pub(super) struct WriteBehind {
    num_bytes: usize,
}

impl WriteBehind {
    /// So many bytes were written.
    pub(super) fn wrote(&mut self, file: &File, num_bytes: usize) {
        self.num_bytes += num_bytes;
        if self.num_bytes >= BATCH_BYTES {
            self.num_bytes = 0;
            begin(file, 0..0);
        }
    }
}

/// Lets the system begin to write what it has of the bytes of a file from the range's start to its
/// end, or to the file's where the range is empty. Where it cannot, the sync does it all.
#[cfg(target_os = "linux")]
pub(super) fn begin(file: &File, bytes: Range<usize>) {
    use std::ffi::{c_int, c_uint};
    use std::os::fd::AsRawFd;
    unsafe extern "C" {
        fn sync_file_range(file: c_int, offset: i64, num_bytes: i64, flags: c_uint) -> c_int;
    }
    const BEGIN: c_uint = 2;
    let [start, num_bytes] = [bytes.start, bytes.len()]
        .map(|count| i64::try_from(count).expect("no file has more bytes"));
    // SAFETY: the call takes numbers only, and the descriptor is open as long as the borrow. No
    // bytes are all that follow.
    let _ = unsafe { sync_file_range(file.as_raw_fd(), start, num_bytes, BEGIN) };
}

#[cfg(not(target_os = "linux"))]
pub(super) fn begin(_: &File, _: Range<usize>) {}

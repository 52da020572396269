//! Starts writing a large file to disk while it is being produced.
//!
//! The system buffers writes and would start the disk only at the sync: first all the copying, then
//! all the waiting. Asking it every few mebibytes to start overlaps both, and leaves little for the
//! sync. Durability and disk errors still belong to the sync.

#![expect(unsafe_code, reason = "a call of the system that the bindings do not have")]
#![expect(clippy::disallowed_types, reason = "this is where files are touched")]

use std::fs::File;
use std::ops::Range;

/// Number of bytes between two requests.
const BATCH_BYTES: usize = 8 << 20;

/// Number of bytes not requested yet.
#[derive(Default)]
pub(super) struct WriteBehind {
    num_bytes: usize,
}

impl WriteBehind {
    /// Records written bytes.
    pub(super) fn wrote(&mut self, file: &File, num_bytes: usize) {
        self.num_bytes += num_bytes;
        if self.num_bytes >= BATCH_BYTES {
            self.num_bytes = 0;
            begin(file, 0..0);
        }
    }
}

/// Starts writing back a range of a file, or everything from its start if the range is empty.
/// Without the system call, the sync does all the work.
#[cfg(target_os = "linux")]
pub(super) fn begin(file: &File, bytes: Range<usize>) {
    use std::ffi::{c_int, c_uint};
    use std::os::fd::AsRawFd;
    unsafe extern "C" {
        fn sync_file_range(file: c_int, offset: i64, num_bytes: i64, flags: c_uint) -> c_int;
    }
    const BEGIN: c_uint = 2;
    let [start, num_bytes] =
        [bytes.start, bytes.len()].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
    // SAFETY: the call takes numbers only, and the descriptor is open as long as the borrow. No
    // bytes are all that follow.
    let _ = unsafe { sync_file_range(file.as_raw_fd(), start, num_bytes, BEGIN) };
}

#[cfg(not(target_os = "linux"))]
pub(super) fn begin(_: &File, _: Range<usize>) {}

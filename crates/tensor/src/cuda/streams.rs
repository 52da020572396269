//! Streams of a device: one for all work, and others for copies beside it.

use super::driver::{Driver, Handle};
use crate::device::error::Result;
use crate::device::memory::NUM_COPY_STREAMS;
use std::ffi::c_uint;
use std::ptr::null_mut;

/// A stream that does not wait for the legacy default stream.
const NON_BLOCKING: c_uint = 1;

/// Streams that commands are queued on.
#[derive(Clone, Copy)]
pub(super) struct Streams {
    /// That of all work.
    pub(super) work: Handle,
    /// Those of copies beside it.
    pub(super) copies: [Handle; NUM_COPY_STREAMS],
}

impl Streams {
    /// New streams that do not wait for the legacy default stream; the context must be active.
    pub(super) fn create(driver: &Driver) -> Result<Self> {
        let mut all = [null_mut(); 1 + NUM_COPY_STREAMS];
        for at in 0..all.len() {
            // SAFETY: writes the handle of a new stream.
            let code = unsafe { (driver.stream_create)(&raw mut all[at], NON_BLOCKING) };
            if let Err(error) = driver.check("cuStreamCreate", code) {
                Self::destroy_all(driver, &all[..at]);
                return Err(error);
            }
        }
        let [work, copies @ ..] = all;
        Ok(Self { work, copies })
    }

    /// Destroys the streams; nothing may be queued on them afterwards.
    pub(super) fn destroy(self, driver: &Driver) {
        Self::destroy_all(driver, &[self.work]);
        Self::destroy_all(driver, &self.copies);
    }

    fn destroy_all(driver: &Driver, streams: &[Handle]) {
        for stream in streams {
            // SAFETY: the stream was made by `create`, and its owner gives it up.
            unsafe { (driver.stream_destroy)(*stream) };
        }
    }
}

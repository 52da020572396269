//! Read-only file maps.
//!
//! A map costs nothing until it is read, and the kernel can drop its pages when memory runs short,
//! so a corpus of any size can be sampled at random. Another process may write to the file
//! meanwhile; no reference is lent into the map, only copies are made, and any bytes are valid.
#![expect(unsafe_code, reason = "mapping files, and copying from the maps")]
#![expect(clippy::disallowed_types, reason = "this is where files are touched")]

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::FileMap;

/// Pages of a file; none for an empty file.
pub(crate) struct RealMap {
    /// Dangling for an empty file.
    base: NonNull<u8>,
    num_bytes: usize,
}

impl RealMap {
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "not a file"));
        }
        let num_bytes = usize::try_from(metadata.len())
            .map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, "larger than all memory"))?;
        if num_bytes == 0 {
            // The kernel refuses empty maps.
            return Ok(Self { base: NonNull::dangling(), num_bytes });
        }
        let (access, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: the kernel chooses a free range of addresses.
        let base = unsafe { mmap(std::ptr::null_mut(), num_bytes, access, flags, file, 0)? };
        let base = NonNull::new(base.cast::<u8>()).expect("a map does not start at address zero");
        Ok(Self { base, num_bytes })
    }
}

impl FileMap for RealMap {
    fn num_bytes(&self) -> u64 {
        self.num_bytes as u64
    }

    fn copy_to(&self, offset: u64, buffer: &mut [u8]) {
        let end = offset.checked_add(buffer.len() as u64);
        assert!(
            end.is_some_and(|end| end <= self.num_bytes as u64),
            "{} bytes at byte {offset} of {}",
            buffer.len(),
            self.num_bytes
        );
        // SAFETY: the range was just proven to lie inside the map, which is readable for as long
        // as `self` lives; the buffer is ours alone, so the two cannot overlap.
        unsafe {
            let source = self.base.as_ptr().add(offset as usize);
            std::ptr::copy_nonoverlapping(source, buffer.as_mut_ptr(), buffer.len());
        }
    }
}

// SAFETY: an owned range of addresses, unmapped once.
unsafe impl Send for RealMap {}
// SAFETY: as above; through a shared reference the map is only read.
unsafe impl Sync for RealMap {}

impl Drop for RealMap {
    fn drop(&mut self) {
        if self.num_bytes > 0 {
            // SAFETY: it was mapped with this length, and no handle is left.
            let _ = unsafe { munmap(self.base.as_ptr().cast(), self.num_bytes) };
        }
    }
}

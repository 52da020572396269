//! Writable maps of unnamed files.
#![expect(unsafe_code, reason = "mapping a file, and slices of the map")]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is where files are touched"
)]

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::entropy::RealEntropy;
use super::write_behind;
use crate::memory::PAGE_BYTES;
use crate::{Entropy, FileAction, FileError, Paged};

/// A file and its map.
struct Mapping {
    base: NonNull<u8>,
    num_bytes: usize,
    file: File,
    folder: PathBuf,
}

// SAFETY: an owned range of addresses, unmapped once; access goes through its parts.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Range of a file, disjoint from all others.
struct Part {
    mapping: Arc<Mapping>,
    first_byte: usize,
    len: usize,
}

/// Zeroed arrays in an unnamed file of `folder`, which disappears with the last of them; each one
/// starts at a page.
pub(crate) fn create(folder: &Path, lens: &[usize]) -> Result<Vec<Box<dyn Paged>>, FileError> {
    let mut starts = Vec::with_capacity(lens.len());
    let mut num_bytes = 0;
    for len in lens {
        starts.push(num_bytes);
        num_bytes += (len * size_of::<f32>()).next_multiple_of(PAGE_BYTES);
    }
    let mapping = Mapping::new(folder, num_bytes.max(PAGE_BYTES));
    let mapping = mapping.map_err(|error| FileError::new(FileAction::Create, folder, &error))?;
    let mapping = Arc::new(mapping);
    let part = |(&len, first_byte): (&usize, usize)| -> Box<dyn Paged> {
        Box::new(Part { mapping: Arc::clone(&mapping), first_byte, len })
    };
    Ok(lens.iter().zip(starts).map(part).collect())
}

impl Mapping {
    fn new(folder: &Path, num_bytes: usize) -> io::Result<Self> {
        let file = nameless(folder)?;
        reserve(&file, num_bytes)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses a free range of addresses.
        let base = unsafe { mmap(std::ptr::null_mut(), num_bytes, access, flags, &file, 0)? };
        let base = NonNull::new(base.cast::<u8>()).expect("a map does not start at address zero");
        Ok(Self { base, num_bytes, file, folder: folder.to_owned() })
    }

    /// Advises the kernel about the whole pages of a byte range.
    fn advise(&self, bytes: &Range<usize>, advice: Advice) -> Result<(), Errno> {
        let start = bytes.start / PAGE_BYTES * PAGE_BYTES;
        let end = bytes.end.next_multiple_of(PAGE_BYTES).min(self.num_bytes);
        if start >= end {
            return Ok(());
        }
        // SAFETY: inside the map. None of the advice used here changes what the bytes are: pages
        // of a shared map that are let go come back from the file as they were.
        unsafe { madvise(self.base.as_ptr().add(start).cast(), end - start, advice) }
    }
}

/// Unnamed file; on file systems without them, a file that is unlinked at once.
fn nameless(folder: &Path) -> io::Result<File> {
    let (flags, mode) = (OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::from(0o600));
    match rustix::fs::open(folder, flags, mode) {
        Ok(file) => Ok(File::from(file)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let path = folder.join(format!(".lockstep-{:016x}", RealEntropy.u64()));
            let mut options = File::options();
            let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            fs::remove_file(&path)?;
            Ok(file)
        }
        Err(error) => Err(error.into()),
    }
}

/// Allocates disk space, so that no page fault finds the disk full later.
fn reserve(mut file: &File, num_bytes: usize) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, num_bytes as u64) {
        Err(Errno::OPNOTSUPP) => {}
        done => return Ok(done?),
    }
    let zeros = vec![0; 1 << 20];
    let mut left = num_bytes;
    while left > 0 {
        let count = left.min(zeros.len());
        file.write_all(&zeros[..count])?;
        left -= count;
    }
    file.sync_data()
}

impl Part {
    fn bytes(&self, range: &Range<usize>) -> Range<usize> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        let byte = |number: usize| self.first_byte + number * size_of::<f32>();
        byte(range.start)..byte(range.end)
    }

    fn base(&self) -> *mut f32 {
        // SAFETY: the part lies inside the map.
        unsafe { self.mapping.base.as_ptr().add(self.first_byte).cast() }
    }
}

impl Paged for Part {
    fn floats(&self) -> &[f32] {
        // SAFETY: in bounds and aligned to a page; any bits are numbers. No other part overlaps,
        // and no other process can reach an unnamed file.
        unsafe { std::slice::from_raw_parts(self.base(), self.len) }
    }

    fn floats_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and `self` is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.base(), self.len) }
    }

    fn read_ahead(&self, range: Range<usize>) {
        // Without read-ahead, loading only takes longer.
        let _ = self.mapping.advise(&self.bytes(&range), Advice::WillNeed);
    }

    fn load(&self, range: Range<usize>) -> Result<(), FileError> {
        let bytes = self.bytes(&range);
        loop {
            match self.mapping.advise(&bytes, Advice::LinuxPopulateWrite) {
                Err(Errno::INTR | Errno::WOULDBLOCK) => {}
                // Kernels without this advice read pages on access.
                Ok(()) | Err(Errno::INVAL) => return Ok(()),
                Err(error) => {
                    // The disk failed to provide the page, which would have been a SIGBUS.
                    let error = match error {
                        Errno::FAULT | Errno::HWPOISON => Errno::IO,
                        other => other,
                    };
                    let (folder, error) = (&self.mapping.folder, io::Error::from(error));
                    return Err(FileError::new(FileAction::Read, folder, &error));
                }
            }
        }
    }

    fn release(&self, range: Range<usize>) {
        let bytes = self.bytes(&range);
        // Without this advice, pages stay until the system needs memory.
        let _ = self.mapping.advise(&bytes, Advice::LinuxDontNeed);
        write_behind::begin(&self.mapping.file, bytes);
    }

    fn release_all(&self) {
        let _ = self.mapping.advise(&(0..self.mapping.num_bytes), Advice::LinuxDontNeed);
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part({} numbers at byte {})", self.len, self.first_byte)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no part is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.num_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScratchDir;

    /// Resident bytes of the array's map, as the kernel counts them.
    fn resident(part: &dyn Paged) -> usize {
        let address = part.floats().as_ptr().addr();
        let maps = fs::read_to_string("/proc/self/smaps").expect("a kernel with maps");
        let mut is_inside = false;
        for line in maps.lines() {
            if let Some((start, rest)) = line.split_once('-')
                && let Ok(start) = usize::from_str_radix(start, 16)
            {
                let end = rest.split(' ').next().map(|end| usize::from_str_radix(end, 16));
                is_inside =
                    end.is_some_and(|end| end.is_ok_and(|end| (start..end).contains(&address)));
            }
            if is_inside && let Some(size) = line.strip_prefix("Rss:") {
                let kib: usize = size.trim().trim_end_matches(" kB").parse().expect("a number");
                return kib << 10;
            }
        }
        panic!("the part is mapped somewhere");
    }

    #[test]
    fn only_loaded_ranges_are_resident_and_released_ones_keep_their_values() {
        let world = crate::real();
        let folder = ScratchDir::new(&world, "paged").expect("a folder");
        let (piece, num_pieces) = (1 << 18, 8);
        let mut parts = create(folder.path(), &[3, piece * num_pieces, 0]).expect("room");
        assert!(parts[2].floats().is_empty());
        parts[0].floats_mut().fill(7.0);
        let part = &mut parts[1];
        for round in 0..3 {
            for number in 0..num_pieces {
                let range = number * piece..(number + 1) * piece;
                part.read_ahead(range.clone());
                part.load(range.clone()).expect("a disk that works");
                let values = &mut part.floats_mut()[range.clone()];
                assert!(values.iter().all(|v| v.to_bits() == (round as f32).to_bits()));
                values.fill((round + 1) as f32);
                part.release(range);
                // Only the page shared with the first part may remain.
                let most = PAGE_BYTES;
                assert!(resident(&**part) <= most, "{} of {most}", resident(&**part));
            }
        }
        part.load(0..piece).expect("a disk that works");
        assert!(resident(&**part) >= 4 * piece);
        part.release_all();
        assert_eq!(resident(&**part), 0);
        assert!(parts[0].floats().iter().all(|v| v.to_bits() == 7.0_f32.to_bits()));
        assert!(world.files().list(folder.path()).expect("a folder").is_empty(), "no name");
    }

    #[test]
    fn a_full_disk_and_a_missing_folder_fail_on_creation() {
        let world = crate::real();
        let folder = ScratchDir::new(&world, "paged").expect("a folder");
        let error = create(folder.path(), &[1 << 46]).expect_err("no disk is that large");
        let expected = [io::ErrorKind::StorageFull, io::ErrorKind::FileTooLarge];
        assert!(expected.contains(&error.kind()), "{error}");
        let missing = folder.path().join("missing");
        let error = create(&missing, &[1]).expect_err("no such folder");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("missing"), "{error}");
    }
}

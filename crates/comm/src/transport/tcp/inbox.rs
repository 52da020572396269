//! Read buffer of a stream.
//!
//! The target of a message is known only after its header, so headers are read into a buffer
//! together with the bytes behind them: a short message takes a single system call. The rest of a
//! long message is read directly into its target.

use std::io;

use lockstep_platform::Target;

use super::frame::HEADER_BYTES;

/// Capacity of the buffer.
pub(super) const INBOX_BYTES: usize = HEADER_BYTES + (16 << 10);

/// Bytes read from a stream and not yet consumed.
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; INBOX_BYTES].into(), start: 0, end: 0 }
    }

    /// Number of buffered bytes.
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Calls `read` once on the free space; returns the number of bytes added.
    pub(super) fn fill(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let num_bytes = read(&mut self.bytes[self.end..])?;
        self.end += num_bytes;
        assert!(self.end <= self.bytes.len(), "a reader fills no more than it was given");
        Ok(num_bytes)
    }

    /// Consumes the next `N` bytes, if buffered.
    pub(super) fn take_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let array = *self.bytes[self.start..self.end].first_chunk()?;
        self.start += N;
        Some(array)
    }

    /// The next `N` bytes, without consuming them.
    pub(super) fn peek_array<const N: usize>(&self) -> Option<[u8; N]> {
        self.bytes[self.start..self.end].first_chunk().copied()
    }

    /// Moves as many bytes as possible to the start of a window; returns how many.
    pub(super) fn take(&mut self, window: Target<'_, u8>) -> usize {
        let len = window.len().min(self.len());
        window.part(0..len).copy_from_slice(&self.bytes[self.start..self.start + len]);
        self.start += len;
        len
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_leave_as_they_came(
            message in prop::collection::vec(any::<u8>(), 0..70_000),
            cuts in prop::collection::vec(0_usize..20_000, 1..40),
        ) {
            let mut inbox = Inbox::new();
            let (mut rest, mut out) = (message.as_slice(), Vec::new());
            let mut cuts = cuts.iter().cycle();
            while out.len() < message.len() {
                let most = *cuts.next().expect("a cycle does not end");
                let added = inbox.fill(|space| {
                    let len = rest.len().min(space.len()).min(most + 1);
                    space[..len].copy_from_slice(&rest[..len]);
                    rest = &rest[len..];
                    Ok(len)
                }).expect("memory can be read");
                prop_assert!(added > 0 || inbox.len() > 0);
                if let Some(array) = inbox.take_array::<64>() {
                    out.extend_from_slice(&array);
                }
                let mut taken = vec![0; most];
                let len = inbox.take(Target::of(&mut taken));
                out.extend_from_slice(&taken[..len]);
                if rest.is_empty() && len == 0 {
                    let mut last = vec![0; inbox.len()];
                    inbox.take(Target::of(&mut last));
                    out.extend_from_slice(&last);
                }
            }
            prop_assert_eq!(out, message);
        }
    }
}

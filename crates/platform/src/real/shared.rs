//! Shared memory of the kernel: sealed memfds, descriptors over local sockets, futexes.
//!
//! A memfd has no name in any file system, so it disappears with the last process that maps it. Its
//! size is sealed before other processes see it: otherwise a peer could shrink it and turn the next
//! access into SIGBUS.
#![expect(unsafe_code, reason = "mapping memory, and the kernel's futex on half of a word")]
#![expect(clippy::disallowed_methods, reason = "this is where the system's clock is read")]

use std::ffi::c_void;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with, sockopt,
};
use rustix::thread::{MembarrierCommand, futex, membarrier, membarrier_query};

use crate::shared::{MAX_MESSAGE_BYTES, MAX_SEGMENTS};
use crate::{LocalListener, LocalMessage, LocalStream, Segment, Shared, SharedError, SpinPolicy};

/// Seals that fix the size of a segment.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Number of pending local connections.
const BACKLOG: i32 = 128;

pub(crate) struct RealShared;

impl Shared for RealShared {
    fn create(&self, header_bytes: usize, bytes: usize) -> Result<Segment, SharedError> {
        create(header_bytes, bytes).map_err(failed("create shared memory"))
    }

    fn listen(&self, name: &str) -> Result<Box<dyn LocalListener>, SharedError> {
        let attempt = || -> Result<OwnedFd, Errno> {
            let socket = new_socket()?;
            bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
            listen(&socket, BACKLOG)?;
            Ok(socket)
        };
        let socket = attempt().map_err(failed("listen on a local name"))?;
        Ok(Box::new(RealLocalListener { socket }))
    }

    fn connect(&self, name: &str, timeout: Duration) -> Result<Box<dyn LocalStream>, SharedError> {
        const ACTION: &str = "connect to a local name";
        let attempt = || -> Result<OwnedFd, Errno> {
            let socket = new_socket()?;
            let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
            // A full backlog, which any user of the host can cause, would block a blocking socket
            // for ever; it is retried until the deadline.
            ioctl_fionbio(&socket, true)?;
            let deadline = Deadline::after(timeout);
            loop {
                match connect(&socket, &address) {
                    Err(Errno::WOULDBLOCK) if !deadline.remaining().is_zero() => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(Errno::INTR) => {}
                    done => break done?,
                }
            }
            ioctl_fionbio(&socket, false)?;
            same_user(&socket)?;
            Ok(socket)
        };
        match attempt() {
            Ok(socket) => Ok(Box::new(RealLocalStream { socket })),
            Err(Errno::WOULDBLOCK) => Err(SharedError::timed_out(ACTION, timeout)),
            Err(error) => Err(failed(ACTION)(error)),
        }
    }

    fn wait(&self, word: &AtomicU64, expected: u64, timeout: Duration) {
        let timeout = timespec(timeout);
        // Wake-up, changed value, interrupt and timeout all mean: check again.
        let _ = futex::wait(low_half(word), futex::Flags::empty(), expected as u32, Some(&timeout));
    }

    fn wake(&self, word: &AtomicU64) {
        // It fails only for invalid addresses, which the reference rules out.
        let _ = futex::wake(low_half(word), futex::Flags::empty(), i32::MAX as u32);
    }

    fn join_fences(&self) -> bool {
        let command = MembarrierCommand::RegisterGlobalExpedited;
        membarrier_query().contains_command(command) && membarrier(command).is_ok()
    }

    fn fence_all(&self) {
        // Joining succeeded, so this cannot fail.
        let _ = membarrier(MembarrierCommand::GlobalExpedited);
    }

    fn yield_now(&self) {
        std::thread::yield_now();
    }

    fn spin_policy(&self, num_ranks: usize) -> SpinPolicy {
        let num_cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // Up to a millisecond in both cases: a pause takes about 40 ns, a yield about 300 ns.
        if num_ranks <= num_cores {
            SpinPolicy { num_spins: 20_000, num_yields: 500 }
        } else {
            SpinPolicy { num_spins: 40, num_yields: 3000 }
        }
    }
}

/// Half of the word that the kernel compares; only the kernel uses it.
fn low_half(word: &AtomicU64) -> &AtomicU32 {
    let halves = std::ptr::from_ref(word).cast::<AtomicU32>();
    let index = usize::from(cfg!(target_endian = "big"));
    // SAFETY: both halves lie inside the word, and four bytes need no more alignment than eight.
    unsafe { &*halves.add(index) }
}

fn create(header_bytes: usize, bytes: usize) -> Result<Segment, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let descriptor = memfd_create("lockstep", flags)?;
    ftruncate(&descriptor, bytes as u64)?;
    fcntl_add_seals(&descriptor, SEALS)?;
    map(descriptor, header_bytes, bytes)
}

/// Maps a received descriptor after checking its type.
fn adopt(descriptor: OwnedFd, header_bytes: usize) -> Result<Segment, Errno> {
    if !fcntl_get_seals(&descriptor)?.contains(SEALS) {
        return Err(Errno::PERM);
    }
    let bytes = usize::try_from(fstat(&descriptor)?.st_size).map_err(|_| Errno::OVERFLOW)?;
    if header_bytes > bytes || !header_bytes.is_multiple_of(64) {
        return Err(Errno::INVAL);
    }
    map(descriptor, header_bytes, bytes)
}

fn map(descriptor: OwnedFd, header_bytes: usize, bytes: usize) -> Result<Segment, Errno> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    let flags = flags | MapFlags::NORESERVE;
    // SAFETY: the kernel chooses a free range of addresses.
    let base = unsafe { mmap(std::ptr::null_mut(), bytes, access, flags, &descriptor, 0)? };
    let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::FAULT)?;
    let keeper = Box::new(Mapped { base, bytes });
    // Fewer, larger pages where the kernel is set up to give them to shared memory; else nothing.
    // SAFETY: the advice changes no contents.
    let _ = unsafe { madvise(base.as_ptr().cast::<c_void>(), bytes, Advice::LinuxHugepage) };
    // SAFETY: mapped for reading and writing at a page's start, and unmapped by the keeper only.
    Ok(unsafe { Segment::from_raw(base, header_bytes, bytes, Some(descriptor), keeper) })
}

struct Mapped {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an owned range of addresses, unmapped once.
unsafe impl Send for Mapped {}
// SAFETY: as above; nothing is done through a shared reference.
unsafe impl Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no handle is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

struct RealLocalListener {
    socket: OwnedFd,
}

impl LocalListener for RealLocalListener {
    fn accept(&self, timeout: Duration) -> Result<Box<dyn LocalStream>, SharedError> {
        const ACTION: &str = "accept a local stream";
        let deadline = Deadline::after(timeout);
        loop {
            if !ready(self.socket.as_fd(), PollFlags::IN, &deadline).map_err(failed(ACTION))? {
                return Err(SharedError::timed_out(ACTION, timeout));
            }
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                // A peer of another user is dropped, and waiting continues.
                Ok(socket) if same_user(&socket).is_err() => {}
                Ok(socket) => return Ok(Box::new(RealLocalStream { socket })),
                Err(Errno::INTR | Errno::CONNABORTED | Errno::WOULDBLOCK) => {}
                Err(error) => return Err(failed(ACTION)(error)),
            }
        }
    }
}

struct RealLocalStream {
    socket: OwnedFd,
}

impl LocalStream for RealLocalStream {
    fn send(&mut self, message: &[u8], segments: &[&Segment]) -> Result<(), SharedError> {
        const ACTION: &str = "send over a local stream";
        assert!(message.len() <= MAX_MESSAGE_BYTES && segments.len() <= MAX_SEGMENTS);
        // Header sizes precede the message, so that the receiver maps the same layout.
        let mut front = [0_u64; MAX_SEGMENTS];
        for (length, segment) in front.iter_mut().zip(segments) {
            *length = segment.header_bytes() as u64;
        }
        let front: Vec<u8> = front.iter().flat_map(|length| length.to_le_bytes()).collect();
        let descriptors: Option<Vec<BorrowedFd<'_>>> =
            segments.iter().map(|segment| segment.descriptor().map(AsFd::as_fd)).collect();
        let descriptors = descriptors.ok_or(Errno::OPNOTSUPP).map_err(failed(ACTION))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SEGMENTS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            let fits = control.push(SendAncillaryMessage::ScmRights(&descriptors));
            assert!(fits, "there is room for all descriptors");
        }
        let pieces = [IoSlice::new(&front), IoSlice::new(message)];
        loop {
            match sendmsg(&self.socket, &pieces, &mut control, SendFlags::NOSIGNAL) {
                Ok(num_bytes) => {
                    assert_eq!(num_bytes, front.len() + message.len(), "messages are whole");
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(ACTION)(error)),
            }
        }
    }

    fn recv(&mut self, timeout: Duration) -> Result<LocalMessage, SharedError> {
        const ACTION: &str = "receive over a local stream";
        let deadline = Deadline::after(timeout);
        if !ready(self.socket.as_fd(), PollFlags::IN, &deadline).map_err(failed(ACTION))? {
            return Err(SharedError::timed_out(ACTION, timeout));
        }
        recv(&self.socket).map_err(failed(ACTION))
    }

    fn peer_process(&self) -> Option<u32> {
        let peer = sockopt::socket_peercred(&self.socket).ok()?;
        u32::try_from(peer.pid.as_raw_pid()).ok()
    }

    fn is_open(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        match poll(&mut polled, Some(&timespec(Duration::ZERO))) {
            Ok(_) => !polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
            Err(_) => true,
        }
    }
}

fn recv(socket: &OwnedFd) -> Result<LocalMessage, Errno> {
    const FRONT_BYTES: usize = MAX_SEGMENTS * size_of::<u64>();
    let mut bytes = [0_u8; FRONT_BYTES + MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SEGMENTS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        match recvmsg(socket, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            done => break done?,
        }
    };
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(arrived) = message {
            descriptors.extend(arrived);
        }
    }
    if received.bytes == 0 {
        return Err(Errno::CONNRESET);
    }
    let torn = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    if torn || received.bytes < FRONT_BYTES || descriptors.len() > MAX_SEGMENTS {
        return Err(Errno::BADMSG);
    }
    let (front, message) = bytes[..received.bytes].split_at(FRONT_BYTES);
    let (lengths, _) = front.as_chunks::<8>();
    let segments = descriptors
        .into_iter()
        .zip(lengths)
        .map(|(descriptor, length)| {
            let header_bytes = usize::try_from(u64::from_le_bytes(*length));
            adopt(descriptor, header_bytes.map_err(|_| Errno::OVERFLOW)?)
        })
        .collect::<Result<_, Errno>>()?;
    Ok(LocalMessage { message: message.to_vec(), segments })
}

fn new_socket() -> Result<OwnedFd, Errno> {
    // SEQPACKET: whole messages in order, and an end when the peer is gone.
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Abstract names have no permissions, so the peer's user is checked instead.
fn same_user(socket: &OwnedFd) -> Result<(), Errno> {
    let peer = sockopt::socket_peercred(socket)?;
    if peer.uid == rustix::process::geteuid() { Ok(()) } else { Err(Errno::PERM) }
}

struct Deadline(Option<Instant>);

impl Deadline {
    fn after(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    fn remaining(&self) -> Duration {
        const LONG: Duration = Duration::from_hours(24);
        self.0.map_or(LONG, |at| at.saturating_duration_since(Instant::now()))
    }
}

fn ready(socket: BorrowedFd<'_>, flags: PollFlags, deadline: &Deadline) -> Result<bool, Errno> {
    loop {
        let remaining = deadline.remaining();
        let mut polled = [PollFd::from_borrowed_fd(socket, flags)];
        match poll(&mut polled, Some(&timespec(remaining))) {
            Ok(0) if remaining.is_zero() => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error),
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

fn failed(action: &'static str) -> impl Fn(Errno) -> SharedError {
    move |error| SharedError::new(action, &io::Error::from(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connect_to_a_full_backlog_ends_at_its_deadline() {
        let name = format!("lockstep-test-backlog-{}", std::process::id());
        let listener = RealShared.listen(&name).expect("the name is free");
        let short = Duration::from_millis(20);
        let connect = || RealShared.connect(&name, short);
        let mut pending = Vec::new();
        // Nobody accepts, so the backlog fills up.
        let error = (0..=2 * BACKLOG).find_map(|_| match connect() {
            Ok(stream) => {
                pending.push(stream);
                None
            }
            Err(error) => Some(error),
        });
        let error = error.expect("the backlog has an end");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(pending.len() >= BACKLOG as usize, "{}", pending.len());

        // An accepted stream makes room, and streams block for their messages as before.
        let mut accepted = listener.accept(short).expect("one is pending");
        let _last = connect().expect("there is room again");
        pending[0].send(b"hello", &[]).expect("it is open");
        assert_eq!(accepted.recv(short).expect("it was sent").message, b"hello");
        let error = accepted.recv(short).expect_err("no more was sent");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }
}

//! Messages between the processes of an MPI launcher.
//!
//! One process of the launcher is one rank. Calls into the library take turns under a mutex, which
//! is what `MPI_THREAD_SERIALIZED` asks for and every library of a cluster has. A message in flight
//! owns its bytes. Many libraries move long messages only inside their calls, so a thread makes
//! such calls while anything is in flight; a rank that computes does not hold up its partners.
#![expect(unsafe_code, reason = "messages in flight own the memory that the library reads")]

use crate::library::{Initialized, Library, Request};
use crate::{Launched, MpiError, shim};
use lockstep_platform::{JoinHandle, Signal, World};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time between two calls that let the library move messages.
const PROGRESS_INTERVAL: Duration = Duration::from_micros(200);

/// Longest sleep of the thread while nothing is in flight.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// This process among those of the launcher. MPI ends with the last clone.
#[derive(Clone)]
pub struct Process(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    rank: usize,
    num_ranks: usize,
    version: String,
    progress: Mutex<Option<Box<dyn JoinHandle>>>,
}

/// State that the process and its thread share.
struct Shared {
    library: Mutex<Library>,
    /// Messages in flight.
    num_in_flight: AtomicUsize,
    /// Notified when the first message is in flight, and at the end.
    wakes: Arc<dyn Signal>,
    is_ending: AtomicBool,
    /// Whether peers are lost, so that `MPI_Finalize` would wait for them.
    is_given_up: AtomicBool,
}

impl Shared {
    fn library(&self) -> MutexGuard<'_, Library> {
        // A panic inside a call of the library leaves nothing of ours half done.
        self.library.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_in_flight(&self) {
        if self.num_in_flight.fetch_add(1, Ordering::AcqRel) == 0 {
            self.wakes.notify_all();
        }
    }
}

impl Process {
    /// Initialises MPI in a process that a launcher started. Once per process.
    pub fn start(world: &World, launched: &Launched) -> Result<Self, MpiError> {
        let mut library = Library::load(&shim::find_or_compile(world)?)?;
        let Initialized { rank, num_ranks, is_threaded } = library.init()?;
        let version = library.version();
        if num_ranks != launched.num_ranks {
            // Each process is alone in its world: it was started by another MPI's launcher.
            return Err(MpiError::WrongLauncher {
                launcher: launched.launcher.name(),
                started: launched.num_ranks,
                library: version,
                found: num_ranks,
            });
        }
        if !is_threaded {
            return Err(MpiError::OneThread { library: version });
        }
        let shared = Arc::new(Shared {
            library: Mutex::new(library),
            num_in_flight: AtomicUsize::new(0),
            wakes: world.threads().signal(),
            is_ending: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
        });
        let (of_thread, clock) = (Arc::clone(&shared), Arc::clone(world));
        let body = move || make_progress(&of_thread, &clock);
        let progress = world.threads().spawn("mpi-progress", Box::new(body));
        let progress = progress
            .map_err(|error| MpiError::Call { call: "MPI progress", reason: error.to_string() })?;
        let progress = Mutex::new(Some(progress));
        Ok(Self(Arc::new(Inner { shared, rank, num_ranks, version, progress })))
    }

    /// Rank of this process.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Number of processes.
    pub fn num_ranks(&self) -> usize {
        self.0.num_ranks
    }

    /// Name and version of the library.
    pub fn version(&self) -> &str {
        &self.0.version
    }

    /// Sends the bytes of rank 0 to all. Collective; every rank gives as many.
    pub fn broadcast(&self, bytes: &mut [u8]) -> Result<(), MpiError> {
        self.0.shared.library().broadcast(bytes)
    }

    /// Starts to send a message. Messages to one rank with one tag arrive in order.
    pub fn send(&self, bytes: Vec<u8>, to: usize, tag: u16) -> Result<Sending, MpiError> {
        // SAFETY: the bytes are on the heap, and `Sending` keeps them until the request is done;
        // if it is dropped before, they are leaked.
        let request = unsafe { self.0.shared.library().send(&bytes, to, tag)? };
        Ok(Sending(Flight::new(self, request, bytes)))
    }

    /// Starts to receive the next message from a rank with this tag, if there is one. `spare` is
    /// memory to use again. Longer messages than `limit` are an error.
    pub fn receive(
        &self,
        from: usize,
        tag: u16,
        limit: usize,
        mut spare: Vec<u8>,
    ) -> Result<Option<Incoming>, MpiError> {
        let mut is_too_long = None;
        let reserve = |length: usize| {
            is_too_long = (length > limit).then_some(length);
            spare.clear();
            spare.resize(length, 0);
            spare.as_mut_ptr()
        };
        // SAFETY: the bytes are on the heap, and `Incoming` keeps them until the request is done;
        // if it is dropped before, they are leaked.
        let request = unsafe { self.0.shared.library().receive(from, tag, reserve)? };
        let Some(request) = request else { return Ok(None) };
        let incoming = Incoming(Flight::new(self, request, spare));
        match is_too_long {
            Some(length) => Err(MpiError::Call {
                call: "MPI_Improbe",
                reason: format!("rank {from} sent {length} bytes at once"),
            }),
            None => Ok(Some(incoming)),
        }
    }

    /// Ends without `MPI_Finalize`, which would wait for lost peers.
    pub fn give_up(&self) {
        self.0.shared.is_given_up.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}, {}", self.rank(), self.num_ranks(), self.version())
    }
}

impl PartialEq for Process {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Release);
        self.shared.wakes.notify_all();
        let thread = self.progress.lock().unwrap_or_else(PoisonError::into_inner).take();
        let is_joined = thread.is_none_or(|thread| thread.join().is_ok());
        let is_given_up = self.shared.is_given_up.load(Ordering::Acquire);
        if is_joined && !is_given_up {
            // The run is over; no rank needs the error.
            let _ = self.shared.library().finalize();
        }
    }
}

/// Body of the thread.
fn make_progress(shared: &Shared, world: &World) {
    loop {
        let epoch = shared.wakes.epoch();
        if shared.is_ending.load(Ordering::Acquire) {
            return;
        }
        if shared.num_in_flight.load(Ordering::Acquire) == 0 {
            shared.wakes.wait(epoch, IDLE_INTERVAL);
            continue;
        }
        // Errors belong to the message that they are of, whose test returns them.
        let _ = shared.library().progress();
        world.clock().sleep(PROGRESS_INTERVAL);
    }
}

/// A message in flight with its bytes.
struct Flight {
    process: Process,
    /// `None` when it is done.
    request: Option<Request>,
    bytes: Vec<u8>,
}

impl Flight {
    fn new(process: &Process, request: Request, bytes: Vec<u8>) -> Self {
        process.0.shared.add_in_flight();
        Self { process: process.clone(), request: Some(request), bytes }
    }

    fn is_done(&mut self) -> Result<bool, MpiError> {
        let Some(request) = &self.request else { return Ok(true) };
        let outcome = self.process.0.shared.library().test(request);
        if !matches!(outcome, Ok(false)) {
            self.request = None;
            self.process.0.shared.num_in_flight.fetch_sub(1, Ordering::AcqRel);
        }
        outcome
    }

    fn take_bytes(&mut self) -> Vec<u8> {
        assert!(self.request.is_none(), "the message is done");
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !matches!(self.is_done(), Ok(false)) {
            return;
        }
        // The library may still read or write the bytes: they are never freed.
        std::mem::forget(std::mem::take(&mut self.bytes));
        self.process.0.shared.num_in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A message that is being sent.
pub struct Sending(Flight);

impl Sending {
    /// Whether its bytes may be used again.
    pub fn is_done(&mut self) -> Result<bool, MpiError> {
        self.0.is_done()
    }

    /// The bytes.
    ///
    /// # Panics
    /// If it is not done.
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.0.take_bytes()
    }
}

/// A message that is being received.
pub struct Incoming(Flight);

impl Incoming {
    /// Whether it has arrived.
    pub fn is_done(&mut self) -> Result<bool, MpiError> {
        self.0.is_done()
    }

    /// The bytes.
    ///
    /// # Panics
    /// If it is not done.
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.0.take_bytes()
    }
}

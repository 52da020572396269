//! Transport through shared memory, between threads of one process or processes of one host.
//!
//! Every rank has one segment, and all ranks map all segments. A segment is heap memory or a
//! descriptor received over a socket; once mapped, threads and processes run the same code.
//!
//! - `header`: layout of the start of a segment
//! - `wait`: spin, yield, sleep; deadlines and liveness
//! - `verdict_word`: agreement on one verdict
//! - `segment_exchange`: exchange of segments between processes
//! - `ring`: message rings, for schedules that send and receive
//! - `withdrawal`: the end of other ranks' access to the buffers of a failed call

mod header;
mod ring;
mod segment_exchange;
mod verdict_word;
mod wait;
mod withdrawal;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Arena, LocalStream, ProcessWatch, Segment, SpinPolicy, World};

use crate::error::{CommError, Interruption};
use crate::flags::{
    CallDescriptor, Doorbell, Line, counter, has_reached, publish, publish_addresses,
    publish_descriptor, published, raise, read_descriptor,
};
use crate::recorder::RecordRegion;
use header::Header;
pub use ring::SharedTransport;
pub use segment_exchange::SegmentExchange;
pub(crate) use wait::ended;

/// The memory that one rank shares with others.
pub struct SharedWorld {
    world: World,
    rank: Rank,
    header: Header,
    /// By global rank; `None` for ranks on other hosts.
    segments: Vec<Option<Segment>>,
    /// Allocator of this rank's own memory.
    arena: Arc<Arena>,
    spin_policy: SpinPolicy,
    /// Number of waits that outlasted spinning.
    pub(crate) num_long_waits: AtomicU64,
    /// By rank: the last heartbeat, and when it was first observed.
    heartbeats: Mutex<Vec<(u64, Duration)>>,
    /// Whether sleepers issue a process-wide fence, so that wakers need none.
    has_fences: bool,
    /// Ranks in other processes.
    watched: Mutex<Vec<Watched>>,
    /// Ranks whose death interrupts only the ranks that wait for them.
    expendable: OnceLock<Vec<Rank>>,
    /// Unique name of the run.
    job: String,
    name: &'static str,
}

/// A rank in another process, with two signs of its end: its stream closes, and its process handle
/// reports it where the system offers one.
struct Watched {
    rank: Rank,
    stream: Box<dyn LocalStream>,
    process: Option<Box<dyn ProcessWatch>>,
}

impl Watched {
    fn new(world: &World, rank: Rank, stream: Box<dyn LocalStream>) -> Self {
        let process = stream.peer_process().and_then(|id| world.processes().watch(id));
        Self { rank, stream, process }
    }

    fn has_ended(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.has_ended()) || !self.stream.is_open()
    }
}

/// Default size of a rank's arena. Pages are allocated when touched, so this is address space, not
/// memory.
pub const DEFAULT_ARENA_BYTES: usize = 16 << 30;

impl SharedWorld {
    /// A world of threads of this process; element i is rank i's view.
    pub fn threads(
        world: &World,
        num_ranks: usize,
        arena_bytes: usize,
    ) -> Result<Vec<Self>, CommError> {
        let header = Header::new(num_ranks);
        let segments = (0..num_ranks)
            .map(|_| Ok(Some(new_segment(world, header, arena_bytes)?)))
            .collect::<Result<Vec<_>, CommError>>()?;
        let mut random = [0; 8];
        world.entropy().fill(&mut random);
        let job = format!("{}-{:016x}", world.processes().own_id(), u64::from_le_bytes(random));
        Ok((0..num_ranks)
            .map(|rank| {
                let names = (job.clone(), "threads");
                Self::new(world, Rank(rank), segments.clone(), Vec::new(), names)
            })
            .collect())
    }

    fn new(
        world: &World,
        rank: Rank,
        segments: Vec<Option<Segment>>,
        watched: Vec<(Rank, Box<dyn LocalStream>)>,
        (job, name): (String, &'static str),
    ) -> Self {
        let own = segments[rank.0].as_ref().expect("a rank sees its own memory");
        let arena = Arena::new(own);
        let num_local = segments.iter().flatten().count();
        let joins = |segment: &Segment| segment.word(header::FENCES).load(Ordering::Relaxed) == 1;
        Self {
            has_fences: segments.iter().flatten().all(joins),
            world: Arc::clone(world),
            rank,
            header: Header::new(segments.len()),
            arena,
            spin_policy: world.shared().spin_policy(num_local),
            num_long_waits: AtomicU64::new(0),
            heartbeats: Mutex::new(vec![(u64::MAX, Duration::ZERO); segments.len()]),
            watched: Mutex::new(
                watched
                    .into_iter()
                    .map(|(rank, stream)| Watched::new(world, rank, stream))
                    .collect(),
            ),
            expendable: OnceLock::new(),
            segments,
            job,
            name,
        }
    }

    /// Marks ranks as expendable; the first list counts.
    pub(crate) fn mark_expendable(&self, ranks: &[Rank]) {
        let _ = self.expendable.set(ranks.to_vec());
    }

    fn is_expendable(&self, rank: Rank) -> bool {
        self.expendable.get().is_some_and(|expendable| expendable.contains(&rank))
    }

    /// Whether an expendable rank has died.
    pub(crate) fn is_dead(&self, rank: Rank) -> bool {
        if !self.is_expendable(rank) {
            return false;
        }
        let watched = lock(&self.watched);
        watched.iter().any(|watched| watched.rank == rank && watched.has_ended())
    }

    /// New memory among the `survivors` of this host; all of them call this. Other ranks cannot
    /// reach it.
    pub(crate) fn in_next_epoch(
        &self,
        survivors: &[Rank],
        epoch: u64,
        timeout: Duration,
    ) -> Result<Self, CommError> {
        // The job name of the first epoch, and the number of this one.
        let job = format!("{}/{epoch}", self.job.split('/').next().unwrap_or_default());
        let is_peer = |rank: &Rank| *rank != self.rank && self.sees(*rank);
        let peers: Vec<Rank> = survivors.iter().copied().filter(is_peer).collect();
        let arena_bytes = self.own().bytes() - self.own().header_bytes();
        let exchange = SegmentExchange::listen(&self.world, &job, self.rank, self.num_ranks())?;
        let mut next = exchange.run(&peers, arena_bytes, timeout)?;
        next.name = self.name;
        Ok(next)
    }

    /// The rank that owns this view.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// World size.
    pub fn num_ranks(&self) -> usize {
        self.segments.len()
    }

    /// Whether this rank and `rank` share memory.
    pub fn sees(&self, rank: Rank) -> bool {
        self.segments[rank.0].is_some()
    }

    /// The allocator of this rank's own memory.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Number of groups that the header has flags for.
    pub fn max_groups(&self) -> u64 {
        header::MAX_GROUPS as u64
    }

    /// The segment of a rank of this host.
    #[inline]
    pub(crate) fn segment(&self, rank: Rank) -> &Segment {
        self.segments[rank.0].as_ref().expect("only ranks of this host take part")
    }

    /// The flight recorder of a rank of this host.
    pub(crate) fn record_region(&self, rank: Rank) -> Option<RecordRegion> {
        let segment = self.segments.get(rank.0)?.as_ref()?;
        Some(RecordRegion::new(segment.clone(), self.header.recorder()))
    }

    /// This rank's own segment.
    #[inline]
    pub(crate) fn own(&self) -> &Segment {
        self.arena.segment()
    }

    #[inline]
    fn line(&self, rank: Rank, group: u64, call: u64, num_signals: u32) -> &Line<AtomicU64> {
        self.segment(rank).line(Header::line(group, call, num_signals))
    }

    /// Publishes this rank's descriptor of a call with its first signal.
    #[inline]
    pub(crate) fn publish_descriptor(&self, group: u64, call: u64, descriptor: &CallDescriptor) {
        publish_descriptor(self.line(self.rank, group, call, 1), descriptor, counter(call, 1));
    }

    /// Publishes the buffer offsets without the signature.
    #[inline]
    pub(crate) fn publish_addresses(&self, group: u64, call: u64, descriptor: &CallDescriptor) {
        publish_addresses(self.line(self.rank, group, call, 1), descriptor, counter(call, 1));
    }

    /// Signals for the `num_signals`th time, which makes all earlier writes of this rank visible.
    #[inline]
    pub(crate) fn signal(&self, group: u64, call: u64, num_signals: u32) {
        raise(self.line(self.rank, group, call, num_signals), counter(call, num_signals));
    }

    /// Prefetches the line of an upcoming signal for writing.
    #[inline]
    pub(crate) fn fetch_line(&self, group: u64, call: u64, num_signals: u32) {
        self.own().fetch_line_for_writing(Header::line(group, call, num_signals));
    }

    /// Waits until `rank` has signalled `num_signals` times in a call.
    #[inline]
    pub(crate) fn wait_for_signal(
        &self,
        rank: Rank,
        group: u64,
        call: u64,
        num_signals: u32,
        timeout: Duration,
    ) -> Result<(), Interruption> {
        let line = self.line(rank, group, call, num_signals);
        let value = counter(call, num_signals);
        self.wait_until(rank, timeout, || has_reached(line, value))
    }

    /// Descriptor of `rank` in a call, after its first signal.
    #[inline]
    pub(crate) fn descriptor(&self, rank: Rank, group: u64, call: u64) -> CallDescriptor {
        read_descriptor(self.line(rank, group, call, 1))
    }

    /// Descriptor of `rank` in a call, if published and not yet overwritten.
    pub(crate) fn descriptor_in(
        &self,
        rank: Rank,
        group: u64,
        call: u64,
    ) -> Option<CallDescriptor> {
        let line = self.line(rank, group, call, 1);
        let is_there =
            has_reached(line, counter(call, 1)) && !has_reached(line, counter(call + 1, 0));
        is_there.then(|| read_descriptor(line))
    }

    /// Publishes that this rank has finished a call.
    pub(crate) fn finish(&self, group: u64, call: u64) {
        publish(self.own().word(Header::finished(group)), call);
    }

    /// Whether `rank` has finished a call.
    pub(crate) fn has_finished(&self, rank: Rank, group: u64, call: u64) -> bool {
        published(self.segment(rank).word(Header::finished(group))) >= call
    }

    /// Wakes those of `ranks` that sleep; called after a change that they may wait for.
    #[inline]
    pub(crate) fn wake(&self, ranks: impl IntoIterator<Item = Rank>) {
        self.fence_lightly();
        for rank in ranks {
            if rank != self.rank && self.sees(rank) {
                self.doorbell(rank).ring_if_asleep(|word| self.world.shared().wake(word));
            }
        }
    }

    /// A full fence towards ranks that issue one [for all](Self::fence).
    #[inline]
    fn fence_lightly(&self) {
        if self.has_fences {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    #[inline]
    fn doorbell(&self, rank: Rank) -> Doorbell<'_, AtomicU64> {
        let segment = self.segment(rank);
        Doorbell { asleep: segment.word(header::ASLEEP), rings: segment.word(header::RINGS) }
    }

    /// Whether `rank` has left the run in an orderly way.
    pub(crate) fn has_left(&self, rank: Rank) -> bool {
        let segment = self.segments[rank.0].as_ref();
        segment.is_some_and(|segment| segment.word(header::LEFT).load(Ordering::Acquire) == 1)
    }

    fn ring_doorbell(&self, rank: Rank) {
        let doorbell = self.doorbell(rank);
        doorbell.rings.fetch_add(1, Ordering::SeqCst);
        self.world.shared().wake(doorbell.rings);
    }

    /// Waits until `num_ranks` ranks have arrived at the starting line in the segment of `first`,
    /// and starts all at once. Only for measurements: there is no deadline.
    pub(crate) fn start_together(&self, first: Rank, num_ranks: usize) {
        let segment = self.segment(first);
        let (arrived, started) = (segment.word(header::ARRIVED), segment.word(header::STARTED));
        let previous = started.load(Ordering::SeqCst);
        if arrived.fetch_add(1, Ordering::SeqCst) + 1 == num_ranks as u64 {
            arrived.store(0, Ordering::SeqCst);
            started.store(previous + 1, Ordering::SeqCst);
        }
        let mut turn = 0_u32;
        while started.load(Ordering::Acquire) == previous {
            turn += 1;
            if turn < self.spin_policy.num_spins {
                std::hint::spin_loop();
            } else {
                self.world.shared().yield_now();
            }
        }
    }

    /// The first rank, not expendable, whose process ended without leaving the run.
    pub(crate) fn first_dead_rank(&self) -> Option<Rank> {
        let watched = lock(&self.watched);
        let needed = watched.iter().filter(|watched| !self.is_expendable(watched.rank));
        let ended = needed.filter(|watched| watched.has_ended());
        ended.map(|watched| watched.rank).find(|&rank| !self.has_left(rank))
    }
}

impl Drop for SharedWorld {
    fn drop(&mut self) {
        self.own().word(header::LEFT).store(1, Ordering::SeqCst);
        for rank in (0..self.segments.len()).map(Rank) {
            if rank != self.rank && self.sees(rank) {
                self.ring_doorbell(rank);
            }
        }
    }
}

impl fmt::Debug for SharedWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedWorld(rank {} of {})", self.rank, self.segments.len())
    }
}

/// Locks; a panic leaves no partial state here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_segment(world: &World, header: Header, arena_bytes: usize) -> Result<Segment, CommError> {
    let bytes =
        header.bytes() + arena_bytes.next_multiple_of(lockstep_platform::memory::PAGE_BYTES);
    let segment = world.shared().create(header.bytes(), bytes)?;
    let has_fences = world.shared().join_fences();
    segment.word(header::FENCES).store(u64::from(has_fences), Ordering::Relaxed);
    Header::write_process(&segment, world.processes().own_id(), &world.host().name());
    Ok(segment)
}

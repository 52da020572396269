//! Ranks that see each other's memory: threads of one process, or processes of one host.
//!
//! Every rank has one segment, and all ranks have mapped all segments. Whether a segment is a piece
//! of the heap or a descriptor that came over a socket makes no difference once it is mapped, so
//! threads and processes run the same code.
//!
//! - `header`: what lies where at the start of a segment
//! - `waiting`: spin, yield, sleep; deadlines and deaths; `settling`: one verdict for all
//! - `meeting`: how processes find each other and pass their segments
//! - `ring`: messages through shared memory, for schedules that send and receive

mod header;
mod meeting;
mod ring;
mod settling;
mod waiting;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Arena, LocalStream, Patience, ProcessWatch, Segment, World};

use crate::error::{CommError, Interruption};
use crate::flags::{
    Bell, Card, Line, card, counter, has_reached, publish, published, raise, show, show_places,
};
use crate::recorder::Place;
use header::Header;
pub use meeting::Meeting;
pub use ring::SharedTransport;
pub(crate) use waiting::ended;

/// One rank's view of the memory that it shares with others.
pub struct SharedWorld {
    world: World,
    rank: Rank,
    header: Header,
    /// By world rank; nothing for ranks on other hosts.
    segments: Vec<Option<Segment>>,
    /// Gives out this rank's own memory.
    arena: Arc<Arena>,
    patience: Patience,
    /// How often this rank has waited for longer than a few looks.
    pub(crate) num_long_waits: AtomicU64,
    /// Whether sleepers make everyone pass a fence, so that those who wake them need none.
    has_fences: bool,
    /// Ranks in other processes.
    watched: Mutex<Vec<Watched>>,
    /// Ranks whose death concerns nobody but those who wait for them.
    spared: OnceLock<Vec<Rank>>,
    /// What these ranks, and nobody else on any of the hosts, call their run.
    job: String,
    name: &'static str,
}

/// A rank in another process, and the two signs of its end: the stream to it closes, and where the
/// system gives one out, the handle of the process says so.
struct Watched {
    rank: Rank,
    stream: Box<dyn LocalStream>,
    life: Option<Box<dyn ProcessWatch>>,
}

impl Watched {
    fn new(world: &World, rank: Rank, stream: Box<dyn LocalStream>) -> Self {
        let life = stream.peer_process().and_then(|id| world.processes().watch(id));
        Self { rank, stream, life }
    }

    fn has_ended(&self) -> bool {
        self.life.as_ref().is_some_and(|life| life.has_ended()) || !self.stream.is_open()
    }
}

/// How many bytes a rank's arena has unless asked otherwise. Memory is used only once touched, so
/// this is room in the address space, not in the machine.
pub const DEFAULT_ARENA_BYTES: usize = 16 << 30;

impl SharedWorld {
    /// As many ranks as asked for, for threads of this process; element i is rank i's view.
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
            patience: world.shared().patience(num_local),
            num_long_waits: AtomicU64::new(0),
            watched: Mutex::new(
                watched
                    .into_iter()
                    .map(|(rank, stream)| Watched::new(world, rank, stream))
                    .collect(),
            ),
            spared: OnceLock::new(),
            segments,
            job,
            name,
        }
    }

    /// The death of these ranks concerns nobody any more but those who wait for them; the first
    /// list counts.
    pub(crate) fn spare(&self, ranks: &[Rank]) {
        let _ = self.spared.set(ranks.to_vec());
    }

    fn is_spared(&self, rank: Rank) -> bool {
        self.spared.get().is_some_and(|spared| spared.contains(&rank))
    }

    /// Whether a rank has died that the others can do without.
    pub(crate) fn is_gone(&self, rank: Rank) -> bool {
        if !self.is_spared(rank) {
            return false;
        }
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.iter().any(|watched| watched.rank == rank && watched.has_ended())
    }

    /// New memory among those of `survivors` that share this; all of them ask for it. Whoever is
    /// left out cannot reach it, whatever it still writes.
    pub(crate) fn renewed(
        &self,
        survivors: &[Rank],
        epoch: u64,
        timeout: Duration,
    ) -> Result<Self, CommError> {
        // The name of the first epoch, and after it the number.
        let job = format!("{}/{epoch}", self.job.split('/').next().unwrap_or_default());
        let is_peer = |rank: &Rank| *rank != self.rank && self.sees(*rank);
        let peers: Vec<Rank> = survivors.iter().copied().filter(is_peer).collect();
        let arena_bytes = self.own().bytes() - self.own().header_bytes();
        let meeting = Meeting::open(&self.world, &job, self.rank, self.num_ranks())?;
        let mut renewed = meeting.meet(&peers, arena_bytes, timeout)?;
        renewed.name = self.name;
        Ok(renewed)
    }

    /// Whose view it is.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks the world has, seen or not.
    pub fn num_ranks(&self) -> usize {
        self.segments.len()
    }

    /// Whether this rank and `rank` see each other's memory.
    pub fn sees(&self, rank: Rank) -> bool {
        self.segments[rank.0].is_some()
    }

    /// The allocator of this rank's own memory.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// How many groups the header has flags for.
    pub fn max_groups(&self) -> u64 {
        header::MAX_GROUPS as u64
    }

    /// The memory of a rank that is seen.
    #[inline]
    pub(crate) fn segment(&self, rank: Rank) -> &Segment {
        self.segments[rank.0].as_ref().expect("only ranks that are seen take part")
    }

    /// Where the last calls of a rank that is seen are written down.
    pub(crate) fn flight(&self, rank: Rank) -> Option<Place> {
        let segment = self.segments.get(rank.0)?.as_ref()?;
        Some(Place::new(segment.clone(), self.header.flight()))
    }

    /// This rank's own memory.
    #[inline]
    pub(crate) fn own(&self) -> &Segment {
        self.arena.segment()
    }

    #[inline]
    fn line(&self, rank: Rank, group: u64, call: u64, num_signals: u32) -> &Line<AtomicU64> {
        self.segment(rank).line(Header::line(group, call, num_signals))
    }

    /// Shows this rank's card for a call with its first signal.
    #[inline]
    pub(crate) fn show(&self, group: u64, call: u64, card: &Card) {
        show(self.line(self.rank, group, call, 1), card, counter(call, 1));
    }

    /// The same without what is called.
    #[inline]
    pub(crate) fn show_places(&self, group: u64, call: u64, card: &Card) {
        show_places(self.line(self.rank, group, call, 1), card, counter(call, 1));
    }

    /// Signals for the `num_signals`th time: everything this rank did before is visible.
    #[inline]
    pub(crate) fn signal(&self, group: u64, call: u64, num_signals: u32) {
        raise(self.line(self.rank, group, call, num_signals), counter(call, num_signals));
    }

    /// Starts to fetch the line of a signal that comes soon.
    #[inline]
    pub(crate) fn fetch_line(&self, group: u64, call: u64, num_signals: u32) {
        self.own().fetch_line_for_writing(Header::line(group, call, num_signals));
    }

    /// Waits until `rank` has signalled so often in a call.
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

    /// What `rank` showed in a call, once it has signalled in it.
    #[inline]
    pub(crate) fn card(&self, rank: Rank, group: u64, call: u64) -> Card {
        card(self.line(rank, group, call, 1))
    }

    /// What `rank` showed in a call, if it has and is not yet in the one after the next.
    pub(crate) fn card_in(&self, rank: Rank, group: u64, call: u64) -> Option<Card> {
        let line = self.line(rank, group, call, 1);
        let is_there =
            has_reached(line, counter(call, 1)) && !has_reached(line, counter(call + 1, 0));
        is_there.then(|| card(line))
    }

    /// Says that this rank is through with a call whose schedule lets ranks run ahead.
    pub(crate) fn finish(&self, group: u64, call: u64) {
        publish(self.own().word(Header::finished(group)), call);
    }

    /// Whether `rank` is through with a call.
    pub(crate) fn has_finished(&self, rank: Rank, group: u64, call: u64) -> bool {
        published(self.segment(rank).word(Header::finished(group))) >= call
    }

    /// Wakes those of `ranks` that sleep, after something they may wait for was changed.
    #[inline]
    pub(crate) fn wake(&self, ranks: impl IntoIterator<Item = Rank>) {
        if self.has_fences {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        for rank in ranks {
            if rank != self.rank && self.sees(rank) {
                self.bell(rank).ring_if_asleep(|word| self.world.shared().wake(word));
            }
        }
    }

    #[inline]
    fn bell(&self, rank: Rank) -> Bell<'_, AtomicU64> {
        let segment = self.segment(rank);
        Bell { asleep: segment.word(header::ASLEEP), rings: segment.word(header::RINGS) }
    }

    /// Whether `rank` has left the run in good order.
    pub(crate) fn has_left(&self, rank: Rank) -> bool {
        let segment = self.segments[rank.0].as_ref();
        segment.is_some_and(|segment| segment.word(header::LEFT).load(Ordering::Acquire) == 1)
    }

    fn ring(&self, rank: Rank) {
        let bell = self.bell(rank);
        bell.rings.fetch_add(1, Ordering::SeqCst);
        self.world.shared().wake(bell.rings);
    }

    /// Waits until `num_ranks` ranks stand at the starting line in the memory of `first`, and lets
    /// all go at once. Only for measurements: nothing is checked, and nobody may be missing.
    pub(crate) fn start_together(&self, first: Rank, num_ranks: usize) {
        let segment = self.segment(first);
        let (arrived, started) = (segment.word(header::ARRIVED), segment.word(header::STARTED));
        let seen = started.load(Ordering::SeqCst);
        if arrived.fetch_add(1, Ordering::SeqCst) + 1 == num_ranks as u64 {
            arrived.store(0, Ordering::SeqCst);
            started.store(seen + 1, Ordering::SeqCst);
        }
        let mut turn = 0_u32;
        while started.load(Ordering::Acquire) == seen {
            turn += 1;
            if turn < self.patience.num_spins {
                std::hint::spin_loop();
            } else {
                self.world.shared().yield_now();
            }
        }
    }

    /// The first of the watched ranks whose process has ended without a goodbye, and that all need.
    pub(crate) fn first_dead(&self) -> Option<Rank> {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let needed = watched.iter().filter(|watched| !self.is_spared(watched.rank));
        let ended = needed.filter(|watched| watched.has_ended());
        ended.map(|watched| watched.rank).find(|&rank| !self.has_left(rank))
    }
}

impl Drop for SharedWorld {
    fn drop(&mut self) {
        self.own().word(header::LEFT).store(1, Ordering::SeqCst);
        for rank in (0..self.segments.len()).map(Rank) {
            if rank != self.rank && self.sees(rank) {
                self.ring(rank);
            }
        }
    }
}

impl fmt::Debug for SharedWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedWorld(rank {} of {})", self.rank, self.segments.len())
    }
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

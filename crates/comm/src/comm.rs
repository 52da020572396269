//! [`Comm`]: the communicator of one rank in a group.
//!
//! A [`Comm`] is a handle. Clones made by [`Comm::using`] and [`Comm::within`] refer to the same
//! rank of the same group with another algorithm or deadline. All ranks of the group make every
//! call, in the same order.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockstep_mesh::{Group, Rank};
use lockstep_platform::World;
use lockstep_schedule::collective::overrides::AlgorithmOverrides;
use lockstep_schedule::{Algorithm, Contributions, Costs};

use crate::background::InFlight;
use crate::buffer::ArenaBuffer;
use crate::channel::Channel;
use crate::counters::Counters;
use crate::element::Element;
use crate::endpoint::Endpoint;
use crate::engine::Engine;
use crate::error::CommError;
use crate::label::Label;
use crate::membership::Membership;
use crate::recorder::SequenceBlock;
use crate::schedule_cache::ScheduleCache;
use crate::transport::Channels;
use crate::transport::shared::{
    DEFAULT_ARENA_BYTES, SegmentExchange, SharedTransport, SharedWorld,
};

/// Default deadline of a wait for a peer.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_mins(1);

/// Communicator of one rank in a group.
#[derive(Clone)]
pub struct Comm {
    pub(crate) core: Arc<Core>,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) canonical: bool,
    pub(crate) timeout: Duration,
    pub(crate) channel: Channel,
    pub(crate) label: Label,
    /// Whether calls are neither checked nor recorded.
    pub(crate) bare: bool,
}

/// State that all handles of a communicator share.
pub(crate) struct Core {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) membership: Membership,
    pub(crate) state: Mutex<State>,
    /// Background collectives, sends and receives in flight.
    pub(crate) calls_in_flight: InFlight,
    pub(crate) sends_in_flight: InFlight,
    pub(crate) recvs_in_flight: InFlight,
}

/// State that changes from call to call.
pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) schedules: ScheduleCache,
    pub(crate) counters: Counters,
    /// Sequence numbers of call records.
    pub(crate) sequences: SequenceBlock,
    /// The first error; every later call of the group returns it.
    pub(crate) failed: Option<CommError>,
}

/// Options of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Size of the arena for shared buffers. Pages are allocated when touched.
    pub arena_bytes: usize,
    /// Deadline of a wait for a peer.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { arena_bytes: DEFAULT_ARENA_BYTES, timeout: DEFAULT_TIMEOUT }
    }
}

impl Comm {
    /// A world of threads of this process; element i is for the thread of rank i.
    pub fn threads(
        world: &World,
        num_ranks: usize,
        options: &Options,
    ) -> Result<Vec<Self>, CommError> {
        let views = SharedWorld::threads(world, num_ranks, options.arena_bytes)?;
        let end =
            |view| Self::world(world, shared_channels(view)).map(|end| end.within(options.timeout));
        views.into_iter().map(end).collect()
    }

    /// This process's communicator in a world of processes on one host. `job` is a unique name that
    /// all of them know.
    pub fn processes(
        world: &World,
        job: &str,
        rank: Rank,
        num_ranks: usize,
        options: &Options,
    ) -> Result<Self, CommError> {
        let peers: Vec<Rank> = (0..num_ranks).map(Rank).filter(|&peer| peer != rank).collect();
        let exchange = SegmentExchange::listen(world, job, rank, num_ranks)?;
        let view = exchange.run(&peers, options.arena_bytes, options.timeout)?;
        Ok(Self::world(world, shared_channels(view))?.within(options.timeout))
    }

    /// The group of all ranks over the given channels.
    pub fn world(world: &World, channels: Channels) -> Result<Self, CommError> {
        let endpoint = Arc::new(Endpoint::new(world, channels));
        let group = Group::all(endpoint.num_ranks());
        let contributions = Contributions::one_each(endpoint.num_ranks());
        Ok(Self::of_group(&endpoint, &group, "world", contributions))
    }

    fn of_group(
        endpoint: &Arc<Endpoint>,
        group: &Group,
        name: &str,
        contributions: Contributions,
    ) -> Self {
        let group_rank = group.group_rank(endpoint.rank()).expect("a rank's own group");
        let ranks = group.ranks().to_vec();
        let num_inputs = contributions.num_inputs(group_rank);
        let schedules = ScheduleCache::new(endpoint, &ranks, group_rank, contributions);
        let (id, name) = (endpoint.next_group(), name.to_owned());
        endpoint.recorder().record_group(id, &name, ranks.len(), ranks[0].0);
        let membership = Membership { ranks, group_rank, id, name, num_inputs };
        let engine = Engine::default();
        let counters = Counters::default();
        let sequences = SequenceBlock::default();
        let state = State { engine, schedules, counters, sequences, failed: None };
        let core = Core {
            endpoint: Arc::clone(endpoint),
            membership,
            state: Mutex::new(state),
            calls_in_flight: InFlight::new(endpoint.world()),
            sends_in_flight: InFlight::new(endpoint.world()),
            recvs_in_flight: InFlight::new(endpoint.world()),
        };
        Self {
            core: Arc::new(core),
            algorithm: None,
            canonical: false,
            timeout: DEFAULT_TIMEOUT,
            channel: Channel::Caller,
            label: Label::NONE,
            bare: false,
        }
    }

    /// Communicator of this rank's group in a partition of the world, for example of all groups
    /// along an axis of a mesh. Every rank of the world makes the same partitions in the same
    /// order. Errors call the group `name`.
    pub fn split(&self, partition: &[Group], name: &str) -> Result<Self, CommError> {
        let rank = self.rank();
        let mut own = partition.iter().filter(|group| group.contains(rank));
        let (Some(group), None) = (own.next(), own.next()) else {
            return Err(self.invalid("split", "every rank is in exactly one group of a partition"));
        };
        let contributions = Contributions::one_each(group.ranks().len());
        self.new_group(group, name, contributions)
    }

    /// A new group of the same ranks in which rank i contributes the sums of the leaves `shares[i]`
    /// instead of one vector: one input for each of its maximal aligned blocks of leaves,
    /// concatenated (see [`Contributions::of_leaves`]). Sums then have the order of the tree over
    /// leaves, independent of their owners. Every rank makes the same groups in the same order.
    pub fn summing(&self, shares: &[Range<usize>], name: &str) -> Result<Self, CommError> {
        if shares.len() != self.group_size() {
            let rule = format!("{} ranks need one share each", self.group_size());
            return Err(self.invalid("summing", &rule));
        }
        let group = Group::new(self.ranks().to_vec());
        self.new_group(&group, name, Contributions::of_leaves(shares))
    }

    fn new_group(
        &self,
        group: &Group,
        name: &str,
        contributions: Contributions,
    ) -> Result<Self, CommError> {
        let comm = Self::of_group(&self.core.endpoint, group, name, contributions);
        let max_groups = self.core.endpoint.shared().map_or(u64::MAX, |shared| shared.max_groups());
        if comm.core.membership.id >= max_groups {
            let rule = format!("a world has flags for {max_groups} groups");
            return Err(self.invalid("split", &rule));
        }
        Ok(comm.within(self.timeout))
    }

    /// A new group of the `survivors` of a failure, in the same processes. All of them call this
    /// with the same list, which includes this rank, within the deadline. Ranks keep their numbers.
    /// The old groups cannot be used any more, and buffers are allocated anew: a rank that was only
    /// stopped may resume and write into the old buffers, but cannot reach the new ones.
    pub fn reform(&self, survivors: &[Rank]) -> Result<Self, CommError> {
        let is_known = |rank: &Rank| rank.0 < self.core.endpoint.num_ranks();
        if !survivors.is_sorted_by(|a, b| a < b)
            || !survivors.contains(&self.rank())
            || !survivors.iter().all(is_known)
        {
            let rule = "survivors are ranks of the world in order, this one among them";
            return Err(self.invalid("reform", rule));
        }
        // Calls in flight end with the verdict; their buffers are in the old memory.
        self.core.calls_in_flight.drain();
        self.core.sends_in_flight.drain();
        self.core.recvs_in_flight.drain();
        let endpoint = Arc::new(self.core.endpoint.in_next_epoch(survivors, self.timeout)?);
        let (group, contributions) =
            (Group::new(survivors.to_vec()), Contributions::one_each(survivors.len()));
        let comm = Self::of_group(&endpoint, &group, "world", contributions).within(self.timeout);
        comm.barrier()?;
        Ok(comm)
    }

    /// Number of failures that the ranks have recovered from in place ([`Comm::reform`]).
    pub fn epoch(&self) -> u64 {
        self.core.endpoint.epoch()
    }

    /// A handle whose calls use `algorithm`.
    pub fn using(&self, algorithm: Algorithm) -> Self {
        Self { algorithm: Some(algorithm), ..self.clone() }
    }

    /// Fixes algorithms of the calls of groups that this rank makes from now on; an algorithm that
    /// [`Comm::using`] requests comes first. All ranks fix the same ones, and the first call counts.
    pub fn fix_algorithms(&self, overrides: AlgorithmOverrides) {
        self.core.endpoint.fix_algorithms(overrides);
    }

    /// A handle whose sums use the canonical order, so that their bits do not depend on the
    /// transport or on the placement of ranks. An algorithm with another order is rejected.
    pub fn canonical(&self) -> Self {
        Self { canonical: true, ..self.clone() }
    }

    /// A handle whose calls wait at most `timeout` for a peer.
    pub fn within(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Deadline of a wait for a peer.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Costs by which this group selects algorithms, and the memory domain of each rank.
    pub fn costs(&self) -> (Costs, Vec<usize>) {
        let domains = self.core.endpoint.domains();
        let of_ranks = self.core.membership.ranks.iter().map(|rank| domains[rank.0]).collect();
        (self.lock().schedules.costs().clone(), of_ranks)
    }

    /// A handle whose calls carry `label` in reports.
    pub fn about(&self, label: Label) -> Self {
        Self { label, ..self.clone() }
    }

    /// A handle whose calls are neither checked nor recorded, only for measuring that overhead. All
    /// ranks of the group must use one for the same calls.
    #[doc(hidden)]
    pub fn bare(&self) -> Self {
        Self { bare: true, ..self.clone() }
    }

    /// Sets the folder for flight recorder dumps, which `lockstep doctor` reads. After a failure
    /// this rank dumps its last calls; the rank that detected the failure also dumps those of the
    /// failed rank, if it shares its memory. The first folder counts, for all groups of the rank.
    pub fn record_into(&self, dir: &Path) {
        self.core.endpoint.dump_into(dir);
    }

    /// Marks ranks as expendable: their death no longer fails the group, only a message to or from
    /// them, with [`CommError::Gone`]. For ranks with a replacement; no collective may include them
    /// any more. The first list counts, for all groups of this rank.
    pub fn mark_expendable(&self, group_ranks: &[usize]) {
        let ranks: Vec<Rank> =
            group_ranks.iter().map(|group_rank| self.ranks()[*group_rank]).collect();
        self.core.endpoint.mark_expendable(&ranks);
    }

    /// Global rank of this worker.
    pub fn rank(&self) -> Rank {
        self.core.endpoint.rank()
    }

    /// Rank of this worker within the group.
    pub fn group_rank(&self) -> usize {
        self.core.membership.group_rank
    }

    /// Number of ranks in the group.
    pub fn group_size(&self) -> usize {
        self.core.membership.ranks.len()
    }

    /// Global ranks of the group, ordered by group rank.
    pub fn ranks(&self) -> &[Rank] {
        &self.core.membership.ranks
    }

    /// Platform services that this rank runs on.
    pub fn platform(&self) -> &World {
        self.core.endpoint.world()
    }

    /// Name of the group in errors.
    pub fn name(&self) -> &str {
        &self.core.membership.name
    }

    /// Name of the transport: `threads`, `shm`, `tcp`, `shm+tcp`.
    pub fn transport(&self) -> &'static str {
        self.core.endpoint.transport_name()
    }

    /// Calls and traffic of this rank in the group so far.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// Allocates `count` zeros in shared memory, or in private memory without peers on this host
    /// ([`Comm::shares_memory`]).
    pub fn allocate<T: Element>(&self, count: usize) -> Result<ArenaBuffer<T>, CommError> {
        let arena = self.core.endpoint.arena()?;
        let bytes = count.saturating_mul(size_of::<T>());
        let block = arena.allocate(bytes).ok_or_else(|| CommError::ArenaFull {
            requested_bytes: bytes,
            largest_bytes: arena.largest_hole_bytes(),
        })?;
        Ok(ArenaBuffer::new(block, count))
    }

    /// Whether all ranks of the group share memory.
    pub fn shares_memory(&self) -> bool {
        let shared = self.core.endpoint.shared();
        shared.is_some_and(|shared| self.ranks().iter().all(|&rank| shared.sees(rank)))
    }

    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // A panic during a call leaves counters and caches unchanged.
        self.core.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn invalid(&self, call: &str, rule: &str) -> CommError {
        let (call, group, rule) = (call.to_owned(), self.name().to_owned(), rule.to_owned());
        CommError::Invalid { call, group, rule }
    }
}

fn shared_channels(view: SharedWorld) -> Channels {
    Channels::new(SharedTransport::channels(&Arc::new(view)))
}

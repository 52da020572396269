//! The face of the library: one rank's end of a group.
//!
//! A [`Comm`] is a handle. Copies of it made by [`Comm::using`] and [`Comm::within`] speak for the
//! same end of the same group with another algorithm or another deadline. Every operation is made
//! by all members of the group, in the same order.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockstep_mesh::{Group, Rank};
use lockstep_platform::World;
use lockstep_schedule::{Addends, Algorithm, Costs};

use crate::background::InFlight;
use crate::buffer::ArenaBuffer;
use crate::counters::Counters;
use crate::element::Element;
use crate::engine::{Engine, Team};
use crate::error::CommError;
use crate::label::Label;
use crate::node::{Lane, Node};
use crate::planner::Planner;
use crate::recorder::Numbers;
use crate::transport::Wires;
use crate::transport::shared::{DEFAULT_ARENA_BYTES, Meeting, SharedTransport, SharedWorld};

/// How long a call waits for a peer unless told otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_mins(1);

/// One rank's end of a group.
#[derive(Clone)]
pub struct Comm {
    pub(crate) core: Arc<Core>,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) canonical: bool,
    pub(crate) timeout: Duration,
    pub(crate) lane: Lane,
    pub(crate) label: Label,
    /// Whether calls are neither compared nor written down.
    pub(crate) bare: bool,
}

/// What all handles of one end share.
pub(crate) struct Core {
    pub(crate) node: Arc<Node>,
    pub(crate) team: Team,
    pub(crate) state: Mutex<State>,
    /// Collective calls in the background, messages that leave and messages that come.
    pub(crate) calls_in_flight: InFlight,
    pub(crate) sends_in_flight: InFlight,
    pub(crate) recvs_in_flight: InFlight,
}

/// What changes from call to call.
pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) planner: Planner,
    pub(crate) counters: Counters,
    /// Under which calls are written down.
    pub(crate) numbers: Numbers,
    /// The first error; after it the group is of no use.
    pub(crate) failed: Option<CommError>,
}

/// How a world of ranks is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Room for buffers that ranks exchange; memory is used only once it is touched.
    pub arena_bytes: usize,
    /// How long ranks wait for each other.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { arena_bytes: DEFAULT_ARENA_BYTES, timeout: DEFAULT_TIMEOUT }
    }
}

impl Comm {
    /// A world of ranks that are threads of this process; element i is for the thread of rank i.
    pub fn threads(
        world: &World,
        num_ranks: usize,
        options: &Options,
    ) -> Result<Vec<Self>, CommError> {
        let views = SharedWorld::threads(world, num_ranks, options.arena_bytes)?;
        let end =
            |view| Self::world(world, shared_wires(view)).map(|end| end.within(options.timeout));
        views.into_iter().map(end).collect()
    }

    /// This process's end of a world of processes on one host. `job` is a name that all of them,
    /// and nobody else, use.
    pub fn processes(
        world: &World,
        job: &str,
        rank: Rank,
        num_ranks: usize,
        options: &Options,
    ) -> Result<Self, CommError> {
        let peers: Vec<Rank> = (0..num_ranks).map(Rank).filter(|&peer| peer != rank).collect();
        let meeting = Meeting::open(world, job, rank, num_ranks)?;
        let view = meeting.meet(&peers, options.arena_bytes, options.timeout)?;
        Ok(Self::world(world, shared_wires(view))?.within(options.timeout))
    }

    /// The group of all ranks over the given wires.
    pub fn world(world: &World, wires: Wires) -> Result<Self, CommError> {
        let node = Arc::new(Node::new(world, wires));
        let group = Group::all(node.num_ranks());
        let addends = Addends::one_each(node.num_ranks());
        Ok(Self::of_group(&node, &group, "world", addends))
    }

    fn of_group(node: &Arc<Node>, group: &Group, name: &str, addends: Addends) -> Self {
        let position = group.group_rank(node.rank()).expect("a rank's own group");
        let members = group.ranks().to_vec();
        let num_inputs = addends.num_inputs(position);
        let planner = Planner::new(node, &members, position, addends);
        let (id, name) = (node.next_group(), name.to_owned());
        node.recorder().name(id, &name, members.len(), members[0].0);
        let team = Team { members, position, id, name, num_inputs };
        let engine = Engine::default();
        let counters = Counters::default();
        let numbers = Numbers::default();
        let state = State { engine, planner, counters, numbers, failed: None };
        let core = Core {
            node: Arc::clone(node),
            team,
            state: Mutex::new(state),
            calls_in_flight: InFlight::new(node.world()),
            sends_in_flight: InFlight::new(node.world()),
            recvs_in_flight: InFlight::new(node.world()),
        };
        Self {
            core: Arc::new(core),
            algorithm: None,
            canonical: false,
            timeout: DEFAULT_TIMEOUT,
            lane: Lane::Caller,
            label: Label::NONE,
            bare: false,
        }
    }

    /// This rank's end of its part of a partition of the world, for example of all groups along an
    /// axis of a mesh. Every rank of the world makes the same partitions in the same order; `name`
    /// is how errors call the group.
    pub fn split(&self, partition: &[Group], name: &str) -> Result<Self, CommError> {
        let rank = self.rank();
        let mut own = partition.iter().filter(|group| group.contains(rank));
        let (Some(group), None) = (own.next(), own.next()) else {
            return Err(self.invalid("split", "every rank is in exactly one group of a partition"));
        };
        let addends = Addends::one_each(group.ranks().len());
        self.new_group(group, name, addends)
    }

    /// The same members as a new group in which rank i brings the sums of the leaves `shares[i]`
    /// instead of one vector: one input for each of its maximal aligned blocks of leaves, one
    /// behind the other (see [`Addends::of_leaves`]). Sums then have the order of the tree over
    /// leaves, whoever holds them. Every member makes the same groups in the same order.
    pub fn summing(&self, shares: &[Range<usize>], name: &str) -> Result<Self, CommError> {
        if shares.len() != self.group_size() {
            let rule = format!("{} members have shares", self.group_size());
            return Err(self.invalid("summing", &rule));
        }
        let group = Group::new(self.ranks().to_vec());
        self.new_group(&group, name, Addends::of_leaves(shares))
    }

    fn new_group(&self, group: &Group, name: &str, addends: Addends) -> Result<Self, CommError> {
        let comm = Self::of_group(&self.core.node, group, name, addends);
        let max_groups = self.core.node.shared().map_or(u64::MAX, |shared| shared.max_groups());
        if comm.core.team.id >= max_groups {
            let rule = format!("a world has flags for {max_groups} groups");
            return Err(self.invalid("split", &rule));
        }
        Ok(comm.within(self.timeout))
    }

    /// A new group of the `survivors` of a failure, in the same processes. All of them call this
    /// with the same list, which includes this rank; they get there within the deadline or not at
    /// all. Ranks keep their numbers. The old groups are of no use any more, and buffers are
    /// allocated anew: a rank that was only frozen may wake up and go on writing into the old ones,
    /// but it reaches nothing of the new group.
    pub fn reform(&self, survivors: &[Rank]) -> Result<Self, CommError> {
        let is_known = |rank: &Rank| rank.0 < self.core.node.num_ranks();
        if !survivors.is_sorted_by(|a, b| a < b)
            || !survivors.contains(&self.rank())
            || !survivors.iter().all(is_known)
        {
            let rule = "survivors are ranks of the world in order, this one among them";
            return Err(self.invalid("reform", rule));
        }
        // What is in flight ends by the verdict; its buffers lie in the old memory.
        self.core.calls_in_flight.drain();
        self.core.sends_in_flight.drain();
        self.core.recvs_in_flight.drain();
        let node = Arc::new(self.core.node.renewed(survivors, self.timeout)?);
        let (group, addends) = (Group::new(survivors.to_vec()), Addends::one_each(survivors.len()));
        let comm = Self::of_group(&node, &group, "world", addends).within(self.timeout);
        comm.barrier()?;
        Ok(comm)
    }

    /// Which of the groups of ranks this one belongs to that were formed one after the other,
    /// counted from 0.
    pub fn epoch(&self) -> u64 {
        self.core.node.epoch()
    }

    /// The same end, with calls carried out by `algorithm`.
    pub fn using(&self, algorithm: Algorithm) -> Self {
        Self { algorithm: Some(algorithm), ..self.clone() }
    }

    /// The same end, with sums in canonical order only, so that their bits do not depend on the
    /// transport, or on how ranks lie on hosts. An algorithm that adds otherwise is refused.
    pub fn canonical(&self) -> Self {
        Self { canonical: true, ..self.clone() }
    }

    /// The same end, with calls that wait no longer than `timeout` for a peer.
    pub fn within(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// How long calls wait for a peer.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What algorithms are chosen by in this group: what moving bytes costs, as far as it was
    /// measured, and who sees whose memory (members with the same number).
    pub fn costs(&self) -> (Costs, Vec<usize>) {
        let domains = self.core.node.domains();
        let of_members = self.core.team.members.iter().map(|rank| domains[rank.0]).collect();
        (self.lock().planner.costs().clone(), of_members)
    }

    /// The same end, with calls that are made for what `label` says, which is what reports call
    /// them then.
    pub fn about(&self, label: Label) -> Self {
        Self { label, ..self.clone() }
    }

    /// The same end, with calls whose signatures are not compared and that are not written down:
    /// only for measuring what that costs. All members of the group must make the same.
    #[doc(hidden)]
    pub fn bare(&self) -> Self {
        Self { bare: true, ..self.clone() }
    }

    /// After a failure the last calls of this rank are written into a file of this folder, which
    /// `lockstep doctor` reads; and those of the culprit, by whoever noticed and can. The first
    /// folder named counts, for all groups of the rank.
    pub fn record_into(&self, dir: &Path) {
        self.core.node.dump_into(dir);
    }

    /// The death of the members at these positions no longer ends what all do together: only a
    /// message to or from them fails then, with [`CommError::Gone`]. For members that have somebody
    /// to take their place; no call of a group may need them any more. The first list counts, for
    /// all groups of this rank.
    pub fn spare(&self, positions: &[usize]) {
        let ranks: Vec<Rank> = positions.iter().map(|position| self.ranks()[*position]).collect();
        self.core.node.spare(&ranks);
    }

    /// This rank's number in the world.
    pub fn rank(&self) -> Rank {
        self.core.node.rank()
    }

    /// Rank of this worker within the group.
    pub fn group_rank(&self) -> usize {
        self.core.team.position
    }

    /// Number of ranks in the group.
    pub fn group_size(&self) -> usize {
        self.core.team.members.len()
    }

    /// Global ranks of the group, ordered by group rank.
    pub fn ranks(&self) -> &[Rank] {
        &self.core.team.members
    }

    /// What errors call the group.
    pub fn name(&self) -> &str {
        &self.core.team.name
    }

    /// How bytes travel: `threads`, `shm`, `tcp`.
    pub fn transport(&self) -> &'static str {
        self.core.node.transport_name()
    }

    /// What this end has done so far.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// A buffer of `count` zeros where the other ranks of the host can reach it, if any can; see
    /// [`Comm::shares_memory`].
    pub fn allocate<T: Element>(&self, count: usize) -> Result<ArenaBuffer<T>, CommError> {
        let arena = self.core.node.arena()?;
        let bytes = count.saturating_mul(size_of::<T>());
        let block = arena.allocate(bytes).ok_or_else(|| CommError::ArenaFull {
            wanted_bytes: bytes,
            largest_bytes: arena.largest_hole_bytes(),
        })?;
        Ok(ArenaBuffer::new(block, count))
    }

    /// Whether all members see each other's memory.
    pub fn shares_memory(&self) -> bool {
        let shared = self.core.node.shared();
        shared.is_some_and(|shared| self.ranks().iter().all(|&rank| shared.sees(rank)))
    }

    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // A panic inside a call leaves counters and caches as they were before it.
        self.core.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn invalid(&self, call: &str, rule: &str) -> CommError {
        let (call, group, rule) = (call.to_owned(), self.name().to_owned(), rule.to_owned());
        CommError::Invalid { call, group, rule }
    }
}

fn shared_wires(view: SharedWorld) -> Wires {
    Wires::of(SharedTransport::lanes(&Arc::new(view)))
}

//! One rank of the world: its wires, its memory, and what all its groups share.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::memory::PAGE_BYTES;
use lockstep_platform::{Arena, World};
use lockstep_tensor::Isa;

use crate::background::Background;
use crate::error::{CommError, Interruption};
use crate::probe::Measured;
use crate::recorder::{Dump, Place, Recorder, file_name};
use crate::transport::shared::{DEFAULT_ARENA_BYTES, SharedWorld};
use crate::transport::{Envelope, Renewal, Round, Transport, Wires};
use crate::verdict::{Process, Verdict};

/// Which set of wires a call uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// The caller's thread runs it.
    Caller,
    /// The background thread runs it.
    Background,
    /// It sends a message from one rank to another, whoever runs it.
    Sends,
    /// It receives one.
    Recvs,
}

/// One rank of the world.
pub(crate) struct Node {
    world: World,
    rank: Rank,
    domains: Vec<usize>,
    transport_name: &'static str,
    shared: Option<Arc<SharedWorld>>,
    caller: Mutex<Box<dyn Transport>>,
    background: Mutex<Box<dyn Transport>>,
    sends: Mutex<Box<dyn Transport>>,
    recvs: Mutex<Box<dyn Transport>>,
    /// The threads for calls, for messages that leave and for messages that come.
    call_thread: OnceLock<Background>,
    send_thread: OnceLock<Background>,
    recv_thread: OnceLock<Background>,
    /// Where buffers lie if no memory is shared.
    private_arena: OnceLock<Arc<Arena>>,
    next_group: AtomicU64,
    /// Ranks whose death concerns nobody but those who wait for them.
    spared: OnceLock<Vec<Rank>>,
    epoch: u64,
    recorder: Recorder,
    /// Where the last calls are written down after a failure, and whether they were.
    dump_dir: OnceLock<PathBuf>,
    has_dumped: Mutex<bool>,
    isa: Isa,
    /// What was measured of the links between all ranks.
    measured: OnceLock<Measured>,
}

impl Node {
    pub(crate) fn new(world: &World, wires: Wires) -> Self {
        let Wires { caller, background, sends, recvs } = wires;
        let flight = caller.shared().and_then(|shared| shared.flight(shared.rank()));
        Self {
            recorder: Recorder::new(flight.unwrap_or_else(Place::private)),
            dump_dir: OnceLock::new(),
            has_dumped: Mutex::new(false),
            world: Arc::clone(world),
            rank: caller.rank(),
            domains: caller.domains(),
            transport_name: caller.name(),
            shared: caller.shared(),
            caller: Mutex::new(caller),
            background: Mutex::new(background),
            sends: Mutex::new(sends),
            recvs: Mutex::new(recvs),
            call_thread: OnceLock::new(),
            send_thread: OnceLock::new(),
            recv_thread: OnceLock::new(),
            private_arena: OnceLock::new(),
            next_group: AtomicU64::new(0),
            spared: OnceLock::new(),
            epoch: 0,
            isa: Isa::detect(),
            measured: OnceLock::new(),
        }
    }

    /// This rank among those who are left, in the next epoch. The old node keeps its memory, which
    /// buffers lie in, and has no wires any more.
    pub(crate) fn renewed(&self, survivors: &[Rank], timeout: Duration) -> Result<Self, CommError> {
        let epoch = self.epoch + 1;
        let memory = match &self.shared {
            Some(shared) => Some(Arc::new(shared.renewed(survivors, epoch, timeout)?)),
            None => None,
        };
        let fate = Arc::default();
        let renewal = Renewal { epoch, survivors, memory, fate };
        let renew = |lane: Lane| {
            let cut = Box::new(CutWires { rank: self.rank, num_ranks: self.num_ranks() });
            std::mem::replace(&mut *self.wires(lane), cut).renew(&renewal)
        };
        let wires = Wires {
            caller: renew(Lane::Caller)?,
            background: renew(Lane::Background)?,
            sends: renew(Lane::Sends)?,
            recvs: renew(Lane::Recvs)?,
        };
        let dump_dir = self.dump_dir.clone();
        Ok(Self { epoch, dump_dir, ..Self::new(&self.world, wires) })
    }

    #[inline]
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// After a failure the last calls are written to a folder; the first one named counts.
    pub(crate) fn dump_into(&self, dir: &Path) {
        let _ = self.dump_dir.set(dir.to_owned());
    }

    /// Writes the last calls down, once: this rank's own, and those of the culprit if it was this
    /// rank that noticed and its memory is seen.
    #[cold]
    pub(crate) fn dump(&self, error: &CommError) {
        let (Some(dir), Some(verdict)) = (self.dump_dir.get(), error.verdict()) else { return };
        // Several threads may hear of it. None of them goes on before it is written, since the
        // first thing it does may be to end the process.
        let mut has_dumped = self.has_dumped.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *has_dumped, true) {
            return;
        }
        self.dump_of(dir, self.rank, self.recorder.place(), verdict);
        let culprit = verdict.culprit;
        let is_ours = verdict.noticed_by == self.rank && culprit != self.rank;
        if let Some(place) = self.shared.as_ref().and_then(|shared| shared.flight(culprit))
            && is_ours
        {
            self.dump_of(dir, culprit, &place, verdict);
        }
    }

    fn dump_of(&self, dir: &Path, rank: Rank, place: &Place, verdict: &Verdict) {
        let process = if rank == self.rank {
            Some(Process { host: self.world.host().name(), id: self.world.processes().own_id() })
        } else {
            verdict.process.clone()
        };
        let dump = Dump {
            rank,
            num_ranks: self.num_ranks(),
            epoch: self.epoch,
            written_by: self.rank,
            process,
            verdict: Some(verdict),
            place,
        };
        // A run that fails says so whether or not there is room on the disk.
        let _ = self.world.files().create_dir_all(dir);
        let path = dir.join(file_name(rank));
        let _ = self.world.files().write_atomic(&path, dump.to_json().as_bytes());
    }

    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn num_ranks(&self) -> usize {
        self.domains.len()
    }

    /// By world rank; ranks with the same number see each other's memory.
    pub(crate) fn domains(&self) -> &[usize] {
        &self.domains
    }

    pub(crate) fn transport_name(&self) -> &'static str {
        self.transport_name
    }

    pub(crate) fn shared(&self) -> Option<&Arc<SharedWorld>> {
        self.shared.as_ref()
    }

    /// How often this rank has waited for longer than a few looks; only for comparing.
    #[inline]
    pub(crate) fn num_long_waits(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.num_long_waits.load(Ordering::Relaxed))
    }

    /// Keeps what was measured for groups that are made later; the first time counts.
    pub(crate) fn keep_measured(&self, measured: &Measured) {
        let _ = self.measured.set(measured.clone());
    }

    /// What was measured of the links between all ranks, if anything was.
    pub(crate) fn measured(&self) -> Option<&Measured> {
        self.measured.get()
    }

    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    /// The memory that buffers are allocated in.
    pub(crate) fn arena(&self) -> Result<&Arc<Arena>, CommError> {
        if let Some(shared) = &self.shared {
            return Ok(shared.arena());
        }
        if self.private_arena.get().is_none() {
            let segment = self.world.shared().create(PAGE_BYTES, DEFAULT_ARENA_BYTES)?;
            // Whoever was second drops its memory, of which nothing was used.
            let _ = self.private_arena.set(Arena::new(&segment));
        }
        Ok(self.private_arena.get().expect("it was set just now, or before"))
    }

    /// The thread for what runs in the background on a lane, started when first asked for.
    pub(crate) fn thread(&self, lane: Lane) -> Result<&Background, CommError> {
        let (thread, kind) = match lane {
            Lane::Sends => (&self.send_thread, "sends"),
            Lane::Recvs => (&self.recv_thread, "recvs"),
            Lane::Caller | Lane::Background => (&self.call_thread, "calls"),
        };
        if thread.get().is_none() {
            let started = Background::start(&self.world, &format!("comm-{kind}-{}", self.rank))?;
            // Whoever was second drops its thread, which ends at once.
            let _ = thread.set(started);
        }
        Ok(thread.get().expect("it was set just now, or before"))
    }

    /// The number of the next group; every rank makes its groups in the same order.
    pub(crate) fn next_group(&self) -> u64 {
        self.next_group.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn exchange(
        &self,
        lane: Lane,
        round: &mut Round<'_>,
        timeout: Duration,
    ) -> Result<(), Interruption> {
        self.wires(lane).exchange(round, timeout)
    }

    /// Whose message comes first; see [`Transport::wait_for_message`].
    pub(crate) fn wait_for_message(
        &self,
        peers: &[Rank],
        envelope: &Envelope,
        timeout: Duration,
    ) -> Result<Rank, Interruption> {
        self.wires(Lane::Recvs).wait_for_message(peers, envelope, timeout)
    }

    /// Which of the groups of ranks this is that were formed one after the other.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// See [`crate::Comm::spare`]; the first list counts.
    pub(crate) fn spare(&self, ranks: &[Rank]) {
        self.wires(Lane::Caller).spare(ranks);
        let _ = self.spared.set(ranks.to_vec());
    }

    /// Whether the others can do without a rank.
    pub(crate) fn is_spared(&self, rank: Rank) -> bool {
        self.spared.get().is_some_and(|spared| spared.contains(&rank))
    }

    /// What all ranks settle on, given what this one has to say.
    #[cold]
    pub(crate) fn settle(&self, lane: Lane, statement: Verdict) -> Verdict {
        // Through memory first where that is all there is: it needs no lock, and wakes whoever
        // holds one.
        let is_one_host = self.domains.iter().all(|&domain| domain == self.domains[0]);
        match &self.shared {
            Some(shared) if is_one_host => shared.settle(statement),
            _ => self.wires(lane).settle(statement),
        }
    }

    fn wires(&self, lane: Lane) -> MutexGuard<'_, Box<dyn Transport>> {
        let wires = match lane {
            Lane::Caller => &self.caller,
            Lane::Background => &self.background,
            Lane::Sends => &self.sends,
            Lane::Recvs => &self.recvs,
        };
        // A panic in the middle of an exchange ends the run; until then others may try.
        wires.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is left of wires that were taken into the next epoch.
struct CutWires {
    rank: Rank,
    num_ranks: usize,
}

impl Transport for CutWires {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn num_ranks(&self) -> usize {
        self.num_ranks
    }

    fn exchange(&mut self, _: &mut Round<'_>, _: Duration) -> Result<(), Interruption> {
        let reason = "it has gone on in another group, formed anew".to_owned();
        Err(Interruption::Lost { peer: self.rank, reason })
    }

    fn wait_for_message(
        &mut self,
        _: &[Rank],
        _: &Envelope,
        _: Duration,
    ) -> Result<Rank, Interruption> {
        let reason = "it has gone on in another group, formed anew".to_owned();
        Err(Interruption::Lost { peer: self.rank, reason })
    }

    fn shared(&self) -> Option<Arc<SharedWorld>> {
        None
    }

    fn spare(&self, _: &[Rank]) {}

    fn settle(&mut self, statement: Verdict) -> Verdict {
        statement
    }

    fn renew(self: Box<Self>, _: &Renewal<'_>) -> Result<Box<dyn Transport>, CommError> {
        Ok(self)
    }

    fn domains(&self) -> Vec<usize> {
        (0..self.num_ranks).collect()
    }

    fn name(&self) -> &'static str {
        "none"
    }
}

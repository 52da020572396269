//! A rank of the world: its channels, its memory, and the state that all its groups share.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::memory::PAGE_BYTES;
use lockstep_platform::{Arena, World};
use lockstep_schedule::collective::overrides::AlgorithmOverrides;
use lockstep_tensor::Isa;

use crate::background::Background;
use crate::channel::Channel;
use crate::error::{CommError, Interruption};
use crate::probe::LinkMeasurements;
use crate::recorder::{Dump, RecordRegion, Recorder, file_name};
use crate::transport::shared::{DEFAULT_ARENA_BYTES, SharedWorld};
use crate::transport::{Channels, Envelope, EpochChange, Round, Transport};
use crate::verdict::{Process, Verdict};

/// One rank of the world.
pub(crate) struct Endpoint {
    world: World,
    rank: Rank,
    domains: Vec<usize>,
    transport_name: &'static str,
    shared: Option<Arc<SharedWorld>>,
    caller: Mutex<Box<dyn Transport>>,
    background: Mutex<Box<dyn Transport>>,
    sends: Mutex<Box<dyn Transport>>,
    recvs: Mutex<Box<dyn Transport>>,
    /// Background threads for calls, sends and receives.
    call_thread: OnceLock<Background>,
    send_thread: OnceLock<Background>,
    recv_thread: OnceLock<Background>,
    /// Arena for buffers without shared memory.
    private_arena: OnceLock<Arc<Arena>>,
    next_group: AtomicU64,
    /// Ranks whose death interrupts only the ranks that wait for them.
    expendable: OnceLock<Vec<Rank>>,
    epoch: u64,
    recorder: Recorder,
    /// Folder for the flight recorder dump after a failure, and whether it was written.
    dump_dir: OnceLock<PathBuf>,
    has_dumped: Mutex<bool>,
    isa: Isa,
    /// Algorithms that groups use whatever they cost.
    overrides: OnceLock<AlgorithmOverrides>,
    /// Measurements of the links between all ranks.
    measured: OnceLock<LinkMeasurements>,
}

impl Endpoint {
    pub(crate) fn new(world: &World, channels: Channels) -> Self {
        let Channels { caller, background, sends, recvs } = channels;
        let region = caller.shared().and_then(|shared| shared.record_region(shared.rank()));
        Self {
            recorder: Recorder::new(region.unwrap_or_else(RecordRegion::private)),
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
            expendable: OnceLock::new(),
            epoch: 0,
            isa: Isa::detect(),
            overrides: OnceLock::new(),
            measured: OnceLock::new(),
        }
    }

    /// This rank among the survivors, in the next epoch. The old endpoint keeps its memory, because
    /// buffers are in it, and loses its channels.
    pub(crate) fn in_next_epoch(
        &self,
        survivors: &[Rank],
        timeout: Duration,
    ) -> Result<Self, CommError> {
        let epoch = self.epoch + 1;
        let memory = match &self.shared {
            Some(shared) => Some(Arc::new(shared.in_next_epoch(survivors, epoch, timeout)?)),
            None => None,
        };
        let failure = Arc::default();
        let change = EpochChange { epoch, survivors, memory, failure };
        let into_next_epoch = |channel: Channel| {
            let cut = Box::new(ClosedChannel { rank: self.rank, num_ranks: self.num_ranks() });
            std::mem::replace(&mut *self.transport(channel), cut).into_next_epoch(&change)
        };
        let channels = Channels {
            caller: into_next_epoch(Channel::Caller)?,
            background: into_next_epoch(Channel::Background)?,
            sends: into_next_epoch(Channel::Sends)?,
            recvs: into_next_epoch(Channel::Recvs)?,
        };
        let (dump_dir, overrides) = (self.dump_dir.clone(), self.overrides.clone());
        Ok(Self { epoch, dump_dir, overrides, ..Self::new(&self.world, channels) })
    }

    /// Fixes algorithms of groups that are made from now on; the first call counts.
    pub(crate) fn fix_algorithms(&self, overrides: AlgorithmOverrides) {
        let _ = self.overrides.set(overrides);
    }

    /// Fixed algorithms of a new group.
    pub(crate) fn overrides(&self) -> AlgorithmOverrides {
        self.overrides.get().cloned().unwrap_or_default()
    }

    #[inline]
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Sets the folder for flight recorder dumps; the first one counts.
    pub(crate) fn dump_into(&self, dir: &Path) {
        let _ = self.dump_dir.set(dir.to_owned());
    }

    /// Dumps the flight recorder, once: this rank's own, and the failed rank's if this rank
    /// detected the failure and shares its memory.
    #[cold]
    pub(crate) fn dump(&self, error: &CommError) {
        let (Some(dir), Some(verdict)) = (self.dump_dir.get(), error.verdict()) else { return };
        // Several threads may get here. None continues before the dump is written, because its
        // next step may be to end the process.
        let mut has_dumped = self.has_dumped.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *has_dumped, true) {
            return;
        }
        self.dump_of(dir, self.rank, self.recorder.region(), verdict);
        let culprit = verdict.culprit;
        let is_ours = verdict.noticed_by == self.rank && culprit != self.rank;
        if let Some(region) = self.shared.as_ref().and_then(|shared| shared.record_region(culprit))
            && is_ours
        {
            self.dump_of(dir, culprit, &region, verdict);
        }
    }

    fn dump_of(&self, dir: &Path, rank: Rank, region: &RecordRegion, verdict: &Verdict) {
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
            region,
        };
        // The failure itself must be reported even if the disk is full.
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

    /// Memory domain of each global rank.
    pub(crate) fn domains(&self) -> &[usize] {
        &self.domains
    }

    pub(crate) fn transport_name(&self) -> &'static str {
        self.transport_name
    }

    pub(crate) fn shared(&self) -> Option<&Arc<SharedWorld>> {
        self.shared.as_ref()
    }

    /// Number of waits that outlasted spinning; compared before and after a call.
    #[inline]
    pub(crate) fn num_long_waits(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.num_long_waits.load(Ordering::Relaxed))
    }

    /// Keeps measurements for groups created later; the first ones count.
    pub(crate) fn keep_measured(&self, measured: &LinkMeasurements) {
        let _ = self.measured.set(measured.clone());
    }

    /// Measurements of the links between all ranks, if there are any.
    pub(crate) fn measured(&self) -> Option<&LinkMeasurements> {
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
            // A second thread drops its segment, of which no page was touched.
            let _ = self.private_arena.set(Arena::new(&segment));
        }
        Ok(self.private_arena.get().expect("it was set just now, or before"))
    }

    /// The background thread of a channel, started on first use.
    pub(crate) fn thread(&self, channel: Channel) -> Result<&Background, CommError> {
        let (thread, kind) = match channel {
            Channel::Sends => (&self.send_thread, "sends"),
            Channel::Recvs => (&self.recv_thread, "recvs"),
            Channel::Caller | Channel::Background => (&self.call_thread, "calls"),
        };
        if thread.get().is_none() {
            let started = Background::start(&self.world, &format!("comm-{kind}-{}", self.rank))?;
            // A second thread drops its background thread, which ends at once.
            let _ = thread.set(started);
        }
        Ok(thread.get().expect("it was set just now, or before"))
    }

    /// Id of the next group; every rank creates its groups in the same order.
    pub(crate) fn next_group(&self) -> u64 {
        self.next_group.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn exchange(
        &self,
        channel: Channel,
        round: &mut Round<'_>,
        timeout: Duration,
    ) -> Result<(), Interruption> {
        self.transport(channel).exchange(round, timeout)
    }

    /// Waits for a message on the receiving channel ([`Transport::wait_for_message`]).
    pub(crate) fn wait_for_message(
        &self,
        peers: &[Rank],
        envelope: &Envelope,
        timeout: Duration,
    ) -> Result<Rank, Interruption> {
        self.transport(Channel::Recvs).wait_for_message(peers, envelope, timeout)
    }

    /// Number of failures that the ranks have recovered from in place.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Marks ranks as expendable ([`crate::Comm::mark_expendable`]); the first list counts.
    pub(crate) fn mark_expendable(&self, ranks: &[Rank]) {
        self.transport(Channel::Caller).mark_expendable(ranks);
        let _ = self.expendable.set(ranks.to_vec());
    }

    /// Whether a rank is expendable.
    pub(crate) fn is_expendable(&self, rank: Rank) -> bool {
        self.expendable.get().is_some_and(|expendable| expendable.contains(&rank))
    }

    /// Agrees with all ranks on a verdict, given this rank's report.
    #[cold]
    pub(crate) fn agree_on_verdict(&self, channel: Channel, report: Verdict) -> Verdict {
        // On one host agree through memory: it needs no lock, and wakes the thread that holds one.
        let is_one_host = self.domains.iter().all(|&domain| domain == self.domains[0]);
        match &self.shared {
            Some(shared) if is_one_host => shared.agree_on_verdict(report),
            _ => self.transport(channel).agree_on_verdict(report),
        }
    }

    fn transport(&self, channel: Channel) -> MutexGuard<'_, Box<dyn Transport>> {
        let transport = match channel {
            Channel::Caller => &self.caller,
            Channel::Background => &self.background,
            Channel::Sends => &self.sends,
            Channel::Recvs => &self.recvs,
        };
        // A panic during an exchange ends the run; until then other threads may continue.
        transport.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stands in for a channel that moved to the next epoch.
struct ClosedChannel {
    rank: Rank,
    num_ranks: usize,
}

impl Transport for ClosedChannel {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn num_ranks(&self) -> usize {
        self.num_ranks
    }

    fn exchange(&mut self, _: &mut Round<'_>, _: Duration) -> Result<(), Interruption> {
        let reason = "it has continued in another epoch".to_owned();
        Err(Interruption::Lost { peer: self.rank, reason })
    }

    fn wait_for_message(
        &mut self,
        _: &[Rank],
        _: &Envelope,
        _: Duration,
    ) -> Result<Rank, Interruption> {
        let reason = "it has continued in another epoch".to_owned();
        Err(Interruption::Lost { peer: self.rank, reason })
    }

    fn shared(&self) -> Option<Arc<SharedWorld>> {
        None
    }

    fn mark_expendable(&self, _: &[Rank]) {}

    fn agree_on_verdict(&mut self, report: Verdict) -> Verdict {
        report
    }

    fn into_next_epoch(
        self: Box<Self>,
        _: &EpochChange<'_>,
    ) -> Result<Box<dyn Transport>, CommError> {
        Ok(self)
    }

    fn domains(&self) -> Vec<usize> {
        (0..self.num_ranks).collect()
    }

    fn name(&self) -> &'static str {
        "none"
    }
}

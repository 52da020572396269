//! Counters of a rank: bytes sent in steps by axis, and figures of its process and host, which
//! ranks exchange at evaluations.

use crate::learner::Learner;
use lockstep_comm::{Comm, CommError, Count};
use lockstep_config::{Isolation, Recipe};
use lockstep_parallel::{AxisCounters, Footprint, Replica};
use lockstep_platform::World;
use lockstep_schedule::Algorithm;
use lockstep_telemetry::{AlgorithmBytes, Event, MemoryByPart};
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

/// Length of [`Counters`].
const NUM_COUNTERS: usize = 21;

/// Indices of the host, and of the bytes of unsent spans among them.
const HOST: usize = 14;
const UNSENT_SPANS: usize = 20;

/// Numbers of a rank in an exchange.
pub(crate) type Counters = [f64; NUM_COUNTERS];

/// Number of methods by which bytes are sent: by each algorithm, and as messages.
const NUM_METHODS: usize = Algorithm::NAMES.len() + 1;

/// Name of the last of them, for collectives have algorithms.
const MESSAGES: &str = "messages";

/// Bytes by axis, and by algorithm in it.
type ByAlgorithm = [[u64; NUM_METHODS]; AxisCounters::NAMES.len()];

/// Bytes that a rank sends in its steps, by axis and algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SentBytes {
    /// Counted so far, of all that the replica has sent.
    counted: ByAlgorithm,
    /// Sent in steps.
    in_steps: ByAlgorithm,
    /// The part of these that belongs to no finished step yet, by axis.
    unreported: [u64; AxisCounters::NAMES.len()],
}

impl SentBytes {
    /// Counts from now on.
    pub(crate) fn of(replica: &Replica) -> Self {
        Self { counted: sent_by_algorithm(replica), ..Self::default() }
    }

    /// Counts what was sent since the last call.
    pub(crate) fn count(&mut self, replica: &Replica) {
        let sent = sent_by_algorithm(replica);
        for (axis, sent) in sent.iter().enumerate() {
            for (method, sent) in sent.iter().enumerate() {
                let new = sent.saturating_sub(self.counted[axis][method]);
                self.in_steps[axis][method] += new;
                self.unreported[axis] += new;
            }
        }
        self.counted = sent;
    }

    /// Leaves out what was sent since the last call, between steps.
    pub(crate) fn skip(&mut self, replica: &Replica) {
        self.counted = sent_by_algorithm(replica);
    }

    /// Bytes of a step that ends now, by axis.
    pub(crate) fn finish_step(&mut self, replica: &Replica) -> [u64; 4] {
        self.count(replica);
        std::mem::take(&mut self.unreported)
    }
}

/// Bytes that a replica has sent so far. What is read or written in another rank's memory is sent
/// as well.
fn sent_by_algorithm(replica: &Replica) -> ByAlgorithm {
    let bytes = |count: Count| {
        count.traffic.sent_bytes + count.traffic.read_bytes + count.traffic.written_bytes
    };
    replica.counters_by_axis().all().map(|counters| {
        let mut sent = [0; NUM_METHODS];
        for (sent, (_, count)) in sent.iter_mut().zip(counters.by_algorithm()) {
            *sent = bytes(count);
        }
        sent[NUM_METHODS - 1] = bytes(counters.messages());
        sent
    })
}

/// Bytes sent by every algorithm along every axis, as an event that is used again: an evaluation
/// allocates nothing.
struct AlgorithmReport {
    /// One for each algorithm of each axis, but for those in the event.
    entries: Vec<AlgorithmBytes>,
    event: Event,
}

/// Stands for an entry that is in the event.
const TAKEN: AlgorithmBytes =
    AlgorithmBytes { axis: String::new(), algorithm: String::new(), bytes: 0 };

impl AlgorithmReport {
    fn new() -> Self {
        let names = Algorithm::NAMES.into_iter().chain([MESSAGES]);
        let of_axis = |axis: &'static str| {
            names.clone().map(move |algorithm| AlgorithmBytes {
                axis: axis.to_owned(),
                algorithm: algorithm.to_owned(),
                bytes: 0,
            })
        };
        let entries: Vec<_> = AxisCounters::NAMES.into_iter().flat_map(of_axis).collect();
        let bytes = Vec::with_capacity(entries.len());
        Self { entries, event: Event::AlgorithmBytes { step: 0, bytes } }
    }

    /// Visits the event with those that sent anything.
    fn visit(&mut self, step: u64, sent: &SentBytes, visit: &mut impl FnMut(&Event)) {
        let Event::AlgorithmBytes { step: at, bytes: listed } = &mut self.event else { return };
        *at = step;
        for (entry, bytes) in self.entries.iter_mut().zip(sent.in_steps.as_flattened()) {
            if *bytes > 0 {
                entry.bytes = *bytes;
                listed.push(std::mem::replace(entry, TAKEN));
            }
        }
        visit(&self.event);
        let Event::AlgorithmBytes { bytes: listed, .. } = &mut self.event else { return };
        let taken = self.entries.iter_mut().filter(|entry| entry.axis.is_empty());
        for (place, entry) in taken.zip(listed.drain(..)) {
            *place = entry;
        }
    }
}

/// Counters of this rank, and those of all ranks at the last exchange.
pub(crate) struct RankCounters {
    pub(crate) sent: SentBytes,
    by_algorithm: AlgorithmReport,
    /// Bytes that the engine holds, by part, from the start on.
    held: [f64; 5],
    /// Threads that compute in the process of this rank.
    num_threads: f64,
    /// Time, and time of processors, at the last exchange.
    measured_at: (Duration, Option<Duration>),
    /// Throttling of the host when the run began.
    throttled_before: Option<u64>,
    /// Hash of the host's name.
    host: f64,
    /// Of all ranks.
    gathered: Vec<f64>,
}

/// Totals of a rank's steps, from its step log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepTotals {
    pub(crate) wire_bytes: u64,
    pub(crate) restarts: u64,
    pub(crate) missed_steps: u64,
    pub(crate) exposed_seconds: f64,
    pub(crate) straggler_wait_seconds: f64,
}

impl RankCounters {
    pub(crate) fn new(recipe: &Recipe, world: &World, learner: &Learner, threads: usize) -> Self {
        let replica = &learner.replica;
        let Footprint { weights, gradients, optimizer, activations, buffers } =
            replica.footprint(&learner.optimizer);
        let held = [weights, gradients, optimizer, activations, buffers]
            .map(|elements| (elements * size_of::<f32>()) as f64);
        let ranks_of_process = match recipe.run.isolation {
            Isolation::Threads => recipe.run.workers,
            Isolation::Processes => 1,
        };
        Self {
            sent: SentBytes::of(replica),
            by_algorithm: AlgorithmReport::new(),
            held,
            num_threads: (threads * ranks_of_process) as f64,
            measured_at: (world.clock().now(), world.host().cpu_time()),
            throttled_before: world.host().throttle_count(),
            host: host_number(&world.host().name()),
            gathered: vec![0.0; NUM_COUNTERS * recipe.run.workers],
        }
    }

    /// Numbers of this rank now; what is unknown is not a number.
    pub(crate) fn own(
        &mut self,
        world: &World,
        replica: &Replica,
        totals: &StepTotals,
        unsent_spans: &[u8],
    ) -> Counters {
        let host = world.host();
        let known = |value: Option<u64>| value.map_or(f64::NAN, |value| value as f64);
        let memory = replica.accelerator().and_then(|device| device.memory().ok().flatten());
        let busy_share = self.take_busy_share(world).filter(|_| replica.accelerator().is_none());
        let throttled = host.throttle_count().zip(self.throttled_before);
        let [data, pipeline, tensor, strategy] =
            self.sent.in_steps.map(|bytes| bytes.iter().sum::<u64>() as f64);
        let [weights, gradients, optimizer, activations, buffers] = self.held;
        [
            totals.wire_bytes as f64,
            totals.restarts as f64,
            totals.missed_steps as f64,
            data,
            pipeline,
            tensor,
            strategy,
            totals.exposed_seconds,
            totals.straggler_wait_seconds,
            known(Some(host.current_rss_bytes()).filter(|bytes| *bytes > 0)),
            known(memory.map(|memory| memory.peak as u64)),
            busy_share.unwrap_or(f64::NAN),
            host.clock_hertz().unwrap_or(f64::NAN),
            known(throttled.map(|(now, before)| now.saturating_sub(before))),
            self.host,
            weights,
            gradients,
            optimizer,
            activations,
            buffers,
            unsent_spans.len() as f64,
        ]
    }

    /// Share of the threads' time on processors since the last call.
    fn take_busy_share(&mut self, world: &World) -> Option<f64> {
        let now = (world.clock().now(), world.host().cpu_time());
        let before = std::mem::replace(&mut self.measured_at, now);
        let available = now.0.saturating_sub(before.0).as_secs_f64() * self.num_threads;
        let busy = now.1?.saturating_sub(before.1?).as_secs_f64();
        (available > 0.0).then(|| (busy / available).min(1.0))
    }

    /// Gathers the numbers of all ranks. Collective; planned on the first call, before the run.
    pub(crate) fn exchange(&mut self, own: &Counters, comm: &Comm) -> Result<(), CommError> {
        self.gathered.truncate(NUM_COUNTERS * comm.group_size());
        comm.all_gather(own, &mut self.gathered)
    }

    /// Whether any rank had spans that rank 0 does not have, at the last exchange.
    pub(crate) fn has_unsent_spans(&self) -> bool {
        let (by_rank, _) = self.gathered.as_chunks::<NUM_COUNTERS>();
        by_rank.iter().any(|counters| counters[UNSENT_SPANS] > 0.0)
    }

    /// Bytes that all ranks have sent in steps.
    pub(crate) fn wire_bytes_of_all(&self) -> u64 {
        let (by_rank, _) = self.gathered.as_chunks::<NUM_COUNTERS>();
        by_rank.iter().map(|counters| counters[0] as u64).sum()
    }

    /// Visits the events of all ranks, from the last exchange.
    pub(crate) fn visit(&mut self, step: u64, mut visit: impl FnMut(&Event)) {
        self.by_algorithm.visit(step, &self.sent, &mut visit);
        let (by_rank, _) = self.gathered.as_chunks::<NUM_COUNTERS>();
        for (worker, counters) in by_rank.iter().enumerate() {
            let is_there = |other: &Counters| other[HOST].to_bits() == counters[HOST].to_bits();
            let first_on_host = by_rank.iter().position(is_there);
            visit(&event_of(step, worker, first_on_host, counters));
        }
    }
}

/// Number of a host, equal on all of its ranks: a hash of its name that a float can hold.
fn host_number(name: &str) -> f64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name.as_bytes());
    (hasher.finish() >> (u64::BITS - f64::MANTISSA_DIGITS)) as f64
}

/// Event of a rank's numbers.
fn event_of(
    step: u64,
    worker: usize,
    first_rank_on_host: Option<usize>,
    counters: &Counters,
) -> Event {
    let &[
        _,
        restarts,
        missed_steps,
        data,
        pipeline,
        tensor,
        strategy,
        exposed_communication_seconds,
        straggler_wait_seconds,
        resident,
        device,
        busy_share,
        clock_hertz,
        throttled,
        _,
        weights,
        gradients,
        optimizer,
        activations,
        buffers,
        _,
    ] = counters;
    let [restarts, missed_steps] = [restarts, missed_steps].map(|count| count as u64);
    let [data_bytes, pipeline_bytes, tensor_bytes, strategy_bytes] =
        [data, pipeline, tensor, strategy].map(|bytes| bytes as u64);
    let [busy_share, clock_hertz] =
        [busy_share, clock_hertz].map(|value| Some(value).filter(|value| !value.is_nan()));
    let [resident_bytes, device_bytes, throttle_count] = [resident, device, throttled]
        .map(|value| Some(value).filter(|value| !value.is_nan()).map(|value| value as u64));
    let [weights, gradients, optimizer, activations, buffers] =
        [weights, gradients, optimizer, activations, buffers].map(|bytes| bytes as u64);
    Event::RankCounters {
        step,
        worker,
        first_rank_on_host,
        restarts,
        missed_steps,
        data_bytes,
        pipeline_bytes,
        tensor_bytes,
        strategy_bytes,
        exposed_communication_seconds,
        straggler_wait_seconds,
        resident_bytes,
        device_bytes,
        busy_share,
        clock_hertz,
        throttle_count,
        memory: Some(MemoryByPart { weights, gradients, optimizer, activations, buffers }),
    }
}

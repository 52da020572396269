//! Counters of a rank: bytes sent in steps by axis, and figures of its process and host, which
//! ranks exchange at evaluations.

use lockstep_comm::{Comm, CommError};
use lockstep_config::{Isolation, Recipe};
use lockstep_parallel::{AxisTraffic, Replica};
use lockstep_platform::World;
use lockstep_telemetry::Event;
use std::time::Duration;

/// Length of [`Counters`].
const NUM_COUNTERS: usize = 14;

/// Numbers of a rank in an exchange.
pub(crate) type Counters = [f64; NUM_COUNTERS];

/// Bytes that a rank sends in its steps, by axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SentBytes {
    /// Counted so far, of all that the replica has sent.
    counted: [u64; 4],
    /// Sent in steps.
    in_steps: [u64; 4],
    /// The part of these that belongs to no finished step yet.
    unreported: [u64; 4],
}

impl SentBytes {
    /// Counts from now on.
    pub(crate) fn of(replica: &Replica) -> Self {
        Self { counted: sent_by_axis(replica), ..Self::default() }
    }

    /// Counts what was sent since the last call.
    pub(crate) fn count(&mut self, replica: &Replica) {
        let sent = sent_by_axis(replica);
        for (axis, sent) in sent.into_iter().enumerate() {
            let new = sent.saturating_sub(self.counted[axis]);
            self.in_steps[axis] += new;
            self.unreported[axis] += new;
        }
        self.counted = sent;
    }

    /// Leaves out what was sent since the last call, between steps.
    pub(crate) fn skip(&mut self, replica: &Replica) {
        self.counted = sent_by_axis(replica);
    }

    /// Bytes of a step that ends now, by axis.
    pub(crate) fn finish_step(&mut self, replica: &Replica) -> [u64; 4] {
        self.count(replica);
        std::mem::take(&mut self.unreported)
    }
}

/// Bytes that a replica has sent so far: data, pipeline, tensor and strategy. What is read or
/// written in another rank's memory is sent as well.
fn sent_by_axis(replica: &Replica) -> [u64; 4] {
    let AxisTraffic { data, pipeline, tensor, strategy } = replica.traffic_by_axis();
    [data, pipeline, tensor, strategy]
        .map(|traffic| traffic.sent_bytes + traffic.read_bytes + traffic.written_bytes)
}

/// Counters of this rank, and those of all ranks at the last exchange.
pub(crate) struct RankCounters {
    pub(crate) sent: SentBytes,
    /// Threads that compute in the process of this rank.
    num_threads: f64,
    /// Time, and time of processors, at the last exchange.
    measured_at: (Duration, Option<Duration>),
    /// Throttling of the host when the run began.
    throttled_before: Option<u64>,
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
    pub(crate) fn new(recipe: &Recipe, world: &World, replica: &Replica, threads: usize) -> Self {
        let ranks_of_process = match recipe.run.isolation {
            Isolation::Threads => recipe.run.workers,
            Isolation::Processes => 1,
        };
        Self {
            sent: SentBytes::of(replica),
            num_threads: (threads * ranks_of_process) as f64,
            measured_at: (world.clock().now(), world.host().cpu_time()),
            throttled_before: world.host().throttle_count(),
            gathered: vec![0.0; NUM_COUNTERS * recipe.run.workers],
        }
    }

    /// Numbers of this rank now; what is unknown is not a number.
    pub(crate) fn own(
        &mut self,
        world: &World,
        replica: &Replica,
        totals: &StepTotals,
    ) -> Counters {
        let host = world.host();
        let known = |value: Option<u64>| value.map_or(f64::NAN, |value| value as f64);
        let memory = replica.accelerator().and_then(|device| device.memory().ok().flatten());
        let busy_share = self.take_busy_share(world).filter(|_| replica.accelerator().is_none());
        let throttled = host.throttle_count().zip(self.throttled_before);
        let [data, pipeline, tensor, strategy] = self.sent.in_steps.map(|bytes| bytes as f64);
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

    /// Bytes that all ranks have sent in steps.
    pub(crate) fn wire_bytes_of_all(&self) -> u64 {
        let (by_rank, _) = self.gathered.as_chunks::<NUM_COUNTERS>();
        by_rank.iter().map(|counters| counters[0] as u64).sum()
    }

    /// Visits the events of all ranks, from the last exchange.
    pub(crate) fn visit(&self, step: u64, mut visit: impl FnMut(&Event)) {
        let (by_rank, _) = self.gathered.as_chunks::<NUM_COUNTERS>();
        for (worker, counters) in by_rank.iter().enumerate() {
            visit(&event_of(step, worker, counters));
        }
    }
}

/// Event of a rank's numbers.
fn event_of(step: u64, worker: usize, counters: &Counters) -> Event {
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
    ] = counters;
    let [restarts, missed_steps] = [restarts, missed_steps].map(|count| count as u64);
    let [data_bytes, pipeline_bytes, tensor_bytes, strategy_bytes] =
        [data, pipeline, tensor, strategy].map(|bytes| bytes as u64);
    let [busy_share, clock_hertz] =
        [busy_share, clock_hertz].map(|value| Some(value).filter(|value| !value.is_nan()));
    let [resident_bytes, device_bytes, throttle_count] = [resident, device, throttled]
        .map(|value| Some(value).filter(|value| !value.is_nan()).map(|value| value as u64));
    Event::RankCounters {
        step,
        worker,
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
    }
}

//! Measures collectives: fresh data, one call at a time, time of the slowest rank.
//!
//! Repeated calls on the same data flatter a library, because the buffers stay in the cache of the
//! last reader. In training, each rank has just written its gradients. Before every timed call each
//! rank therefore rewrites its buffer, all ranks pass a barrier outside the library, and *one* call
//! is timed. In between, the ranks time the memory traffic of an all-reduce of the same bytes, so
//! that other load on the machine slows down both.
//!
//! Every timed result is spot-checked. Before and after the timed calls one result is compared
//! element by element on every rank: bit by bit with the canonical order if the algorithm
//! guarantees it, else on integers whose sum is equal in any order.
//!
//! # Layout
//! - [`coordination`]: barrier and shared memory of the ranks
//! - `operation`: the collectives and their buffers
//! - `data`: inputs and expected results
//! - `memory_sweep`: memory bound of an all-reduce
//! - `comparison`: the selected algorithm against all others

/// Calls a generic function for an element type.
macro_rules! dispatch {
    ($dtype:expr, $function:ident $arguments:tt) => {
        match $dtype {
            Dtype::F32 => $function::<f32> $arguments,
            Dtype::F64 => $function::<f64> $arguments,
            Dtype::Bf16 => $function::<half::bf16> $arguments,
            Dtype::F16 => $function::<half::f16> $arguments,
            Dtype::I8 => $function::<i8> $arguments,
            Dtype::I16 => $function::<i16> $arguments,
            Dtype::I32 => $function::<i32> $arguments,
            Dtype::I64 => $function::<i64> $arguments,
            Dtype::U8 => $function::<u8> $arguments,
            Dtype::U16 => $function::<u16> $arguments,
            Dtype::U32 => $function::<u32> $arguments,
            Dtype::U64 => $function::<u64> $arguments,
        }
    };
}

mod comparison;
pub mod coordination;
mod data;
mod memory_sweep;
mod operation;

use std::time::Duration;

use lockstep_comm::{Comm, CommError, Dtype, Element, Forecast};
use lockstep_config::Blame;
use lockstep_platform::{Clock, SharedError, Target, World};
use lockstep_schedule::Algorithm;

pub use comparison::compare_algorithms;
pub use coordination::{Coordinator, CoordinatorOffer};
pub use operation::{Collective, UnknownCollective};

use data::Data;
use memory_sweep::MemorySweep;
use operation::Operation;

/// Memory of the measured buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffers {
    /// Shared memory of the ranks.
    Arena,
    /// Private memory of each rank.
    Private,
}

/// Case of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// Collective.
    pub collective: Collective,
    /// Element type.
    pub dtype: Dtype,
    /// Size, as [`Collective`] defines it.
    pub bytes: usize,
    /// Algorithm; `None` for the choice of the library.
    pub algorithm: Option<Algorithm>,
    /// Memory of the buffers.
    pub buffers: Buffers,
}

/// Result of a case, equal on all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// Measured algorithm.
    pub algorithm: Algorithm,
    /// Whether it guarantees the canonical order of sums.
    pub is_canonical: bool,
    /// Time of the slowest rank for every timed call, in nanoseconds, ascending.
    pub call_ns: Vec<u64>,
    /// Time of the slowest rank for every memory sweep, in nanoseconds, ascending.
    pub sweep_ns: Vec<u64>,
    /// Whether every result was correct on every rank.
    pub is_correct: bool,
    /// Predicted times of all algorithms, the measured one first.
    pub forecasts: Vec<Forecast>,
    /// Times of every algorithm, in a [comparison](compare_algorithms).
    pub by_algorithm: Vec<(Algorithm, Vec<u64>)>,
}

/// Failure of a measurement.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BenchError {
    /// The collective failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// Shared memory for coordination is not available.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// Another rank, or the process that started the ranks, has stopped.
    #[error("another rank gave up")]
    Stopped,
    /// Another rank did not reach the barrier.
    #[error("waited {seconds} s for another rank")]
    Deadline {
        /// Timeout.
        seconds: u64,
    },
}

impl BenchError {
    /// Party that must act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Comm(error) => error.blame(),
            Self::Shared(_) => Blame::Storage,
            Self::Stopped | Self::Deadline { .. } => Blame::Peer(0),
        }
    }
}

/// Calls before the first timed call.
const NUM_WARM_UPS: usize = 3;

/// Calls that estimate the time of one call.
const NUM_TRIALS: usize = 5;

/// Calls between two series of sweeps: few, so that both see the same load of the machine.
const SERIES_LEN: usize = 16;

/// Measures one case. All ranks call it together; `budget` is the time for the timed calls.
pub fn measure(
    comm: &Comm,
    coordinator: &Coordinator,
    case: &Case,
    budget: Duration,
) -> Result<Measurement, BenchError> {
    dispatch!(case.dtype, measure_as(comm, coordinator, case, budget))
}

fn measure_as<T: Element>(
    comm: &Comm,
    coordinator: &Coordinator,
    case: &Case,
    budget: Duration,
) -> Result<Measurement, BenchError> {
    let &Case { collective, bytes, algorithm, buffers, .. } = case;
    let (rank, n) = (comm.group_rank(), comm.group_size());
    let count = bytes / size_of::<T>();
    let by_algorithm = match algorithm {
        Some(algorithm) => comm.using(algorithm),
        None => comm.clone(),
    };
    // The element count of an all-to-all includes the vectors of all ranks.
    let whole_count =
        if collective.op() == lockstep_schedule::Op::AllToAll { count * n } else { count };
    let algorithm = by_algorithm.choice::<T>(collective.op(), whole_count)?;
    let canonical = comm.canonical().using(algorithm);
    let is_canonical = canonical.choice::<T>(collective.op(), whole_count).is_ok();

    let mut operation = Operation::<T>::new(by_algorithm, collective, count, buffers)?;
    let sweep = MemorySweep::new(comm, coordinator, buffers, operation.whole())?;
    let varied = Data::<T>::varied(n, is_canonical);
    let mut is_correct = check(&varied, rank, &mut operation)?;

    let timer = Timer::<T>::new(comm.platform(), coordinator, rank, n, is_canonical);
    let (call_ns, sweep_ns) = timer.time(&mut operation, &sweep, budget, &mut is_correct)?;
    is_correct &= check(&varied, rank, &mut operation)?;
    let is_correct =
        coordinator.exchange(rank, u64::from(is_correct))?.into_iter().all(|right| right == 1);
    let mut forecasts = comm.forecast::<T>(collective.op(), whole_count)?;
    forecasts.sort_by_key(|forecast| forecast.algorithm != algorithm);
    let by_algorithm = Vec::new();
    Ok(Measurement {
        algorithm,
        is_canonical,
        call_ns,
        sweep_ns,
        is_correct,
        forecasts,
        by_algorithm,
    })
}

/// Runs one call and compares its result element by element.
fn check<T: Element>(
    data: &Data<T>,
    rank: usize,
    operation: &mut Operation<T>,
) -> Result<bool, BenchError> {
    data.write(rank, operation.input());
    operation.call()?;
    Ok(data.is_correct(operation.result(), operation.expected()))
}

/// Timer of one rank.
struct Timer<'a, T> {
    clock: &'a dyn Clock,
    coordinator: &'a Coordinator,
    rank: usize,
    /// Contents that the ranks write before the calls, in turn.
    contents: Vec<(u8, Data<T>)>,
}

impl<'a, T: Element> Timer<'a, T> {
    fn new(
        world: &'a World,
        coordinator: &'a Coordinator,
        rank: usize,
        num_ranks: usize,
        is_canonical: bool,
    ) -> Self {
        // These bytes are numbers of moderate size in every type. Without a guaranteed order of
        // sums they are zeros, whose sum has one value in any order.
        let byte = |turn: usize, rank: usize| {
            if is_canonical { 0x3c + ((turn + rank) % 5) as u8 } else { 0 }
        };
        let data = |turn| (byte(turn, rank), Data::uniform(num_ranks, |other| byte(turn, other)));
        Self { clock: world.clock(), coordinator, rank, contents: (0..5).map(data).collect() }
    }

    /// Times of calls and sweeps on the slowest rank, ascending.
    fn time(
        &self,
        operation: &mut Operation<T>,
        sweep: &MemorySweep<'_>,
        budget: Duration,
        is_correct: &mut bool,
    ) -> Result<(Vec<u64>, Vec<u64>), BenchError> {
        for turn in 0..NUM_WARM_UPS {
            self.call(operation, turn, is_correct)?;
            self.sweep(sweep, turn)?;
        }
        let mut trials = [0; NUM_TRIALS];
        for (turn, trial) in trials.iter_mut().enumerate() {
            *trial = self.call(operation, turn, is_correct)?;
        }
        self.coordinator.max(self.rank, &mut trials)?;
        let one_ns = trials.into_iter().min().unwrap_or(0);
        let num_samples = budget.as_nanos() as u64 / (one_ns + 2000);
        let num_samples = num_samples.clamp(5, 2000) as usize;

        let (mut calls, mut sweeps) = (Vec::new(), Vec::new());
        while calls.len() < num_samples {
            for turn in 0..SERIES_LEN.min(num_samples - calls.len()) {
                calls.push(self.call(operation, turn, is_correct)?);
            }
            while sweeps.len() < calls.len() {
                sweeps.push(self.sweep(sweep, sweeps.len())?);
            }
        }
        self.coordinator.max(self.rank, &mut calls)?;
        // Sweeps do not synchronize, so ranks that share a core may run them one after the other.
        let num_at_once = self.coordinator.num_at_once() as u64;
        self.coordinator.combine(self.rank, &mut sweeps, |all| {
            let (longest, total) =
                all.fold((0, 0), |(longest, total), time| (time.max(longest), total + time));
            longest.max(total / num_at_once)
        })?;
        calls.sort_unstable();
        sweeps.sort_unstable();
        Ok((calls, sweeps))
    }

    fn call(
        &self,
        operation: &mut Operation<T>,
        turn: usize,
        is_correct: &mut bool,
    ) -> Result<u64, BenchError> {
        let (byte, data) = &self.contents[turn % self.contents.len()];
        Target::of(operation.input()).cast().fill(*byte);
        self.coordinator.wait()?;
        let start = self.clock.now();
        operation.call()?;
        let time = self.clock.since(start);
        *is_correct &= data.ends_are_correct(operation.result(), operation.expected());
        Ok(time.as_nanos() as u64)
    }

    fn sweep(&self, sweep: &MemorySweep<'_>, turn: usize) -> Result<u64, BenchError> {
        sweep.refresh(self.contents[turn % self.contents.len()].0);
        self.coordinator.wait()?;
        let start = self.clock.now();
        sweep.run();
        let time = self.clock.since(start);
        // No rank may rewrite its buffer during the sweep of another one.
        self.coordinator.wait()?;
        Ok(time.as_nanos() as u64)
    }
}

//! Measures the collectives: fresh data, one call at a time, the slowest rank counts.
//!
//! Timing many calls in a row on the same data flatters a library: what it reads lies where the
//! last call left it. In training, gradients were just written by their rank and lie in its cache.
//! So before every timed call each rank rewrites its buffer, all meet at a barrier that is not the
//! library's, and *one* call is timed; its time is that of the slowest rank. In between, the same
//! ranks time the least that memory needs for an all-reduce of the same bytes, in the same way: a
//! machine that is busy with something else is slow at both.
//!
//! A time is worth nothing if the result is wrong. Every result of a timed call is looked at, and
//! before and after the timed calls one is compared with what must come out element by element, on
//! every rank: for sums with the bits of the canonical order, if the algorithm promises that order,
//! and else with whole numbers that have one sum in any order.
//!
//! - [`board`]: where the ranks meet
//! - `exercise`: the operations and their buffers
//! - `data`: what they bring, and what must come out
//! - `sweep`: what memory needs
//! - `contest`: the library's choice against all others

/// Calls a function for the type of elements.
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

pub mod board;
mod contest;
mod data;
mod exercise;
mod sweep;

use std::time::Duration;

use lockstep_comm::{Comm, CommError, Dtype, Element, Forecast};
use lockstep_config::Blame;
use lockstep_platform::{Clock, SharedError, Target, World};
use lockstep_schedule::Algorithm;

pub use board::{Board, Offer};
pub use contest::contest;
pub use exercise::{Kind, UnknownKind};

use data::Data;
use exercise::Exercise;
use sweep::Sweep;

/// Where the measured buffers lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffers {
    /// In memory that the ranks share.
    Arena,
    /// In ordinary memory of each rank.
    Private,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// Which operation.
    pub kind: Kind,
    /// On which type.
    pub dtype: Dtype,
    /// Of which size; see [`Kind`].
    pub bytes: usize,
    /// By which algorithm; nothing leaves it to the library.
    pub algorithm: Option<Algorithm>,
    /// On which memory.
    pub buffers: Buffers,
}

/// What came out, the same on all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The algorithm that did it.
    pub algorithm: Algorithm,
    /// Whether it promises the canonical order of sums.
    pub is_canonical: bool,
    /// The slowest rank's time of every timed call, in nanoseconds, ascending.
    pub call_ns: Vec<u64>,
    /// The same for the sweep over memory.
    pub sweep_ns: Vec<u64>,
    /// Whether every result was right on every rank.
    pub is_right: bool,
    /// What the library thought it would take, and others beside it; the algorithm that did it
    /// first.
    pub forecasts: Vec<Forecast>,
    /// The times of algorithms that were forced, in a [`contest`].
    pub forced: Vec<(Algorithm, Vec<u64>)>,
}

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BenchError {
    /// The measured library failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// There is no memory to meet in.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// Another rank, or whoever started the ranks, has given up.
    #[error("another rank gave up")]
    Stopped,
    /// Another rank did not come.
    #[error("waited {seconds} s for another rank")]
    Deadline {
        /// How long.
        seconds: u64,
    },
}

impl BenchError {
    /// Who must act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Comm(error) => error.blame(),
            Self::Shared(_) => Blame::Storage,
            Self::Stopped | Self::Deadline { .. } => Blame::Peer(0),
        }
    }
}

/// Calls before the first timed one.
const NUM_WARM_UPS: usize = 3;

/// Calls that tell how long one takes.
const NUM_TRIALS: usize = 5;

/// Calls, then sweeps, in turn: few enough that both see the same state of the machine.
const NUM_IN_A_ROW: usize = 16;

/// Measures one case. All ranks call it together; `budget` is the time for the calls alone.
pub fn measure(
    comm: &Comm,
    board: &Board,
    case: &Case,
    budget: Duration,
) -> Result<Point, BenchError> {
    dispatch!(case.dtype, measure_as(comm, board, case, budget))
}

fn measure_as<T: Element>(
    comm: &Comm,
    board: &Board,
    case: &Case,
    budget: Duration,
) -> Result<Point, BenchError> {
    let &Case { kind, bytes, algorithm, buffers, .. } = case;
    let (rank, n) = (comm.group_rank(), comm.group_size());
    let count = bytes / size_of::<T>();
    let by_algorithm = match algorithm {
        Some(algorithm) => comm.using(algorithm),
        None => comm.clone(),
    };
    // An all-to-all counts the vectors of all ranks.
    let whole_count = if kind.op() == lockstep_schedule::Op::AllToAll { count * n } else { count };
    let algorithm = by_algorithm.choice::<T>(kind.op(), whole_count)?;
    let canonical = comm.canonical().using(algorithm);
    let is_canonical = canonical.choice::<T>(kind.op(), whole_count).is_ok();

    let mut exercise = Exercise::<T>::new(by_algorithm, kind, count, buffers)?;
    let sweep = Sweep::new(comm, board, buffers, exercise.whole())?;
    let varied = Data::<T>::varied(n, is_canonical);
    let mut is_right = check(&varied, rank, &mut exercise)?;

    let stage = Stage::<T>::new(comm.platform(), board, rank, n, is_canonical);
    let (call_ns, sweep_ns) = stage.time(&mut exercise, &sweep, budget, &mut is_right)?;
    is_right &= check(&varied, rank, &mut exercise)?;
    let is_right = board.exchange(rank, u64::from(is_right))?.into_iter().all(|right| right == 1);
    let mut forecasts = comm.forecast::<T>(kind.op(), whole_count)?;
    forecasts.sort_by_key(|forecast| forecast.algorithm != algorithm);
    let forced = Vec::new();
    Ok(Point { algorithm, is_canonical, call_ns, sweep_ns, is_right, forecasts, forced })
}

/// Whether one call gives what it must, element by element.
fn check<T: Element>(
    data: &Data<T>,
    rank: usize,
    exercise: &mut Exercise<T>,
) -> Result<bool, BenchError> {
    data.write(rank, exercise.brought());
    exercise.call()?;
    Ok(data.is_right(exercise.result(), exercise.runs()))
}

/// Where and with what one rank is timed.
struct Stage<'a, T> {
    clock: &'a dyn Clock,
    board: &'a Board,
    rank: usize,
    /// What the ranks write, call after call in turn.
    fresh: Vec<(u8, Data<T>)>,
}

impl<'a, T: Element> Stage<'a, T> {
    fn new(
        world: &'a World,
        board: &'a Board,
        rank: usize,
        num_ranks: usize,
        is_canonical: bool,
    ) -> Self {
        // Bytes of which every type makes a number of moderate size; where nothing is promised
        // about the order of sums, zeros, which have only one.
        let byte = |turn: usize, rank: usize| {
            if is_canonical { 0x3c + ((turn + rank) % 5) as u8 } else { 0 }
        };
        let data = |turn| (byte(turn, rank), Data::uniform(num_ranks, |other| byte(turn, other)));
        Self { clock: world.clock(), board, rank, fresh: (0..5).map(data).collect() }
    }

    /// Times calls and sweeps; the times of the slowest ranks, ascending.
    fn time(
        &self,
        exercise: &mut Exercise<T>,
        sweep: &Sweep<'_>,
        budget: Duration,
        is_right: &mut bool,
    ) -> Result<(Vec<u64>, Vec<u64>), BenchError> {
        for turn in 0..NUM_WARM_UPS {
            self.call(exercise, turn, is_right)?;
            self.sweep(sweep, turn)?;
        }
        let mut trials = [0; NUM_TRIALS];
        for (turn, trial) in trials.iter_mut().enumerate() {
            *trial = self.call(exercise, turn, is_right)?;
        }
        self.board.largest(self.rank, &mut trials)?;
        let one_ns = trials.into_iter().min().unwrap_or(0);
        let num_samples = budget.as_nanos() as u64 / (one_ns + 2000);
        let num_samples = num_samples.clamp(5, 2000) as usize;

        let (mut calls, mut sweeps) = (Vec::new(), Vec::new());
        while calls.len() < num_samples {
            for turn in 0..NUM_IN_A_ROW.min(num_samples - calls.len()) {
                calls.push(self.call(exercise, turn, is_right)?);
            }
            while sweeps.len() < calls.len() {
                sweeps.push(self.sweep(sweep, sweeps.len())?);
            }
        }
        self.board.largest(self.rank, &mut calls)?;
        // Sweeps wait for nobody, so ranks that share a core may do them one after the other.
        let num_at_once = self.board.num_at_once() as u64;
        self.board.combine(self.rank, &mut sweeps, |all| {
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
        exercise: &mut Exercise<T>,
        turn: usize,
        is_right: &mut bool,
    ) -> Result<u64, BenchError> {
        let (byte, data) = &self.fresh[turn % self.fresh.len()];
        Target::of(exercise.brought()).cast().fill(*byte);
        self.board.wait()?;
        let start = self.clock.now();
        exercise.call()?;
        let time = self.clock.since(start);
        *is_right &= data.looks_right(exercise.result(), exercise.runs());
        Ok(time.as_nanos() as u64)
    }

    fn sweep(&self, sweep: &Sweep<'_>, turn: usize) -> Result<u64, BenchError> {
        sweep.refresh(self.fresh[turn % self.fresh.len()].0);
        self.board.wait()?;
        let start = self.clock.now();
        sweep.run();
        let time = self.clock.since(start);
        // Nobody may rewrite its buffer while somebody still sweeps over it.
        self.board.wait()?;
        Ok(time.as_nanos() as u64)
    }
}

//! Traces of pipelined training: operations of sampled steps on all ranks.
//!
//! The format is that of ByteDance's straggler analysis (Lin et al. 2025): a row for each
//! operation of a worker, with columns `step`, `rank`, `dp_rank`, `stage`, `optype`, `seq_id`,
//! `start_ts` and `duration`, in seconds; `mc` numbers the model chunk of a virtual stage.

use std::collections::BTreeMap;

/// Most operations of a trace.
const MAX_OPERATIONS: usize = 50_000_000;

/// Kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Forward pass of a micro-batch through a stage.
    ForwardCompute,
    /// Backward pass of a micro-batch through a stage.
    BackwardCompute,
    /// Sends an activation to the next stage.
    ForwardSend,
    /// Receives an activation from the previous stage.
    ForwardRecv,
    /// Sends a gradient to the previous stage.
    BackwardSend,
    /// Receives a gradient from the next stage.
    BackwardRecv,
    /// Gathers updated parameters over the data-parallel ranks.
    ParamsAllGather,
    /// Scatters summed gradients over the data-parallel ranks.
    GradsReduceScatter,
    /// Sums gradients over the data-parallel ranks, apart from the overlapped ones.
    SeparateGradsAllReduce,
    /// Sums the gradients of norms within a tensor-parallel group.
    NormGradsAllReduce,
    /// Sums the gradients of tied embeddings between the first and the last stage.
    EmbeddingGradsAllReduce,
    /// Agrees on the norm of the gradients and clips them.
    Clip,
    /// Update of the parameters.
    Optimizer,
    /// Garbage collection of the training script.
    GarbageCollection,
}

use Kind::{
    BackwardCompute, BackwardRecv, BackwardSend, Clip, EmbeddingGradsAllReduce, ForwardCompute,
    ForwardRecv, ForwardSend, GarbageCollection, GradsReduceScatter, NormGradsAllReduce, Optimizer,
    ParamsAllGather, SeparateGradsAllReduce,
};

/// Names of kinds in the column `optype`.
const NAMES: [(&str, Kind); 14] = [
    ("forward-compute", ForwardCompute),
    ("backward-compute", BackwardCompute),
    ("forward-send", ForwardSend),
    ("forward-recv", ForwardRecv),
    ("backward-send", BackwardSend),
    ("backward-recv", BackwardRecv),
    ("params-all-gather", ParamsAllGather),
    ("grads-reduce-scatter", GradsReduceScatter),
    ("separate-grads-all-reduce", SeparateGradsAllReduce),
    ("layernorm-grads-all-reduce", NormGradsAllReduce),
    ("embedding-grads-all-reduce", EmbeddingGradsAllReduce),
    ("optimizer-clip-main-grad", Clip),
    ("optimizer", Optimizer),
    ("gc", GarbageCollection),
];

impl Kind {
    /// Name in the column `optype`.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Whether its duration says how fast a link is, and not how fast a device is.
    pub(super) const fn is_communication(self) -> bool {
        !matches!(self, ForwardCompute | BackwardCompute | Optimizer | GarbageCollection)
    }

    /// Whether all data-parallel ranks take part.
    pub(super) const fn spans_data_parallel_ranks(self) -> bool {
        matches!(self, ParamsAllGather | GradsReduceScatter | SeparateGradsAllReduce | Clip)
    }
}

/// Operation of a worker in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Operation {
    /// Kind.
    pub kind: Kind,
    /// Number among the operations of its kind, worker and step, by start.
    pub number: u32,
    /// Start, since that of the step, in seconds.
    pub start: f64,
    /// Duration in seconds; of a communication with the wait for other ranks.
    pub duration: f64,
}

impl Operation {
    /// End, since the start of the step.
    pub fn end(&self) -> f64 {
        self.start + self.duration
    }
}

/// Place of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Worker {
    /// Data-parallel rank.
    pub dp_rank: u32,
    /// Pipeline stage.
    pub stage: u32,
}

/// Operations of a worker in a step, by kind and number.
pub type WorkerStep = Vec<Operation>;

/// Trace of a job: the same operations on the workers of every data-parallel rank, in every step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// Data-parallel degree.
    pub num_replicas: u32,
    /// Pipeline stages.
    pub num_stages: u32,
    /// Global rank of each worker.
    pub ranks: BTreeMap<Worker, u64>,
    /// Steps by number, each with its workers.
    pub steps: BTreeMap<u64, BTreeMap<Worker, WorkerStep>>,
}

/// A trace that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// A column that is needed.
    #[error(
        "no column {0}; an operation trace has step, rank, dp_rank, stage, optype, seq_id, \
        start_ts and duration"
    )]
    Column(&'static str),
    /// A cell that is no number of its kind.
    #[error("line {line}: {column} = {value} is not {rule}")]
    Cell {
        /// Line, from 1.
        line: usize,
        /// Column.
        column: &'static str,
        /// Cell.
        value: String,
        /// Condition.
        rule: &'static str,
    },
    /// Virtual stages.
    #[error("line {0}: virtual stages (mc above 0) are not read; traces of one chunk a stage are")]
    VirtualStages(usize),
    /// Workers with different operations.
    #[error(
        "step {step}, dp_rank {dp_rank}, stage {stage}: {found} operations where dp_rank 0 of \
        the first step has {expected}"
    )]
    Unequal {
        /// Step.
        step: u64,
        /// Data-parallel rank.
        dp_rank: u32,
        /// Stage.
        stage: u32,
        /// Operations found.
        found: usize,
        /// Operations of the first worker of the stage.
        expected: usize,
    },
    /// Operations that wait for each other.
    #[error(
        "operations of the first step wait for each other in a circle: starts are not from \
        one clock, or the trace is not of a pipeline with one forward and one backward pass each"
    )]
    Circle,
    /// No step with all operations.
    #[error("the trace has no step with forward, backward and optimizer operations")]
    Empty,
    /// Too long.
    #[error("the trace has more than {MAX_OPERATIONS} operations")]
    TooLong,
}

/// Reads a trace.
pub fn parse(text: &str) -> Result<Trace, TraceError> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split(',').map(str::trim).collect();
    let position = |name: &'static str| names.iter().position(|known| *known == name);
    let column = |name: &'static str| position(name).ok_or(TraceError::Column(name));
    let (step, rank) = (column("step")?, column("rank")?);
    let (dp_rank, stage) = (column("dp_rank")?, column("stage")?);
    let (kind, number) = (column("optype")?, column("seq_id")?);
    let (start, duration) = (column("start_ts")?, column("duration")?);
    let chunk = position("mc");
    let mut trace = Trace::default();
    for (at, line) in lines.enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line_number = at + 2;
        if at >= MAX_OPERATIONS {
            return Err(TraceError::TooLong);
        }
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let row = Row { cells: &cells, line: line_number };
        if chunk.and_then(|at| cells.get(at)?.parse::<i64>().ok()).is_some_and(|mc| mc > 0) {
            return Err(TraceError::VirtualStages(line_number));
        }
        let worker =
            Worker { dp_rank: row.number("dp_rank", dp_rank)?, stage: row.number("stage", stage)? };
        let name = row.cell(kind);
        let kind = NAMES.iter().find(|(known, _)| *known == name);
        let (_, kind) = kind.ok_or_else(|| row.error("optype", name, "a known operation"))?;
        let operation = Operation {
            kind: *kind,
            number: row.number("seq_id", number)?,
            start: row.seconds("start_ts", start)?,
            duration: row.seconds("duration", duration)?,
        };
        trace.ranks.insert(worker, row.number("rank", rank)?);
        let step = trace.steps.entry(row.number("step", step)?).or_default();
        step.entry(worker).or_default().push(operation);
    }
    trace.prove()
}

/// Cells of a line.
struct Row<'a> {
    cells: &'a [&'a str],
    line: usize,
}

impl Row<'_> {
    fn cell(&self, at: usize) -> &str {
        self.cells.get(at).copied().unwrap_or_default()
    }

    fn error(&self, column: &'static str, value: &str, rule: &'static str) -> TraceError {
        TraceError::Cell { line: self.line, column, value: value.to_owned(), rule }
    }

    fn number<T: std::str::FromStr>(
        &self,
        column: &'static str,
        at: usize,
    ) -> Result<T, TraceError> {
        let cell = self.cell(at);
        cell.parse().map_err(|_| self.error(column, cell, "a whole number of at least 0"))
    }

    fn seconds(&self, column: &'static str, at: usize) -> Result<f64, TraceError> {
        let cell = self.cell(at);
        let seconds = cell.parse().ok().filter(|seconds: &f64| *seconds >= 0.0);
        let seconds = seconds.filter(|seconds| seconds.is_finite());
        seconds.ok_or_else(|| self.error(column, cell, "a time of at least 0 seconds"))
    }
}

impl Trace {
    /// Sorts operations and proves that all workers of a stage have the same ones.
    fn prove(mut self) -> Result<Self, TraceError> {
        for worker in self.steps.values_mut().flat_map(|step| step.values_mut()) {
            worker.sort_by_key(|operation| (operation.kind, operation.number));
        }
        let last = self.ranks.keys().fold((0, 0), |(replicas, stages), worker| {
            (replicas.max(worker.dp_rank), stages.max(worker.stage))
        });
        (self.num_replicas, self.num_stages) = (last.0.saturating_add(1), last.1.saturating_add(1));
        let places = u64::from(self.num_replicas) * u64::from(self.num_stages);
        let Some(first) = self.steps.values().next().cloned() else {
            return Err(TraceError::Empty);
        };
        let has = |kind: Kind| first.values().flatten().any(|operation| operation.kind == kind);
        if !has(ForwardCompute) || !has(BackwardCompute) || !has(Optimizer) {
            return Err(TraceError::Empty);
        }
        for (number, step) in &self.steps {
            let unequal = |worker: Worker, found, expected| TraceError::Unequal {
                step: *number,
                dp_rank: worker.dp_rank,
                stage: worker.stage,
                found,
                expected,
            };
            if (step.len() as u64) < places {
                let mut all = (0..self.num_replicas).flat_map(|dp_rank| {
                    (0..self.num_stages).map(move |stage| Worker { dp_rank, stage })
                });
                let missing = all.find(|worker| !step.contains_key(worker));
                let missing = missing.expect("fewer workers than places");
                let model = Worker { dp_rank: 0, ..missing };
                return Err(unequal(missing, 0, first.get(&model).map_or(0, Vec::len)));
            }
            for (worker, operations) in step {
                let expected = &first[&Worker { dp_rank: 0, ..*worker }];
                let name = |operation: &Operation| (operation.kind, operation.number);
                if !expected.iter().map(name).eq(operations.iter().map(name)) {
                    return Err(unequal(*worker, operations.len(), expected.len()));
                }
            }
        }
        Ok(self)
    }
}

//! Dependencies of a pipelined step: which operations of a trace wait for which.
//!
//! Computations of a worker run in their recorded order, messages of a kind too. A pass waits for
//! its message, and a message for its pass; the two ends of a message transfer together, and so do
//! collectives of the data-parallel ranks. After the last pass the gradients are reduced, clipped
//! and applied (Lin et al. 2025, section 3).

use super::graph::{Graph, Index};
use super::trace::{
    Kind::{
        self, BackwardCompute, BackwardRecv, BackwardSend, Clip, EmbeddingGradsAllReduce,
        ForwardCompute, ForwardRecv, ForwardSend, GarbageCollection, GradsReduceScatter,
        NormGradsAllReduce, Optimizer, ParamsAllGather, SeparateGradsAllReduce,
    },
    Operation, Trace, TraceError, Worker, WorkerStep,
};
use std::collections::BTreeMap;

/// Graph of a step and the communications of several ranks in it.
pub(super) struct StepGraph {
    /// Graph over all operations of a step, worker by worker.
    pub(super) graph: Graph,
    /// Members of communications of several operations.
    pub(super) meetings: Vec<Vec<Index>>,
}

/// Operations of a worker: indices by kind and number.
struct Indices<'a> {
    first: Index,
    operations: &'a WorkerStep,
}

impl Indices<'_> {
    fn of(&self, kind: Kind) -> Vec<Index> {
        let numbered = (self.first..).zip(self.operations);
        numbered.filter(|(_, operation)| operation.kind == kind).map(|(at, _)| at).collect()
    }

    fn operation(&self, at: Index) -> &Operation {
        &self.operations[(at - self.first) as usize]
    }

    /// Operations of these kinds in the order of their starts.
    fn in_order(&self, which: &[Kind]) -> Vec<Index> {
        let mut found: Vec<Index> = which.iter().flat_map(|kind| self.of(*kind)).collect();
        found.sort_by(|a, b| {
            let (a, b) = (self.operation(*a), self.operation(*b));
            a.start.total_cmp(&b.start).then((a.number, a.kind).cmp(&(b.number, b.kind)))
        });
        found
    }
}

impl StepGraph {
    /// Graph of the steps of a trace. The order of operations is that of the first step's first
    /// replica; all others have the same.
    pub(super) fn of(trace: &Trace) -> Result<Self, TraceError> {
        let step = trace.steps.values().next().ok_or(TraceError::Empty)?;
        let mut after = Vec::new();
        let mut meetings: BTreeMap<(Kind, u32, Place), Vec<Index>> = BTreeMap::new();
        let mut first = 0;
        for (worker, operations) in step {
            let model = Worker { dp_rank: 0, ..*worker };
            let order = Indices { first, operations: &step[&model] };
            after.resize(first as usize + operations.len(), Vec::new());
            depend(&order, &mut after);
            for (at, operation) in (first..).zip(operations) {
                if let Some((kind, place)) = meeting(operation.kind, *worker, trace.num_stages) {
                    meetings.entry((kind, operation.number, place)).or_default().push(at);
                }
            }
            first += operations.len() as Index;
        }
        let meetings: Vec<Vec<Index>> = meetings.into_values().collect();
        let graph = Graph::new(after, meetings.clone()).map_err(|_| TraceError::Circle)?;
        Ok(Self { graph, meetings })
    }
}

/// Where a communication happens: its data-parallel rank and stage, as far as they tell it from
/// others.
type Place = (Option<u32>, Option<u32>);

/// The communication of several workers that an operation belongs to.
fn meeting(kind: Kind, worker: Worker, num_stages: u32) -> Option<(Kind, Place)> {
    let Worker { dp_rank, stage } = worker;
    // A message is named by its sender.
    Some(match kind {
        ForwardSend => (ForwardSend, (Some(dp_rank), Some(stage))),
        ForwardRecv => (ForwardSend, (Some(dp_rank), Some((stage + num_stages - 1) % num_stages))),
        BackwardSend => (BackwardSend, (Some(dp_rank), Some(stage))),
        BackwardRecv => (BackwardSend, (Some(dp_rank), Some((stage + 1) % num_stages))),
        EmbeddingGradsAllReduce => (kind, (Some(dp_rank), None)),
        Clip => (kind, (None, None)),
        _ if kind.spans_data_parallel_ranks() => (kind, (None, Some(stage))),
        _ => return None,
    })
}

/// Adds the dependencies between the operations of a worker.
fn depend(worker: &Indices<'_>, after: &mut [Vec<Index>]) {
    let mut edges = Vec::new();
    let computed = worker.in_order(&[ForwardCompute, BackwardCompute]);
    chain(&computed, &mut edges);
    for kind in [ForwardSend, ForwardRecv, BackwardSend, BackwardRecv] {
        chain(&worker.of(kind), &mut edges);
    }
    chain(&worker.in_order(&[ParamsAllGather, GradsReduceScatter]), &mut edges);
    for (compute, send, recv) in
        [(ForwardCompute, ForwardSend, ForwardRecv), (BackwardCompute, BackwardSend, BackwardRecv)]
    {
        let passes = worker.of(compute);
        edges.extend(passes.iter().copied().zip(worker.of(send)));
        let received = worker.of(recv);
        edges.extend(received.iter().copied().zip(passes.iter().copied()));
        // A receive is issued once the pass before its own has ended.
        edges.extend(passes.iter().copied().zip(received.into_iter().skip(1)));
    }
    let is_backward = |at: &Index| worker.operation(*at).kind == BackwardCompute;
    if let Some(at) = computed.iter().position(is_backward).filter(|at| *at >= 2) {
        // Gradients of the first micro-batch travel while the last warm-up pass runs.
        for kind in [BackwardRecv, BackwardSend] {
            edges.extend(worker.of(kind).first().map(|first| (computed[at - 2], *first)));
        }
    }
    let gathered = worker.of(ParamsAllGather).last().copied();
    edges.extend(gathered.zip(worker.of(ForwardCompute).first().copied()));
    depend_after_passes(worker, &computed, &mut edges);
    for (before, operation) in edges {
        after[operation as usize].push(before);
    }
}

/// Makes each operation wait for the one before it.
fn chain(operations: &[Index], edges: &mut Vec<(Index, Index)>) {
    edges.extend(operations.windows(2).map(|pair| (pair[0], pair[1])));
}

/// Adds the dependencies between the operations after the last pass.
fn depend_after_passes(worker: &Indices<'_>, computed: &[Index], edges: &mut Vec<(Index, Index)>) {
    let end = |at: &&Index| worker.operation(**at).end();
    let last_pass = computed.iter().max_by(|a, b| end(a).total_cmp(&end(b)));
    let scatters = worker.of(GradsReduceScatter);
    let of = |which: &[Kind]| which.iter().flat_map(|kind| worker.of(*kind)).collect::<Vec<_>>();
    let mut tail: Vec<Index> = last_pass.copied().into_iter().collect();
    tail.extend(of(&[GarbageCollection, NormGradsAllReduce, EmbeddingGradsAllReduce]));
    let separate = worker.of(SeparateGradsAllReduce);
    if separate.is_empty() {
        tail.extend(&scatters);
    } else {
        // Gradients are scattered beside the passes, and what follows waits for both.
        edges.extend(last_pass.copied().zip(scatters.first().copied()));
        let next = of(&[NormGradsAllReduce, EmbeddingGradsAllReduce, SeparateGradsAllReduce]);
        edges.extend(scatters.last().copied().zip(next.first().copied()));
        tail.extend(&separate);
    }
    tail.extend(of(&[Clip, Optimizer]));
    chain(&tail, edges);
}

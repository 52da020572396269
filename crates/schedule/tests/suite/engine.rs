//! Reference engine that runs schedules on numbers, in an order that a seed decides.
//!
//! It is independent of the proof: channels hold any number of messages, and a random one of all
//! steps that are ready, in any rank and anywhere in a round, runs next. The results must depend on
//! the schedule only.

use std::collections::BTreeMap;

use lockstep_schedule::{
    Buffer, Chunks, Contribution, Layout, Op, Place, Schedule, Side, Step, SumTree,
};

/// Whether input and output share a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Buffers {
    /// Two buffers.
    Apart,
    /// One buffer; for operations whose input and output hold the same chunks.
    InPlace,
}

/// Runs a schedule on `inputs[rank][number]` and returns the outputs.
pub(crate) fn run(
    schedule: &Schedule,
    layout: &Layout,
    inputs: &[Vec<Vec<f64>>],
    buffers: Buffers,
    seed: u64,
) -> Vec<Vec<f64>> {
    let mut engine = Engine::new(schedule, layout, inputs, buffers, seed);
    while !engine.is_done() {
        engine.run_ready_step();
    }
    engine.outputs()
}

struct Engine<'a> {
    schedule: &'a Schedule,
    layout: &'a Layout,
    buffers: Buffers,
    memory: BTreeMap<(usize, Memory), Vec<f64>>,
    /// Pending steps of each rank's current round, with their message number.
    open: Vec<Vec<(&'a Step, usize)>>,
    rounds: Vec<usize>,
    /// Messages by sender, receiver and number, with the numbers of posted and expected messages.
    mail: BTreeMap<(usize, usize, usize), Vec<f64>>,
    posted: BTreeMap<(usize, usize), usize>,
    expected: BTreeMap<(usize, usize), usize>,
    signals: Vec<usize>,
    random: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Memory {
    Input(usize),
    Output,
    Scratch(usize),
}

impl<'a> Engine<'a> {
    fn new(
        schedule: &'a Schedule,
        layout: &'a Layout,
        inputs: &[Vec<Vec<f64>>],
        buffers: Buffers,
        seed: u64,
    ) -> Self {
        let num_ranks = schedule.num_ranks();
        let mut memory = BTreeMap::new();
        let scratch = layout.scratch_lens(schedule);
        for rank in 0..num_ranks {
            memory.insert((rank, Memory::Output), vec![f64::NAN; layout.output_len(rank)]);
            for (number, input) in inputs[rank].iter().enumerate() {
                assert_eq!(input.len(), layout.input_len(rank));
                let target = match (buffers, number) {
                    (Buffers::InPlace, 0) => Memory::Output,
                    _ => Memory::Input(number),
                };
                memory.insert((rank, target), input.clone());
            }
            for (slot, len) in scratch[rank].iter().enumerate() {
                memory.insert((rank, Memory::Scratch(slot)), vec![f64::NAN; *len]);
            }
        }
        let mut engine = Self {
            schedule,
            layout,
            buffers,
            memory,
            open: vec![Vec::new(); num_ranks],
            rounds: vec![0; num_ranks],
            mail: BTreeMap::new(),
            posted: BTreeMap::new(),
            expected: BTreeMap::new(),
            signals: vec![0; num_ranks],
            random: seed,
        };
        (0..num_ranks).for_each(|rank| engine.next_round(rank));
        engine
    }

    fn is_done(&self) -> bool {
        self.open.iter().all(Vec::is_empty)
    }

    fn outputs(mut self) -> Vec<Vec<f64>> {
        let ranks = 0..self.schedule.num_ranks();
        ranks.filter_map(|rank| self.memory.remove(&(rank, Memory::Output))).collect()
    }

    /// Posts the next round that has steps. Messages are numbered in program order.
    fn next_round(&mut self, rank: usize) {
        while self.open[rank].is_empty() && self.rounds[rank] < self.schedule.programs[rank].len() {
            let schedule = self.schedule;
            for step in &schedule.programs[rank][self.rounds[rank]] {
                let counter = match *step {
                    Step::Send { peer, .. } => Some(self.posted.entry((rank, peer)).or_default()),
                    Step::Recv { peer, .. } | Step::RecvReduce { peer, .. } => {
                        Some(self.expected.entry((peer, rank)).or_default())
                    }
                    _ => None,
                };
                let number = counter.map_or(0, |counter| {
                    *counter += 1;
                    *counter
                });
                self.open[rank].push((step, number));
            }
            self.rounds[rank] += 1;
        }
    }

    /// Runs a random step that is ready.
    fn run_ready_step(&mut self) {
        let candidates: Vec<(usize, usize)> = (0..self.open.len())
            .flat_map(|rank| (0..self.open[rank].len()).map(move |index| (rank, index)))
            .collect();
        let start = self.pick(candidates.len());
        let turned = candidates[start..].iter().chain(&candidates[..start]);
        let able = turned.copied().find(|&(rank, index)| self.can_do(rank, self.open[rank][index]));
        let (rank, index) = able.expect("some step is always ready");
        let (step, number) = self.open[rank].remove(index);
        self.perform(rank, step, number);
        if self.open[rank].is_empty() {
            self.next_round(rank);
        }
    }

    fn can_do(&self, rank: usize, (step, number): (&Step, usize)) -> bool {
        match *step {
            Step::Recv { peer, .. } | Step::RecvReduce { peer, .. } => {
                self.mail.contains_key(&(peer, rank, number))
            }
            Step::Wait { rank, count } => self.signals[rank] >= count,
            _ => true,
        }
    }

    fn perform(&mut self, rank: usize, step: &Step, number: usize) {
        match step {
            Step::Send { peer, chunks, from } => {
                let data = self.read(from.on(rank), *chunks);
                self.mail.insert((rank, *peer, number), data);
            }
            Step::Recv { peer, chunks, into } => {
                let data = self.mail.remove(&(*peer, rank, number)).expect("it came");
                self.write(into.on(rank), *chunks, &data);
            }
            Step::RecvReduce { peer, chunks, into, with, received } => {
                let data = self.mail.remove(&(*peer, rank, number)).expect("it came");
                let own = self.read(with.on(rank), *chunks);
                let sum = match received {
                    Side::Left => add(&data, &own),
                    Side::Right => add(&own, &data),
                };
                self.write(into.on(rank), *chunks, &sum);
            }
            Step::Copy { chunks, into, from } => {
                let data = self.read(*from, *chunks);
                self.write(*into, *chunks, &data);
            }
            Step::Reduce { chunks, into, sum } => {
                let data = self.evaluate(sum, *chunks);
                for place in into {
                    self.write(*place, *chunks, &data);
                }
            }
            Step::Signal => self.signals[rank] += 1,
            Step::Wait { .. } => {}
        }
    }

    fn evaluate(&self, sum: &SumTree<Place>, chunks: Chunks) -> Vec<f64> {
        match sum {
            SumTree::Leaf(place) => self.read(*place, chunks),
            SumTree::Sum(left, right) => {
                add(&self.evaluate(left, chunks), &self.evaluate(right, chunks))
            }
        }
    }

    fn key(&self, place: Place) -> (usize, Memory) {
        let memory = match place.buffer {
            Buffer::Input(0) if self.buffers == Buffers::InPlace => Memory::Output,
            Buffer::Input(number) => Memory::Input(number),
            Buffer::Output => Memory::Output,
            Buffer::Scratch { slot, .. } => Memory::Scratch(slot),
        };
        (place.rank, memory)
    }

    fn read(&self, place: Place, chunks: Chunks) -> Vec<f64> {
        if chunks.is_empty() {
            return Vec::new();
        }
        let range = self.layout.range(place.rank, place.buffer, chunks);
        self.memory[&self.key(place)][range].to_vec()
    }

    fn write(&mut self, place: Place, chunks: Chunks, data: &[f64]) {
        if !chunks.is_empty() {
            let range = self.layout.range(place.rank, place.buffer, chunks);
            let memory = self.memory.get_mut(&self.key(place)).expect("it has room");
            memory[range].copy_from_slice(data);
        }
    }

    /// A number below `limit`.
    fn pick(&mut self, limit: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) as usize % limit
    }
}

fn add(left: &[f64], right: &[f64]) -> Vec<f64> {
    left.iter().zip(right).map(|(left, right)| left + right).collect()
}

/// Expected outputs, computed directly; sums in the proven order.
pub(crate) fn expected(
    schedule: &Schedule,
    layout: &Layout,
    inputs: &[Vec<Vec<f64>>],
    sums: &[(Chunks, SumTree<Contribution>)],
) -> Vec<Vec<f64>> {
    let element = |contribution: &Contribution, chunk: usize, offset: usize| {
        let range =
            layout.range(contribution.rank, Buffer::Input(contribution.index), Chunks::one(chunk));
        inputs[contribution.rank][contribution.index][range.start + offset]
    };
    let value = |chunk: usize, offset: usize| {
        if let Some((_, order)) = sums.iter().find(|(run, _)| run.contains(Chunks::one(chunk))) {
            return total(&order.map(&mut |contribution| element(contribution, chunk, offset)));
        }
        let mut ranks = 0..schedule.num_ranks();
        let owner = ranks.find(|&rank| schedule.input(rank).position(chunk).is_some());
        let owner = Contribution { rank: owner.expect("every chunk has an owner"), index: 0 };
        element(&owner, chunk, offset)
    };
    let output = |rank: usize| {
        let chunks = schedule.output(rank).iter();
        let offsets =
            |chunk| (0..layout.len(Chunks::one(chunk))).map(move |offset| (chunk, offset));
        chunks.flat_map(offsets).map(|(chunk, offset)| value(chunk, offset)).collect()
    };
    (0..schedule.num_ranks()).map(output).collect()
}

fn total(tree: &SumTree<f64>) -> f64 {
    match tree {
        SumTree::Leaf(value) => *value,
        SumTree::Sum(left, right) => total(left) + total(right),
    }
}

/// Inputs whose sums expose every change of order: magnitudes that differ by rank and position.
pub(crate) fn inputs(schedule: &Schedule, layout: &Layout, seed: u64) -> Vec<Vec<Vec<f64>>> {
    let value = |rank: usize, number: usize, index: usize| {
        let mixed = (seed + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add((rank * 1009 + number * 101 + index) as u64)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let magnitude = [1e-9, 1.0, 1e9][(mixed >> 20) as usize % 3];
        ((mixed >> 40) as f64 - 8e6) * magnitude
    };
    let input = |rank: usize, number: usize| {
        let len = if schedule.op == Op::Barrier { 0 } else { layout.input_len(rank) };
        (0..len).map(|index| value(rank, number, index)).collect()
    };
    let numbers = |rank: usize| 0..schedule.contributions.num_inputs(rank);
    let of_rank = |rank| numbers(rank).map(|number| input(rank, number)).collect();
    (0..schedule.num_ranks()).map(of_rank).collect()
}

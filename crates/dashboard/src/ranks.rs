//! Counters of the ranks: the newest of each, and how their waits changed from evaluation to
//! evaluation, for a map of stragglers.

use lockstep_telemetry::Event;
use lockstep_telemetry::event::MemoryByPart;
use serde::Serialize;
use std::collections::BTreeMap;

/// Ranks whose counters are kept.
pub const MAX_RANKS: usize = 4096;
/// Evaluations of the map; with more, two neighbours become one.
const MAX_EVALUATIONS: usize = 128;
/// Cells of the map over all evaluations.
const MAX_CELLS: usize = 1 << 17;
/// Rows of the map in an answer; with more ranks, neighbours share a row.
const MAX_ROWS: usize = 128;

/// Newest counters of a rank, and its rates since the counters before them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are those of `Event::RankCounters`")]
pub struct Rank {
    pub rank: usize,
    pub step: u64,
    pub restarts: u64,
    pub missed_steps: u64,
    /// Bytes sent along the data, pipeline and tensor axes and for the strategy.
    pub sent_bytes: [u64; 4],
    pub exposed_seconds: f64,
    pub straggler_seconds: f64,
    pub resident_bytes: Option<u64>,
    pub device_bytes: Option<u64>,
    pub busy_share: Option<f64>,
    pub clock_hertz: Option<f64>,
    pub throttle_count: Option<u64>,
    /// Memory that the engine holds, by part.
    pub memory: Option<MemoryByPart>,
    /// Exposed communication and straggler wait of a step, since the counters before these.
    pub per_step: [f64; 2],
}

/// Figures of a rank between two evaluations: straggler wait and exposed communication of a step,
/// and the busy share.
type Cell = [Option<f32>; 3];

/// Counters of all ranks.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    newest: BTreeMap<usize, Rank>,
    /// Cells of the ranks at each evaluation, by its step.
    map: Vec<(u64, BTreeMap<usize, Cell>)>,
}

/// Waits of ranks over evaluations, as a page draws them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StragglerMap {
    /// Steps of the evaluations: the columns.
    pub steps: Vec<u64>,
    /// First rank of each row.
    pub ranks: Vec<usize>,
    /// Wait for a straggler in a step, by row and column.
    pub straggler_seconds: Vec<Vec<Option<f32>>>,
    /// Exposed communication of a step.
    pub exposed_seconds: Vec<Vec<Option<f32>>>,
    /// Busy share.
    pub busy_share: Vec<Vec<Option<f32>>>,
}

impl Ranks {
    /// Takes an event of counters in an attempt that began after `attempt_step` steps.
    pub(crate) fn count(&mut self, event: &Event, attempt_step: u64) {
        let &Event::RankCounters {
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
            memory,
            ..
        } = event
        else {
            return;
        };
        if worker >= MAX_RANKS {
            return;
        }
        let before = self.newest.get(&worker).filter(|before| before.step < step);
        let (before_step, exposed, straggler) = before.map_or((attempt_step, 0.0, 0.0), |it| {
            (it.step, it.exposed_seconds, it.straggler_seconds)
        });
        let steps = step.saturating_sub(before_step).max(1) as f64;
        let per_step = [
            (exposed_communication_seconds - exposed) / steps,
            (straggler_wait_seconds - straggler) / steps,
        ];
        let sent_bytes = [data_bytes, pipeline_bytes, tensor_bytes, strategy_bytes];
        let rank = Rank {
            rank: worker,
            step,
            restarts,
            missed_steps,
            sent_bytes,
            exposed_seconds: exposed_communication_seconds,
            straggler_seconds: straggler_wait_seconds,
            resident_bytes,
            device_bytes,
            busy_share,
            clock_hertz,
            throttle_count,
            memory,
            per_step,
        };
        self.newest.insert(worker, rank);
        let cell =
            [Some(per_step[1] as f32), Some(per_step[0] as f32), busy_share.map(|it| it as f32)];
        self.add_cell(step, worker, cell);
    }

    fn add_cell(&mut self, step: u64, rank: usize, cell: Cell) {
        match self.map.last_mut() {
            Some((last, cells)) if *last == step => _ = cells.insert(rank, cell),
            _ => self.map.push((step, BTreeMap::from([(rank, cell)]))),
        }
        let num_cells = self.map.len() * self.newest.len();
        if self.map.len() > MAX_EVALUATIONS || (num_cells > MAX_CELLS && self.map.len() > 2) {
            self.merge_pairs();
        }
    }

    /// Makes one column of two neighbours, with their means. The newest, maybe not whole, stays.
    fn merge_pairs(&mut self) {
        let Some(newest) = self.map.pop() else { return };
        let mut columns = std::mem::take(&mut self.map).into_iter();
        while let Some((step, cells)) = columns.next() {
            let Some((later, mut later_cells)) = columns.next() else {
                self.map.push((step, cells));
                break;
            };
            for (rank, cell) in cells {
                let both = later_cells.get(&rank).map_or(cell, |other| mean_cell(&[cell, *other]));
                later_cells.insert(rank, both);
            }
            self.map.push((later, later_cells));
        }
        self.map.push(newest);
    }

    /// Counters begin at zero again.
    pub(crate) fn start_attempt(&mut self) {
        self.newest.clear();
    }

    /// Removes steps that are run again.
    pub(crate) fn forget_after(&mut self, last_step: u64) {
        self.map.retain(|(step, _)| *step <= last_step);
    }

    /// Newest counters of the ranks, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Rank> {
        self.newest.values()
    }

    /// Waits of the ranks over the evaluations.
    pub fn straggler_map(&self) -> StragglerMap {
        let num_ranks = 1 + self.newest.keys().next_back().copied().unwrap_or(0);
        let ranks_per_row = num_ranks.div_ceil(MAX_ROWS);
        let ranks: Vec<usize> = (0..num_ranks).step_by(ranks_per_row).collect();
        let cell_of = |first: usize, cells: &BTreeMap<usize, Cell>| {
            let inside = cells.range(first..first + ranks_per_row);
            mean_cell(&inside.map(|(_, cell)| *cell).collect::<Vec<_>>())
        };
        let row = |first: usize| -> Vec<Cell> {
            self.map.iter().map(|(_, cells)| cell_of(first, cells)).collect()
        };
        let rows: Vec<Vec<Cell>> = ranks.iter().map(|first| row(*first)).collect();
        let figures = |figure: usize| -> Vec<Vec<Option<f32>>> {
            rows.iter().map(|row| row.iter().map(|cell| cell[figure]).collect()).collect()
        };
        StragglerMap {
            steps: self.map.iter().map(|(step, _)| *step).collect(),
            straggler_seconds: figures(0),
            exposed_seconds: figures(1),
            busy_share: figures(2),
            ranks,
        }
    }
}

/// Mean of each figure over the cells that have it.
fn mean_cell(cells: &[Cell]) -> Cell {
    std::array::from_fn(|figure| {
        let known: Vec<f32> = cells.iter().filter_map(|cell| cell[figure]).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f32>() / known.len() as f32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(step: u64, worker: usize, exposed: f64) -> Event {
        Event::RankCounters {
            step,
            worker,
            restarts: 0,
            missed_steps: 0,
            data_bytes: 7 * step,
            pipeline_bytes: 0,
            tensor_bytes: 0,
            strategy_bytes: 0,
            exposed_communication_seconds: exposed,
            straggler_wait_seconds: 0.0,
            resident_bytes: Some(1),
            device_bytes: None,
            busy_share: None,
            clock_hertz: None,
            throttle_count: None,
            first_rank_on_host: None,
            memory: Some(MemoryByPart { weights: 8, ..MemoryByPart::default() }),
        }
    }

    #[test]
    fn rates_of_a_rank_are_those_since_its_last_counters() {
        let mut ranks = Ranks::default();
        ranks.count(&counters(10, 1, 2.0), 0);
        ranks.count(&counters(30, 1, 4.0), 0);
        let newest: Vec<&Rank> = ranks.iter().collect();
        assert_eq!((newest.len(), newest[0].per_step[0]), (1, 0.1));
        assert_eq!(newest[0].sent_bytes, [210, 0, 0, 0]);
        assert_eq!(newest[0].memory.map(|memory| memory.weights), Some(8));
    }

    #[test]
    fn the_map_has_a_row_a_rank_and_a_column_an_evaluation_and_is_bounded() {
        let mut ranks = Ranks::default();
        for step in [10, 20] {
            for worker in [0, 2] {
                let exposed = if worker == 2 && step == 20 { 5.0 } else { 1.0 };
                ranks.count(&counters(step, worker, exposed), 0);
            }
        }
        let map = ranks.straggler_map();
        assert_eq!((map.steps, map.ranks), (vec![10, 20], vec![0, 1, 2]));
        let expected = [[Some(0.1), Some(0.0)], [None, None], [Some(0.1), Some(0.4)]];
        assert_eq!(map.exposed_seconds, expected);
        ranks.forget_after(10);
        assert_eq!(ranks.straggler_map().steps, [10]);
        // A rate that is the same at all evaluations is the same after any number of them.
        for evaluation in 2..1000 {
            for worker in 0..300 {
                ranks.count(&counters(10 * evaluation, worker, evaluation as f64), 0);
            }
        }
        let map = ranks.straggler_map();
        assert!(map.steps.len() > 40 && map.steps.len() <= MAX_EVALUATIONS, "{:?}", map.steps);
        assert_eq!((map.steps.last(), map.ranks.len()), (Some(&9990), 100));
        let row = &map.exposed_seconds[50];
        assert!(row[2..].iter().all(|it| it.is_some_and(|it| (it - 0.1).abs() < 1e-3)), "{row:?}");
    }
}

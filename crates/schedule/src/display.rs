//! Text rendering of schedules: a table with a row per round and a column per rank.
//!
//! `[2]→1` sends chunk 2 to rank 1, `[2]←1` receives it, `[2]+←1` receives and adds. `[2]=` copies,
//! `[2]=@1` copies from rank 1, `@1[2]=` copies to rank 1, `[2]Σ` reduces. `!` signals, and `?1`
//! waits for rank 1.

use std::fmt;

use crate::instruction::{Buffer, Place, Step};
use crate::schedule::{Schedule, StepId};
use crate::timeline::{Hops, Timeline, simulate};

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (num_ranks, num_chunks) = (self.num_ranks(), self.num_chunks);
        writeln!(f, "{} by {}, {num_ranks} ranks, {num_chunks} chunks", self.op, self.algorithm)?;
        for line in table(&rows(self)) {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

/// Cells of the table with its header. A message is in the row of the communication round that it
/// takes; local steps are in the row of the last message.
fn rows(schedule: &Schedule) -> Vec<Vec<String>> {
    let ranks = 0..schedule.num_ranks();
    let headings = std::iter::once("round".to_owned()).chain(ranks.map(|r| format!("rank {r}")));
    let mut rows = vec![headings.collect::<Vec<String>>()];
    let timeline = simulate(schedule, &Hops);
    for (id, step) in schedule.steps() {
        let row = match &timeline {
            Some(Timeline { starts, through, .. }) => {
                let time = through.get(&id).unwrap_or(&starts[id.rank][id.round]);
                (*time as usize).max(1)
            }
            // A schedule that deadlocks has no times; its rounds are shown by their numbers.
            None => 1 + id.round,
        };
        while rows.len() <= row {
            let mut cells = vec![String::new(); 1 + schedule.num_ranks()];
            cells[0] = rows.len().to_string();
            rows.push(cells);
        }
        let cell = &mut rows[row][1 + id.rank];
        if !cell.is_empty() {
            cell.push(' ');
        }
        cell.push_str(&Drawn { rank: id.rank, step }.to_string());
    }
    rows
}

/// Columns of equal width, two spaces apart.
fn table(rows: &[Vec<String>]) -> Vec<String> {
    let num_columns = rows[0].len();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..num_columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// A step in the column of its rank.
struct Drawn<'a> {
    rank: usize,
    step: &'a Step,
}

impl fmt::Display for Drawn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elsewhere = |place: &Place| match place.rank {
            rank if rank == self.rank => String::new(),
            rank => format!("@{rank}"),
        };
        match self.step {
            Step::Copy { chunks, into, from } => {
                write!(f, "{}{chunks}={}", elsewhere(into), elsewhere(from))
            }
            other => other.fmt(f),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { peer, chunks, .. } => write!(f, "{chunks}→{peer}"),
            Self::Recv { peer, chunks, .. } => write!(f, "{chunks}←{peer}"),
            Self::RecvReduce { peer, chunks, .. } => write!(f, "{chunks}+←{peer}"),
            Self::Copy { chunks, into, from } => {
                write!(f, "@{}{chunks}=@{}", into.rank, from.rank)
            }
            Self::Reduce { chunks, .. } => write!(f, "{chunks}Σ"),
            Self::Signal => f.write_str("!"),
            Self::Wait { rank, .. } => write!(f, "?{rank}"),
        }
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(0) => f.write_str("input"),
            Self::Input(index) => write!(f, "input {index}"),
            Self::Output => f.write_str("output"),
            Self::Scratch { slot, .. } => write!(f, "scratch {slot}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}'s {}", self.rank, self.buffer)
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} round {} step {}", self.rank, self.round, self.step)
    }
}

#[cfg(test)]
mod tests {
    use crate::algorithm::Algorithm;
    use crate::collective::{GroupSpec, build};
    use crate::op::Op;

    fn drawn(op: Op, algorithm: Algorithm, num_ranks: usize) -> String {
        build(op, algorithm, &GroupSpec::new(num_ranks)).unwrap().to_string()
    }

    #[test]
    fn a_ring_is_a_band_of_diagonals() {
        let expected = "\
all-reduce by ring, 3 ranks, 3 chunks
round  rank 0        rank 1        rank 2
1      [2]→1 [1]+←2  [2]+←0 [0]→2  [0]+←1 [1]→0
2      [1]→1 [0]+←2  [1]+←0 [2]→2  [2]+←1 [0]→0
3      [0]→1 [2]←2   [0]←0 [1]→2   [1]←1 [2]→0
4      [2]→1 [1]←2   [2]←0 [0]→2   [0]←1 [1]→0
";
        assert_eq!(drawn(Op::AllReduce, Algorithm::RING, 3), expected);
    }

    #[test]
    fn shared_memory_shows_signals_sums_and_whose_memory_is_used() {
        let expected = "\
reduce-scatter by direct, 2 ranks, 2 chunks
round  rank 0       rank 1
1      ! ?1 [0]Σ !  ! ?0 [1]Σ !
2      ?1           ?0
";
        assert_eq!(drawn(Op::ReduceScatter, Algorithm::Direct, 2), expected);
        let gather = drawn(Op::Gather { root: 1 }, Algorithm::Direct, 2);
        assert!(gather.contains("@1[0]="), "{gather}");
    }

    #[test]
    fn ranks_without_steps_have_empty_cells() {
        let expected = "\
broadcast (root 0) by tree, 3 ranks, 1 chunks
round  rank 0      rank 1  rank 2
1      [0]= [0]→2          [0]←0
2      [0]→1       [0]←0
";
        assert_eq!(drawn(Op::Broadcast { root: 0 }, Algorithm::Tree, 3), expected);
    }

    #[test]
    fn a_schedule_that_deadlocks_can_still_be_rendered() {
        let mut stuck = build(Op::Barrier, Algorithm::Dissemination, &GroupSpec::new(2)).unwrap();
        stuck.programs[1].clear();
        assert!(stuck.to_string().contains("[]→1"));
    }
}

//! Walk through ring attention: keys and values travel around a ring of ranks, each of which has
//! the queries of its part of a sequence (Liu, Zaharia and Abbeel 2023).

use super::{Frame, Held, Message, Walk};
use lockstep_config::units::Bytes;

/// Causal attention over a sequence of `bytes` of keys and values. A block that lies after the
/// queries is passed on without work.
pub(super) fn walk(num_ranks: usize, bytes: Bytes) -> Walk {
    let n = num_ranks;
    let block = Bytes(bytes.0 / n as u64);
    let mut is_done = vec![vec![false; n]; n];
    let mut frames = Vec::new();
    for round in 0..n {
        // The block of rank r arrives at rank r + round.
        let at = |rank: usize| (rank + n - round) % n;
        let messages = (0..n).filter(|_| round > 0).map(|rank| Message {
            source: (rank + n - 1) % n,
            target: rank,
            content: format!("keys and values {}", at(rank)),
            bytes: block,
        });
        let messages = messages.collect();
        for (rank, row) in is_done.iter_mut().enumerate() {
            row[at(rank)] = at(rank) <= rank;
        }
        let cell = |rank: usize, column: usize| {
            let (text, share) = match (column == at(rank), is_done[rank][column]) {
                (true, true) => ("attends", 1.0),
                (true, false) => ("skips", 0.2),
                (false, true) => ("added", 0.5),
                (false, false) => ("·", 0.0),
            };
            Held { text: text.to_owned(), share }
        };
        let held = (0..n).map(|rank| (0..n).map(|column| cell(rank, column)).collect()).collect();
        let sent = vec![Bytes(block.0 * round as u64); n];
        let title = match round {
            0 => "own block".to_owned(),
            _ => format!("round {round}"),
        };
        frames.push(Frame { title, messages, held, sent });
    }
    let title = format!("ring attention, {n} ranks, causal");
    let cells = "in the cells: attention of the rank's queries to the block";
    Walk { title, row: "rank", column: "block", cells, frames }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_attends_to_all_earlier_blocks_and_sends_all_but_one() {
        let walk = walk(4, Bytes(4000));
        assert_eq!(walk.frames.len(), 4);
        let last = walk.frames.last().expect("a frame");
        for (rank, row) in last.held.iter().enumerate() {
            for (block, cell) in row.iter().enumerate() {
                let has_attended = ["attends", "added"].contains(&cell.text.as_str());
                assert_eq!(
                    has_attended,
                    block <= rank,
                    "rank {rank}, block {block}: {}",
                    cell.text
                );
            }
        }
        assert_eq!(last.sent, vec![Bytes(3000); 4]);
        assert!(walk.frames[0].messages.is_empty() && walk.frames[1].messages.len() == 4);
    }
}

//! Walk through gossip: a model is a mean of the models that all ranks began with.

use super::{Frame, Held, Message, Walk};
use lockstep_config::GraphName;
use lockstep_config::units::Bytes;
use lockstep_parallel::gossip::graph::Graph;

/// Rounds of a graph whose models become equal in the long run only.
const MAX_ROUNDS: u64 = 24;
/// Largest difference between two weights of equal models.
const EQUAL: f64 = 0.01;

/// Mixes on a graph of the engine until the models are equal within a percent.
pub(super) fn walk(name: GraphName, num_ranks: usize, bytes: Bytes) -> Walk {
    let graph = Graph::new(name, num_ranks, 2, 0);
    let mut sent = vec![Bytes(0); num_ranks];
    // One row a rank: the weight of each rank's first model in its own.
    let mut weights: Vec<Vec<f64>> =
        (0..num_ranks).map(|rank| unit_vector(rank, num_ranks)).collect();
    let mut frames = vec![frame("begin".to_owned(), &weights, Vec::new(), &sent)];
    for round in 0..MAX_ROUNDS {
        let messages: Vec<Message> = (0..num_ranks)
            .flat_map(|target| {
                let sources = graph.in_neighbors(round, target).iter().map(|(source, _)| *source);
                let others = sources.filter(move |source| *source != target);
                let content = "model".to_owned();
                others.map(move |source| Message {
                    source,
                    target,
                    content: content.clone(),
                    bytes,
                })
            })
            .collect();
        for message in &messages {
            sent[message.source] += bytes;
        }
        weights = (0..num_ranks)
            .map(|rank| mean(graph.in_neighbors(round, rank), &weights, num_ranks))
            .collect();
        frames.push(frame(format!("round {}", round + 1), &weights, messages, &sent));
        if difference(&weights) < EQUAL {
            break;
        }
    }
    let title = format!("gossip on a {name}, {num_ranks} ranks");
    let cells = "in the cells: weight of that rank's first model";
    Walk { title, row: "rank", column: "model", cells, frames }
}

fn unit_vector(rank: usize, num_ranks: usize) -> Vec<f64> {
    (0..num_ranks).map(|other| f64::from(u8::from(other == rank))).collect()
}

fn mean(neighbors: &[(usize, f64)], weights: &[Vec<f64>], num_ranks: usize) -> Vec<f64> {
    let of = |origin: usize| neighbors.iter().map(|(rank, w)| w * weights[*rank][origin]).sum();
    (0..num_ranks).map(of).collect()
}

/// Largest difference between the weights of a model on two ranks.
fn difference(weights: &[Vec<f64>]) -> f64 {
    let spread = |origin: usize| {
        let column = || weights.iter().map(|row| row[origin]);
        column().fold(f64::MIN, f64::max) - column().fold(f64::MAX, f64::min)
    };
    (0..weights.len()).map(spread).fold(0.0, f64::max)
}

fn frame(title: String, weights: &[Vec<f64>], messages: Vec<Message>, sent: &[Bytes]) -> Frame {
    let cell = |weight: &f64| Held {
        text: if *weight > 0.0 { format!("{:.1} %", 100.0 * weight) } else { "·".to_owned() },
        share: *weight,
    };
    let held = weights.iter().map(|row| row.iter().map(cell).collect()).collect();
    Frame { title, messages, held, sent: sent.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_become_the_mean_of_all_and_their_number_is_kept() {
        // An exponential graph of 8 ranks has the mean after three rounds, a ring approaches it.
        let exact = walk(GraphName::OnePeer, 8, Bytes(1000));
        assert_eq!(exact.frames.len(), 4, "{}", exact.title);
        for name in [GraphName::Ring, GraphName::Torus, GraphName::OnePeer] {
            let walk = walk(name, 8, Bytes(1000));
            let last = walk.frames.last().expect("a frame");
            for row in &last.held {
                let sum: f64 = row.iter().map(|cell| cell.share).sum();
                assert!((sum - 1.0).abs() < 1e-9, "{name}: {sum}");
                for cell in row {
                    assert!((cell.share - 0.125).abs() <= EQUAL, "{name}: {}", cell.text);
                }
            }
        }
        // Each rank of a ring sends its model to two neighbours in a round.
        let ring = walk(GraphName::Ring, 4, Bytes(1000));
        assert_eq!(ring.frames[1].messages.len(), 8);
        assert_eq!(ring.frames[1].sent, vec![Bytes(2000); 4]);
    }
}

//! Links that several messages pass at a time: bandwidth is divided among them as they come and go.
//!
//! A message waits for its latency and then flows. While it flows, every link on its way divides
//! its bandwidth evenly among the flows that pass it, and the flow goes at the least of its shares.
//! Whenever a flow begins or ends, those that share a link with it change their pace.

use super::collective::Player;
use lockstep_schedule::Link;

/// Links with the ways over them.
#[derive(Debug, Clone, PartialEq)]
pub struct Shared {
    num_ranks: usize,
    /// Bytes a second of every link.
    capacities: Vec<f64>,
    /// By source and target: the latency and the links on the way.
    ways: Vec<(f64, Vec<usize>)>,
}

impl Shared {
    /// Nodes of equally many ranks. Ranks of a node have a port of their own towards each other;
    /// what leaves or enters a node goes through one of its cards, the ranks dealt out among them
    /// in turn. Ports and cards carry as much in as out.
    pub fn nodes(
        num_nodes: usize,
        ranks_per_node: usize,
        cards_per_node: usize,
        inside: Link,
        between: Link,
    ) -> Self {
        let num_ranks = num_nodes * ranks_per_node;
        let num_cards = num_nodes * cards_per_node;
        let mut capacities = vec![inside.bandwidth.0; 2 * num_ranks];
        capacities.extend(std::iter::repeat_n(between.bandwidth.0, 2 * num_cards));
        let card = |rank: usize| {
            rank / ranks_per_node * cards_per_node + rank % ranks_per_node % cards_per_node
        };
        let way = |pair: usize| {
            let (source, target) = (pair / num_ranks, pair % num_ranks);
            if source / ranks_per_node == target / ranks_per_node {
                return (inside.latency.0, vec![source, num_ranks + target]);
            }
            let out = 2 * num_ranks + card(source);
            (between.latency.0, vec![out, 2 * num_ranks + num_cards + card(target)])
        };
        Self { num_ranks, capacities, ways: (0..num_ranks * num_ranks).map(way).collect() }
    }

    fn way(&self, source: u32, target: u32) -> &(f64, Vec<usize>) {
        &self.ways[source as usize * self.num_ranks + target as usize]
    }
}

/// A message that flows.
struct Flow {
    number: u32,
    left: f64,
    rate: f64,
    since: f64,
}

/// Until nothing happens any more; how many events there were.
pub(super) fn run(player: &mut Player<'_>, shared: &Shared) -> u64 {
    let compiled = player.compiled;
    let num_messages = compiled.messages.len();
    let mut flows: Vec<Flow> = Vec::new();
    let mut passing = vec![0_u32; shared.capacities.len()];
    let (mut flying, mut num_events, mut now) = (Vec::new(), 0, 0.0_f64);
    loop {
        // What comes first: the end of a flow, or something in the queue.
        let ends = flows.iter().enumerate().map(|(index, flow)| (flow.end(), index));
        let next_end = ends.min_by(|a, b| a.0.total_cmp(&b.0));
        let next = player.queue.pop();
        let ends_first = match (next_end, next) {
            (None, None) => return num_events,
            (Some((end, _)), Some((time, _))) => end <= time,
            (end, _) => end.is_some(),
        };
        num_events += 1;
        if ends_first {
            if let Some((time, what)) = next {
                player.queue.push(time, what);
            }
            let (end, index) = next_end.expect("a flow ends");
            now = end.max(now);
            let flow = flows.swap_remove(index);
            let message = compiled.messages[flow.number as usize];
            for link in &shared.way(message.source, message.target).1 {
                passing[*link] -= 1;
            }
            player.arrive(&message, now, &mut flying);
        } else if let Some((time, what)) = next {
            now = time.max(now);
            if let Some(message) = compiled.messages.get(what as usize) {
                for link in &shared.way(message.source, message.target).1 {
                    passing[*link] += 1;
                }
                let left = message.bytes.0 as f64;
                flows.push(Flow { number: what, left, rate: 0.0, since: now });
            } else {
                player.post(what as usize - num_messages, now, &mut flying);
            }
        }
        for number in flying.drain(..) {
            let message = &compiled.messages[number as usize];
            player.queue.push(now + shared.way(message.source, message.target).0, number);
        }
        for flow in &mut flows {
            let message = &compiled.messages[flow.number as usize];
            let way = &shared.way(message.source, message.target).1;
            let share = |link: &usize| shared.capacities[*link] / f64::from(passing[*link]);
            flow.pace(now, way.iter().map(share).fold(f64::INFINITY, f64::min));
        }
    }
}

impl Flow {
    fn end(&self) -> f64 {
        self.since + self.left / self.rate
    }

    /// Goes on at another rate, if it is another one.
    fn pace(&mut self, now: f64, rate: f64) {
        if rate.to_bits() != self.rate.to_bits() {
            self.left = (self.left - self.rate * (now - self.since)).max(0.0);
            (self.rate, self.since) = (rate, now);
        }
    }
}

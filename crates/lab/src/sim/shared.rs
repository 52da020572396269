//! Links that several messages pass at a time: bandwidth is divided among them as they come and go.
//!
//! A message waits for its latency and then flows. While it flows, every link on its way divides
//! its bandwidth evenly among the flows that pass it, and the flow goes at the least of its shares.
//! Whenever a flow begins or ends, those that share a link with it change their pace.

use super::collective::{Message, Player};
use lockstep_schedule::Link;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

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
#[derive(Clone, Copy)]
struct Flow {
    left: f64,
    rate: f64,
    since: f64,
    /// Which of its ends in the queue counts: whoever changes its pace ends later or sooner.
    version: u32,
}

/// All that flow, and who shares what.
struct Flows<'a> {
    shared: &'a Shared,
    /// By message; only those that are under way mean anything.
    by_message: Vec<Flow>,
    /// The messages on every link.
    passing: Vec<Vec<u32>>,
    /// When flows end, by time, then by message; outdated ones among them.
    ends: BinaryHeap<Reverse<(u64, u32, u32)>>,
}

impl Flows<'_> {
    /// When the next flow ends, and which; what is outdated is thrown away.
    fn next_end(&mut self) -> Option<(f64, u32)> {
        while let Some(Reverse((time, number, version))) = self.ends.peek() {
            if self.by_message[*number as usize].version == *version {
                return Some((f64::from_bits(*time), *number));
            }
            self.ends.pop();
        }
        None
    }

    fn begin(&mut self, number: u32, message: &Message, now: f64) {
        let left = message.bytes.0 as f64;
        let flow = &mut self.by_message[number as usize];
        *flow = Flow { left, rate: 0.0, since: now, version: flow.version };
        let way = &self.shared.way(message.source, message.target).1;
        for link in way {
            self.passing[*link].push(number);
        }
    }

    fn end(&mut self, number: u32, message: &Message) {
        self.ends.pop();
        self.by_message[number as usize].version += 1;
        let way = &self.shared.way(message.source, message.target).1;
        for link in way {
            self.passing[*link].retain(|other| *other != number);
        }
    }

    /// Gives the flows on a message's way their shares, now that it has come or gone.
    fn share_out(&mut self, message: &Message, messages: &[Message], now: f64) {
        let way = &self.shared.way(message.source, message.target).1;
        for (index, link) in way.iter().enumerate() {
            for place in 0..self.passing[*link].len() {
                let number = self.passing[*link][place];
                // On both links it would be paced twice, to the same effect.
                if index == 0 || !self.passing[way[0]].contains(&number) {
                    self.pace(number, &messages[number as usize], now);
                }
            }
        }
    }

    /// Goes on at the least of its shares, if that is another one.
    fn pace(&mut self, number: u32, message: &Message, now: f64) {
        let way = &self.shared.way(message.source, message.target).1;
        let share = |link: &usize| self.shared.capacities[*link] / self.passing[*link].len() as f64;
        let rate = way.iter().map(share).fold(f64::INFINITY, f64::min);
        let flow = &mut self.by_message[number as usize];
        if rate.to_bits() != flow.rate.to_bits() {
            flow.left = (flow.left - flow.rate * (now - flow.since)).max(0.0);
            (flow.rate, flow.since) = (rate, now);
            flow.version += 1;
            let end = now.max(flow.since + flow.left / flow.rate);
            self.ends.push(Reverse((end.to_bits(), number, flow.version)));
        }
    }
}

/// Until nothing happens any more; how many events there were.
pub(super) fn run(player: &mut Player<'_>, shared: &Shared) -> u64 {
    let messages = &player.compiled.messages;
    let still = Flow { left: 0.0, rate: 0.0, since: 0.0, version: 0 };
    let mut flows = Flows {
        shared,
        by_message: vec![still; messages.len()],
        passing: vec![Vec::new(); shared.capacities.len()],
        ends: BinaryHeap::new(),
    };
    let (mut flying, mut num_events) = (Vec::new(), 0);
    loop {
        // What comes first: the end of a flow, or something in the queue.
        let now = match (flows.next_end(), player.queue.next_time()) {
            (None, None) => return num_events,
            (Some((end, number)), time) if time.is_none_or(|time| end <= time) => {
                let message = &messages[number as usize];
                flows.end(number, message);
                flows.share_out(message, messages, end);
                player.arrive(message, end, &mut flying);
                end
            }
            _ => {
                let (time, what) = player.queue.pop().expect("something is there");
                if let Some(message) = messages.get(what as usize) {
                    flows.begin(what, message, time);
                    flows.share_out(message, messages, time);
                } else {
                    player.post(what as usize - messages.len(), time, &mut flying);
                }
                time
            }
        };
        num_events += 1;
        for number in flying.drain(..) {
            let message = &messages[number as usize];
            player.queue.push(now + shared.way(message.source, message.target).0, number);
        }
    }
}

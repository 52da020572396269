//! Flow-level simulation of links that several messages share.
//!
//! A message waits for its latency and then becomes a flow. Every link on its path divides its
//! bandwidth evenly among its flows, and a flow runs at the smallest of its shares. Whenever a flow
//! starts or ends, the rates of the flows on its links are updated.

use super::compiled::Message;
use super::simulation::Simulation;
use lockstep_schedule::Link;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Shared links and the paths over them.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedLinks {
    num_ranks: usize,
    /// Bytes per second of every link.
    capacities: Vec<f64>,
    /// By source and target: the latency and the links of the path.
    paths: Vec<(f64, Vec<usize>)>,
}

impl SharedLinks {
    /// Nodes of equally many ranks. Every rank has its own port inside the node. Traffic between
    /// nodes goes through the NICs of both nodes, which the ranks of a node share round-robin.
    /// Ports and NICs are full duplex.
    pub fn nodes(
        num_nodes: usize,
        ranks_per_node: usize,
        nics_per_node: usize,
        inside: Link,
        between: Link,
    ) -> Self {
        let num_ranks = num_nodes * ranks_per_node;
        let num_nics = num_nodes * nics_per_node;
        let mut capacities = vec![inside.bandwidth.0; 2 * num_ranks];
        capacities.extend(std::iter::repeat_n(between.bandwidth.0, 2 * num_nics));
        let nic = |rank: usize| {
            rank / ranks_per_node * nics_per_node + rank % ranks_per_node % nics_per_node
        };
        let path = |pair: usize| {
            let (source, target) = (pair / num_ranks, pair % num_ranks);
            if source / ranks_per_node == target / ranks_per_node {
                return (inside.latency.0, vec![source, num_ranks + target]);
            }
            let out = 2 * num_ranks + nic(source);
            (between.latency.0, vec![out, 2 * num_ranks + num_nics + nic(target)])
        };
        Self { num_ranks, capacities, paths: (0..num_ranks * num_ranks).map(path).collect() }
    }

    fn path(&self, source: u32, target: u32) -> &(f64, Vec<usize>) {
        &self.paths[source as usize * self.num_ranks + target as usize]
    }
}

/// A message in transfer.
#[derive(Clone, Copy)]
struct Flow {
    remaining_bytes: f64,
    rate: f64,
    /// Time of the last change of the rate.
    since: f64,
    /// Version of its end in the queue: every change of the rate makes the earlier ends obsolete.
    version: u32,
}

/// All flows and their links.
struct Flows<'a> {
    links: &'a SharedLinks,
    /// By message; valid only for messages in transfer.
    by_message: Vec<Flow>,
    /// Messages on every link.
    on_link: Vec<Vec<u32>>,
    /// Ends of flows by time, then by message; obsolete entries included.
    ends: BinaryHeap<Reverse<(u64, u32, u32)>>,
}

impl Flows<'_> {
    /// Time and message of the next end of a flow; drops obsolete entries.
    fn next_end(&mut self) -> Option<(f64, u32)> {
        while let Some(Reverse((time, number, version))) = self.ends.peek() {
            if self.by_message[*number as usize].version == *version {
                return Some((f64::from_bits(*time), *number));
            }
            self.ends.pop();
        }
        None
    }

    fn start(&mut self, number: u32, message: &Message, now: f64) {
        let remaining_bytes = message.bytes.0 as f64;
        let flow = &mut self.by_message[number as usize];
        *flow = Flow { remaining_bytes, rate: 0.0, since: now, version: flow.version };
        let path = &self.links.path(message.source, message.target).1;
        for link in path {
            self.on_link[*link].push(number);
        }
    }

    fn end(&mut self, number: u32, message: &Message) {
        self.ends.pop();
        self.by_message[number as usize].version += 1;
        let path = &self.links.path(message.source, message.target).1;
        for link in path {
            self.on_link[*link].retain(|other| *other != number);
        }
    }

    /// Updates the rates of all flows on a message's path after its start or end.
    fn update_rates(&mut self, message: &Message, messages: &[Message], now: f64) {
        let path = &self.links.path(message.source, message.target).1;
        for (index, link) in path.iter().enumerate() {
            for place in 0..self.on_link[*link].len() {
                let number = self.on_link[*link][place];
                // A flow on both links is updated once.
                if index == 0 || !self.on_link[path[0]].contains(&number) {
                    self.update_rate(number, &messages[number as usize], now);
                }
            }
        }
    }

    /// Sets a flow's rate to the smallest of its shares, if that changed.
    fn update_rate(&mut self, number: u32, message: &Message, now: f64) {
        let path = &self.links.path(message.source, message.target).1;
        let share = |link: &usize| self.links.capacities[*link] / self.on_link[*link].len() as f64;
        let rate = path.iter().map(share).fold(f64::INFINITY, f64::min);
        let flow = &mut self.by_message[number as usize];
        if rate.to_bits() != flow.rate.to_bits() {
            flow.remaining_bytes = (flow.remaining_bytes - flow.rate * (now - flow.since)).max(0.0);
            (flow.rate, flow.since) = (rate, now);
            flow.version += 1;
            let end = now.max(flow.since + flow.remaining_bytes / flow.rate);
            self.ends.push(Reverse((end.to_bits(), number, flow.version)));
        }
    }
}

/// Runs a simulation to its end; returns the number of events.
pub(super) fn run(simulation: &mut Simulation<'_>, links: &SharedLinks) -> u64 {
    let messages = &simulation.compiled.messages;
    let idle = Flow { remaining_bytes: 0.0, rate: 0.0, since: 0.0, version: 0 };
    let mut flows = Flows {
        links,
        by_message: vec![idle; messages.len()],
        on_link: vec![Vec::new(); links.capacities.len()],
        ends: BinaryHeap::new(),
    };
    let (mut started, mut num_events) = (Vec::new(), 0);
    loop {
        // The end of a flow precedes queued events of the same time.
        let now = match (flows.next_end(), simulation.queue.next_time()) {
            (None, None) => return num_events,
            (Some((end, number)), time) if time.is_none_or(|time| end <= time) => {
                let message = &messages[number as usize];
                flows.end(number, message);
                flows.update_rates(message, messages, end);
                simulation.arrive(message, end, &mut started);
                end
            }
            _ => {
                let (time, event) = simulation.queue.pop().expect("the queue is not empty");
                if let Some(message) = messages.get(event as usize) {
                    flows.start(event, message, time);
                    flows.update_rates(message, messages, time);
                } else {
                    simulation.post(event as usize - messages.len(), time, &mut started);
                }
                time
            }
        };
        num_events += 1;
        for number in started.drain(..) {
            let message = &messages[number as usize];
            simulation.queue.push(now + links.path(message.source, message.target).0, number);
        }
    }
}

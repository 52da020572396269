//! The exchange with neighbors: send a vector, receive theirs, take the weighted mean.
//!
//! Messages are sent in the background by increasing ring distance of the receiver and received by
//! increasing ring distance of the sender. So among all messages of a step there is always a first
//! one that both ends have reached, on any graph, and the exchange cannot deadlock.

use super::Graph;
use lockstep_comm::{Comm, CommError, Counters, Element};

/// Elements sent at once; buffers are a few chunks long.
const CHUNK: usize = 1 << 16;

/// Exchanges vectors along the edges of a graph.
pub struct Mixer {
    comm: Comm,
    graph: Graph,
    /// Send buffers in flight, one per receiver.
    outgoing: Vec<Vec<f32>>,
    /// Received vectors, one per sender.
    received: Vec<Vec<f32>>,
    sums: Vec<f64>,
}

impl Mixer {
    /// For the ranks of `comm`, which are the nodes of the graph.
    pub fn new(comm: Comm, graph: Graph) -> Self {
        assert_eq!(graph.num_workers(), comm.group_size(), "one node per rank");
        Self { comm, graph, outgoing: Vec::new(), received: Vec::new(), sums: Vec::new() }
    }

    /// Replaces a vector by the weighted mean of the neighbors' and its own; all ranks pass vectors
    /// of one length.
    pub fn mix(&mut self, step: u64, values: &mut [f32]) -> Result<(), CommError> {
        let (own, n) = (self.comm.group_rank(), self.comm.group_size());
        for chunk in values.chunks_mut(CHUNK) {
            let mut handles = Vec::with_capacity(self.outgoing.len());
            for to in (1..n).map(|away| (own + away) % n) {
                if self.graph.has_edge(step, own, to) {
                    let mut copy = self.outgoing.pop().unwrap_or_default();
                    copy.clear();
                    copy.reserve_exact(chunk.len());
                    copy.extend_from_slice(chunk);
                    handles.push(self.comm.start_send::<f32, _>(copy, to, step)?);
                }
            }
            self.received.resize_with(n, Vec::new);
            for from in (1..n).map(|away| (own + n - away) % n) {
                if self.graph.has_edge(step, from, own) {
                    let room = &mut self.received[from];
                    room.clear();
                    room.reserve_exact(chunk.len());
                    room.resize(chunk.len(), 0.0);
                    self.comm.recv(room, from, step)?;
                }
            }
            self.sums.clear();
            self.sums.reserve_exact(chunk.len());
            self.sums.resize(chunk.len(), 0.0);
            for &(from, weight) in self.graph.in_neighbors(step, own) {
                let theirs = if from == own { &*chunk } else { &self.received[from][..] };
                for (sum, value) in self.sums.iter_mut().zip(theirs) {
                    *sum += weight * f64::from(*value);
                }
            }
            chunk.iter_mut().zip(&self.sums).for_each(|(value, sum)| *value = *sum as f32);
            for handle in handles {
                self.outgoing.push(handle.finish()?);
            }
        }
        Ok(())
    }

    /// Sends a vector to all neighbors and returns theirs with the weight of each, in rank order.
    pub fn exchange_with_neighbors(
        &mut self,
        step: u64,
        sent: &[f32],
    ) -> Result<Vec<(Vec<f32>, f64)>, CommError> {
        let (own, n) = (self.comm.group_rank(), self.comm.group_size());
        let mut received = vec![Vec::new(); n];
        let bounds = (0..sent.len()).step_by(CHUNK);
        for chunk in bounds.map(|start| &sent[start..(start + CHUNK).min(sent.len())]) {
            let mut handles = Vec::new();
            for to in (1..n).map(|away| (own + away) % n) {
                if self.graph.has_edge(step, own, to) {
                    handles.push(self.comm.start_send::<f32, _>(chunk.to_vec(), to, step)?);
                }
            }
            for from in (1..n).map(|away| (own + n - away) % n) {
                if self.graph.has_edge(step, from, own) {
                    let start = received[from].len();
                    received[from].resize(start + chunk.len(), 0.0);
                    self.comm.recv(&mut received[from][start..], from, step)?;
                }
            }
            for handle in handles {
                handle.finish()?;
            }
        }
        let others = self.graph.in_neighbors(step, own).iter().filter(|(from, _)| *from != own);
        Ok(others.map(|(from, weight)| (std::mem::take(&mut received[*from]), *weight)).collect())
    }

    /// Mixes a single number.
    pub fn mix_weight(&mut self, step: u64, value: f64) -> Result<f64, CommError> {
        let (own, n) = (self.comm.group_rank(), self.comm.group_size());
        let receivers = (1..n).map(|away| (own + away) % n);
        let receivers = receivers.filter(|to| self.graph.has_edge(step, own, *to));
        let send = |to| start(&self.comm, value, to, step);
        let handles = receivers.map(send).collect::<Result<Vec<_>, _>>()?;
        let mut received = vec![[0.0]; n];
        received[own] = [value];
        for from in (1..n).map(|away| (own + n - away) % n) {
            if self.graph.has_edge(step, from, own) {
                self.comm.recv(&mut received[from], from, step)?;
            }
        }
        for handle in handles {
            handle.finish()?;
        }
        Ok(self
            .graph
            .in_neighbors(step, own)
            .iter()
            .map(|(from, weight)| weight * received[*from][0])
            .sum())
    }

    /// Calls, and bytes sent and received.
    pub fn counters(&self) -> Counters {
        self.comm.counters()
    }

    /// Number of elements that a rank will hold for vectors of up to `len` elements.
    pub fn planned_len(graph: &Graph, worker: usize, len: usize) -> usize {
        let (n, turns) = (graph.num_workers(), 0..graph.period() as u64);
        let sent = |turn| (0..n).filter(|to| graph.has_edge(turn, worker, *to)).count();
        let outgoing = turns.clone().map(sent).max().unwrap_or(0);
        let is_received =
            |from: &usize| turns.clone().any(|turn| graph.has_edge(turn, *from, worker));
        let received = (0..n).filter(is_received).count();
        (outgoing + received + 2) * len.min(CHUNK)
    }

    /// Number of elements held.
    pub fn num_elements(&self) -> usize {
        let len = |buffers: &[Vec<f32>]| buffers.iter().map(Vec::capacity).sum::<usize>();
        len(&self.outgoing) + len(&self.received) + 2 * self.sums.capacity()
    }
}

fn start<T: Element>(
    comm: &Comm,
    value: T,
    to: usize,
    tag: u64,
) -> Result<lockstep_comm::Handle<Vec<T>>, CommError> {
    comm.start_send::<T, _>(vec![value], to, tag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gossip::push_sum::PushSum;
    use lockstep_comm::Options;
    use lockstep_config::GraphName;
    use lockstep_tensor::math::scalar;
    use lockstep_tensor::random::Key;

    const LEN: usize = 300;
    const STEPS: u64 = 48;

    fn start_of(worker: usize) -> Vec<f32> {
        let key = Key::new(3, "start").with(worker as u64);
        (0..LEN as u64).map(|index| (key.uniform_f64(index) - 0.5) as f32).collect()
    }

    /// Vectors of all ranks after every step of mixing alone.
    fn averaged(graph: &Graph) -> Vec<Vec<Vec<f32>>> {
        let world = lockstep_platform::real();
        let ends = Comm::threads(&world, graph.num_workers(), &Options::default()).expect("ends");
        let each = |end: Comm| {
            let mut values = start_of(end.group_rank());
            let mut push = PushSum::new(vec![vec![0.0; LEN]]);
            let mut mixer = Mixer::new(end, graph.clone());
            let step = |step| {
                if graph.is_directed() {
                    push.follow(0, &values);
                    mixer.mix(step, &mut push.biased[0]).expect("mixed");
                    push.set_weight(mixer.mix_weight(step, push.weight).expect("mixed"));
                    push.correct(0, &mut values);
                } else {
                    mixer.mix(step, &mut values).expect("mixed");
                }
                values.clone()
            };
            (0..STEPS).map(step).collect::<Vec<_>>()
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = ends.into_iter().map(|end| scope.spawn(|| each(end))).collect();
            let by_worker: Vec<_> = workers.into_iter().map(|w| w.join().expect("ends")).collect();
            let at = |step: usize| by_worker.iter().map(|steps| steps[step].clone()).collect();
            (0..STEPS as usize).map(at).collect()
        })
    }

    fn mean(vectors: &[Vec<f32>]) -> Vec<f64> {
        let of = |index: usize| vectors.iter().map(|v| f64::from(v[index])).sum::<f64>();
        (0..LEN).map(|index| of(index) / vectors.len() as f64).collect()
    }

    fn distance(vectors: &[Vec<f32>], from: &[f64]) -> f64 {
        let of = |v: &Vec<f32>| {
            v.iter().zip(from).map(|(v, m)| (f64::from(*v) - m) * (f64::from(*v) - m)).sum::<f64>()
        };
        (vectors.iter().map(of).sum::<f64>() / vectors.len() as f64).sqrt()
    }

    #[test]
    fn disagreement_shrinks_by_the_rate_of_every_graph_and_the_mean_stays() {
        for (name, n) in [
            (GraphName::Ring, 6),
            (GraphName::Torus, 8),
            (GraphName::Exponential, 8),
            (GraphName::RandomRegular, 8),
            (GraphName::Complete, 4),
            (GraphName::DirectedRing, 4),
            (GraphName::OnePeer, 8),
            (GraphName::OnePeer, 6),
            (GraphName::RandomDirected, 6),
        ] {
            let graph = Graph::new(name, n, 3, 5);
            let rate = graph.rate();
            let steps = averaged(&graph);
            let start: Vec<_> = (0..n).map(start_of).collect();
            let mean_of_start = mean(&start);
            let first = distance(&start, &mean_of_start);
            // Far above rounding, the remaining distance after whole periods follows the rate up to
            // a factor, which is large where neither rows nor edges are alike.
            let turns = i32::try_from(graph.period()).expect("a few");
            let factor = if name == GraphName::RandomDirected { 40.0 } else { 4.0 };
            for (step, vectors) in (1..).zip(&steps) {
                let left = distance(vectors, &mean_of_start) / first;
                let expected = scalar::powi(rate, step - step % turns);
                assert!(
                    left <= factor * expected + 2e-6,
                    "{name} {n}: {left}, step {step}, {rate}"
                );
            }
            let checked = steps.iter().rposition(|v| distance(v, &mean_of_start) > 1e-4 * first);
            if let Some(last) = checked.filter(|last| *last > 8) {
                let half = last / 2;
                let ratio =
                    distance(&steps[last], &mean_of_start) / distance(&steps[half], &mean_of_start);
                let per_step = scalar::powf(ratio, 1.0 / (last - half) as f64);
                assert!((per_step - rate).abs() < 0.06, "{name} {n}: {per_step} and not {rate}");
            }
        }
    }

    #[test]
    fn a_consensus_stays_bit_identical() {
        let graph = Graph::new(GraphName::Ring, 3, 2, 1);
        let world = lockstep_platform::real();
        let ends = Comm::threads(&world, 3, &Options::default()).expect("ends");
        std::thread::scope(|scope| {
            for end in ends {
                let graph = graph.clone();
                scope.spawn(move || {
                    let mut values = start_of(0);
                    let mut mixer = Mixer::new(end, graph);
                    (0..20).for_each(|step| mixer.mix(step, &mut values).expect("mixed"));
                    assert_eq!(values, start_of(0));
                });
            }
        });
    }
}

//! Measured links between ranks, and the ring order that avoids slow ones.
//!
//! A ring is as fast as its slowest link. With n ranks there are (n-1)!/2 rings; up to nine ranks
//! all are tried, beyond that a greedy ring is improved by 2-opt (Croes 1958).

use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};

/// Link between two ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Time of an empty message (alpha).
    pub latency: Seconds,
    /// Bandwidth of a long message (1/beta).
    pub bandwidth: BytesPerSecond,
}

impl Link {
    /// Time of a message.
    pub fn seconds(&self, bytes: Bytes) -> Seconds {
        self.latency + bytes / self.bandwidth
    }
}

/// Links between all pairs of ranks; empty where none were measured.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Links {
    num_ranks: usize,
    /// Links by sender, then by receiver.
    links: Vec<Link>,
}

/// Message size by which rings are compared.
const TYPICAL: Bytes = Bytes(256 << 10);

/// Most ranks for which every ring is tried.
const MAX_EXACT: usize = 9;

/// A ring must be this much better than rank order to replace it: measurements vary between runs,
/// and the order of sums should not.
const BETTER: f64 = 0.8;

impl Links {
    /// No measurements.
    pub const NONE: Self = Self { num_ranks: 0, links: Vec::new() };

    /// Links given by `between`, from its first argument to its second.
    pub fn new(num_ranks: usize, between: impl Fn(usize, usize) -> Link) -> Self {
        let pairs = (0..num_ranks * num_ranks).map(|pair| (pair / num_ranks, pair % num_ranks));
        Self { num_ranks, links: pairs.map(|(from, to)| between(from, to)).collect() }
    }

    /// Number of ranks; 0 without measurements.
    pub const fn num_ranks(&self) -> usize {
        self.num_ranks
    }

    /// Link from one rank to another, if measured.
    pub fn between(&self, from: usize, to: usize) -> Option<&Link> {
        self.links.get(from * self.num_ranks + to)
    }

    /// Highest latency of all links.
    pub fn longest_latency(&self) -> Seconds {
        let pairs = (0..self.num_ranks).flat_map(|to| (0..to).map(move |from| (from, to)));
        let both = pairs.flat_map(|(one, other)| [(one, other), (other, one)]);
        let latencies = both.filter_map(|(from, to)| Some(self.between(from, to)?.latency.0));
        Seconds(latencies.fold(0.0, f64::max))
    }

    /// Links among some of the ranks, renumbered.
    #[must_use]
    pub fn among(&self, ranks: &[usize]) -> Self {
        if self.links.is_empty() {
            return Self::NONE;
        }
        let at = |from: usize, to: usize| self.links[ranks[from] * self.num_ranks + ranks[to]];
        Self::new(ranks.len(), at)
    }

    /// Time of the slower direction between two ranks.
    fn cost(&self, one: usize, other: usize) -> f64 {
        let direction =
            |from, to| self.between(from, to).map_or(0.0, |link| link.seconds(TYPICAL).0);
        direction(one, other).max(direction(other, one))
    }

    /// Ranks in the order of the best ring: the one with the fastest bottleneck link, and of those
    /// the one with the least total time. It begins with rank 0, and is 0, 1, 2 … unless another
    /// ring is clearly better.
    pub fn ring_order(&self) -> Vec<usize> {
        let plain: Vec<usize> = (0..self.num_ranks).collect();
        if self.num_ranks < 4 {
            return plain;
        }
        let found =
            if self.num_ranks <= MAX_EXACT { self.exact_ring() } else { self.greedy_ring() };
        let is_better =
            self.bottleneck_and_total(&found).0 < BETTER * self.bottleneck_and_total(&plain).0;
        if is_better { found } else { plain }
    }

    /// Time of a ring's slowest link, and of all its links.
    fn bottleneck_and_total(&self, ring: &[usize]) -> (f64, f64) {
        let next = ring.iter().cycle().skip(1);
        let costs = ring.iter().zip(next).map(|(&one, &other)| self.cost(one, other));
        costs.fold((0.0, 0.0), |(slowest, sum), cost| (cost.max(slowest), sum + cost))
    }

    fn exact_ring(&self) -> Vec<usize> {
        let mut best: Option<((f64, f64), Vec<usize>)> = None;
        let mut ring: Vec<usize> = (0..self.num_ranks).collect();
        loop {
            // A ring and its reverse are the same.
            if ring[1] < ring[self.num_ranks - 1] {
                let judged = self.bottleneck_and_total(&ring);
                if best.as_ref().is_none_or(|(least, _)| judged < *least) {
                    best = Some((judged, ring.clone()));
                }
            }
            if !next_permutation(&mut ring[1..]) {
                break;
            }
        }
        best.map_or(ring, |(_, ring)| ring)
    }

    fn greedy_ring(&self) -> Vec<usize> {
        let mut left: Vec<usize> = (1..self.num_ranks).collect();
        let mut ring = vec![0];
        while let Some(&last) = ring.last()
            && !left.is_empty()
        {
            let cost = |rank: &usize| self.cost(last, *rank);
            let nearest = left.iter().enumerate().min_by(|a, b| cost(a.1).total_cmp(&cost(b.1)));
            let index = nearest.map_or(0, |(index, _)| index);
            ring.push(left.remove(index));
        }
        let mut judged = self.bottleneck_and_total(&ring);
        let mut has_improved = true;
        while has_improved {
            has_improved = false;
            for start in 1..self.num_ranks - 1 {
                for end in start + 2..=self.num_ranks {
                    ring[start..end].reverse();
                    let found = self.bottleneck_and_total(&ring);
                    if found < judged {
                        (judged, has_improved) = (found, true);
                    } else {
                        ring[start..end].reverse();
                    }
                }
            }
        }
        ring
    }
}

/// Next permutation in lexicographic order; false after the last.
fn next_permutation(numbers: &mut [usize]) -> bool {
    let Some(pivot) = numbers.windows(2).rposition(|pair| pair[0] < pair[1]) else { return false };
    let larger = numbers.iter().rposition(|&number| number > numbers[pivot]);
    numbers.swap(pivot, larger.expect("the next one is larger"));
    numbers[pivot + 1..].reverse();
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(num_ranks: usize, slow: &[(usize, usize)]) -> Links {
        Links::new(num_ranks, |from, to| {
            let is_slow = slow.contains(&(from, to)) || slow.contains(&(to, from));
            let latency = Seconds(if is_slow { 5e-3 } else { 20e-6 });
            Link { latency, bandwidth: BytesPerSecond(1e9) }
        })
    }

    #[test]
    fn the_ring_goes_around_slow_links_where_it_can() {
        for num_ranks in [4, 6, 9, 12] {
            let slow = [(0, 1), (2, 3)];
            let links = links(num_ranks, &slow);
            let ring = links.ring_order();
            let mut sorted = ring.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..num_ranks).collect::<Vec<_>>());
            assert!(links.bottleneck_and_total(&ring).0 < 1e-3, "{ring:?}");
        }
    }

    #[test]
    fn equal_links_keep_the_rank_order() {
        for num_ranks in [0, 1, 2, 3, 5, 12] {
            let plain: Vec<usize> = (0..num_ranks).collect();
            assert_eq!(links(num_ranks, &[]).ring_order(), plain);
            // With three ranks every ring has every link.
            assert_eq!(links(num_ranks.min(3), &[(0, 1)]).ring_order(), plain[..num_ranks.min(3)]);
        }
    }

    #[test]
    fn a_subset_of_ranks_keeps_its_links() {
        let some = links(5, &[(4, 1)]).among(&[1, 3, 4]);
        assert_eq!(some.between(0, 2), some.between(2, 0));
        assert!(some.cost(0, 2) > some.cost(0, 1));
        assert_eq!(Links::NONE.among(&[1, 2]), Links::NONE);
    }
}

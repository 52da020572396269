//! Gossip graphs: mixing matrices and their convergence rates.
//!
//! A graph of n ranks is a matrix W: rank i takes W_ij of rank j's weights. Undirected graphs use
//! Metropolis weights (Xiao and Boyd 2004), W_ij = 1 / (1 + max(dᵢ, dⱼ)) for neighbors of degree d
//! and the rest for the rank itself: symmetric and doubly stochastic, so mixing preserves the mean
//! and any consensus. On directed graphs each rank divides its weights among itself and its
//! out-neighbors, so W is column-stochastic only; [`super::push_sum`] corrects for that.
//!
//! Every step multiplies the disagreement by W − 𝟏𝟏ᵀ/n. In the long run it shrinks by the magnitude
//! of that matrix's largest eigenvalue, the *rate*; 1 − rate is the *spectral gap*. A graph may
//! change periodically from step to step: then the rate is that of one period, per step.

use lockstep_config::GraphName;
use lockstep_tensor::math::scalar;
use lockstep_tensor::random::Key;
use std::collections::BTreeSet;

/// Squarings after which the growth of powers is constant.
const NUM_SQUARINGS: i32 = 24;
/// Entries below this are rounding errors.
const ROUNDING: f64 = 1e-12;
/// Edge swaps per edge that randomize a graph.
const SHUFFLES: usize = 20;

/// Mixing matrices of all steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// One matrix per step of a period: for every rank its in-neighbors, itself included, in
    /// ascending order, with their weights.
    period_matrices: Vec<Matrix>,
    is_directed: bool,
}

/// Rows of a sparse matrix.
type Matrix = Vec<Vec<(usize, f64)>>;

impl Graph {
    /// The graph of this name for `num_workers` ranks; `degree` and `seed` apply to random graphs.
    pub fn new(name: GraphName, num_workers: usize, degree: usize, seed: u64) -> Self {
        let n = num_workers;
        let around = |offsets: &[usize]| -> Vec<BTreeSet<usize>> {
            let of = |i: usize| {
                let both = offsets.iter().flat_map(move |d| [(i + d) % n, (i + n - d % n) % n]);
                both.filter(|j| *j != i).collect()
            };
            (0..n).map(of).collect()
        };
        let exponential_hops =
            || std::iter::successors(Some(1), |hop| Some(2 * hop)).take_while(|hop| *hop < n);
        let to_next =
            |hop: usize| (0..n).map(|i| BTreeSet::from([(i + hop) % n])).collect::<Vec<_>>();
        let period_matrices = match name {
            GraphName::Ring => vec![metropolis(&around(&[1]))],
            GraphName::Torus => vec![metropolis(&torus(n))],
            GraphName::Exponential => {
                vec![metropolis(&around(&exponential_hops().collect::<Vec<_>>()))]
            }
            GraphName::Complete => vec![metropolis(&around(&(1..n).collect::<Vec<_>>()))],
            GraphName::RandomRegular => vec![metropolis(&random_regular(n, degree, seed))],
            GraphName::DirectedRing => vec![column_stochastic(&to_next(1))],
            GraphName::OnePeer => {
                exponential_hops().map(|hop| column_stochastic(&to_next(hop))).collect()
            }
            GraphName::RandomDirected => vec![column_stochastic(&random_directed(n, degree, seed))],
        };
        let period_matrices =
            if period_matrices.is_empty() { vec![vec![vec![(0, 1.0)]]] } else { period_matrices };
        let graph = Self { period_matrices, is_directed: name.is_directed() };
        graph.verify().unwrap_or_else(|bad| panic!("{name}: {bad}"));
        graph
    }

    /// Number of ranks.
    pub fn num_workers(&self) -> usize {
        self.period_matrices[0].len()
    }

    /// Whether edges are directed.
    pub fn is_directed(&self) -> bool {
        self.is_directed
    }

    /// In-neighbors of a rank in a step, itself included, in ascending order, with their weights.
    pub fn in_neighbors(&self, step: u64, worker: usize) -> &[(usize, f64)] {
        &self.at(step)[worker]
    }

    /// Whether there is an edge `from` → `to` in a step.
    pub fn has_edge(&self, step: u64, from: usize, to: usize) -> bool {
        from != to && self.in_neighbors(step, to).iter().any(|(j, _)| *j == from)
    }

    /// Number of steps after which the edges repeat.
    pub fn period(&self) -> usize {
        self.period_matrices.len()
    }

    /// Largest in-degree of any rank in any step.
    pub fn max_degree(&self) -> usize {
        self.period_matrices.iter().flatten().map(|row| row.len() - 1).max().unwrap_or(0)
    }

    fn at(&self, step: u64) -> &Matrix {
        &self.period_matrices[(step % self.period_matrices.len() as u64) as usize]
    }

    /// Checks that mixing preserves the sum: weights are not negative, columns sum to 1, and on
    /// undirected graphs rows do too. The error names the rank.
    pub fn verify(&self) -> Result<(), String> {
        for matrix in &self.period_matrices {
            let dense = dense(matrix);
            for worker in 0..matrix.len() {
                let check = |holds: bool, rule| {
                    let bad = || format!("the weights of rank {worker} {rule}");
                    if holds { Ok(()) } else { Err(bad()) }
                };
                let row: f64 = dense[worker].iter().sum();
                let column: f64 = dense.iter().map(|row| row[worker]).sum();
                check(dense[worker].iter().all(|w| *w >= 0.0), "are negative")?;
                check((column - 1.0).abs() < ROUNDING, "taken by others do not sum to 1")?;
                let is_mean = self.is_directed || (row - 1.0).abs() < ROUNDING;
                check(is_mean, "do not sum to 1")?;
            }
        }
        Ok(())
    }

    /// Factor by which disagreement shrinks per step, in the long run: 0 where one period ends it,
    /// 1 without edges.
    pub fn rate(&self) -> f64 {
        let n = self.num_workers();
        let eye: Dense =
            (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect();
        let turn = self
            .period_matrices
            .iter()
            .fold(eye, |product, matrix| multiply(&dense(matrix), &product));
        // Limit of the powers: every column is the consensus weighting.
        let limit = (0..NUM_SQUARINGS).fold(turn.clone(), |power, _| square(&power));
        let rest: Dense =
            (0..n).map(|i| (0..n).map(|j| turn[i][j] - limit[i][0]).collect()).collect();
        let (mut power, mut log_size) = (rest, 0.0);
        for squaring in 0..NUM_SQUARINGS {
            let size = size(&power);
            if size < ROUNDING {
                return 0.0;
            }
            log_size += scalar::ln(size) / scalar::powi(2.0, squaring);
            power.iter_mut().flatten().for_each(|w| *w /= size);
            power = multiply(&power, &power);
        }
        scalar::exp(log_size / self.period_matrices.len() as f64)
    }
}

type Dense = Vec<Vec<f64>>;

fn dense(matrix: &Matrix) -> Dense {
    let n = matrix.len();
    let row = |row: &Vec<(usize, f64)>| {
        let mut dense = vec![0.0; n];
        for (j, weight) in row {
            dense[*j] = *weight;
        }
        dense
    };
    matrix.iter().map(row).collect()
}

fn multiply(a: &Dense, b: &Dense) -> Dense {
    let n = a.len();
    let mut product = vec![vec![0.0; n]; n];
    for (row, into) in a.iter().zip(&mut product) {
        for (weight, of_b) in row.iter().zip(b) {
            into.iter_mut().zip(of_b).for_each(|(sum, b)| *sum += weight * b);
        }
    }
    product
}

/// Square of a column-stochastic matrix, renormalized.
fn square(matrix: &Dense) -> Dense {
    let mut square = multiply(matrix, matrix);
    for j in 0..square.len() {
        let sum: f64 = square.iter().map(|row| row[j]).sum();
        for row in &mut square {
            row[j] /= sum;
        }
    }
    square
}

fn size(matrix: &Dense) -> f64 {
    matrix.iter().flatten().map(|w| w * w).sum::<f64>().sqrt()
}

/// Metropolis weights of an undirected graph.
fn metropolis(neighbours: &[BTreeSet<usize>]) -> Matrix {
    let row = |(i, mine): (usize, &BTreeSet<usize>)| {
        let weight = |j: &usize| 1.0 / (1 + mine.len().max(neighbours[*j].len())) as f64;
        let others: f64 = mine.iter().map(weight).sum();
        let mut row: Vec<_> = mine.iter().map(|j| (*j, weight(j))).collect();
        row.push((i, 1.0 - others));
        row.sort_by_key(|(j, _)| *j);
        row
    };
    neighbours.iter().enumerate().map(row).collect()
}

/// Equal weights for the rank itself and its out-neighbors.
fn column_stochastic(targets: &[BTreeSet<usize>]) -> Matrix {
    let mut matrix = vec![Vec::new(); targets.len()];
    for (j, targets) in targets.iter().enumerate() {
        let others: Vec<_> = targets.iter().filter(|i| **i != j).collect();
        let weight = 1.0 / (1 + others.len()) as f64;
        matrix[j].push((j, weight));
        for i in others {
            matrix[*i].push((j, weight));
        }
    }
    for row in &mut matrix {
        row.sort_by_key(|(j, _)| *j);
    }
    matrix
}

/// Height and width of a torus as square as possible.
pub fn torus_sides(num_workers: usize) -> [usize; 2] {
    let n = num_workers;
    let height = (1..=n).take_while(|h| h * h <= n).filter(|h| n.is_multiple_of(*h)).last();
    let height = height.unwrap_or(1);
    [height, n / height]
}

fn torus(n: usize) -> Vec<BTreeSet<usize>> {
    let [height, width] = torus_sides(n);
    let of = |i: usize| {
        let (y, x) = (i / width, i % width);
        let across = [(x + 1) % width, (x + width - 1) % width].map(|x| y * width + x);
        let down = [(y + 1) % height, (y + height - 1) % height].map(|y| y * width + x);
        across.into_iter().chain(down).filter(|j| *j != i).collect()
    };
    (0..n).map(of).collect()
}

/// Draws numbers below a bound.
struct Draws {
    key: Key,
    count: u64,
}

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.count += 1;
        (self.key.uniform_f64(self.count) * bound as f64) as usize
    }
}

/// Swaps the ends of random pairs of edges of a circulant graph, without creating double edges,
/// until it is random; repeats while it is disconnected.
fn random_regular(n: usize, degree: usize, seed: u64) -> Vec<BTreeSet<usize>> {
    let mut graph: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); n];
    let mut edges = Vec::new();
    let half = (degree % 2 == 1).then_some(n / 2);
    for offset in (1..=degree / 2).chain(half) {
        for i in 0..n {
            let j = (i + offset) % n;
            if i != j && graph[i].insert(j) {
                graph[j].insert(i);
                edges.push((i, j));
            }
        }
    }
    let mut draws = Draws { key: Key::new(seed, "gossip graph"), count: 0 };
    loop {
        for _ in 0..SHUFFLES * edges.len() {
            let (first, second) = (draws.below(edges.len()), draws.below(edges.len()));
            let ((a, b), (c, d)) = (edges[first], edges[second]);
            let are_four = BTreeSet::from([a, b, c, d]).len() == 4;
            if !are_four || graph[a].contains(&d) || graph[c].contains(&b) {
                continue;
            }
            for (i, j, k) in [(a, b, d), (b, a, c), (c, d, b), (d, c, a)] {
                graph[i].remove(&j);
                graph[i].insert(k);
            }
            (edges[first], edges[second]) = ((a, d), (c, b));
        }
        if reached(&graph) == n {
            return graph;
        }
    }
}

/// Number of ranks reachable from the first.
fn reached(graph: &[BTreeSet<usize>]) -> usize {
    let (mut known, mut next) = (BTreeSet::from([0]), vec![0]);
    while let Some(i) = next.pop() {
        next.extend(graph[i].iter().filter(|j| known.insert(**j)));
    }
    known.len().min(graph.len())
}

/// The next rank on the ring, for connectivity, and random others.
fn random_directed(n: usize, degree: usize, seed: u64) -> Vec<BTreeSet<usize>> {
    let mut draws = Draws { key: Key::new(seed, "gossip graph"), count: 0 };
    let mut of = |i: usize| {
        let mut targets = BTreeSet::from([(i + 1) % n]);
        while targets.len() < degree.min(n.saturating_sub(1)) {
            let j = draws.below(n);
            if j != i {
                targets.insert(j);
            }
        }
        targets
    };
    (0..n).map(&mut of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::TAU;

    fn names() -> impl Iterator<Item = GraphName> {
        GraphName::NAMES.iter().map(|name| GraphName::from_name(name).expect("a name"))
    }

    fn degree(name: GraphName, n: usize) -> usize {
        let most = n.saturating_sub(1).clamp(1, 3);
        if name == GraphName::RandomRegular && n % 2 == 1 && most == 3 { 2 } else { most }
    }

    #[test]
    fn every_graph_of_every_size_is_stochastic_and_connected() {
        for name in names() {
            for n in 1..=16 {
                let graph = Graph::new(name, n, degree(name, n), 7);
                assert_eq!(graph.verify(), Ok(()), "{name} of {n}");
                let rate = graph.rate();
                assert!((0.0..1.0).contains(&rate), "{name} of {n} shrinks by {rate}");
            }
        }
    }

    #[test]
    fn rates_match_the_closed_forms() {
        let rate = |name, n| Graph::new(name, n, 3, 1).rate();
        for n in [4, 5, 8, 16, 33] {
            // Eigenvalues of a ring are (1 + 2 cos(2 pi k / n)) / 3.
            let of = |k: usize| ((1.0 + 2.0 * scalar::cos(TAU * k as f64 / n as f64)) / 3.0).abs();
            let expected = (1..n).map(of).fold(0.0, f64::max);
            assert!((rate(GraphName::Ring, n) - expected).abs() < 1e-6, "ring of {n}");
            // Eigenvalues of a directed ring are (1 + exp(2 pi i k / n)) / 2.
            let expected = scalar::cos(TAU / 2.0 / n as f64);
            assert!((rate(GraphName::DirectedRing, n) - expected).abs() < 1e-6, "one way, {n}");
        }
        assert!(rate(GraphName::Complete, 6) <= 0.0);
        assert!(rate(GraphName::OnePeer, 8) <= 0.0, "three hops are the mean of eight");
        let by_size = [GraphName::Ring, GraphName::Torus, GraphName::Exponential];
        let rates = by_size.map(|name| rate(name, 64));
        assert!(rates.is_sorted_by(|a, b| a > b), "{rates:?}");
    }

    #[test]
    fn a_random_regular_graph_is_regular_and_follows_its_seed() {
        for (n, degree) in [(8, 3), (9, 4), (16, 5), (4, 3)] {
            let graph = |seed| Graph::new(GraphName::RandomRegular, n, degree, seed);
            let drawn = graph(1);
            assert!((0..n).all(|worker| drawn.in_neighbors(0, worker).len() == degree + 1));
            assert_eq!(drawn, graph(1));
            assert!(n == 4 || (2..9).any(|seed| graph(seed) != drawn), "{n} and {degree}");
        }
    }

    #[test]
    fn non_stochastic_weights_are_found() {
        let mut graph = Graph::new(GraphName::Ring, 5, 2, 1);
        graph.period_matrices[0][3][0].1 += 0.01;
        let bad = graph.verify().expect_err("a column sum exceeds 1");
        assert_eq!(bad, "the weights of rank 2 taken by others do not sum to 1");
    }
}

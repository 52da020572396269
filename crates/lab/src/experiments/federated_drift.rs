//! Federated drift: clients with data of their own pull to their own optima between rounds.
//!
//! FedAvg averages where clients end; with many local steps that is no longer the optimum of the
//! mean. FedProx holds clients back with a spring to where they began. SCAFFOLD subtracts from
//! every client's gradient what is its own and adds what is everybody's, at the price of a second
//! vector on every client.

use super::prelude::*;
use crate::problem::{Bowl, Stepper, mean, spread};

experiment!(FederatedDrift);

const CARD: Card = Card {
    name: "federated-drift",
    title: "Federated drift: FedAvg, FedProx and SCAFFOLD by the number of local steps",
    question: "Where do clients with different data end when they step alone between averages?",
    formula: "FedAvg settles at sum(w b)/sum(w), w = 1 - (1 - lr h)^K, not at sum(h b)/sum(h); \
              FedProx adds mu (y - x); SCAFFOLD steps along g - c_i + c",
    look: "distance, the error that stays, over local_steps; rounds to the target; drift",
    surprise: "more local steps lower the error per round at first and raise the error that stays; \
               a proximal term trades one for the other; control variates remove both, and cost \
               memory and twice the traffic",
    params: &[
        Param::count("local_steps", 10.0, (1.0, 1000.0), "steps of a client in a round (K)"),
        Param::count("clients", 20.0, (1.0, 1000.0), "clients"),
        Param::count("sampled", 20.0, (1.0, 1000.0), "clients of a round, drawn at random"),
        Param::number("heterogeneity", Unit::Number, 1.0, (0.0, 100.0), "distance of optima"),
        Param::number("lr", Unit::Number, 0.1, (1e-5, 1.0), "step size for curvature 1"),
        Param::number("pull", Unit::Number, 0.5, (0.0, 100.0), "FedProx's spring (mu)"),
        Param::number("noise", Unit::Number, 0.0, (0.0, 100.0), "noise of gradients"),
        Param::count("rounds", 150.0, (4.0, 10_000.0), "rounds"),
        Param::count("dim", 4.0, (1.0, 1000.0), "dimensions"),
        Param::number("condition", Unit::Number, 5.0, (1.0, 1e5), "largest over least curvature"),
        Param::number("target", Unit::Number, 0.05, (1e-9, 0.9), "distance over that at the start"),
    ],
    sweep: ("local_steps", &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0]),
    columns: &[
        Column::new("method", Unit::Word, "method"),
        Column::new("distance", Unit::Number, "from the optimum, mean of the last quarter"),
        Column::new("expected_distance", Unit::Number, "FedAvg's without noise and sampling"),
        Column::new("rounds", Unit::Count, "rounds to the target"),
        Column::new("drift", Unit::Number, "distance of clients from their mean, at the end"),
        Column::new("vectors", Unit::Count, "vectors that a client sends in a round"),
    ],
    picture: Picture::lines("local_steps", &["distance"]).by("method").log(true, true),
};

/// Clients whose bowls are bent and moved by other factors, so that their pull does not cancel.
struct Clients {
    bowl: Bowl,
    /// Curvature over the common one, and the place of the optimum.
    own: Vec<(f64, f64)>,
}

impl Clients {
    fn new(at: &Settings) -> Self {
        let n = at.count("clients");
        let own = |i: usize| {
            let along = if n > 1 { i as f64 / (n - 1) as f64 } else { 0.5 };
            (0.5 + along, at.number("heterogeneity") * (2.0 * along - 1.0))
        };
        let bowl = Bowl::new(at.count("dim"), at.number("condition"), at.number("noise"));
        Self { bowl, own: (0..n).map(own).collect() }
    }

    /// Where clients settle whose pulls have these weights, along a direction.
    fn balance(&self, weight: impl Fn(f64) -> f64) -> f64 {
        let pull: f64 = self.own.iter().map(|(bend, place)| weight(*bend) * place).sum();
        pull / self.own.iter().map(|(bend, _)| weight(*bend)).sum::<f64>()
    }

    fn gradient(&self, client: usize, x: &[f32], random: &mut Random) -> Vec<f32> {
        let (bend, place) = self.own[client];
        let moved: Vec<f32> = x.iter().map(|x| (bend * (f64::from(*x) - place)) as f32).collect();
        self.bowl.gradient(&moved, 1.0, random)
    }

    /// The distance from the optimum of all.
    fn distance(&self, x: &[f32]) -> f64 {
        let optimum = self.balance(|bend| bend);
        let off = |x: &f32| (f64::from(*x) - optimum) * (f64::from(*x) - optimum);
        x.iter().map(off).sum::<f64>().sqrt()
    }
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let clients = Clients::new(at);
    let (lr, k) = (at.number("lr"), at.count("local_steps"));
    let optimum = clients.balance(|bend| bend);
    let expected = clients.bowl.curvatures.iter().map(|curve| {
        let settled = clients.balance(|bend| 1.0 - crate::math::powi(1.0 - lr * curve * bend, k));
        (settled - optimum) * (settled - optimum)
    });
    let expected = expected.sum::<f64>().sqrt();
    let mut rows = Vec::new();
    for (method, vectors) in [("fedavg", 1.0), ("fedprox", 1.0), ("scaffold", 2.0)] {
        let (distance, rounds, drift) = follow(at, random, &clients, method);
        rows.push(row![method, distance, expected, rounds, drift, vectors]);
    }
    Ok(rows)
}

fn follow(at: &Settings, random: &mut Random, clients: &Clients, method: &str) -> (f64, f64, f64) {
    let (n, k, lr) = (clients.own.len(), at.count("local_steps"), at.number("lr"));
    let dim = at.count("dim");
    let pull = if method == "fedprox" { at.number("pull") } else { 0.0 };
    let mut shared = clients.bowl.start();
    let mut stepper = Stepper::sgd(dim);
    let first = clients.distance(&shared);
    // SCAFFOLD's variates: of every client, and of all.
    let mut own = vec![vec![0.0_f64; dim]; n];
    let mut common = vec![0.0_f64; dim];
    let (mut late, mut reached, mut drift) = (Vec::new(), f64::INFINITY, 0.0);
    let num_rounds = at.count("rounds");
    for round in 0..num_rounds {
        let chosen = sampled(n, at.count("sampled"), random);
        let mut ends = Vec::with_capacity(chosen.len());
        let mut shift = vec![0.0; dim];
        for &client in &chosen {
            let mut y = shared.clone();
            for _ in 0..k {
                let mut gradient = clients.gradient(client, &y, random);
                for (i, g) in gradient.iter_mut().enumerate() {
                    let spring = pull * f64::from(y[i] - shared[i]);
                    *g += (spring + common[i] - own[client][i]) as f32;
                }
                stepper.step(&mut y, lr, &gradient);
            }
            if method == "scaffold" {
                for (i, own) in own[client].iter_mut().enumerate() {
                    let new = *own - common[i] + f64::from(shared[i] - y[i]) / (k as f64 * lr);
                    shift[i] += (new - *own) / n as f64;
                    *own = new;
                }
            }
            ends.push(y);
        }
        common.iter_mut().zip(&shift).for_each(|(common, shift)| *common += shift);
        shared = mean(&ends);
        drift = spread(&ends, &shared);
        let distance = clients.distance(&shared);
        if distance <= at.number("target") * first {
            reached = reached.min(round as f64 + 1.0);
        }
        if round >= num_rounds - num_rounds / 4 {
            late.push(distance);
        }
    }
    (late.iter().sum::<f64>() / late.len() as f64, reached, drift)
}

/// Some of n, each at most once, in order.
fn sampled(n: usize, num: usize, random: &mut Random) -> Vec<usize> {
    if num >= n {
        return (0..n).collect();
    }
    let mut order: Vec<(f64, usize)> = (0..n).map(|i| (random.uniform(), i)).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut chosen: Vec<usize> = order[..num].iter().map(|(_, i)| *i).collect();
    chosen.sort_unstable();
    chosen
}

fn findings(table: &Table) -> Vec<String> {
    let (methods, end) = (table.words("method"), last(table));
    let of = |name: &str| (0..=end).rev().find(|row| methods[*row] == name).unwrap_or(end);
    vec![
        format!(
            "At {} FedAvg stays {} from the optimum, SCAFFOLD {}",
            place(table, end),
            cell(table, "distance", of("fedavg")),
            cell(table, "distance", of("scaffold"))
        ),
        format!(
            "FedProx stays {} away; clients of FedAvg are {} apart when they meet",
            cell(table, "distance", of("fedprox")),
            cell(table, "drift", of("fedavg"))
        ),
    ]
}

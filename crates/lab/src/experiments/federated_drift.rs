//! Client drift in federated learning: FedAvg (McMahan et al. 2017), FedProx (Li et al. 2020) and
//! SCAFFOLD (Karimireddy et al. 2020).
//!
//! FedAvg averages the clients' results; with many local steps on heterogeneous data that is no
//! longer the optimum of the mean loss. FedProx adds a proximal term towards the global weights.
//! SCAFFOLD corrects every local gradient with control variates, which cost a second vector per
//! client.

use super::prelude::*;
use crate::problem::{Quadratic, Stepper, mean, spread};

experiment!(FederatedDrift);

const DESCRIPTION: Description = Description {
    name: "federated-drift",
    title: "Client drift: FedAvg, FedProx and SCAFFOLD by the number of local steps",
    question: "Where do clients with heterogeneous data converge with several local steps?",
    formula: "FedAvg converges to sum(w b)/sum(w), w = 1 - (1 - lr h)^K, not at sum(h b)/sum(h); \
              FedProx adds mu (y - x); SCAFFOLD steps along g - c_i + c",
    look: "distance, the asymptotic error, over local_steps; rounds to the target; drift",
    surprise: "more local steps lower the error per round at first and raise the asymptotic error; \
               a proximal term trades one for the other; control variates remove both, and cost \
               memory and twice the bytes sent",
    params: &[
        Param::count("local_steps", 10.0, (1.0, 1000.0), "local steps per client and round (K)"),
        Param::count("clients", 20.0, (1.0, 1000.0), "clients"),
        Param::count("sampled", 20.0, (1.0, 1000.0), "clients per round, drawn at random"),
        Param::number(
            "heterogeneity",
            Unit::Number,
            1.0,
            (0.0, 100.0),
            "distance between local optima",
        ),
        Param::number("lr", Unit::Number, 0.1, (1e-5, 1.0), "step size for curvature 1"),
        Param::number(
            "proximal_mu",
            Unit::Number,
            0.5,
            (0.0, 100.0),
            "proximal term of FedProx (mu)",
        ),
        Param::number("noise", Unit::Number, 0.0, (0.0, 100.0), "gradient noise"),
        Param::count("rounds", 150.0, (4.0, 10_000.0), "rounds"),
        Param::count("dim", 4.0, (1.0, 1000.0), "dimensions"),
        Param::number("condition", Unit::Number, 5.0, (1.0, 1e5), "condition number"),
        Param::number(
            "target",
            Unit::Number,
            0.05,
            (1e-9, 0.9),
            "target distance/initial distance",
        ),
    ],
    sweep: ("local_steps", &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0]),
    columns: &[
        Column::new("method", Unit::Text, "method"),
        Column::new(
            "distance",
            Unit::Number,
            "distance from the optimum, mean of the last quarter",
        ),
        Column::new(
            "expected_distance",
            Unit::Number,
            "distance of FedAvg without noise and sampling",
        ),
        Column::new("rounds_to_target", Unit::Count, "rounds to the target"),
        Column::new("drift", Unit::Number, "distance of clients from their mean, at the end"),
        Column::new("vectors_sent", Unit::Count, "vectors sent per client and round"),
    ],
    chart: ChartSpec::lines("local_steps", &["distance"]).by("method").log(true, true),
};

/// Clients with different curvatures and optima, so that their gradients do not cancel.
struct Clients {
    quadratic: Quadratic,
    /// Relative curvature and optimum of each client.
    clients: Vec<(f64, f64)>,
}

impl Clients {
    fn new(at: &Settings) -> Self {
        let n = at.count("clients");
        let client = |i: usize| {
            let along = if n > 1 { i as f64 / (n - 1) as f64 } else { 0.5 };
            (0.5 + along, at.number("heterogeneity") * (2.0 * along - 1.0))
        };
        let quadratic = Quadratic::new(at.count("dim"), at.number("condition"), at.number("noise"));
        Self { quadratic, clients: (0..n).map(client).collect() }
    }

    /// Weighted mean of the optima, with a weight per curvature.
    fn weighted_optimum(&self, weight: impl Fn(f64) -> f64) -> f64 {
        let sum: f64 =
            self.clients.iter().map(|(curvature, optimum)| weight(*curvature) * optimum).sum();
        sum / self.clients.iter().map(|(curvature, _)| weight(*curvature)).sum::<f64>()
    }

    fn gradient(&self, client: usize, x: &[f32], random: &mut Random) -> Vec<f32> {
        let (curvature, optimum) = self.clients[client];
        let scaled: Vec<f32> =
            x.iter().map(|x| (curvature * (f64::from(*x) - optimum)) as f32).collect();
        self.quadratic.gradient(&scaled, 1.0, random)
    }

    /// Distance from the common optimum.
    fn distance(&self, x: &[f32]) -> f64 {
        let optimum = self.weighted_optimum(|curvature| curvature);
        let off = |x: &f32| (f64::from(*x) - optimum) * (f64::from(*x) - optimum);
        x.iter().map(off).sum::<f64>().sqrt()
    }
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let clients = Clients::new(at);
    let (lr, k) = (at.number("lr"), at.count("local_steps"));
    let optimum = clients.weighted_optimum(|curvature| curvature);
    let expected = clients.quadratic.curvatures.iter().map(|h| {
        let limit = clients
            .weighted_optimum(|curvature| 1.0 - crate::math::powi(1.0 - lr * h * curvature, k));
        (limit - optimum) * (limit - optimum)
    });
    let expected = expected.sum::<f64>().sqrt();
    let mut rows = Vec::new();
    for (method, vectors) in [("fedavg", 1.0), ("fedprox", 1.0), ("scaffold", 2.0)] {
        let (distance, rounds, drift) = train(at, &mut random.stream(0), &clients, method);
        rows.push(row![method, distance, expected, rounds, drift, vectors]);
    }
    Ok(rows)
}

fn train(at: &Settings, random: &mut Random, clients: &Clients, method: &str) -> (f64, f64, f64) {
    let (n, k, lr) = (clients.clients.len(), at.count("local_steps"), at.number("lr"));
    let dim = at.count("dim");
    let mu = if method == "fedprox" { at.number("proximal_mu") } else { 0.0 };
    let mut shared = clients.quadratic.start();
    let mut stepper = Stepper::sgd(dim);
    let first = clients.distance(&shared);
    // Control variates of SCAFFOLD: of every client, and their mean.
    let mut own = vec![vec![0.0_f64; dim]; n];
    let mut common = vec![0.0_f64; dim];
    let (mut last_distances, mut reached, mut drift) = (Vec::new(), f64::INFINITY, 0.0);
    let num_rounds = at.count("rounds");
    for round in 0..num_rounds {
        let chosen = sample_clients(n, at.count("sampled"), random);
        let mut ends = Vec::with_capacity(chosen.len());
        let mut shift = vec![0.0; dim];
        for &client in &chosen {
            let mut y = shared.clone();
            for _ in 0..k {
                let mut gradient = clients.gradient(client, &y, random);
                for (i, g) in gradient.iter_mut().enumerate() {
                    let proximal = mu * f64::from(y[i] - shared[i]);
                    *g += (proximal + common[i] - own[client][i]) as f32;
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
            last_distances.push(distance);
        }
    }
    let distance = last_distances.iter().sum::<f64>() / last_distances.len() as f64;
    (distance, reached, drift)
}

/// Samples `num` of n clients without replacement, in ascending order.
fn sample_clients(n: usize, num: usize, random: &mut Random) -> Vec<usize> {
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
    let [average, proximal, scaffold] =
        ["fedavg", "fedprox", "scaffold"].map(|name| last_with(table, "method", name));
    vec![
        format!(
            "{}FedAvg ends {} from the optimum, SCAFFOLD {}",
            at(table, average),
            cell(table, "distance", average),
            cell(table, "distance", scaffold)
        ),
        format!(
            "FedProx ends {} away; the client drift of FedAvg is {}",
            cell(table, "distance", proximal),
            cell(table, "drift", average)
        ),
    ]
}

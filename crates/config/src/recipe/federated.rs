//! Federated learning: clients keep their data and a coordinator aggregates their updates.

use std::fmt;

use super::{AggregationRule, ByzantineAttack, Recipe, SyncMode};

/// Settings of federated learning.
#[derive(Debug, Clone, PartialEq)]
pub struct Federated {
    /// Number of clients.
    pub clients: usize,
    /// Number of clients sampled per round.
    pub sampled: usize,
    /// Client-side algorithm.
    pub method: FederatedMethod,
    /// Weight of the proximal term of `FedProx`.
    pub mu: f64,
    /// Minimum fraction of a round's steps that a client takes.
    pub min_steps_fraction: f64,
    /// Optimizer of the coordinator.
    pub server: FederatedServer,
    /// Learning rate of the coordinator.
    pub server_lr: f64,
    /// Momentum of the coordinator.
    pub server_momentum: f64,
    /// Decay of the coordinator's second moment (beta2).
    pub server_beta2: f64,
    /// Adaptivity: added to the square root of the second moment (tau of Reddi et al. 2021).
    pub server_tau: f64,
    /// Aggregation rule of client updates.
    pub aggregation: AggregationRule,
    /// Number of Byzantine clients per round that the rule tolerates (trimmed mean, Krum).
    pub assumed_byzantine: usize,
    /// Norm to which client updates are clipped; 0 does not clip.
    pub clip: f64,
    /// Standard deviation of the noise on the sum of updates, in units of `clip`.
    pub noise_multiplier: f64,
    /// Delta of differential privacy.
    pub delta: f64,
    /// Whether secure aggregation hides single updates from the coordinator.
    pub secure_aggregation: bool,
    /// Probability that a client's update never arrives.
    pub dropout: f64,
    /// Probability that an update arrives one or more rounds late.
    pub late_fraction: f64,
    /// Maximum number of rounds by which a late update still counts.
    pub max_delay_rounds: u64,
    /// Fraction of clients that are Byzantine (simulated).
    pub byzantine: f64,
    /// Attack of the Byzantine clients.
    pub attack: ByzantineAttack,
}

choices! {
    /// Client-side algorithm.
    FederatedMethod {
        /// Plain local SGD (`FedAvg`, McMahan et al. 2017).
        FedAvg = "fedavg",
        /// A proximal term towards the weights of the round's start (`FedProx`, Li et al. 2020).
        FedProx = "fedprox",
        /// Control variates against client drift (SCAFFOLD, Karimireddy et al. 2020).
        Scaffold = "scaffold",
    }
}

choices! {
    /// Optimizer of the coordinator, with the aggregated update as its gradient.
    FederatedServer {
        /// Adds the update (`FedAvg`).
        Average = "average",
        /// SGD with momentum (`FedAvgM`).
        Momentum = "momentum",
        /// `FedAdam` (Reddi et al. 2021).
        Adam = "adam",
        /// `FedYogi` (Reddi et al. 2021).
        Yogi = "yogi",
    }
}

impl Recipe {
    /// Whether the mode is federated learning.
    pub fn is_federated(&self) -> bool {
        self.sync.mode == SyncMode::Federated
    }

    /// Number of clients that each worker hosts, in client order. The first worker is the
    /// coordinator and hosts clients only in a run of one worker.
    pub fn clients_by_worker(&self) -> Vec<usize> {
        let (clients, workers) = (self.federated.clients, self.run.workers);
        if workers == 1 {
            return vec![clients];
        }
        let mut by_worker = vec![0];
        by_worker.extend(super::even_shares(clients, workers - 1));
        by_worker
    }
}

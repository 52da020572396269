//! Many clients that keep their data, and one coordinator.

use std::fmt;

use super::{Recipe, SyncMode};

/// How clients learn, and what the coordinator makes of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Federated {
    /// How many clients there are.
    pub clients: usize,
    /// How many of them take part in a round.
    pub sampled: usize,
    /// What a client's steps are corrected by.
    pub method: FederatedMethod,
    /// How strongly `FedProx` pulls a client back.
    pub mu: f64,
    /// The smallest share of a round's steps that a client may take.
    pub least_steps: f64,
    /// The coordinator's optimizer.
    pub server: FederatedServer,
    /// Its learning rate.
    pub server_lr: f64,
    /// Its momentum.
    pub server_momentum: f64,
    /// The memory of its second moment.
    pub server_second: f64,
    /// What is added to the root of the second moment.
    pub server_tau: f64,
    /// How the changes of clients become one.
    pub combine: FederatedCombine,
    /// How many clients of a round may lie without harm (trimmed mean, Krum).
    pub liars: usize,
    /// The most that a change may be long; 0 does not limit.
    pub clip: f64,
    /// Noise on the sum of changes, in units of `clip`.
    pub noise: f64,
    /// The chance at which the privacy that noise gives may fail.
    pub delta: f64,
    /// Whether the coordinator sees sums only.
    pub secure: bool,
    /// The chance that a client's change never arrives.
    pub dropout: f64,
    /// The chance that it arrives rounds later.
    pub late: f64,
    /// By how many rounds it may be late and still count.
    pub window: u64,
    /// The share of clients that lie, to see what becomes of it.
    pub byzantine: f64,
    /// How they lie.
    pub attack: FederatedAttack,
}

choices! {
    /// What a client's steps are corrected by.
    FederatedMethod {
        /// Nothing: `FedAvg`.
        FedAvg = "fedavg",
        /// A pull towards where the round began.
        FedProx = "fedprox",
        /// Control variates: the difference between all clients' gradients and its own.
        Scaffold = "scaffold",
    }
}

choices! {
    /// What the coordinator does with the change of a round.
    FederatedServer {
        /// It is the change.
        Average = "average",
        /// Momentum.
        Momentum = "momentum",
        /// Adam's second moment.
        Adam = "adam",
        /// Yogi's second moment.
        Yogi = "yogi",
    }
}

choices! {
    /// How the changes of clients become one.
    FederatedCombine {
        /// Their mean.
        Mean = "mean",
        /// The median of every element.
        Median = "median",
        /// The mean of every element without the extremes.
        TrimmedMean = "trimmed-mean",
        /// The change that lies closest among the others.
        Krum = "krum",
    }
}

choices! {
    /// How a client lies.
    FederatedAttack {
        /// It sends the opposite, ten times as long.
        SignFlip = "sign-flip",
        /// It sends noise, ten times as long as its change.
        Noise = "noise",
        /// It sends its first change again and again.
        Stale = "stale",
    }
}

impl Recipe {
    /// Whether clients learn under a coordinator.
    pub fn is_federated(&self) -> bool {
        self.sync.mode == SyncMode::Federated
    }

    /// Consecutive clients that each worker is the home of. The first worker coordinates, and has
    /// clients only where it is alone.
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

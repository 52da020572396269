//! Federated learning: clients keep their data and a coordinator aggregates their updates.

use super::parallel::even_shares;
use super::train::batch_divides;
use super::{AggregationRule, ByzantineAttack, OptimName, Recipe, SyncMode, SyncPartition};
use crate::lint::{Lint, lints};
use crate::permutation::{Permutation, mix};
use crate::rule::{Rule, Rules};
use crate::topic::{choices, topic};
use crate::value_type::Bound::{Closed, Open};

const ADAPTIVE: &[&str] = &["adam", "yogi"];

/// Purpose key of the random numbers that sample clients.
const CLIENTS: u64 = 4;

topic! {
    /// Federated learning.
    pub struct Federated at federated, table "federated", when("sync.mode", &["federated"]) {
        /// Number of clients, each with its own private part of the data.
        clients: usize = 16, integer(1, 100_000);

        /// Number of clients sampled per round; they share train.batch evenly.
        sampled: usize = 8, integer(1, 100_000);

        /// Client-side algorithm: fedavg is plain local SGD, fedprox adds a proximal term, scaffold
        /// corrects client drift with control variates.
        method: FederatedMethod = "fedavg";

        /// Weight of the proximal term.
        mu: f64 = 0.1, float(Open(0.0), Closed(1000.0)), when("federated.method", &["fedprox"]);

        /// Minimum fraction of a round's steps that a client takes; each client draws its own
        /// number.
        min_steps_fraction: f64 = 1.0, float(Open(0.0), Closed(1.0));

        /// Optimizer of the coordinator, with the aggregated update as gradient: average (FedAvg),
        /// momentum (FedAvgM), adam (FedAdam) or yogi (FedYogi).
        server: FederatedServer = "average";

        /// Learning rate of the coordinator.
        server_lr: f64 = 1.0, float(Open(0.0), Closed(100.0));

        /// Momentum of the coordinator.
        server_momentum: f64 = 0.9, float(Closed(0.0), Open(1.0)),
            when("federated.server", &["momentum", "adam", "yogi"]);

        /// Decay of the coordinator's second moment.
        server_beta2: f64 = 0.99, float(Closed(0.0), Open(1.0)), when("federated.server", ADAPTIVE);

        /// Adaptivity of the coordinator: added to the square root of the second moment (tau of
        /// FedOpt).
        server_tau: f64 = 1e-3, float(Open(0.0), Closed(10.0)), when("federated.server", ADAPTIVE);

        /// Rule that aggregates client updates; all but mean tolerate Byzantine clients.
        aggregation: AggregationRule = "mean";

        /// Number of Byzantine clients per round that the rule tolerates: values trimmed on either
        /// side by trimmed-mean, f of krum.
        assumed_byzantine: usize = 1, integer(0, 50_000),
            when("federated.aggregation", &["trimmed-mean", "krum"]);

        /// Norm to which client updates are clipped; 0 does not clip.
        clip: f64 = 0.0, float(Closed(0.0), Closed(1e9));

        /// Standard deviation of the Gaussian noise on the sum of updates, in units of
        /// federated.clip, for differential privacy; the run reports the resulting epsilon.
        noise_multiplier: f64 = 0.0, float(Closed(0.0), Closed(1000.0));

        /// Delta of differential privacy; choose it below 1 / federated.clients.
        delta: f64 = 1e-5, float(Open(0.0), Open(1.0));

        /// Whether clients mask their updates so that the coordinator sees only the sum.
        secure_aggregation: bool = false;

        /// Probability that a client's update never arrives.
        dropout: f64 = 0.0, float(Closed(0.0), Open(1.0));

        /// Probability that an update arrives a round late, and again for each further round.
        late_fraction: f64 = 0.0, float(Closed(0.0), Open(1.0));

        /// Maximum number of rounds by which a late update still counts, with decreasing weight;
        /// later ones are discarded.
        max_delay_rounds: u64 = 1, integer(0, 1000);

        /// Fraction of clients that are Byzantine, for robustness tests.
        byzantine: f64 = 0.0, float(Closed(0.0), Open(1.0));

        /// Attack of the Byzantine clients: sign-flip sends the negated update times ten, noise
        /// sends Gaussian noise, stale repeats the first update.
        attack: ByzantineAttack = "sign-flip";
    }
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
        by_worker.extend(even_shares(clients, workers - 1));
        by_worker
    }

    /// Clients of a step's round in ascending order; empty without federated learning. A function
    /// of the recipe, so workers need no communication.
    pub fn clients_at(&self, step: u64) -> Vec<usize> {
        if !self.is_federated() {
            return Vec::new();
        }
        let (all, sampled) = (self.federated.clients, self.federated.sampled);
        let round = self.round_at(step).start;
        let order = Permutation::new(all as u64, mix(mix(self.train.seed, CLIENTS), round));
        let mut clients: Vec<_> = (0..sampled as u64).map(|i| order.apply(i) as usize).collect();
        clients.sort_unstable();
        clients
    }
}

pub(crate) const RULES: Rules = Rules::new(&[
    // Clients are sampled without replacement, and every worker but the coordinator hosts one.
    Rule::new(&["federated.clients"], |c| {
        let Federated { clients, sampled, .. } = c.federated;
        let hosts = c.run.workers.saturating_sub(1);
        let (name, rule, fix) = if sampled > clients {
            let rule = format!("is more than federated.clients = {clients}");
            ("federated.sampled", rule, clients)
        } else if hosts > clients {
            let rule = format!("makes {hosts} hosts for federated.clients = {clients}");
            ("run.workers", rule, clients + 1)
        } else {
            return None;
        };
        let involved = [name, "federated.clients"];
        c.all_valid(&involved).then(|| c.error_about(&involved, rule, format!("try {fix}")))
    }),
    // The clients of a round have equal numbers of whole micro-batches.
    Rule::new(&["train.batch", "federated.sampled", "train.microbatch"], |c| {
        batch_divides(c, "federated.sampled", c.federated.sampled)
    }),
    // SCAFFOLD derives its control variates from plain SGD steps.
    Rule::conflict(&["federated.method"], "fedavg", |c, r| {
        let is_scaffold = r.federated.method == FederatedMethod::Scaffold;
        c.because("computes control variates from plain SGD steps").with(
            "optim.name",
            "\"sgd\"",
            is_scaffold && r.optim.name != OptimName::Sgd,
        );
    }),
    // Robust aggregation tolerates a minority of Byzantine clients.
    Rule::new(
        &["federated.assumed_byzantine", "federated.sampled", "federated.aggregation"],
        |c| {
            let Federated { sampled, aggregation, assumed_byzantine, .. } = c.federated;
            let most = aggregation.max_byzantine(sampled)?;
            let rule = format!(
                "is more than \"{aggregation}\" tolerates with federated.sampled = {sampled}"
            );
            c.refuse(assumed_byzantine > most, rule, most)
        },
    ),
    // The noise is scaled by the clipping norm.
    Rule::new(&["federated.noise_multiplier", "federated.clip"], |c| {
        let Federated { noise_multiplier, clip, .. } = c.federated;
        let is_broken = noise_multiplier != 0.0 && clip <= 0.0;
        c.refuse(is_broken, "is in units of federated.clip, which is 0", "federated.clip = 1.0")
    }),
    // Secure aggregation reveals only the sum of a round's updates.
    Rule::conflict(&["federated.secure_aggregation"], "false", |c, r| {
        let Federated { secure_aggregation: is_secure, aggregation, late_fraction, .. } =
            r.federated;
        let is_mean = aggregation == AggregationRule::Mean;
        c.because("reveals only the sum of a round's updates")
            .with("federated.aggregation", "\"mean\"", is_secure && !is_mean)
            .with("federated.late_fraction", "0.0", is_secure && late_fraction > 0.0);
    }),
    // The batch is divided among the sampled clients, so its size is constant.
    Rule::conflict(&["sync.mode"], "all-reduce", |c, r| {
        c.because("divides a constant batch among clients").with(
            "train.batch_schedule",
            "[]",
            !r.train.batch_schedule.is_empty(),
        );
    }),
    // Every client has samples of its own.
    Rule::conflict(&["sync.mode"], "all-reduce", |c, r| {
        c.because("needs a partition of the samples over clients").with(
            "sync.partition",
            "\"iid\"",
            !r.is_partitioned(),
        );
    }),
])
.when(&["sync.mode"], Recipe::is_federated);

/// Largest product of local steps and other clients of a round.
const MAX_CLIENT_DISTANCE: u64 = 100;
/// Dirichlet concentration below which clients have hardly a class in common.
const MIN_ALPHA: f64 = 0.1;

pub(crate) const LINTS: &[Lint] = lints! {
    "long-client-rounds": "clients take many local steps before they are averaged";
        if "sync.local_steps x (federated.sampled - 1) > 100";
        advice "take shorter rounds, or federated.method = \"scaffold\"";
        |r| let (steps, sampled) = (r.sync.local_steps, r.federated.sampled);
            let distance = steps.saturating_mul(sampled as u64 - 1);
            when is_fedavg(r) && distance > MAX_CLIENT_DISTANCE =>
                "sync.local_steps = {steps} with {sampled} clients acts like a staleness of \
                 {distance}";

    "skewed-clients": "clients with hardly a class in common drift apart";
        if "federated.method = fedavg with sync.dirichlet_alpha < 0.1 or sync.partition = by-class";
        advice "use federated.method = \"scaffold\" or \"fedprox\"";
        |r| let alpha = r.sync.dirichlet_alpha;
            let setting = match r.sync.partition {
                SyncPartition::Dirichlet if alpha < MIN_ALPHA => {
                    format!("sync.dirichlet_alpha = {alpha}")
                }
                SyncPartition::ByClass => "sync.partition = \"by-class\"".to_owned(),
                _ => return None,
            };
            when is_fedavg(r) && r.sync.local_steps > 1 => "{setting} lets clients drift apart";
};

fn is_fedavg(recipe: &Recipe) -> bool {
    recipe.is_federated() && recipe.federated.method == FederatedMethod::FedAvg
}

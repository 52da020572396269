//! Keys of federated learning: clients, coordinator, privacy and simulated failures.

use super::{float, integer};
use crate::key::{Default, Field, Key, field};
use crate::recipe::{AggregationRule, ByzantineAttack, FederatedMethod, FederatedServer};
use crate::value::Value;
use crate::value_type::{Bound, ValueType};

use Bound::{Closed, Open};
use Default::Fixed;

const ADAPTIVE: &[&str] = &["adam", "yogi"];

pub(super) const FEDERATED: &[Key] = &[
    Key::new(
        "federated.clients",
        integer(1, 100_000),
        Fixed("16"),
        field!(federated.clients: integer usize),
        "Number of clients, each with its own private part of the data.",
    ),
    Key::new(
        "federated.sampled",
        integer(1, 100_000),
        Fixed("8"),
        field!(federated.sampled: integer usize),
        "Number of clients sampled per round; they share train.batch evenly.",
    ),
    Key::new(
        "federated.method",
        ValueType::Choice(FederatedMethod::NAMES),
        Fixed("\"fedavg\""),
        field!(federated.method: choice FederatedMethod),
        "Client-side algorithm: fedavg is plain local SGD, fedprox adds a proximal term, scaffold \
         corrects client drift with control variates.",
    ),
    Key::new(
        "federated.mu",
        float(Open(0.0), Closed(1000.0)),
        Fixed("0.1"),
        field!(federated.mu: f64),
        "Weight of the proximal term.",
    )
    .only_when("federated.method", &["fedprox"]),
    Key::new(
        "federated.min_steps_fraction",
        float(Open(0.0), Closed(1.0)),
        Fixed("1.0"),
        field!(federated.min_steps_fraction: f64),
        "Minimum fraction of a round's steps that a client takes; each client draws its own \
         number.",
    ),
    Key::new(
        "federated.server",
        ValueType::Choice(FederatedServer::NAMES),
        Fixed("\"average\""),
        field!(federated.server: choice FederatedServer),
        "Optimizer of the coordinator, with the aggregated update as gradient: average (FedAvg), \
         momentum (FedAvgM), adam (FedAdam) or yogi (FedYogi).",
    ),
    Key::new(
        "federated.server_lr",
        float(Open(0.0), Closed(100.0)),
        Fixed("1.0"),
        field!(federated.server_lr: f64),
        "Learning rate of the coordinator.",
    ),
    Key::new(
        "federated.server_momentum",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.9"),
        field!(federated.server_momentum: f64),
        "Momentum of the coordinator.",
    )
    .only_when("federated.server", &["momentum", "adam", "yogi"]),
    Key::new(
        "federated.server_beta2",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.99"),
        field!(federated.server_beta2: f64),
        "Decay of the coordinator's second moment.",
    )
    .only_when("federated.server", ADAPTIVE),
    Key::new(
        "federated.server_tau",
        float(Open(0.0), Closed(10.0)),
        Fixed("1e-3"),
        field!(federated.server_tau: f64),
        "Adaptivity of the coordinator: added to the square root of the second moment (tau of \
         FedOpt).",
    )
    .only_when("federated.server", ADAPTIVE),
    Key::new(
        "federated.aggregation",
        ValueType::Choice(AggregationRule::NAMES),
        Fixed("\"mean\""),
        field!(federated.aggregation: choice AggregationRule),
        "Rule that aggregates client updates; all but mean tolerate Byzantine clients.",
    ),
    Key::new(
        "federated.assumed_byzantine",
        integer(0, 50_000),
        Fixed("1"),
        field!(federated.assumed_byzantine: integer usize),
        "Number of Byzantine clients per round that the rule tolerates: values trimmed on either \
         side by trimmed-mean, f of krum.",
    )
    .only_when("federated.aggregation", &["trimmed-mean", "krum"]),
    Key::new(
        "federated.clip",
        float(Closed(0.0), Closed(1e9)),
        Fixed("0.0"),
        field!(federated.clip: f64),
        "Norm to which client updates are clipped; 0 does not clip.",
    ),
    Key::new(
        "federated.noise_multiplier",
        float(Closed(0.0), Closed(1000.0)),
        Fixed("0.0"),
        field!(federated.noise_multiplier: f64),
        "Standard deviation of the Gaussian noise on the sum of updates, in units of \
         federated.clip, for differential privacy; the run reports the resulting epsilon.",
    ),
    Key::new(
        "federated.delta",
        float(Open(0.0), Open(1.0)),
        Fixed("1e-5"),
        field!(federated.delta: f64),
        "Delta of differential privacy; choose it below 1 / federated.clients.",
    ),
    Key::new(
        "federated.secure_aggregation",
        ValueType::Bool,
        Fixed("false"),
        field!(federated.secure_aggregation: bool),
        "Whether clients mask their updates so that the coordinator sees only the sum.",
    ),
    Key::new(
        "federated.dropout",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.0"),
        field!(federated.dropout: f64),
        "Probability that a client's update never arrives.",
    ),
    Key::new(
        "federated.late_fraction",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.0"),
        field!(federated.late_fraction: f64),
        "Probability that an update arrives a round late, and again for each further round.",
    ),
    Key::new(
        "federated.max_delay_rounds",
        integer(0, 1000),
        Fixed("1"),
        field!(federated.max_delay_rounds: integer u64),
        "Maximum number of rounds by which a late update still counts, with decreasing weight; \
         later ones are discarded.",
    ),
    Key::new(
        "federated.byzantine",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.0"),
        field!(federated.byzantine: f64),
        "Fraction of clients that are Byzantine, for robustness tests.",
    ),
    Key::new(
        "federated.attack",
        ValueType::Choice(ByzantineAttack::NAMES),
        Fixed("\"sign-flip\""),
        field!(federated.attack: choice ByzantineAttack),
        "Attack of the Byzantine clients: sign-flip sends the negated update times ten, noise \
         sends Gaussian noise, stale repeats the first update.",
    ),
];

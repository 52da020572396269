//! Keys of federated learning: who takes part, what corrects it, what the coordinator does.

use super::{float, integer};
use crate::key::{Default, Field, Key, field};
use crate::kind::{Bound, Kind};
use crate::recipe::{FederatedAttack, FederatedCombine, FederatedMethod, FederatedServer};
use crate::value::Value;

use Bound::{Closed, Open};
use Default::Fixed;

const ADAPTIVE: &[&str] = &["adam", "yogi"];

pub(super) const FEDERATED: &[Key] = &[
    Key::new(
        "federated.clients",
        integer(1, 100_000),
        Fixed("16"),
        field!(federated.clients: integer usize),
        "Clients, each with a part of the data that nobody else sees.",
    ),
    Key::new(
        "federated.sampled",
        integer(1, 100_000),
        Fixed("8"),
        field!(federated.sampled: integer usize),
        "Clients that take part in a round; they share train.batch evenly.",
    ),
    Key::new(
        "federated.method",
        Kind::Choice(FederatedMethod::NAMES),
        Fixed("\"fedavg\""),
        field!(federated.method: choice FederatedMethod),
        "What a client's steps are corrected by: nothing, a pull towards the start of the round \
         (fedprox), or how its gradients differ from everybody's (scaffold).",
    ),
    Key::new(
        "federated.mu",
        float(Open(0.0), Closed(1000.0)),
        Fixed("0.1"),
        field!(federated.mu: f64),
        "How strongly a client is pulled back.",
    )
    .only_when("federated.method", &["fedprox"]),
    Key::new(
        "federated.least_steps",
        float(Open(0.0), Closed(1.0)),
        Fixed("1.0"),
        field!(federated.least_steps: f64),
        "The smallest share of a round's steps that a client takes; how many it takes is drawn.",
    ),
    Key::new(
        "federated.server",
        Kind::Choice(FederatedServer::NAMES),
        Fixed("\"average\""),
        field!(federated.server: choice FederatedServer),
        "What the coordinator does with the change of a round, as if it were a gradient: take it \
         (FedAvg), momentum, adam (FedAdam) or yogi (FedYogi).",
    ),
    Key::new(
        "federated.server_lr",
        float(Open(0.0), Closed(100.0)),
        Fixed("1.0"),
        field!(federated.server_lr: f64),
        "The coordinator's learning rate.",
    ),
    Key::new(
        "federated.server_momentum",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.9"),
        field!(federated.server_momentum: f64),
        "The coordinator's momentum.",
    )
    .only_when("federated.server", &["momentum", "adam", "yogi"]),
    Key::new(
        "federated.server_second",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.99"),
        field!(federated.server_second: f64),
        "How long the coordinator's second moment lasts.",
    )
    .only_when("federated.server", ADAPTIVE),
    Key::new(
        "federated.server_tau",
        float(Open(0.0), Closed(10.0)),
        Fixed("1e-3"),
        field!(federated.server_tau: f64),
        "What is added to the root of the second moment; the less, the more it adapts.",
    )
    .only_when("federated.server", ADAPTIVE),
    Key::new(
        "federated.combine",
        Kind::Choice(FederatedCombine::NAMES),
        Fixed("\"mean\""),
        field!(federated.combine: choice FederatedCombine),
        "How the changes of clients become one; all but the mean bear clients that lie.",
    ),
    Key::new(
        "federated.liars",
        integer(0, 50_000),
        Fixed("1"),
        field!(federated.liars: integer usize),
        "Clients of a round that may lie: the extremes that a trimmed mean leaves out on either \
         side, or what krum counts on.",
    )
    .only_when("federated.combine", &["trimmed-mean", "krum"]),
    Key::new(
        "federated.clip",
        float(Closed(0.0), Closed(1e9)),
        Fixed("0.0"),
        field!(federated.clip: f64),
        "The most that a client's change may be long; longer ones are shortened. 0 does not limit.",
    ),
    Key::new(
        "federated.noise",
        float(Closed(0.0), Closed(1000.0)),
        Fixed("0.0"),
        field!(federated.noise: f64),
        "Gaussian noise on the sum of changes, in units of federated.clip, for differential \
         privacy; the run says which epsilon it buys.",
    ),
    Key::new(
        "federated.delta",
        float(Open(0.0), Open(1.0)),
        Fixed("1e-5"),
        field!(federated.delta: f64),
        "The chance at which the privacy may fail; below one in as many as there are clients.",
    ),
    Key::new(
        "federated.secure",
        Kind::Bool,
        Fixed("false"),
        field!(federated.secure: bool),
        "Whether clients hide their changes behind masks that cancel in the sum, so that the \
         coordinator sees nothing else.",
    ),
    Key::new(
        "federated.dropout",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.0"),
        field!(federated.dropout: f64),
        "The chance that a client's change never arrives.",
    ),
    Key::new(
        "federated.late",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.0"),
        field!(federated.late: f64),
        "The chance that a change arrives a round late, and as often another round later.",
    ),
    Key::new(
        "federated.window",
        integer(0, 1000),
        Fixed("1"),
        field!(federated.window: integer u64),
        "Rounds by which a change may be late and still count, the less the later; others are \
         discarded.",
    ),
    Key::new(
        "federated.byzantine",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.0"),
        field!(federated.byzantine: f64),
        "The share of clients that lie, to see what becomes of it.",
    ),
    Key::new(
        "federated.attack",
        Kind::Choice(FederatedAttack::NAMES),
        Fixed("\"sign-flip\""),
        field!(federated.attack: choice FederatedAttack),
        "How they lie: sign-flip sends the opposite ten times as long, noise nothing but noise, \
         stale the first change again and again.",
    ),
];

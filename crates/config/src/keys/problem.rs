//! Keys of small problems: samples, dimension, conditioning and noise.

use super::{float, integer};
use crate::key::{Default, Field, Key, field};
use crate::value::Value;
use crate::value_type::Bound;

use Bound::Closed;
use Default::Fixed;

pub(super) const PROBLEM: &[Key] = &[
    Key::new(
        "problem.samples",
        integer(1, MAX_SAMPLES),
        Fixed("4096"),
        field!(model.problem.samples: integer usize),
        "Number of training samples; each is a function of problem.seed and its index.",
    ),
    Key::new(
        "problem.held_out",
        integer(1, MAX_SAMPLES),
        Fixed("1024"),
        field!(model.problem.held_out: integer usize),
        "Number of validation samples.",
    ),
    Key::new(
        "problem.seed",
        integer(0, i64::MAX),
        Fixed("1"),
        field!(model.problem.seed: integer u64),
        "Seed of the samples; train.seed decides their order and the initial weights.",
    ),
    Key::new(
        "problem.dim",
        integer(1, MAX_DIM),
        Fixed("64"),
        field!(model.problem.dim: integer usize),
        "Number of unknowns; at most 1024 for ridge and logistic, whose optimum is computed.",
    )
    .only_when("model.family", &["quadratic", "ridge", "logistic"]),
    Key::new(
        "problem.condition",
        float(Closed(1.0), Closed(1e6)),
        Fixed("100.0"),
        field!(model.problem.condition: f64),
        "Condition number: largest over smallest curvature (quadratic) or feature variance (ridge, \
         logistic).",
    )
    .only_when("model.family", &["quadratic", "ridge", "logistic"]),
    Key::new(
        "problem.noise",
        float(Closed(0.0), Closed(1e6)),
        Fixed("0.0"),
        field!(model.problem.noise: f64),
        "Standard deviation of each element of a sample's gradient (quadratic) or of its target \
         (ridge).",
    )
    .only_when("model.family", &["quadratic", "ridge"]),
    Key::new(
        "problem.l2",
        float(Closed(1e-6), Closed(1e6)),
        Fixed("0.01"),
        field!(model.problem.l2: f64),
        "L2 regularisation: weight of half the squared norm of the unknowns in the loss.",
    )
    .only_when("model.family", &["ridge", "logistic"]),
    Key::new(
        "problem.density",
        float(Bound::Open(0.0), Closed(1.0)),
        Fixed("1.0"),
        field!(model.problem.density: f64),
        "Fraction of non-zero features, drawn for every sample; their values grow as the fraction \
         shrinks.",
    )
    .only_when("model.family", &["ridge", "logistic"])
    .in_identity_when(|r| r.model.problem.density < 1.0),
];

/// Largest number of samples: 256 MiB with the largest problem that is kept in memory.
const MAX_SAMPLES: i64 = 1 << 16;

/// Largest number of unknowns.
const MAX_DIM: i64 = 1 << 16;

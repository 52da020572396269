//! Small synthetic problems.
//!
//! A problem has samples instead of text, each generated from a seed and an index, and no tokens,
//! heads or context: a sequence is one sample.

use super::{Activation, Family};
use crate::lint::{Lint, lints};
use crate::rule::{Rule, Rules};
use crate::topic::topic;
use crate::value_type::Bound::{Closed, Open};

/// Families with a known optimum.
const CONVEX: &[&str] = &["quadratic", "ridge", "logistic"];

/// Largest number of samples: 256 MiB with the largest problem that is kept in memory.
const MAX_SAMPLES: i64 = 1 << 16;

/// Largest number of unknowns.
const MAX_DIM: i64 = 1 << 16;

topic! {
    /// Synthetic data of the small problems.
    #[derive(Copy)]
    pub struct Problem at model.problem, table "problem",
        when("model.family", Family::OF_PROBLEMS) {
        /// Number of training samples; each is a function of problem.seed and its index.
        samples: usize = 4096, integer(1, MAX_SAMPLES);

        /// Number of validation samples.
        held_out: usize = 1024, integer(1, MAX_SAMPLES);

        /// Seed of the samples; train.seed decides their order and the initial weights.
        seed: u64 = 1, integer(0, i64::MAX);

        /// Number of unknowns; at most 1024 for ridge and logistic, whose optimum is computed.
        dim: usize = 64, integer(1, MAX_DIM),
            when("model.family", CONVEX);

        /// Condition number: largest over smallest curvature (quadratic) or feature variance
        /// (ridge, logistic).
        condition: f64 = 100.0, float(Closed(1.0), Closed(1e6)),
            when("model.family", CONVEX);

        /// Standard deviation of each element of a sample's gradient (quadratic) or of its target
        /// (ridge).
        noise: f64 = 0.0, float(Closed(0.0), Closed(1e6)),
            when("model.family", &["quadratic", "ridge"]);

        /// L2 regularisation: weight of half the squared norm of the unknowns in the loss.
        l2: f64 = 0.01, float(Closed(1e-6), Closed(1e6)),
            when("model.family", &["ridge", "logistic"]);

        /// Fraction of non-zero features, drawn for every sample; their values grow as the fraction
        /// shrinks.
        density: f64 = 1.0, float(Open(0.0), Closed(1.0)),
            when("model.family", &["ridge", "logistic"]),
            in_identity_unless_default();

        /// Activation function (mlp).
        field activation: Activation;
    }
}

impl Problem {
    /// Placeholder in a language model.
    pub const NONE: Self = Self {
        samples: 1,
        held_out: 1,
        seed: 0,
        dim: 1,
        condition: 1.0,
        noise: 0.0,
        l2: 0.0,
        density: 1.0,
        activation: Activation::Relu,
    };
}

/// Largest number of unknowns whose optimum is computed at the start of a run.
const MAX_SOLVED_DIM: usize = 1024;

/// Largest number of products per step of that computation: about a second.
const MAX_SOLVED_PRODUCTS: usize = 1 << 32;

pub(crate) const RULES: Rules = Rules::new(&[
    // Ridge and logistic regression compute their optimum by solving a dense linear system.
    Rule::new(&["problem.dim", "model.family"], |c| {
        let (family, Problem { dim, samples, .. }) = (c.model.family, c.model.problem);
        if !matches!(family, Family::Ridge | Family::Logistic) {
            return None;
        }
        if dim > MAX_SOLVED_DIM {
            let rule =
                format!("is too large for model.family = \"{family}\", whose optimum is computed");
            return c.refuse(true, rule, MAX_SOLVED_DIM);
        }
        let most = MAX_SOLVED_PRODUCTS / (dim * dim);
        (samples > most && c.all_valid(&["problem.samples"])).then(|| {
            let rule = format!("with problem.dim = {dim} is too large to compute the optimum");
            c.error_about(&["problem.samples", "problem.dim"], rule, format!("try {most}"))
        })
    }),
])
.when(&[], |r| r.model.family.is_problem());

/// Condition number below which all methods converge fast.
const EASY_CONDITION: f64 = 10.0;

pub(crate) const LINTS: &[Lint] = lints! {
    "easy-problem": "a convex problem is so well-conditioned that every method converges fast";
        if "problem.condition < 10"; advice "compare methods at 100 or more";
        |r| let condition = r.model.problem.condition;
            when r.model.family.is_convex() && condition < EASY_CONDITION =>
                "problem.condition = {condition} hides the differences between methods";
};

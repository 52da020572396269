//! Optimizer: update rule, hyperparameters, learning-rate schedule and parameter groups.

use super::limits::{MAX_BATCH, MAX_GROUPS};
use super::train::default_warmup;
use super::{Family, Group, OffloadState, Recipe, SyncMode};
use crate::field::{Entry, field};
use crate::lint::{Lint, lints};
use crate::rule::{Rule, Rules};
use crate::topic::{choices, topic};
use crate::value::Value;
use crate::value_type::Bound::{Closed, Open};
use crate::value_type::{MAX_STEPS, ValueType};

/// Optimizers with first and second moments.
const ADAM: &[&str] = &["adam", "adamw", "lamb", "muon", "schedule-free-adamw", "adamw-8bit"];
/// Optimizers with two decay rates.
const BETAS: &[&str] =
    &["adam", "adamw", "lamb", "lion", "muon", "schedule-free-adamw", "adamw-8bit"];

topic! {
    /// Optimizer and learning-rate schedule.
    pub struct Optim at optim, table "optim" {
        /// Optimizer.
        name: OptimName = "adamw";

        /// Peak learning rate.
        lr: f64 = 1e-2, float(Open(0.0), Closed(1000.0));

        /// Weight decay.
        weight_decay: f64 = 0.1, float(Closed(0.0), Closed(1000.0));

        /// Maximum global gradient norm; 0 disables clipping.
        clip: f64 = 1.0, float(Closed(0.0), Closed(1e30));

        /// Steps of linear warm-up to optim.lr; at most train.steps.
        warmup_steps: u64 = ("= train.steps / 10", default_warmup), integer(0, MAX_STEPS);

        /// Learning-rate schedule after the warm-up.
        schedule: LrSchedule = (
            "= \"constant\" for optim.name = schedule-free-adamw, else \"cosine\"",
            default_schedule
        );

        /// Learning rate at the last step, as a fraction of optim.lr.
        final_lr_fraction: f64 = 0.1, float(Closed(0.0), Closed(1.0)),
            when("optim.schedule", &["cosine", "linear", "wsd"]);

        /// Milestones at which the learning rate drops.
        drop_at: Vec<Milestone> = [0.5, 0.75], at_most(64), when("optim.schedule", &["step"]);

        /// Factor of the learning rate at each milestone.
        drop_factor: f64 = 0.1, float(Open(0.0), Closed(1.0)), when("optim.schedule", &["step"]);

        /// Fraction of train.steps with learning-rate decay at the end.
        decay_fraction: f64 = 0.2, float(Open(0.0), Closed(1.0)), when("optim.schedule", &["wsd"]);

        /// Shape of the final learning-rate decay.
        decay_shape: DecayShape = "linear", when("optim.schedule", &["wsd"]);

        /// Scaling of the learning rate with the batch size; never with the number of workers.
        lr_scaling: LrScaling = "none";

        /// Batch size to which optim.lr refers.
        lr_base_batch: usize = ("= train.batch", |r| r.train.batch),
            integer(1, MAX_BATCH), when("optim.lr_scaling", &["linear", "sqrt"]);

        /// Decay of the first moment; share of the momentum in the direction of Lion.
        beta1: f64 = 0.9, float(Closed(0.0), Open(1.0)), when("optim.name", BETAS);

        /// Decay of the second moment, or of the momentum of Lion.
        beta2: f64 = ("= 0.99 for optim.name = lion, else 0.95", default_beta2),
            float(Closed(0.0), Open(1.0)), when("optim.name", BETAS);

        /// Epsilon in the denominator of the update.
        eps: f64 = 1e-8, float(Closed(1e-30), Closed(1.0)), when("optim.name", ADAM);

        /// Momentum factor.
        momentum: f64 = ("= 0.95 for optim.name = muon, else 0.9", default_momentum),
            float(Closed(0.0), Open(1.0)),
            when("optim.name", &["momentum", "nesterov", "lars", "muon"]);

        /// Trust coefficient of LARS: norm of an update relative to the norm of its tensor, at a
        /// learning rate of 1.
        trust_coefficient: f64 = 1e-3, float(Open(0.0), Closed(1000.0)),
            when("optim.name", &["lars"]);

        /// Parameter groups with settings of their own; the first group whose match fits a
        /// parameter name applies. clip limits the norm of the group by itself; freeze_after and
        /// unfreeze_at count steps.
        groups: Vec<Group> = none, at_most(MAX_GROUPS);

        /// Width of the model in units of model.mup_base_width; 1 without muP.
        field width_ratio: f64;
    }
}

impl Optim {
    /// Index of the group of a parameter, if it has one.
    pub fn group_of(&self, param: &str) -> Option<usize> {
        self.groups.iter().position(|group| group.matches(param))
    }

    /// Step since which a parameter has been trained continuously, if it is trained in `step`.
    pub fn trained_since(&self, param: &str, step: u64) -> Option<u64> {
        match self.group_of(param) {
            Some(group) => self.groups[group].trained_since(step),
            None => Some(0),
        }
    }
}

/// A point of the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Milestone {
    /// After this number of steps.
    Step(u64),
    /// After this fraction of all steps.
    Fraction(f64),
}

impl Milestone {
    /// Number of steps before the milestone in a run of `num_steps`.
    pub fn step_of(self, num_steps: u64) -> u64 {
        match self {
            Self::Step(step) => step,
            Self::Fraction(fraction) => (fraction * num_steps as f64).round() as u64,
        }
    }
}

field!(
    Milestone: ValueType::Milestone,
    blank Self::Step(0),
    to |milestone| match milestone {
        Self::Step(step) => step.to_value(),
        Self::Fraction(fraction) => Value::Float(*fraction),
    },
    from |v| match v {
        Value::Float(fraction) => Self::Fraction(*fraction),
        other => Self::Step(u64::from_value(other)),
    }
);

impl Entry for Milestone {}

choices! {
    /// Optimizer.
    OptimName {
        /// Plain stochastic gradient descent.
        Sgd = "sgd",
        /// SGD with momentum.
        Momentum = "momentum",
        /// SGD with Nesterov momentum.
        Nesterov = "nesterov",
        /// Adam with L2 regularisation in the gradient (Kingma and Ba 2015).
        Adam = "adam",
        /// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
        AdamW = "adamw",
        /// LARS: momentum with layer-wise learning rates (You et al. 2017).
        Lars = "lars",
        /// LAMB: AdamW with layer-wise learning rates (You et al. 2020).
        Lamb = "lamb",
        /// Lion: sign of an interpolated momentum (Chen et al. 2023).
        Lion = "lion",
        /// Muon: orthogonalised momentum for hidden matrices, AdamW for the rest (Jordan et al.
        /// 2024; Liu et al. 2025).
        Muon = "muon",
        /// Schedule-free AdamW: averages instead of a schedule (Defazio et al. 2024).
        ScheduleFreeAdamW = "schedule-free-adamw",
        /// Adafactor: second moments of rows and columns (Shazeer and Stern 2018).
        Adafactor = "adafactor",
        /// AdamW with moments of eight bits (Dettmers et al. 2022).
        AdamW8Bit = "adamw-8bit",
    }

    /// Learning-rate schedule after the warm-up.
    LrSchedule {
        /// Constant.
        Constant = "constant",
        /// Half a cosine wave.
        Cosine = "cosine",
        /// Linear decay.
        Linear = "linear",
        /// Drops by a factor at milestones.
        Step = "step",
        /// Warm-up, stable, decay: constant, then decay at the end.
        Wsd = "wsd",
    }

    /// Shape of the final decay of the wsd schedule.
    DecayShape {
        /// Linear.
        Linear = "linear",
        /// One minus a square root: steep at first.
        Sqrt = "1-sqrt",
        /// Half a cosine wave.
        Cosine = "cosine",
    }

    /// Scaling of the learning rate with the batch.
    LrScaling {
        /// None.
        None = "none",
        /// Linear.
        Linear = "linear",
        /// Square root.
        Sqrt = "sqrt",
    }
}

impl OptimName {
    /// Whether it has first and second moments.
    pub(super) const fn is_adam(self) -> bool {
        matches!(
            self,
            Self::Adam | Self::AdamW | Self::AdamW8Bit | Self::Lamb | Self::ScheduleFreeAdamW
        )
    }

    /// Whether a step needs norms of whole tensors.
    pub(super) const fn needs_tensor_norms(self) -> bool {
        matches!(self, Self::Lars | Self::Lamb)
    }

    /// Whether the size of an update is that of the learning rate, whatever the gradients.
    const fn has_fixed_step_size(self) -> bool {
        matches!(
            self,
            Self::Adam
                | Self::AdamW
                | Self::AdamW8Bit
                | Self::Adafactor
                | Self::Lion
                | Self::Muon
                | Self::ScheduleFreeAdamW
        )
    }
}

/// The average takes the place of a decay of the learning rate.
fn default_schedule(recipe: &Recipe) -> LrSchedule {
    match recipe.optim.name {
        OptimName::ScheduleFreeAdamW => LrSchedule::Constant,
        _ => LrSchedule::Cosine,
    }
}

/// Momentum of Muon's authors, and the usual one.
fn default_momentum(recipe: &Recipe) -> f64 {
    if recipe.optim.name == OptimName::Muon { 0.95 } else { 0.9 }
}

/// Betas of the papers: Adam's of language models, and Lion's.
fn default_beta2(recipe: &Recipe) -> f64 {
    if recipe.optim.name == OptimName::Lion { 0.99 } else { 0.95 }
}

pub(crate) const WARMUP_RULES: Rules =
    Rules::new(&[Rule::new(&["optim.warmup_steps", "train.steps"], |c| {
        let steps = c.train.steps;
        let rule = format!("is more than train.steps = {steps}");
        c.refuse(c.optim.warmup_steps > steps, rule, default_warmup(c))
    })]);

pub(crate) const SCHEDULE_RULES: Rules = Rules::new(&[
    // A milestone after the last step would have no effect.
    Rule::new(&["optim.drop_at", "train.steps", "optim.schedule"], |c| {
        let (optim, steps) = (&c.optim, c.train.steps);
        if optim.schedule != LrSchedule::Step || !c.is_set("optim.drop_at") {
            return None;
        }
        let mut milestones = optim.drop_at.iter().map(|at| at.step_of(steps)).enumerate();
        let (index, at) = milestones.find(|(_, at)| *at > steps)?;
        let rule = format!("is after the last step, train.steps = {steps}");
        Some(c.entry_error(&format!("[{index}]"), at, rule, "try 0.5"))
    }),
]);

pub(crate) const RULES: Rules = Rules::new(&[
    // The final decay begins after the warm-up.
    Rule::new(
        &["optim.decay_fraction", "optim.warmup_steps", "train.steps", "optim.schedule"],
        |c| {
            let (optim, steps, warmup) = (&c.optim, c.train.steps, c.optim.warmup_steps);
            let num_decaying = (optim.decay_fraction * steps as f64).round() as u64;
            let fits = num_decaying.saturating_add(warmup) <= steps;
            if optim.schedule != LrSchedule::Wsd || fits || warmup > steps {
                return None;
            }
            let rule =
                format!("begins inside the warm-up of {warmup} steps with train.steps = {steps}");
            let fix = match (steps - warmup) as f64 / steps as f64 {
                left if left > 0.0 => format!("{left:.3} or less, or a shorter optim.warmup_steps"),
                _ => "a shorter optim.warmup_steps".to_owned(),
            };
            c.refuse(true, rule, fix)
        },
    ),
    // A group is frozen throughout, or from and until different steps.
    Rule::each(&["optim.groups"], |c| {
        let check = |(index, group): (usize, &Group)| {
            let Group { frozen, freeze_after, unfreeze_at, .. } = group;
            let (cell, step) = match (freeze_after, unfreeze_at) {
                (Some(step), _) if *frozen => ("freeze_after", step),
                (_, Some(step)) if *frozen => ("unfreeze_at", step),
                (Some(after), Some(at)) if after == at => ("unfreeze_at", at),
                _ => return None,
            };
            let (rule, fix) = if *frozen {
                ("belongs to a group that is frozen throughout", "remove it, or frozen")
            } else {
                ("is equal to freeze_after", "remove one of them")
            };
            Some(c.entry_error(&format!("[{index}].{cell}"), step, rule, fix))
        };
        c.optim.groups.iter().enumerate().filter_map(check).collect()
    }),
]);

pub(crate) const SCHEDULE_FREE_RULES: Rules =
    Rules::new(&[Rule::conflict(&["optim.name"], "adamw", |c, r| {
        let changes = |group: &Group| group.freeze_after.or(group.unfreeze_at).is_some();
        c.because("averages weights in place of a schedule")
            .with("optim.schedule", "\"constant\"", r.optim.schedule != LrSchedule::Constant)
            .because("weighs steps by a rate that follows the warm-up alone")
            .with("optim.lr_scaling", "\"none\"", r.optim.lr_scaling != LrScaling::None)
            .because("averages each parameter over all steps")
            .with("optim.groups", "[]", r.optim.groups.iter().any(changes))
            .because("evaluates and saves averages, which all workers must share")
            .with("sync.mode", "\"all-reduce\"", r.sync.mode != SyncMode::AllReduce);
    })])
    .when(&["optim.name"], |r| r.optim.name == OptimName::ScheduleFreeAdamW);

pub(crate) const MUON_RULES: Rules =
    Rules::new(&[Rule::conflict(&["optim.name"], "adamw", |c, r| {
        c.because("orthogonalises matrices of gradients that all workers have summed").with(
            "sync.mode",
            "\"all-reduce\"",
            r.sync.mode != SyncMode::AllReduce,
        );
    })])
    .when(&["optim.name"], |r| r.optim.name == OptimName::Muon);

pub(crate) const ADAFACTOR_RULES: Rules =
    Rules::new(&[Rule::conflict(&["optim.name"], "adamw", |c, r| {
        c.because("factors second moments of gradients that all workers have summed")
            .with("sync.mode", "\"all-reduce\"", r.sync.mode != SyncMode::AllReduce)
            .because("keeps moments of rows and columns, too few to offload")
            .with("offload.state", "\"none\"", r.offload.state != OffloadState::None);
    })])
    .when(&["optim.name"], |r| r.optim.name == OptimName::Adafactor);

pub(crate) const EIGHT_BIT_RULES: Rules =
    Rules::new(&[Rule::conflict(&["optim.name"], "adamw", |c, r| {
        c.because("keeps moments of eight bits with the tensors of a rank")
            .with("sync.mode", "\"all-reduce\"", r.sync.mode != SyncMode::AllReduce)
            .because("keeps moments of eight bits in memory")
            .with("offload.state", "\"none\"", r.offload.state != OffloadState::None);
    })])
    .when(&["optim.name"], |r| r.optim.name == OptimName::AdamW8Bit);

impl Optim {
    /// The momentum setting of the optimizer, with its value.
    pub(super) const fn momentum_setting(&self) -> Option<(&'static str, f64)> {
        match self.name {
            OptimName::Sgd | OptimName::Adafactor => None,
            name if name.is_adam() => Some(("beta1", self.beta1)),
            OptimName::Lion => Some(("beta2", self.beta2)),
            _ => Some(("momentum", self.momentum)),
        }
    }
}

/// Shorter runs are trials.
const MIN_STEPS_TO_WARM_UP: u64 = 100;
/// Learning rate above which Adam seldom trains a transformer.
const MAX_ADAM_RATE: f64 = 1e-2;
/// Growth of batch and learning rate beyond which warm-up is needed.
const MAX_COLD_GROWTH: usize = 2;
/// Clipping norm below which nearly every step is clipped.
const MIN_CLIP: f64 = 0.1;

pub(crate) const LINTS: &[Lint] = lints! {
    "no-warm-up": "Adam starts at the peak learning rate with uninitialised moments";
        if "optim.warmup_steps = 0, with 100 steps or more of a neural network";
        advice "set optim.warmup_steps to a tenth of train.steps";
        |r| let (lr, is_net) = (r.optim.lr, !r.model.family.is_convex());
            let is_cold = r.optim.name.is_adam() && r.optim.warmup_steps == 0;
            when is_net && is_cold && r.train.steps >= MIN_STEPS_TO_WARM_UP =>
                "optim.warmup_steps = 0 starts Adam at optim.lr = {lr}";

    "cold-scaling": "a learning rate scaled linearly with the batch starts without warm-up";
        if "optim.lr_scaling = linear, train.batch > 2 optim.lr_base_batch, no warm-up";
        advice "set optim.warmup_steps to a tenth of train.steps";
        |r| let (optim, batch) = (&r.optim, r.train.batch);
            let has_grown = batch > MAX_COLD_GROWTH * optim.lr_base_batch;
            let growth = batch as f64 / optim.lr_base_batch as f64;
            let is_linear = optim.lr_scaling == LrScaling::Linear;
            when is_linear && has_grown && optim.warmup_steps == 0 =>
                "optim.lr_scaling = \"linear\" starts at {growth:.1} times optim.lr without \
                 warm-up";

    "adam-scaling": "Adam's learning rate is scaled linearly with the batch";
        if "optim.lr_scaling = linear with adam, adamw or lamb"; advice "try \"sqrt\"";
        |r| let name = r.optim.name;
            when r.optim.lr_scaling == LrScaling::Linear && name.is_adam() =>
                "optim.lr_scaling = \"linear\" is a rule for SGD; {name} needs less";

    "unscaled-ramp": "the batch changes during the run and the learning rate does not";
        if "train.batch_schedule with optim.lr_scaling = none"; advice "try \"sqrt\"";
        |r| let is_ramp = !r.train.batch_schedule.is_empty();
            when is_ramp && r.optim.lr_scaling == LrScaling::None =>
                "optim.lr_scaling = \"none\" keeps a constant learning rate over \
                 train.batch_schedule";

    "adam-rate": "the learning rate suits SGD, not Adam";
        if "optim.lr > 0.01 with adafactor, adam, adamw, adamw-8bit, lion, muon or \
            schedule-free-adamw, on text";
        advice "try 3e-3 or less";
        |r| let (lr, name) = (r.optim.lr, r.optim.name);
            let is_high = name.has_fixed_step_size() && lr > MAX_ADAM_RATE;
            when r.model.family.is_text() && is_high =>
                "optim.lr = {lr} is high for {name}, whose updates do not shrink with gradients";

    "tight-clip": "nearly every step is clipped";
        if "0 < optim.clip < 0.1"; advice "try 1.0";
        |r| let clip = r.optim.clip;
            when clip > 0.0 && clip < MIN_CLIP =>
                "optim.clip = {clip} clips nearly every step and slows training";

    "no-clip": "no limit bounds the update after a gradient spike";
        if "optim.clip = 0, on text"; advice "try 1.0";
        |r| when r.model.family.is_text() && r.optim.clip <= 0.0 =>
                "optim.clip = 0 lets one gradient spike diverge the run";

    "unstable-step": "the learning rate exceeds the stability limit of a convex problem";
        if "optim.lr x curvature >= 2 (1 + momentum), or 1 - momentum with sync.gradient_delay = 1";
        advice "lower it";
        |r| let (lr, most) = (r.optim.lr, stability_limit(r)?);
            when lr >= most =>
                "optim.lr = {lr} reaches the stability limit {most:.3} of this problem";

    "unused-weight-decay": "weight decay has no effect on the unknowns of a convex problem";
        if "optim.weight_decay > 0 on a convex problem";
        advice "set it to 0 and use problem.l2 with ridge and logistic";
        |r| let (family, decay) = (r.model.family, r.optim.weight_decay);
            when family.is_convex() && decay > 0.0 =>
                "optim.weight_decay = {decay} has no effect with model.family = \"{family}\"";
};

/// Gradient descent with momentum is stable up to `2 (1 + momentum)` over the largest curvature;
/// Nesterov momentum divides that by `1 + 2 momentum`.
fn stability_limit(recipe: &Recipe) -> Option<f64> {
    let (optim, l2) = (&recipe.optim, recipe.model.problem.l2);
    let curvature = match recipe.model.family {
        Family::Quadratic => 1.0,
        Family::Ridge => 1.0 + l2,
        Family::Logistic => 0.25 + l2,
        _ => return None,
    };
    let m = optim.momentum;
    let is_delayed = recipe.sync.gradient_delay > 0;
    let most = match optim.name {
        // Both roots of z² − (1 + m) z + m + lr λ are inside the unit circle as long as their
        // product is.
        OptimName::Sgd if is_delayed => 1.0,
        OptimName::Momentum if is_delayed => 1.0 - m,
        OptimName::Sgd => 2.0,
        OptimName::Momentum => 2.0 * (1.0 + m),
        OptimName::Nesterov => 2.0 * (1.0 + m) / (1.0 + 2.0 * m),
        // Steps of the others do not follow the gradient, or not alone.
        _ => return None,
    };
    Some(most / curvature)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_milestone_is_a_step_or_a_fraction_of_the_run() {
        assert_eq!(Milestone::Step(7).step_of(10), 7);
        assert_eq!(Milestone::Fraction(0.25).step_of(10), 3, "2.5 is rounded away from zero");
    }
}

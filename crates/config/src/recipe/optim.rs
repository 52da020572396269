//! Optimizer: update rule, hyperparameters, learning-rate schedule and parameter groups.

use std::fmt;

/// Optimizer settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Optim {
    /// Optimizer.
    pub name: OptimName,
    /// Peak learning rate.
    pub lr: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Maximum global gradient norm; 0 disables clipping.
    pub clip: f64,
    /// Steps of linear warm-up from zero to `lr`.
    pub warmup_steps: u64,
    /// Learning-rate schedule after the warm-up.
    pub schedule: LrSchedule,
    /// Learning rate at the last step, as a fraction of `lr` (cosine, linear, wsd).
    pub final_lr_fraction: f64,
    /// Milestones at which the learning rate drops (step).
    pub drop_at: Vec<Milestone>,
    /// Factor of the learning rate at each milestone (step).
    pub drop_factor: f64,
    /// Fraction of all steps with learning-rate decay at the end (wsd).
    pub decay_fraction: f64,
    /// Shape of the decay (wsd).
    pub decay_shape: DecayShape,
    /// Scaling of the learning rate with the batch.
    pub lr_scaling: LrScaling,
    /// Batch size to which `lr` refers.
    pub lr_base_batch: usize,
    /// Decay of the first moment (Adam, AdamW, LAMB).
    pub beta1: f64,
    /// Decay of the second moment (Adam, AdamW, LAMB).
    pub beta2: f64,
    /// Epsilon in the denominator (Adam, AdamW, LAMB).
    pub eps: f64,
    /// Momentum factor (momentum, Nesterov, LARS).
    pub momentum: f64,
    /// Norm of an update relative to the norm of its tensor (LARS).
    pub trust_coefficient: f64,
    /// Parameter groups; the first that matches a parameter applies.
    pub groups: Vec<Group>,
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

/// A parameter group.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Pattern of parameter names, with `*` for any characters and `?` for one.
    pub pattern: String,
    /// Factor of the learning rate.
    pub lr_scale: f64,
    /// Weight decay of the group, biases and norms included, which otherwise have none.
    pub weight_decay: Option<f64>,
    /// Maximum gradient norm of the group by itself; 0 does not limit.
    pub clip: Option<f64>,
    /// Never trained.
    pub frozen: bool,
    /// Number of steps after which the group is frozen.
    pub freeze_after: Option<u64>,
    /// Number of steps before which the group is frozen.
    pub unfreeze_at: Option<u64>,
}

impl Group {
    /// Whether the pattern matches the name of a parameter.
    pub fn matches(&self, param: &str) -> bool {
        matches_pattern(&self.pattern, param)
    }

    /// Step since which the group has been trained continuously, if it is trained in `step`.
    ///
    /// ```
    /// # let group = lockstep_config::Group { pattern: "*".into(), lr_scale: 1.0, clip: None,
    /// #     weight_decay: None, frozen: false, freeze_after: None, unfreeze_at: None };
    /// let group = lockstep_config::Group { unfreeze_at: Some(3), freeze_after: Some(5), ..group };
    /// let since: Vec<_> = (2..6).map(|step| group.trained_since(step)).collect();
    /// assert_eq!(since, [None, Some(3), Some(3), None]);
    /// ```
    pub fn trained_since(&self, step: u64) -> Option<u64> {
        let start = self.unfreeze_at.unwrap_or(0);
        let end = self.freeze_after.unwrap_or(u64::MAX);
        match (start, end) {
            _ if self.frozen => None,
            // Trained, frozen, trained.
            _ if end < start && step < end => Some(0),
            _ if end < start => (step >= start).then_some(start),
            _ => (start..end).contains(&step).then_some(start),
        }
    }
}

/// Whether a glob pattern matches a name: `*` stands for any characters and `?` for one.
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    glob(pattern.as_bytes(), name.as_bytes())
}

/// Glob matching. A star takes as few characters as possible, and one more whenever the rest does
/// not match; only the last star needs backtracking.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(letter) if *letter == b'?' || *letter == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((at, taken)) = star else { return false };
                star = Some((at, taken + 1));
                (p, t) = (at + 1, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|letter| *letter == b'*')
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
    }
}

choices! {
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
}

choices! {
    /// Shape of the final decay of the wsd schedule.
    DecayShape {
        /// Linear.
        Linear = "linear",
        /// One minus a square root: steep at first.
        Sqrt = "1-sqrt",
        /// Half a cosine wave.
        Cosine = "cosine",
    }
}

choices! {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn group(pattern: &str) -> Group {
        Group {
            pattern: pattern.to_owned(),
            lr_scale: 1.0,
            weight_decay: None,
            clip: None,
            frozen: false,
            freeze_after: None,
            unfreeze_at: None,
        }
    }

    #[test]
    fn stars_match_any_characters_and_question_marks_one() {
        let yes = [
            ("*", ""),
            ("*.bias", "h.0.attn.bias"),
            ("h.?.attn*", "h.1.attn.c_attn.weight"),
            ("*a*b*c", "xxaabbabcc"),
            ("wte", "wte"),
            ("**", "anything"),
        ];
        let no = [("*.bias", "h.0.bias.weight"), ("h.?.", "h.10."), ("", "a"), ("a?", "a")];
        assert!(yes.iter().all(|(pattern, name)| group(pattern).matches(name)));
        assert!(no.iter().all(|(pattern, name)| !group(pattern).matches(name)));
    }

    #[test]
    fn groups_are_frozen_in_the_steps_they_name() {
        let since = |freeze_after, unfreeze_at| {
            let group = Group { freeze_after, unfreeze_at, ..group("*") };
            (0..5).map(|step| group.trained_since(step)).collect::<Vec<_>>()
        };
        assert_eq!(since(None, None), [Some(0); 5]);
        assert_eq!(since(Some(2), None), [Some(0), Some(0), None, None, None]);
        assert_eq!(since(None, Some(3)), [None, None, None, Some(3), Some(3)]);
        assert_eq!(since(Some(3), Some(1)), [None, Some(1), Some(1), None, None]);
        assert_eq!(since(Some(1), Some(3)), [Some(0), None, None, Some(3), Some(3)]);
        let frozen = Group { frozen: true, ..group("*") };
        assert_eq!(frozen.trained_since(0), None);
    }

    #[test]
    fn a_milestone_is_a_step_or_a_fraction_of_the_run() {
        assert_eq!(Milestone::Step(7).step_of(10), 7);
        assert_eq!(Milestone::Fraction(0.25).step_of(10), 3, "2.5 is rounded away from zero");
    }
}

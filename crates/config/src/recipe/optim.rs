//! How a gradient becomes a step: the rule, its numbers, the course of the learning rate, and the
//! groups of parameters that are treated in a way of their own.

use std::fmt;

/// How a gradient becomes a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Optim {
    /// The update rule.
    pub name: OptimName,
    /// Highest learning rate of the schedule.
    pub lr: f64,
    /// Pull of the weights towards zero.
    pub weight_decay: f64,
    /// Largest allowed global norm of the gradient; 0 switches clipping off.
    pub clip: f64,
    /// Steps over which the learning rate rises from zero to `lr`.
    pub warmup_steps: u64,
    /// Course of the learning rate after the warm-up.
    pub schedule: LrSchedule,
    /// Learning rate at the last step, as a fraction of `lr` (cosine, linear, wsd).
    pub final_lr_fraction: f64,
    /// When the learning rate drops (step).
    pub drop_at: Vec<Milestone>,
    /// What it is multiplied with at each drop (step).
    pub drop_factor: f64,
    /// The part of all steps over which the learning rate falls at the end (wsd).
    pub decay_fraction: f64,
    /// How it falls (wsd).
    pub decay_shape: DecayShape,
    /// How the learning rate follows the batch.
    pub lr_scaling: LrScaling,
    /// The batch that `lr` is meant for.
    pub lr_base_batch: usize,
    /// Decay of the running mean of gradients (Adam, AdamW, LAMB).
    pub beta1: f64,
    /// Decay of the running mean of squared gradients (Adam, AdamW, LAMB).
    pub beta2: f64,
    /// Added to the denominator of the update (Adam, AdamW, LAMB).
    pub eps: f64,
    /// Decay of the velocity (momentum, Nesterov, LARS).
    pub momentum: f64,
    /// Length of a step relative to the length of the tensor it changes (LARS).
    pub trust_coefficient: f64,
    /// Parameters that are treated in a way of their own; the first group that matches counts.
    pub groups: Vec<Group>,
}

impl Optim {
    /// The number of the group that a parameter belongs to, if any.
    pub fn group_of(&self, param: &str) -> Option<usize> {
        self.groups.iter().position(|group| group.matches(param))
    }

    /// Since which step a parameter has been trained without a break, if it is trained in `step`.
    pub fn trained_since(&self, param: &str, step: u64) -> Option<u64> {
        match self.group_of(param) {
            Some(group) => self.groups[group].trained_since(step),
            None => Some(0),
        }
    }
}

/// Parameters that are treated in a way of their own.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Names of parameters, with `*` for any letters and `?` for any one.
    pub pattern: String,
    /// Their learning rate, relative to that of the others.
    pub lr_scale: f64,
    /// Their weight decay, if it is another: of biases and norms too, which otherwise have none.
    pub weight_decay: Option<f64>,
    /// The largest norm of their gradients together, apart from all others; 0 does not limit.
    pub clip: Option<f64>,
    /// Never trained.
    pub frozen: bool,
    /// Not trained any more once so many steps are done.
    pub freeze_after: Option<u64>,
    /// Not trained before so many steps are done.
    pub unfreeze_at: Option<u64>,
}

impl Group {
    /// Whether a parameter has a name that the pattern describes.
    pub fn matches(&self, param: &str) -> bool {
        matches_pattern(&self.pattern, param)
    }

    /// Since which step these parameters have been trained without a break, if they are trained in
    /// `step`.
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
            // Trained, then left alone, then trained again.
            _ if end < start && step < end => Some(0),
            _ if end < start => (step >= start).then_some(start),
            _ => (start..end).contains(&step).then_some(start),
        }
    }
}

/// Whether a pattern describes a name: `*` stands for any letters and `?` for any one.
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    glob(pattern.as_bytes(), name.as_bytes())
}

/// Whether the pattern describes the text. A star takes as few letters as it can, and one more
/// whenever what follows does not fit; only the last star ever needs to be taken up again.
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

/// A moment of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Milestone {
    /// When so many steps are done.
    Step(u64),
    /// When this part of all steps is done.
    Fraction(f64),
}

impl Milestone {
    /// The number of steps that are done then, in a run of `num_steps`.
    pub fn step_of(self, num_steps: u64) -> u64 {
        match self {
            Self::Step(step) => step,
            Self::Fraction(fraction) => (fraction * num_steps as f64).round() as u64,
        }
    }
}

choices! {
    /// The update rule.
    OptimName {
        /// Plain stochastic gradient descent.
        Sgd = "sgd",
        /// Gradient descent with a velocity.
        Momentum = "momentum",
        /// Gradient descent with a velocity that looks ahead.
        Nesterov = "nesterov",
        /// Adam, where weight decay is part of the gradient.
        Adam = "adam",
        /// Adam with decoupled weight decay.
        AdamW = "adamw",
        /// Momentum whose steps are as long as each tensor is.
        Lars = "lars",
        /// AdamW whose steps are as long as each tensor is.
        Lamb = "lamb",
    }
}

choices! {
    /// Course of the learning rate after the warm-up.
    LrSchedule {
        /// Stays at its highest value.
        Constant = "constant",
        /// Falls along half a cosine wave.
        Cosine = "cosine",
        /// Falls along a straight line.
        Linear = "linear",
        /// Drops by a factor at given moments.
        Step = "step",
        /// Warm-up, stable, decay: stays at its highest value, then falls at the end.
        Wsd = "wsd",
    }
}

choices! {
    /// How the learning rate falls at the end of warm-up, stable, decay.
    DecayShape {
        /// Along a straight line.
        Linear = "linear",
        /// As one minus a square root: at first steeply.
        Sqrt = "1-sqrt",
        /// Along half a cosine wave.
        Cosine = "cosine",
    }
}

choices! {
    /// How the learning rate follows the batch.
    LrScaling {
        /// Not at all.
        None = "none",
        /// In proportion to it.
        Linear = "linear",
        /// In proportion to its square root.
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
    fn stars_stand_for_any_letters_and_question_marks_for_one() {
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
    fn a_group_is_trained_when_it_says_so() {
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
    fn a_moment_is_a_step_or_a_part_of_the_run() {
        assert_eq!(Milestone::Step(7).step_of(10), 7);
        assert_eq!(Milestone::Fraction(0.25).step_of(10), 3, "2.5 is rounded away from zero");
    }
}

//! Seam of update rules: the state that a rule keeps, and its step on a span of parameters.
//!
//! A rule has no state of its own and no loops: [`crate::Optimizer`] walks the spans of the flat
//! buffers and calls the rule for each; the rule answers with the scalars of a device's kernel.

use crate::Slot;
use crate::clip::class_of_group;
use crate::update::{TensorNorms, Update, UpdateInputs, WholeTensors};
use lockstep_config::Optim;
use lockstep_tensor::adamw::AdamStep;
use lockstep_tensor::device::{
    Device, MAX_STATE_BUFFERS, Rates, Result as DeviceResult, Rule, View, ViewMut,
};
use lockstep_tensor::math::scalar;

/// Elements of a tensor from which on its moments have eight bits: smaller ones need few bytes and
/// much precision (section 2.3 of Dettmers et al. 2022).
const MIN_CODED_LEN: usize = 4096;

/// Views of the state buffers of a span; those that a rule does not have are empty.
pub(crate) type StateViews<'a> = [ViewMut<'a>; MAX_STATE_BUFFERS];

/// State of a rule, and what its step needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleDescription {
    /// Names of the state buffers of a parameter, in order.
    pub(crate) state_names: &'static [&'static str],
    /// Number of state buffers that a hidden matrix uses: the first ones.
    pub(crate) num_matrix_buffers: usize,
    /// State buffers that start at the parameters; the others start at zero.
    pub(crate) starts_at_params: &'static [usize],
    /// State buffer with the averages that are evaluated and saved instead of the parameters.
    pub(crate) averages: Option<usize>,
    /// Whether the step reads or writes state; if not, offloaded state stays where it is.
    pub(crate) steps_with_state: bool,
    /// Whether the moments of large tensors have eight bits.
    pub(crate) codes_large: bool,
    /// Inputs of the step.
    pub(crate) inputs: UpdateInputs,
}

impl RuleDescription {
    /// A rule with these state buffers that works element by element.
    pub(crate) const fn with_state(state_names: &'static [&'static str]) -> Self {
        Self {
            state_names,
            num_matrix_buffers: state_names.len(),
            starts_at_params: &[],
            averages: None,
            steps_with_state: !state_names.is_empty(),
            codes_large: false,
            inputs: UpdateInputs { directions: false, norms: false, whole: WholeTensors::None },
        }
    }

    /// Number of state buffers that a hidden matrix of this shape, or another parameter, uses: the
    /// first ones.
    pub(crate) const fn num_buffers(&self, matrix: Option<[usize; 2]>) -> usize {
        if matrix.is_some() { self.num_matrix_buffers } else { self.state_names.len() }
    }

    /// Whether the moments of a slot have eight bits.
    pub(crate) const fn codes(&self, slot: &Slot) -> bool {
        self.codes_large && slot.shape[0] * slot.shape[1] >= MIN_CODED_LEN
    }
}

/// An optimizer's update rule.
pub(crate) trait UpdateRule: Sync {
    /// State and inputs of the rule.
    fn describe(&self) -> RuleDescription;

    /// Turns the gradients of a span into the direction whose norms, or whole matrices, the step
    /// needs; for rules that describe directions among their inputs.
    fn prepare(
        &self,
        _step: &SpanStep<'_>,
        _device: &dyn Device,
        _params: View<'_>,
        _grads: ViewMut<'_>,
        _state: StateViews<'_>,
    ) -> DeviceResult<()> {
        Ok(())
    }

    /// Kernel and scalars of the step of a span.
    fn kernel(&self, step: &SpanStep<'_>) -> Rule;
}

/// Everything that the step of a span depends on, besides its elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpanStep<'a> {
    pub(crate) settings: &'a Optim,
    pub(crate) update: &'a Update,
    pub(crate) options: &'a GroupOptions,
    pub(crate) norms: &'a TensorNorms,
    /// Number of steps after which second moments are frozen (1-bit Adam).
    pub(crate) frozen_after: Option<u64>,
}

impl SpanStep<'_> {
    /// Learning rate of the span.
    pub(crate) fn lr(&self) -> f64 {
        self.update.lr * self.options.lr_scale
    }

    /// Number of steps of these parameters, this one included.
    pub(crate) fn count(&self) -> u64 {
        self.update.count - self.options.since
    }

    /// Clip factor of the gradients.
    pub(crate) fn grad_scale(&self) -> f32 {
        self.update.clip.scale(self.options.clip_class)
    }

    /// Norms of the parameters and of the measured step of the span's tensor, if it is measured.
    pub(crate) fn tensor_norms(&self) -> Option<(f64, f64)> {
        let tensor = self.options.measured?;
        Some((self.norms.params[tensor], self.norms.steps[tensor]))
    }

    /// Scalars of gradient descent.
    pub(crate) fn rates(&self) -> Rates {
        Rates {
            lr: self.lr() as f32,
            weight_decay: self.options.weight_decay as f32,
            grad_scale: self.grad_scale(),
        }
    }

    /// Scalars of rules with first and second moments.
    pub(crate) fn adam_step(&self) -> AdamStep {
        let Self { settings, update, options, frozen_after, .. } = self;
        // Bias correction: 1 - beta^count.
        let count = self.count() as i32;
        let bias_correction = |beta: f64, count: i32| 1.0 - scalar::powi(beta, count);
        // Frozen second moments keep their values and their bias correction.
        let frozen_after = frozen_after.filter(|frozen_after| update.count > *frozen_after);
        let full =
            frozen_after.map_or(count, |frozen_after| (frozen_after - options.since).max(1) as i32);
        AdamStep {
            lr: self.lr(),
            beta1: settings.beta1,
            beta2: if frozen_after.is_some() { 1.0 } else { settings.beta2 },
            eps: settings.eps,
            weight_decay: options.weight_decay,
            bias1: bias_correction(settings.beta1, count),
            bias2: bias_correction(settings.beta2, full),
            grad_scale: self.grad_scale(),
        }
    }
}

/// Options of a parameter group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GroupOptions {
    /// Factor on the learning rate of the step.
    pub(crate) lr_scale: f64,
    pub(crate) weight_decay: f64,
    /// Clip class.
    pub(crate) clip_class: usize,
    /// First step in which these parameters are trained.
    pub(crate) since: u64,
    /// Tensor whose norms give the trust ratio, for LARS and LAMB.
    pub(crate) measured: Option<usize>,
    /// Rows and columns of a hidden matrix, for Muon.
    pub(crate) matrix: Option<[usize; 2]>,
    /// Whether its moments have eight bits.
    pub(crate) is_coded: bool,
}

impl GroupOptions {
    /// Options of the parameter in `slot`, which is trained in `step`.
    pub(crate) fn of(settings: &Optim, rule: &RuleDescription, slot: &Slot, step: u64) -> Self {
        let inputs = rule.inputs;
        let index = settings.group_of(&slot.name);
        let group = index.map(|index| &settings.groups[index]);
        let usual = if slot.decay { settings.weight_decay } else { 0.0 };
        let width = settings.width_factors(slot.matrix.is_some());
        let since = match group {
            Some(group) => group.trained_since(step),
            None => Some(0),
        };
        Self {
            lr_scale: group.map_or(1.0, |group| group.lr_scale) * width.lr,
            weight_decay: group.and_then(|group| group.weight_decay).unwrap_or(usual)
                * width.weight_decay,
            clip_class: class_of_group(settings, index),
            since: since.unwrap_or_else(|| panic!("{} is frozen in step {step}", slot.name)),
            measured: (inputs.norms && slot.decay).then_some(slot.tensor),
            matrix: slot.matrix.filter(|_| inputs.whole == WholeTensors::HiddenMatrices),
            is_coded: rule.codes(slot),
        }
    }
}

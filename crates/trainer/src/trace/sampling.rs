//! Sampling: which steps have their tasks recorded, for the event file or the trace.

use super::TraceRecorder;
use lockstep_config::{Recipe, Telemetry};

/// Which steps are sampled, and the trace of this rank, if the run has one.
pub(crate) struct SpanLog {
    pub(crate) telemetry: Telemetry,
    pub(crate) trace: Option<TraceRecorder>,
    /// Sampled step of this rank that rank 0 does not have yet, as text.
    pub(crate) unsent: Vec<u8>,
}

impl SpanLog {
    /// Without a trace, until the run begins one.
    pub(crate) fn new(recipe: &Recipe) -> Self {
        Self { telemetry: recipe.telemetry.clone(), trace: None, unsent: Vec::new() }
    }

    /// Whether the tasks of a step are recorded, by the number of steps with it.
    pub(crate) fn is_sampled(&self, num_steps: u64) -> bool {
        Telemetry::is_sampled(num_steps) || self.telemetry.is_traced(num_steps)
    }
}

//! Telemetry: exports of a run's metrics and traces beside its event file.

use super::{Recipe, StragglerPolicy, SyncMode};
use crate::lint::{Lint, lints};
use crate::rule::{Rule, Rules};
use crate::topic::topic;
use crate::value_type::MAX_STEPS;

topic! {
    /// Exports of metrics and traces. Never change a bit of the result.
    pub struct Telemetry at telemetry, table "telemetry", layout() {
        /// Whether the run folder gets TensorBoard event files.
        tensorboard: bool = false;

        /// Whether the run folder gets trace.json, the tasks of sampled steps on every rank, for
        /// Perfetto and chrome://tracing.
        trace: bool = false;

        /// Steps between two traced steps; 0 traces step 64 and then every step of twice the
        /// number.
        trace_every: u64 = 0, integer(0, MAX_STEPS);

        /// Steps between two measurements of the gradient noise, from the norms of the reduction
        /// leaves' gradients; 0 measures none. With sync.mode = "all-reduce" and several leaves.
        noise_scale: u64 = 10, integer(0, MAX_STEPS);

        /// Steps between two histograms of every trained tensor's weights and gradients, in the
        /// event file and TensorBoard; 0 makes none. Each takes a pass over all of them.
        histograms_every: u64 = 0, integer(0, MAX_STEPS), when("sync.mode", &["all-reduce"]);

        /// Whether the run folder gets metrics.csv, a number per row.
        csv: bool = false;

        /// Address on which rank 0 serves its metrics to Prometheus, such as "127.0.0.1:9400";
        /// empty serves none.
        prometheus: String = "";

        /// URL of an OpenTelemetry collector that gets the metrics by OTLP over HTTP, such as
        /// "http://127.0.0.1:4318"; empty sends none.
        otlp: String = "";
    }
}

impl Telemetry {
    /// Whether metrics are exported to anything.
    pub fn exports_metrics(&self) -> bool {
        self.tensorboard || self.csv || !self.prometheus.is_empty() || !self.otlp.is_empty()
    }

    /// Whether the event file gets the tasks of a step, by the number of steps with it.
    pub fn is_sampled(num_steps: u64) -> bool {
        is_sampled(num_steps, 0)
    }

    /// Whether the tasks of a step are traced, by the number of steps with it.
    pub fn is_traced(&self, num_steps: u64) -> bool {
        self.trace && is_sampled(num_steps, self.trace_every)
    }
}

impl Recipe {
    /// Whether the run measures its gradient noise: the gradient of every reduction leaf exists by
    /// itself, and every step takes the sum of all of them.
    pub fn measures_gradient_noise(&self) -> bool {
        let sync = &self.sync;
        let policy = sync.stragglers.policy;
        self.telemetry.noise_scale > 0
            && self.num_leaves() > 1
            && sync.mode == SyncMode::AllReduce
            && !self.compress.is_on()
            && sync.gradient_delay == 0
            && sync.worker_steps.is_empty()
            && matches!(policy, StragglerPolicy::Wait | StragglerPolicy::Shares)
    }

    /// Whether the gradient noise of a step is measured, by the number of steps with it.
    pub fn is_noise_measured(&self, num_steps: u64) -> bool {
        self.measures_gradient_noise() && num_steps.is_multiple_of(self.telemetry.noise_scale)
    }
}

/// First step that is sampled where `every` is 0; each later one has twice the number, so that
/// samples stay a small part of a long run.
const FIRST_SAMPLE: u64 = 64;

/// Whether the tasks of a step are sampled.
fn is_sampled(num_steps: u64, every: u64) -> bool {
    match every {
        0 => num_steps >= FIRST_SAMPLE && num_steps.is_power_of_two(),
        every => num_steps.is_multiple_of(every),
    }
}

pub(crate) const RULES: Rules = Rules::new(&[
    Rule::new(&["telemetry.prometheus"], |c| {
        let addr = &c.telemetry.prometheus;
        let is_refused = !addr.is_empty() && port_of(addr).is_none();
        c.refuse(is_refused, "is not host:port", "\"127.0.0.1:9400\"")
    }),
    Rule::new(&["telemetry.otlp"], |c| {
        let url = &c.telemetry.otlp;
        let rest = url.strip_prefix("http://");
        let is_valid = rest.is_some_and(|rest| {
            let addr = rest.split_once('/').map_or(rest, |(addr, _)| addr);
            rest.chars().all(|letter| letter.is_ascii_graphic())
                && port_of(addr).is_some_and(|port| port > 0)
        });
        let rule = if url.starts_with("https://") {
            "needs TLS, which this program does not speak; a collector on this host does"
        } else {
            "is not http://host:port"
        };
        c.refuse(!url.is_empty() && !is_valid, rule, "\"http://127.0.0.1:4318\"")
    }),
]);

/// Port of `host:port`.
fn port_of(text: &str) -> Option<u16> {
    let (host, port) = text.rsplit_once(':')?;
    let is_plain = host.chars().all(|letter| letter.is_ascii_graphic() && letter != '@');
    if host.is_empty() || !is_plain { None } else { port.parse().ok() }
}

pub(crate) const LINTS: &[Lint] = lints! {
    "empty-trace": "no step of the run is traced";
        if "telemetry.trace where no step is a multiple of telemetry.trace_every, or, with 0, \
            fewer than 64 steps";
        advice "try telemetry.trace_every = 10";
        |r| let (steps, every) = (r.train.steps, r.telemetry.trace_every);
            when r.telemetry.trace && !has_traced_step(r) =>
                "telemetry.trace_every = {every} traces none of {steps} steps";
};

/// Whether a step of the run is traced.
fn has_traced_step(recipe: &Recipe) -> bool {
    let first = match recipe.telemetry.trace_every {
        0 => FIRST_SAMPLE,
        every => every,
    };
    first <= recipe.train.steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_interval_each_sample_has_twice_the_number_of_the_one_before() {
        let sampled = |every| (1..300).filter(|step| is_sampled(*step, every)).collect::<Vec<_>>();
        assert_eq!(sampled(0), [64, 128, 256]);
        assert_eq!(sampled(100), [100, 200]);
    }
}

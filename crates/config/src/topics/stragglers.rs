//! Straggler policies of synchronous training.

use super::limits::MAX_WORKERS;
use super::{Dtype, Placement, Recipe, Reduction, WireDtype};
use crate::rule::{Rule, Rules};
use crate::topic::{choices, topic};
use crate::units::Seconds;
use crate::value_type::Bound::{Closed, Open};

topic! {
    /// Settings for stragglers.
    #[derive(Copy)]
    pub struct Stragglers at sync.stragglers, among "sync" {
        /// Straggler policy: wait; backup takes the fastest gradients, timeout those that arrive in
        /// time, drop-slowest all but those of workers much slower than the median (the bits then
        /// depend on timing); exclude pauses a persistently slow worker until it is fast again;
        /// shares moves micro-batches to faster workers and changes no bit.
        policy as stragglers: StragglerPolicy = "wait", when("sync.mode", &["all-reduce"]),
            in_identity_when(|r| r.sync.stragglers.policy.loses_microbatches());

        /// Number of backup workers: gradients that a step can do without.
        backups: usize = 1, integer(1, MAX_WORKERS - 1), when("sync.stragglers", &["backup"]);

        /// Milliseconds that a step waits for gradients; it needs at least one.
        timeout as timeout_ms: Seconds = 1000.0, float(Open(0.0), Closed(3_600_000.0)),
            when("sync.stragglers", &["timeout"]);

        /// Multiple of the median time above which a worker counts as slow.
        factor as straggler_factor: f64 = 1.5, float(Closed(1.0), Closed(1000.0)),
            when("sync.stragglers", &["drop-slowest", "exclude"]);

        /// Consecutive steps for which a worker must be slow, or fast again, before it is excluded
        /// or readmitted; with shares, steps measured before micro-batches are reassigned.
        window as straggler_window: u64 = 5, integer(1, 1_000_000),
            when("sync.stragglers", &["exclude", "shares"]),
            in_identity_when(|r| r.sync.stragglers.policy.loses_microbatches());
    }
}

choices! {
    /// Policy of a step towards slow workers.
    StragglerPolicy {
        /// Waits for it.
        Wait = "wait",
        /// Takes the fastest gradients and leaves out the backup workers (Chen et al. 2016).
        Backup = "backup",
        /// Takes the gradients that arrive within the timeout.
        Timeout = "timeout",
        /// Leaves out workers that take much longer than the median.
        DropSlowest = "drop-slowest",
        /// Gives a persistently slow worker no micro-batches until it is fast again.
        Exclude = "exclude",
        /// Assigns micro-batches in proportion to measured speed.
        Shares = "shares",
    }
}

impl StragglerPolicy {
    /// Whether a step may finish before all workers have finished their micro-batches.
    pub const fn leaves_out(self) -> bool {
        matches!(self, Self::Backup | Self::Timeout | Self::DropSlowest)
    }

    /// Whether gradients of some micro-batches may be missing from a step.
    pub const fn loses_microbatches(self) -> bool {
        self.leaves_out() || matches!(self, Self::Exclude)
    }
}

impl Recipe {
    /// Reason why the result depends on timing, if it does.
    pub(crate) fn timing_dependence(&self) -> Option<String> {
        let policy = self.sync.stragglers.policy;
        policy.loses_microbatches().then(|| {
            format!(
                "sync.stragglers = {policy}: the gradients of a step depend on which workers are \
                 in time, so the same command may give other bits"
            )
        })
    }
}

pub(crate) const RULES: Rules = Rules::new(&[
    // A worker that may be left out must not own a shard.
    Rule::conflict(&["sync.stragglers"], "wait", |c, r| {
        c.because("needs whole, uncompressed replicas on every worker").with_shards(r).with(
            "compress.method",
            "\"none\"",
            r.compress.is_on(),
        );
    }),
    // Missing micro-batches are compensated by the mean; a sum has no such correction.
    Rule::conflict(&["sync.stragglers"], "wait", |c, r| {
        let loses = r.sync.stragglers.policy.loses_microbatches();
        c.because("takes the mean over the micro-batches that arrived")
            .with("train.reduction", "\"mean\"", loses && r.train.reduction == Reduction::Sum)
            .because("keeps f32 gradients until the participants are known")
            .with("precision.wire", "\"f32\"", loses && r.precision.wire != WireDtype::F32);
    }),
    // A micro-batch that moves to another worker needs its data there.
    Rule::conflict(&["sync.stragglers"], "wait", |c, r| {
        let moves = r.sync.stragglers.policy == StragglerPolicy::Shares;
        let is_local = r.data.placement == Placement::Local;
        c.because("moves micro-batches between workers").with(
            "data.placement",
            "\"shared\"",
            moves && is_local,
        );
    }),
    // A step needs at least one worker.
    Rule::new(&["sync.backups", "run.workers"], |c| {
        let (stragglers, workers) = (&c.sync.stragglers, c.parallel.data);
        let is_backup = stragglers.policy == StragglerPolicy::Backup;
        let fix = match workers {
            0 | 1 => "run.workers = 2".to_owned(),
            _ => (workers - 1).to_string(),
        };
        let is_broken = is_backup && stragglers.backups >= workers;
        c.refuse(is_broken, format!("leaves none of {workers} workers"), fix)
    }),
])
.when(&["sync.stragglers"], |r| r.sync.stragglers.policy != StragglerPolicy::Wait);

pub(crate) const DELAY_RULES: Rules = Rules::new(&[
    // A delayed gradient is kept whole until the next step.
    Rule::conflict(&["sync.gradient_delay"], "0", |c, r| {
        let waits = r.sync.stragglers.policy == StragglerPolicy::Wait;
        c.because("keeps the whole gradient of the previous step")
            .with_shards(r)
            .with("compress.method", "\"none\"", r.compress.is_on())
            .with("sync.stragglers", "\"wait\"", !waits)
            .with("precision.compute", "\"bf16\"", r.precision.compute == Dtype::F16)
            .with("precision.wire", "\"f32\"", r.precision.wire != WireDtype::F32);
    }),
])
.when(&["sync.gradient_delay"], |r| r.sync.gradient_delay > 0);

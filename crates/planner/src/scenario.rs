//! A planning scenario: one model on one cluster with a global batch and a token budget.
//!
//! [`Workload`] borrows its parts, as a search needs them. A scenario owns them, so that the size
//! search, the sensitivity analysis and the upgrade table can change one part and price the rest.

use crate::bill::{self, Bill};
use crate::calibration::Calibration;
use crate::framework::Framework;
use crate::hardware::Cluster;
use crate::job::{Job, Workload};
use crate::layout::Layout;
use crate::model::{FlopsConvention, Model, step_flops};
use crate::pipeline::Pipelines;
use crate::search::fastest::fastest;
use crate::search::{Candidate, SearchResult};

/// Tokens of a default global batch.
const DEFAULT_BATCH_TOKENS: u64 = 4_194_304;

/// Largest number of devices of any cluster.
pub const MAX_DEVICES: u64 = 1 << 20;

/// Default share of the device memory that a layout must leave free. A plan is off by a few percent
/// (4 to 9 % on the mean of published runs), and so is a device from the next.
pub const DEFAULT_RESERVE: f64 = 0.06;

/// A model, a cluster and a training run on it.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The model.
    pub model: Model,
    /// The cluster.
    pub cluster: Cluster,
    /// Global batch: sequences per step.
    pub batch: u64,
    /// Tokens of the whole run.
    pub tokens: f64,
    /// Constants of the device type.
    pub calibration: Calibration,
    /// A fixed layout, or `None` to search for the best one.
    pub layout: Option<Layout>,
    /// Share of the device memory that a layout must leave free.
    pub reserve: f64,
}

impl Scenario {
    /// The scenario to price; a search replaces the layout of one device.
    pub const fn workload(&self) -> Workload<'_> {
        let job = Job {
            model: &self.model,
            cluster: &self.cluster,
            layout: Layout::ONE,
            batch: self.batch,
            framework: Framework::MODERN,
        };
        Workload { job, calibration: &self.calibration, reserve: self.reserve }
    }

    /// Tokens of a step.
    pub const fn step_tokens(&self) -> u64 {
        self.batch * self.model.context
    }

    /// Cost of the run on `cluster`, where a step takes `step_seconds`.
    pub fn bill_on(&self, cluster: &Cluster, step_seconds: f64) -> Bill {
        let step_tokens = self.step_tokens() as f64;
        bill::bill(&self.model, cluster, self.tokens, step_tokens, step_seconds)
    }

    /// Model FLOP/s of one device (6·N·tokens plus attention, no recomputation).
    pub fn flops_per_device_second(&self, step_seconds: f64) -> f64 {
        let flops = step_flops(&self.model, self.batch, FlopsConvention::Model);
        flops / (step_seconds * self.cluster.devices as f64)
    }

    /// Model FLOPs utilization: model FLOP/s over the peak of all devices (PaLM, 2022).
    pub fn mfu(&self, step_seconds: f64) -> f64 {
        let peak = self.cluster.device.peak() * self.cluster.devices as f64;
        step_flops(&self.model, self.batch, FlopsConvention::Model) / (step_seconds * peak)
    }

    /// Prices one layout instead of searching; every rule that it breaks is an error.
    pub fn price_layout(&self, layout: Layout) -> Result<SearchResult, Vec<String>> {
        let workload = self.workload().with(layout);
        let problems = workload.job.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let choice = Candidate::price(&workload, &mut Pipelines::default()).ok_or_else(|| {
            vec![format!(
                "{layout} cannot be scheduled; try schedule=1f1b and at least as many \
                 micro-batches as pipeline stages"
            )]
        })?;
        // A layout by choice may use the reserve; the report warns of it.
        let fits = choice.memory.fits(&Workload { reserve: 0.0, ..workload });
        Ok(SearchResult {
            examined: 1,
            too_large: usize::from(!fits),
            almost_fits: (!fits).then(|| choice.clone()),
            best: vec![choice],
            pareto: Vec::new(),
            cloud: Vec::new(),
            with_sync: Vec::new(),
        })
    }

    /// Number of devices, doubled from today's, on which some layout fits.
    pub fn devices_that_fit(&self) -> Option<u64> {
        let doubled =
            std::iter::successors(Some(2 * self.cluster.devices), |devices| Some(2 * devices));
        doubled.take_while(|devices| *devices <= MAX_DEVICES).find(|devices| {
            let mut larger = self.clone();
            larger.cluster.devices = *devices;
            larger.batch = self.batch.max(default_batch(&self.model, *devices));
            fastest(&larger.workload()).is_some()
        })
    }
}

/// Default global batch: about four million tokens, divisible by every data-parallel degree.
pub fn default_batch(model: &Model, devices: u64) -> u64 {
    let target = (DEFAULT_BATCH_TOKENS / model.context).max(devices) as f64;
    let odd = devices >> devices.trailing_zeros();
    let doublings = (target / odd as f64).log2().round() as u32;
    (odd << doublings).max(devices)
}

#[cfg(test)]
impl Scenario {
    /// A known model on a known cluster, for a trillion tokens.
    pub(crate) fn of(model: &str, cluster: &str, batch: u64) -> Self {
        let model = crate::model::preset(model).expect("a model");
        let cluster = crate::hardware::named(cluster).expect("a cluster");
        let calibration = Calibration::of(cluster.device.calibration).expect("it is there");
        let reserve = DEFAULT_RESERVE;
        Self { model, cluster, batch, tokens: 1e12, calibration, layout: None, reserve }
    }
}

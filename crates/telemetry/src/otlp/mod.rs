//! Export of metrics by OTLP over HTTP, in its JSON encoding (OpenTelemetry protocol 1.x).
//!
//! The step loop puts numbers into a queue of bounded length; a thread of its own posts them every
//! second to `/v1/metrics` of a collector. A full queue drops its oldest numbers, and a collector
//! that fails costs numbers but no time of a step. After `MAX_FAILURES` batches in a row the sink
//! reports itself as failed.

mod json;
mod post;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockstep_platform::{JoinHandle, Signal, World};

use crate::{Event, Label, Metric, Sink, Stamped, TelemetryError, visit_scalars};
use json::Resource;
pub use post::Endpoint;

/// Most numbers that wait for the thread.
const MAX_POINTS: usize = 8192;
/// Time between two posts.
const INTERVAL: Duration = Duration::from_secs(1);
/// Attempts to post a batch, and the time before the second; it doubles.
const MAX_ATTEMPTS: u32 = 3;
const RETRY_WAIT: Duration = Duration::from_millis(250);
/// Batches in a row that may be lost before the sink counts as failed.
const MAX_FAILURES: u32 = 5;
/// Time to post what is left at the end of the run.
const STOP_TIME: Duration = Duration::from_secs(5);

/// A number at a time.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    metric: Metric,
    /// Names and values of labels; steps have none, so that a number of a step allocates nothing.
    labels: Vec<(&'static str, String)>,
    step: u64,
    /// Since the UNIX epoch.
    wall: Duration,
    value: f64,
}

/// State that the step loop and the thread share.
#[derive(Default)]
struct Shared {
    points: VecDeque<Point>,
    num_dropped: u64,
    resource: Resource,
    is_stopped: bool,
    /// Batches lost in a row, and the reason of the last.
    num_failures: u32,
    reason: String,
}

/// The exporter; it posts what is left and stops on drop.
pub struct Otlp {
    shared: Arc<Mutex<Shared>>,
    signal: Arc<dyn Signal>,
    /// Wall time at which the time of events is zero.
    origin: Duration,
    endpoint: Endpoint,
    thread: Option<Box<dyn JoinHandle>>,
}

impl Otlp {
    /// Starts the thread. The collector is connected to when there is something to post.
    pub fn start(world: &World, endpoint: Endpoint) -> Result<Self, TelemetryError> {
        let resource = Resource { host: world.host().name(), ..Resource::default() };
        let points = VecDeque::with_capacity(MAX_POINTS);
        let shared = Arc::new(Mutex::new(Shared { points, resource, ..Shared::default() }));
        let signal = world.threads().signal();
        let mut exporter = Exporter {
            world: Arc::clone(world),
            shared: Arc::clone(&shared),
            signal: Arc::clone(&signal),
            endpoint: endpoint.clone(),
            batch: VecDeque::with_capacity(MAX_POINTS),
        };
        let thread = world.threads().spawn("otlp", Box::new(move || while exporter.turn() {}));
        let thread = thread.map_err(|error| TelemetryError::Write {
            sink: endpoint.to_string(),
            reason: error.to_string(),
        })?;
        let origin = world.clock().wall().saturating_sub(world.clock().now());
        Ok(Self { shared, signal, origin, endpoint, thread: Some(thread) })
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // No code can panic in the middle of a change, so a poisoned lock is sound.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sink for Otlp {
    fn write(&mut self, stamped: &Stamped) -> Result<(), TelemetryError> {
        let wall = self.origin + Duration::try_from_secs_f64(stamped.seconds).unwrap_or_default();
        let mut shared = lock(&self.shared);
        if shared.num_failures >= MAX_FAILURES {
            let reason = format!("{MAX_FAILURES} batches in a row are lost: {}", shared.reason);
            return Err(TelemetryError::Write { sink: self.endpoint.to_string(), reason });
        }
        if let Event::RunStarted { recipe_hash, .. } = &stamped.event {
            shared.resource.recipe_hash.clone_from(recipe_hash);
        }
        visit_scalars(&stamped.event, &mut |scalar| {
            if shared.points.len() == MAX_POINTS {
                shared.points.pop_front();
                shared.num_dropped += 1;
            }
            let labels = scalar.label.pairs().map(|(name, value)| (name, value.to_string()));
            let labels = if scalar.label == Label::None { Vec::new() } else { labels.collect() };
            let (metric, step, value) = (scalar.metric, scalar.step, scalar.value);
            shared.points.push_back(Point { metric, labels, step, wall, value });
        });
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TelemetryError> {
        Ok(())
    }
}

impl Drop for Otlp {
    fn drop(&mut self) {
        lock(&self.shared).is_stopped = true;
        self.signal.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.finished_within(STOP_TIME)
        {
            let _ = thread.join();
        }
    }
}

/// The thread's side.
struct Exporter {
    world: World,
    shared: Arc<Mutex<Shared>>,
    signal: Arc<dyn Signal>,
    endpoint: Endpoint,
    batch: VecDeque<Point>,
}

impl Exporter {
    /// Waits for the next time to post, and posts; false after the last post.
    fn turn(&mut self) -> bool {
        let epoch = self.signal.epoch();
        if !lock(&self.shared).is_stopped {
            self.signal.wait(epoch, INTERVAL);
        }
        let (is_stopped, resource, num_dropped) = {
            let mut shared = lock(&self.shared);
            // The other buffer has the capacity too, so the step loop allocates nothing.
            std::mem::swap(&mut shared.points, &mut self.batch);
            (shared.is_stopped, shared.resource.clone(), shared.num_dropped)
        };
        let body = json::request(&resource, &self.batch, num_dropped);
        self.batch.clear();
        if let Some(body) = body {
            let posted = self.post(&body);
            let mut shared = lock(&self.shared);
            match posted {
                Ok(()) => shared.num_failures = 0,
                Err(reason) => {
                    shared.num_failures += 1;
                    shared.reason = reason;
                }
            }
        }
        !is_stopped
    }

    /// Posts a batch, again after a failure that may pass.
    fn post(&self, body: &[u8]) -> Result<(), String> {
        let mut wait = RETRY_WAIT;
        let mut attempt = 1;
        loop {
            let Err(failure) = post::post(&self.world, &self.endpoint, body) else {
                return Ok(());
            };
            let epoch = self.signal.epoch();
            // The end of the run waits for one attempt only.
            let is_last = attempt == MAX_ATTEMPTS || lock(&self.shared).is_stopped;
            if is_last || !failure.may_pass {
                return Err(failure.reason);
            }
            self.signal.wait(epoch, wait);
            (wait, attempt) = (wait * 2, attempt + 1);
        }
    }
}

#[cfg(test)]
mod tests;

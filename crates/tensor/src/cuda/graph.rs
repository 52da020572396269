//! CUDA graphs: sequences of commands that are queued by one call.
//!
//! A graph is captured from recorded commands on streams of its own, so that other threads may
//! queue work meanwhile, and nothing is loaded, compiled or allocated in between: every command has
//! run before. Where a capture fails, commands are queued one by one from then on.

use super::Cuda;
use super::commands::Command;
use super::driver::{Context, Handle, Streams};
use super::replay::{End, Replay};
use crate::device::error::{DeviceError, Result};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::thread;

/// Calls of other threads and of this one stay as they are during a capture.
const CAPTURE_RELAXED: i32 = 2;

/// An executable graph.
pub(super) struct Graph {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: the driver's handles may be used from any thread; launches come from one at a time.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl Graph {
    /// Captures what `queue` queues on the streams that it is given; the context must be active. A
    /// copy stream joins the capture when it waits for the work, which must wait for it in turn.
    fn capture(context: &Arc<Context>, queue: impl FnOnce(Streams) -> Result<()>) -> Result<Self> {
        let driver = &context.driver;
        let streams = Streams::create(driver)?;
        let (mut graph, mut handle) = (null_mut(), null_mut());
        // SAFETY: the streams are made here, captured and destroyed; each call writes one handle.
        unsafe {
            let code = (driver.begin_capture)(streams.work, CAPTURE_RELAXED);
            let begun = driver.check("cuStreamBeginCapture", code);
            let queued = begun.and_then(|()| {
                let queued = queue(streams);
                // A failed capture is ended too, and has no graph then.
                let code = (driver.end_capture)(streams.work, &raw mut graph);
                queued.and(driver.check("cuStreamEndCapture", code))
            });
            let made = queued.and_then(|()| {
                let code = (driver.graph_instantiate)(&raw mut handle, graph, 0);
                driver.check("cuGraphInstantiateWithFlags", code)
            });
            if !graph.is_null() {
                (driver.graph_destroy)(graph);
            }
            streams.destroy(driver);
            made?;
        }
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// Queues the graph; the context must be active.
    fn launch(&self) -> Result<()> {
        let Context { driver, stream, .. } = &*self.context;
        // SAFETY: both handles are valid; the memory of its commands was borrowed by the section
        // that has issued them just now.
        driver.check("cuGraphLaunch", unsafe { (driver.graph_launch)(self.handle, *stream) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // It may still run.
        self.context.drain();
        // SAFETY: the graph is ours, and nothing uses it any more.
        unsafe { (self.context.driver.graph_exec_destroy)(self.handle) };
    }
}

impl Cuda {
    /// Runs a section that may repeat.
    pub(super) fn run_section(&self, key: u64, body: &mut dyn FnMut()) -> Result<()> {
        if self.recorder.is_on() || !self.lock_replay().begin(key, thread::current().id()) {
            body();
            return Ok(());
        }
        self.context.begin_section();
        body();
        self.context.end_section();
        let end = self.lock_replay().end();
        match end {
            End::Queued => Ok(()),
            End::Held(held) => self.queue_all(&held),
            End::Repeats { commands, graph, at } => {
                if commands.is_empty() {
                    return Ok(());
                }
                self.context.activate()?;
                match self.launch_graph(&commands, graph, at) {
                    Ok(()) => {
                        self.num_launches.fetch_add(1, Ordering::Relaxed);
                        Ok(())
                    }
                    // Nothing of the graph was queued.
                    Err(error) => {
                        self.give_up(&error);
                        self.queue_all(&commands)
                    }
                }
            }
        }
    }

    fn launch_graph(
        &self,
        commands: &[Command],
        graph: Option<Arc<Graph>>,
        at: (u64, usize),
    ) -> Result<()> {
        if let Some(graph) = graph {
            return graph.launch();
        }
        let graph = Graph::capture(&self.context, |streams| {
            // SAFETY: the section has issued equal commands just now, so their operands are memory
            // that it has borrowed.
            commands.iter().try_for_each(|command| unsafe { self.execute(command, streams) })
        })?;
        let graph = Arc::new(graph);
        self.lock_replay().keep_graph(at, &graph);
        graph.launch()
    }

    /// Queues commands one by one from now on.
    fn give_up(&self, error: &DeviceError) {
        self.lock_replay().set(false);
        let message = format!(
            "run.graphs is off from here on: {} cannot capture a step as a CUDA graph ({error}); \
             results do not change",
            self.name
        );
        *self.warning.lock().expect("no owner of the lock panics") = Some(message);
    }

    pub(super) fn lock_replay(&self) -> MutexGuard<'_, Replay<Command, Graph>> {
        self.replay.lock().expect("no owner of the lock panics")
    }
}

//! Recorder: timestamps, fan-out to sinks, and failing sinks.
//!
//! A full disk must not stop a run. The first error of a sink disables the sink and becomes an
//! [`Event::Warning`] to the others; writing on after an error could leave half a line in the
//! middle of a file.
//!
//! One thread records. A lock around the sinks would be held during calls into the platform, and a
//! simulated world could then schedule a thread that waits for that lock forever.

use std::fmt;

use lockstep_platform::World;

use crate::{Event, Sink, Stamped, TelemetryError, VERSION};

/// Telemetry of a rank.
pub struct Telemetry {
    world: World,
    rank: usize,
    /// `None` for a sink that failed.
    sinks: Vec<Option<Box<dyn Sink>>>,
    failures: Vec<TelemetryError>,
}

impl Telemetry {
    /// Starts recording for a rank; without sinks events are dropped.
    pub fn start(world: World, rank: usize, sinks: Vec<Box<dyn Sink>>) -> Self {
        let sinks = sinks.into_iter().map(Some).collect();
        Self { world, rank, sinks, failures: Vec::new() }
    }

    /// Writes the event with time and rank to every sink. The end of the run is flushed at once.
    pub fn record(&mut self, event: &Event) {
        let stamped = self.stamp(event.clone());
        self.on_each(|sink| sink.write(&stamped));
        if matches!(event, Event::RunFinished { .. }) {
            self.flush();
        }
    }

    /// Flushes all sinks.
    pub fn flush(&mut self) {
        self.on_each(|sink| sink.flush());
    }

    /// Errors of disabled sinks in order; empty in a healthy run.
    pub fn failures(&self) -> &[TelemetryError] {
        &self.failures
    }

    fn stamp(&self, event: Event) -> Stamped {
        let seconds = self.world.clock().now().as_secs_f64();
        Stamped { v: VERSION, seconds, rank: self.rank, event }
    }

    /// Applies an action to every working sink and reports new failures to the others. A report can
    /// fail too; each pass disables at least one sink, so the loop ends.
    fn on_each(&mut self, action: impl FnMut(&mut dyn Sink) -> Result<(), TelemetryError>) {
        let mut num_reported = self.failures.len();
        self.try_each(action);
        while num_reported < self.failures.len() {
            let message = format!("{}; this sink is disabled", self.failures[num_reported]);
            let warning = self.stamp(Event::Warning { message });
            self.try_each(|sink| sink.write(&warning));
            num_reported += 1;
        }
    }

    fn try_each(&mut self, mut action: impl FnMut(&mut dyn Sink) -> Result<(), TelemetryError>) {
        for slot in &mut self.sinks {
            let Some(sink) = slot else { continue };
            if let Err(error) = action(sink.as_mut()) {
                self.failures.push(error);
                *slot = None;
            }
        }
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        self.flush();
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Telemetry(rank {})", self.rank)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Messages of a sink, shared with the test.
    type Messages = Arc<Mutex<Vec<String>>>;

    struct Memory {
        messages: Messages,
        /// Number of events before its destination is full.
        room: usize,
    }

    impl Sink for Memory {
        fn write(&mut self, event: &Stamped) -> Result<(), TelemetryError> {
            let mut messages = self.messages.lock().unwrap();
            if messages.len() == self.room {
                let (sink, reason) = ("memory".to_owned(), "full".to_owned());
                return Err(TelemetryError::Write { sink, reason });
            }
            let Event::Warning { message } = &event.event else { panic!("only warnings here") };
            messages.push(message.clone());
            Ok(())
        }

        fn flush(&mut self) -> Result<(), TelemetryError> {
            Ok(())
        }
    }

    fn warn(telemetry: &mut Telemetry, message: &str) {
        telemetry.record(&Event::Warning { message: message.to_owned() });
    }

    fn start(rooms: &[usize]) -> (Telemetry, Vec<Messages>) {
        let messages: Vec<Messages> = rooms.iter().map(|_| Messages::default()).collect();
        let sinks = messages.iter().zip(rooms).map(|(messages, &room)| {
            Box::new(Memory { messages: Arc::clone(messages), room }) as Box<dyn Sink>
        });
        (Telemetry::start(lockstep_platform::real(), 3, sinks.collect()), messages)
    }

    #[test]
    fn every_sink_gets_every_event() {
        let (mut telemetry, messages) = start(&[10, 10]);
        warn(&mut telemetry, "one");
        warn(&mut telemetry, "two");
        for messages in messages {
            assert_eq!(*messages.lock().unwrap(), ["one", "two"]);
        }
        assert_eq!(telemetry.failures(), []);
    }

    #[test]
    fn a_failing_sink_is_reported_once_and_the_others_continue() {
        let (mut telemetry, messages) = start(&[1, 10]);
        for message in ["one", "two", "three"] {
            warn(&mut telemetry, message);
        }
        assert_eq!(*messages[0].lock().unwrap(), ["one"]);
        let report = "cannot write events to memory: full; this sink is disabled";
        assert_eq!(*messages[1].lock().unwrap(), ["one", "two", report, "three"]);
        assert_eq!(telemetry.failures().len(), 1);
    }

    #[test]
    fn all_sinks_may_fail_and_recording_continues() {
        // The second sink accepts one event, then fails on the report about the first.
        let (mut telemetry, messages) = start(&[0, 1]);
        warn(&mut telemetry, "one");
        warn(&mut telemetry, "two");
        assert_eq!(*messages[1].lock().unwrap(), ["one"]);
        assert_eq!(telemetry.failures().len(), 2);
    }
}

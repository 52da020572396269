//! From the engine to the sinks: stamping, fan-out, and sinks that fail.
//!
//! A full disk must not cost a training run. The first error of a sink takes the sink out of use
//! and becomes a [`Event::Warning`] to the others; a sink that went on after an error could leave
//! half a line in the middle of its file.
//!
//! One thread records. A lock around the sinks would be held while they call into the platform,
//! and a simulated world could then hand the turn to a thread that waits for that lock for ever.

use std::fmt;

use lockstep_platform::World;

use crate::{Event, Sink, Stamped, TelemetryError, VERSION};

/// One rank's telemetry.
pub struct Telemetry {
    world: World,
    rank: usize,
    /// `None` once it has failed.
    sinks: Vec<Option<Box<dyn Sink>>>,
    failures: Vec<TelemetryError>,
}

impl Telemetry {
    /// Starts recording for a rank. No sinks at all is fine: events then go nowhere.
    pub fn start(world: World, rank: usize, sinks: Vec<Box<dyn Sink>>) -> Self {
        let sinks = sinks.into_iter().map(Some).collect();
        Self { world, rank, sinks, failures: Vec::new() }
    }

    /// Stamps the event and gives it to every sink. The end of the run is flushed at once.
    pub fn record(&mut self, event: &Event) {
        let stamped = self.stamp(event.clone());
        self.on_each(|sink| sink.write(&stamped));
        if matches!(event, Event::RunFinished { .. }) {
            self.flush();
        }
    }

    /// Brings everything recorded so far to its destinations.
    pub fn flush(&mut self) {
        self.on_each(|sink| sink.flush());
    }

    /// Why sinks were left out, in the order it happened; empty in a healthy run.
    pub fn failures(&self) -> &[TelemetryError] {
        &self.failures
    }

    fn stamp(&self, event: Event) -> Stamped {
        let seconds = self.world.clock().now().as_secs_f64();
        Stamped { v: VERSION, seconds, rank: self.rank, event }
    }

    /// Does something with every sink that still works, and tells the others of new failures.
    /// The telling can fail too; each round loses at least one sink, so the rounds end.
    fn on_each(&mut self, action: impl FnMut(&mut dyn Sink) -> Result<(), TelemetryError>) {
        let mut num_told = self.failures.len();
        self.try_each(action);
        while num_told < self.failures.len() {
            let message = format!("{}; no more events go there", self.failures[num_told]);
            let warning = self.stamp(Event::Warning { message });
            self.try_each(|sink| sink.write(&warning));
            num_told += 1;
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

    /// What a sink was given; shared with the test.
    type Seen = Arc<Mutex<Vec<String>>>;

    struct Memory {
        seen: Seen,
        /// How many events it takes before its destination is full.
        room: usize,
    }

    impl Sink for Memory {
        fn write(&mut self, event: &Stamped) -> Result<(), TelemetryError> {
            let mut seen = self.seen.lock().unwrap();
            if seen.len() == self.room {
                let (sink, reason) = ("memory".to_owned(), "full".to_owned());
                return Err(TelemetryError::Write { sink, reason });
            }
            let Event::Warning { message } = &event.event else { panic!("only warnings here") };
            seen.push(message.clone());
            Ok(())
        }

        fn flush(&mut self) -> Result<(), TelemetryError> {
            Ok(())
        }
    }

    fn warn(telemetry: &mut Telemetry, message: &str) {
        telemetry.record(&Event::Warning { message: message.to_owned() });
    }

    fn start(rooms: &[usize]) -> (Telemetry, Vec<Seen>) {
        let seen: Vec<Seen> = rooms.iter().map(|_| Seen::default()).collect();
        let sinks = seen.iter().zip(rooms).map(|(seen, &room)| {
            Box::new(Memory { seen: Arc::clone(seen), room }) as Box<dyn Sink>
        });
        (Telemetry::start(lockstep_platform::real(), 3, sinks.collect()), seen)
    }

    #[test]
    fn every_sink_gets_every_event() {
        let (mut telemetry, seen) = start(&[10, 10]);
        warn(&mut telemetry, "one");
        warn(&mut telemetry, "two");
        for seen in seen {
            assert_eq!(*seen.lock().unwrap(), ["one", "two"]);
        }
        assert_eq!(telemetry.failures(), []);
    }

    #[test]
    fn a_failing_sink_is_reported_once_and_the_others_go_on() {
        let (mut telemetry, seen) = start(&[1, 10]);
        for message in ["one", "two", "three"] {
            warn(&mut telemetry, message);
        }
        assert_eq!(*seen[0].lock().unwrap(), ["one"]);
        let report = "cannot write events to memory: full; no more events go there";
        assert_eq!(*seen[1].lock().unwrap(), ["one", "two", report, "three"]);
        assert_eq!(telemetry.failures().len(), 1);
    }

    #[test]
    fn all_sinks_may_fail_and_recording_goes_on() {
        // The second sink has room for one event, then fails on the report about the first.
        let (mut telemetry, seen) = start(&[0, 1]);
        warn(&mut telemetry, "one");
        warn(&mut telemetry, "two");
        assert_eq!(*seen[1].lock().unwrap(), ["one"]);
        assert_eq!(telemetry.failures().len(), 2);
    }
}

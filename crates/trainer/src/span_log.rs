//! Spans of the tasks of sampled steps, in the event file.

use crate::step_log::StepLog;
use lockstep_parallel::{Replica, TaskSpan};
use lockstep_telemetry::Event;

/// First step whose tasks are recorded; each later one has twice the number.
const FIRST_SAMPLE: u64 = 64;

/// Whether the tasks of a step are recorded, by the number of steps with it. Samples become rare in
/// long runs, so that they stay a small part of the event file and of the time.
fn is_sampled(num_steps: u64) -> bool {
    num_steps >= FIRST_SAMPLE && num_steps.is_power_of_two()
}

impl StepLog {
    /// Records when the tasks of a sampled step ran, and decides whether the next step is sampled.
    pub(crate) fn record_spans(&mut self, num_steps: u64, replica: &mut Replica) {
        let spans = replica.take_spans();
        if !spans.is_empty() {
            let record = |(TaskSpan { task, start, end }, action): (TaskSpan, String)| {
                (task.0, action, start.as_secs_f64(), end.saturating_sub(start).as_secs_f64())
            };
            let spans = spans.into_iter().map(record).collect();
            self.record(&Event::TaskSpans { step: num_steps, spans });
        }
        replica.set_sampled(is_sampled(num_steps + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sample_has_twice_the_number_of_the_one_before() {
        let sampled: Vec<u64> = (0..1000).filter(|step| is_sampled(*step)).collect();
        assert_eq!(sampled, [64, 128, 256, 512]);
    }
}

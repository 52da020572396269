//! System clocks.
//!
//! The age of the process is the time since boot minus the start time in the kernel's process
//! table, so it includes loading and everything before `main`.

#![expect(clippy::disallowed_methods, reason = "this is where the clocks are read")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Clock;

/// Monotonic time since the creation of the world.
pub(crate) struct RealClock {
    origin: Instant,
}

impl RealClock {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn wall(&self) -> Duration {
        // A date before 1970 (a machine without a clock battery) reads as zero.
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    #[cfg(target_os = "linux")]
    fn wall_coarse(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Duration::try_from(time).unwrap_or_default()
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    fn process_age(&self) -> Duration {
        // The world is younger than its process, so its age is a lower bound.
        age_from_process_table().unwrap_or_default().max(self.now())
    }
}

#[cfg(target_os = "linux")]
fn age_from_process_table() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let start_ticks = start_ticks(&stat)?;
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    let start = Duration::from_secs_f64(start_ticks as f64 / ticks_per_second as f64);
    let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(since_boot).ok()?.checked_sub(start)
}

#[cfg(not(target_os = "linux"))]
fn age_from_process_table() -> Option<Duration> {
    None
}

/// Field 22 of the process table line. Field 2 is the program name in parentheses and may contain
/// spaces and parentheses, so counting starts after the last one.
#[cfg(target_os = "linux")]
fn start_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let stat = format!("77 (a (b) c) {}", fields.join(" "));
        assert_eq!(start_ticks(&stat), Some(22));
        assert_eq!(start_ticks("77 (cut off"), None);
    }

    #[test]
    fn the_process_table_tells_a_plausible_age() {
        let age = age_from_process_table().unwrap();
        assert!(age < Duration::from_hours(24), "this test is not {age:?} old");
    }
}

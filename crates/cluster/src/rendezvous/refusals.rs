//! Who was turned away, and why.
//!
//! Every refusal is worth a line, since it may be a mistake that somebody is looking for; but a
//! stranger must not be able to fill a disk with lines. A few are told at once, then one a second,
//! with the number of those that were not.

use std::time::Duration;

use lockstep_platform::Clock;

/// Refusals that are kept for the error message.
const MAX_KEPT: usize = 8;

/// Lines that are told at once, at most.
const MAX_LINES: u32 = 10;

/// After that, one in this time.
const INTERVAL: Duration = Duration::from_secs(1);

/// Where a line about the run goes, for people to read.
pub type Log = fn(&str);

/// All refusals of one door.
pub(super) struct Refusals {
    log: Option<Log>,
    kept: Vec<String>,
    num_all: usize,
    num_untold: usize,
    /// Lines that may be told now, and since when more of them could have been.
    num_lines: u32,
    since: Duration,
}

impl Refusals {
    pub(super) fn new(log: Option<Log>, clock: &dyn Clock) -> Self {
        let (kept, num_all, num_untold) = (Vec::new(), 0, 0);
        Self { log, kept, num_all, num_untold, num_lines: MAX_LINES, since: clock.now() }
    }

    /// Remembers a refusal, and tells it unless too many were told.
    pub(super) fn note(&mut self, clock: &dyn Clock, addr: &str, reason: &str) {
        self.num_all += 1;
        if self.kept.len() < MAX_KEPT {
            self.kept.push(format!("{addr}, {reason}"));
        }
        let now = clock.now();
        while self.num_lines < MAX_LINES && now.saturating_sub(self.since) >= INTERVAL {
            (self.num_lines, self.since) = (self.num_lines + 1, self.since + INTERVAL);
        }
        if self.num_lines == MAX_LINES {
            self.since = now;
        }
        if self.num_lines == 0 {
            self.num_untold += 1;
            return;
        }
        self.num_lines -= 1;
        let untold = match std::mem::take(&mut self.num_untold) {
            0 => String::new(),
            more => format!(" ({more} more before it)"),
        };
        self.tell(&format!("refused {addr}: {reason}{untold}"));
    }

    /// The first few.
    pub(super) fn kept(&self) -> &[String] {
        &self.kept
    }

    /// How many there were.
    pub(super) fn num_all(&self) -> usize {
        self.num_all
    }

    fn tell(&self, line: &str) {
        if let Some(log) = self.log {
            log(line);
        }
    }
}

impl Drop for Refusals {
    fn drop(&mut self) {
        if self.num_untold > 0 {
            self.tell(&format!("refused {} more callers", self.num_untold));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use lockstep_platform::real;

    use super::*;

    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    #[test]
    fn a_crowd_is_told_in_a_few_lines_that_count_it() {
        let world = real();
        let log: Log = |line| LINES.lock().unwrap().push(line.to_owned());
        let mut refusals = Refusals::new(Some(log), world.clock());
        for port in 0..1000 {
            refusals.note(world.clock(), &format!("10.0.0.1:{port}"), "it is a crowd");
        }
        assert_eq!((refusals.num_all(), refusals.kept().len()), (1000, MAX_KEPT));
        drop(refusals);
        let lines = LINES.lock().unwrap();
        assert_eq!(lines[0], "refused 10.0.0.1:0: it is a crowd");
        // A machine that stands still for a second may tell one more.
        assert!((MAX_LINES as usize + 1..20).contains(&lines.len()), "{lines:?}");
        let num = |line: &String| {
            let digits: String = line.chars().filter(char::is_ascii_digit).collect();
            digits.parse::<usize>().unwrap_or(0)
        };
        let told = lines.len() - 1;
        let before: usize = lines[..told]
            .iter()
            .filter_map(|line| line.split_once(" ("))
            .map(|(_, rest)| num(&rest.to_owned()))
            .sum();
        assert_eq!(told + before + num(&lines[told]), 1000, "nobody is forgotten");
    }
}

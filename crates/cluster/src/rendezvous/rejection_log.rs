//! Rate-limited log of rejected clients.
//!
//! Every rejection is logged, since it may explain a misconfigured rank, but an unauthenticated
//! client must not fill a disk. A token bucket allows a burst of lines, then one a second; a line
//! counts the suppressed ones before it.

use std::time::Duration;

use lockstep_platform::Clock;

/// Rejections quoted in the error message.
const MAX_QUOTED: usize = 8;

/// Largest burst of lines.
const MAX_LINES: u32 = 10;

/// Time between two lines after a burst.
const INTERVAL: Duration = Duration::from_secs(1);

/// Sink for log lines.
pub type Log = fn(&str);

/// Rejections of one acceptor.
pub(super) struct RejectionLog {
    log: Option<Log>,
    quoted: Vec<String>,
    num_all: usize,
    num_suppressed: usize,
    /// Tokens in the bucket, and the time of the last refill.
    num_lines: u32,
    since: Duration,
}

impl RejectionLog {
    pub(super) fn new(log: Option<Log>, clock: &dyn Clock) -> Self {
        let (quoted, num_all, num_suppressed) = (Vec::new(), 0, 0);
        Self { log, quoted, num_all, num_suppressed, num_lines: MAX_LINES, since: clock.now() }
    }

    /// Records a rejection and logs it unless the rate is exceeded.
    pub(super) fn record(&mut self, clock: &dyn Clock, addr: &str, reason: &str) {
        self.num_all += 1;
        if self.quoted.len() < MAX_QUOTED {
            self.quoted.push(format!("{addr}, {reason}"));
        }
        let now = clock.now();
        while self.num_lines < MAX_LINES && now.saturating_sub(self.since) >= INTERVAL {
            (self.num_lines, self.since) = (self.num_lines + 1, self.since + INTERVAL);
        }
        if self.num_lines == MAX_LINES {
            self.since = now;
        }
        if self.num_lines == 0 {
            self.num_suppressed += 1;
            return;
        }
        self.num_lines -= 1;
        let suppressed = match std::mem::take(&mut self.num_suppressed) {
            0 => String::new(),
            more => format!(" ({more} more before it)"),
        };
        self.write_line(&format!("refused {addr}: {reason}{suppressed}"));
    }

    /// First rejections.
    pub(super) fn quoted(&self) -> &[String] {
        &self.quoted
    }

    /// Number of rejections.
    pub(super) fn num_all(&self) -> usize {
        self.num_all
    }

    fn write_line(&self, line: &str) {
        if let Some(log) = self.log {
            log(line);
        }
    }
}

impl Drop for RejectionLog {
    fn drop(&mut self) {
        if self.num_suppressed > 0 {
            self.write_line(&format!("refused {} more connections", self.num_suppressed));
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
    fn many_rejections_are_logged_in_few_lines_that_count_them() {
        let world = real();
        let log: Log = |line| LINES.lock().unwrap().push(line.to_owned());
        let mut rejections = RejectionLog::new(Some(log), world.clock());
        for port in 0..1000 {
            rejections.record(world.clock(), &format!("10.0.0.1:{port}"), "it is a crowd");
        }
        assert_eq!((rejections.num_all(), rejections.quoted().len()), (1000, MAX_QUOTED));
        drop(rejections);
        let lines = LINES.lock().unwrap();
        assert_eq!(lines[0], "refused 10.0.0.1:0: it is a crowd");
        // A machine that stalls for a second may log one more line.
        assert!((MAX_LINES as usize + 1..20).contains(&lines.len()), "{lines:?}");
        let num = |line: &String| {
            let digits: String = line.chars().filter(char::is_ascii_digit).collect();
            digits.parse::<usize>().unwrap_or(0)
        };
        let num_logged = lines.len() - 1;
        let before: usize = lines[..num_logged]
            .iter()
            .filter_map(|line| line.split_once(" ("))
            .map(|(_, rest)| num(&rest.to_owned()))
            .sum();
        assert_eq!(num_logged + before + num(&lines[num_logged]), 1000, "all are counted");
    }
}

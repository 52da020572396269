//! Date that a template may print with `strftime_now`, in the proleptic Gregorian calendar (UTC).
//!
//! Training renders with one fixed date: its data may not depend on the day of the run.

use std::fmt::Write;
use std::time::Duration;

/// Names of the months.
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Names of the days, from the day of 1970-01-01.
const DAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

/// A second of the calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date {
    unix_seconds: u64,
}

/// A date as people write it.
struct Civil {
    year: u64,
    month: usize,
    day: u64,
    day_of_year: u64,
}

impl Date {
    /// The date of training: 26 July 2024, which templates of Llama 3 print where they know none.
    pub const FIXED: Self = Self { unix_seconds: 1_721_952_000 };

    /// Date of a time since 1970, as a wall clock has it.
    pub const fn since_1970(time: Duration) -> Self {
        Self { unix_seconds: time.as_secs() }
    }

    /// The date in a format of C's `strftime`; unknown directives stay as they are.
    pub(crate) fn format(self, format: &str) -> String {
        let mut out = String::new();
        let mut rest = format.chars();
        while let Some(char) = rest.next() {
            if char != '%' {
                out.push(char);
                continue;
            }
            let directive = rest.next();
            let (is_bare, directive) = match directive {
                Some('-') => (true, rest.next()),
                other => (false, other),
            };
            self.push(directive.unwrap_or('%'), is_bare, &mut out);
        }
        out
    }

    /// Appends a directive; a bare number has no leading zero.
    fn push(self, directive: char, is_bare: bool, out: &mut String) {
        let Civil { year, month, day, day_of_year } = self.civil();
        let second = self.unix_seconds % SECONDS_PER_DAY;
        let (hour, minute) = (second / 3600, second / 60 % 60);
        let name = DAYS[(self.unix_seconds / SECONDS_PER_DAY % 7) as usize];
        let (hour_of_half, half) = ((hour + 11) % 12 + 1, if hour < 12 { "AM" } else { "PM" });
        let mut number = |value: u64, width: usize| {
            let width = if is_bare { 0 } else { width };
            let _ = write!(out, "{value:0width$}");
        };
        match directive {
            'Y' => number(year, 4),
            'y' => number(year % 100, 2),
            'm' => number(month as u64, 2),
            'd' => number(day, 2),
            'j' => number(day_of_year, 3),
            'H' => number(hour, 2),
            'I' => number(hour_of_half, 2),
            'M' => number(minute, 2),
            'S' => number(second % 60, 2),
            'e' => drop(write!(out, "{day:2}")),
            'p' => out.push_str(half),
            'B' => out.push_str(MONTHS[month - 1]),
            'b' | 'h' => out.push_str(&MONTHS[month - 1][..3]),
            'A' => out.push_str(name),
            'a' => out.push_str(&name[..3]),
            'F' => out.push_str(&self.format("%Y-%m-%d")),
            'T' => out.push_str(&self.format("%H:%M:%S")),
            '%' => out.push('%'),
            other => out.extend(['%', other]),
        }
    }

    fn civil(self) -> Civil {
        let mut day_of_year = self.unix_seconds / SECONDS_PER_DAY;
        let mut year = 1970;
        let is_leap = |year: u64| {
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
        };
        // A clock shows a date of this millennium; a broken one ends the search all the same.
        while year < 9999 && day_of_year >= 365 + u64::from(is_leap(year)) {
            day_of_year -= 365 + u64::from(is_leap(year));
            year += 1;
        }
        let february = 28 + u64::from(is_leap(year));
        let mut day = day_of_year.min(365);
        let mut month = 0;
        for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
            if day < length {
                break;
            }
            day -= length;
            month += 1;
        }
        Civil { year, month: month + 1, day: day + 1, day_of_year: day_of_year + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_print_as_strftime_prints_them() {
        let at = |seconds| Date::since_1970(Duration::from_secs(seconds));
        // Values of Python's datetime.
        let format = "%A %a %d %B %b %Y %y %m %-d %-m %j %H:%M:%S %I %p %% %F";
        assert_eq!(
            at(0).format(format),
            "Thursday Thu 01 January Jan 1970 70 01 1 1 001 00:00:00 12 AM % 1970-01-01"
        );
        assert_eq!(
            at(951_827_696).format(format),
            "Tuesday Tue 29 February Feb 2000 00 02 29 2 060 12:34:56 12 PM % 2000-02-29"
        );
        assert_eq!(
            at(1_735_689_599).format(format),
            "Tuesday Tue 31 December Dec 2024 24 12 31 12 366 23:59:59 11 PM % 2024-12-31"
        );
        assert_eq!(Date::FIXED.format("%d %b %Y"), "26 Jul 2024");
        assert_eq!(at(u64::MAX).format("%Y"), "9999", "a broken clock gives a date");
    }
}

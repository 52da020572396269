//! Numbers for people: three significant digits, SI prefixes, binary units for memory.

pub(crate) use lockstep_plot::digits;

/// An amount with an SI prefix and a unit: `1.23 kB`, `45.6 PFLOP`.
pub(crate) fn si(value: f64, unit: &str) -> String {
    let (scaled, prefix) = scale(value);
    format!("{} {prefix}{unit}", digits(scaled))
}

/// Bytes on a wire or a disk: `512 B`, `7.48 MB`.
pub(crate) fn si_bytes(bytes: u64) -> String {
    if bytes < 1000 { format!("{bytes} B") } else { si(bytes as f64, "B") }
}

/// A count with an SI prefix: `4.19 M`, `512`.
pub(crate) fn count(value: f64) -> String {
    let (scaled, prefix) = scale(value);
    format!("{} {prefix}", digits(scaled)).trim_end().to_owned()
}

fn scale(value: f64) -> (f64, &'static str) {
    let prefixes = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    // 999.6 rounds to 1000, which belongs to the next prefix.
    let found = prefixes.into_iter().find(|(unit, _)| value.abs() >= 0.9995 * unit);
    let (unit, prefix) = found.unwrap_or((1.0, ""));
    (value / unit, prefix)
}

/// Memory in GiB.
pub(crate) fn to_gib(bytes: f64) -> f64 {
    bytes / f64::from(1_u32 << 30)
}

/// Memory in GiB, as text.
pub(crate) fn gib(bytes: f64) -> String {
    digits(to_gib(bytes))
}

/// A share in percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{} %", digits(100.0 * share))
}

/// A time in days, or in a smaller unit where it is less than one.
pub(crate) fn days(days: f64) -> String {
    let units = [(1.0, "days"), (24.0, "h"), (1440.0, "min"), (86_400.0, "s")];
    let fits = units.into_iter().find(|(per_day, _)| days * per_day >= 1.0);
    let (per_day, unit) = fits.unwrap_or(units[3]);
    format!("{} {unit}", digits(days * per_day))
}

/// An amount of dollars: whole from a hundred on, with cents below, with three digits below a cent.
pub(crate) fn dollars(value: f64) -> String {
    match value.abs() {
        many if many >= 100.0 => grouped(value),
        some if some >= 0.01 => format!("{value:.2}"),
        _ => digits(value),
    }
}

/// A number with thousands separated by commas: whole from ten on, with three digits below.
pub(crate) fn grouped(value: f64) -> String {
    if value.abs() < 10.0 && value.fract() != 0.0 {
        return digits(value);
    }
    let whole = format!("{value:.0}");
    let (sign, number) = whole.strip_prefix('-').map_or(("", whole.as_str()), |n| ("-", n));
    let mut text = String::new();
    for (index, digit) in number.chars().enumerate() {
        if index > 0 && (number.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    format!("{sign}{text}")
}

/// The plural ending for a count.
pub(crate) const fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_and_groups_follow_the_size() {
        let counts = ["1.00", "1.00 k", "1.00 k", "70.6 G"];
        assert_eq!([1.0, 1_000.0, 999.7, 70.56e9].map(count), counts);
        assert_eq!([si(2e15, "FLOP"), si(5.0, "B")], ["2.00 PFLOP", "5.00 B"]);
        assert_eq!([512, 7_478_016].map(si_bytes), ["512 B", "7.48 MB"]);
        assert_eq!([1.0, 1_374_079.0, -12345.0].map(grouped), ["1", "1,374,079", "-12,345"]);
        assert_eq!(gib(f64::from(3_u32 << 30)), "3.00");
    }

    #[test]
    fn small_amounts_are_not_zero() {
        let spent = [0.0, 0.0034, 0.5, 12.345, 1_374_079.4].map(dollars);
        assert_eq!(spent, ["0", "0.00340", "0.50", "12.35", "1,374,079"]);
        let taken = [21.3, 0.5, 1.0 / 96.0, 1e-6, 1e-9].map(days);
        assert_eq!(taken, ["21.3 days", "12.0 h", "15.0 min", "0.0864 s", "0.0000864 s"]);
        assert_eq!([0.25, 12_345.6].map(grouped), ["0.250", "12,346"]);
    }
}

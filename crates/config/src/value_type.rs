//! Value types of keys: acceptance, errors and documentation.
//!
//! A value type is data: one declaration accepts values, explains refusals and fills the "allowed"
//! column of the reference. Rules between keys are in `rules`; lists and tables are in `lists`.

mod lists;

use crate::error::alternatives;
use crate::nearest::nearest;
use crate::units::Bytes;
use crate::value::{Content, RawValue, Value, quoted};

pub(crate) use lists::Cell;

/// Type of a key's value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ValueType {
    Integer {
        min: i64,
        max: i64,
    },
    PowerOfTwo {
        max: i64,
    },
    /// A finite number. A `single` one is stored as f32 and checked after rounding, since
    /// 0.99999999999 is below 1 in f64 and equal to 1 in f32.
    Float {
        low: Bound,
        high: Bound,
        single: bool,
    },
    Bool,
    Text {
        may_be_empty: bool,
    },
    Choice(&'static [&'static str]),
    /// One of the names, or a name with a number.
    ChoiceOrNumbered(&'static [&'static str], Numbered),
    /// A number of bytes: an integer, or text with a unit.
    Bytes,
    /// Comma-separated integers from 1, as text; may be empty.
    Shares,
    /// A milestone of the run: a step, or a fraction of all steps.
    Milestone,
    /// Values of one type, up to a limit.
    List {
        of: &'static Self,
        max: usize,
    },
    /// Named values.
    Table(&'static [Cell]),
    /// A value of another type, or one of these names.
    OrName(&'static Self, &'static [&'static str]),
    /// A value of another type, or non-empty text.
    OrText(&'static Self),
    /// A value of another type, or named values.
    OrTable(&'static Self, &'static [Cell]),
}

/// A name with a whole number behind it, such as `every-K` or `cuda:N`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbered {
    /// The name, with the sign in front of the number.
    pub(crate) prefix: &'static str,
    /// Letter that stands for the number.
    pub(crate) letter: char,
    pub(crate) min: usize,
    /// Number in advice where there is none.
    pub(crate) example: usize,
}

impl Numbered {
    /// The number of a text of this form.
    pub(crate) fn number(self, text: &str) -> Option<usize> {
        let digits = text.strip_prefix(self.prefix)?;
        let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|number| is_plain && *number >= self.min)
    }

    /// The text of this form that another one resembles.
    fn resembled_by(self, text: &str) -> Option<String> {
        let Self { prefix, min, example, .. } = self;
        let rest = text.strip_prefix(&prefix[..prefix.len() - 1])?;
        let number = rest.trim_start_matches(|letter: char| !letter.is_ascii_digit()).parse().ok();
        Some(format!("{prefix}{}", number.filter(|number| *number >= min).unwrap_or(example)))
    }
}

/// One end of a range of floats.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    /// The end itself is allowed.
    Closed(f64),
    /// The end itself is excluded.
    Open(f64),
}

impl Bound {
    fn is_below(self, number: f64) -> bool {
        match self {
            Self::Closed(end) => number >= end,
            Self::Open(end) => number > end,
        }
    }

    fn is_above(self, number: f64) -> bool {
        match self {
            Self::Closed(end) => number <= end,
            Self::Open(end) => number < end,
        }
    }
}

/// Why a value was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) rule: String,
    /// None: the value that the key has without this one is the fix.
    pub(crate) fix: Option<String>,
    /// The invalid part of a list or table: its place, such as `[0].match`, and its text.
    pub(crate) part: Option<(String, String)>,
}

impl ValueType {
    // The declaration of a key narrows its type; a wrong one does not compile.

    /// Integers of a range.
    pub(crate) const fn integers(min: i64, max: i64) -> Self {
        Self::Integer { min, max }
    }

    /// Bounds an integer.
    pub(crate) const fn integer(self, min: i64, max: i64) -> Self {
        match self {
            Self::Integer { .. } => Self::Integer { min, max },
            _ => panic!("bounds of an integer"),
        }
    }

    /// Bounds a number.
    pub(crate) const fn float(self, low: Bound, high: Bound) -> Self {
        match self {
            Self::Float { single, .. } => Self::Float { low, high, single },
            _ => panic!("bounds of a number"),
        }
    }

    /// Refuses an empty text.
    pub(crate) const fn not_empty(self) -> Self {
        match self {
            Self::Text { .. } => Self::Text { may_be_empty: false },
            _ => panic!("only text may be empty"),
        }
    }

    /// Limits the number of entries of a list.
    pub(crate) const fn at_most(self, max: usize) -> Self {
        match self {
            Self::List { of, .. } => Self::List { of, max },
            _ => panic!("length of a list"),
        }
    }

    /// Accepts a value, or explains why not.
    pub(crate) fn accept(&self, given: &RawValue) -> Result<Value, Refusal> {
        match (*self, &given.content) {
            (Self::Integer { min, max }, Content::Integer(integer)) => in_range(*integer, min, max),
            (Self::PowerOfTwo { max }, Content::Integer(integer)) => power_of_two(*integer, max),
            (Self::Float { low, high, single }, Content::Float(float)) => {
                between(*float, low, high, single)
            }
            (Self::Float { low, high, single }, Content::Integer(integer)) => {
                between(*integer as f64, low, high, single)
            }
            (Self::OrText(_), Content::Text(text)) if !text.is_empty() => {
                Ok(Value::Text(text.clone()))
            }
            (Self::OrName(_, names), Content::Text(text)) if names.contains(&text.as_str()) => {
                Ok(Value::Text(text.clone()))
            }
            (Self::OrText(of) | Self::OrName(of, _), content) if of.explains(content) => {
                of.accept(given)
            }
            (Self::OrTable(of, _), Content::Integer(_)) => of.accept(given),
            (Self::Bool, Content::Bool(flag)) => Ok(Value::Bool(*flag)),
            (Self::Text { may_be_empty: false }, Content::Text(text)) if text.is_empty() => {
                refuse("must not be empty".to_owned(), None)
            }
            (Self::Text { .. }, Content::Text(text)) => Ok(Value::Text(text.clone())),
            (Self::Choice(names), Content::Text(text)) => one_of(text, names),
            (Self::ChoiceOrNumbered(names, numbered), Content::Text(text)) => {
                one_of_or_numbered(text, names, numbered)
            }
            (Self::Bytes, Content::Integer(integer)) => in_range(*integer, 0, MAX_BYTES),
            (Self::Bytes, Content::Text(text)) => amount(text),
            (Self::Shares, Content::Text(text)) => shares(text),
            (Self::Milestone, Content::Integer(integer)) => in_range(*integer, 1, MAX_STEPS),
            (Self::Milestone, Content::Float(float)) => {
                between(*float, Bound::Open(0.0), Bound::Open(1.0), false)
            }
            (Self::List { of, max }, Content::List(values)) => lists::list(of, max, values),
            (Self::Table(cells) | Self::OrTable(_, cells), Content::Table(given)) => {
                lists::table(cells, given)
            }
            (_, content) => self.wrong_type(content),
        }
    }

    /// Whether the message about a value of this type suits one that may also be text.
    const fn explains(&self, content: &Content) -> bool {
        match content {
            Content::Integer(_) | Content::Float(_) => true,
            Content::Text(_) => false,
            _ => !matches!(self, Self::Float { .. }),
        }
    }

    /// The type, as in "an integer is needed".
    fn needed(&self) -> String {
        let quoted_names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
            alternatives(&names)
        };
        let needed = match self {
            Self::Choice(names) => return quoted_names(names),
            Self::OrName(of, names) => {
                return format!("{} or {}", of.needed(), quoted_names(names));
            }
            Self::OrText(of) => return format!("{}, or text in quotes,", of.needed()),
            Self::OrTable(of, _) => return format!("{}, or a table in braces,", of.needed()),
            Self::Integer { .. } | Self::PowerOfTwo { .. } => "an integer",
            Self::Float { .. } => "a number",
            Self::Bool => "true or false",
            Self::Text { .. } | Self::ChoiceOrNumbered(..) => "text in quotes",
            Self::Bytes => "a number of bytes",
            Self::Shares => "text such as \"5,3\"",
            Self::Milestone => "a step or a fraction of the run",
            Self::List { .. } => "a list in brackets",
            Self::Table(_) => "a table in braces",
        };
        needed.to_owned()
    }

    fn wrong_type(&self, content: &Content) -> Result<Value, Refusal> {
        // 1e3 is a float in TOML; the integer was meant.
        let fix = match (self, content) {
            (Self::Integer { min, max }, Content::Float(float))
                if float.fract() == 0.0 && (*min as f64..=*max as f64).contains(float) =>
            {
                Some(format!("{float:.0}"))
            }
            _ => None,
        };
        refuse(format!("is {} where {} is needed", content.type_name(), self.needed()), fix)
    }

    /// Allowed values, for the reference.
    pub(crate) fn allowed(&self) -> String {
        match self {
            Self::Integer { min, max: i64::MAX } => format!("integer, at least {min}"),
            Self::Integer { min, max } => format!("integer from {min} to {max}"),
            Self::PowerOfTwo { max } => format!("power of two from 1 to {max}"),
            Self::Float { low, high, .. } => format!("number {}", range_text(*low, *high)),
            Self::OrText(of) => format!("{}, or text", of.allowed()),
            Self::OrName(of, names) => format!("{}, or {}", of.allowed(), names.join(", ")),
            Self::OrTable(of, cells) => format!("{}, or {}", of.allowed(), lists::allowed(cells)),
            Self::Bool => "true, false".to_owned(),
            Self::Text { may_be_empty: true } => "text".to_owned(),
            Self::Text { may_be_empty: false } => "text, not empty".to_owned(),
            Self::Choice(names) => names.join(", "),
            Self::ChoiceOrNumbered(names, Numbered { prefix, letter, .. }) => {
                format!("{}, {prefix}{letter}", names.join(", "))
            }
            Self::Bytes => "bytes, such as 4096 or \"4MiB\"".to_owned(),
            Self::Shares => "text, comma-separated integers from 1".to_owned(),
            Self::Milestone => "step from 1, or fraction of the run above 0 and below 1".to_owned(),
            Self::List { of, max } => format!("list of at most {max}: {}", of.allowed()),
            Self::Table(cells) => lists::allowed(cells),
        }
    }

    /// The first named choice, as written in a recipe.
    pub(crate) fn first_choice(&self) -> Option<String> {
        match self {
            Self::Choice(names) => names.first().map(|name| quoted(name)),
            _ => None,
        }
    }

    /// Whether an argument of `--set` is text even if it looks like a number.
    pub(crate) const fn takes_text(&self) -> bool {
        matches!(
            self,
            Self::Text { .. } | Self::Choice(_) | Self::ChoiceOrNumbered(..) | Self::Shares
        )
    }
}

fn refuse(rule: String, fix: Option<String>) -> Result<Value, Refusal> {
    Err(Refusal { rule, fix, part: None })
}

fn in_range(integer: i128, min: i64, max: i64) -> Result<Value, Refusal> {
    match i64::try_from(integer) {
        Ok(integer) if (min..=max).contains(&integer) => Ok(Value::Integer(integer)),
        _ => {
            let closest = integer.clamp(i128::from(min), i128::from(max));
            refuse(format!("must be between {min} and {max}"), Some(closest.to_string()))
        }
    }
}

fn power_of_two(integer: i128, max: i64) -> Result<Value, Refusal> {
    let powers: Vec<i64> = (0..63).map(|bit| 1i64 << bit).take_while(|p| *p <= max).collect();
    if let Some(power) = powers.iter().find(|power| i128::from(**power) == integer) {
        return Ok(Value::Integer(*power));
    }
    let below = powers.iter().rev().find(|power| i128::from(**power) < integer);
    let above = powers.iter().find(|power| i128::from(**power) > integer);
    let closest: Vec<i64> = below.into_iter().chain(above).copied().collect();
    refuse(format!("must be a power of two from 1 to {max}"), Some(alternatives(&closest)))
}

fn between(float: f64, low: Bound, high: Bound, single: bool) -> Result<Value, Refusal> {
    let stored = if single { shortest_f64(float as f32) } else { float };
    if low.is_below(stored) && high.is_above(stored) {
        return Ok(Value::Float(stored));
    }
    let fix = match (low, high) {
        (Bound::Closed(end), _) if stored < end => Some(Value::Float(end).to_string()),
        (_, Bound::Closed(end)) if stored > end => Some(Value::Float(end).to_string()),
        _ => None,
    };
    refuse(format!("must be {}", range_text(low, high)), fix)
}

fn one_of(text: &str, names: &'static [&'static str]) -> Result<Value, Refusal> {
    if names.contains(&text) {
        return Ok(Value::Text(text.to_owned()));
    }
    let rule = match names {
        [only] => format!("must be {}", quoted(only)),
        _ => format!("is not one of {}", names.join(", ")),
    };
    refuse(rule, nearest(text, names.iter().copied()).map(quoted))
}

fn one_of_or_numbered(
    text: &str,
    names: &'static [&'static str],
    numbered: Numbered,
) -> Result<Value, Refusal> {
    if names.contains(&text) {
        return Ok(Value::Text(text.to_owned()));
    }
    let Numbered { prefix, letter, .. } = numbered;
    if let Some(number) = numbered.number(text) {
        // Normalised, so that every-02 and every-2 are the same recipe.
        return Ok(Value::Text(format!("{prefix}{number}")));
    }
    let rule = format!("is not one of {}, {prefix}{letter}", names.join(", "));
    let known = || nearest(text, names.iter().copied()).map(quoted);
    refuse(rule, numbered.resembled_by(text).map(|text| quoted(&text)).or_else(known))
}

/// Largest number of steps of a run.
pub(crate) const MAX_STEPS: i64 = 1_000_000_000_000;

/// Largest number of bytes of a key.
const MAX_BYTES: i64 = i64::MAX;

fn amount(text: &str) -> Result<Value, Refusal> {
    match text.parse::<Bytes>() {
        Ok(bytes) => in_range(i128::from(bytes.0), 0, MAX_BYTES),
        Err(_) => refuse("is not a number of bytes".to_owned(), Some("\"4MiB\"".to_owned())),
    }
}

fn shares(text: &str) -> Result<Value, Refusal> {
    let rule = "is not a list of integers from 1, such as \"5,3\"";
    let shares = parse_shares(text).map(|shares| Value::Text(shares_text(&shares)));
    shares.map_or_else(|| refuse(rule.to_owned(), None), Ok)
}

/// The numbers of a text like `5,3`; none for an empty one.
pub(crate) fn parse_shares(text: &str) -> Option<Vec<usize>> {
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    text.split(',').map(|part| part.trim().parse().ok().filter(|share| *share >= 1)).collect()
}

/// Numbers as `5,3`.
pub(crate) fn shares_text(shares: &[usize]) -> String {
    let numbers: Vec<String> = shares.iter().map(ToString::to_string).collect();
    numbers.join(",")
}

fn range_text(low: Bound, high: Bound) -> String {
    let low = match low {
        Bound::Closed(end) => format!("at least {}", plain(end)),
        Bound::Open(end) => format!("above {}", plain(end)),
    };
    let high = match high {
        Bound::Closed(end) => format!("at most {}", plain(end)),
        Bound::Open(end) => format!("below {}", plain(end)),
    };
    format!("{low} and {high}")
}

/// A bound in its short form: "1" and not "1.0", "1e-12" and not a row of zeros.
fn plain(number: f64) -> String {
    let text = format!("{number:?}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// The f64 whose shortest decimal form is that of the f32, so that 0.1 stays 0.1 when printed.
pub(crate) fn shortest_f64(number: f32) -> f64 {
    let short: f64 = number.to_string().parse().unwrap_or_else(|_| f64::from(number));
    let faithful = (short as f32).to_bits() == number.to_bits();
    if faithful { short } else { f64::from(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(value_type: ValueType, argument: &str) -> Result<String, String> {
        match value_type.accept(&RawValue::from_argument(argument)) {
            Ok(value) => Ok(value.to_string()),
            Err(Refusal { rule, fix: Some(fix), .. }) => Err(format!("{rule}; try {fix}")),
            Err(Refusal { rule, fix: None, .. }) => Err(rule),
        }
    }

    #[test]
    fn integers_are_accepted_in_range_and_clamped_in_advice() {
        let value_type = ValueType::Integer { min: 1, max: 8 };
        assert_eq!(accept(value_type, "8"), Ok("8".into()));
        assert_eq!(accept(value_type, "9"), Err("must be between 1 and 8; try 8".into()));
        assert_eq!(accept(value_type, "-9"), Err("must be between 1 and 8; try 1".into()));
        let enormous = "9".repeat(50);
        assert_eq!(accept(value_type, &enormous), Err("must be between 1 and 8; try 8".into()));
        assert_eq!(
            accept(value_type, "4.0"),
            Err("is a float where an integer is needed; try 4".into())
        );
        assert_eq!(accept(value_type, "4.5"), Err("is a float where an integer is needed".into()));
        assert_eq!(accept(value_type, "four"), Err("is text where an integer is needed".into()));
        assert_eq!(
            accept(value_type, "true"),
            Err("is a boolean where an integer is needed".into())
        );
    }

    #[test]
    fn powers_of_two_suggest_their_neighbours() {
        let value_type = ValueType::PowerOfTwo { max: 64 };
        let refusal = |fix: &str| Err(format!("must be a power of two from 1 to 64; try {fix}"));
        for power in ["1", "2", "4", "8", "16", "32", "64"] {
            assert_eq!(accept(value_type, power), Ok(power.into()));
        }
        assert_eq!(accept(value_type, "6"), refusal("4 or 8"));
        assert_eq!(accept(value_type, "0"), refusal("1"));
        assert_eq!(accept(value_type, "65"), refusal("64"));
    }

    #[test]
    fn a_single_precision_number_is_checked_after_rounding() {
        let value_type =
            |single| ValueType::Float { low: Bound::Closed(0.0), high: Bound::Open(1.0), single };
        assert_eq!(accept(value_type(true), "0.1"), Ok("0.1".into()));
        assert_eq!(accept(value_type(false), "0.99999999999"), Ok("0.99999999999".into()));
        assert_eq!(
            accept(value_type(true), "0.99999999999"),
            Err("must be at least 0 and below 1".into())
        );
    }

    #[test]
    fn floats_accept_integers_and_refuse_what_is_not_finite() {
        let value_type =
            ValueType::Float { low: Bound::Open(0.0), high: Bound::Closed(0.5), single: false };
        assert_eq!(accept(value_type, "0.5"), Ok("0.5".into()));
        assert_eq!(accept(value_type, "1"), Err("must be above 0 and at most 0.5; try 0.5".into()));
        assert_eq!(accept(value_type, "0"), Err("must be above 0 and at most 0.5".into()));
        for strange in ["nan", "-inf"] {
            assert_eq!(accept(value_type, strange), Err("must be above 0 and at most 0.5".into()));
        }
        assert_eq!(
            accept(value_type, "inf"),
            Err("must be above 0 and at most 0.5; try 0.5".into())
        );
        assert_eq!(
            accept(value_type, "1e999"),
            Err("must be above 0 and at most 0.5; try 0.5".into())
        );
    }

    #[test]
    fn choices_suggest_the_nearest_name() {
        let value_type = ValueType::Choice(&["constant", "cosine", "linear"]);
        assert_eq!(accept(value_type, "cosine"), Ok("\"cosine\"".into()));
        let refusal = "is not one of constant, cosine, linear";
        assert_eq!(accept(value_type, "cosin"), Err(format!("{refusal}; try \"cosine\"")));
        assert_eq!(accept(value_type, "zigzag"), Err(refusal.into()));
        let wrong_type = "is an integer where \"constant\", \"cosine\" or \"linear\" is needed";
        assert_eq!(accept(value_type, "3"), Err(wrong_type.into()));
    }

    #[test]
    fn a_numbered_name_takes_any_whole_number() {
        let every = Numbered { prefix: "every-", letter: 'K', min: 1, example: 2 };
        let value_type = ValueType::ChoiceOrNumbered(&["none", "selective", "full"], every);
        for (argument, value) in [("full", "full"), ("every-1", "every-1"), ("every-03", "every-3")]
        {
            assert_eq!(accept(value_type, argument), Ok(format!("\"{value}\"")));
        }
        let refusal = "is not one of none, selective, full, every-K";
        for wrong in ["every", "every-", "every-0", "every-+2", "every-k"] {
            assert_eq!(accept(value_type, wrong), Err(format!("{refusal}; try \"every-2\"")));
        }
        assert_eq!(accept(value_type, "every 12"), Err(format!("{refusal}; try \"every-12\"")));
        assert_eq!(accept(value_type, "ful"), Err(format!("{refusal}; try \"full\"")));
        assert_eq!(value_type.allowed(), "none, selective, full, every-K");
    }

    #[test]
    fn bytes_are_numbers_or_text_with_a_unit() {
        assert_eq!(accept(ValueType::Bytes, "4096"), Ok("4096".into()));
        assert_eq!(accept(ValueType::Bytes, "4MiB"), Ok("4194304".into()));
        assert_eq!(accept(ValueType::Bytes, "1.5 kB"), Ok("1500".into()));
        let refusal = "is not a number of bytes; try \"4MiB\"";
        assert_eq!(accept(ValueType::Bytes, "4 parsecs"), Err(refusal.into()));
        let most = i64::MAX;
        let range = format!("must be between 0 and {most}");
        assert_eq!(accept(ValueType::Bytes, "-1"), Err(format!("{range}; try 0")));
        assert_eq!(
            accept(ValueType::Bytes, &u64::MAX.to_string()),
            Err(format!("{range}; try {most}"))
        );
        let wrong_type = "is a boolean where a number of bytes is needed";
        assert_eq!(accept(ValueType::Bytes, "true"), Err(wrong_type.into()));
    }

    #[test]
    fn shares_are_whole_numbers_from_one() {
        assert_eq!(accept(ValueType::Shares, "5, 3"), Ok("\"5,3\"".into()));
        assert_eq!(accept(ValueType::Shares, "\"\""), Ok("\"\"".into()));
        for wrong in ["5,,3", "5;3", "5,0", "-1,9", "five"] {
            let refusal = "is not a list of integers from 1, such as \"5,3\"";
            assert_eq!(accept(ValueType::Shares, wrong), Err(refusal.into()), "{wrong}");
        }
    }

    #[test]
    fn allowed_values_are_described() {
        let float =
            ValueType::Float { low: Bound::Closed(1e-12), high: Bound::Open(1.0), single: false };
        assert_eq!(ValueType::Integer { min: 1, max: 9 }.allowed(), "integer from 1 to 9");
        assert_eq!(ValueType::Integer { min: 0, max: i64::MAX }.allowed(), "integer, at least 0");
        assert_eq!(ValueType::PowerOfTwo { max: 64 }.allowed(), "power of two from 1 to 64");
        assert_eq!(float.allowed(), "number at least 1e-12 and below 1");
        assert_eq!(ValueType::Bool.allowed(), "true, false");
        assert_eq!(ValueType::Text { may_be_empty: false }.allowed(), "text, not empty");
        assert_eq!(ValueType::Choice(&["a", "b"]).allowed(), "a, b");
    }
}
